//! A connection for tests that records the read thresholds that a relay sets.

use phoebus_net::transport::{Boxed, Change, Duplex, DuplexControl, DuplexIo, DuplexTelemetry};
use phoebus_net::{Stats, Stream};
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

/// The thresholds, in bytes, in the order in which they were set.
pub(super) type Thresholds = Arc<Mutex<Vec<u64>>>;

/// A connection that behaves as the one in it.
#[derive(Debug)]
pub(super) struct Recorded {
    inner: Stream,
    thresholds: Thresholds,
}

impl Recorded {
    /// Wraps `inner`.
    pub(super) fn new(inner: Stream) -> (Self, Thresholds) {
        let thresholds = Thresholds::default();
        (Self { inner, thresholds: thresholds.clone() }, thresholds)
    }
}

impl DuplexIo for Recorded {
    fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.inner.try_read(buffer)
    }

    fn try_write(&self, bytes: &[u8], more: bool) -> io::Result<usize> {
        self.inner.try_write(bytes, more)
    }

    fn poll_read_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.inner.poll_read_ready(cx)
    }

    fn poll_write_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.inner.poll_write_ready(cx)
    }

    fn is_quiet(&self) -> io::Result<bool> {
        self.inner.is_quiet()
    }

    fn shutdown_write(&self) -> io::Result<()> {
        self.inner.shutdown_write()
    }

    fn unacknowledged(&self) -> io::Result<usize> {
        self.inner.unacknowledged()
    }
}

impl DuplexControl for Recorded {
    fn failed(&self) -> Boxed<'_, io::Error> {
        self.inner.failed()
    }

    fn disarm(&self) {
        self.inner.disarm();
    }

    fn set(&self, change: Change) -> io::Result<()> {
        if let Change::ReadThreshold(threshold) = change {
            self.thresholds.lock().expect("no test panics with it").push(threshold.bytes);
        }
        self.inner.set(change)
    }

    fn move_to_runtime(self: Box<Self>) -> io::Result<Box<dyn Duplex>> {
        Ok(self)
    }
}

impl DuplexTelemetry for Recorded {
    fn stats(&self) -> io::Result<Stats> {
        self.inner.stats()
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.inner.local_addr()
    }

    fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.inner.peer_addr()
    }
}
