//! The configuration of a gateway: read once from TOML into a form that cannot be wrong (`docs/guide/gateway.md`).
//!
//! Whatever is wrong is said with file, line, column and what was expected. The default allows nothing: without `[[allow]]`
//! rules every session is refused (invariant 5).

mod agent;
mod allowed;
mod destination;
mod driver;
mod error;
mod pattern;
mod raw;
mod read;
mod security;

pub use agent::Agent;
pub(crate) use allowed::AUTO;
pub use allowed::Allowed;
pub use destination::{Destination, Origin};
pub use driver::Driver;
pub use error::ConfigError;
pub use pattern::{Net, Pattern, Proved};
pub(crate) use pattern::{addresses_reached, is_local};
pub use raw::{Auth, ClientCertificate, Limits, Log, LogFormat, LogLevel, Pool};
pub use security::transports;

use crate::inlet::Inlet;
use phoebus_net::Profile;
use phoebus_net::credentials::Credentials;
use phoebus_net::transport::Security;
use phoebus_proto::endpoint::Endpoint;
use phoebus_proto::text::{self, TextError};
use phoebus_proto::units::BitRate;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Largest configuration that is read: a hundred thousand rules, and no device that never ends.
const FILE_MAX: u64 = 16 << 20;

/// A configuration that can be used.
#[derive(Debug, Clone)]
pub struct Config {
    /// What the gateway calls itself towards others; the host's name by default.
    pub name: String,
    /// Who this gateway is, and whom it trusts: `[tls]`.
    pub credentials: Option<Credentials>,
    /// The file with the secret of QUIC's stateless resets.
    pub reset_key: Option<PathBuf>,
    /// Transports from shared libraries, beside those of the program.
    pub drivers: Vec<Driver>,
    /// An e-mail address, sent to peers that want to know who asks (P26).
    pub contact: Option<String>,
    /// Where it accepts sessions; at least one.
    pub listeners: Vec<Listen>,
    /// Gateways that it may hand sessions to, and accept them from, by name.
    pub peers: BTreeMap<String, Peer>,
    /// Which way destinations lie.
    pub routes: Vec<Route>,
    /// How the last gateway connects to destinations that no route names: `[profile.default]`.
    pub direct: Arc<Profile>,
    /// The rates of profiles that have one, by the profile's name: what is sent to one neighbour under it in all (S17).
    pub rates: BTreeMap<Arc<str>, BitRate>,
    /// The profiles that leave it to the gateway what controls congestion, by name.
    pub any_control: BTreeSet<Arc<str>>,
    /// What is allowed; all else is not.
    pub rules: Vec<Rule>,
    /// Bounds.
    pub limits: Limits,
    /// Where `phoebus status` asks.
    pub admin: Option<PathBuf>,
    /// Where in the file stands what only the start shows to be impossible.
    pub(crate) places: Places,
    /// How the log is written.
    pub log: Log,
    /// Where sessions go that end here, in the place of connections to their destinations.
    pub inlet: Option<Arc<dyn Inlet>>,
}

/// `FILE:LINE:COLUMN` of what only the system can refuse.
#[derive(Debug, Clone, Default)]
pub(crate) struct Places {
    /// Of the addresses, in the order of [`Config::listeners`].
    pub(crate) listeners: Vec<String>,
    pub(crate) admin: String,
    /// Of `limits.sessions`; the file alone where it does not say.
    pub(crate) sessions: String,
}

/// A socket that accepts sessions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listen {
    /// Its address.
    pub address: SocketAddr,
    /// What carries its connections.
    pub transport: String,
    /// The least protection that its connections must have.
    pub security: Security,
    /// How accepted connections are set up.
    pub profile: Arc<Profile>,
    /// Whether clients must say who they are.
    pub auth: Auth,
    /// Whether they must prove it, where there is TLS or QUIC.
    pub client_certificate: ClientCertificate,
}

/// A neighbouring gateway.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// What it calls itself.
    pub name: String,
    /// Where it listens.
    pub address: Endpoint,
    /// What carries sessions to it: a transport's name, or `auto`.
    pub transport: String,
    /// What may carry them, the preferred first: that one alone, or what `auto` chooses from.
    pub allowed: Vec<Allowed>,
    /// Whether `auto` has the first of them that is to be had, whatever is measured.
    pub in_order: bool,
    /// The least protection of connections to it and from it.
    pub security: Security,
    /// How connections to it are set up.
    pub profile: Arc<Profile>,
    /// Where its connections come from, besides the addresses of `address`.
    pub from: Vec<Net>,
    /// Connections kept ready.
    pub pool: Pool,
}

impl Listen {
    /// Whether what listens as this one says does so as `other` says too. Rates are changed on open connections.
    pub(crate) fn listens_as(&self, other: &Self) -> bool {
        let profile = unrated(&other.profile, &self.profile, &self.transport);
        *self == Self { profile, ..other.clone() }
    }

    /// Whether `other` is at the same address, by the same transport.
    pub(crate) fn is_at(&self, other: &Self) -> bool {
        (self.address, &self.transport) == (other.address, &other.transport)
    }
}

impl Peer {
    /// Whether connections made as this one says are as `other` says too. Rates are changed on open connections.
    pub(crate) fn connects_as(&self, other: &Self) -> bool {
        let profile = unrated(&other.profile, &self.profile, &self.transport);
        *self == Self { profile, ..other.clone() }
    }
}

/// `profile` with the rate of another, where that makes no difference: drivers may take theirs only when they connect.
fn unrated(profile: &Arc<Profile>, other: &Profile, transport: &str) -> Arc<Profile> {
    if transport != AUTO && !security::transports().iter().any(|own| own == transport) {
        return profile.clone();
    }
    Arc::new(Profile { rate: other.rate, ..Profile::clone(profile) })
}

/// Which way some destinations lie.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// Which destinations.
    pub to: Pattern,
    /// The next gateway, or `None`: this one connects to them.
    pub via: Option<String>,
    /// How it connects to them.
    pub profile: Arc<Profile>,
}

/// Something that is allowed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// For whom.
    pub from: Vec<Source>,
    /// Whereto.
    pub to: Vec<Pattern>,
    /// On which ports; empty: all.
    pub ports: Vec<RangeInclusive<u16>>,
}

/// Who asks for a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// A connection from these addresses.
    Net(Net),
    /// This peer.
    Peer(String),
    /// Whoever has a certificate for such a name.
    Certificate(Proved),
}

impl Config {
    /// The configuration in `file`.
    ///
    /// # Errors
    /// When the file cannot be read, or as [`Config::parse`].
    pub fn read(file: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::File::open(file).map_err(TextError::Read).and_then(|open| text::read(open, FILE_MAX));
        Self::parse(&text.map_err(|error| ConfigError::unreadable(file, &error))?, file)
    }

    /// The configuration in `text`, which came from `file`.
    ///
    /// # Errors
    /// What is wrong, where, and what was expected.
    pub fn parse(text: &str, file: &Path) -> Result<Self, ConfigError> {
        let raw: raw::File = toml::from_str(text).map_err(|error| match error.span() {
            Some(span) => ConfigError::at(file, text, span, read::one_line(error.message())),
            None => ConfigError::new(file, read::one_line(error.message())),
        })?;
        read::Reader { file, text }.config(raw)
    }

    /// The most that one direction of a session may hold: receive buffer, pipe and send buffer.
    pub(crate) fn buffer(&self) -> Option<u64> {
        self.limits.buffer.map(|size| size.0)
    }

    /// The most that a direction holds between its two sockets.
    pub(crate) fn hold(&self) -> usize {
        let pipe = self.limits.pipe.0;
        let hold = self.buffer().map_or(pipe, |total| pipe.min(total / 4));
        usize::try_from(hold).unwrap_or(usize::MAX)
    }
}
