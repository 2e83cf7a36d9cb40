//! One connection, as its owner and the driver share it.

use super::Hub;
use phoebus_proto::udt::{CloseReason, Connection};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Duration;
use tokio::sync::Notify;

/// A connection.
#[derive(Debug)]
pub(in crate::udt) struct Link {
    pub(in crate::udt) hub: Arc<Hub>,
    pub(in crate::udt) socket: u32,
    pub(in crate::udt) remote: SocketAddr,
    state: Mutex<State>,
    /// Told when the connection has ended.
    pub(in crate::udt) ended: Notify,
}

/// What both change.
#[derive(Debug)]
pub(in crate::udt) struct State {
    pub(in crate::udt) connection: Connection,
    /// The address of this end, once it is known.
    pub(in crate::udt) local: Option<IpAddr>,
    /// When the driver looks at the connection next; zero while it does, or is on its way.
    pub(in crate::udt) wakeup: Duration,
    pub(in crate::udt) reader: Option<Waker>,
    pub(in crate::udt) writer: Option<Waker>,
    /// What the system said that ended the connection.
    pub(in crate::udt) fault: Option<i32>,
}

/// Who is to be woken, when the state is no longer locked.
#[derive(Debug, Default)]
pub(in crate::udt) struct Wakers {
    reader: Option<Waker>,
    writer: Option<Waker>,
    ended: bool,
}

impl Link {
    pub(in crate::udt) fn new(hub: Arc<Hub>, connection: Connection, local: Option<IpAddr>) -> Self {
        let (socket, remote) = (connection.socket(), connection.remote());
        let state = State { connection, local, wakeup: Duration::ZERO, reader: None, writer: None, fault: None };
        Self { hub, socket, remote, state: Mutex::new(state), ended: Notify::new() }
    }

    /// The state, for the driver, or to look at.
    pub(in crate::udt) fn state(&self) -> MutexGuard<'_, State> {
        // The engine keeps its own order, whatever a panic has interrupted.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the state, and sends the driver if there is now something to do before it comes by itself.
    pub(in crate::udt) fn change<T>(&self, change: impl FnOnce(&mut State, Duration) -> T) -> T {
        let now = self.hub.now();
        let mut state = self.state();
        let result = change(&mut state, now);
        let is_due = state.connection.poll_timeout().is_some_and(|at| at < state.wakeup);
        if is_due {
            state.wakeup = Duration::ZERO;
        }
        drop(state);
        if is_due {
            self.hub.kick(self.socket);
        }
        result
    }

    pub(in crate::udt) fn wake(&self, wakers: Wakers) {
        [wakers.reader, wakers.writer].into_iter().flatten().for_each(Waker::wake);
        if wakers.ended {
            self.ended.notify_waiters();
        }
    }
}

impl State {
    /// Whether a read finds something: bytes, or how the connection has failed.
    pub(in crate::udt) fn is_readable(&self) -> bool {
        !self.connection.chunk().is_empty() || self.connection.closed().is_some()
    }

    /// Whether a write finds enough room to be worth it, or how the connection has failed.
    pub(in crate::udt) fn is_writable(&self) -> bool {
        self.connection.is_roomy() || self.connection.closed().is_some()
    }

    /// Those whose wait is over.
    pub(in crate::udt) fn wakers(&mut self) -> Wakers {
        let reader = if self.reader.is_some() && self.is_readable() { self.reader.take() } else { None };
        let writer = if self.writer.is_some() && self.is_writable() { self.writer.take() } else { None };
        Wakers { reader, writer, ended: self.connection.closed().is_some() }
    }

    /// How the connection has failed, if it has.
    pub(in crate::udt) fn failure(&self) -> Option<io::Error> {
        let reason = self.connection.closed()?;
        let errno = self.fault.unwrap_or(match reason {
            CloseReason::Local => libc::ECONNABORTED,
            CloseReason::Peer => libc::ECONNRESET,
            CloseReason::Stuck { .. } => libc::EMSGSIZE,
            CloseReason::Refused(_) => libc::ECONNREFUSED,
            CloseReason::ConnectTimeout(_) | CloseReason::Silence(_) | CloseReason::Lingered(_) => libc::ETIMEDOUT,
        });
        Some(io::Error::from_raw_os_error(errno))
    }

    /// Ends the connection because of what the system says.
    pub(in crate::udt) fn fail(&mut self, now: Duration, error: &io::Error) {
        self.fault.get_or_insert(error.raw_os_error().unwrap_or(libc::EIO));
        self.connection.abort(now);
    }
}
