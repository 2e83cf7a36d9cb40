//! The thread of a link: reads the packets of both hosts, passes them through the model, and writes those
//! that have arrived.

use super::pool::Pool;
use super::shared::Shared;
use super::syscall;
use crate::model::Direction;
use crate::packet::Frame;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, IoSlice};
use std::io;
use std::num::NonZeroU64;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Number of packets read from one device before the other gets its turn and due packets are written. Reading
/// and writing a packet of 64 KiB takes about 20 µs, so nothing waits longer than a fraction of a
/// millisecond.
const BATCH: usize = 8;

/// Most bytes that the model of one direction may hold before its device is no longer read: 1 GiB, more than
/// 10 Gbit/s for 500 ms. Only a link without a rate, or with a huge queue, gets there; the kernel then drops
/// what exceeds the device's queue.
const HELD_BYTES_MAX: u64 = 1 << 30;

/// Pause after a failed poll, for lack of memory, for example: a thread of real-time priority must not retry
/// at once.
const RETRY: Duration = Duration::from_millis(10);

/// Moves packets until the link stops.
pub(super) fn run(shared: &Shared) {
    // Releases should be on time: the default timer slack of 50 µs would delay each of them by as much.
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
    // A router's hardware does not wait for the programs on the hosts. Real-time priority needs root.
    if let Err(error) = syscall::run_first() {
        tracing::debug!(%error, "a link shares the processor as an equal; it will be less exact on a busy machine");
    }
    let mut pump = Pump {
        shared,
        pool: Pool::new(),
        gone: [false; 2],
        inbox: Vec::new(),
        outbox: Vec::new(),
        held: [0; 2],
        latency: Latency(Duration::ZERO),
    };
    while !shared.stopping.load(Ordering::Relaxed) {
        let readable = pump.wait();
        for direction in Direction::BOTH {
            if readable[direction as usize] {
                pump.read(direction);
            }
        }
        pump.exchange();
        pump.write();
    }
}

struct Pump<'a> {
    shared: &'a Shared,
    pool: Pool,
    /// The directions that begin at a device that no longer exists.
    gone: [bool; 2],
    /// Packets that were read but are not in the model yet.
    inbox: Vec<(Direction, Frame)>,
    /// Packets that left the model but are not written yet.
    outbox: Vec<(Direction, Frame)>,
    /// Bytes that the model holds, by direction.
    held: [u64; 2],
    latency: Latency,
}

/// The machine's wake-up latency: some 40 µs where idle cores sleep, as those of virtual machines do. Tracks
/// the median, on which a rare long wait has no influence.
struct Latency(Duration);

impl Latency {
    const STEP: Duration = Duration::from_micros(1);
    /// Longest latency that is compensated: longer waits come from load, not from the machine.
    const MAX: Duration = Duration::from_micros(100);

    fn observe(&mut self, late: Duration) {
        self.0 = if late > self.0 { (self.0 + Self::STEP).min(Self::MAX) } else { self.0.saturating_sub(Self::STEP) };
    }

    /// The arrival time of a packet that was read at `now`. If it was read after a wait, it arrived one
    /// wake-up latency earlier; it usually leaves after another wait, whose latency is subtracted in advance.
    fn arrival(&self, now: Duration) -> Duration {
        now.saturating_sub(2 * self.0)
    }
}

impl Pump<'_> {
    /// Waits until a packet is due or readable, and returns which devices are readable, by the direction that
    /// begins there.
    fn wait(&mut self) -> [bool; 2] {
        let shared = self.shared;
        let due = shared.model().next_wakeup();
        let timeout = due.map(|due| due.saturating_sub(shared.now()));
        let end = |direction: Direction| {
            let way = direction as usize;
            match (self.gone[way], self.held[way] < HELD_BYTES_MAX) {
                // Polling a device that is gone would report an error for ever, so the bell takes its place.
                (true, _) => PollFd::new(&shared.bell, PollFlags::empty()),
                (false, true) => PollFd::new(&shared.ends[way], PollFlags::IN),
                (false, false) => PollFd::new(&shared.ends[way], PollFlags::empty()),
            }
        };
        let mut fds = [end(Direction::Forward), end(Direction::Backward), PollFd::new(&shared.bell, PollFlags::IN)];
        match poll(&mut fds, timeout.map(timespec).as_ref()) {
            Ok(0) if timeout.is_some_and(|timeout| !timeout.is_zero()) => {
                self.latency.observe(shared.now().saturating_sub(due.unwrap_or_default()));
            }
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => {
                tracing::error!(%error, "a link cannot wait for packets");
                std::thread::sleep(RETRY);
            }
        }
        if !fds[2].revents().is_empty() {
            let mut count = [0; 8];
            let _ = rustix::io::read(&shared.bell, &mut count);
        }
        // A read returns the actual error.
        [fds[0].revents(), fds[1].revents()].map(|events| !events.is_empty())
    }

    /// Reads a batch of packets from the device at which `direction` begins.
    fn read(&mut self, direction: Direction) {
        let device = &self.shared.ends[direction as usize];
        for _ in 0..BATCH {
            match self.pool.read(|room| syscall::read_append(device.as_fd(), room)) {
                Ok(Some(frame)) => self.inbox.push((direction, frame)),
                Ok(None) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => {
                    tracing::warn!(device = device.name(), %error, "a link's device is gone");
                    self.gone[direction as usize] = true;
                    break;
                }
            }
        }
    }

    /// Passes received packets to the model, and takes the due ones from it.
    fn exchange(&mut self) {
        let mut model = self.shared.model();
        let now = self.shared.now();
        let arrival = self.latency.arrival(now);
        for (direction, frame) in self.inbox.drain(..) {
            model.way(direction).push(arrival, frame);
        }
        for direction in Direction::BOTH {
            let way = model.way(direction);
            while let Some(frame) = way.poll(now) {
                self.outbox.push((direction, frame));
            }
            self.held[direction as usize] = way.held_bytes();
        }
    }

    fn write(&mut self) {
        for (direction, frame) in self.outbox.drain(..) {
            let device = &self.shared.ends[direction.reverse() as usize];
            let [head, payload] = frame.parts();
            if rustix::io::writev(device, &[IoSlice::new(head), IoSlice::new(payload)]).is_err() {
                self.shared.refused[direction as usize].fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

fn timespec(duration: Duration) -> Timespec {
    // The limits of `Span` bound the duration to centuries.
    Timespec { tv_sec: duration.as_secs() as i64, tv_nsec: i64::from(duration.subsec_nanos()) }
}
