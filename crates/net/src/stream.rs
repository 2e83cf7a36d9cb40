//! A connection of any transport: reading, writing, half-close, failure while nobody reads, statistics (S19).

use crate::connection_note::ConnectionNote;
use crate::credentials::Identity;
use crate::duplex::{Boxed, Change, Duplex, OtherEnd, Pulse, Security};
use crate::stats::Stats;
use crate::waiting::Waiting;
use phoebus_proto::session::Code;
use phoebus_proto::session::datagrams::DatagramGrant;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::net::TcpStream;

/// A connection. Dropping it resets it, unless it was [disarmed](Stream::disarm).
#[derive(Debug)]
pub struct Stream {
    duplex: Box<dyn Duplex>,
    datagrams: Option<Box<DatagramRoute>>,
}

/// Where datagrams beside a session go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DatagramRoute {
    /// The gateway's address for datagrams.
    pub to: SocketAddr,
    /// What the gateway has granted.
    pub grant: DatagramGrant,
}

impl<D: Duplex + 'static> From<D> for Stream {
    fn from(connection: D) -> Self {
        Self { duplex: Box::new(connection), datagrams: None }
    }
}

impl Stream {
    /// Moves the connection to the caller's runtime, so that readiness needs no wake-up across threads.
    ///
    /// # Errors
    /// When the runtime cannot register the socket; the connection is reset.
    pub fn move_to_runtime(self) -> io::Result<Self> {
        Ok(Self { duplex: self.duplex.move_to_runtime()?, ..self })
    }

    /// The same connection, as that of a session which has datagrams beside it.
    #[must_use]
    pub fn with_datagrams(self, route: Option<DatagramRoute>) -> Self {
        Self { datagrams: route.map(Box::new), ..self }
    }

    /// Where datagrams beside its session go, if it has any.
    pub fn datagrams(&self) -> Option<&DatagramRoute> {
        self.datagrams.as_deref()
    }

    /// Which settings of the profile are not in force, as a sentence.
    pub fn note(&self) -> Option<&str> {
        self.duplex.note()
    }

    /// What protects the bytes on this connection.
    pub fn security(&self) -> Security {
        self.duplex.security()
    }

    /// The identity that the peer has proved.
    pub fn identity(&self) -> Option<&Identity> {
        self.duplex.identity()
    }

    /// Where the owner may note something about the connection, for other streams on it. `None` on a transport with one stream for each
    /// connection.
    pub fn connection_note(&self) -> Option<Arc<ConnectionNote>> {
        self.duplex.connection_note()
    }

    /// What the TLS of the connection exports for this purpose alone (`tls-exporter`, RFC 9266): both ends have the same 32 bytes,
    /// and no other connection has them. `None` on a connection without TLS.
    pub fn channel_binding(&self) -> Option<[u8; 32]> {
        self.duplex.channel_binding()
    }

    /// Whether an end of stream and a reset provably come from the peer and can be distinguished. Where they
    /// cannot, sessions between gateways are framed.
    pub fn has_authenticated_close(&self) -> bool {
        self.duplex.has_authenticated_close()
    }

    /// Whether the transport has an end of stream. Where it has none, as with bare UDT, the peer's close
    /// fails the connection with `ECONNRESET`, just as its death does: only a reader that knows the expected
    /// length can distinguish the two.
    pub fn has_end_of_stream(&self) -> bool {
        self.duplex.has_end_of_stream()
    }

    /// Whether written bytes are still delivered after the stream is dropped, as the kernel does for TCP.
    /// Where they are not, the owner must wait for delivery before dropping it.
    pub fn delivers_after_drop(&self) -> bool {
        self.duplex.delivers_after_drop()
    }

    /// The peer's address.
    ///
    /// # Errors
    /// When the connection is gone.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.duplex.peer_addr()
    }

    /// The local address.
    ///
    /// # Errors
    /// When the connection is gone.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.duplex.local_addr()
    }

    /// The transport's statistics of the connection.
    ///
    /// # Errors
    /// When the connection is gone.
    pub fn stats(&self) -> io::Result<Stats> {
        self.duplex.stats()
    }

    /// Changes a setting of the open connection.
    ///
    /// # Errors
    /// `Unsupported` where the transport does not support the change.
    pub fn set(&self, change: Change) -> io::Result<()> {
        self.duplex.set(change)
    }

    /// Reads what has arrived; 0 at the end of the peer's stream.
    ///
    /// # Errors
    /// `WouldBlock` when nothing has arrived yet; otherwise the connection has failed.
    pub fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.duplex.try_read(buffer)
    }

    /// Writes as much as fits. With `more`, the transport may hold back a short segment until further bytes
    /// follow.
    ///
    /// # Errors
    /// `WouldBlock` when nothing fits; otherwise the connection has failed.
    pub fn try_write(&self, bytes: &[u8], more: bool) -> io::Result<usize> {
        self.duplex.try_write(bytes, more)
    }

    /// Whether a read would block: no bytes, no end of stream and no error are pending. This is the state of
    /// an idle connection.
    ///
    /// # Errors
    /// When the connection has failed.
    pub fn is_quiet(&self) -> io::Result<bool> {
        self.duplex.is_quiet()
    }

    /// What the kernel knows of the peer, independently of what has been read; `None` where the transport
    /// does not tell.
    pub fn other_end(&self) -> Option<OtherEnd> {
        self.duplex.other_end()
    }

    /// The TCP socket, if the stream's bytes are exactly the socket's bytes and can be spliced.
    pub(crate) fn socket(&self) -> Option<&TcpStream> {
        self.duplex.socket()
    }

    /// How many of `wanted` bytes may be spliced to the [`socket`](Self::socket) now.
    pub(crate) fn room(&self, wanted: usize) -> io::Result<usize> {
        self.duplex.room(wanted)
    }

    /// Ready when a read may succeed. Only one task at a time may wait.
    pub fn poll_read_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.duplex.poll_read_ready(cx)
    }

    /// Ready when a write may succeed. Only one task at a time may wait.
    pub fn poll_write_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.duplex.poll_write_ready(cx)
    }

    /// Waits until a read may succeed. Cancel safe.
    ///
    /// # Errors
    /// When the connection has failed.
    pub async fn readable(&self) -> io::Result<()> {
        std::future::poll_fn(|cx| self.poll_read_ready(cx)).await
    }

    /// Waits until a write may succeed. Cancel safe.
    ///
    /// # Errors
    /// When the connection has failed.
    pub async fn writable(&self) -> io::Result<()> {
        std::future::poll_fn(|cx| self.poll_write_ready(cx)).await
    }

    /// Waits until the connection fails, and returns the failure. Neither data nor an end of stream completes
    /// the wait. A relay that is not reading, because the other side is full, learns of a reset this way. The
    /// wait may run concurrently with reads and writes.
    pub fn failed(&self) -> Boxed<'_, io::Error> {
        self.duplex.failed()
    }

    /// Ends this side's stream; the peer's stays open (half-close).
    ///
    /// # Errors
    /// When the connection has failed.
    pub fn shutdown_write(&self) -> io::Result<()> {
        self.duplex.shutdown_write()
    }

    /// Ends the protection of what this end writes, on a connection whose handshake alone is protected
    /// ([`Security::Auth`]): later bytes are sent as they are. Both ends call it, each after the last message
    /// to protect. Does nothing on other connections.
    ///
    /// # Errors
    /// When the connection has failed.
    pub fn unprotect(&self) -> io::Result<()> {
        self.duplex.unprotect()
    }

    /// Lets the peer of an accepted connection fill the profile's whole receive buffer. Until then it may
    /// fill only [`Profile::handshake_buffer`](crate::Profile::handshake_buffer) over UDT, and over QUIC the
    /// share that the listener grants to all such streams of a connection, because both keep received bytes
    /// in this process's memory. Does nothing on other connections.
    pub fn widen(&self) {
        self.duplex.widen();
    }

    /// The number of bytes that the peer has not acknowledged; the end of the stream counts as one.
    ///
    /// # Errors
    /// The failure of the connection, if it has failed.
    pub fn unacknowledged(&self) -> io::Result<usize> {
        self.duplex.unacknowledged()
    }

    /// Waits until the peer has acknowledged all bytes and the end of the stream. Gives up when the peer
    /// acknowledges nothing more for as long as `time_limit`. A peer that has stopped reading may resume much
    /// later, so a relay passes `Duration::MAX`. Cancel safe.
    /// # Errors
    /// `TimedOut`, or the failure of the connection.
    pub async fn delivered(&self, time_limit: Duration) -> io::Result<()> {
        let mut waiting = Waiting::new(time_limit);
        while let Some(pause) = waiting.next(self.unacknowledged()?)? {
            tokio::time::sleep(pause).await;
        }
        Ok(())
    }

    /// Sets the code of the reset that dropping the stream sends, on a transport whose resets carry one.
    pub fn set_reset_code(&self, code: Code) {
        self.duplex.set_reset_code(code);
    }

    /// Stops placing new streams on the connection that this stream shares with others: the next stream gets
    /// a new connection, and this one closes with its last stream. Does nothing on other transports.
    pub fn retire(&self) {
        self.duplex.retire();
    }

    /// A handle that tells whether the peer is alive; `None` on a transport that does not tell.
    pub fn pulse(&self) -> Option<Box<dyn Pulse>> {
        self.duplex.pulse()
    }

    /// Whether the peer's identity is still valid ([`Proof`](crate::credentials::Proof)); true if it has
    /// proved none.
    pub fn is_current(&self) -> bool {
        self.identity().is_none_or(|identity| identity.proof.counts())
    }

    /// Waits until the peer's identity is no longer valid; for ever if it has proved none. Cancel safe.
    pub async fn lapsed(&self) {
        match self.identity() {
            Some(identity) => identity.proof.lapsed().await,
            None => std::future::pending().await,
        }
    }

    /// Makes a drop close the connection in order instead of resetting it: bytes that await acknowledgement
    /// are still delivered. Only for a stream whose both directions have ended and were forwarded, or one
    /// that carries no session.
    pub fn disarm(&self) {
        self.duplex.disarm();
    }

    /// [Disarms](Stream::disarm) and drops.
    pub fn close(self) {
        self.disarm();
    }
}
