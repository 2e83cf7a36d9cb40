//! A connection of any transport: reads, writes, ends of either side, errors while nobody reads, statistics (S19).

use crate::credentials::Identity;
use crate::duplex::{Boxed, Change, Duplex, OtherEnd, Pulse, Security};
use crate::stats::Stats;
use crate::waiting::Waiting;
use phoebus_proto::session::Code;
use std::io;
use std::net::SocketAddr;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::net::TcpStream;

/// A connection. Dropped, it is reset, unless it was [disarmed](Stream::disarm).
#[derive(Debug)]
pub struct Stream(Box<dyn Duplex>);

impl<D: Duplex + 'static> From<D> for Stream {
    fn from(connection: D) -> Self {
        Self(Box::new(connection))
    }
}

impl Stream {
    /// The same connection on the runtime of the caller: readiness then needs no word between threads.
    ///
    /// # Errors
    /// When the runtime has no room for it; the connection is reset.
    pub fn rehome(self) -> io::Result<Self> {
        Ok(Self(self.0.rehome()?))
    }

    /// What the profile asked for and was not to be had, as a sentence.
    pub fn note(&self) -> Option<&str> {
        self.0.note()
    }

    /// What protects the bytes.
    pub fn security(&self) -> Security {
        self.0.security()
    }

    /// Who the other end has proved to be.
    pub fn identity(&self) -> Option<&Identity> {
        self.0.identity()
    }

    /// Whether its end of stream and its reset can be trusted to be the peer's, and told apart. Where they cannot, sessions
    /// between gateways are framed.
    pub fn has_true_ends(&self) -> bool {
        self.0.has_true_ends()
    }

    /// Whether a stream ends here at all. Where none does, as over bare UDT, whatever the other end does to end it fails the
    /// connection with `ECONNRESET`, as its death does: only who knows how much was to come can tell the two apart.
    pub fn has_ends(&self) -> bool {
        self.0.has_ends()
    }

    /// Whether what was written goes on to be delivered when the stream is dropped after its end, as a kernel sees to it for TCP.
    /// Where it does not, whoever needs to know that it was delivered has to wait for it.
    pub fn outlives(&self) -> bool {
        self.0.outlives()
    }

    /// The other end.
    ///
    /// # Errors
    /// When the connection is gone.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.0.peer_addr()
    }

    /// This end.
    ///
    /// # Errors
    /// When the connection is gone.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }

    /// What the transport knows about the connection.
    ///
    /// # Errors
    /// When the connection is gone.
    pub fn stats(&self) -> io::Result<Stats> {
        self.0.stats()
    }

    /// Changes a setting of the open connection.
    ///
    /// # Errors
    /// `Unsupported` where the transport cannot.
    pub fn set(&self, change: Change) -> io::Result<()> {
        self.0.set(change)
    }

    /// Reads what is there; 0 at the end of the peer's stream.
    ///
    /// # Errors
    /// `WouldBlock` when nothing is there yet; otherwise the connection has failed.
    pub fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.try_read(buffer)
    }

    /// Writes as much as fits. With `more`, what follows may be waited for before a short segment is sent.
    ///
    /// # Errors
    /// `WouldBlock` when nothing fits; otherwise the connection has failed.
    pub fn try_write(&self, bytes: &[u8], more: bool) -> io::Result<usize> {
        self.0.try_write(bytes, more)
    }

    /// Whether nothing is there to be read, no end and no error either: the state of an idle connection.
    ///
    /// # Errors
    /// When the connection has failed.
    pub fn is_quiet(&self) -> io::Result<bool> {
        self.0.is_quiet()
    }

    /// What the kernel knows of the other end, whether or not all that came from there has been read; `None` where it does not tell.
    pub fn other_end(&self) -> Option<OtherEnd> {
        self.0.other_end()
    }

    /// The socket whose bytes are the stream's bytes as they are, to be spliced.
    pub(crate) fn socket(&self) -> Option<&TcpStream> {
        self.0.socket()
    }

    /// Ready when a read may find something. One task at a time may wait so.
    pub fn poll_read_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.poll_read_ready(cx)
    }

    /// Ready when a write may find room. One task at a time may wait so.
    pub fn poll_write_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.poll_write_ready(cx)
    }

    /// Waits until a read may find something; cancel safe.
    ///
    /// # Errors
    /// When the connection has failed.
    pub async fn readable(&self) -> io::Result<()> {
        std::future::poll_fn(|cx| self.poll_read_ready(cx)).await
    }

    /// Waits until a write may find room; cancel safe.
    ///
    /// # Errors
    /// When the connection has failed.
    pub async fn writable(&self) -> io::Result<()> {
        std::future::poll_fn(|cx| self.poll_write_ready(cx)).await
    }

    /// Waits until the connection fails, and says how. Nothing else ends this wait: not data, not the end of a stream.
    /// This is how a reset passes a relay that is not reading, because the other side is full. It may be waited for beside
    /// reading and writing.
    pub fn failed(&self) -> Boxed<'_, io::Error> {
        self.0.failed()
    }

    /// Ends this side's stream; the peer's goes on (half-close).
    ///
    /// # Errors
    /// When the connection has failed.
    pub fn shutdown_write(&self) -> io::Result<()> {
        self.0.shutdown_write()
    }

    /// Where only the handshake is protected ([`Security::Auth`]), ends that protection: what this end writes from here on goes as
    /// it is. Both ends call it, each after the last message that it is to protect. Does nothing on other connections.
    ///
    /// # Errors
    /// When the connection has failed.
    pub fn unprotect(&self) -> io::Result<()> {
        self.0.unprotect()
    }

    /// Lets the peer of an accepted connection fill the whole receive buffer of its profile: until then it may fill
    /// [`Profile::handshake_buffer`](crate::Profile::handshake_buffer) over UDT, and over QUIC what the listener grants to all such
    /// streams of a connection, since both keep received bytes in memory of this process. Does nothing on other connections.
    pub fn widen(&self) {
        self.0.widen();
    }

    /// How many bytes the peer has not acknowledged, the end of the stream counting as one.
    ///
    /// # Errors
    /// How the connection failed, if it has.
    pub fn unacknowledged(&self) -> io::Result<usize> {
        self.0.unacknowledged()
    }

    /// Waits until the peer has acknowledged all bytes and the end of the stream; gives up when `patience` passes
    /// without an acknowledgement of more. A peer that has stopped reading may start again much later, so a relay has
    /// `Duration::MAX`. Cancel safe.
    ///
    /// # Errors
    /// `TimedOut`, or how the connection failed.
    pub async fn delivered(&self, patience: Duration) -> io::Result<()> {
        let mut waiting = Waiting::new(patience);
        while let Some(pause) = waiting.next(self.unacknowledged()?)? {
            tokio::time::sleep(pause).await;
        }
        Ok(())
    }

    /// With what code it is reset when it is dropped, on a transport whose resets carry one.
    pub fn blame(&self, code: Code) {
        self.0.blame(code);
    }

    /// Where this is a stream of a connection that others share, has no more come to that: the next one gets a new connection, and
    /// this one ends with its last stream. Does nothing on other transports.
    pub fn retire(&self) {
        self.0.retire();
    }

    /// What tells whether the other end of its connection is there; `None` on a transport that does not tell.
    pub fn pulse(&self) -> Option<Box<dyn Pulse>> {
        self.0.pulse()
    }

    /// Whether what the other end has proved still counts, if it has proved anything ([`Proof`](crate::credentials::Proof)).
    pub fn is_current(&self) -> bool {
        self.identity().is_none_or(|identity| identity.proof.counts())
    }

    /// Waits until it does not; for ever where nothing was proved. Cancel safe.
    pub async fn lapsed(&self) {
        match self.identity() {
            Some(identity) => identity.proof.lapsed().await,
            None => std::future::pending().await,
        }
    }

    /// Lets the connection end in peace when it is dropped. Only for one whose both directions have ended and were
    /// forwarded, or which carries no session: bytes that are still to be acknowledged go on being delivered.
    pub fn disarm(&self) {
        self.0.disarm();
    }

    /// [Disarms](Stream::disarm) and drops.
    pub fn close(self) {
        self.disarm();
    }
}
