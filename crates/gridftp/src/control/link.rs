//! The control connection, over any transport.

use crate::tls::{Tickets, Tls};
use phoebus_net::{OtherEnd, Stream};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ServerConfig};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::coop::consume_budget;
use tokio::time::timeout;

/// Longest wait for the peer to acknowledge the end.
const FAREWELL: Duration = Duration::from_secs(5);

/// A control connection. Dropping it resets it; [`Self::close`] closes it cleanly.
#[derive(Debug)]
pub struct Link {
    stream: Stream,
    tls: Option<Tls>,
}

impl Link {
    /// Takes over `stream`.
    pub fn new(stream: Stream) -> Self {
        Self { stream, tls: None }
    }

    /// The peer's address.
    ///
    /// # Errors
    /// The connection is gone.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.stream.peer_addr()
    }

    /// This end's address.
    ///
    /// # Errors
    /// The connection is gone.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.stream.local_addr()
    }

    /// The round trip and its variance, or zero if the transport does not measure it.
    pub(crate) fn round_trip(&self) -> Duration {
        let micros = self.stream.stats().map_or(0, |stats| stats.rtt_us.saturating_add(4 * stats.rtt_var_us));
        Duration::from_micros(micros)
    }

    /// Starts TLS as the server (`AUTH TLS`, RFC 4217). Nothing may have been read ahead, since it may come from an
    /// attacker.
    ///
    /// # Errors
    /// The handshake fails, or takes too long.
    pub async fn protect_as_server(&mut self, config: Arc<ServerConfig>, reply_timeout: Duration) -> io::Result<()> {
        self.tls = Some(Tls::accept(config, Tickets::AtOnce, &self.stream, reply_timeout).await?);
        Ok(())
    }

    /// Starts TLS as the client of the server `name`.
    ///
    /// # Errors
    /// The handshake fails, or takes too long.
    pub async fn protect_as_client(
        &mut self,
        config: Arc<ClientConfig>,
        name: ServerName<'static>,
        reply_timeout: Duration,
    ) -> io::Result<()> {
        self.tls = Some(Tls::connect(config, name, &self.stream, reply_timeout).await?);
        Ok(())
    }

    /// Reads, waiting for data. 0 at the end. Cancel safe.
    ///
    /// # Errors
    /// The connection has failed.
    pub async fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        // A connection that is always ready yields to others now and then.
        consume_budget().await;
        if let Some(tls) = &mut self.tls {
            return tls.read(&self.stream, room).await;
        }
        loop {
            match self.stream.try_read(room) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.stream.readable().await?,
                other => return other,
            }
        }
    }

    /// Reads without waiting. 0 at the end.
    ///
    /// # Errors
    /// `WouldBlock` if there is nothing; otherwise the connection has failed.
    pub fn try_read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        if let Some(tls) = &mut self.tls {
            return tls.try_read(&self.stream, room);
        }
        self.stream.try_read(room)
    }

    /// Whether the kernel has no unread data. Under TLS only a read shows whether that is data of the peer.
    pub(crate) fn is_quiet(&self) -> bool {
        self.tls.is_some() || self.stream.is_quiet().unwrap_or(false)
    }

    /// What the kernel knows about the peer's end, behind unread data. `None` if it cannot tell.
    pub(crate) fn other_end(&self) -> Option<OtherEnd> {
        self.stream.other_end()
    }

    /// Reads without waiting, even if the runtime has not been notified yet. 0 at the end. Cancel safe.
    ///
    /// # Errors
    /// `WouldBlock` if there is nothing; otherwise the connection has failed.
    pub(crate) async fn read_there(&mut self, room: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.try_read(room) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && !self.stream.is_quiet()? => {
                    self.stream.readable().await?;
                }
                other => return other,
            }
        }
    }

    /// Writes all of `bytes`, unless the peer accepts nothing for `stall_timeout`.
    ///
    /// # Errors
    /// `TimedOut`, or the connection's error.
    pub async fn write(&mut self, mut bytes: &[u8], stall_timeout: Duration) -> io::Result<()> {
        // Many commands may already have been received, so a loop of replies must yield.
        consume_budget().await;
        if let Some(tls) = &mut self.tls {
            return tls.write(&self.stream, bytes, stall_timeout).await;
        }
        while !bytes.is_empty() {
            match self.stream.try_write(bytes, false) {
                Ok(n) => bytes = &bytes[n..],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    timeout(stall_timeout, self.stream.writable())
                        .await
                        .map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Sends `bytes` and the end without waiting. What the kernel does not accept now is dropped.
    pub fn part(mut self, bytes: &[u8]) {
        self.say_last(bytes);
    }

    /// The same for a connection that is about to be dropped.
    pub fn say_last(&mut self, bytes: &[u8]) {
        match &mut self.tls {
            Some(tls) => tls.part(&self.stream, bytes),
            // The outcome does not matter.
            None => drop(self.stream.try_write(bytes, false)),
        }
        if self.stream.shutdown_write().is_ok() {
            self.stream.disarm();
        }
    }

    /// Sends `bytes`, waits for the peer to close, then closes. Data that arrives after a close, or stays unread, makes
    /// the kernel reset the connection, which a gateway would report as a failure.
    ///
    /// # Errors
    /// As [`Self::write`]; or the connection has failed.
    pub(crate) async fn take_leave(&mut self, bytes: &[u8], stall_timeout: Duration) -> io::Result<()> {
        self.write(bytes, stall_timeout).await?;
        let mut room = [0; 1024];
        loop {
            match self.stream.try_read(&mut room) {
                Ok(0) => break,
                Ok(_) => consume_budget().await,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.stream.readable().await?,
                Err(error) => return Err(error),
            }
        }
        self.stream.shutdown_write()?;
        self.stream.disarm();
        Ok(())
    }

    /// Closes: written data is delivered, then the end.
    ///
    /// # Errors
    /// The connection has failed.
    pub async fn close(mut self) -> io::Result<()> {
        if let Some(tls) = &mut self.tls {
            tls.close(&self.stream, FAREWELL).await?;
        }
        self.stream.shutdown_write()?;
        self.stream.close();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use phoebus_net::{Profile, tcp};
    use std::io::Write;
    use std::net::TcpListener;

    #[tokio::test]
    async fn kernel_data_is_seen_without_the_runtime() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        let mut link = Link::new(tcp::connect(at, &Profile::default(), Duration::from_secs(60)).await.unwrap());
        let (mut peer, mut room) = (listener.accept().unwrap().0, [0; 10]);
        let nothing = |read: io::Result<usize>| read.unwrap_err().kind() == io::ErrorKind::WouldBlock;
        assert!(nothing(link.read_there(&mut room).await) && link.is_quiet());
        peer.write_all(b"bye").unwrap();
        drop(peer);
        assert!(nothing(link.try_read(&mut room)) && !link.is_quiet());
        assert_eq!((link.read_there(&mut room).await.unwrap(), &room[..3]), (3, &b"bye"[..]));
        assert_eq!(link.read_there(&mut room).await.unwrap(), 0);
    }

    async fn until(link: &Link, state: OtherEnd) {
        while link.other_end() != Some(state) {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn kernel_reports_an_end_behind_unread_data() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        let mut link = Link::new(tcp::connect(at, &Profile::default(), Duration::from_secs(60)).await.unwrap());
        let mut peer = listener.accept().unwrap().0;
        peer.write_all(b"bye").unwrap();
        link.stream.readable().await.unwrap();
        assert_eq!(link.other_end(), Some(OtherEnd::Open));
        peer.shutdown(std::net::Shutdown::Write).unwrap();
        until(&link, OtherEnd::Ended).await;
        // Unread data makes the kernel answer with a reset.
        drop(peer);
        link.write(b"there?", Duration::from_secs(60)).await.unwrap();
        until(&link, OtherEnd::Gone).await;
    }
}
