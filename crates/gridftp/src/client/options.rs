//! What a client is told: which server, who logs in, and how.

use super::inside::Inside;
use super::stack::NetStack;
use super::way::Way;
use crate::data::Protection;
use phoebus_files::key::Key;
use phoebus_gsi::context::Endpoint as Identity;
use phoebus_proto::endpoint::Endpoint;
use rustls::ClientConfig;
use std::fmt;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Which server, and how it is spoken with.
#[derive(Debug, Clone)]
pub struct Options {
    /// As errors and journals name the server, without credentials: `ftp://host`.
    pub name: String,
    /// The server.
    pub server: Endpoint,
    /// Who logs in.
    pub login: Login,
    /// What protects the connections.
    pub security: Security,
    /// Over how many connections extended blocks go (MODE E); files go as streams (MODE S) if that is not said.
    pub streams: Option<u32>,
    /// Where that is not said: over how many connections a file goes, where the server knows how. What is written then goes as
    /// extended blocks, and what is read as so many parts (ERET), over connections that this end makes.
    pub choose: Option<fn(&Segment) -> u32>,
    /// How many control connections are used at a time for what is read, and for what is written. 16 by default: below what
    /// servers let one user have.
    pub sessions: usize,
    /// How connections come about; by TCP, directly, if that is not said.
    pub way: Option<Arc<dyn Way>>,
    /// What carries data connections in the place of TCP, where servers are to be told so.
    pub stack: Option<NetStack>,
    /// Whether data may go inside SSH, which has started the server; not if there is none.
    pub inside: Option<Inside>,
    /// Whether all data nodes of a server move each file, where it has several (SPAS, SPOR): data then goes as extended blocks, to
    /// and from whatever addresses the server names.
    pub striped: bool,
    /// Whether data connections may lead to other addresses than the server's own, as those of striped servers do. A server
    /// that is not to be believed could have others attacked so (RFC 2577).
    pub data_elsewhere: bool,
    /// Whether files are written under their own names, for servers that let nobody rename: a file that is cut is then there
    /// in part.
    pub in_place: bool,
    /// In a directory of which name beside each file its draft is until it is complete, made where there is none; beside the file itself
    /// if there is none. It has one component.
    pub partial_dir: Option<Key>,
    /// Whether what the server lists as a directory is taken for one by those who remove what is in it, also where the server may list
    /// symbolic links so.
    pub trust_listings: bool,
    /// Where is noted what servers say is safe of files that go to them as extended blocks, if such are to be gone on with.
    pub state: Option<PathBuf>,
    /// On which ports this end listens for data (extended blocks that are got); any that is free, if none are given.
    pub ports: Option<RangeInclusive<u16>>,
    /// How long connecting, agreeing and each answer may take, unless the server says meanwhile that it is at work. 60 s by
    /// default.
    pub patience: Duration,
    /// How long data may not move. 60 s by default.
    pub stall: Duration,
}

impl Options {
    /// Why data goes inside SSH, if it does: a sentence's end, empty if it was asked for.
    pub(super) fn inside(&self) -> Option<&str> {
        self.inside.as_ref()?.why()
    }

    /// Anonymous and in clear.
    pub fn new(name: impl Into<String>, server: Endpoint) -> Self {
        Self {
            name: name.into(),
            server,
            login: Login::default(),
            security: Security::None,
            streams: None,
            choose: None,
            sessions: 16,
            way: None,
            stack: None,
            inside: None,
            striped: false,
            data_elsewhere: false,
            in_place: false,
            partial_dir: None,
            trust_listings: false,
            state: None,
            ports: None,
            patience: Duration::from_secs(60),
            stall: Duration::from_secs(60),
        }
    }
}

/// What is known of a file's way.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Segment {
    /// How many bytes are to be carried.
    pub size: u64,
    /// How long the server takes to answer.
    pub rtt: Duration,
    /// How many bytes this machine's kernel lets be under way on one connection.
    pub window: u64,
    /// How many of the segments that this end has sent had to be sent again; 0 before it has sent many.
    pub loss: f64,
}

/// Who logs in.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Login {
    /// The user; `anonymous` if there is none, or under GSI whom the server takes the certificate's holder for.
    pub user: Option<String>,
    /// The password.
    pub password: Option<Password>,
}

/// A password, which is shown to nobody.
#[derive(Clone, PartialEq, Eq)]
pub struct Password(pub String);

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("…")
    }
}

/// What protects the connections.
#[derive(Debug, Clone)]
pub enum Security {
    /// Nothing.
    None,
    /// TLS (RFC 4217), for commands and data.
    Tls {
        /// Whom to believe. What it remembers is not used: data connections resume the session of their own control connection,
        /// as many servers demand.
        config: Arc<ClientConfig>,
        /// Whether it begins with the connection, and not by `AUTH TLS`.
        implicit: bool,
    },
    /// Certificates and proxies (GSI; RFC 2228, GFD.20).
    Grid(Grid),
}

/// How GSI is used.
#[derive(Clone)]
pub struct Grid {
    /// Who this end is, and whom it believes.
    pub identity: Identity,
    /// Whether both ends of data connections prove who they are (DCAU A), for which rights are lent to the server; otherwise
    /// nobody does (DCAU N).
    pub data_auth: bool,
    /// What protects data (PROT); only with `data_auth`.
    pub protection: Protection,
}

impl fmt::Debug for Grid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { identity, data_auth, protection } = self;
        write!(f, "Grid({}, {data_auth}, {protection:?})", identity.credential.certificate().subject())
    }
}

impl Grid {
    /// The subject of whoever the credential speaks for: that of the certificate which its proxies were made from.
    pub fn subject(&self) -> String {
        let chain = self.identity.credential.chain();
        let own = chain.iter().find(|certificate| certificate.kind().proxy().is_none());
        own.unwrap_or(self.identity.credential.certificate()).subject().as_str().to_owned()
    }
}
