//! Bounds what waits unsent in the kernel while a connection has a low rate (S17).
//!
//! The kernel paces by the rate that it has when it sends: after each burst it waits as long as the burst takes at that
//! rate, and a higher rate does not shorten the wait. With a short round trip one burst may have 64 KiB, which at the
//! share of an idle session takes a minute. A burst is no longer than what waits to be sent.

use super::info::{self, Queue};
use phoebus_proto::units::BitRate;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
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
    /// Whether it holds. It does until the kernel's own rate is high: that follows a higher limit only after the next
    /// acknowledgement.
    holds: AtomicBool,
    /// Until when the first segments wait, which the kernel does not pace.
    begin: Mutex<Option<Instant>>,
    /// The pause of a writer.
    pause: Mutex<Option<Pin<Box<Sleep>>>>,
}

impl UnsentBound {
    /// Sets the limit of the connection's rate.
    pub(super) fn set(&self, rate: Option<BitRate>) {
        if rate.is_some_and(|rate| is_low(rate.0 / 8)) {
            self.holds.store(true, Ordering::Relaxed);
        }
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
        match self.look(socket)? {
            Room::Unbounded => Ok(wanted),
            Room::Full { .. } => Err(io::ErrorKind::WouldBlock.into()),
            Room::Bytes { most, queue } => {
                let granted = wanted.min(usize::try_from(most).unwrap_or(usize::MAX));
                *lock(&self.begin) = (queue.segments_sent < UNPACED)
                    .then(|| Instant::now() + time_of(granted.min(LEAST as usize) as u64, queue.pacing_rate));
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
        if !self.holds.load(Ordering::Relaxed) {
            return Ok(Room::Unbounded);
        }
        // A write to a closed connection tells why it was closed.
        let Some(queue) = info::queue(socket)? else { return Ok(Room::Unbounded) };
        if !is_low(queue.pacing_rate) {
            self.holds.store(false, Ordering::Relaxed);
            return Ok(Room::Unbounded);
        }
        let bound = bytes_in(queue.pacing_rate, BURST).max(LEAST);
        let begin = lock(&self.begin).map_or(Duration::ZERO, |begin| begin.saturating_duration_since(Instant::now()));
        match bound.saturating_sub(queue.unsent.into()) {
            most @ 1.. if begin.is_zero() => Ok(Room::Bytes { most, queue }),
            _ => {
                let pause = time_of(bound / 2, queue.pacing_rate).max(begin).clamp(PAUSE[0], PAUSE[1]);
                Ok(Room::Full { pause })
            }
        }
    }
}

/// What a connection has room for.
enum Room {
    /// No bound holds.
    Unbounded,
    /// At most this many bytes.
    Bytes { most: u64, queue: Queue },
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
