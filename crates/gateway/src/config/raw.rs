//! The configuration as written in the file: TOML, in which unknown keys are errors.

use phoebus_config::agent::Secret;
use phoebus_net::Profile;
use phoebus_proto::endpoint::Endpoint;
use phoebus_proto::units::{BitRate, ByteSize, Span};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::num::{NonZeroU16, NonZeroU32, NonZeroUsize};
use std::path::PathBuf;
use std::time::Duration;
use toml::Spanned;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct File {
    pub(super) name: Option<Spanned<String>>,
    pub(super) contact: Option<String>,
    #[serde(default)]
    pub(super) listen: Vec<Listen>,
    pub(super) tls: Option<Spanned<Tls>>,
    #[serde(default)]
    pub(super) driver: Vec<Driver>,
    #[serde(default)]
    pub(super) profile: BTreeMap<String, Profile>,
    #[serde(default)]
    pub(super) peer: Vec<Peer>,
    #[serde(default)]
    pub(super) route: Vec<Route>,
    #[serde(default)]
    pub(super) rule: Vec<Spanned<Rule>>,
    #[serde(default)]
    pub(super) allow: Vec<Spanned<Allow>>,
    #[serde(default)]
    pub(super) limit: Vec<Spanned<AccountLimit>>,
    #[serde(default)]
    pub(super) limits: Limits,
    #[serde(default)]
    pub(super) datagrams: Datagrams,
    pub(super) users: Option<UsersFile>,
    pub(super) grid: Option<Spanned<Grid>>,
    #[serde(default)]
    pub(super) issuer: Vec<Issuer>,
    #[serde(default)]
    pub(super) admin: Admin,
    pub(super) audit: Option<AuditFile>,
    #[serde(default)]
    pub(super) log: Log,
}

/// The gateway's certificate and key, and the authorities that it trusts: file names relative to the configuration.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Tls {
    pub(super) certificate: PathBuf,
    pub(super) key: PathBuf,
    /// Not needed if every peer has a fingerprint.
    pub(super) authorities: Option<PathBuf>,
    /// Files with what the authorities have revoked.
    #[serde(default)]
    pub(super) revoked: Vec<PathBuf>,
    /// The secret of QUIC's stateless resets, created at the first start.
    pub(super) reset_key: Option<PathBuf>,
}

/// The relay of datagrams beside sessions.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Datagrams {
    /// Addresses and UDP ports to which neighbours send them; none if there is no relay.
    pub(super) addresses: Option<Spanned<Vec<Spanned<String>>>>,
}

/// The users who may log in with a password.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct UsersFile {
    /// Relative to the configuration.
    pub(super) file: Spanned<PathBuf>,
}

/// Which Grid certificates count. Files are relative to the configuration.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Grid {
    /// The directory of authorities, with signing policies and revocation lists.
    pub(super) certificates: Option<Spanned<PathBuf>>,
    /// The grid-mapfile.
    pub(super) gridmap: Option<Spanned<PathBuf>>,
    /// Whether limited proxies count.
    #[serde(default = "yes")]
    pub(super) limited: bool,
}

/// Who issues tokens.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Issuer {
    pub(super) url: Spanned<String>,
    pub(super) audiences: Spanned<Vec<String>>,
    /// Whether tokens for every service count too.
    #[serde(default = "yes")]
    pub(super) any_audience: bool,
    pub(super) algorithms: Option<Spanned<Vec<Spanned<String>>>>,
    #[serde(default)]
    pub(super) scopes: Vec<String>,
    /// The claims that name the user and the groups.
    pub(super) user: Option<Spanned<String>>,
    pub(super) groups: Option<Spanned<String>>,
    /// What follows the names of users and groups, after `@`.
    pub(super) realm: Option<Spanned<String>>,
    /// The authorities of the issuer's web server, relative to the configuration.
    pub(super) authorities: Option<Spanned<PathBuf>>,
}

fn yes() -> bool {
    true
}

/// A transport from a shared library.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Driver {
    pub(super) name: Spanned<String>,
    pub(super) library: Spanned<PathBuf>,
    #[serde(default)]
    pub(super) options: BTreeMap<String, Spanned<toml::Value>>,
    pub(super) connections: Option<NonZeroUsize>,
    pub(super) buffer: Option<ByteSize>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Listen {
    pub(super) address: Spanned<String>,
    pub(super) transport: Option<Spanned<String>>,
    pub(super) security: Option<Spanned<String>>,
    /// Whether untrusted networks can reach it.
    #[serde(default)]
    pub(super) public: bool,
    /// Whether it may be public although packets can be forged there.
    #[serde(default)]
    pub(super) unprotected: bool,
    pub(super) profile: Option<Spanned<String>>,
    /// How clients authenticate.
    pub(super) auth: Option<Spanned<Names>>,
    /// Whether passwords may be proved on connections without TLS.
    #[serde(default)]
    pub(super) raw_password: bool,
    pub(super) client_certificate: Option<Spanned<ClientCertificate>>,
    /// What clients speak.
    pub(super) entry: Option<Spanned<Names>>,
    /// Where relays come from that name their clients.
    pub(super) proxy_from: Option<Spanned<Vec<Spanned<String>>>>,
}

/// Whether clients of a listener with TLS or QUIC must show a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ClientCertificate {
    /// Clients without a certificate are refused.
    #[default]
    Required,
    /// Clients without a certificate are judged by address, like unencrypted clients. Peers must show one all the same.
    Optional,
}

/// A way in which clients of a listener may authenticate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mechanism {
    /// A certificate from an authority that the gateway trusts.
    Certificate,
    /// A password, of which the gateway has a verifier (P27).
    Scram {
        /// On connections without TLS too.
        raw: bool,
    },
    /// A bearer token (P8).
    Token,
    /// A Grid certificate or a proxy (RFC 3820).
    Grid,
    /// An e-mail address, which proves nothing (P26).
    Anonymous,
    /// The secret of a user's own agent, which the user's programs know.
    Agent(Secret),
}

/// One name, or several.
#[derive(Deserialize)]
#[serde(untagged, expecting = "a text or a list of texts was expected")]
pub(super) enum Names {
    One(String),
    Several(Vec<String>),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Peer {
    pub(super) name: Spanned<String>,
    pub(super) address: Spanned<String>,
    pub(super) transport: Option<Spanned<String>>,
    /// With `transport = "auto"`: what it may choose from, the preferred one first, each with its port if that differs.
    pub(super) allowed: Option<Spanned<Vec<Spanned<String>>>>,
    pub(super) security: Option<Spanned<String>>,
    /// SHA-256 of the only certificate that the peer may show.
    pub(super) fingerprint: Option<Spanned<String>>,
    pub(super) profile: Option<Spanned<String>>,
    /// Overrides the profile's value.
    pub(super) streams: Option<Spanned<u16>>,
    #[serde(default)]
    pub(super) from: Vec<Spanned<String>>,
    /// For whom it may ask.
    #[serde(default)]
    pub(super) speaks_for: Vec<Spanned<String>>,
    pub(super) pool: Option<Spanned<Pool>>,
}

/// How many idle connections to a peer are kept ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(from = "GivenPool")]
pub struct Pool {
    /// Connections opened ahead of need. Default: 2, or `max` if that is less. Neither the first session should wait
    /// for a handshake, nor the one that starts while the first is still ending.
    pub min: u32,
    /// Most idle connections kept after use. Default: 8, so that parallel streams of one transfer find their congestion
    /// windows again.
    pub max: u32,
    /// Idle time after which a connection above `min` is closed. Default: 5 minutes; a congestion window is rarely
    /// valid for longer.
    pub idle: Span,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct GivenPool {
    min: Option<u32>,
    max: Option<u32>,
    idle: Option<Span>,
}

impl From<GivenPool> for Pool {
    fn from(given: GivenPool) -> Self {
        let max = given.max.unwrap_or(8);
        Self { min: given.min.unwrap_or(max.min(2)), max, idle: given.idle.unwrap_or(Span(Duration::from_secs(300))) }
    }
}

impl Default for Pool {
    fn default() -> Self {
        GivenPool::default().into()
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Route {
    pub(super) to: Spanned<String>,
    pub(super) via: Spanned<String>,
    pub(super) profile: Option<Spanned<String>>,
    /// The header that names the client to the destinations.
    pub(super) proxy: Option<Spanned<String>>,
    /// Whose address connections to the destinations come from.
    pub(super) source: Option<Spanned<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Allow {
    pub(super) from: Vec<Spanned<String>>,
    pub(super) to: Vec<Spanned<String>>,
    pub(super) ports: Option<Spanned<Vec<Spanned<Ports>>>>,
}

/// Every key that is there must fit.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Rule {
    /// `allow`, `deny` or `redirect`.
    pub(super) action: Spanned<String>,
    pub(super) user: Option<Spanned<Names>>,
    pub(super) group: Option<Spanned<Names>>,
    pub(super) method: Option<Spanned<Names>>,
    /// Ranges of addresses.
    pub(super) from: Option<Spanned<Names>>,
    pub(super) certificate: Option<Spanned<Names>>,
    pub(super) peer: Option<Spanned<Names>>,
    /// Addresses of `[[listen]]`s.
    pub(super) listener: Option<Spanned<Names>>,
    pub(super) transport: Option<Spanned<Names>>,
    pub(super) security: Option<Spanned<Names>>,
    pub(super) to: Option<Spanned<Names>>,
    pub(super) ports: Option<Spanned<Vec<Spanned<Ports>>>>,
    /// The better gateway of a redirect.
    pub(super) gateway: Option<Spanned<String>>,
    /// What those are told who are refused.
    pub(super) reason: Option<Spanned<String>>,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "a port or a range such as \"5000-5999\" was expected")]
pub(super) enum Ports {
    One(u16),
    Text(String),
}

/// Every limit of the gateway, with its default and the reason for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Concurrent sessions. Default: what the descriptor limit allows.
    pub sessions: Option<NonZeroU32>,
    /// Concurrent sessions from one source: an IPv4 address, or an IPv6 /64 network. Default: half of `sessions`, so
    /// that no single source excludes all others (P25).
    pub sessions_per_source: Option<NonZeroU32>,
    /// Connections that may make up one hop of a session, at most 64. Default: 16. Eight fill long paths with common
    /// loss where only cubic is available; each costs a descriptor and kernel buffers.
    pub streams: NonZeroU16,
    /// Concurrent connections that have not requested a session yet. Default: 2048, enough for a burst at little cost
    /// each.
    pub handshakes: NonZeroU32,
    /// The same from one source. Default: 512. Many programs may start at once, and still one source does not exclude
    /// others. Peers are exempt.
    pub handshakes_per_source: NonZeroU32,
    /// Idle connections of clients' agents that are kept between sessions; they must be protected, and an allow rule
    /// must admit their source. Default: 1024; an agent keeps a few. Others are closed after they are idle for
    /// `handshake_timeout`.
    pub clients: u32,
    /// The same from one source. Default: 64, for the agents of the users of a login node.
    pub clients_per_source: u32,
    /// Concurrent connections to the administration socket, each for `handshake_timeout` at most. Default: 16, for a
    /// monitor and some administrators; others wait.
    pub admin_connections: NonZeroU32,
    /// Control frames (PING, PONG, ACK) per second that a neighbour may send on a framed connection at all times,
    /// beyond those that the session's bytes pay for; sixteen times as many in a burst. Default: 64. That allows a
    /// neighbour to send ten pings a second on top of its acknowledgements, and costs a tenth of a percent of a
    /// processor.
    pub control_frames: NonZeroU32,
    /// Relay threads. Default: one per processor, since each keeps one busy.
    pub threads: Option<NonZeroUsize>,
    /// Kernel memory for each direction of a session, in bytes: receive buffer, pipe, send buffer. Default: the maximum
    /// of the kernel's automatic buffers, since fixed ones reduce throughput (U16).
    pub buffer: Option<ByteSize>,
    /// Memory of all sessions together, each of which takes twice `buffer`. Default: no limit but that of `sessions`.
    pub memory: Option<ByteSize>,
    /// Capacity of a pipe. Default: 512 KiB, which takes a quarter less processor time per byte than 128 KiB; more
    /// gains nothing.
    pub pipe: ByteSize,
    /// Pipes in use at a time; a session that gets none copies instead. Default: a sixteenth of the descriptor limit,
    /// at most 1024, so that pipes never take more than an eighth of the descriptors.
    pub pipes: Option<NonZeroU32>,
    /// How long bytes of a bulk flow gather in the kernel before a relay reads them. Default: 2 ms, which are 250 KB at 1
    /// Gbit/s: half of the wake-ups or fewer, and little beside the round trip of a path that needs gateways. 0 means
    /// that bytes are read when they arrive; otherwise from 1 ms, the resolution of timers, to 20 ms, which applications
    /// begin to notice. The last bytes before a pause wait half as long again. Flows of less than 65 Mbit/s at 2 ms, and
    /// the first megabytes of all flows, are read at once.
    pub receive_coalescing: Span,
    /// From accepting a connection to its OPEN. Default: 10 s, several round trips over any path, and a bound for
    /// slow-loris attacks.
    pub handshake_timeout: Span,
    /// From OPEN to the destination's answer. Default: 60 s. A direct connection would wait about two minutes, but few
    /// users do.
    pub connect_timeout: Span,
    /// Resolving a name, within `connect_timeout`. Default: 10 s, enough for two servers that do not answer at first.
    pub resolve_timeout: Span,
    /// Destination names resolved concurrently, each on a thread of its own because the host's resolver cannot be
    /// interrupted. Default: 64, for thousands of names per second unless name servers are silent.
    pub lookups: NonZeroU32,
    /// The same from one source; more wait within `resolve_timeout`. Default: 8. A source whose name servers are silent
    /// leaves seven eighths to others.
    pub lookups_per_source: NonZeroU32,
    /// Passwords of SOCKS and HTTP checked at a time, each on a thread of low priority; others wait within
    /// `handshake_timeout`. Default: 2. Each takes some tenths of a second of a processor, and relays need the others.
    pub password_checks: NonZeroU32,
    /// How long a transport that `auto` chose may take to reach the peer before the next one is tried. Default: 3 s.
    /// That covers two losses of a first packet, which is resent after 1 s, and is no longer than a user waits without
    /// wondering.
    pub transport_timeout: Span,
    /// How long a transport that `auto` found unavailable is not tried again. Each failure in a row doubles it, up to
    /// 32 times the value. Default: 1 minute. A filter stays for hours, a restarting peer is back in seconds.
    pub transport_retry: Span,
    /// How long a neighbour whose beacon was reset may be silent on its other connections before it counts as dead.
    /// Default: 3 s; of the signs of life sent once per second, two may be lost.
    pub silence_timeout: Span,
    /// How often `auto` measures the round trip to a peer without sessions. Default: 1 minute. It costs a handshake's
    /// packets, and notices a route change soon enough.
    pub probe_interval: Span,
    /// A session that moves no byte for this long is ended. Default: 0, never; a direct connection would survive too,
    /// and keepalive finds dead ones.
    pub idle_timeout: Span,
    /// An idle connection from a peer, or from a client's agent, is closed after this time. Default: 15 minutes, well
    /// above the peer's own `pool.idle`.
    pub peer_idle_timeout: Span,
    /// Time for sessions to finish after SIGTERM. Default: 60 s, below the 90 s after which systemd kills.
    pub drain_timeout: Span,
    /// Session identifiers remembered in order to refuse duplicates. Default: 65 536, several minutes of a busy
    /// gateway, far longer than the network keeps a duplicated SYN.
    pub remembered_sessions: NonZeroU32,
}

impl Default for Limits {
    fn default() -> Self {
        let count = |n| NonZeroU32::new(n).unwrap_or(NonZeroU32::MIN);
        let seconds = |s| Span(Duration::from_secs(s));
        Self {
            sessions: None,
            sessions_per_source: None,
            threads: None,
            streams: NonZeroU16::MIN.saturating_add(15),
            handshakes: count(2048),
            handshakes_per_source: count(512),
            clients: 1024,
            clients_per_source: 64,
            admin_connections: count(16),
            control_frames: count(64),
            buffer: None,
            memory: None,
            pipe: ByteSize(512 << 10),
            pipes: None,
            receive_coalescing: Span(Duration::from_millis(2)),
            handshake_timeout: seconds(10),
            connect_timeout: seconds(60),
            resolve_timeout: seconds(10),
            lookups: count(64),
            lookups_per_source: count(8),
            password_checks: count(2),
            transport_timeout: seconds(3),
            transport_retry: seconds(60),
            silence_timeout: seconds(3),
            probe_interval: seconds(60),
            idle_timeout: seconds(0),
            peer_idle_timeout: seconds(900),
            drain_timeout: seconds(60),
            remembered_sessions: count(65_536),
        }
    }
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Admin {
    pub(super) socket: Option<Spanned<PathBuf>>,
}

/// What users, groups, sources or peers may use.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AccountLimit {
    pub(super) user: Option<Spanned<String>>,
    pub(super) group: Option<Spanned<String>>,
    /// A range of addresses.
    pub(super) source: Option<Spanned<String>>,
    pub(super) peer: Option<Spanned<String>>,
    /// `user`, `group`, `source` or `peer`: each by itself.
    pub(super) each: Option<Spanned<String>>,
    pub(super) sessions: Option<NonZeroU32>,
    /// Per second.
    pub(super) rate_of_sessions: Option<Spanned<f64>>,
    pub(super) memory: Option<Spanned<ByteSize>>,
    pub(super) bandwidth: Option<Spanned<BitRate>>,
    /// A better gateway for those who have reached the limit.
    pub(super) gateway: Option<Spanned<String>>,
}

/// Where decisions are written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AuditFile {
    /// Relative to the configuration.
    pub(super) file: Spanned<PathBuf>,
    /// Most lines that wait to be written. Default: 4096, a few megabytes at most, and several seconds of a busy gateway.
    #[serde(default = "audit_queue")]
    pub(super) queue: NonZeroU32,
}

fn audit_queue() -> NonZeroU32 {
    NonZeroU32::MIN.saturating_add(4095)
}

/// How the log is written.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Log {
    /// The form of log lines.
    pub format: LogFormat,
    /// The least level that is written.
    pub level: LogLevel,
    /// The most lines of one kind from one source per minute, and ten times as many from all sources together. Lines of
    /// level `info`, including those of sessions, are exempt. 0 means no limit. Default: 20, enough to show what
    /// someone tries, and a few megabytes a day if it never stops.
    pub repeats: u32,
}

impl Default for Log {
    fn default() -> Self {
        Self { format: LogFormat::default(), level: LogLevel::default(), repeats: 20 }
    }
}

/// The form of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// The least level that is logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    /// Failures of the gateway itself.
    Error,
    /// Also what an administrator should look at.
    Warn,
    /// Also one line for each session.
    #[default]
    Info,
    /// Also refused connections and changes of the pools.
    Debug,
    /// Everything.
    Trace,
}

pub(super) fn endpoint(text: &str) -> Result<Endpoint, String> {
    Endpoint::parse(text, Some(phoebus_proto::endpoint::DEFAULT_PORT)).map_err(|error| error.to_string())
}
