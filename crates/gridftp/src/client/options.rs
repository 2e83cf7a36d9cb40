//! The options of the client: server, login, protection, limits.

use super::carrier::{AutoObjects, Segment};
use super::inside::Inside;
use super::route::Route;
use super::stack::NetStack;
use crate::data::{KnownPaths, Protection};
use phoebus_files::key::Key;
use phoebus_gsi::context::Endpoint as Identity;
use phoebus_proto::endpoint::Endpoint;
use rustls::ClientConfig;
use std::fmt;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Options of a connection to a server.
#[derive(Debug, Clone)]
pub struct Options {
    /// The server's name in errors and journals, without credentials: `ftp://host`.
    pub name: String,
    /// The server.
    pub server: Endpoint,
    /// The login.
    pub login: Login,
    /// Protection of the connections.
    pub security: Security,
    /// Connections of extended blocks (MODE E). `None`: files go as streams (MODE S).
    pub streams: Option<u32>,
    /// Chooses the number of connections for a file if `streams` is `None` and the server supports it. Uploads then use
    /// extended blocks, and downloads as many parts (ERET) over connections that this end makes.
    pub choose: Option<fn(&Segment) -> u32>,
    /// Most control connections for reading, and as many for writing. 16 by default, below the usual limit of servers
    /// per user.
    pub sessions: usize,
    /// Opens connections through gateways. `None`: directly, by TCP.
    pub way: Option<Arc<dyn Route>>,
    /// The stack of drivers for data connections, which servers are told. `None`: TCP.
    pub stack: Option<NetStack>,
    /// Objects, for files that are chosen for them. All others go by `stack`.
    pub auto: Option<AutoObjects>,
    /// Whether data may go inside SSH, for a server that SSH has started.
    pub inside: Option<Inside>,
    /// Whether all data nodes of a server move each file (SPAS, SPOR), as extended blocks, to and from the addresses
    /// that the server names.
    pub striped: bool,
    /// Whether data connections may go to other addresses than the server's, as with striped servers. A hostile server
    /// could then have other hosts attacked (RFC 2577).
    pub data_elsewhere: bool,
    /// Whether files are written under their final names, for servers that forbid renaming. A cut upload then leaves a
    /// partial file.
    pub in_place: bool,
    /// Name of the directory, beside each file, for its draft. It is created if missing. `None`: the draft is beside
    /// the file.
    pub partial_dir: Option<Key>,
    /// Whether directories in listings are trusted to be no symbolic links, when their contents are removed.
    pub trust_listings: bool,
    /// Directory for records of what servers have synced of extended blocks, needed to resume them.
    pub state: Option<PathBuf>,
    /// Ports on which this end listens for data (downloads of extended blocks). `None`: any free port.
    pub ports: Option<RangeInclusive<u16>>,
    /// Limit for connecting, for handshakes, and for each reply; preliminary replies extend it. 60 s by default.
    pub reply_timeout: Duration,
    /// Longest time without progress of data. 60 s by default.
    pub stall_timeout: Duration,
    /// What is known of paths to other hosts, for files as objects.
    pub known_paths: KnownPaths,
    /// How long a private upload waits for the server's preliminary reply and for a second control connection that
    /// makes the file private; longer with a distant server. 5 s by default. Without them, two round trips more are
    /// needed.
    pub beside: Duration,
}

impl Options {
    /// Why data goes inside SSH, as the end of a sentence. Empty if the user asked for it.
    pub(super) fn inside(&self) -> Option<&str> {
        self.inside.as_ref()?.why()
    }

    /// Anonymous, in clear.
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
            auto: None,
            inside: None,
            striped: false,
            data_elsewhere: false,
            in_place: false,
            partial_dir: None,
            trust_listings: false,
            state: None,
            ports: None,
            reply_timeout: Duration::from_secs(60),
            stall_timeout: Duration::from_secs(60),
            known_paths: KnownPaths::default(),
            beside: Duration::from_secs(5),
        }
    }
}

/// The login.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Login {
    /// The user. `None`: `anonymous`, or under GSI the user that the server maps the certificate to.
    pub user: Option<String>,
    /// The password.
    pub password: Option<Password>,
}

/// A password. Debug output hides it.
#[derive(Clone, PartialEq, Eq)]
pub struct Password(pub String);

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("…")
    }
}

/// Protection of the connections.
#[derive(Debug, Clone)]
pub enum Security {
    /// None.
    None,
    /// TLS (RFC 4217), for commands and data.
    Tls {
        /// The trusted authorities. Its session store is not used: data connections resume the session of their own
        /// control connection, as many servers require.
        config: Arc<ClientConfig>,
        /// Whether TLS begins with the connection instead of `AUTH TLS`.
        implicit: bool,
    },
    /// Certificates and proxies (GSI; RFC 2228, GFD.20).
    Grid(Grid),
}

/// Settings of GSI.
#[derive(Clone)]
pub struct Grid {
    /// The credential of the client, and the trusted authorities.
    pub identity: Identity,
    /// Whether both ends of data connections authenticate (DCAU A), for which a credential is delegated to the server.
    /// Otherwise neither does (DCAU N).
    pub data_auth: bool,
    /// Protection of data (PROT), with `data_auth` only.
    pub protection: Protection,
}

impl fmt::Debug for Grid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { identity, data_auth, protection } = self;
        write!(f, "Grid({}, {data_auth}, {protection:?})", identity.credential.certificate().subject())
    }
}

impl Grid {
    /// The subject that the credential stands for: that of the end-entity certificate behind its proxies.
    pub fn subject(&self) -> String {
        let chain = self.identity.credential.chain();
        let own = chain.iter().find(|certificate| certificate.kind().proxy().is_none());
        own.unwrap_or(self.identity.credential.certificate()).subject().as_str().to_owned()
    }
}
