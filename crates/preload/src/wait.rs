//! poll(2) and the like: handshakes of the descriptors advance inside the call, and the program sees none of their
//! events.
//!
//! For a descriptor whose session is being opened, the kernel is asked for the events of the handshake instead. When
//! these come, the handshake advances, and the wait continues for the rest of its time until there is an event for the
//! program.

use crate::handshake::{self, Awaited, Stage};
use crate::process::no_unwind;
use crate::sys::{self, Errno};
use crate::{real, table};
use libc::{c_int, c_short, nfds_t, pollfd, sigset_t, size_t, timespec};
use std::time::Duration;

/// Number of descriptors that need no allocation.
const FEW: usize = 64;
/// Events of poll(2) for a socket whose connect failed (the kernel's tcp_poll).
const FAILED: c_short = libc::POLLIN
    | libc::POLLOUT
    | libc::POLLRDHUP
    | libc::POLLRDNORM
    | libc::POLLWRNORM
    | libc::POLLERR
    | libc::POLLHUP;

/// Longest delay of a signal whose handler asks for a restart of the call.
const HELD_BACK: Duration = Duration::from_millis(20);

/// Marks a program's descriptor, during the call, as a handshake's interest. No event of poll.
const OURS: c_short = 0x4000;

/// The time limit of a program's blocking call.
pub(crate) struct Budget {
    timeout: Option<Duration>,
    begun: Duration,
    /// Whether the last wait was cut short for a handshake's time-out.
    cut: bool,
    /// Whether the time is over and the kernel is asked for the last time.
    last: bool,
}

impl Budget {
    /// `None` for no limit.
    pub(crate) fn new(timeout: Option<Duration>) -> Self {
        let begun = if timeout.is_some_and(|timeout| !timeout.is_zero()) { sys::now() } else { Duration::ZERO };
        Self { timeout, begun, cut: false, last: false }
    }

    /// The length of the next wait; `until` is when a handshake needs a look.
    pub(crate) fn next(&mut self, until: Option<Duration>) -> Option<Duration> {
        no_unwind(handshake::expire);
        let left = self.left();
        let until = [until, handshake::next_deadline()].into_iter().flatten().min();
        let bound = until.map(|until| until.saturating_sub(sys::now()).max(Duration::from_millis(1)));
        self.cut = bound.is_some_and(|bound| left.is_none_or(|left| bound < left));
        if self.cut { bound } else { left }
    }

    /// Whether to wait again, after a wait that brought only `hidden` events.
    pub(crate) fn again(&mut self, hidden: bool) -> bool {
        if !hidden && !self.cut {
            return false;
        }
        // A hidden event may have been followed by one for the program, which is ready now.
        let over = self.left().is_some_and(|left| left.is_zero());
        !std::mem::replace(&mut self.last, over) || !over
    }

    /// The rest of the program's time.
    pub(crate) fn left(&self) -> Option<Duration> {
        match self.timeout {
            Some(timeout) if !timeout.is_zero() => Some(timeout.saturating_sub(sys::now().saturating_sub(self.begun))),
            other => other,
        }
    }
}

/// The end of a wait for one handshake.
pub(crate) enum Settled {
    /// The wait is over: the session is open, the connection is direct, or it was given up.
    Plain,
    /// The descriptor was closed meanwhile, and its number belongs to something else.
    Gone,
    /// It failed, and the program has not been told.
    Failed,
    /// A signal handler ran, and the call has to report it.
    Interrupted,
    /// The time is over; the handshake continues.
    TimedOut,
}

/// Waits for the handshake of `fd`, like a blocking call of a program. Blocking calls on sockets are restarted after
/// signals whose handlers ask for it, unless they have a time limit (signal(7)).
pub(crate) fn settle(fd: c_int, awaited: &mut Awaited, limit: Option<Duration>) -> Settled {
    let budget = Budget::new(limit);
    // A restarted call does not return to the program. poll does, so such signals wait for the end of a short one.
    let held_back = if limit.is_none() { sys::restarting_signals() } else { None };
    let mask = held_back.map(sys::mask_with);
    let mask = mask.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    loop {
        let (events, until) = match handshake::look_for(fd, awaited) {
            Some(Stage::Waiting { events, until }) => (events, until),
            Some(Stage::Failed) => return Settled::Failed,
            Some(Stage::Plain) => return Settled::Plain,
            None => return Settled::Gone,
        };
        let time_limit = until.saturating_sub(sys::now()).max(Duration::from_millis(1));
        let time_limit = if mask.is_null() { time_limit } else { time_limit.min(HELD_BACK) };
        let time = to_timespec(budget.left().map_or(time_limit, |left| left.min(time_limit)));
        let mut waited = pollfd { fd, events, revents: 0 };
        // SAFETY: all pointers are valid for the call, or null.
        let count = unsafe { real::ppoll(&raw mut waited, 1, &raw const time, mask) };
        if count < 0 && sys::errno() == libc::EINTR && (limit.is_some() || sys::any_interrupting_handler()) {
            return Settled::Interrupted;
        }
        if count == 0 && budget.left().is_some_and(|left| left.is_zero()) {
            return Settled::TimedOut;
        }
    }
}

/// Milliseconds for poll and epoll_wait, rounded up; negative without a limit.
pub(crate) fn to_ms(limit: Option<Duration>) -> c_int {
    let Some(limit) = limit else { return -1 };
    c_int::try_from(limit.as_nanos().div_ceil(1_000_000)).unwrap_or(c_int::MAX)
}

pub(crate) fn to_timespec(limit: Duration) -> timespec {
    timespec { tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX), tv_nsec: limit.subsec_nanos().into() }
}

/// A program's time limit: `None` within if there is none; `None` if the kernel would refuse it.
///
/// # Safety
/// `time` is null or valid.
pub(crate) unsafe fn from_timespec(time: *const timespec) -> Option<Option<Duration>> {
    // SAFETY: the caller's promise.
    let Some(time) = (unsafe { time.as_ref() }) else { return Some(None) };
    let nanoseconds = u32::try_from(time.tv_nsec).ok().filter(|n| *n < 1_000_000_000)?;
    Some(Some(Duration::new(u64::try_from(time.tv_sec).ok()?, nanoseconds)))
}

/// Memory for a call with many descriptors, for which the stack may be too small and allocation is not allowed.
pub(crate) struct Scratch<T, const N: usize> {
    few: [T; N],
    many: *mut T,
    len: usize,
}

impl<T: Copy, const N: usize> Scratch<T, N> {
    /// Room for `len` values, all `empty`. All zero bytes must be a value of `T`.
    pub(crate) fn new(empty: T, len: usize) -> Result<Self, Errno> {
        let many = if len <= N { std::ptr::null_mut() } else { sys::map(len * size_of::<T>(), false)?.cast() };
        Ok(Self { few: [empty; N], many, len })
    }

    pub(crate) fn get(&mut self) -> &mut [T] {
        if self.many.is_null() {
            return &mut self.few[..self.len];
        }
        // SAFETY: a mapping of that many values, all initialized to zero bytes, until `free`.
        unsafe { std::slice::from_raw_parts_mut(self.many, self.len) }
    }

    /// Releases the memory. Not a destructor, because a cancelled thread must be able to unwind past this value.
    pub(crate) fn free(self) {
        if !self.many.is_null() {
            // SAFETY: mapped above with this length, and not used any more.
            unsafe { sys::unmap(self.many.cast(), self.len * size_of::<T>()) };
        }
    }
}

/// Whether any of these sockets is being connected. Stops at the first.
fn concerns(fds: &[pollfd]) -> bool {
    !table::is_quiet() && fds.iter().any(|entry| entry.fd >= 0 && !matches!(handshake::look(entry.fd), Stage::Plain))
}

/// Calls `wait` with descriptors and a time limit until the program has a result.
fn wait(
    fds: &mut [pollfd],
    timeout: Option<Duration>,
    wait: impl Fn(&mut [pollfd], Option<Duration>) -> c_int,
) -> c_int {
    let none = pollfd { fd: -1, events: 0, revents: 0 };
    let mut scratch = match Scratch::<pollfd, FEW>::new(none, fds.len()) {
        Ok(scratch) => scratch,
        Err(errno) => {
            sys::set_errno(errno);
            return -1;
        }
    };
    let mut budget = Budget::new(timeout);
    let count = loop {
        let asked = scratch.get();
        let until = no_unwind(|| prepare(fds, asked));
        let limit = budget.next(until);
        let count = wait(asked, if until == Some(Duration::ZERO) { Some(Duration::ZERO) } else { limit });
        if count < 0 {
            fds.iter_mut().for_each(|of| of.revents = 0);
            break count;
        }
        let (seen, hidden) = no_unwind(|| report(fds, asked));
        if seen > 0 || !budget.again(hidden) {
            break seen;
        }
    };
    scratch.free();
    count
}

/// Fills in the kernel's descriptors, and returns when to look again: at once if a descriptor has failed already.
fn prepare(fds: &mut [pollfd], asked: &mut [pollfd]) -> Option<Duration> {
    let mut again: Option<Duration> = None;
    let mut sooner = |until| again = Some(again.map_or(until, |again| again.min(until)));
    for (of, to) in fds.iter_mut().zip(asked) {
        *to = pollfd { revents: 0, ..*of };
        of.revents = 0;
        if of.fd < 0 {
            continue;
        }
        match handshake::look(of.fd) {
            Stage::Plain => {}
            Stage::Waiting { events, until } => {
                (to.events, of.revents) = (events, OURS);
                sooner(until);
            }
            Stage::Failed => {
                to.fd = -1;
                of.revents = FAILED & (of.events | libc::POLLERR | libc::POLLHUP);
                sooner(Duration::ZERO);
            }
        }
    }
    again
}

/// Takes over the kernel's result. Returns the number of the program's descriptors with events, and whether any were
/// hidden.
fn report(fds: &mut [pollfd], asked: &[pollfd]) -> (c_int, bool) {
    let (mut seen, mut hidden) = (0, false);
    for (of, said) in fds.iter_mut().zip(asked) {
        if said.fd >= 0 {
            // Another thread may have begun a handshake meanwhile.
            let ours = of.revents == OURS || said.revents != 0 && !matches!(handshake::look(of.fd), Stage::Plain);
            hidden |= ours && said.revents != 0;
            of.revents = if ours { 0 } else { said.revents };
        }
        seen += c_int::from(of.revents != 0);
    }
    (seen, hidden)
}

/// The program's descriptors, unless they need no work.
///
/// # Safety
/// `fds` is valid for `count` descriptors, or the kernel would refuse it.
unsafe fn of_interest<'a>(fds: *mut pollfd, count: nfds_t) -> Option<&'a mut [pollfd]> {
    if table::is_quiet() || fds.is_null() || count == 0 {
        return None;
    }
    // SAFETY: the caller's promise; the kernel refuses more than it allows descriptors.
    let fds = unsafe { std::slice::from_raw_parts_mut(fds, usize::try_from(count).ok().filter(|n| *n < 1 << 24)?) };
    no_unwind(|| concerns(fds)).then_some(fds)
}

hook! {
    /// poll(2).
    fn poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
        match of_interest(fds, count) {
            None => real::poll(fds, count, timeout),
            Some(fds) => wait(fds, u64::try_from(timeout).ok().map(Duration::from_millis), |fds, limit| {
                real::poll(fds.as_mut_ptr(), count, to_ms(limit))
            }),
        }
    }

    /// poll(2) by the C library's own name.
    fn __poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
        poll(fds, count, timeout)
    }

    /// poll(2) of programs that check lengths.
    fn __poll_chk(fds: *mut pollfd, count: nfds_t, timeout: c_int, room: size_t) -> c_int {
        if room / size_of::<pollfd>() < count as usize {
            return real::__poll_chk(fds, count, timeout, room);
        }
        poll(fds, count, timeout)
    }

    /// ppoll(2).
    fn ppoll(fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t) -> c_int {
        match (of_interest(fds, count), from_timespec(timeout)) {
            (Some(fds), Some(timeout)) => wait(fds, timeout, |fds, limit| {
                let limit = limit.map(to_timespec);
                let at = limit.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
                real::ppoll(fds.as_mut_ptr(), count, at, mask)
            }),
            _ => real::ppoll(fds, count, timeout, mask),
        }
    }

    /// ppoll(2) of programs that check lengths.
    fn __ppoll_chk(
        fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t, room: size_t
    ) -> c_int {
        if room / size_of::<pollfd>() < count as usize {
            return real::__ppoll_chk(fds, count, timeout, mask, room);
        }
        ppoll(fds, count, timeout, mask)
    }
}
