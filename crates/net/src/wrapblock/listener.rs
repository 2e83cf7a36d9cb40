//! A blocking library's listener, with its accepting thread.

use super::duplex::{self, STACK, Setup, Wrapped};
use super::fault::Fault;
use super::permits::Permits;
use super::{Connection, Listener as Blocking};
use crate::stream::Stream;
use crate::transport::{self, Boxed, Pending};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;
use tokio::sync::{Mutex, mpsc};

/// Most accepted connections in the queue: enough until a task runs. Further ones wait in the library's own
/// queue.
const WAITING: usize = 16;
/// Pause after a failed accept: a lack of descriptors, for example, does not pass at once.
const PAUSE: Duration = Duration::from_millis(20);

/// A listener. Dropping it closes it and the connections that nobody has accepted.
#[derive(Debug)]
pub(super) struct Listener {
    blocking: Arc<dyn Blocking>,
    accepted: Mutex<mpsc::Receiver<io::Result<(Accepted, SocketAddr)>>>,
    over: Arc<AtomicBool>,
    note: Option<String>,
}

/// An accepted connection, whose threads already run.
#[derive(Debug)]
struct Accepted(Wrapped);

impl Listener {
    pub(super) fn start(blocking: Arc<dyn Blocking>, setup: Setup, places: Arc<Permits>) -> Result<Self, Fault> {
        let (sender, receiver) = mpsc::channel(WAITING);
        let over = Arc::new(AtomicBool::new(false));
        let note = setup.note.clone();
        let acceptor = Acceptor { blocking: blocking.clone(), setup, places, over: over.clone() };
        thread::Builder::new()
            .name(format!("{}-a", acceptor.setup.name))
            .stack_size(STACK)
            .spawn(move || acceptor.run(&sender))?;
        Ok(Self { blocking, accepted: Mutex::new(receiver), over, note })
    }
}

/// The state of the accepting thread.
struct Acceptor {
    blocking: Arc<dyn Blocking>,
    setup: Setup,
    places: Arc<Permits>,
    over: Arc<AtomicBool>,
}

impl Acceptor {
    fn run(self, sender: &mpsc::Sender<io::Result<(Accepted, SocketAddr)>>) {
        while !self.over.load(Ordering::Relaxed) {
            let accepted = match self.blocking.accept() {
                Ok(connection) => match self.take(connection) {
                    Some(accepted) => accepted,
                    None => return,
                },
                Err(fault) if fault.is_again() => continue,
                Err(_) if self.over.load(Ordering::Relaxed) => return,
                Err(fault) => {
                    thread::sleep(PAUSE);
                    Err(fault)
                }
            };
            if sender.blocking_send(accepted.map_err(io::Error::from)).is_err() {
                return;
            }
        }
    }

    /// Waits for a free place and starts the threads of a connection. `None` when the listener was dropped.
    fn take(&self, connection: Arc<dyn Connection>) -> Option<Result<(Accepted, SocketAddr), Fault>> {
        let place = self.places.wait(|| self.over.load(Ordering::Relaxed))?;
        let started = connection.peer_addr().and_then(|from| {
            let (wrapped, writer) = duplex::start(connection, self.setup.clone(), place)?;
            thread::Builder::new().name(format!("{}-w", self.setup.name)).stack_size(STACK).spawn(writer)?;
            Ok((Accepted(wrapped), from))
        });
        Some(started)
    }
}

impl transport::Listener for Listener {
    fn accept(&self) -> Boxed<'_, io::Result<(Box<dyn Pending>, SocketAddr)>> {
        Box::pin(async {
            match self.accepted.lock().await.recv().await {
                Some(Ok((accepted, from))) => Ok((Box::new(accepted) as Box<dyn Pending>, from)),
                Some(Err(error)) => Err(error),
                // The accepting thread has panicked inside the library: no connection will come.
                None => std::future::pending().await,
            }
        })
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.blocking.local_addr()?)
    }

    fn note(&self) -> Option<&str> {
        self.note.as_deref()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        self.blocking.interrupt();
    }
}

impl Pending for Accepted {
    /// The library completes its handshake before it accepts.
    fn handshake(self: Box<Self>) -> Boxed<'static, io::Result<Stream>> {
        Box::pin(async { Ok(self.0.into()) })
    }
}
