//! Bounds what waits unsent in the kernel while a connection has a low rate (S17).
//!
//! The kernel paces by the rate that it has when it sends: after each burst it waits as long as the burst takes at that
//! rate, and a higher rate does not shorten the wait. With a short round trip one burst may have 64 KiB, which at the
//! share of an idle session takes a minute. A burst is no longer than what waits to be sent.

use super::info;
use phoebus_proto::units::BitRate;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::Sleep;

/// Longest burst, as time at the rate.
const BURST: Duration = Duration::from_millis(10);

/// The smallest bound, in bytes: the payload of a segment at Ethernet's usual MTU.
const LEAST: u64 = 1448;

/// The kernel's own bound of a burst, in bytes.
const KERNEL_BURST: u64 = 64 << 10;

/// Bounds of the pause between two looks: the time in which half of the bound is sent.
const PAUSE: [Duration; 2] = [Duration::from_millis(2), Duration::from_millis(100)];

/// The bound of one connection.
#[derive(Debug)]
pub(super) struct UnsentBound {
    /// In bytes per second; `u64::MAX` for none, or for one that needs no bound.
    rate: AtomicU64,
    /// The pause of a writer.
    pause: Mutex<Option<Pin<Box<Sleep>>>>,
}

impl Default for UnsentBound {
    fn default() -> Self {
        Self { rate: AtomicU64::new(u64::MAX), pause: Mutex::default() }
    }
}

impl UnsentBound {
    /// Sets the rate of the connection.
    pub(super) fn set(&self, rate: Option<BitRate>) {
        let rate = rate.map_or(u64::MAX, |rate| rate.0 / 8);
        let is_low = bytes_in(rate, BURST) < KERNEL_BURST;
        self.rate.store(if is_low { rate } else { u64::MAX }, Ordering::Relaxed);
    }

    /// The same bound in another runtime.
    pub(super) fn moved(self) -> Self {
        Self { pause: Mutex::default(), ..self }
    }

    /// How many of `wanted` bytes may be written to `socket` now.
    ///
    /// # Errors
    /// `WouldBlock` for none.
    pub(super) fn room(&self, socket: &TcpStream, wanted: usize) -> io::Result<usize> {
        let rate = self.rate.load(Ordering::Relaxed);
        if rate == u64::MAX {
            return Ok(wanted);
        }
        let most = bytes_in(rate, BURST).max(LEAST);
        // A write to a closed connection tells why it was closed.
        let unsent = info::unsent(socket)?.unwrap_or(0);
        match most.saturating_sub(unsent.into()) {
            0 => Err(io::ErrorKind::WouldBlock.into()),
            room => Ok(wanted.min(usize::try_from(room).unwrap_or(usize::MAX))),
        }
    }

    /// Ready when something may be written.
    pub(super) fn poll_room(&self, socket: &TcpStream, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let Err(error) = self.room(socket, usize::MAX) {
            if error.kind() != io::ErrorKind::WouldBlock {
                return Poll::Ready(Err(error));
            }
            let rate = self.rate.load(Ordering::Relaxed);
            let mut pause = self.pause.lock().unwrap_or_else(PoisonError::into_inner);
            let sleep = pause.get_or_insert_with(|| Box::pin(tokio::time::sleep(pause_at(rate))));
            ready!(sleep.as_mut().poll(cx));
            *pause = None;
        }
        Poll::Ready(Ok(()))
    }
}

fn bytes_in(rate: u64, time: Duration) -> u64 {
    (rate as f64 * time.as_secs_f64()) as u64
}

fn pause_at(rate: u64) -> Duration {
    let half = bytes_in(rate, BURST).max(LEAST) as f64 / 2.0;
    Duration::from_secs_f64(half / rate.max(1) as f64).clamp(PAUSE[0], PAUSE[1])
}
