//! What `phoebus status` shows: the current state of a gateway.

use crate::audit::AuditStatus;
use crate::config::RulePlace;
use crate::counters::Totals;
use crate::failure::Side;
use crate::pool::PoolStatus;
use crate::quota::AccountStatus;
use crate::sessions::ActiveSession;
use crate::shared::{Phase, Shared};
use phoebus_net::Stats;
use phoebus_net::credentials::date;
use phoebus_net::datagram_relay::Relayed;
use phoebus_proto::session::Principal;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::SystemTime;

/// The state of a gateway.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// Its process id.
    pub pid: u32,
    /// Time since its start, in seconds.
    pub uptime_s: f64,
    /// Whether it is draining and refuses new sessions.
    pub draining: bool,
    /// The most concurrent sessions.
    pub sessions_max: u32,
    /// Connections that have not requested a session yet.
    pub handshakes: u32,
    /// The number of pipes, and how many of them are idle.
    pub pipes: (usize, usize),
    /// Open sessions.
    pub sessions: Vec<SessionStatus>,
    /// Totals since the start.
    pub totals: Totals,
    /// What users, groups, sources and peers with limits use, the most used first.
    #[serde(default)]
    pub accounts: Vec<AccountStatus>,
    /// The audit, if there is one.
    #[serde(default)]
    pub audit: Option<AuditStatus>,
    /// The pools of connections to peers.
    pub pools: Vec<PoolStatus>,
    /// The gateway's certificate, if it has one.
    pub certificate: Option<CertificateStatus>,
}

/// The certificate in force.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CertificateStatus {
    /// The names that it is for.
    pub names: Vec<String>,
    /// When it or its authority expires, in RFC 3339 format.
    pub expires: String,
    /// Seconds until the certificate, or one between it and its authority, expires; negative after that.
    pub certificate_expires_in_s: i64,
    /// Seconds until the last of the trusted authorities expires.
    pub authority_expires_in_s: i64,
    /// A warning about expiry, if any.
    pub warning: Option<String>,
}

/// An open session.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SessionStatus {
    /// Its identifier.
    pub session: String,
    /// The client, as the first gateway saw it.
    pub origin: String,
    /// The way by which it was requested: `session`, `socks` or `http`; empty if an older gateway does not say.
    #[serde(default)]
    pub entry: String,
    /// On whose behalf it was opened.
    #[serde(default)]
    pub principal: PrincipalStatus,
    /// The rule that allows it.
    #[serde(default)]
    pub rule: Option<RulePlace>,
    /// Its destination.
    pub destination: String,
    /// Gateways before this one, separated by commas.
    pub visited: String,
    /// Time since OPENED, in seconds.
    pub age_s: f64,
    /// Bytes to the destination.
    pub bytes_up: u64,
    /// Bytes to the client.
    pub bytes_down: u64,
    /// Bits per second to the destination, over the last second or so.
    pub bits_per_s_up: f64,
    /// Bits per second to the client.
    pub bits_per_s_down: f64,
    /// The hop towards the client, then the hop towards the destination.
    pub hops: [HopStatus; 2],
    /// The datagrams relayed beside it, to the destination and to the client; their bytes count above. Absent for a session
    /// without any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub datagrams: Option<[DatagramStatus; 2]>,
}

/// The datagrams of a session in one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct DatagramStatus {
    /// Number of datagrams passed on.
    pub relayed: u64,
    /// Number of datagrams dropped, because there was no room to send them, or because the client had sent nothing yet.
    pub dropped: u64,
}

/// On whose behalf a session was opened.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PrincipalStatus {
    /// How the subject was made known: `certificate`, or a mechanism's name; empty if an older gateway does not say.
    pub method: String,
    /// The subject in the method's terms; empty for nobody.
    pub subject: String,
    /// The user, if there is one.
    pub user: String,
    /// The user's groups.
    pub groups: Vec<String>,
    /// The neighbour that asks for it; empty if the subject asks itself.
    pub spoken_for_by: String,
    /// All of it, for people.
    pub text: String,
}

impl PrincipalStatus {
    fn of(principal: &Principal) -> Self {
        let Principal { method, subject, user, groups, spoken_for_by } = principal.clone();
        Self { method, subject, user, groups, spoken_for_by, text: principal.to_string() }
    }
}

/// A hop of an open session.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HopStatus {
    /// The other end: a peer's name or an address.
    pub to: String,
    /// Its transport.
    pub transport: String,
    /// Its protection.
    pub security: String,
    /// The number of connections that make it up.
    #[serde(default = "one")]
    pub streams: usize,
    /// The transport's counters, summed over all connections; absent while the session is ending.
    pub stats: Option<Stats>,
}

/// The default for gateways without bundles, which omit the field.
fn one() -> usize {
    1
}

impl DatagramStatus {
    fn of(counted: Relayed) -> Self {
        Self { relayed: counted.datagrams, dropped: counted.dropped }
    }
}

impl Status {
    pub(crate) fn of(shared: &Shared) -> Self {
        let setup = shared.setup();
        let mut sessions: Vec<_> = shared.sessions.all().iter().map(session).collect();
        sessions.sort_by(|a, b| b.age_s.total_cmp(&a.age_s));
        Self {
            name: setup.config.name.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            uptime_s: shared.since.elapsed().as_secs_f64(),
            draining: shared.phase() != Phase::Open,
            sessions_max: setup.sessions,
            handshakes: shared.admission.handshakes.total(),
            pipes: shared.data.pipes.usage(),
            sessions,
            totals: shared.counters.totals(),
            accounts: shared.accounts.status(),
            audit: shared.audit.status(),
            pools: setup.peers.values().map(|pool| pool.status()).collect(),
            certificate: setup.transports.credentials.as_ref().and_then(|credentials| {
                Some(CertificateStatus {
                    names: credentials.certificate()?.names,
                    expires: date(credentials.expires()),
                    certificate_expires_in_s: seconds_until(credentials.certificate_expires()?),
                    authority_expires_in_s: seconds_until(credentials.authority_expires()),
                    warning: setup.transports.expiry(),
                })
            }),
        }
    }
}

fn seconds_until(time: SystemTime) -> i64 {
    let seconds = |span: std::time::Duration| i64::try_from(span.as_secs()).unwrap_or(i64::MAX);
    match time.duration_since(SystemTime::now()) {
        Ok(left) => seconds(left),
        Err(past) => -seconds(past.duration()),
    }
}

fn session(live: &Arc<ActiveSession>) -> SessionStatus {
    let facts = &live.facts;
    let (bytes_up, bytes_down) = live.bytes();
    let rates = live.last_look();
    let hop = |to: &str, transport: &str, side: Side| {
        let streams = live.streams(side);
        let all = streams.iter().filter_map(|stream| stream.stats().ok());
        HopStatus {
            to: to.to_owned(),
            transport: transport.to_owned(),
            security: streams.first().map(|stream| stream.security()).unwrap_or_default().name().to_owned(),
            streams: streams.len(),
            stats: all.reduce(|sum, stats| sum.with(&stats)),
        }
    };
    let [first, second] = &facts.transports;
    SessionStatus {
        session: facts.session.to_string(),
        origin: facts.origin.clone(),
        entry: facts.entry.name().to_owned(),
        principal: PrincipalStatus::of(&facts.principal),
        rule: facts.rule,
        destination: facts.destination.clone(),
        visited: facts.visited.clone(),
        age_s: live.since.elapsed().as_secs_f64(),
        bytes_up,
        bytes_down,
        bits_per_s_up: rates.rate_up * 8.0,
        bits_per_s_down: rates.rate_down * 8.0,
        datagrams: live.datagrams().map(|both| both.map(DatagramStatus::of)),
        hops: [hop(&facts.from, first, Side::First), hop(&facts.next, second, Side::Second)],
    }
}
