//! Accepting connections: they have shown that they receive at their address before they get here.

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

/// A port that accepts connections. Dropped, it accepts no more; connections that were accepted go on.
#[derive(Debug)]
pub struct Listener {
    port: Port,
    queue: Mutex<mpsc::Receiver<Arc<Link>>>,
}

/// A connection that was accepted. Dropped, it is shut down.
#[derive(Debug)]
pub struct Accepted(Connection);

impl Port {
    /// Connections that wait to be accepted; further ones are not answered, and ask again.
    const BACKLOG: usize = 1024;

    /// Accepts connections from now on. A port has one listener; a new one takes the place of the old one.
    ///
    /// # Errors
    /// [`Error::Listen`] if the profile has settings that UDT cannot have.
    pub fn listen(&self, profile: &Profile) -> Result<Listener, Error> {
        let addr = self.local_addr();
        let failed = |source| Error::Listen { addr, source };
        let config = Arc::new(settings::config(profile, addr, None).map_err(failed)?);
        let (sender, receiver) = mpsc::channel(Self::BACKLOG);
        let mut desk = self.hub().desk();
        desk.endpoint.listen(Some(config)).map_err(|error| failed(io::Error::other(error)))?;
        desk.acceptor = Some(sender);
        drop(desk);
        Ok(Listener::new(self.clone(), receiver))
    }
}

impl Listener {
    pub(super) fn new(port: Port, queue: mpsc::Receiver<Arc<Link>>) -> Self {
        Self { port, queue: Mutex::new(queue) }
    }

    /// The port, on which connections can be made as well.
    pub fn port(&self) -> &Port {
        &self.port
    }

    /// The next connection; cancel safe.
    ///
    /// # Errors
    /// When the port has failed, or another listener has taken its place.
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
        let mut desk = self.port.hub().desk();
        // Only its own: another listener may have taken its place.
        if desk.acceptor.as_ref().is_some_and(mpsc::Sender::is_closed) {
            desk.acceptor = None;
            // Nothing to check in no settings.
            let _ = desk.endpoint.listen(None);
        }
        drop(desk);
        // Whoever waits to be accepted is not left waiting.
        while let Ok(link) = self.queue.get_mut().try_recv() {
            drop(Connection::new(link));
        }
    }
}

impl Accepted {
    /// The connection, with the whole receive buffer of its profile.
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
    /// UDT has settled everything before the connection is accepted. What the peer may fill is its profile's handshake buffer,
    /// until the stream is [widened](Stream::widen).
    fn handshake(self: Box<Self>) -> Boxed<'static, io::Result<Stream>> {
        Box::pin(async { Ok(self.0.into()) })
    }
}
