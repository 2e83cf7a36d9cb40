//! The configuration as it stands in the file: TOML, unknown keys refused.

use phoebus_net::Profile;
use phoebus_proto::agent::Secret;
use phoebus_proto::endpoint::Endpoint;
use phoebus_proto::units::{ByteSize, Span};
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
    pub(super) allow: Vec<Allow>,
    #[serde(default)]
    pub(super) limits: Limits,
    #[serde(default)]
    pub(super) admin: Admin,
    #[serde(default)]
    pub(super) log: Log,
}

/// Who this gateway is, and whom it trusts: files, by names relative to the configuration.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Tls {
    pub(super) certificate: PathBuf,
    pub(super) key: PathBuf,
    pub(super) authorities: PathBuf,
    /// The secret of QUIC's stateless resets, made at the first start.
    pub(super) reset_key: Option<PathBuf>,
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
    /// Whether it is reached over networks that are not trusted.
    #[serde(default)]
    pub(super) public: bool,
    /// Whether it may be so although packets can be forged there.
    #[serde(default)]
    pub(super) unprotected: bool,
    pub(super) profile: Option<Spanned<String>>,
    #[serde(default)]
    pub(super) auth: Auth,
    pub(super) client_certificate: Option<Spanned<ClientCertificate>>,
}

/// Whether those who connect to a listener with TLS or QUIC have to show a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ClientCertificate {
    /// Whoever shows none is turned away.
    #[default]
    Required,
    /// Whoever shows none is judged by address, as programs are that come in the clear. Peers show theirs all the same.
    Optional,
}

/// Who may open sessions on a listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Auth {
    /// Whoever the allow rules admit.
    #[default]
    None,
    /// Whoever the allow rules admit and who gives an e-mail address (P26).
    Anonymous,
    /// Whoever knows an agent's secret: this user's own programs.
    #[serde(skip)]
    Secret(Secret),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Peer {
    pub(super) name: Spanned<String>,
    pub(super) address: Spanned<String>,
    pub(super) transport: Option<Spanned<String>>,
    /// With `transport = "auto"`: what it may choose from, the preferred first, with a port where that is another.
    pub(super) allowed: Option<Spanned<Vec<Spanned<String>>>>,
    pub(super) security: Option<Spanned<String>>,
    pub(super) profile: Option<Spanned<String>>,
    /// Instead of the profile's.
    pub(super) streams: Option<Spanned<u16>>,
    #[serde(default)]
    pub(super) from: Vec<Spanned<String>>,
    pub(super) pool: Option<Spanned<Pool>>,
}

/// How many idle connections to a peer are kept ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(from = "GivenPool")]
pub struct Pool {
    /// Connections opened ahead of need. 2 by default, if as many may be kept: neither the first session should wait for a
    /// handshake, nor the one that comes while the first is still ending.
    pub min: u32,
    /// Most idle connections kept after use. 8 by default: parallel streams of one transfer find their windows again.
    pub max: u32,
    /// Idle time after which one above `min` is closed. 5 minutes by default: what a congestion window has learned is
    /// hardly true for longer.
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
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Allow {
    pub(super) from: Vec<Spanned<String>>,
    pub(super) to: Vec<Spanned<String>>,
    pub(super) ports: Option<Spanned<Vec<Spanned<Ports>>>>,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "a port or a range such as \"5000-5999\" was expected")]
pub(super) enum Ports {
    One(u16),
    Text(String),
}

/// Every bound of the gateway, with its default and the reason for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Sessions at a time. Default: what the descriptor limit allows.
    pub sessions: Option<NonZeroU32>,
    /// Sessions at a time from one source: an IPv4 address, or an IPv6 network of 64 bits. Default: half of `sessions`, so
    /// that no one source keeps all others out (P25).
    pub sessions_per_source: Option<NonZeroU32>,
    /// Connections of which one hop of a session may consist, at most 64. 16: eight fill long paths with common loss where only
    /// cubic is to be had, and each takes a descriptor and the kernel's buffers.
    pub streams: NonZeroU16,
    /// Connections at a time that have not asked for a session yet. 2048: a burst, at little cost each.
    pub handshakes: NonZeroU32,
    /// The same from one source. 512: many programs start at once, and
    /// yet one source does not keep others out. Peers are exempt.
    pub handshakes_per_source: NonZeroU32,
    /// Connections of clients that are kept between sessions, those of agents: protected ones, of whom a rule lets have
    /// anything. 1024: an agent keeps a few. Further ones are closed once they are idle for `handshake_timeout`.
    pub clients: u32,
    /// The same from one source. 64: the agents of the users of a login node.
    pub clients_per_source: u32,
    /// Connections to the administration socket that are served at a time, each for `handshake_timeout` at most. 16: a monitor and
    /// its administrators; others wait.
    pub admin_connections: NonZeroU32,
    /// Control frames (PING, PONG, ACK) a second that a neighbour may send on a framed connection for ever, beyond those that the
    /// session's bytes account for; sixteen times as many at once. 64: a neighbour that asks for a sign of life ten times a second
    /// on top of what it acknowledges, and a tenth of a percent of a processor.
    pub control_frames: NonZeroU32,
    /// Threads that relay. Default: one for each processor, since each keeps one busy.
    pub threads: Option<NonZeroUsize>,
    /// Memory for each direction of a session, in the kernel: receive buffer, pipe, send buffer. Default: what the
    /// kernel's automatic buffers come to at most, since fixed ones cut throughput (U16).
    pub buffer: Option<ByteSize>,
    /// Capacity of a pipe. 512 KiB: a quarter of the processor time per byte less than with 128 KiB, no gain beyond.
    pub pipe: ByteSize,
    /// Pipes at a time; a session that finds none copies. Default: a sixteenth of the descriptor limit, at most 1024, so
    /// that pipes never take more than an eighth of the descriptors.
    pub pipes: Option<NonZeroU32>,
    /// From accepting a connection to its OPEN. 10 s: several round trips over any path, and no more for a slow-loris.
    pub handshake_timeout: Span,
    /// From OPEN to the destination's answer. 60 s: a direct connection would wait about two minutes, few users do.
    pub connect_timeout: Span,
    /// Resolving a name, within `connect_timeout`. 10 s: two servers that do not answer at first.
    pub resolve_timeout: Span,
    /// Names of destinations that are resolved at a time, each on a thread of its own: the host's resolver cannot be interrupted. 64:
    /// thousands of names a second, unless name servers are silent.
    pub lookups: NonZeroU32,
    /// The same from one source; further ones wait within `resolve_timeout`. 8: whoever asks for names whose servers are silent
    /// leaves others seven eighths.
    pub lookups_per_source: NonZeroU32,
    /// How long a transport that `auto` chose may take to reach the peer before the next is tried. 3 s: two losses of a first
    /// packet, which is sent again after 1 s, and then no more than a user waits for without wondering.
    pub transport_timeout: Span,
    /// How long a transport that `auto` could not have is not tried again; each failure in a row doubles it, up to 32 times
    /// that. 1 minute: a filter is there for hours, a peer that starts again for seconds.
    pub transport_retry: Span,
    /// How long nothing may be heard on other connections of a neighbour whose beacon was reset until it counts as dead. 3 s: of
    /// the signs of life that come once a second, two may be lost.
    pub silence_timeout: Span,
    /// How often `auto` asks a peer that no session goes to how long its answer takes. 1 minute: a handshake's packets, and
    /// soon enough for a route that has changed.
    pub probe_interval: Span,
    /// A session without a byte for this long is ended. 0, never, by default: a direct connection would live on too, and
    /// keepalive finds the dead ones.
    pub idle_timeout: Span,
    /// An idle connection from a peer, or a client's that is kept, is closed after this. 15 minutes: well above the peer's own `pool.idle`.
    pub peer_idle_timeout: Span,
    /// On SIGTERM, time for sessions to finish. 60 s: below the 90 s after which systemd kills.
    pub drain_timeout: Span,
    /// Session identifiers remembered, to refuse the second of a kind. 65 536: several minutes of a busy gateway, far
    /// more than the network keeps a repeated SYN.
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
            pipe: ByteSize(512 << 10),
            pipes: None,
            handshake_timeout: seconds(10),
            connect_timeout: seconds(60),
            resolve_timeout: seconds(10),
            lookups: count(64),
            lookups_per_source: count(8),
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

/// How the log is written.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Log {
    /// Lines for people or for machines.
    pub format: LogFormat,
    /// Least level that is written.
    pub level: LogLevel,
    /// Lines of one kind from one source in a minute, and ten times as many of one kind from all sources together. Lines of level
    /// `info`, those of sessions among them, are not counted. 0: all are written. 20 by default: enough to see what somebody tries, and a few megabytes a day of one who never stops.
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
    /// And what an administrator should look at.
    Warn,
    /// And a line for each session.
    #[default]
    Info,
    /// And refused connections, pool movements.
    Debug,
    /// And everything else.
    Trace,
}

pub(super) fn endpoint(text: &str) -> Result<Endpoint, String> {
    Endpoint::parse(text, Some(phoebus_proto::endpoint::DEFAULT_PORT)).map_err(|error| error.to_string())
}
