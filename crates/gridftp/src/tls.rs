//! TLS on an open connection (RFC 4217, RFC 8446): control and data channels of FTPS.
//!
//! The stream ends with close_notify. A connection that ends without it was cut.

use crate::room::room;
use phoebus_net::Stream;
use rustls::pki_types::ServerName;
use rustls::{
    ClientConfig, ClientConnection, Connection, HandshakeKind, ProtocolVersion, ServerConfig, ServerConnection,
};
use std::io::{self, Read, Write};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::coop::consume_budget;
use tokio::time::timeout;

/// Bytes that are encrypted at once: several records, written by one system call.
const BATCH: usize = 64 << 10;

/// Most reads without a pause while records bring no data.
const TAKES: usize = 16;

/// Longest wait of a client for the server's last records.
const LAST: Duration = Duration::from_secs(2);

/// One end of TLS.
#[derive(Debug)]
pub(crate) struct Tls {
    connection: Box<Connection>,
    /// Whether session tickets wait until this end sends.
    held: bool,
}

/// When a server sends session tickets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tickets {
    /// At the end of the handshake.
    AtOnce,
    /// With the first data, or at the end. A client that only sends closes its connection with unread data, which makes
    /// the kernel reset it: data that it sent could be lost.
    BeforeWords,
}

/// Adapts a stream to rustls.
struct Wire<'a>(&'a Stream);

impl Read for Wire<'_> {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        self.0.try_read(room)
    }
}

impl Write for Wire<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.try_write(bytes, false)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Tls {
    /// Performs the handshake as the server.
    pub(crate) async fn accept(
        config: Arc<ServerConfig>,
        tickets: Tickets,
        stream: &Stream,
        reply_timeout: Duration,
    ) -> io::Result<Self> {
        let connection = ServerConnection::new(config).map_err(io::Error::other)?;
        let held = tickets == Tickets::BeforeWords;
        Self { connection: Box::new(connection.into()), held }.agreed(stream, reply_timeout).await
    }

    /// Performs the handshake as the client of the server `name`.
    pub(crate) async fn connect(
        config: Arc<ClientConfig>,
        name: ServerName<'static>,
        stream: &Stream,
        reply_timeout: Duration,
    ) -> io::Result<Self> {
        let connection = ClientConnection::new(config, name).map_err(io::Error::other)?;
        Self { connection: Box::new(connection.into()), held: false }.agreed(stream, reply_timeout).await
    }

    async fn agreed(mut self, stream: &Stream, reply_timeout: Duration) -> io::Result<Self> {
        let agree = async {
            while self.connection.is_handshaking() {
                self.flush(stream, reply_timeout).await?;
                if self.connection.is_handshaking() && self.more(stream).await? == 0 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
            }
            // In TLS 1.2 this end may send the last message of the handshake.
            self.held &= self.connection.protocol_version() == Some(ProtocolVersion::TLSv1_3);
            if self.held { Ok(()) } else { self.flush(stream, reply_timeout).await }
        };
        timeout(reply_timeout, agree).await.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
        Ok(self)
    }

    /// Whether an earlier session was resumed.
    pub(crate) fn has_resumed(&self) -> bool {
        self.connection.handshake_kind() == Some(HandshakeKind::Resumed)
    }

    /// A secret that only the two ends know, for `label` and `context` (RFC 8446, section 7.5).
    pub(crate) fn exported(&self, label: &[u8], context: &[u8]) -> Option<[u8; 32]> {
        self.connection.export_keying_material([0; 32], label, Some(context)).ok()
    }

    /// Sends waiting tickets and close_notify, as far as possible without waiting.
    pub(crate) fn release(&mut self, stream: &Stream) {
        if self.held {
            self.part(stream, &[]);
        }
    }

    /// Reads data. 0 after close_notify. Cancel safe.
    pub(crate) async fn read(&mut self, stream: &Stream, room: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.connection.reader().read(room) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.more(stream).await?;
                }
                other => return other,
            }
        }
    }

    /// The same without waiting. After some records without data, `WouldBlock` does not mean that nothing is there.
    pub(crate) fn try_read(&mut self, stream: &Stream, room: &mut [u8]) -> io::Result<usize> {
        for _ in 0..TAKES {
            match self.connection.reader().read(room) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.take(stream)?;
                }
                other => return other,
            }
        }
        self.connection.reader().read(room)
    }

    /// Writes all of `bytes`, unless the peer accepts nothing for `stall_timeout`.
    pub(crate) async fn write(&mut self, stream: &Stream, bytes: &[u8], stall_timeout: Duration) -> io::Result<()> {
        for batch in bytes.chunks(BATCH) {
            let mut left = batch;
            while !left.is_empty() {
                let n = self.connection.writer().write(left)?;
                left = &left[n..];
                self.flush(stream, stall_timeout).await?;
            }
        }
        Ok(())
    }

    /// Sends close_notify.
    pub(crate) async fn close(&mut self, stream: &Stream, stall_timeout: Duration) -> io::Result<()> {
        self.connection.send_close_notify();
        self.flush(stream, stall_timeout).await
    }

    /// As the client, reads up to the server's close_notify after sending the own: tickets come while this end only
    /// writes, and without them the next connection could not resume.
    pub(crate) async fn take_tickets(&mut self, stream: &Stream) {
        if matches!(*self.connection, Connection::Client(_)) {
            let rest = async { while self.more(stream).await.is_ok_and(|n| n > 0) {} };
            // A server that keeps the connection open will send nothing more.
            let _ = timeout(LAST, rest).await;
        }
    }

    /// After this end has sent its close_notify: reads the peer's. `InvalidData`: the peer has sent more than `most` bytes before it.
    pub(crate) async fn await_close_notify(&mut self, stream: &Stream, most: usize) -> io::Result<()> {
        let mut left = most;
        loop {
            match self.more(stream).await? {
                0 => return Ok(()),
                len => left = left.checked_sub(len).ok_or(io::ErrorKind::InvalidData)?,
            }
        }
    }

    /// Sends `bytes` and close_notify, as far as possible without waiting.
    pub(crate) fn part(&mut self, stream: &Stream, bytes: &[u8]) {
        if self.connection.writer().write_all(bytes).is_ok() {
            self.connection.send_close_notify();
            while self.connection.wants_write() && self.connection.write_tls(&mut Wire(stream)).is_ok_and(|n| n > 0) {}
        }
    }

    async fn flush(&mut self, stream: &Stream, stall_timeout: Duration) -> io::Result<()> {
        self.held &= self.connection.is_handshaking();
        while self.connection.wants_write() {
            match self.connection.write_tls(&mut Wire(stream)) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => room(stream, stall_timeout).await?,
                Err(error) => return Err(error),
                Ok(_) => {}
            }
        }
        Ok(())
    }

    /// Reads records that are there, or waits for them. 0 at the end of the connection.
    async fn more(&mut self, stream: &Stream) -> io::Result<usize> {
        // Several records in succession may have no data.
        consume_budget().await;
        loop {
            match self.take(stream) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => stream.readable().await?,
                other => return other,
            }
        }
    }

    fn take(&mut self, stream: &Stream) -> io::Result<usize> {
        let len = self.connection.read_tls(&mut Wire(stream))?;
        if let Err(error) = self.connection.process_new_packets() {
            // The alert for the peer, which may not arrive.
            let _ = self.connection.write_tls(&mut Wire(stream));
            return Err(io::Error::new(io::ErrorKind::InvalidData, error));
        }
        // Replies of TLS itself, such as the refusal of a renegotiation, do not wait for data. If they cannot be sent
        // now, they go with the next data; reading must go on.
        while !self.held
            && self.connection.wants_write()
            && self.connection.write_tls(&mut Wire(stream)).is_ok_and(|n| n > 0)
        {}
        Ok(len)
    }
}
