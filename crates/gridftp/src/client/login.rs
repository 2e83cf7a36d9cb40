//! How a control connection begins: connected, greeted, protected, logged in, and asked what the server can do.

use super::data::DataPlan;
use super::error::{bare, passing, refused, silent, sort, words};
use super::farewell::Farewell;
use super::inside::Inside;
use super::options::{Grid, Options, Security};
use super::pipe::Ahead;
use super::session::Session;
use super::sessions::Sessions;
use super::tls::{explained, server_name};
use crate::control::Link;
use phoebus_files::key::Key;
use phoebus_files::{Error, Sort};
use phoebus_gsi::context::{Delegation, Expect};
use phoebus_gsi::control::{ClientLogin, Next};
use phoebus_net::{Profile, dial};
use phoebus_proto::endpoint::Host;
use phoebus_proto::gridftp::address::find_pasv;
use phoebus_proto::gridftp::features::Features;
use phoebus_proto::gridftp::reply::Reply;
use phoebus_proto::session::Code;
use rustls::ClientConfig;
use rustls::client::{Resumption, TicketRequest};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// What anonymous users give for a password, so that a server's administrator knows what this is.
const ANONYMOUS: (&str, &str) = ("anonymous", "phoebus@");

/// What stands for the user under GSI, where the server finds him by his certificate.
const MAPPED: &str = ":globus-mapping:";

/// How long the first data connection to a server that SSH has started may take before data goes inside SSH instead: long enough for two
/// lost packets, which are sent again after 1 and 3 s.
const PROBE: Duration = Duration::from_secs(4);

/// What those are told who have asked for no TLS where the server wants it.
const TLS_HINT: &str = " (ftpes:// and --explicit-tls ask for TLS)";

/// How often a login may be asked for more than is known.
const MAX_STEPS: usize = 20;

/// As many data connections as are chosen for one file where nobody says how many.
const CHOSEN: u32 = 8;

/// What is asked of every server once somebody is logged in: what it can do, for bytes as they are, and where the login leads.
const FIRST: [&[u8]; 3] = [b"FEAT", b"TYPE I", b"PWD"];

/// Connects and logs in.
pub(super) async fn login(options: &Options, name: &Arc<str>, ahead: &Ahead) -> Result<Session, Error> {
    let tries = ahead.is_taken();
    match begin(options, name, ahead).await {
        // It has broken the connection over several commands at once.
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
                return Err(Error::Store { name: name.to_string(), reason, sort: Sort::Denied });
            }
            protect(&mut session, options, config).await?;
        }
        Security::Grid(grid) => agree(&mut session, options, grid).await?,
    }
    user(&mut session, options).await?;
    let replies = session.ask_all(&FIRST.map(<[u8]>::to_vec), ahead).await?;
    let [features, image, home] = &replies[..] else { return Err(passing(name, "answers are missing")) };
    let mut known = Features::parse(features);
    // A server that does not know the question may have what it asks for.
    if matches!(features.code, 500 | 502) && session.ask("MLST /").await?.code == 250 {
        // Whether it goes on amid a file is found when that is asked for.
        known = known.with("MLST").with("REST");
    }
    session.features = Arc::new(known);
    if !image.is_success() {
        return Err(refused(name, "use", "TYPE I", image));
    }
    session.home = Arc::new(home_of(home));
    DataPlan::of(options).announce(&mut session).await?;
    // A server that does not have it says so before anything is begun.
    DataPlan::of(options).carry(&mut session, false).await?;
    // Where data goes inside SSH, it does not matter where the server is.
    if session.peer.ip().is_unspecified() && options.inside().is_none() {
        let found = find_peer(&mut session, options).await;
        match options.inside.as_ref().filter(|inside| !inside.is_decided()) {
            None => drop(found?),
            Some(inside) => settle(&mut session, options, inside, found).await?,
        }
    }
    Ok(session)
}

/// Decides whether data goes inside SSH: where a data connection to the server does not get through, as far as it can be `found`, and the
/// server takes it.
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
        // Commands alone are of use, too; data is tried, and fails in words of its own.
        Err(Error::Store { sort: Sort::Request, .. }) => {
            inside.decide(None);
            let _ = found?;
            DataPlan::of(options).carry(session, false).await
        }
        Err(error) => Err(error),
    }
}

/// Tries a data connection to `port`, or to one that is asked for; why it does not get through, if it does not.
async fn probe(session: &mut Session, options: &Options, port: Option<u16>) -> Result<Result<(), String>, Error> {
    let to = match port {
        Some(port) => SocketAddr::new(session.peer.ip(), port),
        None => DataPlan::of(options).ask(session).await?,
    };
    let limit = PROBE.min(options.patience);
    let tried = dial::connect(&[to], &Profile::default(), limit).await;
    Ok(tried.map(drop).map_err(|error| error.to_string()))
}

/// Where a login leads, as PWD says; the root, if it says nothing that makes sense.
fn home_of(reply: &Reply) -> Key {
    let line = reply.lines.first().map(Vec::as_slice).unwrap_or_default();
    let quoted = || {
        let from = line.iter().position(|&b| b == b'"')? + 1;
        // A quote in the name is doubled.
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
        let reached = way.reach(&options.server, options.patience).await.map_err(failed)?;
        let mut session = Session::new(Link::new(reached.stream), name.clone(), options.patience)?;
        session.farewell = reached.data.is_some().then(Farewell::begin);
        (session.peer, session.data) = (reached.server, reached.data);
        return Ok(session);
    }
    let port = options.server.port;
    let addresses = match &options.server.host {
        Host::Addr(addr) => vec![(*addr, port).into()],
        Host::Name(host) => dial::resolve(host, port, options.patience).await.map_err(failed)?,
    };
    let stream = dial::connect(&addresses, &Profile::default(), options.patience).await.map_err(failed)?;
    let mut session = Session::new(Link::new(stream), name.clone(), options.patience)?;
    session.data = options.way.as_ref().map(|way| way.data());
    Ok(session)
}

/// Where a server is to which another program has led. What it says itself is believed if the other ends of data connections have
/// to have its key, or if nobody else knows: otherwise it could have others attacked so (RFC 2577). Gives the port on which it waits for
/// data, if it says one.
async fn find_peer(session: &mut Session, options: &Options) -> Result<Option<u16>, Error> {
    let name = session.name.clone();
    let reply = session.ask("PASV").await?;
    let said = find_pasv(&reply.text()).ok().filter(|_| reply.code == 227);
    let port = said.map(|addr| addr.port()).filter(|port| *port != 0);
    let said = said.map(|addr| addr.ip());
    let said = said.filter(|addr| reply.code == 227 && !addr.is_unspecified());
    let keyed = session.told.as_ref().is_some_and(|told| told.keyed);
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

/// The addresses of the server's host, as whoever leads there calls it.
async fn addresses(options: &Options) -> Result<Vec<IpAddr>, phoebus_net::Error> {
    let (server, limit) = (&options.server, options.patience);
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

/// The server cannot be reached. Gateways that do not let anybody through do not do so a second later.
fn unreached(name: &str, error: &phoebus_net::Error) -> Error {
    // Of `host:` the host is meant.
    let name = name.trim_end_matches(':').to_owned();
    let carried = matches!(error.telling(), phoebus_net::Error::Carrier { .. });
    let sort = match error.code() {
        Code::NotAllowed | Code::AuthFailed | Code::AuthRequired if carried => Sort::Denied,
        Code::Requirement if carried => Sort::Request,
        // Another try would find it as little.
        Code::NameNotFound if error.is_no_name() => Sort::Other,
        _ => Sort::Passing,
    };
    Error::Store { name, reason: error.to_string(), sort }
}

async fn greeting(session: &mut Session, options: &Options) -> Result<(), Error> {
    // 120 says that it takes some time.
    let reply = session.last(options.patience).await?;
    if reply.code == 220 {
        session.greeting = reply.text();
        return Ok(());
    }
    Err(passing(&session.name, format!("the server greets with {}, and 220 was expected", words(&reply))))
}

/// Goes on under TLS.
async fn protect(session: &mut Session, options: &Options, config: &Arc<ClientConfig>) -> Result<(), Error> {
    let server = server_name(&options.server.host, &session.name)?;
    let (name, patience) = (session.name.clone(), options.patience);
    // Many servers are a process for each control connection, which knows of no others' sessions.
    let mut config = ClientConfig::clone(config);
    config.resumption = Resumption::store(Arc::new(Sessions::default()));
    // Each is used once: as many are wanted as a transfer may have data connections, and each of those brings another one.
    let at_once = options.streams.unwrap_or(if options.choose.is_some() { CHOSEN } else { 1 });
    let new_session_count = u8::try_from(at_once.saturating_add(1)).unwrap_or(u8::MAX);
    config.send_ticket_request = Some(TicketRequest { new_session_count, resumption_count: 1 });
    let config = Arc::new(config);
    session.tls = Some(config.clone());
    let agreed = session.link()?.protect_as_client(config, server, patience).await;
    agreed.map_err(|error| match error.kind() {
        io::ErrorKind::TimedOut => silent(&name, patience),
        // Whom this end does not believe it will not believe a second later.
        io::ErrorKind::InvalidData => Error::Store {
            name: name.to_string(),
            reason: format!("TLS with the server failed: {}", explained(&error)),
            sort: Sort::Denied,
        },
        _ => passing(&name, format!("TLS with the server failed: {}", phoebus_net::reason(&error))),
    })
}

/// Both ends prove by certificates who they are (`AUTH GSSAPI`, `ADAT`).
async fn agree(session: &mut Session, options: &Options, grid: &Grid) -> Result<(), Error> {
    let name = session.name.clone();
    let failed = |error: &dyn std::fmt::Display| Error::Store {
        name: name.to_string(),
        reason: format!("the server and this end did not agree by certificates: {error}"),
        sort: Sort::Denied,
    };
    let host = match &options.server.host {
        Host::Addr(addr) => addr.to_string(),
        Host::Name(host) => host.clone(),
    };
    // The server proves by what is lent to it that its data connections belong to this control connection.
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

/// Whether a server says so that has too many clients already.
pub(super) fn is_crowd(words: &str) -> bool {
    let words = words.to_lowercase();
    // Those who count what was tried in vain are not to be tried again.
    let tried = ["attempts", "failures"].iter().any(|tried| words.contains(tried));
    !tried && ["too many", "maximum"].iter().any(|full| words.contains(full))
}

/// Says who logs in. Neither the password nor what a server makes of it is ever repeated.
async fn user(session: &mut Session, options: &Options) -> Result<(), Error> {
    let (user, password) = match (&options.login.user, &options.login.password, &options.security) {
        // Who has a certificate needs no password, and some servers ask for one all the same.
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
            return Err(Error::Store { name: session.name.to_string(), reason, sort: Sort::Denied });
        };
        reply = session.ask(format!("PASS {password}")).await?;
        hide(&mut reply, password);
    }
    match reply.code {
        // 202: passwords mean nothing here.
        200..=299 => Ok(()),
        332 => {
            let reason = "the server asks for an account (ACCT), of which nothing is known here";
            Err(Error::Store { name: session.name.to_string(), reason: reason.to_owned(), sort: Sort::Denied })
        }
        // Not who it is is refused, but one more: the next time there may be fewer.
        _ if is_crowd(&reply.text()) => {
            Err(passing(&session.name, format!("the server answers the login with {}", words(&reply))))
        }
        _ if sort(&reply) == Sort::Passing => Err(refused(&session.name, "log in to", "the login", &reply)),
        _ => {
            let hint = if asks_for_tls(&reply, &options.security) { TLS_HINT } else { "" };
            let source = io::Error::other(format!("the server answers with {}{hint}", words(&reply)));
            Err(Error::Denied { name: session.name.to_string(), act: "log in to", source })
        }
    }
}

/// Whether a login in clear is refused because it is in clear (RFC 4217, section 12; some say so by 530 or 550).
fn asks_for_tls(reply: &Reply, security: &Security) -> bool {
    let text = reply.text().to_ascii_uppercase();
    matches!(security, Security::None) && ["TLS", "SSL", "SECURE", "ENCRYPT"].iter().any(|word| text.contains(word))
}

/// Takes a password out of an answer that repeats it.
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
