//! Bounds what waits unsent in the kernel while a connection has a low rate (S17).
//!
//! The kernel paces by the rate that it has when it sends: after each burst it waits as long as the burst takes at that
//! rate, and a higher rate does not shorten the wait. With a short round trip one burst may have 64 KiB, which at the
//! share of an idle session takes a minute. A burst is no longer than what waits to be sent.
//!
//! The bound applies to rates that change while the connection is open, and to writes that ask for room; a rate of the
//! profile is in force from the first segment on.

use super::info;
use phoebus_proto::units::BitRate;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};
use tokio::net::TcpStream;
use tokio::time::Sleep;

/// Longest burst, as time at the rate.
const BURST: Duration = Duration::from_millis(10);

/// The smallest bound, in bytes: the payload of a segment at Ethernet's usual MTU.
const LEAST: u64 = 1448;

/// The kernel's own bound of a burst, in bytes.
const KERNEL_BURST: u64 = 64 << 10;

/// Number of segments at the beginning of a connection that the kernel does not pace.
const UNPACED: u32 = 10;

/// Bounds of the pause between two looks: the time in which half of the bound is sent.
const PAUSE: [Duration; 2] = [Duration::from_millis(2), Duration::from_millis(100)];

/// The bound of one connection.
#[derive(Debug, Default)]
pub(super) struct UnsentBound {
    limit: AtomicU8,
    /// The last of the first segments, which the kernel does not pace: when it was written, and its length.
    last_unpaced: Mutex<Option<(Instant, u64)>>,
    /// Bytes that a writer has for which there was no room.
    refused: AtomicU32,
    /// The pause of a writer.
    pause: Mutex<Option<Pin<Box<Sleep>>>>,
}

/// What is known of the connection's rate, as stored in [`UnsentBound::limit`].
mod limit {
    /// No bound holds.
    pub(super) const HIGH: u8 = 0;
    /// The limit was raised. The kernel's own rate follows only after the next acknowledgement, and the bound holds
    /// until then.
    pub(super) const RAISED: u8 = 1;
    /// The bound holds.
    pub(super) const LOW: u8 = 2;
}

impl UnsentBound {
    /// Sets the limit of the connection's rate.
    pub(super) fn set(&self, rate: Option<BitRate>) {
        if rate.is_some_and(|rate| is_low(rate.0 / 8)) {
            self.limit.store(limit::LOW, Ordering::Relaxed);
        } else {
            // Unless it is low, nothing was bounded.
            let _ = self.limit.compare_exchange(limit::LOW, limit::RAISED, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// The same bound in another runtime.
    pub(super) fn moved(self) -> Self {
        Self { pause: Mutex::default(), ..self }
    }

    /// How many bytes a writer has for which there was no room.
    pub(super) fn refused(&self) -> u32 {
        self.refused.load(Ordering::Relaxed)
    }

    /// How many of `wanted` bytes may be written to `socket` now.
    ///
    /// # Errors
    /// `WouldBlock` for none.
    pub(super) fn room(&self, socket: &TcpStream, wanted: usize) -> io::Result<usize> {
        match self.look(socket)? {
            Room::Unbounded => {
                self.refused.store(0, Ordering::Relaxed);
                Ok(wanted)
            }
            Room::Full { .. } => {
                self.refused.store(u32::try_from(wanted).unwrap_or(u32::MAX), Ordering::Relaxed);
                Err(io::ErrorKind::WouldBlock.into())
            }
            Room::Bytes { most, is_paced } => {
                self.refused.store(0, Ordering::Relaxed);
                let granted = wanted.min(usize::try_from(most).unwrap_or(usize::MAX));
                *lock(&self.last_unpaced) = (!is_paced).then(|| (Instant::now(), LEAST.min(granted as u64)));
                Ok(granted)
            }
        }
    }

    /// Ready when something may be written.
    pub(super) fn poll_room(&self, socket: &TcpStream, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            let pause = match self.look(socket) {
                Ok(Room::Full { pause }) => pause,
                Ok(_) => return Poll::Ready(Ok(())),
                Err(error) => return Poll::Ready(Err(error)),
            };
            let mut waiting = lock(&self.pause);
            let sleep = waiting.get_or_insert_with(|| Box::pin(tokio::time::sleep(pause)));
            ready!(sleep.as_mut().poll(cx));
            *waiting = None;
        }
    }

    /// What `socket` has room for.
    fn look(&self, socket: &TcpStream) -> io::Result<Room> {
        let limit = self.limit.load(Ordering::Relaxed);
        if limit == limit::HIGH {
            return Ok(Room::Unbounded);
        }
        // A write to a closed connection tells why it was closed.
        let Some(queue) = info::queue(socket)? else { return Ok(Room::Unbounded) };
        let rate = queue.pacing_rate;
        if limit == limit::RAISED && !is_low(rate) {
            // Another thread may have set a low limit since.
            let _ = self.limit.compare_exchange(limit, limit::HIGH, Ordering::Relaxed, Ordering::Relaxed);
            return Ok(Room::Unbounded);
        }
        let bound = bytes_in(rate, BURST).max(LEAST);
        let wait = lock(&self.last_unpaced)
            .map_or(Duration::ZERO, |(at, bytes)| time_of(bytes, rate).saturating_sub(at.elapsed()));
        match bound.saturating_sub(queue.unsent.into()) {
            most @ 1.. if wait.is_zero() => Ok(Room::Bytes { most, is_paced: queue.segments_sent >= UNPACED }),
            _ => Ok(Room::Full { pause: time_of(bound / 2, rate).max(wait).clamp(PAUSE[0], PAUSE[1]) }),
        }
    }
}

/// What a connection has room for.
enum Room {
    /// No bound holds.
    Unbounded,
    /// At most this many bytes. `is_paced`: the kernel will send them at the connection's rate.
    Bytes { most: u64, is_paced: bool },
    /// Nothing, before `pause` has passed.
    Full { pause: Duration },
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether `rate`, in bytes per second, needs the bound: the kernel's own bound of a burst is longer.
fn is_low(rate: u64) -> bool {
    bytes_in(rate, BURST) < KERNEL_BURST
}

fn bytes_in(rate: u64, time: Duration) -> u64 {
    (rate as f64 * time.as_secs_f64()) as u64
}

fn time_of(bytes: u64, rate: u64) -> Duration {
    Duration::from_secs_f64(bytes as f64 / rate.max(1) as f64)
}
