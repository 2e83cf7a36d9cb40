//! select(2) and pselect(2), as [`crate::wait`] does poll(2). Sets larger than FD_SETSIZE, which some programs
//! allocate, have as many bits as the call says, as in the kernel.

use crate::handshake::{self, Stage};
use crate::process::no_unwind;
use crate::wait::{Budget, Scratch, from_timespec, to_timespec};
use crate::{real, sys, table};
use libc::{c_int, fd_set, sigset_t, timespec, timeval};
use std::time::Duration;

const BITS: usize = u64::BITS as usize;
/// Words for FD_SETSIZE descriptors in each set.
const FEW: usize = SETS * libc::FD_SETSIZE / BITS;
/// The sets for the kernel, and which of their descriptors belong to a handshake or have failed.
const SETS: usize = 5;
const READ: usize = 0;
const WRITE: usize = 1;
const OURS: usize = 3;
const FAILED: usize = 4;

/// The sets of a call, each null or this many words long.
#[derive(Clone, Copy)]
struct Sets {
    of: [*mut u64; 3],
    words: usize,
    /// The valid bits of the last word.
    last: u64,
}

impl Sets {
    /// # Safety
    /// Each is null or has `count` bits, rounded up to whole words.
    unsafe fn new(count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set) -> Self {
        let count = usize::try_from(count).unwrap_or(0);
        let last = if count % BITS == 0 { u64::MAX } else { (1 << (count % BITS)) - 1 };
        Self { of: [read.cast(), write.cast(), except.cast()], words: count.div_ceil(BITS), last }
    }

    fn get(&self, set: usize, word: usize) -> u64 {
        let start = self.of[set];
        if start.is_null() || word >= self.words {
            return 0;
        }
        // SAFETY: not null, and `word` is less than `words`, by which every set is valid.
        let bits = unsafe { start.add(word).read_unaligned() };
        if word + 1 == self.words { bits & self.last } else { bits }
    }

    fn put(&self, set: usize, word: usize, bits: u64) {
        let start = self.of[set];
        if !start.is_null() && word < self.words {
            // SAFETY: as above.
            unsafe { start.add(word).write_unaligned(bits) };
        }
    }

    /// Every descriptor in a set, as its word and its bit.
    fn each(self) -> impl Iterator<Item = (usize, u64, c_int)> {
        (0..self.words).flat_map(move |word| {
            let mut left = self.get(0, word) | self.get(1, word) | self.get(2, word);
            std::iter::from_fn(move || {
                let bit = left & left.wrapping_neg();
                left ^= bit;
                (bit != 0).then(|| (word, bit, (word * BITS) as c_int + bit.trailing_zeros() as c_int))
            })
        })
    }

    fn concern(self) -> bool {
        !table::is_quiet() && self.each().any(|(_, _, fd)| !matches!(handshake::look(fd), Stage::Plain))
    }

    /// Fills in the kernel's sets, and returns when to look again: at once if a descriptor has failed already.
    fn prepare(self, asked: &mut [u64]) -> Option<Duration> {
        let words = self.words;
        asked.fill(0);
        let mut again: Option<Duration> = None;
        let mut sooner = |until| again = Some(again.map_or(until, |again| again.min(until)));
        for (word, bit, fd) in self.each() {
            match handshake::look(fd) {
                Stage::Plain => {
                    for set in 0..3 {
                        asked[set * words + word] |= self.get(set, word) & bit;
                    }
                }
                Stage::Waiting { events, until } => {
                    sooner(until);
                    let set = if events & libc::POLLOUT != 0 { WRITE } else { READ };
                    asked[set * words + word] |= bit;
                    asked[OURS * words + word] |= bit;
                }
                Stage::Failed => {
                    asked[FAILED * words + word] |= bit;
                    sooner(Duration::ZERO);
                }
            }
        }
        again
    }

    /// Computes the program's result from the kernel's; returns the number of its bits, and whether any were hidden.
    fn settle(self, said: &mut [u64]) -> (c_int, bool) {
        let words = self.words;
        let (mut seen, mut hidden) = (0, false);
        for word in 0..words {
            let (ours, failed) = (said[OURS * words + word], said[FAILED * words + word]);
            for set in 0..3 {
                let bits = &mut said[set * words + word];
                hidden |= *bits & ours != 0;
                *bits &= !ours;
                if set != 2 {
                    // A failed socket is readable and writable, but has no urgent data.
                    *bits |= failed & self.get(set, word);
                }
                seen += bits.count_ones() as c_int;
            }
        }
        (seen, hidden)
    }

    fn give(self, said: &[u64]) {
        for set in 0..3 {
            for word in 0..self.words {
                self.put(set, word, said[set * self.words + word]);
            }
        }
    }
}

/// Calls `wait` with sets and a time limit until the program has a result. Returns the time left.
fn wait(
    sets: Sets,
    timeout: Option<Duration>,
    wait: impl Fn([*mut fd_set; 3], Option<Duration>) -> c_int,
) -> (c_int, Option<Duration>) {
    let mut scratch = match Scratch::<u64, FEW>::new(0, SETS * sets.words) {
        Ok(scratch) => scratch,
        Err(errno) => {
            sys::set_errno(errno);
            return (-1, timeout);
        }
    };
    let mut budget = Budget::new(timeout);
    let count = loop {
        let asked = scratch.get();
        let until = no_unwind(|| sets.prepare(asked));
        let limit = budget.next(until);
        let at = [0, 1, 2].map(|set| asked[set * sets.words..].as_mut_ptr().cast());
        let count = wait(at, if until == Some(Duration::ZERO) { Some(Duration::ZERO) } else { limit });
        if count < 0 {
            break count;
        }
        // When the time is over, the kernel clears the sets.
        let (seen, hidden) = no_unwind(|| sets.settle(asked));
        if seen > 0 || !budget.again(hidden) {
            sets.give(asked);
            break seen;
        }
    };
    scratch.free();
    (count, budget.left())
}

/// A program's time limit, `None` within if there is none; `None` if it is none the kernel would take.
///
/// # Safety
/// `time` is null or valid.
unsafe fn from_timeval(time: *const timeval) -> Option<Option<Duration>> {
    // SAFETY: the caller's promise.
    let Some(time) = (unsafe { time.as_ref() }) else { return Some(None) };
    // Unlike other calls, select takes more than a million microseconds.
    let micros = Duration::from_micros(u64::try_from(time.tv_usec).ok()?);
    Some(Some(Duration::from_secs(u64::try_from(time.tv_sec).ok()?).saturating_add(micros)))
}

hook! {
    /// select(2).
    fn select(
        count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *mut timeval
    ) -> c_int {
        let sets = Sets::new(count, read, write, except);
        let limit = match from_timeval(timeout) {
            Some(limit) if no_unwind(|| sets.concern()) => limit,
            _ => return real::select(count, read, write, except, timeout),
        };
        let (result, left) = wait(sets, limit, |sets, limit| {
            let mut limit = limit.map(|limit| timeval {
                tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
                tv_usec: limit.subsec_micros().into(),
            });
            let at = limit.as_mut().map_or(std::ptr::null_mut(), std::ptr::from_mut);
            real::select(count, sets[0], sets[1], sets[2], at)
        });
        if let (Some(timeout), Some(left)) = (timeout.as_mut(), left) {
            // As Linux does: the time left.
            timeout.tv_sec = i64::try_from(left.as_secs()).unwrap_or(i64::MAX);
            timeout.tv_usec = left.subsec_micros().into();
        }
        result
    }

    /// select(2) by the C library's own name.
    fn __select(
        count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *mut timeval
    ) -> c_int {
        select(count, read, write, except, timeout)
    }

    /// pselect(2).
    fn pselect(
        count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *const timespec,
        mask: *const sigset_t
    ) -> c_int {
        let sets = Sets::new(count, read, write, except);
        let limit = match from_timespec(timeout) {
            Some(limit) if no_unwind(|| sets.concern()) => limit,
            _ => return real::pselect(count, read, write, except, timeout, mask),
        };
        let (result, _) = wait(sets, limit, |sets, limit| {
            let limit = limit.map(to_timespec);
            let at = limit.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
            real::pselect(count, sets[0], sets[1], sets[2], at, mask)
        });
        result
    }
}
