//! Data connections of the client: endpoints and protection (RFC 959, 2428, 4217; GFD.20, section 3).

use super::ahead::Ahead;
use super::error::{kind, passing, refused, senseless, words};
use super::options::{Grid, Options, Security};
use super::session::Session;
use super::stack::NetStack;
use super::tls::server_name;
use crate::data::{Channel, ChannelSecurity, Losses, Mode, ObjectMemory, Peers, Protection, Settings};
use phoebus_files::{Error, ErrorKind};
use phoebus_gsi::context::Expect;
use phoebus_net::tcp::Tcp;
use phoebus_net::transport::Transport;
use phoebus_proto::gridftp::address::{find_epsv, find_pasv, parse_stripes, print_eprt, print_port, print_stripe};
use phoebus_proto::gridftp::options::RetrOptions;
use phoebus_proto::gridftp::reply::Reply;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// PBSZ under GSI, in bytes. Larger than any record.
const PROTECTED_BLOCK: u64 = 1 << 20;

/// How long datagrams may take to be answered where files can go over TCP instead: time for several lost ones.
const ANSWER: Duration = Duration::from_secs(3);

/// Settings of all data connections to a server.
#[derive(Debug)]
pub(super) struct DataPlan<'a> {
    pub(super) options: &'a Options,
    /// Counts what was sent again.
    losses: Option<Arc<Losses>>,
    /// Connections of a transfer.
    connections: u32,
    /// The stack of drivers.
    pub(super) stack: Option<&'a NetStack>,
    /// Memory for files that come as objects.
    object_memory: Option<ObjectMemory>,
}

impl<'a> DataPlan<'a> {
    pub(super) fn of(options: &'a Options) -> Self {
        Self { options, losses: None, connections: 1, stack: options.stack.as_ref(), object_memory: None }
    }

    /// The same, counting what was sent again.
    pub(super) fn counting(self, losses: Arc<Losses>) -> Self {
        Self { losses: Some(losses), ..self }
    }

    /// The same within `memory` for files that come as objects.
    pub(super) fn within(self, memory: Option<ObjectMemory>) -> Self {
        Self { object_memory: memory, ..self }
    }

    /// The same for a transfer over `connections` connections.
    pub(super) fn over(self, connections: u32) -> Self {
        Self { connections, ..self }
    }

    /// The same for a file that goes as an object by this end's choice.
    pub(super) fn by_objects(self) -> Self {
        let auto = self.options.auto.as_ref().map(|auto| &auto.stack);
        Self { stack: auto.or(self.stack), ..self }
    }

    /// Whether this end has chosen an object.
    pub(super) fn has_chosen_objects(&self) -> bool {
        self.options.auto.is_some() && self.stack.is_some_and(NetStack::has_objects)
    }

    /// Whether data goes without protection.
    pub(super) fn is_plain(&self) -> bool {
        match &self.options.security {
            _ if self.options.inside().is_some() => false,
            _ if self.stack.is_some_and(|stack| !stack.is_tcp() || stack.keyed().is_some()) => false,
            Security::None => true,
            Security::Tls { .. } => false,
            Security::Grid(grid) => !grid.data_auth || grid.protection == Protection::Clear,
        }
    }

    /// Whether only the server can open a data connection to this end, by its address or its certificate.
    pub(super) fn knows_peers(&self) -> bool {
        self.is_proved() || !self.options.data_elsewhere
    }

    /// Sets the protection of data (PBSZ, PROT, DCAU).
    pub(super) async fn announce(&self, session: &mut Session) -> Result<(), Error> {
        let name = session.name.clone();
        session.proves_data = self.is_proved();
        match &self.options.security {
            Security::None => Ok(()),
            Security::Tls { .. } => {
                session.must("PBSZ 0", &name, "use").await?;
                // There is no fallback: data in clear despite TLS on the control connection would be a silent
                // downgrade.
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

    /// Settings of the data channel for a transfer of this session.
    fn settings(&self, session: &Session) -> Result<Settings, Error> {
        let has_objects = session.stack.as_ref().is_some_and(|told| told.objects.is_some());
        let security = match &self.options.security {
            Security::None | Security::Grid(Grid { data_auth: false, .. }) => None,
            // The keys that the two ends have told each other over the authenticated control connection protect data.
            Security::Grid(_) if has_objects => None,
            Security::Tls { config, .. } => {
                let config = session.tls.as_ref().unwrap_or(config).clone();
                Some(ChannelSecurity::TlsClient(config, server_name(&self.options.server.host, &session.name)?))
            }
            Security::Grid(grid) => Some(ChannelSecurity::Gsi {
                endpoint: grid.identity.clone(),
                peer: Expect::Subject(grid.subject()),
                protection: grid.protection,
            }),
        };
        let proved = matches!(security, Some(ChannelSecurity::Gsi { .. }));
        let from = if proved || self.options.data_elsewhere || self.is_striped(session) {
            Peers::Anyone
        } else {
            Peers::Only(session.peer.ip())
        };
        let (reply_timeout, stall_timeout) = (self.options.reply_timeout, self.options.stall_timeout);
        let ports = self.options.ports.clone();
        let datagram_timeout = if self.has_chosen_objects() { ANSWER } else { Settings::default().datagram_timeout };
        let known_paths = self.options.known_paths.clone();
        let mut settings = Settings {
            from,
            security,
            ports,
            known_paths,
            datagram_timeout,
            reply_timeout,
            stall_timeout,
            ..Settings::default()
        };
        settings.object_memory = self.object_memory.clone();
        if let Some(transport) = &session.data {
            settings.transport = transport.clone();
        }
        if let Some(told) = &session.stack {
            // What goes over TCP goes through the gateways that commands go through.
            if session.data.is_none() || told.transport.name() != Tcp.name() {
                settings.transport = told.transport.clone();
            }
            settings.objects = told.objects;
            let by_way = session.data.as_ref().and(self.options.way.as_ref()).and_then(|way| way.objects());
            if let Some(transport) = by_way.filter(|_| told.objects.is_some()) {
                settings.transport = transport;
            }
            settings.profile = told.profile(settings.profile, self.connections);
            // The TLS of ftps:// has keys for objects as well.
            let has_keys = told.objects.is_some() && settings.security.is_some();
            if let Some(pinned) = told.pinned.as_ref().filter(|_| !has_keys) {
                settings.security = Some(ChannelSecurity::Pinned(pinned.clone()));
            }
            if told.keyed {
                // A pinned key authenticates the peer, whatever its address.
                settings.from = Peers::Anyone;
            }
        }
        Ok(settings)
    }

    /// Whether certificates authenticate data connections.
    pub(super) fn is_proved(&self) -> bool {
        matches!(&self.options.security, Security::Grid(Grid { data_auth: true, .. }))
    }

    /// Prepares a transfer in `mode` between two servers. Keys are exchanged by [`Self::introduce`].
    pub(super) async fn enter_between(&self, session: &mut Session, mode: Mode) -> Result<(), Error> {
        if self.stack.is_none_or(|stack| stack.keyed().is_none()) {
            self.carry(session, Some(mode)).await?;
        }
        self.go_to(session, mode).await
    }

    /// Prepares a transfer in `mode`.
    pub(super) async fn enter(&self, session: &mut Session, mode: Mode) -> Result<(), Error> {
        self.carry(session, Some(mode)).await?;
        self.go_to(session, mode).await
    }

    /// Prepares an upload in `mode`, and announces its `size` if given. Takes one round trip if commands can be
    /// pipelined (`ahead`). Errors name `file`. Returns the number of connections.
    pub(super) async fn enter_to_send(
        &self,
        session: &mut Session,
        mode: Mode,
        size: Option<u64>,
        ahead: &Ahead,
        file: &str,
    ) -> Result<u32, Error> {
        self.carry(session, Some(mode)).await?;
        // The data endpoint depends on the mode.
        let known = session.take_prefetched().await?.filter(|_| session.mode == mode);
        let asked = known.is_none() && !(self.options.striped && mode == Mode::Extended);
        let change = (session.mode != mode).then(|| mode_line(mode));
        // A server with a limit of connections would reset those beyond it.
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
        // Many servers lack ALLO, or do not need it.
        if let Some(reply) = reply_to(&size).filter(|reply| matches!(reply.code, 452 | 552)) {
            return Err(refused(file, "make room for", "ALLO", &reply));
        }
        if let Some(reply) = known.or_else(|| reply_to(&passive)) {
            session.keep_prefetched(reply);
        }
        Ok(streams)
    }

    /// The number of connections of an upload, after the server's `reply` to the intended number. Fewer are used only
    /// if the user has asked for no number.
    async fn agree(&self, session: &mut Session, reply: Reply) -> Result<u32, Error> {
        let (mut streams, mut reply) = (self.connections, reply);
        while !reply.is_success() {
            match reply.code {
                // A server that does not know the command accepts any number.
                500 | 502 => return Ok(self.connections),
                _ if self.options.streams.is_none() && streams > 1 => streams /= 2,
                _ => return Err(too_many(session, streams, &reply)),
            }
            reply = session.ask(parallel_line(streams)).await?;
        }
        session.parallel = streams;
        Ok(streams)
    }

    /// Prepares a listing.
    pub(super) async fn enter_to_list(&self, session: &mut Session) -> Result<(), Error> {
        self.carry(session, None).await?;
        self.go_to(session, Mode::Stream).await
    }

    /// Sets `mode`, unless the session has it.
    async fn go_to(&self, session: &mut Session, mode: Mode) -> Result<(), Error> {
        if session.mode == mode {
            return Ok(());
        }
        // The data endpoint depends on the mode.
        session.take_prefetched().await?;
        let reply = session.ask(mode_line(mode)).await?;
        changed(session, mode, &reply)
    }

    /// The command that asks for the server's data endpoint.
    fn where_to(&self, session: &Session) -> &'static str {
        // Only the reply to PASV has an address, which matters if data may go elsewhere.
        let told = self.options.data_elsewhere && session.peer.is_ipv4();
        if !told && session.epsv { "EPSV" } else { "PASV" }
    }

    /// Asks for the data endpoint of the next transfer without waiting for the reply, if the endpoint does not depend
    /// on the transfer.
    pub(super) async fn ask_ahead(&self, session: &mut Session) -> Result<(), Error> {
        if session.mode == Mode::Stream {
            session.send_ahead(self.where_to(session)).await?;
        }
        Ok(())
    }

    /// Asks where the server listens for data.
    pub(super) async fn ask(&self, session: &mut Session) -> Result<SocketAddr, Error> {
        let name = session.name.clone();
        let verb = self.where_to(session);
        let reply = match session.take_prefetched().await? {
            Some(reply) => reply,
            None => session.ask(verb).await?,
        };
        if verb == "EPSV" {
            match reply.code {
                229 => {
                    let port = find_epsv(&reply.text()).map_err(|error| passing(&name, error.to_string()))?;
                    return Ok(SocketAddr::new(session.peer.ip(), port));
                }
                // IPv4 has PASV as well.
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
        // The address in the reply may be a private one behind address translation, or one that a hostile server wants
        // to be attacked.
        if !self.options.data_elsewhere || addr.ip().is_unspecified() {
            addr.set_ip(session.peer.ip());
        }
        Ok(addr)
    }

    /// Asks where the server, or each of its data nodes, listens for data.
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

    /// Whether data nodes move the next transfer.
    fn is_striped(&self, session: &Session) -> bool {
        self.options.striped && session.mode == Mode::Extended
    }

    /// Makes a data channel that connects to the server.
    pub(super) async fn passive(&self, session: &mut Session) -> Result<Channel, Error> {
        let to = self.ask_all(session).await?;
        let channel = Channel::connecting(to, self.settings(session)?);
        Ok(match &self.losses {
            Some(losses) => channel.counting(losses.clone()),
            None => channel,
        })
    }

    /// Makes a data channel that the server connects to.
    pub(super) async fn active(&self, session: &mut Session) -> Result<Channel, Error> {
        let name = session.name.clone();
        if session.data.is_some() {
            let reason = "the server gives no parts of files (ERET), and extended blocks come over connections that it makes, which do \
                          not go through gateways: leave --streams out, or --gateways";
            return Err(senseless(&name, reason));
        }
        let settings = self.settings(session)?;
        let channel =
            Channel::listening(session.local.ip(), settings).map_err(|error| super::error::data(&name, error))?;
        let addr = channel.local_addr().unwrap_or(session.local);
        self.aim(session, &[addr]).await?;
        // Of TCP, only a sender learns how much was sent again.
        Ok(match self.losses.as_ref().filter(|_| channel.carries_objects()) {
            Some(losses) => channel.counting(losses.clone()),
            None => channel,
        })
    }

    /// Sends the addresses that the server is to connect to.
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

    /// Sets the number of connections over which the server sends.
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

/// The command that sets a mode.
fn mode_line(mode: Mode) -> Vec<u8> {
    match mode {
        Mode::Stream => b"MODE S".into(),
        Mode::Extended => b"MODE E".into(),
    }
}

/// The command that sets the number of connections.
fn parallel_line(streams: u32) -> Vec<u8> {
    let options = RetrOptions { parallelism: Some((streams, streams, streams)), ..RetrOptions::default() };
    format!("OPTS RETR {options}").into_bytes()
}

/// The error for a server that offers fewer connections than the user asked for. Trying again does not help.
fn too_many(session: &Session, streams: u32, reply: &Reply) -> Error {
    let words = words(reply);
    let reason =
        format!("{streams} connections for a file were asked for, and the server answers OPTS RETR with {words}");
    let kind = if kind(reply) == ErrorKind::Passing { ErrorKind::Passing } else { ErrorKind::Request };
    Error::Store { name: session.name.to_string(), reason, kind }
}

/// Records the session's mode, if `reply` confirms it.
fn changed(session: &mut Session, mode: Mode, reply: &Reply) -> Result<(), Error> {
    if reply.is_success() {
        session.mode = mode;
        return Ok(());
    }
    let command = String::from_utf8_lossy(&mode_line(mode)).into_owned();
    let reason = format!("the server has no parallel streams: it answers {command} with {}", words(reply));
    Err(Error::Store { name: session.name.to_string(), reason, kind: ErrorKind::Request })
}
