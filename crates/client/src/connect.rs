//! Opening a session: the choice between path and direct connection, the first hop, the handshake on it (P8, P18, P38).

use crate::agent::Agents;
use crate::bypass;
use crate::error::{Error, RedirectEnd};
use crate::options::Options;
use crate::report::{Hop, Report};
use crate::session::Session;
use phoebus_net::{CongestionControl, Profile, Stream, dial, tcp};
use phoebus_proto::agent::Running;
use phoebus_proto::endpoint::{Endpoint, EndpointRef, Host};
use phoebus_proto::session::initiator::State;
use phoebus_proto::session::message::{Auth, Hello, Open, Requirements};
use phoebus_proto::session::{Code, Initiator, List, SessionId};
use phoebus_proto::units::Span;
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tokio::time::timeout;

/// Room for PREFACE, HELLO, AUTH and an OPEN with the longest path there is.
const OUT_SIZE: usize = 8 * 1024;

type Handshake = Initiator<Vec<u8>, Vec<u8>>;

/// Opens a session to `destination`. A name is resolved by the last gateway. When this returns, the destination has
/// connected.
///
/// # Errors
/// [`Error`], which says which hop failed.
pub async fn connect(options: &Options, destination: &Endpoint) -> Result<Session, Error> {
    if options.path.is_empty() {
        return direct(options, destination, String::new()).await;
    }
    if let Some(rtt) = bypass::short(options, &destination.host) {
        let note = format!("direct: the path measured {}, below {}", Span(rtt), Span(options.bypass_rtt));
        return direct(options, destination, note).await;
    }
    match through(options, destination).await {
        Err(error) if options.fallback && error.without_gateway() => {
            direct(options, destination, format!("direct: {error}")).await
        }
        result => result,
    }
}

/// Asks the first gateway, and those that it and they name as better ones (P10).
async fn through(options: &Options, destination: &Endpoint) -> Result<Session, Error> {
    let mut path = options.path.clone();
    let mut asked: Vec<Endpoint> = Vec::new();
    loop {
        asked.extend(path.first().cloned());
        let error = match ask(options, &path, destination).await {
            Ok(session) if asked.len() == 1 => return Ok(session),
            Ok(session) => return Ok(session.noted(&format!("redirected from {} to {}", asked[0], path[0]))),
            Err(error) => error,
        };
        let better = if let Error::Refused { redirect, .. } = &error { redirect.clone() } else { None };
        let end = match better {
            Some(better) if asked.contains(&better) => RedirectEnd::Circle,
            Some(_) if asked.len() > options.redirects.into() => RedirectEnd::Limit,
            Some(better) => {
                // It may be the one that was to come next.
                path.remove(0);
                if path.first() != Some(&better) {
                    path.insert(0, better);
                }
                continue;
            }
            None => RedirectEnd::Failed,
        };
        return Err(match (asked.len(), end) {
            (1, RedirectEnd::Failed | RedirectEnd::Limit) => error,
            _ => Error::Redirected { last: Box::new(error), asked, end },
        });
    }
}

/// Opens a session over the gateways of `path`, of which there is at least one.
async fn ask(options: &Options, path: &[Endpoint], destination: &Endpoint) -> Result<Session, Error> {
    let gateway = &path[0];
    let begun = Instant::now();
    let (stream, agent) = first_hop(options, gateway).await?;
    // What is to be visited after whoever is asked.
    let later = if agent.is_some() { path } else { &path[1..] };
    let later: Vec<EndpointRef> = later.iter().map(Endpoint::as_ref).collect();
    let mut session = [0; 16];
    getrandom::fill(&mut session).map_err(Error::Random)?;
    let requirements = Requirements { rate: options.bandwidth.map(|rate| rate.0), ..Requirements::default() };
    let open = Open { path: List::new(&later), requirements, ..Open::new(SessionId(session), destination.as_ref()) };
    let auth = match (&agent, &options.user) {
        // It says itself who its user is.
        (Some(agent), _) => Some(Auth { mechanism: Auth::AGENT, data: &agent.secret.0 }),
        (None, Some(user)) => Some(Auth { mechanism: Auth::ANONYMOUS, data: user.as_bytes() }),
        (None, None) => None,
    };
    let broken = |source| Error::Protocol { gateway: gateway.clone(), source };
    let mut handshake =
        Handshake::connect(vec![0; OUT_SIZE], Vec::new(), &Hello::of(""), auth.as_ref(), &open).map_err(broken)?;
    timeout(options.open_limit, exchange(&stream, &mut handshake, gateway)).await.map_err(|_| Error::Timeout {
        gateway: gateway.clone(),
        destination: destination.clone(),
        limit: Span(options.open_limit),
    })??;
    if let Some(error) = refused(&handshake, gateway, options) {
        stream.close();
        return Err(error);
    }
    let mut report = report(&stream, &handshake, gateway, destination, begun.elapsed());
    if let Some(missing) = options.agents.as_ref().filter(|_| agent.is_none()).and_then(Agents::missing) {
        missing.clone_into(&mut report.note);
    }
    bypass::remember(options, &destination.host, report.rtt_us);
    Ok(Session::new(stream, report, options.finish_limit))
}

/// The first hop: to an agent where one is to be used, and otherwise to the gateway.
async fn first_hop(options: &Options, gateway: &Endpoint) -> Result<(Stream, Option<Running>), Error> {
    let found = options.agents.as_ref().and_then(|agents| Some((agents, agents.find()?)));
    if let Some((_, agent)) = found {
        let addresses: Vec<_> = agent.addresses.into_iter().flatten().collect();
        let profile = Profile { congestion_control: CongestionControl::System, ..options.profile.clone() };
        if let Ok(stream) = dial::connect(&addresses, &profile, options.connect_limit).await {
            return Ok((stream, Some(agent)));
        }
    }
    match options.agents.as_ref().and_then(Agents::demanded) {
        Some(first_hop) => Err(Error::NoAgent { gateway: gateway.clone(), first_hop }),
        None => Ok((to_gateway(options, gateway).await?, None)),
    }
}

async fn to_gateway(options: &Options, gateway: &Endpoint) -> Result<Stream, Error> {
    let failed = |source| Error::Gateway { gateway: gateway.clone(), source };
    let addresses = resolve(gateway, options.connect_limit).await.map_err(failed)?;
    match addresses[..] {
        // One address: HELLO and OPEN may ride in the SYN. With several, only those that answer are worth a HELLO.
        [only] => tcp::connect_with_data(only, &options.profile, options.connect_limit).await,
        _ => dial::connect(&addresses, &options.profile, options.connect_limit).await,
    }
    .map_err(failed)
}

/// Moves the handshake's bytes until it has come to an end, good or bad.
async fn exchange(stream: &Stream, handshake: &mut Handshake, gateway: &Endpoint) -> Result<(), Error> {
    let lost = |source| Error::Lost { gateway: gateway.clone(), source };
    let broken = |source| Error::Protocol { gateway: gateway.clone(), source };
    let mut heard = false;
    while matches!(handshake.state(), State::Greeting | State::Opening) {
        let result = if handshake.outgoing().is_empty() {
            let space = handshake.space().map_err(broken)?;
            stream.try_read(space).map(|n| (n, false))
        } else {
            stream.try_write(handshake.outgoing(), false).map(|n| (n, true))
        };
        match result {
            Ok((n, true)) => handshake.sent(n),
            Ok((0, false)) => return Err(lost(io::ErrorKind::UnexpectedEof.into())),
            Ok((n, false)) => {
                heard = true;
                handshake.received(n).map_err(broken)?;
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let ready =
                    if handshake.outgoing().is_empty() { stream.readable().await } else { stream.writable().await };
                ready.map_err(lost)?;
            }
            // With fast open the connection itself fails only here.
            Err(source) if !heard && refuses(&source) => {
                let to = stream.peer_addr().unwrap_or(SocketAddr::from(([0, 0, 0, 0], gateway.port)));
                return Err(Error::Gateway {
                    gateway: gateway.clone(),
                    source: phoebus_net::Error::Connect { to, source },
                });
            }
            Err(error) => return Err(lost(error)),
        }
    }
    Ok(())
}

/// Whether an error means that nobody accepted the connection.
fn refuses(error: &io::Error) -> bool {
    use Code::{HostUnreachable, NetworkUnreachable, Refused, TimedOut};
    matches!(phoebus_net::code_of(error), Refused | TimedOut | HostUnreachable | NetworkUnreachable)
}

/// The error of a handshake that did not end in OPENED.
fn refused(handshake: &Handshake, gateway: &Endpoint, options: &Options) -> Option<Error> {
    let gateway = gateway.clone();
    if let Some(refused) = handshake.refused() {
        return Some(Error::Refused {
            gateway,
            hop: refused.hop.to_owned(),
            code: refused.code,
            reason: refused.reason.to_owned(),
            redirect: refused.redirect.map(EndpointRef::to_owned),
        });
    }
    let challenge = handshake.challenge()?;
    let mechanisms: Vec<_> = challenge.mechanisms.iter().collect();
    let anonymous = mechanisms.contains(&Auth::ANONYMOUS) && options.user.is_none();
    let advice =
        if anonymous { "set PHOEBUS_USER to an e-mail address" } else { "this version has nothing else to offer" };
    Some(Error::Authentication { gateway, mechanisms: mechanisms.join(", "), advice })
}

fn report(
    stream: &Stream,
    handshake: &Handshake,
    gateway: &Endpoint,
    destination: &Endpoint,
    took: Duration,
) -> Report {
    let opened = handshake.opened();
    let mut hops: Vec<Hop> = opened.iter().flat_map(|opened| opened.hops.iter()).map(Hop::from).collect();
    let next = hops.first().map_or_else(|| gateway.to_string(), |hop| hop.from.clone());
    hops.insert(0, own_hop(stream, next));
    Report {
        session: opened.map(|opened| opened.session.to_string()).unwrap_or_default(),
        destination: destination.to_string(),
        rtt_us: hops.iter().map(|hop| hop.rtt_us).sum(),
        hops,
        opened_in_us: took.as_micros() as u64,
        note: String::new(),
    }
}

/// A connection without gateways, reported like a session.
async fn direct(options: &Options, destination: &Endpoint, note: String) -> Result<Session, Error> {
    let begun = Instant::now();
    let profile = Profile { congestion_control: CongestionControl::System, ..options.profile.clone() };
    let addresses = resolve(destination, options.connect_limit).await?;
    let stream = dial::connect(&addresses, &profile, options.open_limit).await?;
    let to = stream.peer_addr().map_or_else(|_| destination.to_string(), |addr| addr.to_string());
    let hops = vec![own_hop(&stream, to)];
    let report = Report {
        session: String::new(),
        destination: destination.to_string(),
        rtt_us: hops[0].rtt_us,
        hops,
        opened_in_us: begun.elapsed().as_micros() as u64,
        note,
    };
    Ok(Session::new(stream, report, options.finish_limit))
}

fn own_hop(stream: &Stream, to: String) -> Hop {
    let stats = stream.stats().unwrap_or_default();
    Hop {
        from: "client".to_owned(),
        to,
        transport: "tcp".to_owned(),
        congestion_control: stats.congestion_control,
        security: "none".to_owned(),
        rtt_us: stats.rtt_us,
        send_buffer: stats.send_buffer,
        receive_buffer: stats.receive_buffer,
        warm: false,
        note: stream.note().unwrap_or_default().to_owned(),
    }
}

async fn resolve(endpoint: &Endpoint, limit: Duration) -> Result<Vec<SocketAddr>, phoebus_net::Error> {
    match &endpoint.host {
        Host::Addr(addr) => Ok(vec![SocketAddr::new(*addr, endpoint.port)]),
        Host::Name(name) => dial::resolve(name, endpoint.port, limit).await,
    }
}
