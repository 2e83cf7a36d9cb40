//! What a connection of any transport can do, seen from the transport.

use crate::credentials::Identity;
use crate::stats::Stats;
use phoebus_proto::session::Code;
use phoebus_proto::units::BitRate;
use std::fmt::Debug;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::net::TcpStream;

/// A future behind a pointer, for traits that stand behind one.
pub type Boxed<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Tells whether the other end of a connection is there. It keeps neither the connection nor a stream of it open.
pub trait Pulse: Debug + Send + Sync {
    /// The same for all streams of a connection, and for no other connection of this process at the same time.
    fn id(&self) -> usize;

    /// A number that is another one whenever something has come from the other end, signs of life included; `None` once the
    /// connection has ended. QUIC and UDT say that they are there once a second where nothing else is to be said.
    fn heard(&self) -> Option<u64>;

    /// Asks the other end for a sign of life, which changes [`heard`](Self::heard) a round trip later if the question and the
    /// answer arrive. UDT asks by an acknowledgement (ACK2 answers it), QUIC by a datagram of one byte (RFC 9221). Returns the
    /// smoothed round-trip time; `None` where the connection has ended, or the other end takes no such question.
    fn ask(&self) -> Option<Duration>;

    /// Ends a connection that several streams share and that began `before` that time, since the process at its other end is known
    /// to be dead. Where the stream is the connection, its owner ends it.
    fn abandon(&self, _before: Instant, _code: Code, _reason: &str) {}
}

/// Two byte streams, one each way: what a transport's connection can do. Whoever uses one holds a [`Stream`](crate::Stream), whose methods of
/// the same names say more. Dropped, a connection is reset, unless it was [disarmed](Duplex::disarm).
pub trait Duplex: Debug + Send + Sync {
    /// See [`Stream::try_read`](crate::Stream::try_read).
    ///
    /// # Errors
    /// `WouldBlock` when nothing is there yet; otherwise the connection has failed.
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

    /// See [`Stream::other_end`](crate::Stream::other_end).
    fn other_end(&self) -> Option<OtherEnd> {
        None
    }

    /// See [`Stream::failed`](crate::Stream::failed).
    fn failed(&self) -> Boxed<'_, io::Error>;

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

    /// See [`Stream::blame`](crate::Stream::blame).
    fn blame(&self, _code: Code) {}

    /// See [`Stream::retire`](crate::Stream::retire).
    fn retire(&self) {}

    /// See [`Stream::pulse`](crate::Stream::pulse).
    fn pulse(&self) -> Option<Box<dyn Pulse>> {
        None
    }

    /// Changes a setting of the open connection.
    ///
    /// # Errors
    /// `Unsupported` where the transport cannot.
    fn set(&self, change: Change) -> io::Result<()>;

    /// See [`Stream::stats`](crate::Stream::stats).
    ///
    /// # Errors
    /// When the connection is gone.
    fn stats(&self) -> io::Result<Stats>;

    /// This end.
    ///
    /// # Errors
    /// When the connection is gone.
    fn local_addr(&self) -> io::Result<SocketAddr>;

    /// The other end.
    ///
    /// # Errors
    /// When the connection is gone.
    fn peer_addr(&self) -> io::Result<SocketAddr>;

    /// What the profile asked for and was not to be had, as a sentence.
    fn note(&self) -> Option<&str> {
        None
    }

    /// What protects the bytes.
    fn security(&self) -> Security {
        Security::None
    }

    /// Who the other end has proved to be.
    fn identity(&self) -> Option<&Identity> {
        None
    }

    /// Whether its end of stream and its reset can be trusted to be the peer's, and told apart. Where they cannot, sessions
    /// between gateways are framed.
    fn has_true_ends(&self) -> bool {
        false
    }

    /// See [`Stream::has_ends`](crate::Stream::has_ends).
    fn has_ends(&self) -> bool {
        true
    }

    /// See [`Stream::outlives`](crate::Stream::outlives).
    fn outlives(&self) -> bool {
        true
    }

    /// The socket whose bytes are the stream's bytes as they are, to be spliced.
    fn socket(&self) -> Option<&TcpStream> {
        None
    }

    /// The same connection on the runtime of the caller, where readiness then needs no word between threads.
    ///
    /// # Errors
    /// When the runtime has no room for it; the connection is reset.
    fn rehome(self: Box<Self>) -> io::Result<Box<dyn Duplex>>;
}

/// A change to an open connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// The most that is sent per second, headers included; `None`: as much as its congestion control lets through.
    Rate(Option<BitRate>),
    /// Bytes that may wait to be sent.
    SendBuffer(u64),
    /// Of these, bytes that may wait without having been sent once; `None`: as many as there is room for. Beyond them a write finds
    /// no room, and what is written later can still go elsewhere.
    Unsent(Option<u64>),
    /// Bytes that may wait to be read.
    ReceiveBuffer(u64),
    /// Congestion control of what this end sends.
    CongestionControl(crate::CongestionControl),
}

/// What protects a hop's bytes, the least first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Security {
    /// Nothing does: anyone on the path can read, alter and inject.
    #[default]
    None,
    /// The ends have proved who they are, and their handshake was protected; the bytes after it are not.
    Auth,
    /// All is encrypted, and the end that was connected to has proved who it is; the other one too, unless this end was told to
    /// take those who have not ([`Credentials::open`](crate::credentials::Credentials::open)).
    Encrypt,
}

impl Security {
    /// As configurations and reports name it.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Auth => "auth",
            Self::Encrypt => "encrypt",
        }
    }
}

/// What is known of the other end of a connection beside the bytes that came from there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OtherEnd {
    /// It has not ended its side, as far as that has come here.
    Open,
    /// It has ended its side, perhaps behind bytes that nobody has read yet. It may be there and listen.
    Ended,
    /// There is no connection any more: it was reset, has failed, or both sides have ended. On a pair the other end may also have closed
    /// in peace.
    Gone,
}
