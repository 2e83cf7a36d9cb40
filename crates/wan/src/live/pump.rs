//! The thread of a link: reads what both hosts send, asks the model, writes what has arrived.

use super::link::Shared;
use super::pool::Pool;
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

/// Packets read from one device before the other gets its turn and due packets are written. Reading and writing a packet
/// of 64 KiB takes about 20 µs, so that nothing is kept waiting for more than a fraction of a millisecond.
const BATCH: usize = 8;

/// What the model of one direction may hold before its device is no longer read: 1 GiB, more than 10 Gbit/s for 500 ms. Only
/// a link without a rate, or with a huge queue, gets there; the kernel then drops what exceeds the device's queue.
const HELD_BYTES_MAX: u64 = 1 << 30;

/// Moves packets until the link stops.
pub(super) fn run(shared: &Shared) {
    // Releases are to be on time: the default slack of 50 µs would make every one of them late by as much.
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
    let mut pump = Pump { shared, pool: Pool::new(), gone: [false; 2], inbox: Vec::new(), outbox: Vec::new() };
    let mut held = [0; 2];
    while !shared.stopping.load(Ordering::Relaxed) {
        let readable = pump.wait(held);
        for direction in Direction::BOTH {
            if readable[direction as usize] {
                pump.read(direction);
            }
        }
        held = pump.exchange();
        pump.write();
    }
}

struct Pump<'a> {
    shared: &'a Shared,
    pool: Pool,
    /// Ends whose device no longer exists, by the direction that begins there.
    gone: [bool; 2],
    /// Read, and not yet in the model.
    inbox: Vec<(Direction, Frame)>,
    /// Out of the model, and not yet written.
    outbox: Vec<(Direction, Frame)>,
}

impl Pump<'_> {
    /// Waits until a packet is due or can be read, and returns which devices have some, by the direction that begins there.
    fn wait(&self, held: [u64; 2]) -> [bool; 2] {
        let shared = self.shared;
        let timeout = shared.model().next_wakeup().map(|due| timespec(due.saturating_sub(shared.now())));
        let interest = |direction: Direction| {
            let way = direction as usize;
            let wanted = !self.gone[way] && held[way] < HELD_BYTES_MAX;
            if wanted { PollFlags::IN } else { PollFlags::empty() }
        };
        let mut fds = [
            PollFd::new(&shared.ends[0], interest(Direction::Forward)),
            PollFd::new(&shared.ends[1], interest(Direction::Backward)),
            PollFd::new(&shared.bell, PollFlags::IN),
        ];
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => tracing::error!(%error, "a link cannot wait for packets"),
        }
        if !fds[2].revents().is_empty() {
            let mut count = [0; 8];
            let _ = rustix::io::read(&shared.bell, &mut count);
        }
        [fds[0].revents(), fds[1].revents()].map(|events| events.contains(PollFlags::IN))
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

    /// Gives the model what was read, takes from it what is due, and returns the bytes that it holds of each direction.
    fn exchange(&mut self) -> [u64; 2] {
        let mut model = self.shared.model();
        let now = self.shared.now();
        for (direction, frame) in self.inbox.drain(..) {
            model.way(direction).push(now, frame);
        }
        Direction::BOTH.map(|direction| {
            let way = model.way(direction);
            while let Some(frame) = way.poll(now) {
                self.outbox.push((direction, frame));
            }
            way.held_bytes()
        })
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
    // Centuries away at most, by the limits of `Span`.
    Timespec { tv_sec: duration.as_secs() as i64, tv_nsec: i64::from(duration.subsec_nanos()) }
}
