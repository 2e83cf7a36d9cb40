//! Accepts connections. The peers have proved by then that they receive at their address.

use super::connection::Connection;
use super::hub::Link;
use super::port::Port;
use super::settings;
use crate::error::Error;
use crate::profile::Profile;
use crate::stream::Stream;
use crate::transport::{self, Boxed, Pending};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::sync::{Mutex, mpsc};

/// A port that accepts connections. Dropping it stops that; accepted connections stay open.
#[derive(Debug)]
pub struct Listener {
    port: Port,
    queue: Mutex<mpsc::Receiver<Arc<Link>>>,
}

/// An accepted connection. Dropping it sends a shutdown.
#[derive(Debug)]
pub struct Accepted(Connection);

impl Port {
    /// Most connections that wait to be accepted; further requests stay unanswered, and the peers repeat
    /// them.
    const BACKLOG: usize = 1024;

    /// Accepts connections from now on. A port has one listener; a new one replaces the old one.
    ///
    /// # Errors
    /// [`Error::Listen`] if the profile has settings that UDT does not support.
    pub fn listen(&self, profile: &Profile) -> Result<Listener, Error> {
        let addr = self.local_addr();
        let failed = |source| Error::Listen { addr, source };
        let config = Arc::new(settings::config(profile, addr, None).map_err(failed)?);
        let (sender, receiver) = mpsc::channel(Self::BACKLOG);
        let mut accepting = self.hub().accepting();
        accepting.endpoint.listen(Some(config)).map_err(|error| failed(io::Error::other(error)))?;
        accepting.acceptor = Some(sender);
        drop(accepting);
        Ok(Listener::new(self.clone(), receiver))
    }
}

impl Listener {
    pub(super) fn new(port: Port, queue: mpsc::Receiver<Arc<Link>>) -> Self {
        Self { port, queue: Mutex::new(queue) }
    }

    /// The port, over which connections can be made as well.
    pub fn port(&self) -> &Port {
        &self.port
    }

    /// Waits for the next connection. Cancel safe.
    ///
    /// # Errors
    /// When the port has failed, or another listener has replaced this one.
    pub async fn accept(&self) -> io::Result<(Accepted, SocketAddr)> {
        let link = self.queue.lock().await.recv().await;
        let link = link.ok_or_else(|| io::Error::other("this UDT listener accepts no more"))?;
        let from = link.remote;
        Ok((Accepted(Connection::new(link)), from))
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.queue.get_mut().close();
        let mut accepting = self.port.hub().accepting();
        // Only if no other listener has replaced this one.
        if accepting.acceptor.as_ref().is_some_and(mpsc::Sender::is_closed) {
            accepting.acceptor = None;
            // `None` has no settings that could be invalid.
            let _ = accepting.endpoint.listen(None);
        }
        drop(accepting);
        // Close connections that wait to be accepted, so that their peers are told.
        while let Ok(link) = self.queue.get_mut().try_recv() {
            drop(Connection::new(link));
        }
    }
}

impl Accepted {
    /// Returns the connection, with the whole receive buffer of its profile available to the peer.
    pub fn into_stream(self) -> Stream {
        let stream = Stream::from(self.0);
        stream.widen();
        stream
    }
}

impl transport::Listener for Listener {
    fn accept(&self) -> Boxed<'_, io::Result<(Box<dyn Pending>, SocketAddr)>> {
        Box::pin(async {
            let (accepted, from) = self.accept().await?;
            Ok((Box::new(accepted) as Box<dyn Pending>, from))
        })
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.port.local_addr())
    }

    fn note(&self) -> Option<&str> {
        self.port.hub().socket.note().map(|note| &**note)
    }
}

impl Pending for Accepted {
    /// UDT's handshake completes before `accept` returns the connection. The peer may fill the profile's
    /// handshake buffer, until the stream is [widened](Stream::widen).
    fn handshake(self: Box<Self>) -> Boxed<'static, io::Result<Stream>> {
        Box::pin(async { Ok(self.0.into()) })
    }
}
