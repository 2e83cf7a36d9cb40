//! The control channel as a state machine (RFC 959, 2389, 3659, GFD.20): lines go in; out come answers, or tasks for whoever
//! has sockets and files. It has neither, nor a clock.
//!
//! - [`Session`] is the state, and [`Session::line`] the way in. Each family of commands is a file: `login`, `about`,
//!   `settings`, `addresses`, `names`, `facts`, `transfers`, `site`.
//! - [`table`] lists all commands; `HELP`, `FEAT` and the question who may use which are answered from it.
//! - [`task`]: what is left to others, and what they report ([`Session::done`]).

mod about;
mod addresses;
mod facts;
mod getput;
mod login;
pub(super) mod names;
mod node;
pub(super) mod protect;
pub(super) mod secured;
mod settings;
mod shown;
mod site;
mod stack;
mod table;
pub(crate) mod task;
#[cfg(test)]
mod tests;
mod transfers;

use super::authorities::Own;
use super::config::Reach;
use super::drivers::{Drivers, Stack};
use super::stripes::proof::Secret;
use crate::data::pinned::Own as OwnKey;
use crate::data::{Mode, Protection};
use phoebus_files::key::Key;
use phoebus_gsi::channel::DataAuth;
use phoebus_proto::gridftp::command::{Command, CommandError};
use phoebus_proto::gridftp::marker::Restart;
use phoebus_proto::gridftp::reply::Reply;
use protect::Security;
use rustls::ServerConfig;
pub(crate) use shown::Shown;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use table::Needs;
use task::{Account, Aim, FactNames, Outcome, Task};

/// What a session has to know of the server.
#[derive(Debug, Clone)]
pub(crate) struct Rules {
    /// What follows 220.
    pub(crate) greeting: String,
    /// How often a client may fail to log in on one connection.
    pub(crate) attempts: u32,
    /// Over how many connections a client may ask the server to send.
    pub(crate) streams: u32,
    /// What may carry data connections.
    pub(crate) drivers: Arc<Drivers>,
    /// The largest socket buffers that a client may ask for, in bytes.
    pub(crate) buffer: u64,
    /// Who the server is, where clients may prove by certificates who they are.
    pub(crate) gsi: Option<Own>,
    /// Whose tickets are taken, where clients may prove by them who they are.
    #[cfg(feature = "kerberos")]
    pub(crate) kerberos: Option<phoebus_krb5::Acceptor>,
    /// What the server shows, where clients may ask for TLS.
    pub(crate) tls: Option<Shown>,
    /// How many data nodes there are to move data.
    pub(crate) stripes: usize,
    /// By what a front end is known, if this is a data node.
    pub(crate) node: Option<Arc<Secret>>,
    /// Whether passwords are taken that anybody on the way can read.
    pub(crate) clear_passwords: bool,
    /// Whom else than the peer data connections may be made to, where they may be made to others at all.
    pub(crate) reach: Reach,
    /// Where users are to begin with.
    pub(crate) home: Key,
}

/// A client's session.
#[derive(Debug)]
pub(crate) struct Session {
    rules: Arc<Rules>,
    /// Both ends of the control connection.
    peer: IpAddr,
    local: IpAddr,
    security: Security,
    /// What this client was shown under TLS, with the sessions that it may resume.
    shown: Option<Shown>,
    data_auth: DataAuth,
    protection: Protection,
    login: Login,
    failures: u32,
    place: Key,
    settings: Settings,
    aim: Aim,
    /// Grows with every address that is set, so that connections to another are told from those.
    generation: u64,
    /// After `EPSV ALL` nothing but EPSV may say where data goes.
    epsv_only: bool,
    restart: Option<Restart>,
    allocated: Option<u64>,
    renaming: Option<Key>,
    front: node::Front,
    lent: Option<node::Lent>,
    /// By what data connections know this end, where clients have asked for such.
    own_key: Option<OwnKey>,
}

#[derive(Debug)]
enum Login {
    Nobody,
    Named(String),
    In(Account),
}

/// What commands set for the transfers that follow.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) ascii: bool,
    pub(crate) mode: Mode,
    /// Over how many connections to each address is sent.
    pub(crate) streams: u32,
    /// Seconds between performance markers of what is sent.
    pub(crate) markers: Option<u32>,
    /// Socket buffers of data that is sent, and received, if they are not left to the kernel.
    pub(crate) send_buffer: Option<u64>,
    pub(crate) receive_buffer: Option<u64>,
    /// What carries data connections, if it is not the server's own choice.
    pub(crate) stack: Option<Stack>,
    pub(crate) facts: FactNames,
    /// Whether NLST lists names without their directory.
    pub(crate) bare_names: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            // As RFC 959 has it.
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

/// What comes of a line.
#[derive(Debug)]
pub(crate) enum Step {
    /// This is said, and the next line read.
    Say(Reply),
    /// This is said, and the connection closed.
    Close(Reply),
    /// This is done; how it ended is told to [`Session::done`].
    Do(Box<Task>),
    /// This is said in clear, and TLS begins, of which this end is the server ([`Session::secured`]).
    Secure(Reply, Arc<ServerConfig>),
}

impl Session {
    /// One between `peer` and `local`, and its greeting.
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
            aim: Aim::None,
            generation: 0,
            epsv_only: false,
            restart: None,
            allocated: None,
            renaming: None,
            front: node::Front::default(),
            lent: None,
            own_key: None,
        };
        (session, greeting)
    }

    /// Who is logged in.
    pub(crate) fn account(&self) -> Option<&Account> {
        match &self.login {
            Login::In(account) => Some(account),
            _ => None,
        }
    }

    /// Takes a line, without its end and whatever protected it ([`Self::open`]), at a time in seconds since 1970.
    pub(crate) fn line(&mut self, line: &[u8], now: i64) -> Step {
        // One that was opened has put protection on: this one came in clear before the ends had agreed, from whomever.
        if matches!(self.security, Security::Agreed(_)) {
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
            Command::Site(site) => table::needs_of_site(site),
            _ => entry.needs,
        };
        if let Some(refusal) = self.refusal(needs) {
            return refusal;
        }
        // A name to be changed is only for the command that follows.
        let renaming = self.renaming.take();
        self.run(command, renaming, now)
    }

    /// The entry of a verb in capitals, if it is carried out here.
    fn find(&self, verb: &str) -> Option<&'static table::Entry> {
        self.commands().find(|entry| entry.verb == verb)
    }

    /// All commands that are carried out here.
    fn commands(&self) -> impl Iterator<Item = &'static table::Entry> + use<> {
        let gsi = if self.rules.gsi.is_some() { table::GSI } else { &[] };
        let tokens = if self.has_gssapi() { table::TOKENS } else { &[] };
        let secure = if self.rules.tls.is_some() || self.has_gssapi() { table::SECURE } else { &[] };
        table::COMMANDS.iter().chain(secure).chain(tokens).chain(gsi)
    }

    /// The answer to a line that is no command: those that are known are told how to use it, once they may.
    fn not_understood(&self, line: &[u8], error: &CommandError) -> Step {
        let verb = line.split(|&b| b == b' ').next().unwrap_or_default().to_ascii_uppercase();
        let entry = str::from_utf8(&verb).ok().and_then(|verb| self.find(verb));
        match entry {
            Some(entry) => self.refusal(entry.needs).unwrap_or_else(|| Step::say(error.code(), error.to_string())),
            None if error.code() == 501 => Step::say(502, "not implemented here"),
            None => Step::say(500, error.to_string()),
        }
    }

    /// Why a command that needs so much is not carried out, if it is not.
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
            Command::Port(to) | Command::Eprt(to) => self.port(vec![to], Aim::Connect),
            Command::Spor(to) if self.is_striped() => self.spor(to),
            Command::Spor(to) => self.port(to, Aim::Connect),
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
            // The table has none of these.
            other => Step::say(502, format!("{} is not implemented here", other.verb())),
        }
    }

    /// Takes how a task ended, and gives what is to be said of it.
    pub(crate) fn done(&mut self, outcome: Outcome) -> Step {
        match outcome {
            Outcome::Answer(reply) => Step::Say(reply),
            Outcome::Login(account) => self.logged_in(account),
            #[cfg(feature = "kerberos")]
            Outcome::Agreed(agreed) => self.agreed(agreed),
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
