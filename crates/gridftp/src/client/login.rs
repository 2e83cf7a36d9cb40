//! Opens control connections: connection, greeting, protection, login, and the server's features.

use super::ahead::Ahead;
use super::data::DataPlan;
use super::error::{bare, is_crowd, kind, passing, refused, silent, words};
use super::farewell::Farewell;
use super::inside::Inside;
use super::options::{Grid, Options, Security};
use super::session::Session;
use super::tls::{explained, server_name};
use super::tls_tickets::Sessions;
use crate::control::Link;
use crate::data::Mode;
use phoebus_files::key::Key;
use phoebus_files::{Error, ErrorKind};
use phoebus_gsi::context::{Delegation, Expect};
use phoebus_gsi::control::{ClientLogin, Next};
use phoebus_net::{Profile, dial};
use phoebus_proto::endpoint::Host;
use phoebus_proto::gridftp::address::find_pasv;
use phoebus_proto::gridftp::features::Features;
use phoebus_proto::gridftp::line::is_line;
use phoebus_proto::gridftp::reply::Reply;
use phoebus_proto::session::Code;
use rustls::ClientConfig;
use rustls::client::{Resumption, TicketRequest};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Password of anonymous logins, which tells the server's administrator the program.
const ANONYMOUS: (&str, &str) = ("anonymous", "phoebus@");

/// User name under GSI if the server chooses the user by the certificate.
const MAPPED: &str = ":globus-mapping:";

/// Time for the first data connection to a server that SSH has started. After it, data goes inside SSH. Long enough for
/// two lost SYNs, which are repeated after 1 and 3 s.
const PROBE: Duration = Duration::from_secs(4);

/// Advice if the server requires TLS.
const TLS_HINT: &str = " (ftpes:// and --explicit-tls ask for TLS)";

/// Advice if the server requires a user.
const ANONYMOUS_HINT: &str = " (the login was anonymous, since no user is given: ftp://USER@HOST)";

/// Most rounds of a login dialogue.
const MAX_STEPS: usize = 20;

/// Most data connections of one file by default.
const CHOSEN: u32 = 8;

/// Sent after each login: features, TYPE I, and the current directory.
const FIRST: [&[u8]; 3] = [b"FEAT", b"TYPE I", b"PWD"];

/// Connects and logs in.
pub(super) async fn login(options: &Options, name: &Arc<str>, ahead: &Ahead) -> Result<Session, Error> {
    let tries = ahead.is_taken();
    match begin(options, name, ahead).await {
        // The server closed the connection because of pipelined commands.
        Err(_) if tries && !ahead.is_taken() => begin(options, name, ahead).await,
        session => session,
    }
}

async fn begin(options: &Options, name: &Arc<str>, ahead: &Ahead) -> Result<Session, Error> {
    let mut session = connect(options, name).await?;
    if let Security::Tls { config, implicit: true } = &options.security {
        protect(&mut session, options, config).await?;
    }
    greeting(&mut session, options).await?;
    match &options.security {
        Security::None | Security::Tls { implicit: true, .. } => {}
        Security::Tls { config, implicit: false } => {
            let reply = session.ask("AUTH TLS").await?;
            if reply.code != 234 {
                let reason = format!("the server answers AUTH TLS with {}; TLS was asked for", words(&reply));
                return Err(Error::Store { name: name.to_string(), reason, kind: ErrorKind::Denied });
            }
            protect(&mut session, options, config).await?;
        }
        Security::Grid(grid) => agree(&mut session, options, grid).await?,
    }
    user(&mut session, options).await?;
    let replies = session.ask_all(&FIRST.map(<[u8]>::to_vec), ahead).await?;
    let [features, image, home] = &replies[..] else { return Err(passing(name, "answers are missing")) };
    let mut known = Features::parse(features);
    // A server without FEAT may still have the feature.
    if matches!(features.code, 500 | 502) && session.ask("MLST /").await?.code == 250 {
        // REST is tested when it is needed.
        known = known.with("MLST").with("REST");
    }
    if !image.is_success() {
        return Err(refused(name, "use", "TYPE I", image));
    }
    session.home = Arc::new(home_of(home));
    match known.mlst_options_with_modes().filter(|line| is_line(line.as_bytes())) {
        // The server repeats the refusal for each session.
        Some(line) if ahead.is_taken() => session.send_unread(line.as_bytes()).await?,
        Some(line) => drop(session.ask(line).await?),
        None => {}
    }
    session.features = Arc::new(known);
    DataPlan::of(options).announce(&mut session).await?;
    // A server without the stack refuses before a transfer begins.
    DataPlan::of(options).carry(&mut session, Some(Mode::Extended)).await?;
    // Inside SSH, the server's address does not matter.
    if session.peer.ip().is_unspecified() && options.inside().is_none() {
        let found = find_peer(&mut session, options).await;
        match options.inside.as_ref().filter(|inside| !inside.is_decided()) {
            None => drop(found?),
            Some(inside) => settle(&mut session, options, inside, found).await?,
        }
    }
    Ok(session)
}

/// Decides whether data goes inside SSH: if a data connection to the server's address `found` does not get through, and
/// the server supports it.
async fn settle(
    session: &mut Session,
    options: &Options,
    inside: &Inside,
    found: Result<Option<u16>, Error>,
) -> Result<(), Error> {
    let obstacle = match &found {
        Err(error) => Err(bare(error, &session.name)),
        Ok(port) => probe(session, options, *port).await?,
    };
    let why = match obstacle {
        Ok(()) => {
            inside.decide(None);
            return Ok(());
        }
        Err(why) => why,
    };
    match DataPlan::of(options).carry_inside(session).await {
        Ok(()) => {
            inside.decide(Some(why));
            Ok(())
        }
        // Commands may suffice for the user. A transfer fails with its own error.
        Err(Error::Store { kind: ErrorKind::Request, .. }) => {
            inside.decide(None);
            let _ = found?;
            DataPlan::of(options).carry(session, Some(Mode::Extended)).await
        }
        Err(error) => Err(error),
    }
}

/// Tries a data connection to `port`, or to a requested one. Returns why it fails.
async fn probe(session: &mut Session, options: &Options, port: Option<u16>) -> Result<Result<(), String>, Error> {
    let to = match port {
        Some(port) => SocketAddr::new(session.peer.ip(), port),
        None => DataPlan::of(options).ask(session).await?,
    };
    let limit = PROBE.min(options.reply_timeout);
    let tried = dial::connect(&[to], &Profile::default(), limit).await;
    Ok(tried.map(drop).map_err(|error| error.to_string()))
}

/// The current directory in a reply to PWD. The root, if the reply is invalid.
fn home_of(reply: &Reply) -> Key {
    let line = reply.lines.first().map(Vec::as_slice).unwrap_or_default();
    let quoted = || {
        let from = line.iter().position(|&b| b == b'"')? + 1;
        // Quotes in the name are doubled.
        let (mut path, mut rest) = (Vec::new(), line[from..].iter().copied().peekable());
        while let Some(byte) = rest.next() {
            if byte == b'"' && rest.next_if_eq(&b'"').is_none() {
                return Key::parse(&path).ok();
            }
            path.push(byte);
        }
        None
    };
    if reply.code == 257 { quoted().unwrap_or_default() } else { Key::ROOT }
}

async fn connect(options: &Options, name: &Arc<str>) -> Result<Session, Error> {
    let failed = |error: phoebus_net::Error| unreached(name, &error);
    let proved = matches!(&options.security, Security::Grid(Grid { data_auth: true, .. }));
    if let Some(way) = options.way.as_ref().filter(|_| !proved) {
        let reached = way.reach(&options.server, options.reply_timeout).await.map_err(failed)?;
        let mut session = Session::new(Link::new(reached.stream), name.clone(), options.reply_timeout)?;
        session.farewell = reached.data.is_some().then(Farewell::begin);
        (session.peer, session.data) = (reached.server, reached.data);
        return Ok(session);
    }
    let port = options.server.port;
    let addresses = match &options.server.host {
        Host::Addr(addr) => vec![(*addr, port).into()],
        Host::Name(host) => dial::resolve(host, port, options.reply_timeout).await.map_err(failed)?,
    };
    let stream = dial::connect(&addresses, &Profile::default(), options.reply_timeout).await.map_err(failed)?;
    let mut session = Session::new(Link::new(stream), name.clone(), options.reply_timeout)?;
    session.data = options.way.as_ref().map(|way| way.data());
    Ok(session)
}

/// The address of a server that another program leads to. The server's own statement counts if pinned keys authenticate
/// data connections, or if there is no other source. Otherwise a hostile server could have other hosts attacked (RFC
/// 2577). Also returns the port on which the server waits for data, if it says one.
async fn find_peer(session: &mut Session, options: &Options) -> Result<Option<u16>, Error> {
    let name = session.name.clone();
    let reply = session.ask("PASV").await?;
    let said = find_pasv(&reply.text()).ok().filter(|_| reply.code == 227);
    let port = said.map(|addr| addr.port()).filter(|port| *port != 0);
    let said = said.map(|addr| addr.ip());
    let said = said.filter(|addr| reply.code == 227 && !addr.is_unspecified());
    let keyed = session.stack.as_ref().is_some_and(|told| told.keyed);
    let peer = match said {
        Some(said) if keyed => said,
        said => match (addresses(options).await, said) {
            (Ok(known), Some(said)) if known.is_empty() || known.contains(&said) => said,
            (Ok(known), _) => *known.first().ok_or_else(|| passing(&name, "its name has no addresses"))?,
            (Err(_), Some(said)) => said,
            (Err(error), None) => return Err(unreached(&name, &error)),
        },
    };
    let local = dial::address_towards(peer);
    let local =
        local.map_err(|error| passing(&name, format!("cannot reach {peer}: {}", phoebus_net::reason(&error))))?;
    (session.peer, session.local) = (SocketAddr::new(peer, 0), SocketAddr::new(local, 0));
    Ok(port)
}

/// The addresses of the server's host under its real name.
async fn addresses(options: &Options) -> Result<Vec<IpAddr>, phoebus_net::Error> {
    let (server, limit) = (&options.server, options.reply_timeout);
    let called = match &options.way {
        Some(way) => way.host(server, limit).await,
        None => None,
    };
    match called.as_ref().unwrap_or(&server.host) {
        Host::Addr(addr) => Ok(vec![*addr]),
        Host::Name(host) => {
            let found = dial::resolve(host, server.port, limit).await?;
            Ok(found.iter().map(SocketAddr::ip).collect())
        }
    }
}

/// The error of a failed connection. A gateway's refusal is permanent.
fn unreached(name: &str, error: &phoebus_net::Error) -> Error {
    // A name without a port.
    let name = name.trim_end_matches(':').to_owned();
    let carried = matches!(error.most_informative(), phoebus_net::Error::Carrier { .. });
    let kind = match error.code() {
        Code::NotAllowed | Code::AuthFailed | Code::AuthRequired if carried => ErrorKind::Denied,
        Code::Requirement | Code::NoDatagrams if carried => ErrorKind::Request,
        // A host without a gateway stays without one, and a path with a gateway that is no peer stays as it is.
        Code::Protocol | Code::NoRoute if carried => ErrorKind::Other,
        // Trying again would not help.
        Code::NameNotFound if error.is_unknown_name() => ErrorKind::Other,
        _ => ErrorKind::Passing,
    };
    let reason = error.to_string();
    match kind {
        ErrorKind::Passing => Error::Unreached { name, reason },
        kind => Error::Store { name, reason, kind },
    }
}

async fn greeting(session: &mut Session, options: &Options) -> Result<(), Error> {
    // 120 announces a delay.
    let reply = session.last(options.reply_timeout).await?;
    if reply.code == 220 {
        session.greeting = reply.text();
        return Ok(());
    }
    Err(passing(&session.name, format!("the server greets with {}, and 220 was expected", words(&reply))))
}

/// Starts TLS.
async fn protect(session: &mut Session, options: &Options, config: &Arc<ClientConfig>) -> Result<(), Error> {
    let server = server_name(&options.server.host, &session.name)?;
    let (name, reply_timeout) = (session.name.clone(), options.reply_timeout);
    // Many servers have a process for each control connection, and no common store of sessions.
    let mut config = ClientConfig::clone(config);
    config.resumption = Resumption::store(Arc::new(Sessions::default()));
    // Each ticket is used once. A transfer needs one per data connection, and each data connection brings another.
    let at_once = options.streams.unwrap_or(if options.choose.is_some() { CHOSEN } else { 1 });
    let new_session_count = u8::try_from(at_once.saturating_add(1)).unwrap_or(u8::MAX);
    config.send_ticket_request = Some(TicketRequest { new_session_count, resumption_count: 1 });
    let config = Arc::new(config);
    session.tls = Some(config.clone());
    let agreed = session.link()?.protect_as_client(config, server, reply_timeout).await;
    agreed.map_err(|error| match error.kind() {
        io::ErrorKind::TimedOut => silent(&name, reply_timeout),
        // A failed verification is permanent.
        io::ErrorKind::InvalidData => Error::Store {
            name: name.to_string(),
            reason: format!("TLS with the server failed: {}", explained(&error)),
            kind: ErrorKind::Denied,
        },
        _ => passing(&name, format!("TLS with the server failed: {}", phoebus_net::reason(&error))),
    })
}

/// Mutual authentication with certificates (`AUTH GSSAPI`, `ADAT`).
async fn agree(session: &mut Session, options: &Options, grid: &Grid) -> Result<(), Error> {
    let name = session.name.clone();
    let failed = |error: &dyn std::fmt::Display| Error::Store {
        name: name.to_string(),
        reason: format!("the server and this end did not agree by certificates: {error}"),
        kind: ErrorKind::Denied,
    };
    let host = match &options.server.host {
        Host::Addr(addr) => addr.to_string(),
        Host::Name(host) => host.clone(),
    };
    // With the delegated credential, the server proves that data connections belong to this control connection.
    let delegation = if grid.data_auth { Delegation::Limited } else { Delegation::None };
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
    let now = i64::try_from(now).unwrap_or(i64::MAX);
    let begun = ClientLogin::begin(&grid.identity, Expect::Host(host), delegation, now);
    let (mut login, mut line) = begun.map_err(|error| failed(&error))?;
    for _ in 0..MAX_STEPS {
        let reply = session.ask(line.as_bytes()).await?;
        match login.reply(reply.code, &reply.text()).map_err(|error| failed(&error))? {
            Next::Send(next) => line = next,
            Next::Done => {
                session.protected = Some(Box::new(login.finish().map_err(|error| failed(&error))?));
                return Ok(());
            }
        }
    }
    Err(failed(&"it takes more tokens than any does"))
}

/// Logs in. Neither the password nor the server's echo of it appears in errors.
async fn user(session: &mut Session, options: &Options) -> Result<(), Error> {
    let (user, password) = match (&options.login.user, &options.login.password, &options.security) {
        // A certificate replaces the password, but some servers ask for one.
        (Some(user), None, Security::Grid(_)) => (user.as_str(), Some("")),
        (Some(user), password, _) => (user.as_str(), password.as_ref().map(|password| password.0.as_str())),
        (None, _, Security::Grid(_)) => (MAPPED, Some("")),
        (None, _, _) => (ANONYMOUS.0, Some(ANONYMOUS.1)),
    };
    let mut reply = session.ask(format!("USER {user}")).await?;
    if reply.code == 331 {
        let Some(password) = password else {
            let reason = format!(
                "the server asks for the password of {user}: it was expected in the URL, in ~/.netrc or in PHOEBUS_FTP_PASSWORD"
            );
            return Err(Error::Store { name: session.name.to_string(), reason, kind: ErrorKind::Denied });
        };
        reply = session.ask(format!("PASS {password}")).await?;
        hide(&mut reply, password);
    }
    match reply.code {
        // 202: the server ignores passwords.
        200..=299 => Ok(()),
        332 => {
            let reason = "the server asks for an account (ACCT), of which nothing is known here";
            Err(Error::Store { name: session.name.to_string(), reason: reason.to_owned(), kind: ErrorKind::Denied })
        }
        // The refusal concerns the number of clients, which changes.
        _ if is_crowd(&reply.text()) => {
            Err(passing(&session.name, format!("the server answers the login with {}", words(&reply))))
        }
        _ if kind(&reply) == ErrorKind::Passing => Err(refused(&session.name, "log in to", "the login", &reply)),
        _ => {
            let is_anonymous = options.login.user.is_none() && !matches!(options.security, Security::Grid(_));
            let hint = match () {
                () if asks_for_tls(&reply, &options.security) => TLS_HINT,
                () if is_anonymous => ANONYMOUS_HINT,
                () => "",
            };
            let source = io::Error::other(format!("the server answers with {}{hint}", words(&reply)));
            Err(Error::Denied { name: session.name.to_string(), act: "log in to", source })
        }
    }
}

/// Whether a login is refused because the connection is in clear (RFC 4217, section 12; some servers use 530 or 550).
fn asks_for_tls(reply: &Reply, security: &Security) -> bool {
    let text = reply.text().to_ascii_uppercase();
    matches!(security, Security::None) && ["TLS", "SSL", "SECURE", "ENCRYPT"].iter().any(|word| text.contains(word))
}

/// Removes a password from a reply that repeats it.
fn hide(reply: &mut Reply, password: &str) {
    if password.is_empty() || password == ANONYMOUS.1 {
        return;
    }
    for line in &mut reply.lines {
        let text = String::from_utf8_lossy(line);
        if text.contains(password) {
            *line = text.replace(password, "…").into_bytes();
        }
    }
}
