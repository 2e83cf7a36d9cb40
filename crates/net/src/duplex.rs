//! The traits and types that describe a connection of any transport, as the transport implements them.

use crate::connection_note::ConnectionNote;
use crate::credentials::Identity;
use crate::stats::Stats;
use phoebus_proto::session::Code;
use phoebus_proto::units::BitRate;
use std::fmt::Debug;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::net::TcpStream;

/// A boxed future, for methods of traits that are used as trait objects.
pub type Boxed<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Tells whether the peer of a connection is alive. It keeps neither the connection nor any of its streams
/// open.
pub trait Pulse: Debug + Send + Sync {
    /// Identifies the connection: the same for all streams of it, and different from every other open
    /// connection of this process.
    fn id(&self) -> usize;

    /// A number that changes whenever a packet has arrived from the peer, keep-alives included; `None` once
    /// the connection has ended. Idle QUIC and UDT connections send a keep-alive once a second.
    fn heard(&self) -> Option<u64>;

    /// Asks the peer for a sign of life. If the question and the answer arrive, [`heard`](Self::heard)
    /// changes a round trip later. UDT asks by an acknowledgement (ACK2 answers it), QUIC by a datagram of
    /// one byte (RFC 9221). Returns the smoothed round-trip time; `None` if the connection has ended, or the
    /// peer does not support the question.
    fn ask(&self) -> Option<Duration>;

    /// Closes a connection that several streams share and that was established before `before`, because the
    /// peer's process is known to be dead. Does nothing where each stream is a connection of its own: the
    /// stream's owner closes that.
    fn abandon(&self, _before: Instant, _code: Code, _reason: &str) {}
}

/// Two byte streams, one each way: what a transport's connection implements. Callers hold a
/// [`Stream`](crate::Stream), whose methods of the same names say more. Dropping a connection resets it,
/// unless it was [disarmed](DuplexControl::disarm).
pub trait Duplex: DuplexIo + DuplexControl + DuplexTelemetry {}

impl<D: DuplexIo + DuplexControl + DuplexTelemetry> Duplex for D {}

/// The bytes of a connection: reading, writing and readiness.
pub trait DuplexIo: Debug + Send + Sync {
    /// See [`Stream::try_read`](crate::Stream::try_read).
    ///
    /// # Errors
    /// `WouldBlock` when nothing has arrived yet; otherwise the connection has failed.
    fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize>;

    /// See [`Stream::try_write`](crate::Stream::try_write).
    ///
    /// # Errors
    /// `WouldBlock` when nothing fits; otherwise the connection has failed.
    fn try_write(&self, bytes: &[u8], more: bool) -> io::Result<usize>;

    /// See [`Stream::poll_read_ready`](crate::Stream::poll_read_ready).
    fn poll_read_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;

    /// See [`Stream::poll_write_ready`](crate::Stream::poll_write_ready).
    fn poll_write_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;

    /// See [`Stream::is_quiet`](crate::Stream::is_quiet).
    ///
    /// # Errors
    /// When the connection has failed.
    fn is_quiet(&self) -> io::Result<bool>;

    /// See [`Stream::shutdown_write`](crate::Stream::shutdown_write).
    ///
    /// # Errors
    /// When the connection has failed.
    fn shutdown_write(&self) -> io::Result<()>;

    /// See [`Stream::unacknowledged`](crate::Stream::unacknowledged).
    ///
    /// # Errors
    /// How the connection failed, if it has.
    fn unacknowledged(&self) -> io::Result<usize>;

    /// The TCP socket, if the stream's bytes are exactly the socket's bytes and can be spliced.
    fn socket(&self) -> Option<&TcpStream> {
        None
    }

    /// How many of `wanted` bytes may go to [`socket`](Self::socket) now: a low rate bounds what waits in the kernel.
    /// [`try_write`](Self::try_write) asks by itself.
    ///
    /// # Errors
    /// `WouldBlock` for none; otherwise the connection has failed.
    fn room(&self, wanted: usize) -> io::Result<usize> {
        Ok(wanted)
    }
}

/// The state of a connection: settings, failure, and the way in which it ends.
pub trait DuplexControl: Debug + Send + Sync {
    /// See [`Stream::other_end`](crate::Stream::other_end).
    fn other_end(&self) -> Option<OtherEnd> {
        None
    }

    /// See [`Stream::failed`](crate::Stream::failed).
    fn failed(&self) -> Boxed<'_, io::Error>;

    /// See [`Stream::disarm`](crate::Stream::disarm).
    fn disarm(&self);

    /// See [`Stream::unprotect`](crate::Stream::unprotect).
    ///
    /// # Errors
    /// When the connection has failed.
    fn unprotect(&self) -> io::Result<()> {
        Ok(())
    }

    /// See [`Stream::widen`](crate::Stream::widen).
    fn widen(&self) {}

    /// See [`Stream::set_reset_code`](crate::Stream::set_reset_code).
    fn set_reset_code(&self, _code: Code) {}

    /// See [`Stream::retire`](crate::Stream::retire).
    fn retire(&self) {}

    /// See [`Stream::set`](crate::Stream::set).
    ///
    /// # Errors
    /// `Unsupported` where the transport cannot.
    fn set(&self, change: Change) -> io::Result<()>;

    /// See [`Stream::has_authenticated_close`](crate::Stream::has_authenticated_close).
    fn has_authenticated_close(&self) -> bool {
        false
    }

    /// See [`Stream::has_end_of_stream`](crate::Stream::has_end_of_stream).
    fn has_end_of_stream(&self) -> bool {
        true
    }

    /// See [`Stream::delivers_after_drop`](crate::Stream::delivers_after_drop).
    fn delivers_after_drop(&self) -> bool {
        true
    }

    /// See [`Stream::move_to_runtime`](crate::Stream::move_to_runtime).
    ///
    /// # Errors
    /// When the runtime cannot register the socket; the connection is reset.
    fn move_to_runtime(self: Box<Self>) -> io::Result<Box<dyn Duplex>>;
}

/// Facts about a connection: statistics, addresses, and who is at the other end.
pub trait DuplexTelemetry: Debug + Send + Sync {
    /// See [`Stream::pulse`](crate::Stream::pulse).
    fn pulse(&self) -> Option<Box<dyn Pulse>> {
        None
    }

    /// See [`Stream::stats`](crate::Stream::stats).
    ///
    /// # Errors
    /// When the connection is gone.
    fn stats(&self) -> io::Result<Stats>;

    /// The local address.
    ///
    /// # Errors
    /// When the connection is gone.
    fn local_addr(&self) -> io::Result<SocketAddr>;

    /// The peer's address.
    ///
    /// # Errors
    /// When the connection is gone.
    fn peer_addr(&self) -> io::Result<SocketAddr>;

    /// Which settings of the profile are not in force, as a sentence.
    fn note(&self) -> Option<&str> {
        None
    }

    /// What protects the bytes on this connection.
    fn security(&self) -> Security {
        Security::None
    }

    /// The identity that the peer has proved.
    fn identity(&self) -> Option<&Identity> {
        None
    }

    /// See [`Stream::connection_note`](crate::Stream::connection_note).
    fn connection_note(&self) -> Option<Arc<ConnectionNote>> {
        None
    }

    /// See [`Stream::channel_binding`](crate::Stream::channel_binding).
    fn channel_binding(&self) -> Option<[u8; 32]> {
        None
    }
}

/// A change to an open connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// Greatest sending rate, headers included; `None`: as much as congestion control permits.
    Rate(Option<BitRate>),
    /// Size of the send buffer, in bytes.
    SendBuffer(u64),
    /// Greatest part of the send buffer, in bytes, that may hold bytes not sent yet; `None`: all of it.
    /// Beyond the limit a write would block, so that bytes written later can still go over another
    /// connection.
    Unsent(Option<u64>),
    /// Size of the receive buffer, in bytes.
    ReceiveBuffer(u64),
    /// From how many waiting bytes on the connection becomes readable. An end of stream and a failure make it
    /// readable at once. Lowering the threshold makes it readable if that many bytes wait already.
    ReadThreshold(ReadThreshold),
    /// Congestion control of the sending direction.
    CongestionControl(crate::CongestionControl),
}

/// From when on a connection is readable. A transport may become readable earlier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadThreshold {
    /// The number of bytes that must wait; at least 1.
    pub bytes: u64,
    /// The time in which the owner expects them: for so long the transport may leave packets to the kernel.
    pub within: Duration,
}

impl ReadThreshold {
    /// Readable from the first byte on, as every new connection is.
    pub const NONE: Self = Self { bytes: 1, within: Duration::ZERO };
}

/// What protects a hop's bytes, from the weakest to the strongest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Security {
    /// Nothing: anyone on the path can read, alter and inject bytes.
    #[default]
    None,
    /// The ends have authenticated each other in a protected handshake; the bytes after it are not protected.
    Auth,
    /// All bytes are encrypted. The accepting end has authenticated itself; so has the connecting end, unless
    /// the accepting end also admits clients without a certificate
    /// ([`Credentials::open`](crate::credentials::Credentials::open)).
    Encrypt,
}

impl Security {
    /// The name used in configurations and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Auth => "auth",
            Self::Encrypt => "encrypt",
        }
    }
}

/// What is known of the peer beyond the bytes read from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OtherEnd {
    /// No end of the peer's stream has arrived here yet.
    Open,
    /// The peer has ended its stream, perhaps behind bytes that are still unread. It may still receive.
    Ended,
    /// The connection no longer exists: it was reset, has failed, or both streams have ended. On a
    /// [pair](crate::pair), the peer may also have closed in order.
    Gone,
}
