//! State that the owners of a port, its connections and its driver share.

mod link;

pub(in crate::udt) use link::{Link, State};

use crate::datagram::Socket;
use crate::sys::TooLong;
use phoebus_proto::udt::{self, Endpoint};
use rustix::event::{EventfdFlags, eventfd};
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, mpsc};

/// The shared state of a port.
#[derive(Debug)]
pub(super) struct Hub {
    pub(super) socket: Socket,
    /// The origin of all times.
    began: Instant,
    accepting: Mutex<Accepting>,
    requests: Mutex<DriverRequests>,
    /// An eventfd that wakes the driver.
    pub(super) wake_fd: OwnedFd,
    /// Number of connections that have not ended, or have not told their peer yet.
    pub(super) unsettled: AtomicUsize,
    pub(super) settled: Notify,
    /// Bytes a second that all connections bring whose packets may gather in the socket's buffer.
    pub(super) gathering: AtomicU64,
}

/// Where new connections are accepted.
#[derive(Debug)]
pub(super) struct Accepting {
    pub(super) endpoint: Endpoint,
    pub(super) acceptor: Option<mpsc::Sender<Arc<Link>>>,
}

/// Requests for the driver's next round.
#[derive(Debug, Default)]
pub(super) struct DriverRequests {
    pub(super) new: Vec<Arc<Link>>,
    /// Connections that became due earlier than planned.
    pub(super) scheduled: Vec<u32>,
    pub(super) stop: bool,
    /// Whether the driver has ended.
    pub(super) dead: bool,
}

impl Hub {
    /// Binds a socket, without a driver yet.
    pub(super) fn bind(addr: SocketAddr) -> io::Result<Self> {
        let mut seed = [0; 32];
        getrandom::fill(&mut seed).map_err(|error| io::Error::other(error.to_string()))?;
        Ok(Self {
            // UDT cannot reduce its packet size on an open connection: if the path's MTU shrinks, its packets are
            // fragmented.
            socket: Socket::bind(addr, TooLong::Fragmented)?,
            began: Instant::now(),
            accepting: Mutex::new(Accepting { endpoint: Endpoint::new(seed), acceptor: None }),
            requests: Mutex::default(),
            wake_fd: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            unsettled: AtomicUsize::new(0),
            settled: Notify::new(),
            gathering: AtomicU64::new(0),
        })
    }

    /// The time since the origin.
    pub(super) fn now(&self) -> Duration {
        self.began.elapsed()
    }

    pub(super) fn accepting(&self) -> MutexGuard<'_, Accepting> {
        // No holder of this lock can leave the data inconsistent by a panic.
        self.accepting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn requests(&self) -> MutexGuard<'_, DriverRequests> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands a new connection to the driver.
    pub(super) fn register(
        self: &Arc<Self>,
        connection: udt::Connection,
        local: Option<std::net::IpAddr>,
    ) -> io::Result<Arc<Link>> {
        let link = Arc::new(Link::new(self.clone(), connection, local));
        let mut requests = self.requests();
        if requests.dead {
            return Err(io::Error::other("the thread that drives UDT has died"));
        }
        self.unsettled.fetch_add(1, Ordering::AcqRel);
        requests.new.push(link.clone());
        drop(requests);
        self.wake_driver();
        Ok(link)
    }

    /// Makes the driver process a connection at once.
    pub(super) fn schedule(&self, socket: u32) {
        let mut requests = self.requests();
        requests.scheduled.push(socket);
        let first = requests.scheduled.len() == 1;
        drop(requests);
        if first {
            self.wake_driver();
        }
    }

    /// Records that a connection has ended and has told its peer as well as it can.
    pub(super) fn settle(&self) {
        if self.unsettled.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.settled.notify_waiters();
        }
    }

    /// Wakes the driver.
    pub(super) fn wake_driver(&self) {
        // The counter cannot overflow: the driver resets it whenever it is not zero.
        let _ = rustix::io::write(&self.wake_fd, &1u64.to_ne_bytes());
    }
}
