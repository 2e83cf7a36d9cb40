//! The messages of the handshake, as borrowed views (`docs/protocol/session.md` §4). `codec` defines their wire format.

use super::datagrams::DatagramGrant;
use super::list::List;
use super::principal::PrincipalRef;
use super::{Code, Mode, SessionId, VERSION};
use crate::endpoint::EndpointRef;
use std::fmt;

/// Optional parts of the protocol, as bits of [`Hello`] and [`Open::required`].
pub mod feature {
    /// The framed mode.
    pub const FRAMED: u64 = 1 << 0;
    /// Used in OPEN: the destination speaks the session protocol. The gateway that connects to it sends it an OPEN, in
    /// the raw mode (S5).
    pub const AWARE: u64 = 1 << 1;
    /// Used in OPEN: the session must have [datagrams](super::super::datagrams) beside it on every hop.
    pub const DATAGRAMS: u64 = 1 << 2;
    /// All features of this version.
    pub const KNOWN: u64 = FRAMED | AWARE | DATAGRAMS;
}

/// A message of the handshake.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Message<'a> {
    /// The first message of each side.
    Hello(Hello<'a>),
    /// The acceptor requires authentication.
    Challenge(Challenge<'a>),
    /// The initiator authenticates.
    Auth(Auth<'a>),
    /// The request for a session.
    Open(Open<'a>),
    /// The session is connected to its destination.
    Opened(Opened<'a>),
    /// The session is refused, with the reason.
    Refused(Refused<'a>),
    /// The request to join a bundle with one more connection.
    Attach(Attach<'a>),
    /// The acceptor proves itself.
    Proved(Proved<'a>),
}

/// HELLO: versions and features.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hello<'a> {
    /// Lowest version that the sender supports.
    pub version_min: u16,
    /// Highest version that the sender supports.
    pub version_max: u16,
    /// Features that the sender supports, bits of [`feature`].
    pub features: u64,
    /// Features that the sender requires of the receiver.
    pub required: u64,
    /// The sender's name: a gateway's configured name, empty for a client.
    pub name: &'a str,
    /// The sender's software and version, for logs.
    pub software: &'a str,
    /// Whether the connection is a beacon. A beacon carries no sessions. Its reset raises the suspicion that the
    /// sender's process has died, which transports over UDP do not show (`docs/protocol/session.md` §6.6).
    pub beacon: bool,
    /// A random number that identifies the sender's process. It distinguishes a restarted process from the one before,
    /// and one client's beacon from another's. 0: not given.
    pub instance: u64,
}

impl<'a> Hello<'a> {
    /// The HELLO of this software under `name`.
    pub const fn of(name: &'a str) -> Self {
        Self {
            version_min: VERSION,
            version_max: VERSION,
            features: feature::KNOWN,
            required: 0,
            name,
            software: concat!("phoebus/", env!("CARGO_PKG_VERSION")),
            beacon: false,
            instance: 0,
        }
    }
}

/// CHALLENGE: the mechanisms that the acceptor offers, and a challenge for those that need one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Challenge<'a> {
    /// Names of mechanisms, the preferred one first.
    pub mechanisms: List<'a, &'a str>,
    /// Fresh random bytes.
    pub data: &'a [u8],
}

/// AUTH: a mechanism and its data.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Auth<'a> {
    /// The mechanism's name ([`auth`](super::auth)).
    pub mechanism: &'a str,
    /// Opaque to the handshake; never printed.
    pub data: &'a [u8],
}

/// PROVED: the AUTH before it was accepted, and the acceptor proves itself.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Proved<'a> {
    /// The mechanism of that AUTH.
    pub mechanism: &'a str,
    /// Opaque to the handshake; never printed.
    pub data: &'a [u8],
}

impl fmt::Debug for Proved<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Proved").field("mechanism", &self.mechanism).finish_non_exhaustive()
    }
}

impl fmt::Debug for Auth<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Auth").field("mechanism", &self.mechanism).finish_non_exhaustive()
    }
}

/// OPEN: the request for a session.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Open<'a> {
    /// Chosen by the client, the same on every hop.
    pub session: SessionId,
    /// The far end of the session. The last gateway resolves a name.
    pub destination: EndpointRef<'a>,
    /// The gateways still to visit after the receiver (P38). Empty: the receiver's routes decide.
    pub path: List<'a, EndpointRef<'a>>,
    /// Names of the gateways visited so far, the first one first. A gateway that finds its own name here refuses.
    pub visited: List<'a, &'a str>,
    /// The client's address as the first gateway saw it.
    pub origin: Option<EndpointRef<'a>>,
    /// On whose behalf an upstream gateway requests the session (P12).
    pub principal: PrincipalRef<'a>,
    /// The requested mode of the stream on this hop.
    pub mode: Mode,
    /// Requirements of the session on each hop (P9, P13).
    pub requirements: Requirements,
    /// Whether the session must survive the loss of a hop's connection.
    pub resumable: bool,
    /// Features that the session requires, bits of [`feature`].
    pub required: u64,
    /// Number of padding bytes, at most [`Open::PADDING_MAX`]. A sender whose connection has been idle fills a whole
    /// segment with them: the acknowledgement of a short segment gives the congestion control no usable round-trip
    /// sample.
    pub padding: u16,
    /// Number of connections that the sender wants for this hop; more than one make a [bundle](super::bundle). This is
    /// not a requirement: the receiver may grant fewer.
    pub streams: u16,
    /// Whether the sender wants to send [datagrams](super::datagrams) beside the session. This is not a requirement, unless
    /// [`feature::DATAGRAMS`] is required.
    pub datagrams: bool,
}

impl<'a> Open<'a> {
    /// Most padding in bytes: more than a segment on the largest Ethernet frames in use (9000 bytes).
    pub const PADDING_MAX: u16 = 12 * 1024;

    /// A minimal request: raw, without requirements, with no gateways visited and an empty path. Callers set further
    /// fields by struct update: `Open { path, ..Open::new(session, destination) }`.
    pub fn new(session: SessionId, destination: EndpointRef<'a>) -> Self {
        Self {
            session,
            destination,
            path: List::default(),
            visited: List::default(),
            origin: None,
            principal: PrincipalRef::default(),
            mode: Mode::Raw,
            requirements: Requirements::default(),
            resumable: false,
            required: 0,
            padding: 0,
            streams: 1,
            datagrams: false,
        }
    }
}

/// What a session requires of each hop, or what a refusing gateway would have accepted (P9, P10, P13). `None`:
/// unspecified.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Requirements {
    /// Buffer for each direction of the session, in bytes.
    pub buffer: Option<u64>,
    /// Bandwidth, in bits per second.
    pub rate: Option<u64>,
    /// How long the bandwidth is needed, in seconds.
    pub duration: Option<u64>,
    /// Transport connections of each hop between gateways.
    pub streams: Option<u16>,
    /// The minimum protection of later hops.
    pub security: Option<Security>,
}

/// Protection of a hop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Security {
    /// None at all.
    None,
    /// The handshake is authenticated; the stream is not protected.
    Auth,
    /// Handshake and stream are encrypted and authenticated.
    Encrypt,
}

/// OPENED: the destination has connected (P18). Also the answer to [`Attach`], without hops.
#[derive(Clone, Copy, PartialEq)]
pub struct Opened<'a> {
    /// The session, as in OPEN.
    pub session: SessionId,
    /// How the stream is carried on this hop from the next byte on.
    pub mode: Mode,
    /// The hops after the sender, the nearest first.
    pub hops: List<'a, HopReport<'a>>,
    /// Connections that may make up this hop, this one included: at least 1, and at most [`Open::streams`].
    pub streams: u16,
    /// The secret that each further connection presents in [`Attach`]. Never printed; empty if `streams` is 1.
    pub token: &'a [u8],
    /// Where the receiver may send datagrams beside the session.
    pub datagrams: Option<DatagramGrant>,
}

impl<'a> Opened<'a> {
    /// The answer for a hop with a single connection.
    pub const fn new(session: SessionId, mode: Mode, hops: List<'a, HopReport<'a>>) -> Self {
        Self { session, mode, hops, streams: 1, token: &[], datagrams: None }
    }

    /// The sum of the reported hops' round-trip times, in microseconds (S26). Excludes the receiver's own first hop.
    pub fn rtt_us(&self) -> u64 {
        self.hops.iter().fold(0, |sum, hop| sum.saturating_add(hop.rtt_us))
    }
}

impl fmt::Debug for Opened<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { session, mode, hops, streams, token: _, datagrams } = self;
        let mut debug = f.debug_struct("Opened");
        debug.field("session", session).field("mode", mode).field("hops", hops).field("streams", streams);
        debug.field("datagrams", datagrams);
        debug.finish_non_exhaustive()
    }
}

/// Transport, settings and measurements of one hop of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HopReport<'a> {
    /// Name of the gateway that opened the hop.
    pub from: &'a str,
    /// The far end of the hop: a gateway's name or the destination's address.
    pub to: &'a str,
    /// `tcp`, `tls`, `quic`, `udt`.
    pub transport: &'a str,
    /// The congestion control in force.
    pub congestion_control: &'a str,
    /// `none`, `auth` or `encrypt`.
    pub security: &'a str,
    /// Smoothed round-trip time in microseconds; 0 if not known.
    pub rtt_us: u64,
    /// Send buffer in force, in bytes.
    pub send_buffer: u64,
    /// Receive buffer in force, in bytes.
    pub receive_buffer: u64,
    /// Whether the hop's connection had carried a session before.
    pub warm: bool,
    /// What was requested but not granted, as a sentence; empty if nothing.
    pub note: &'a str,
    /// Number of connections of the hop; 0 counts as 1.
    pub streams: u16,
    /// The session's rate limit on the hop, in bits per second; 0 if unlimited.
    pub rate: u64,
}

/// REFUSED: no session, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refused<'a> {
    /// The reason, for machines.
    pub code: Code,
    /// The reason, as a sentence.
    pub reason: &'a str,
    /// The hop that refused: a gateway's name, or the address that did not answer.
    pub hop: &'a str,
    /// Requirements that would have been accepted (P10).
    pub limits: Requirements,
    /// A gateway that the initiator should ask instead (P10).
    pub redirect: Option<EndpointRef<'a>>,
}

/// ATTACH: the request to join a bundle with one more connection.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Attach<'a> {
    /// The session to join.
    pub session: SessionId,
    /// The token of [`Opened::token`], which proves that the sender opened the session; never printed.
    pub token: &'a [u8],
    /// The connection's index in the bundle, from 1 on: the connection that carried OPEN has index 0.
    pub index: u16,
    /// As [`Open::padding`].
    pub padding: u16,
}

impl fmt::Debug for Attach<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Attach").field("session", &self.session).field("index", &self.index).finish_non_exhaustive()
    }
}

impl<'a> Message<'a> {
    /// The message's name in the specification.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Hello(_) => "HELLO",
            Self::Challenge(_) => "CHALLENGE",
            Self::Auth(_) => "AUTH",
            Self::Open(_) => "OPEN",
            Self::Opened(_) => "OPENED",
            Self::Refused(_) => "REFUSED",
            Self::Attach(_) => "ATTACH",
            Self::Proved(_) => "PROVED",
        }
    }
}
