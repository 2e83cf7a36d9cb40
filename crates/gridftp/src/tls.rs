//! TLS on a connection that has begun without it (RFC 4217, RFC 8446): control and data channels of FTPS.
//!
//! The end of what the other side sends is its close_notify. A connection that ends without one was cut, by whomever.

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

/// How much is encrypted at once: some records, so that one write carries them.
const BATCH: usize = 64 << 10;

/// How often more is taken from a connection in search of bytes, without a pause.
const TAKES: usize = 16;

/// How long a client waits for what a server says last.
const LAST: Duration = Duration::from_secs(2);

/// One end of TLS.
#[derive(Debug)]
pub(crate) struct Tls {
    connection: Box<Connection>,
    /// Whether tickets wait until this end says something.
    held: bool,
}

/// When a server gives out tickets, by which the client can resume the session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tickets {
    /// As soon as the ends have agreed.
    AtOnce,
    /// Before the first thing that it says, or before its end. A client that only sends closes its connection with what it has not read,
    /// and the kernel then resets it: what it sent may be lost.
    BeforeWords,
}

/// A stream as rustls takes it.
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
    /// Agrees with the other end of `stream` as the server.
    pub(crate) async fn accept(
        config: Arc<ServerConfig>,
        tickets: Tickets,
        stream: &Stream,
        patience: Duration,
    ) -> io::Result<Self> {
        let connection = ServerConnection::new(config).map_err(io::Error::other)?;
        let held = tickets == Tickets::BeforeWords;
        Self { connection: Box::new(connection.into()), held }.agreed(stream, patience).await
    }

    /// The same as the client of one who has to be `name`.
    pub(crate) async fn connect(
        config: Arc<ClientConfig>,
        name: ServerName<'static>,
        stream: &Stream,
        patience: Duration,
    ) -> io::Result<Self> {
        let connection = ClientConnection::new(config, name).map_err(io::Error::other)?;
        Self { connection: Box::new(connection.into()), held: false }.agreed(stream, patience).await
    }

    async fn agreed(mut self, stream: &Stream, patience: Duration) -> io::Result<Self> {
        let agree = async {
            while self.connection.is_handshaking() {
                self.flush(stream, patience).await?;
                if self.connection.is_handshaking() && self.more(stream).await? == 0 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
            }
            // In TLS 1.2 the last word of the handshake may be this end's.
            self.held &= self.connection.protocol_version() == Some(ProtocolVersion::TLSv1_3);
            if self.held { Ok(()) } else { self.flush(stream, patience).await }
        };
        timeout(patience, agree).await.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
        Ok(self)
    }

    /// Whether the ends have resumed an earlier session, and so are the ends of that one.
    pub(crate) fn has_resumed(&self) -> bool {
        self.connection.handshake_kind() == Some(HandshakeKind::Resumed)
    }

    /// Gives out the tickets that wait, and says that nothing more comes, as far as that goes without waiting.
    pub(crate) fn release(&mut self, stream: &Stream) {
        if self.held {
            self.part(stream, &[]);
        }
    }

    /// Reads what the other end has sent; 0 when it has said that this is the end. Cancel safe.
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

    /// The same without waiting, and without looking for long at records that bring nothing: `WouldBlock` may mean that there are more.
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

    /// Writes all of `bytes`, unless the other end takes none of it for as long as `stall`.
    pub(crate) async fn write(&mut self, stream: &Stream, bytes: &[u8], stall: Duration) -> io::Result<()> {
        for batch in bytes.chunks(BATCH) {
            let mut left = batch;
            while !left.is_empty() {
                let n = self.connection.writer().write(left)?;
                left = &left[n..];
                self.flush(stream, stall).await?;
            }
        }
        Ok(())
    }

    /// Says that nothing more comes from this end.
    pub(crate) async fn close(&mut self, stream: &Stream, stall: Duration) -> io::Result<()> {
        self.connection.send_close_notify();
        self.flush(stream, stall).await
    }

    /// As the client, takes what the server says up to its end, when nothing more goes there: its tickets come while this end
    /// only writes, and without them the next connection could resume nothing.
    pub(crate) async fn take_tickets(&mut self, stream: &Stream) {
        if matches!(*self.connection, Connection::Client(_)) {
            let rest = async { while self.more(stream).await.is_ok_and(|n| n > 0) {} };
            // A server that keeps the connection open has nothing more to say.
            let _ = timeout(LAST, rest).await;
        }
    }

    /// Says `bytes` and that nothing more comes, as far as that goes without waiting.
    pub(crate) fn part(&mut self, stream: &Stream, bytes: &[u8]) {
        if self.connection.writer().write_all(bytes).is_ok() {
            self.connection.send_close_notify();
            while self.connection.wants_write() && self.connection.write_tls(&mut Wire(stream)).is_ok_and(|n| n > 0) {}
        }
    }

    async fn flush(&mut self, stream: &Stream, stall: Duration) -> io::Result<()> {
        self.held &= self.connection.is_handshaking();
        while self.connection.wants_write() {
            match self.connection.write_tls(&mut Wire(stream)) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => room(stream, stall).await?,
                Err(error) => return Err(error),
                Ok(_) => {}
            }
        }
        Ok(())
    }

    /// Takes records that are there, or waits for them; 0 at the end of the connection.
    async fn more(&mut self, stream: &Stream) -> io::Result<usize> {
        // Records may bring nothing, one after the other.
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
            // What tells the other end of it; it may not arrive.
            let _ = self.connection.write_tls(&mut Wire(stream));
            return Err(io::Error::new(io::ErrorKind::InvalidData, error));
        }
        // What TLS itself answers, as that it does not begin again, is not to wait until something is said.
        // Where it cannot go now it goes with what is, and there may be something to read where nothing can be written.
        while !self.held
            && self.connection.wants_write()
            && self.connection.write_tls(&mut Wire(stream)).is_ok_and(|n| n > 0)
        {}
        Ok(len)
    }
}
