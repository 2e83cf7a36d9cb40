//! Bytes of the control channel, over a connection of any transport.

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

/// How long the other end may take to take that it was the end.
const FAREWELL: Duration = Duration::from_secs(5);

/// A control connection. Dropped, it is reset; [`Self::close`] ends it in peace.
#[derive(Debug)]
pub struct Link {
    stream: Stream,
    tls: Option<Tls>,
}

impl Link {
    /// One over `stream`.
    pub fn new(stream: Stream) -> Self {
        Self { stream, tls: None }
    }

    /// The other end.
    ///
    /// # Errors
    /// When the connection is gone.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.stream.peer_addr()
    }

    /// This end.
    ///
    /// # Errors
    /// When the connection is gone.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.stream.local_addr()
    }

    /// How long an answer of the other end's host takes, with what it varies by; nothing where that is not measured.
    pub(crate) fn round_trip(&self) -> Duration {
        let micros = self.stream.stats().map_or(0, |stats| stats.rtt_us.saturating_add(4 * stats.rtt_var_us));
        Duration::from_micros(micros)
    }

    /// Goes on under TLS, of which this end is the server (`AUTH TLS`, RFC 4217). What came before it has to be gone: whoever
    /// sent more in clear may be another.
    ///
    /// # Errors
    /// The ends do not agree, or not in time.
    pub async fn protect_as_server(&mut self, config: Arc<ServerConfig>, patience: Duration) -> io::Result<()> {
        self.tls = Some(Tls::accept(config, Tickets::AtOnce, &self.stream, patience).await?);
        Ok(())
    }

    /// The same as the client of one who has to be `name`.
    ///
    /// # Errors
    /// The ends do not agree, or not in time.
    pub async fn protect_as_client(
        &mut self,
        config: Arc<ClientConfig>,
        name: ServerName<'static>,
        patience: Duration,
    ) -> io::Result<()> {
        self.tls = Some(Tls::connect(config, name, &self.stream, patience).await?);
        Ok(())
    }

    /// Reads what is there, or waits for it; 0 at the end. Cancel safe.
    ///
    /// # Errors
    /// When the connection has failed.
    pub async fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        // One that is never waited for gives way to others now and then.
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

    /// Reads what is there; 0 at the end.
    ///
    /// # Errors
    /// `WouldBlock` when nothing is there yet; otherwise the connection has failed.
    pub fn try_read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        if let Some(tls) = &mut self.tls {
            return tls.try_read(&self.stream, room);
        }
        self.stream.try_read(room)
    }

    /// Whether nothing has come that was not read, as far as the kernel knows; of what comes under TLS only reading tells.
    pub(crate) fn is_quiet(&self) -> bool {
        self.tls.is_some() || self.stream.is_quiet().unwrap_or(false)
    }

    /// What the kernel knows of the other end, though not all that it has said was read; nothing where it does not tell.
    pub(crate) fn other_end(&self) -> Option<OtherEnd> {
        self.stream.other_end()
    }

    /// Reads what is there, even if nobody has told the runtime of it yet; 0 at the end. Cancel safe.
    ///
    /// # Errors
    /// `WouldBlock` when nothing is there; otherwise the connection has failed.
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

    /// Writes all of `bytes`, unless the other end takes nothing for as long as `stall`.
    ///
    /// # Errors
    /// `TimedOut`, or how the connection failed.
    pub async fn write(&mut self, mut bytes: &[u8], stall: Duration) -> io::Result<()> {
        // Each answer may be to one of very many commands that are there already.
        consume_budget().await;
        if let Some(tls) = &mut self.tls {
            return tls.write(&self.stream, bytes, stall).await;
        }
        while !bytes.is_empty() {
            match self.stream.try_write(bytes, false) {
                Ok(n) => bytes = &bytes[n..],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    timeout(stall, self.stream.writable())
                        .await
                        .map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Says a last thing, and that it is the end, without waiting for anything: what the kernel does not take now is not said.
    pub fn part(mut self, bytes: &[u8]) {
        self.say_last(bytes);
    }

    /// The same of one that is about to be dropped; nothing can follow.
    pub fn say_last(&mut self, bytes: &[u8]) {
        match &mut self.tls {
            Some(tls) => tls.part(&self.stream, bytes),
            // It is the end either way.
            None => drop(self.stream.try_write(bytes, false)),
        }
        if self.stream.shutdown_write().is_ok() {
            self.stream.disarm();
        }
    }

    /// Says a last thing, which has the other end end the connection, and ends it then: whoever says more to one that has closed, or
    /// leaves what it says unread, has the kernel reset the connection, which looks like a failure to whoever relays it.
    ///
    /// # Errors
    /// As of [`Self::write`]; when the connection has failed.
    pub(crate) async fn take_leave(&mut self, bytes: &[u8], stall: Duration) -> io::Result<()> {
        self.write(bytes, stall).await?;
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

    /// Ends it: what was written is delivered, and then its end.
    ///
    /// # Errors
    /// When the connection has failed.
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
    async fn what_the_kernel_has_is_there_whether_the_runtime_knows_of_it_or_not() {
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
    async fn the_kernel_knows_of_an_end_behind_what_was_not_read() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        let mut link = Link::new(tcp::connect(at, &Profile::default(), Duration::from_secs(60)).await.unwrap());
        let mut peer = listener.accept().unwrap().0;
        peer.write_all(b"bye").unwrap();
        link.stream.readable().await.unwrap();
        assert_eq!(link.other_end(), Some(OtherEnd::Open));
        peer.shutdown(std::net::Shutdown::Write).unwrap();
        until(&link, OtherEnd::Ended).await;
        // What nobody reads any more is answered with a reset.
        drop(peer);
        link.write(b"there?", Duration::from_secs(60)).await.unwrap();
        until(&link, OtherEnd::Gone).await;
    }
}
