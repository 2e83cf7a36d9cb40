//! The messages of the handshake, as borrowed views (`docs/protocol/session.md` §4). Their form on the wire is in `codec`.

use super::list::List;
use super::{Code, Mode, SessionId, VERSION};
use crate::endpoint::EndpointRef;
use std::fmt;

/// Optional parts of the protocol, as bits of [`Hello`] and [`Open::required`].
pub mod feature {
    /// The framed mode.
    pub const FRAMED: u64 = 1 << 0;
    /// Of an OPEN: the destination takes part. Whoever connects to it asks it for the session, in the raw mode (S5).
    pub const AWARE: u64 = 1 << 1;
    /// What this version can do.
    pub const KNOWN: u64 = FRAMED | AWARE;
}

/// A message of the handshake.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Message<'a> {
    /// The first message of each side.
    Hello(Hello<'a>),
    /// What authentication the acceptor wants.
    Challenge(Challenge<'a>),
    /// Who the initiator is.
    Auth(Auth<'a>),
    /// The request for a session.
    Open(Open<'a>),
    /// The session is connected to its destination.
    Opened(Opened<'a>),
    /// It is not, and why.
    Refused(Refused<'a>),
    /// One more connection of a bundle.
    Attach(Attach<'a>),
}

/// HELLO: versions and features.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hello<'a> {
    /// Lowest version that the sender speaks.
    pub version_min: u16,
    /// Highest version that the sender speaks.
    pub version_max: u16,
    /// Features that the sender has, bits of [`feature`].
    pub features: u64,
    /// Features without which the sender will not go on.
    pub required: u64,
    /// The sender's name: a gateway's configured name, empty for a client.
    pub name: &'a str,
    /// The sender's software and version, for logs.
    pub software: &'a str,
    /// Whether the connection is a beacon: it carries no sessions, and its reset says that the sender's process has died, with
    /// all that it carried over transports that do not show it.
    pub beacon: bool,
    /// Which process of that name the sender is, a random number: so a process that was restarted is told from the one before,
    /// and a client's beacon from another's. 0: not said.
    pub instance: u64,
}

impl<'a> Hello<'a> {
    /// The greeting of this software, under this name.
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

/// AUTH: a mechanism and what it has to say.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Auth<'a> {
    /// The mechanism, such as [`Auth::ANONYMOUS`].
    pub mechanism: &'a str,
    /// Opaque to the handshake; never printed. For `anonymous`, an e-mail address (P26).
    pub data: &'a [u8],
}

impl Auth<'_> {
    /// No proof of identity, only an e-mail address (P26; RFC 4505).
    pub const ANONYMOUS: &'static str = "anonymous";
    /// Programs of one user towards their agent ([`crate::agent`]); the data is the agent's secret.
    pub const AGENT: &'static str = "agent";
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
    /// Where the session is to end; a name is resolved by the last gateway.
    pub destination: EndpointRef<'a>,
    /// The gateways still to be visited after the receiver (P38). Empty: the receiver's routes decide.
    pub path: List<'a, EndpointRef<'a>>,
    /// Names of the gateways visited so far, the first one first. A gateway that finds its own name refuses.
    pub visited: List<'a, &'a str>,
    /// The client's address as the first gateway saw it.
    pub origin: Option<EndpointRef<'a>>,
    /// On whose behalf an upstream gateway asks (P12), empty for nobody in particular.
    pub identity: &'a str,
    /// How the stream is to be carried on this hop.
    pub mode: Mode,
    /// What the session needs (P9, P13).
    pub requirements: Requirements,
    /// Whether the session is to survive the loss of a hop's connection.
    pub resumable: bool,
    /// Features without which the session is of no use, bits of [`feature`].
    pub required: u64,
    /// Bytes without meaning by which the message is longer. A sender whose connection has been idle fills a segment with
    /// them: the acknowledgement of a short one tells a congestion control nothing about the path. At most
    /// [`Open::PADDING_MAX`].
    pub padding: u16,
    /// Connections of which the sender would make this hop, a [bundle](super::bundle) if more than one. No requirement: the
    /// receiver grants as many as it likes.
    pub streams: u16,
}

impl<'a> Open<'a> {
    /// Most padding that is sent: a segment on the largest frames in use, with room to spare.
    pub const PADDING_MAX: u16 = 12 * 1024;

    /// The plainest request there is: raw, with nothing required, no gateways visited, and the receiver's routes to choose
    /// what comes after it. Whoever wants more says so by struct update: `Open { path, ..Open::new(session, destination) }`.
    pub fn new(session: SessionId, destination: EndpointRef<'a>) -> Self {
        Self {
            session,
            destination,
            path: List::default(),
            visited: List::default(),
            origin: None,
            identity: "",
            mode: Mode::Raw,
            requirements: Requirements::default(),
            resumable: false,
            required: 0,
            padding: 0,
            streams: 1,
        }
    }
}

/// What a session asks of each hop, or a refusal would accept (P9, P10, P13). Absent: no wish.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Requirements {
    /// Buffer for each direction of the session, in bytes.
    pub buffer: Option<u64>,
    /// Bandwidth, in bits per second.
    pub rate: Option<u64>,
    /// For how long, in seconds.
    pub duration: Option<u64>,
    /// Transport connections of each hop between gateways.
    pub streams: Option<u16>,
    /// The least protection of later hops.
    pub security: Option<Security>,
}

/// Protection of a hop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Security {
    /// None at all.
    None,
    /// The handshake is authenticated; the stream is not protected.
    Auth,
    /// All is encrypted and authenticated.
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
    /// What each further one has to show in [`Attach`]; never printed, and empty where `streams` is 1.
    pub token: &'a [u8],
}

impl<'a> Opened<'a> {
    /// The answer for a hop of one connection.
    pub const fn new(session: SessionId, mode: Mode, hops: List<'a, HopReport<'a>>) -> Self {
        Self { session, mode, hops, streams: 1, token: &[] }
    }

    /// The sum of the reported hops' round-trip times, in microseconds (S26). Excludes the receiver's own first hop.
    pub fn rtt_us(&self) -> u64 {
        self.hops.iter().fold(0, |sum, hop| sum.saturating_add(hop.rtt_us))
    }
}

impl fmt::Debug for Opened<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { session, mode, hops, streams, token: _ } = self;
        let mut debug = f.debug_struct("Opened");
        debug.field("session", session).field("mode", mode).field("hops", hops).field("streams", streams);
        debug.finish_non_exhaustive()
    }
}

/// What one hop of a session got: transport, settings and measurements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HopReport<'a> {
    /// Name of the gateway that opened the hop.
    pub from: &'a str,
    /// Where it leads: a gateway's name or the destination's address.
    pub to: &'a str,
    /// `tcp`, `tls`, `quic`, `udt`.
    pub transport: &'a str,
    /// The congestion control in force.
    pub congestion_control: &'a str,
    /// `none`, `auth` or `encrypt`.
    pub security: &'a str,
    /// Smoothed round-trip time in microseconds, 0 where it is not known.
    pub rtt_us: u64,
    /// Send buffer in force, in bytes.
    pub send_buffer: u64,
    /// Receive buffer in force, in bytes.
    pub receive_buffer: u64,
    /// Whether the hop's connection had carried a session before.
    pub warm: bool,
    /// What was asked for and not had, as a sentence; empty if nothing.
    pub note: &'a str,
    /// Connections that make up the hop; 0 counts as 1.
    pub streams: u16,
    /// The most that the session may send on the hop, in bits per second; 0 without a bound.
    pub rate: u64,
}

/// REFUSED: no session, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refused<'a> {
    /// The reason, for machines.
    pub code: Code,
    /// The reason, as a sentence.
    pub reason: &'a str,
    /// Which hop refused: a gateway's name, or the address that did not answer.
    pub hop: &'a str,
    /// What would have been accepted (P10).
    pub limits: Requirements,
    /// A better gateway (P10).
    pub redirect: Option<EndpointRef<'a>>,
}

/// ATTACH: one more connection of a bundle.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Attach<'a> {
    /// The session to join.
    pub session: SessionId,
    /// Proves that the sender opened it; never printed.
    pub token: &'a [u8],
    /// The connection's place in the bundle, from 1 on: the one that carried OPEN has 0.
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
        }
    }
}
