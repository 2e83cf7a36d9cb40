//! Turns a library with blocking calls into a transport (U9, U10, U11): the library stays tiny, threads and buffers are here.
//!
//! - The traits [`Driver`], [`Connection`] and [`Listener`] are what such a library looks like. `crate::driver` implements them
//!   for shared libraries.
//! - [`WrapBlock`] is the transport that is made of one. `listener` and `duplex` are its two other halves.
//! - `incoming` and `outgoing` are the bounded buffers between a connection's threads and its user: one side blocks, the other
//!   polls.
//!
//! # Threads
//!
//! Each connection has a thread that reads and one that writes. The threads that XIO's wrapblock takes from a pool (U10) are
//! held for as long as a call blocks, so that as many idle readers as the pool has threads would stop everyone else for
//! good. What is bounded instead is the number of connections ([`Limits::connections`]): one beyond it is refused with a
//! sentence when it is dialled, and waits in the library's own queue when it is accepted.
//!
//! # Endings
//!
//! A connection is handed over to its writing thread when it is dropped. This thread delivers what is left if the connection was
//! disarmed, interrupts the reading thread, waits for it, and closes; only then is the connection's place free again. So
//! nothing that blocks runs on a runtime's thread, and nothing is closed that another thread is using. A connect whose
//! time is up is interrupted in the same way. Where the library cannot be interrupted, its thread ends when the call
//! does, keeps its place until then, and whatever it has connected is aborted.

mod duplex;
mod fault;
mod incoming;
mod listener;
mod outgoing;
mod places;
mod transport;

pub use fault::Fault;
pub use transport::WrapBlock;

use crate::stats::Stats;
use phoebus_proto::units::ByteSize;
use std::fmt::Debug;
use std::net::SocketAddr;
use std::sync::{Arc, MutexGuard};
use std::task::Waker;
use std::time::Duration;

/// A library with blocking calls.
pub trait Driver: Debug + Send + Sync {
    /// As configurations, reports and logs name it.
    fn name(&self) -> &'static str;

    /// What it can do.
    fn abilities(&self) -> Abilities;

    /// Whether it has this option, and, with `live`, takes it on an open connection.
    fn has_option(&self, name: &str, live: bool) -> bool;

    /// A connection that is not connected yet, with all `settings` checked and made.
    ///
    /// # Errors
    /// When a setting does not fit, or the library lacks something.
    fn open(&self, settings: &[Setting]) -> Result<Arc<dyn Connection>, Fault>;

    /// Listens; accepted connections have the settings.
    ///
    /// # Errors
    /// When the address cannot be had, or a setting does not fit.
    fn listen(&self, addr: SocketAddr, settings: &[Setting]) -> Result<Arc<dyn Listener>, Fault>;
}

/// What a driver's connections can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Abilities {
    /// One side can end while the other goes on.
    pub half_close: bool,
    /// An end of stream is the peer's own, and a failure, the death of its process included, is told from it. Without it the
    /// end of a connection is an error, and sessions between gateways are framed.
    pub true_ends: bool,
}

/// An option with its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting {
    /// The option's name.
    pub name: String,
    /// Its value, as the driver expects it.
    pub value: String,
}

/// A connection of a blocking library. Of [`connect`](Connection::connect), [`write`](Connection::write),
/// [`shutdown_write`](Connection::shutdown_write) and [`finish`](Connection::finish) one is called at a time; beside it
/// [`read`](Connection::read), and everything else from any thread. Dropped, it is closed: as a failure, unless `finish` has
/// succeeded.
pub trait Connection: Debug + Send + Sync {
    /// Connects, blocking; once.
    ///
    /// # Errors
    /// When nobody answers there.
    fn connect(&self, to: SocketAddr, limit: Duration) -> Result<(), Fault>;

    /// Reads what is there, and waits until something is. 0: the end of the peer's stream, or, without
    /// [true ends](Abilities::true_ends), of the connection.
    ///
    /// # Errors
    /// When the connection has failed or was interrupted. A fault that [says so](Fault::is_again) is asked again.
    fn read(&self, buffer: &mut [u8]) -> Result<usize, Fault>;

    /// Writes at least one byte, and waits until that fits.
    ///
    /// # Errors
    /// As [`read`](Connection::read).
    fn write(&self, bytes: &[u8]) -> Result<usize, Fault>;

    /// Ends this side's stream. Called only where the driver [has half-close](Abilities::half_close).
    ///
    /// # Errors
    /// When the connection has failed.
    fn shutdown_write(&self) -> Result<(), Fault>;

    /// Waits until what was written needs nothing more than that the connection is closed, which then looks like an end.
    ///
    /// # Errors
    /// When the connection has failed, or `limit` is over.
    fn finish(&self, limit: Duration) -> Result<(), Fault>;

    /// Makes blocked calls return and later ones fail.
    fn interrupt(&self);

    /// Says whether the connection has failed, although nobody reads.
    ///
    /// # Errors
    /// How it failed.
    fn check(&self) -> Result<(), Fault>;

    /// How much of what was written the peer has not acknowledged; its unit is the library's.
    ///
    /// # Errors
    /// When the connection has failed.
    fn pending(&self) -> Result<u64, Fault>;

    /// Changes an option.
    ///
    /// # Errors
    /// When the value does not fit.
    fn set(&self, setting: &Setting) -> Result<(), Fault>;

    /// What the library has counted.
    ///
    /// # Errors
    /// When the connection is gone.
    fn stats(&self) -> Result<Stats, Fault>;

    /// This end.
    ///
    /// # Errors
    /// When the connection is gone.
    fn local_addr(&self) -> Result<SocketAddr, Fault>;

    /// The other end.
    ///
    /// # Errors
    /// When the connection is gone.
    fn peer_addr(&self) -> Result<SocketAddr, Fault>;
}

/// A blocking library's listener. Dropped, it is closed.
pub trait Listener: Debug + Send + Sync {
    /// Waits for the next connection.
    ///
    /// # Errors
    /// A lack of descriptors, say, or an interruption.
    fn accept(&self) -> Result<Arc<dyn Connection>, Fault>;

    /// Makes a blocked accept return and later ones fail.
    fn interrupt(&self);

    /// The address that is listened on, with the port that was chosen for 0.
    ///
    /// # Errors
    /// When the library does not say.
    fn local_addr(&self) -> Result<SocketAddr, Fault>;
}

/// What a wrapped library may take of the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Connections that may exist at a time, those that are being made or closed among them. Each has two threads; 512 by
    /// default, which is far below the threads that a user may have on any system.
    pub connections: usize,
    /// Bytes that may wait between user and library, for each connection and direction, where the profile leaves its
    /// buffers to the transport. 2 MiB by default: the library has buffers of its own that suit the path, these only cover
    /// the time until a thread runs.
    pub buffer: ByteSize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { connections: 512, buffer: ByteSize(2 << 20) }
    }
}

/// Wakes the task that waits for a change of `state`, without the lock that it will want.
fn wake<S>(mut state: MutexGuard<'_, S>, waker: impl FnOnce(&mut S) -> &mut Option<Waker>) {
    let waker = waker(&mut state).take();
    drop(state);
    if let Some(waker) = waker {
        waker.wake();
    }
}
