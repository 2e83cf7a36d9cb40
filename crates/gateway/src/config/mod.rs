//! The configuration of a gateway: read once from TOML into a form that is always valid
//! (`docs/guide/gateway/reference.md`).
//!
//! Every error names file, line, column and what was expected. The default allows nothing: without `[[rule]]` and
//! `[[allow]]`, the gateway refuses every session (invariant 5).

mod agent;
mod allowed;
mod carriage;
mod destination;
mod driver;
mod entries;
mod error;
mod grid;
mod issuer;
mod limit;
mod origin;
mod pattern;
mod range;
mod raw;
mod read;
mod reader;
mod rules;
mod security;

pub use agent::Agent;
pub use allowed::Allowed;
pub(crate) use carriage::AUTO;
pub use carriage::transports;
pub use destination::{Destination, Origin};
pub use driver::Driver;
pub use error::ConfigError;
pub use grid::Grid;
pub use issuer::TokenIssuer;
pub use limit::{Account, AccountLimits, Kind, Limit, Whom};
pub use pattern::{Pattern, Proved};
pub use range::Net;
pub(crate) use range::{addresses_reached, is_local, is_private};
pub use raw::{ClientCertificate, Limits, Log, LogFormat, LogLevel, Mechanism, Pool};
pub(crate) use rules::{ANY, is_known_by};
pub use rules::{Action, Rule, RulePlace, Rules, Source, Table};

use crate::local_acceptor::LocalAcceptor;
use phoebus_config::bearer::BearerPlaces;
use phoebus_config::users::Users;
use phoebus_net::Profile;
use phoebus_net::credentials::{Credentials, Fingerprint};
use phoebus_net::transport::Security;
use phoebus_proto::endpoint::Endpoint;
use phoebus_proto::entry::Entry;
use phoebus_proto::session::Principal;
use phoebus_proto::text::{self, TextError};
use phoebus_proto::units::{BitRate, in_words};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Largest configuration file, in bytes: enough for a hundred thousand rules, and a bound for a device that never ends.
const FILE_MAX: u64 = 16 << 20;

/// A valid configuration.
#[derive(Debug, Clone)]
pub struct Config {
    /// The gateway's name towards others; the host's name by default.
    pub name: String,
    /// This gateway's certificate and key, and the authorities that it trusts: `[tls]`.
    pub credentials: Option<Credentials>,
    /// The file with the secret of QUIC's stateless resets.
    pub reset_key: Option<PathBuf>,
    /// Transports from shared libraries, beside those of the program.
    pub drivers: Vec<Driver>,
    /// An e-mail address for peers that ask for one (P26).
    pub contact: Option<String>,
    /// The file with the passwords of an agent's user, and the gateway as the user names it.
    pub(crate) logins: Option<(PathBuf, Endpoint)>,
    /// Where the token of an agent's user is.
    pub(crate) bearer: Option<BearerPlaces>,
    /// The addresses that accept sessions; at least one.
    pub listeners: Vec<Listen>,
    /// Gateways that it may pass sessions to and accept them from, by name.
    pub peers: BTreeMap<String, Peer>,
    /// The next hop for each group of destinations.
    pub routes: Vec<Route>,
    /// The profile of connections to destinations that no route names: `[profile.default]`.
    pub direct: Arc<Profile>,
    /// The rates of profiles that have one, by profile name. A rate limits the total that is sent to one neighbour
    /// under the profile (S17).
    pub rates: BTreeMap<Arc<str>, BitRate>,
    /// The names of profiles that leave the congestion control to the gateway.
    pub any_control: BTreeSet<Arc<str>>,
    /// Profiles that no listener, peer or route names.
    pub unused_profiles: Vec<String>,
    /// Who may connect to what. What no rule allows is refused.
    pub rules: Rules,
    /// What users, groups, sources and peers may use.
    pub account_limits: AccountLimits,
    /// Limits on resources and times.
    pub limits: Limits,
    /// Addresses and UDP ports for datagrams beside sessions; none if it relays none.
    pub datagrams: Vec<SocketAddr>,
    /// Who may log in with a password.
    pub users: Arc<Users>,
    /// Who issues tokens that count.
    pub issuers: Vec<Arc<TokenIssuer>>,
    /// Which Grid certificates count.
    pub grid: Option<Arc<Grid>>,
    /// The administration socket, which `phoebus status` queries.
    pub admin: Option<PathBuf>,
    /// Where decisions are written, line by line; `None`: nowhere.
    pub audit: Option<Audit>,
    /// Positions in the file of settings that can still fail at start.
    pub(crate) places: Places,
    /// How the log is written.
    pub log: Log,
    /// Takes the sessions that end in this process, instead of connections to their destinations.
    pub inlet: Option<Arc<dyn LocalAcceptor>>,
}

/// `FILE:LINE:COLUMN` of settings that only the system can refuse.
#[derive(Debug, Clone, Default)]
pub(crate) struct Places {
    /// Of the addresses, in the order of [`Config::listeners`].
    pub(crate) listeners: Vec<String>,
    pub(crate) datagrams: String,
    pub(crate) admin: String,
    pub(crate) audit: String,
    /// Of `limits.sessions`; only the file if it has no such key.
    pub(crate) sessions: String,
    /// Of the first `source` of a route.
    pub(crate) source: String,
}

/// Where decisions are written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Audit {
    /// The file.
    pub file: PathBuf,
    /// Most lines that wait to be written.
    pub queue: NonZeroU32,
}

/// A socket that accepts sessions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listen {
    /// Its address.
    pub address: SocketAddr,
    /// The transport of its connections.
    pub transport: String,
    /// The minimum protection of its connections.
    pub security: Security,
    /// The settings of accepted connections.
    pub profile: Arc<Profile>,
    /// How clients may authenticate, the preferred way first; empty if they need not.
    pub auth: Vec<Mechanism>,
    /// Whether clients must show a certificate over TLS or QUIC.
    pub client_certificate: ClientCertificate,
    /// What clients may speak; at least one.
    pub entries: Vec<Entry>,
    /// Where relays come from: their connections begin with a PROXY header, which names the client.
    pub proxy_from: Vec<Net>,
}

/// A neighbouring gateway.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// Its name.
    pub name: String,
    /// Where it listens.
    pub address: Endpoint,
    /// The transport of sessions to it: a name, or `auto`.
    pub transport: String,
    /// The allowed transports, the preferred one first: the configured one, or those that `auto` chooses from.
    pub allowed: Vec<Allowed>,
    /// Whether `auto` takes the first available of them, whatever is measured.
    pub in_order: bool,
    /// The minimum protection of connections to it and from it.
    pub security: Security,
    /// SHA-256 of the only certificate that it may show, if it is pinned.
    pub fingerprint: Option<Fingerprint>,
    /// The settings of connections to it.
    pub profile: Arc<Profile>,
    /// Addresses that its connections come from, besides those of `address`.
    pub from: Vec<Net>,
    /// For whom it may ask: rules about users believe it about these principals, and about nobody else (P12).
    pub speaks_for: Vec<SpokenFor>,
    /// How many connections are kept ready.
    pub pool: Pool,
}

/// Whom a peer may speak for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SpokenFor {
    /// This user, but not the user's groups.
    User(String),
    /// That users are in this group, but not who they are.
    Group(String),
    /// Users whom the peer knows by this method, such as `certificate`: all that it says of them.
    Method(String),
    /// All of its users: all that it says of them.
    Anyone,
}

impl SpokenFor {
    /// Whether it covers the principal as a user.
    pub(crate) fn covers_user(&self, principal: &Principal) -> bool {
        match self {
            Self::User(name) => *name == principal.user,
            Self::Group(_) => false,
            Self::Method(_) | Self::Anyone => self.covers_all(principal),
        }
    }

    /// Whether it covers that the principal is in `group`.
    pub(crate) fn covers_group(&self, principal: &Principal, group: &str) -> bool {
        match self {
            Self::User(_) => false,
            Self::Group(name) => name == group,
            Self::Method(_) | Self::Anyone => self.covers_all(principal),
        }
    }

    /// Whether it covers all that the peer says of the principal, such as the method.
    pub(crate) fn covers_all(&self, principal: &Principal) -> bool {
        match self {
            Self::User(_) | Self::Group(_) => false,
            Self::Method(name) => is_known_by(principal, name),
            Self::Anyone => true,
        }
    }
}

impl Listen {
    /// Whether a listener with these settings also satisfies `other`. Rates do not count: they change on open
    /// connections.
    pub(crate) fn listens_as(&self, other: &Self) -> bool {
        let profile = unrated(&other.profile, &self.profile, &self.transport);
        *self == Self { profile, ..other.clone() }
    }

    /// Whether clients may speak something else than the session protocol.
    pub(crate) fn takes_others(&self) -> bool {
        self.entries != [Entry::Session]
    }

    /// Whether `other` has the same address and transport.
    pub(crate) fn is_at(&self, other: &Self) -> bool {
        (self.address, &self.transport) == (other.address, &other.transport)
    }
}

impl Peer {
    /// Whether connections made with these settings also satisfy `other`. Rates do not count: they change on open
    /// connections.
    pub(crate) fn connects_as(&self, other: &Self) -> bool {
        let profile = unrated(&other.profile, &self.profile, &self.transport);
        *self == Self { profile, ..other.clone() }
    }
}

/// `profile` with the rate of `other`, unless the transport is a driver: drivers may read their rate only when they
/// connect.
fn unrated(profile: &Arc<Profile>, other: &Profile, transport: &str) -> Arc<Profile> {
    if transport != AUTO && !transports().iter().any(|own| own == transport) {
        return profile.clone();
    }
    Arc::new(Profile { rate: other.rate, ..Profile::clone(profile) })
}

/// The next hop for some destinations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// Which destinations.
    pub to: Pattern,
    /// The next gateway, or `None` if this one connects to the destination itself.
    pub via: Option<String>,
    /// The settings of connections to the destinations.
    pub profile: Arc<Profile>,
    /// Whether connections to the destinations begin with a PROXY header, which names the client.
    pub proxy_header: bool,
    /// Whether connections to the destinations come from the client's address.
    pub from_client: bool,
}

impl Config {
    /// Warnings about valid settings that are probably mistakes, one sentence each.
    pub fn warnings(&self) -> Vec<String> {
        let nothing = "there is no [[allow]] and no [[rule]] that allows: every session will be refused";
        let unused = self.unused_profiles.iter().map(|name| {
            format!(
                "nothing uses profile \"{name}\"; expected profile = \"{name}\" in a [[listen]], [[peer]] or [[route]]"
            )
        });
        let sources = || self.rules.iter().flat_map(|rule| rule.who.iter().flatten());
        let has_users = |listen: &Listen| {
            listen.auth.iter().any(|way| matches!(way, Mechanism::Scram { .. } | Mechanism::Token | Mechanism::Grid))
        };
        let speaks_nobody = self.peers.values().all(|peer| peer.speaks_for.is_empty());
        let is_in_vain = sources().any(|source| matches!(source, Source::User(_) | Source::Group(_)))
            && !self.listeners.iter().any(has_users)
            && speaks_nobody;
        let in_vain = "rules name users, and no [[listen]] has auth = \"scram\", \"token\" or \"grid\", nor a [[peer]] speaks_for: nobody can be one of them";
        // A peer may speak for users whom the file does not have, and an issuer may name them.
        let is_in_file = |name: &str| {
            let is_of = |issuer: &Arc<TokenIssuer>| {
                let realm = &issuer.issuer.realm;
                realm.is_empty() || name.strip_suffix(realm.as_str()).is_some_and(|name| name.ends_with('@'))
            };
            !self.issuers.iter().any(is_of)
        };
        let named = sources().filter_map(|source| match source {
            Source::User(name) if name != ANY => Some(("rule", Whom::User(name.clone()))),
            Source::Group(name) => Some(("rule", Whom::Group(name.clone()))),
            _ => None,
        });
        let limited = self.account_limits.all().iter().map(|limit| ("limit", limit.whom.clone()));
        let unknown = named.chain(limited).filter(|_| speaks_nobody).filter_map(|(what, whom)| match whom {
            Whom::User(name) if self.grid.as_ref().is_some_and(|grid| grid.has_user(&name)) => None,
            Whom::User(name) if is_in_file(&name) && self.users.get(&name).is_none() => {
                Some(format!("a {what} names user \"{name}\", who is not in the users file"))
            }
            Whom::Group(name) if is_in_file(&name) && !self.users.has_group(&name) => {
                Some(format!("a {what} names group \"{name}\", in which the users file has nobody"))
            }
            _ => None,
        });
        let is_empty = !self.rules.iter().any(|rule| rule.action == Action::Allow);
        let warnings = [(is_empty, nothing), (is_in_vain, in_vain)].into_iter().filter(|(is_so, _)| *is_so);
        warnings.map(|(_, warning)| warning.to_owned()).chain(unknown).chain(unused).collect()
    }

    /// Reads the configuration in `file`.
    ///
    /// # Errors
    /// When the file cannot be read, or as [`Config::parse`].
    pub fn read(file: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::File::open(file).map_err(TextError::Read).and_then(|open| text::read(open, FILE_MAX));
        Self::parse(&text.map_err(|error| ConfigError::unreadable(file, &error))?, file)
    }

    /// Parses `text`, which was read from `file`.
    ///
    /// # Errors
    /// The first error: what is wrong, where, and what was expected.
    pub fn parse(text: &str, file: &Path) -> Result<Self, ConfigError> {
        let raw: raw::File = toml::from_str(text).map_err(|error| match error.span() {
            Some(span) => {
                let said = reader::one_line(&in_words(error.message()));
                let value = text.get(span.clone()).unwrap_or_default();
                let said = match (said.strip_suffix("expected a sequence"), repeated_table(value)) {
                    // serde takes the first of several tables for the first key of a single one.
                    (_, Some(name)) if said.starts_with("invalid type: map") => {
                        format!("[[{name}]] begins one of several tables; expected [{name}], which stands once")
                    }
                    // A value that is not in brackets.
                    (Some(begin), _) if !value.contains('\n') => format!("{begin}expected a list such as [{value}]"),
                    _ => said,
                };
                ConfigError::at(file, text, span, said)
            }
            None => ConfigError::new(file, reader::one_line(&in_words(error.message()))),
        })?;
        reader::Reader::new(file, text).config(raw)
    }

    /// The most bytes that one direction of a session may hold: receive buffer, pipe and send buffer.
    pub(crate) fn buffer(&self) -> Option<u64> {
        self.limits.buffer.map(|size| size.0)
    }

    /// The most bytes that a direction holds between its two sockets.
    pub(crate) fn hold(&self) -> usize {
        let pipe = self.limits.pipe.0;
        let hold = self.buffer().map_or(pipe, |total| pipe.min(total / 4));
        usize::try_from(hold).unwrap_or(usize::MAX)
    }
}

/// The name in `[[name]]`, if a value begins so.
fn repeated_table(value: &str) -> Option<&str> {
    Some(value.strip_prefix("[[")?.split_once("]]")?.0)
}
