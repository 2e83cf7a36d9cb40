//! Bounds what waits unsent in the kernel while a connection has a low rate (S17).
//!
//! The kernel paces by the rate that it has when it sends: after each burst it waits as long as the burst takes at that
//! rate, and a higher rate does not shorten the wait. With a short round trip one burst may have 64 KiB, which at the
//! share of an idle session takes a minute. A burst is no longer than what waits to be sent. Where even a segment takes
//! long, the kernel gets a higher rate, and the segments get their times here.
//!
//! The bound applies to rates that change while the connection is open, and to writes that ask for room; a rate of the
//! profile is in force from the first segment on.

use super::info;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
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

/// The lowest rate at which the kernel paces, in bytes per second: a segment in an eighth of a second. Below it, segments
/// that the kernel sends again are not counted.
pub(super) const KERNEL_LEAST: u64 = 12_500;

/// What a writer that is woken late may make up for.
const LATE: Duration = Duration::from_millis(20);

/// Bounds of the pause between two looks.
const PAUSE: [Duration; 2] = [Duration::from_millis(2), Duration::from_millis(100)];

/// The bound of one connection.
#[derive(Debug)]
pub(super) struct UnsentBound {
    /// The limit of the connection's rate, in bytes of payload per second; `u64::MAX` for none.
    limit: AtomicU64,
    /// Whether a low limit was raised. The kernel's own rate follows only after the next acknowledgement, and the bound
    /// holds until then.
    is_raised: AtomicBool,
    /// The last write that the kernel does not pace: when it was due, and its length.
    last_unpaced: Mutex<Option<(Instant, u64)>>,
    /// Bytes that a writer has for which there was no room.
    held_back: AtomicU32,
    /// The pause of a writer.
    pause: Mutex<Option<Pin<Box<Sleep>>>>,
}

impl UnsentBound {
    pub(super) fn new() -> Self {
        Self {
            limit: AtomicU64::new(u64::MAX),
            is_raised: AtomicBool::default(),
            last_unpaced: Mutex::default(),
            held_back: AtomicU32::default(),
            pause: Mutex::default(),
        }
    }

    /// Sets the limit of the connection's rate, in bytes of payload per second; `u64::MAX` for none.
    pub(super) fn set(&self, limit: u64) {
        let before = self.limit();
        // Before the limit, so that a writer never finds neither set.
        if limit > before && is_low(before) {
            self.is_raised.store(true, Ordering::SeqCst);
        }
        self.limit.store(limit, Ordering::SeqCst);
    }

    /// The limit in force.
    pub(super) fn limit(&self) -> u64 {
        self.limit.load(Ordering::SeqCst)
    }

    /// The same bound in another runtime.
    pub(super) fn moved(self) -> Self {
        Self { pause: Mutex::default(), ..self }
    }

    /// How many bytes a writer has for which there was no room.
    pub(super) fn held_back(&self) -> u32 {
        self.held_back.load(Ordering::Relaxed)
    }

    /// How many of `wanted` bytes may be written to `socket` now.
    ///
    /// # Errors
    /// `WouldBlock` for none.
    pub(super) fn room(&self, socket: &TcpStream, wanted: usize) -> io::Result<usize> {
        let granted = match self.look(socket)? {
            Room::Unbounded => wanted,
            Room::Full { .. } => 0,
            Room::Bytes { most, due, is_paced } => {
                let granted = wanted.min(usize::try_from(most).unwrap_or(usize::MAX));
                *lock(&self.last_unpaced) = (!is_paced).then_some((due, LEAST.min(granted as u64)));
                granted
            }
        };
        self.held_back.store(u32::try_from(wanted - granted).unwrap_or(u32::MAX), Ordering::Relaxed);
        if granted == 0 && wanted > 0 { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(granted) }
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
        let limit = self.limit.load(Ordering::SeqCst);
        if !is_low(limit) && !self.is_raised.load(Ordering::SeqCst) {
            return Ok(Room::Unbounded);
        }
        // A write to a closed connection tells why it was closed.
        let Some(queue) = info::queue(socket)? else { return Ok(Room::Unbounded) };
        let rate = queue.pacing_rate.min(limit);
        if !is_low(rate) {
            self.is_raised.store(false, Ordering::SeqCst);
            return Ok(Room::Unbounded);
        }
        let is_paced = queue.segments_sent >= UNPACED && limit >= KERNEL_LEAST;
        let bound = bytes_in(rate, BURST).max(LEAST);
        let now = Instant::now();
        let due = lock(&self.last_unpaced).map_or(now, |(at, bytes)| at + time_of(bytes, rate));
        let pause = |wait: Duration| Ok(Room::Full { pause: wait.clamp(PAUSE[0], PAUSE[1]) });
        match bound.saturating_sub(queue.unsent.into()) {
            0 => pause(time_of(bound / 2, rate)),
            _ if due > now => pause(due - now),
            // A writer that was woken late catches up.
            most => Ok(Room::Bytes { most, due: due.max(now.checked_sub(LATE).unwrap_or(now)), is_paced }),
        }
    }
}

/// What a connection has room for.
enum Room {
    /// No bound holds.
    Unbounded,
    /// At most this many bytes, which were `due` then. `is_paced`: the kernel will send them at the connection's rate.
    Bytes { most: u64, due: Instant, is_paced: bool },
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
