//! The control channel as a state machine (RFC 959, 2389, 3659, GFD.20). Lines go in; replies, or tasks that need
//! sockets or files, come out. It has no sockets, files or clock.
//!
//! - [`Session`] is the state, and [`Session::line`] the entry. Each family of commands is a file: `login`, `about`,
//!   `settings`, `addresses`, `names`, `facts`, `transfers`, `site`. `protect`, `gssapi` and `tls` secure the channel.
//! - [`commands`] is the table of all commands. `HELP`, `FEAT` and access checks use it.
//! - [`task`] has the tasks, and their outcomes, which [`Session::done`] takes.

mod about;
mod addresses;
mod batch;
mod commands;
mod facts;
mod getput;
pub(super) mod gssapi;
mod login;
pub(super) mod names;
mod node;
pub(super) mod protect;
mod settings;
mod site;
mod stack;
pub(crate) mod task;
#[cfg(test)]
mod tests;
mod tls;
mod transfers;

use super::authorities::HostIdentity;
use super::config::Reach;
use super::drivers::{Drivers, Stack};
use super::node_auth::Secret;
use crate::data::pinned::OwnKey;
use crate::data::{Mode, Protection};
use batch::BatchRequest;
use commands::Needs;
use phoebus_accounts::Account;
use phoebus_files::key::Key;
use phoebus_gsi::channel::DataAuth;
use phoebus_proto::gridftp::command::{Command, CommandError};
use phoebus_proto::gridftp::marker::Restart;
use phoebus_proto::gridftp::reply::Reply;
use protect::Security;
use rustls::ServerConfig;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use task::{DataEndpoint, FactNames, Outcome, Task};
pub(crate) use tls::TlsConfigs;

/// The part of the server's configuration that a session uses.
#[derive(Debug, Clone)]
pub(crate) struct Rules {
    /// Text of the greeting (220).
    pub(crate) greeting: String,
    /// Failed logins after which the connection is closed.
    pub(crate) attempts: u32,
    /// Most connections that one transfer may send over.
    pub(crate) streams: u32,
    /// Transports of data connections.
    pub(crate) drivers: Arc<Drivers>,
    /// The largest socket buffers that a client may ask for, in bytes.
    pub(crate) buffer: u64,
    /// The server's GSI identity, if clients may log in with certificates.
    pub(crate) gsi: Option<HostIdentity>,
    /// Verifies Kerberos tickets, if clients may log in with them.
    #[cfg(feature = "kerberos")]
    pub(crate) kerberos: Option<phoebus_krb5::Acceptor>,
    /// TLS configurations, if clients may use TLS.
    pub(crate) tls: Option<TlsConfigs>,
    /// Number of data nodes.
    pub(crate) stripes: usize,
    /// Authenticates the front end, if this is a data node.
    pub(crate) node: Option<Arc<Secret>>,
    /// Whether passwords are accepted in clear.
    pub(crate) clear_passwords: bool,
    /// Third parties that data connections may be made to, for accounts that allow any.
    pub(crate) reach: Reach,
    /// The directory in which sessions begin.
    pub(crate) home: Key,
}

/// The session of one client.
#[derive(Debug)]
pub(crate) struct Session {
    rules: Arc<Rules>,
    /// Addresses of the two ends of the control connection.
    peer: IpAddr,
    local: IpAddr,
    security: Security,
    /// The TLS configurations of this client, with the TLS sessions that it may resume.
    shown: Option<TlsConfigs>,
    data_auth: DataAuth,
    protection: Protection,
    login: Login,
    failures: u32,
    place: Key,
    settings: Settings,
    aim: DataEndpoint,
    /// Increases with each new data endpoint, so that connections to an earlier one are not reused.
    generation: u64,
    /// After `EPSV ALL`, other commands that set the data endpoint are refused.
    epsv_only: bool,
    restart: Option<Restart>,
    allocated: Option<u64>,
    renaming: Option<Key>,
    wanted: BatchRequest,
    front: node::Front,
    delegated: Option<node::Delegated>,
    /// The key of this end of data connections, once a client has asked for pinned keys.
    own_key: Option<OwnKey>,
}

#[derive(Debug)]
enum Login {
    Nobody,
    Named(String),
    In(Account),
}

/// Settings of the transfers that follow.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) ascii: bool,
    pub(crate) mode: Mode,
    /// Connections to each address that data is sent over.
    pub(crate) streams: u32,
    /// Interval between performance markers while sending, in seconds.
    pub(crate) markers: Option<u32>,
    /// Sizes of socket buffers in bytes. `None` leaves them to the kernel.
    pub(crate) send_buffer: Option<u64>,
    pub(crate) receive_buffer: Option<u64>,
    /// The stack of drivers that the client has chosen. `None`: the server's default.
    pub(crate) stack: Option<Stack>,
    pub(crate) facts: FactNames,
    /// Whether NLST omits the directory from names.
    pub(crate) bare_names: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            // The default of RFC 959.
            ascii: true,
            mode: Mode::Stream,
            streams: 1,
            markers: None,
            send_buffer: None,
            receive_buffer: None,
            stack: None,
            facts: FactNames::default(),
            bare_names: false,
        }
    }
}

/// The result of a line.
#[derive(Debug)]
pub(crate) enum Step {
    /// Send the reply, and read the next line.
    Say(Reply),
    /// Send the reply, and close the connection.
    Close(Reply),
    /// Carry out the task, and pass its outcome to [`Session::done`].
    Do(Box<Task>),
    /// Send the reply in clear, start TLS as its server, then call [`Session::secured`].
    Secure(Reply, Arc<ServerConfig>),
}

impl Session {
    /// Makes a session between `peer` and `local`, and its greeting.
    pub(crate) fn new(rules: Arc<Rules>, peer: SocketAddr, local: SocketAddr) -> (Self, Reply) {
        let greeting = Reply::new(220, &rules.greeting);
        let session = Self {
            rules,
            peer: peer.ip().to_canonical(),
            local: local.ip().to_canonical(),
            security: Security::Clear,
            shown: None,
            data_auth: DataAuth::None,
            protection: Protection::Clear,
            login: Login::Nobody,
            failures: 0,
            place: Key::ROOT,
            settings: Settings::default(),
            aim: DataEndpoint::None,
            generation: 0,
            epsv_only: false,
            restart: None,
            allocated: None,
            renaming: None,
            wanted: BatchRequest::default(),
            front: node::Front::default(),
            delegated: None,
            own_key: None,
        };
        (session, greeting)
    }

    /// The account that is logged in.
    pub(crate) fn account(&self) -> Option<&Account> {
        match &self.login {
            Login::In(account) => Some(account),
            _ => None,
        }
    }

    /// Handles a line that [`Self::open`] has returned. `now` is in seconds since 1970.
    pub(crate) fn line(&mut self, line: &[u8], now: i64) -> Step {
        // A protected command would have made the state `Active`. This one came in clear before the handshake was
        // complete, perhaps from an attacker.
        if matches!(self.security, Security::Established(_)) {
            return Step::Close(Reply::new(
                533,
                "commands that came before the two ends had agreed are not carried out",
            ));
        }
        if line.is_empty() {
            return Step::say(500, "a command was expected");
        }
        if let Some(step) = self.front_line(line) {
            return step;
        }
        if let Some(step) = self.get_or_put(line) {
            return step;
        }
        let command = match Command::parse(line) {
            Ok(command) => command,
            Err(error) => return self.not_understood(line, &error),
        };
        let Some(entry) = self.find(command.verb()) else {
            return Step::say(502, format!("{} is not implemented here", command.verb()));
        };
        let needs = match &command {
            Command::Site(site) => commands::needs_of_site(site),
            _ => entry.needs,
        };
        if let Some(refusal) = self.refusal(needs) {
            return refusal;
        }
        // RNFR counts for the next command only.
        let renaming = self.renaming.take();
        self.run(command, renaming, now)
    }

    /// Finds the entry of a verb in capitals, if this server carries it out.
    fn find(&self, verb: &str) -> Option<&'static commands::Entry> {
        self.commands().find(|entry| entry.verb == verb)
    }

    /// All commands that this server carries out.
    fn commands(&self) -> impl Iterator<Item = &'static commands::Entry> + use<> {
        let gsi = if self.rules.gsi.is_some() { commands::GSI } else { &[] };
        let tokens = if self.has_gssapi() { commands::TOKENS } else { &[] };
        let secure = if self.rules.tls.is_some() || self.has_gssapi() { commands::SECURE } else { &[] };
        commands::COMMANDS.iter().chain(secure).chain(tokens).chain(gsi)
    }

    /// The reply to a line that cannot be parsed: for a known command its usage, if the client may use it.
    fn not_understood(&self, line: &[u8], error: &CommandError) -> Step {
        let verb = line.split(|&b| b == b' ').next().unwrap_or_default().to_ascii_uppercase();
        let entry = str::from_utf8(&verb).ok().and_then(|verb| self.find(verb));
        match entry {
            Some(entry) => self.refusal(entry.needs).unwrap_or_else(|| Step::say(error.code(), error.to_string())),
            None if error.code() == 501 => Step::say(502, "not implemented here"),
            None => Step::say(500, error.to_string()),
        }
    }

    /// The reply that refuses a command with these needs, if the session lacks them.
    fn refusal(&self, needs: Needs) -> Option<Step> {
        match (needs, self.account()) {
            (Needs::Nothing, _) => None,
            (_, None) => Some(Step::say(530, "log in first")),
            (Needs::Writing, Some(account)) if account.read_only => {
                Some(Step::say(550, "nothing can be changed here: read-only"))
            }
            (_, Some(_)) => None,
        }
    }

    fn run(&mut self, command: Command, renaming: Option<Key>, now: i64) -> Step {
        match command {
            Command::User(name) => self.user(name),
            Command::Pass(secret) => self.pass(secret),
            Command::Auth(mechanism) => self.auth(&mechanism, now),
            Command::Adat(token) => self.agree("ADAT", &String::from_utf8_lossy(&token.0), now),
            Command::Pbsz(bytes) => self.pbsz(bytes),
            Command::Prot(protection) => self.prot(protection),
            Command::Dcau(dcau) => self.dcau(dcau),
            Command::Rein => self.rein(),
            Command::Quit => Step::Close(Reply::new(221, "goodbye")),
            Command::Noop => Step::say(200, "nothing done"),
            Command::Syst => Step::say(215, "UNIX Type: L8"),
            Command::Feat => self.feat(),
            Command::Help(about) => self.help(about),
            Command::Lang(language) => Self::lang(language),
            Command::Clnt(_) => Step::say(200, "noted"),
            Command::Stat(None) => self.stat(),
            Command::Abor => Step::say(226, "nothing was under way"),
            Command::Opts((command, options)) => self.opts(&command, &options),
            Command::Type(code) => self.representation(&code),
            Command::Mode(mode) => self.mode(mode),
            Command::Stru(code) => Self::structure(&code),
            Command::Sbuf(bytes) => self.buffers(Some(bytes), Some(bytes)),
            Command::Port(to) | Command::Eprt(to) => self.port(vec![to], DataEndpoint::Connect),
            Command::Spor(to) if self.is_striped() => self.spor(to),
            Command::Spor(to) => self.port(to, DataEndpoint::Connect),
            Command::Pasv => self.pasv(),
            Command::Epsv(how) => self.epsv(how),
            Command::Spas => self.spas(),
            Command::Cwd(path) => self.cwd(&path),
            Command::Cdup => self.cwd(b".."),
            Command::Pwd | Command::Xpwd => self.pwd(),
            Command::Mkd(path) => self.mkd(&path),
            Command::Rmd(path) => self.rmd(&path),
            Command::Dele(path) => self.dele(&path),
            Command::Rnfr(path) => self.rnfr(&path),
            Command::Rnto(path) => self.rnto(&path, renaming),
            Command::Size(path) => self.size(&path),
            Command::Mdtm(path) => self.mdtm(&path),
            Command::Mfmt((time, path)) => self.mfmt(time, &path),
            Command::Cksm(cksm) => self.cksm(&cksm),
            Command::Mlst(path) => self.mlst(path.as_deref()),
            Command::Stat(Some(path)) => self.stat_path(&path),
            Command::Mlsc(path) => self.mlsc(path.as_deref()),
            Command::List(path) => self.list(path.as_deref()),
            Command::Nlst(path) => self.nlst(path.as_deref()),
            Command::Mlsd(path) => self.mlsd(path.as_deref()),
            Command::Mlsr(path) => self.mlsr(path.as_deref()),
            Command::Rest(restart) => self.rest(restart),
            Command::Allo(bytes) => self.allo(bytes),
            Command::Retr(path) => self.retr(&path),
            Command::Eret(eret) => self.eret(eret),
            Command::Stor(path) => self.stor(&path),
            Command::Stou => self.stou(),
            Command::Appe(path) => self.appe(&path),
            Command::Esto(esto) => self.esto(esto),
            Command::Site(site) => self.site(site),
            // The table has no entry for the others.
            other => Step::say(502, format!("{} is not implemented here", other.verb())),
        }
    }

    /// Handles the outcome of a task.
    pub(crate) fn done(&mut self, outcome: Outcome) -> Step {
        match outcome {
            Outcome::Answer(reply) => Step::Say(reply),
            Outcome::Login(account) => self.logged_in(account),
            #[cfg(feature = "kerberos")]
            Outcome::TokenChecked(agreed) => self.agreed(agreed),
            Outcome::Entered(key) => {
                self.place = key;
                Step::Say(self.here(250))
            }
            Outcome::Exists(key) => {
                self.renaming = Some(key);
                Step::say(350, "now RNTO with the new name")
            }
            Outcome::Listening(answer, addr) => self.listening(answer, addr),
            Outcome::Striped(addresses) => self.striped(&addresses),
        }
    }
}

impl Step {
    fn say(code: u16, text: impl AsRef<[u8]>) -> Self {
        Self::Say(Reply::new(code, text))
    }

    fn task(task: Task) -> Self {
        Self::Do(Box::new(task))
    }
}
