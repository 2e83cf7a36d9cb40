//! Where data connections lead, and what protects them (RFC 959, 2428, 4217; GFD.20, section 3).

use super::error::{passing, refused, senseless, sort, words};
use super::inside::Relays;
use super::options::{Grid, Options, Security};
use super::pipe::Ahead;
use super::session::Session;
use super::stack::{NetStack, Told};
use super::tls::server_name;
use crate::data::pinned::Own;
use crate::data::{Channel, Guard, Losses, Mode, Peers, Protection, Settings};
use phoebus_files::{Error, Sort};
use phoebus_gsi::context::Expect;
use phoebus_net::transport::Transport;
use phoebus_proto::gridftp::address::{find_epsv, find_pasv, parse_stripes, print_eprt, print_port, print_stripe};
use phoebus_proto::gridftp::inside;
use phoebus_proto::gridftp::options::RetrOptions;
use phoebus_proto::gridftp::pin::Pin;
use phoebus_proto::gridftp::reply::Reply;
use std::net::SocketAddr;
use std::sync::Arc;

/// How much is protected at once under GSI: what is asked for is more than any record has.
const PROTECTED_BLOCK: u64 = 1 << 20;

/// What holds for all data connections of a server.
#[derive(Debug)]
pub(super) struct DataPlan<'a> {
    options: &'a Options,
    /// Where is counted what becomes of what is sent.
    losses: Option<Arc<Losses>>,
    /// Over how many connections a transfer goes.
    connections: u32,
}

impl<'a> DataPlan<'a> {
    pub(super) fn of(options: &'a Options) -> Self {
        Self { options, losses: None, connections: 1 }
    }

    /// The same, which counts what becomes of what is sent.
    pub(super) fn counting(self, losses: Arc<Losses>) -> Self {
        Self { losses: Some(losses), ..self }
    }

    /// The same for a transfer over so many connections.
    pub(super) fn over(self, connections: u32) -> Self {
        Self { connections, ..self }
    }

    /// Whether bytes go as they are.
    pub(super) fn is_plain(&self) -> bool {
        match &self.options.security {
            _ if self.options.inside().is_some() => false,
            _ if self.options.stack.as_ref().is_some_and(|stack| !stack.is_tcp() || stack.keyed().is_some()) => false,
            Security::None => true,
            Security::Tls { .. } => false,
            Security::Grid(grid) => !grid.data_auth || grid.protection == Protection::Clear,
        }
    }

    /// Tells the server what protects data.
    pub(super) async fn announce(&self, session: &mut Session) -> Result<(), Error> {
        let name = session.name.clone();
        match &self.options.security {
            Security::None => Ok(()),
            Security::Tls { .. } => {
                session.must("PBSZ 0", &name, "use").await?;
                // What was asked for is had or refused: data in clear beside commands under TLS would be neither.
                session.must("PROT P", &name, "protect the data of").await.map(drop)
            }
            Security::Grid(Grid { data_auth: false, .. }) => session.must("DCAU N", &name, "use").await.map(drop),
            Security::Grid(Grid { protection, .. }) => {
                let reply = session.ask("DCAU A").await?;
                if !reply.is_success() {
                    return Err(refused(&name, "authenticate the data connections of", "DCAU A", &reply));
                }
                if *protection == Protection::Clear {
                    return Ok(());
                }
                session.must(format!("PBSZ {PROTECTED_BLOCK}"), &name, "use").await?;
                let prot = format!("PROT {}", protection.argument());
                session.must(prot, &name, "protect the data of").await.map(drop)
            }
        }
    }

    /// How connections are made for a transfer of this session.
    fn settings(&self, session: &Session) -> Result<Settings, Error> {
        let guard = match &self.options.security {
            Security::None | Security::Grid(Grid { data_auth: false, .. }) => None,
            Security::Tls { config, .. } => {
                let config = session.tls.as_ref().unwrap_or(config).clone();
                Some(Guard::TlsClient(config, server_name(&self.options.server.host, &session.name)?))
            }
            Security::Grid(grid) => Some(Guard::Gsi {
                endpoint: grid.identity.clone(),
                peer: Expect::Subject(grid.subject()),
                protection: grid.protection,
            }),
        };
        let proved = matches!(guard, Some(Guard::Gsi { .. }));
        let from = if proved || self.options.data_elsewhere || self.is_striped(session) {
            Peers::Anyone
        } else {
            Peers::Only(session.peer.ip())
        };
        let (patience, stall) = (self.options.patience, self.options.stall);
        let ports = self.options.ports.clone();
        let mut settings = Settings { from, guard, ports, patience, stall, ..Settings::default() };
        if let Some(transport) = &session.data {
            settings.transport = transport.clone();
        }
        if let Some(told) = &session.told {
            settings.transport = told.transport.clone();
            settings.profile = told.profile(settings.profile, self.connections);
            if let Some(pinned) = &told.pinned {
                settings.guard = Some(Guard::Pinned(pinned.clone()));
            }
            if told.keyed {
                // Whoever has the key is who he should be, wherever he comes from.
                settings.from = Peers::Anyone;
            }
        }
        Ok(settings)
    }

    /// Whether the ends of data connections prove who they are by certificates.
    fn is_proved(&self) -> bool {
        matches!(&self.options.security, Security::Grid(Grid { data_auth: true, .. }))
    }

    /// Has the server carry data by the stack that was asked for, unless it does already.
    pub(super) async fn carry(&self, session: &mut Session, listing: bool) -> Result<(), Error> {
        if self.options.inside().is_some() {
            return self.carry_inside(session).await;
        }
        let Some(stack) = self.options.stack.as_ref().filter(|_| !session.refuses) else { return Ok(()) };
        let list = listing.then(|| stack.to_list());
        let stack = list.as_ref().unwrap_or(stack);
        let key = match stack.keyed() {
            Some(_) => Some(self.own_key(session)?.pin()),
            None => None,
        };
        let line = stack.line(self.is_proved(), key);
        if session.told.as_ref().is_some_and(|told| told.line == line) {
            return Ok(());
        }
        let theirs = match self.tell(session, stack, &line).await {
            Err(Error::Store { sort: Sort::Request, .. }) if stack.optional => {
                session.refuses = true;
                return Ok(());
            }
            told => told?,
        };
        let own = session.own.clone();
        let told = stack.told(line, own.as_ref().zip(theirs));
        let failed = |error| passing(&session.name, format!("data cannot be carried: {}", phoebus_net::reason(&error)));
        session.told = Some(told.map_err(failed)?);
        Ok(())
    }

    /// Has the server take data that comes inside SSH.
    pub(super) async fn carry_inside(&self, session: &mut Session) -> Result<(), Error> {
        if session.told.as_ref().is_some_and(|told| told.line == inside::DRIVER) {
            return Ok(());
        }
        let failed = |name: &str, reason, sort| Error::Store { name: name.to_owned(), reason, sort };
        let Some(way) = &self.options.way else {
            return Err(failed(
                &session.name,
                "only servers that ssh starts take data inside it".to_owned(),
                Sort::Request,
            ));
        };
        // Where to connect to is said of another one.
        session.foreseen().await?;
        (session.told, session.met) = (None, None);
        let reply = session.ask(format!("SITE SETNETSTACK {}", inside::DRIVER)).await?;
        if !reply.is_success() {
            let reason = format!(
                "the far side's server takes no data inside SSH: it answers SITE SETNETSTACK with {}",
                words(&reply)
            );
            return Err(failed(&session.name, reason, Sort::Request));
        }
        let ticket = inside::Ticket::of_answer(&reply);
        let ticket = ticket.map_err(|error| failed(&session.name, error.to_string(), Sort::Other))?;
        let relays: Arc<dyn Transport> = Arc::new(Relays::new(way.clone(), ticket));
        // Nobody connects to this end so.
        session.data = Some(relays.clone());
        session.told = Some(Told::inside(relays));
        Ok(())
    }

    /// This end's key of a session.
    fn own_key<'s>(&self, session: &'s mut Session) -> Result<&'s Own, Error> {
        if session.own.is_none() {
            let own = Own::new().map_err(|error| passing(&session.name, error.to_string()))?;
            session.own = Some(own);
        }
        session.own.as_ref().ok_or_else(|| passing(&session.name, "there is no key"))
    }

    /// Tells the server by what to carry data, and gives its key, if it has to have one.
    async fn tell(&self, session: &mut Session, stack: &NetStack, line: &str) -> Result<Option<Pin>, Error> {
        // Where to connect to is said of one of them.
        session.foreseen().await?;
        (session.told, session.met) = (None, None);
        let reply = session.ask(format!("SITE SETNETSTACK {line}")).await?;
        let failed = |reason| Error::Store { name: session.name.to_string(), reason, sort: Sort::Request };
        if !reply.is_success() {
            let (text, words) = (stack.text(), words(&reply));
            return Err(failed(format!(
                "the server does not carry data by {text}: it answers SITE SETNETSTACK with {words}"
            )));
        }
        let theirs = stack.keyed().map(|driver| Pin::of_answer(driver, &reply)).transpose();
        // The server carries data so from here on, and this end could not.
        theirs.map_err(|error| {
            let (name, reason) = (session.name.to_string(), error.to_string());
            Error::Store { name, reason, sort: Sort::Other }
        })
    }

    /// Has this server and that of `other` carry data between them by the stack, for which they have to know each other's keys, unless
    /// they do.
    pub(super) async fn introduce(&self, session: &mut Session, other: &mut Session) -> Result<(), Error> {
        let Some(stack) = self.options.stack.as_ref().filter(|stack| stack.keyed().is_some()) else { return Ok(()) };
        if session.was_at(other.met.as_ref()) {
            return Ok(());
        }
        let line = |key| stack.line(self.is_proved(), key);
        let first = self.tell(session, stack, &line(None)).await?;
        let second = self.tell(other, stack, &line(first)).await?;
        self.tell(session, stack, &line(second)).await?;
        session.meet(other);
        Ok(())
    }

    /// Prepares for a file that goes in `mode` to another server or comes from one. Keys are told in their time ([`Self::introduce`]).
    pub(super) async fn enter_between(&self, session: &mut Session, mode: Mode) -> Result<(), Error> {
        if self.options.stack.as_ref().is_some_and(|stack| stack.keyed().is_none()) {
            self.carry(session, false).await?;
        }
        self.go_to(session, mode).await
    }

    /// Prepares for a file that goes in `mode`.
    pub(super) async fn enter(&self, session: &mut Session, mode: Mode) -> Result<(), Error> {
        self.carry(session, false).await?;
        self.go_to(session, mode).await
    }

    /// Prepares for a file that goes to the server in `mode`, and tells it of its `size` if that is given: by one round trip, if the
    /// server takes commands `ahead`. `file` is it in errors. Says over how many connections it is to go.
    pub(super) async fn enter_to_send(
        &self,
        session: &mut Session,
        mode: Mode,
        size: Option<u64>,
        ahead: &Ahead,
        file: &str,
    ) -> Result<u32, Error> {
        self.carry(session, false).await?;
        // Where to connect to depends on the mode.
        let known = session.foreseen().await?.filter(|_| session.mode == mode);
        let asked = known.is_none() && !(self.options.striped && mode == Mode::Extended);
        let change = (session.mode != mode).then(|| mode_line(mode));
        // One that has a limit would cut what comes over more.
        let over =
            (mode == Mode::Extended && session.parallel != self.connections).then(|| parallel_line(self.connections));
        let size = size.map(|size| format!("ALLO {size}").into_bytes());
        let passive = asked.then(|| self.where_to(session).into());
        let lines: Vec<Vec<u8>> = [&change, &over, &size, &passive].into_iter().flatten().cloned().collect();
        let mut replies = session.ask_all(&lines, ahead).await?.into_iter();
        let mut reply_to = |line: &Option<Vec<u8>>| line.as_ref().and_then(|_| replies.next());
        if let Some(reply) = reply_to(&change) {
            changed(session, mode, &reply)?;
        }
        let streams = match reply_to(&over) {
            Some(reply) => self.agree(session, reply).await?,
            None => self.connections,
        };
        // Many have no such command, and some no need of it.
        if let Some(reply) = reply_to(&size).filter(|reply| matches!(reply.code, 452 | 552)) {
            return Err(refused(file, "make room for", "ALLO", &reply));
        }
        if let Some(reply) = known.or_else(|| reply_to(&passive)) {
            session.foresee(reply);
        }
        Ok(streams)
    }

    /// Over how many connections a file goes to the server, which has answered with `reply` whether it may be as many as were meant:
    /// over fewer, if nobody has asked for so many.
    async fn agree(&self, session: &mut Session, reply: Reply) -> Result<u32, Error> {
        let (mut streams, mut reply) = (self.connections, reply);
        while !reply.is_success() {
            match reply.code {
                // Who does not know the command takes what comes.
                500 | 502 => return Ok(self.connections),
                _ if self.options.streams.is_none() && streams > 1 => streams /= 2,
                _ => return Err(too_many(session, streams, &reply)),
            }
            reply = session.ask(parallel_line(streams)).await?;
        }
        session.parallel = streams;
        Ok(streams)
    }

    /// Prepares for a listing.
    pub(super) async fn enter_to_list(&self, session: &mut Session) -> Result<(), Error> {
        self.carry(session, true).await?;
        self.go_to(session, Mode::Stream).await
    }

    /// Goes to `mode`, if the session is not there.
    async fn go_to(&self, session: &mut Session, mode: Mode) -> Result<(), Error> {
        if session.mode == mode {
            return Ok(());
        }
        // Where to connect to depends on it.
        session.foreseen().await?;
        let reply = session.ask(mode_line(mode)).await?;
        changed(session, mode, &reply)
    }

    /// The command that asks where to connect to.
    fn where_to(&self, session: &Session) -> &'static str {
        // Only PASV can say another address than the control connection's, which is asked for where that is believed.
        let told = self.options.data_elsewhere && session.peer.is_ipv4();
        if !told && session.epsv { "EPSV" } else { "PASV" }
    }

    /// Asks where to connect to for the next transfer, without waiting for the answer, where that is the same for all.
    pub(super) async fn ask_ahead(&self, session: &mut Session) -> Result<(), Error> {
        if session.mode == Mode::Stream {
            session.send_ahead(self.where_to(session)).await?;
        }
        Ok(())
    }

    /// Where the server listens for data, as it says.
    pub(super) async fn ask(&self, session: &mut Session) -> Result<SocketAddr, Error> {
        let name = session.name.clone();
        let verb = self.where_to(session);
        let reply = match session.foreseen().await? {
            Some(reply) => reply,
            None => session.ask(verb).await?,
        };
        if verb == "EPSV" {
            match reply.code {
                229 => {
                    let port = find_epsv(&reply.text()).map_err(|error| passing(&name, error.to_string()))?;
                    return Ok(SocketAddr::new(session.peer.ip(), port));
                }
                // Of IPv4 there is another way.
                500..=599 if session.peer.ip().to_canonical().is_ipv4() => session.epsv = false,
                _ => return Err(refused(&name, "open a data connection to", "EPSV", &reply)),
            }
        }
        let reply = if verb == "EPSV" { session.ask("PASV").await? } else { reply };
        if reply.code != 227 {
            return Err(refused(&name, "open a data connection to", "PASV", &reply));
        }
        let mut addr = find_pasv(&reply.text()).map_err(|error| passing(&name, error.to_string()))?;
        if addr.port() == 0 {
            return Err(passing(&name, format!("the server says to connect to {addr}")));
        }
        // Behind a translator servers say what nobody can reach, and hostile ones whom they want to be reached.
        if !self.options.data_elsewhere || addr.ip().is_unspecified() {
            addr.set_ip(session.peer.ip());
        }
        Ok(addr)
    }

    /// Where the server, or each of its data nodes, listens for data, as it says.
    pub(super) async fn ask_all(&self, session: &mut Session) -> Result<Vec<SocketAddr>, Error> {
        if !self.is_striped(session) {
            return Ok(vec![self.ask(session).await?]);
        }
        let name = session.name.clone();
        let reply = session.ask("SPAS").await?;
        if reply.code != 229 {
            return Err(refused(&name, "open data connections to", "SPAS", &reply));
        }
        let inner = reply.lines.get(1..reply.lines.len().saturating_sub(1)).unwrap_or_default();
        let said = inner.iter().map(|line| String::from_utf8_lossy(line)).collect::<Vec<_>>().join(" ");
        let mut all = parse_stripes(&said).map_err(|error| passing(&name, format!("the answer to SPAS: {error}")))?;
        for addr in &mut all {
            if addr.ip().is_unspecified() {
                addr.set_ip(session.peer.ip());
            }
        }
        match all.iter().find(|addr| addr.port() == 0) {
            Some(addr) => Err(passing(&name, format!("the server says to connect to {addr}"))),
            None if all.is_empty() => Err(passing(&name, "the answer to SPAS has no addresses")),
            None => Ok(all),
        }
    }

    /// Whether data nodes move what comes next.
    fn is_striped(&self, session: &Session) -> bool {
        self.options.striped && session.mode == Mode::Extended
    }

    /// A data channel that connects to where the server listens.
    pub(super) async fn passive(&self, session: &mut Session) -> Result<Channel, Error> {
        let to = self.ask_all(session).await?;
        let channel = Channel::connecting(to, self.settings(session)?);
        Ok(match &self.losses {
            Some(losses) => channel.counting(losses.clone()),
            None => channel,
        })
    }

    /// A data channel that the server is to connect to.
    pub(super) async fn active(&self, session: &mut Session) -> Result<Channel, Error> {
        let name = session.name.clone();
        if session.data.is_some() {
            let reason = "the server gives no parts of files (ERET), and extended blocks come over connections that it makes, which do \
                          not go through gateways: leave --streams out, or --via";
            return Err(senseless(&name, reason));
        }
        let settings = self.settings(session)?;
        let channel =
            Channel::listening(session.local.ip(), settings).map_err(|error| super::error::data(&name, error))?;
        let addr = channel.local_addr().unwrap_or(session.local);
        self.aim(session, &[addr]).await?;
        Ok(channel)
    }

    /// Tells the server where to connect to.
    pub(super) async fn aim(&self, session: &mut Session, to: &[SocketAddr]) -> Result<(), Error> {
        let name = session.name.clone();
        let line = match to {
            [addr] if !self.is_striped(session) => match print_port(*addr) {
                Some(six) => format!("PORT {six}"),
                None => format!("EPRT {}", print_eprt(*addr)),
            },
            all => format!("SPOR {}", all.iter().map(|addr| print_stripe(*addr)).collect::<Vec<_>>().join(" ")),
        };
        session.must(line, &name, "have data connections from").await.map(drop)
    }

    /// Says over how many connections the server is to send.
    pub(super) async fn parallel(&self, session: &mut Session, streams: u32) -> Result<(), Error> {
        if session.parallel == streams {
            return Ok(());
        }
        let reply = session.ask(parallel_line(streams)).await?;
        if !reply.is_success() {
            return Err(too_many(session, streams, &reply));
        }
        session.parallel = streams;
        Ok(())
    }
}

/// The command for a mode.
fn mode_line(mode: Mode) -> Vec<u8> {
    match mode {
        Mode::Stream => b"MODE S".into(),
        Mode::Extended => b"MODE E".into(),
        Mode::ExtendedBoth => b"MODE X".into(),
    }
}

/// The command for so many connections.
fn parallel_line(streams: u32) -> Vec<u8> {
    let options = RetrOptions { parallelism: Some((streams, streams, streams)), ..RetrOptions::default() };
    format!("OPTS RETR {options}").into_bytes()
}

/// The server does not have as many connections for a file as were asked for, and will not have them a second later.
fn too_many(session: &Session, streams: u32, reply: &Reply) -> Error {
    let words = words(reply);
    let reason =
        format!("{streams} connections for a file were asked for, and the server answers OPTS RETR with {words}");
    let sort = if sort(reply) == Sort::Passing { Sort::Passing } else { Sort::Request };
    Error::Store { name: session.name.to_string(), reason, sort }
}

/// Notes the mode that a session is in, if `reply` to its command says so.
fn changed(session: &mut Session, mode: Mode, reply: &Reply) -> Result<(), Error> {
    if reply.is_success() {
        session.mode = mode;
        return Ok(());
    }
    let command = String::from_utf8_lossy(&mode_line(mode)).into_owned();
    let reason = format!("the server has no parallel streams: it answers {command} with {}", words(reply));
    Err(Error::Store { name: session.name.to_string(), reason, sort: Sort::Request })
}
