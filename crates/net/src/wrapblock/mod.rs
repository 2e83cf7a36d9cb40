//! Turns a library with blocking calls into a transport (U9, U10, U11). The library stays tiny: threads and buffers are here.
//!
//! - The library implements the traits [`Driver`], [`Connection`] and [`Listener`]; `crate::driver` does so for shared
//!   libraries.
//! - [`WrapBlock`] is the transport made from it; `listener` and `duplex` are its accepting side and its connections.
//! - `incoming` and `outgoing` are the bounded buffers between a connection's threads and its user: one side blocks, the
//!   other polls.
//!
//! # Threads
//!
//! Each connection has a reading and a writing thread. XIO's wrapblock takes threads from a pool (U10) and holds them for as
//! long as a call blocks, so that as many idle readers as the pool has threads would block everyone else for good. Here,
//! the number of connections is bounded instead ([`Limits::connections`]): dialling one beyond it fails with a message, and
//! an incoming one waits in the library's own queue.
//!
//! # Closing
//!
//! Dropping a connection hands it to its writing thread. The thread delivers what is left if the connection was disarmed,
//! interrupts the reading thread, waits for it, and closes; only then does it release the connection's place. So no blocking
//! call runs on a runtime's thread, and nothing is closed while another thread uses it. A connect that times out is
//! interrupted in the same way. If the library cannot be interrupted, its thread ends when the call returns, keeps its
//! place until then, and aborts whatever it has connected.

mod duplex;
mod fault;
mod incoming;
mod listener;
mod outgoing;
mod permits;
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
    /// The name used in configurations, reports and logs.
    fn name(&self) -> &'static str;

    /// The capabilities of its connections.
    fn abilities(&self) -> Abilities;

    /// Whether the library has this option and, if `live`, can change it on an open connection.
    fn has_option(&self, name: &str, live: bool) -> bool;

    /// Creates an unconnected connection with all `settings` checked and applied.
    ///
    /// # Errors
    /// When the library rejects a setting or lacks a resource.
    fn open(&self, settings: &[Setting]) -> Result<Arc<dyn Connection>, Fault>;

    /// Listens on `addr`; accepted connections have the settings.
    ///
    /// # Errors
    /// When the address is not available, or the library rejects a setting.
    fn listen(&self, addr: SocketAddr, settings: &[Setting]) -> Result<Arc<dyn Listener>, Fault>;
}

/// The capabilities of a driver's connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Abilities {
    /// Whether one direction can end while the other continues (half-close).
    pub half_close: bool,
    /// Whether an end of stream provably comes from the peer and differs from a failure, including the death
    /// of the peer's process. Without it, every end of a connection is an error, and sessions between
    /// gateways are framed.
    pub authenticated_close: bool,
}

/// An option with its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting {
    /// The name of the option.
    pub name: String,
    /// The value, in the driver's form.
    pub value: String,
}

/// A connection of a blocking library. Of [`connect`](Connection::connect), [`write`](Connection::write),
/// [`shutdown_write`](Connection::shutdown_write) and [`finish`](Connection::finish), only one is called at a
/// time; [`read`](Connection::read) may run concurrently with it, and all other methods on any thread.
/// Dropping a connection closes it: as a failure, unless `finish` has succeeded.
pub trait Connection: Debug + Send + Sync {
    /// Connects, and blocks until connected. Called once.
    ///
    /// # Errors
    /// When the peer does not answer or refuses.
    fn connect(&self, to: SocketAddr, limit: Duration) -> Result<(), Fault>;

    /// Reads what has arrived, and blocks until something has. 0 means the end of the peer's stream or,
    /// without [authenticated close](Abilities::authenticated_close), of the connection.
    ///
    /// # Errors
    /// When the connection has failed or was interrupted. The caller repeats the call if [`Fault::is_again`]
    /// is true.
    fn read(&self, buffer: &mut [u8]) -> Result<usize, Fault>;

    /// Writes at least one byte, and blocks until that fits.
    ///
    /// # Errors
    /// As [`read`](Connection::read).
    fn write(&self, bytes: &[u8]) -> Result<usize, Fault>;

    /// Ends this side's stream. Called only if the driver [has half-close](Abilities::half_close).
    ///
    /// # Errors
    /// When the connection has failed.
    fn shutdown_write(&self) -> Result<(), Fault>;

    /// Blocks until all written bytes are delivered and closing the connection will look like a clean end to
    /// the peer.
    ///
    /// # Errors
    /// When the connection has failed, or `limit` has passed.
    fn finish(&self, limit: Duration) -> Result<(), Fault>;

    /// Makes blocked calls return and later calls fail.
    fn interrupt(&self);

    /// Checks whether the connection has failed, independently of reads.
    ///
    /// # Errors
    /// The failure.
    fn check(&self) -> Result<(), Fault>;

    /// The amount of written data that the peer has not acknowledged, in the library's own unit.
    ///
    /// # Errors
    /// When the connection has failed.
    fn pending(&self) -> Result<u64, Fault>;

    /// Changes an option.
    ///
    /// # Errors
    /// When the library rejects the value.
    fn set(&self, setting: &Setting) -> Result<(), Fault>;

    /// The library's statistics.
    ///
    /// # Errors
    /// When the connection is gone.
    fn stats(&self) -> Result<Stats, Fault>;

    /// The local address.
    ///
    /// # Errors
    /// When the connection is gone.
    fn local_addr(&self) -> Result<SocketAddr, Fault>;

    /// The peer's address.
    ///
    /// # Errors
    /// When the connection is gone.
    fn peer_addr(&self) -> Result<SocketAddr, Fault>;
}

/// A blocking library's listener. Dropping it closes it.
pub trait Listener: Debug + Send + Sync {
    /// Blocks until the next connection.
    ///
    /// # Errors
    /// A lack of descriptors, for example, or an interruption.
    fn accept(&self) -> Result<Arc<dyn Connection>, Fault>;

    /// Makes a blocked accept return and later ones fail.
    fn interrupt(&self);

    /// The address that it listens on, with the port that was chosen for port 0.
    ///
    /// # Errors
    /// When the library does not tell.
    fn local_addr(&self) -> Result<SocketAddr, Fault>;
}

/// Bounds on the resources that a wrapped library uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Most connections at a time, including those being opened or closed. Each has two threads. 512 by
    /// default, far below the number of threads that any system permits a user.
    pub connections: usize,
    /// Bytes that may wait between user and library, for each connection and direction, if the profile leaves
    /// its buffers to the transport. 2 MiB by default: the library has its own buffers for the path, and
    /// these only cover the time until a thread runs.
    pub buffer: ByteSize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { connections: 512, buffer: ByteSize(2 << 20) }
    }
}

/// Wakes the task that waits for a change of `state`, after releasing the lock that the task will need.
fn wake<S>(mut state: MutexGuard<'_, S>, waker: impl FnOnce(&mut S) -> &mut Option<Waker>) {
    let waker = waker(&mut state).take();
    drop(state);
    if let Some(waker) = waker {
        waker.wake();
    }
}
