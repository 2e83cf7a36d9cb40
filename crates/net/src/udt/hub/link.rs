//! One connection, shared by its owner and the driver.

use super::Hub;
use phoebus_proto::udt::{CloseReason, Connection};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Duration;
use tokio::sync::Notify;

/// A shared connection.
#[derive(Debug)]
pub(in crate::udt) struct Link {
    pub(in crate::udt) hub: Arc<Hub>,
    pub(in crate::udt) socket: u32,
    pub(in crate::udt) remote: SocketAddr,
    state: Mutex<State>,
    /// Notified when the connection has ended.
    pub(in crate::udt) ended: Notify,
}

/// The part that both sides change.
#[derive(Debug)]
pub(in crate::udt) struct State {
    pub(in crate::udt) connection: Connection,
    /// The local address, once it is known.
    pub(in crate::udt) local: Option<IpAddr>,
    /// When the driver next processes the connection; zero while it does or is about to.
    pub(in crate::udt) wakeup: Duration,
    pub(in crate::udt) reader: Option<Waker>,
    pub(in crate::udt) writer: Option<Waker>,
    /// Packets that must be ready before the connection is readable; at least 1. Of short packets that is less than the
    /// owner has asked for.
    pub(in crate::udt) read_threshold: u32,
    /// For how long the driver may leave this connection's packets to the kernel.
    pub(in crate::udt) gathering: Duration,
    /// The bytes a second that it brings meanwhile, which are part of [`Hub::gathering`].
    gathering_rate: u64,
    /// The system error that ended the connection.
    pub(in crate::udt) fault: Option<i32>,
}

/// The tasks to wake after the state is unlocked.
#[derive(Debug, Default)]
pub(in crate::udt) struct Wakers {
    reader: Option<Waker>,
    writer: Option<Waker>,
    ended: bool,
}

impl Link {
    pub(in crate::udt) fn new(hub: Arc<Hub>, connection: Connection, local: Option<IpAddr>) -> Self {
        let (socket, remote) = (connection.socket(), connection.remote());
        let state = State {
            connection,
            local,
            wakeup: Duration::ZERO,
            reader: None,
            writer: None,
            read_threshold: 1,
            gathering: Duration::ZERO,
            gathering_rate: 0,
            fault: None,
        };
        Self { hub, socket, remote, state: Mutex::new(state), ended: Notify::new() }
    }

    /// Locks the state, for the driver or to read it.
    pub(in crate::udt) fn state(&self) -> MutexGuard<'_, State> {
        // The connection's state machine stays consistent even if a panic interrupted the holder.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the state, and wakes the driver if the connection became due earlier than planned.
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
            self.hub.schedule(self.socket);
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
    /// Lets the packets gather for `time`, in which the connection brings `rate` bytes a second. Zero for both: no longer.
    pub(in crate::udt) fn gather(&mut self, hub: &Hub, time: Duration, rate: u64) {
        self.gathering = time;
        let before = std::mem::replace(&mut self.gathering_rate, rate);
        hub.gathering.fetch_add(rate, Ordering::Relaxed);
        hub.gathering.fetch_sub(before, Ordering::Relaxed);
    }

    /// Whether a read returns as many bytes as the owner waits for, or a failure.
    pub(in crate::udt) fn is_readable(&self) -> bool {
        let has_bytes = !self.connection.chunk().is_empty();
        (has_bytes && self.connection.readable_packets() >= self.read_threshold) || self.connection.closed().is_some()
    }

    /// Whether a write finds a worthwhile amount of room, or a failure.
    pub(in crate::udt) fn is_writable(&self) -> bool {
        self.connection.has_ample_room() || self.connection.closed().is_some()
    }

    /// Takes the wakers of tasks whose wait is over.
    pub(in crate::udt) fn wakers(&mut self) -> Wakers {
        let reader = if self.reader.is_some() && self.is_readable() { self.reader.take() } else { None };
        let writer = if self.writer.is_some() && self.is_writable() { self.writer.take() } else { None };
        Wakers { reader, writer, ended: self.connection.closed().is_some() }
    }

    /// The failure of the connection, if it has ended.
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

    /// Ends the connection because of a system error.
    pub(in crate::udt) fn fail(&mut self, now: Duration, error: &io::Error) {
        self.fault.get_or_insert(error.raw_os_error().unwrap_or(libc::EIO));
        self.connection.abort(now);
    }
}
