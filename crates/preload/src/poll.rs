//! poll(2) and ppoll(2): a handshake goes on inside them, unseen.

use crate::pending::{self, Found};
use crate::progress::{Progress, step};
use crate::{real, sys};
use libc::{c_int, c_short, nfds_t, pollfd, sigset_t, size_t, timespec};

/// Descriptors that are watched for without a mapping of their own.
const ON_STACK: usize = 128;

/// # Safety
/// As for poll(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn poll(fds: *mut pollfd, n: nfds_t, timeout: c_int) -> c_int {
    if !concerned(fds, n) {
        // SAFETY: the program's own call.
        return unsafe { real::poll(fds, n, timeout) };
    }
    let timeout_ns = u64::try_from(timeout).ok().map(|ms| ms * 1_000_000);
    // SAFETY: the caller's promise.
    unsafe { watch(fds, n, timeout_ns, std::ptr::null()) }
}

/// # Safety
/// As for ppoll(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ppoll(fds: *mut pollfd, n: nfds_t, timeout: *const timespec, mask: *const sigset_t) -> c_int {
    if !concerned(fds, n) {
        // SAFETY: the program's own call.
        return unsafe { real::ppoll(fds, n, timeout, mask) };
    }
    // SAFETY: the caller's promise.
    unsafe { watch(fds, n, timeout.as_ref().map(nanoseconds), mask) }
}

/// # Safety
/// As for poll(2); what FORTIFY_SOURCE makes of it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __poll_chk(fds: *mut pollfd, n: nfds_t, timeout: c_int, size: size_t) -> c_int {
    if size / size_of::<pollfd>() < n as usize || !concerned(fds, n) {
        // SAFETY: the program's own call; the C library ends it when the array is too small.
        return unsafe { real::__poll_chk(fds, n, timeout, size) };
    }
    // SAFETY: the caller's promise.
    unsafe { poll(fds, n, timeout) }
}

/// # Safety
/// As for ppoll(2); what FORTIFY_SOURCE makes of it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __ppoll_chk(
    fds: *mut pollfd,
    n: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
    size: size_t,
) -> c_int {
    if size / size_of::<pollfd>() < n as usize || !concerned(fds, n) {
        // SAFETY: as above.
        return unsafe { real::__ppoll_chk(fds, n, timeout, mask, size) };
    }
    // SAFETY: the caller's promise.
    unsafe { ppoll(fds, n, timeout, mask) }
}

/// Whether a handshake is among what is polled.
fn concerned(fds: *mut pollfd, n: nfds_t) -> bool {
    if !pending::any() || fds.is_null() {
        return false;
    }
    // SAFETY: the program's array has `n` entries.
    let fds = unsafe { std::slice::from_raw_parts(fds, n as usize) };
    fds.iter().any(|one| one.fd >= 0 && !matches!(pending::find(one.fd), Found::None))
}

pub(crate) fn nanoseconds(time: &timespec) -> u64 {
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

pub(crate) fn timespec_of(ns: u64) -> timespec {
    timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as i64 }
}

/// What a program that polls for `wanted` sees of a socket whose connect has failed.
pub(crate) fn failed_events(wanted: c_short) -> c_short {
    wanted & (libc::POLLIN | libc::POLLOUT | libc::POLLRDHUP | libc::POLLRDNORM | libc::POLLWRNORM)
        | libc::POLLERR
        | libc::POLLHUP
}

/// What the program is to see of one descriptor now, or the events that its handshake waits for.
pub(crate) fn look(fd: c_int, wanted: c_short) -> Result<c_short, c_short> {
    match pending::find(fd) {
        Found::None => Ok(sys::ready(fd, wanted)),
        Found::Busy => Err(0),
        Found::Pending(guard) => match step(fd, guard) {
            Progress::Open => Ok(sys::ready(fd, wanted)),
            Progress::Failed(..) => Ok(failed_events(wanted)),
            Progress::Waits(_, events) => Err(events),
        },
    }
}

/// The program's poll, with the handshakes' own events in place of its own.
unsafe fn watch(fds: *mut pollfd, n: nfds_t, timeout_ns: Option<u64>, mask: *const sigset_t) -> c_int {
    // SAFETY: the program's array has `n` entries.
    let fds = unsafe { std::slice::from_raw_parts_mut(fds, n as usize) };
    let mut stack = [pollfd { fd: -1, events: 0, revents: 0 }; ON_STACK];
    let mapping = Mapping::new(if fds.len() > ON_STACK { fds.len() } else { 0 });
    let copy: &mut [pollfd] = match &mapping {
        // SAFETY: the mapping is this call's own and has room for as many entries.
        Some(mapping) if mapping.len > 0 => unsafe { std::slice::from_raw_parts_mut(mapping.start.cast(), fds.len()) },
        Some(_) => &mut stack[..fds.len()],
        None => return sys::fail(libc::ENOMEM),
    };
    let deadline = timeout_ns.map(|ns| sys::now().saturating_add(ns));
    loop {
        let mut decided = 0;
        for (mine, theirs) in copy.iter_mut().zip(fds.iter_mut()) {
            *mine = pollfd { fd: theirs.fd, events: theirs.events, revents: 0 };
            theirs.revents = 0;
            if theirs.fd >= 0 && !matches!(pending::find(theirs.fd), Found::None) {
                match look(theirs.fd, theirs.events) {
                    Ok(0) => {}
                    Ok(events) => {
                        (theirs.revents, mine.fd) = (events, -1);
                        decided += 1;
                    }
                    Err(events) => mine.events = events,
                }
            }
        }
        let left = deadline.map(|deadline| deadline.saturating_sub(sys::now()));
        let time = if decided > 0 { Some(timespec_of(0)) } else { left.map(timespec_of) };
        let time_pointer = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        // SAFETY: `copy` has `n` entries; the mask is the program's.
        let result = unsafe { real::ppoll(copy.as_mut_ptr(), n, time_pointer, mask) };
        if result < 0 {
            return if decided > 0 { decided } else { result };
        }
        for (mine, theirs) in copy.iter().zip(fds.iter_mut()) {
            if mine.fd < 0 || mine.revents == 0 {
                continue;
            }
            theirs.revents = match pending::find(theirs.fd) {
                Found::None if mine.events == theirs.events => mine.revents,
                _ => look(theirs.fd, theirs.events).unwrap_or(0),
            };
            decided += c_int::from(theirs.revents != 0);
        }
        if decided > 0 || left == Some(0) {
            return decided;
        }
    }
}

/// Anonymous memory for one call: a hook must not use the program's allocator.
struct Mapping {
    start: *mut libc::c_void,
    len: usize,
}

impl Mapping {
    fn new(entries: usize) -> Option<Self> {
        let len = entries * size_of::<pollfd>();
        if len == 0 {
            return Some(Self { start: std::ptr::null_mut(), len });
        }
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a fresh private mapping touches nothing that exists.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, -1, 0) };
        (start != libc::MAP_FAILED).then_some(Self { start, len })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.len > 0 {
            // SAFETY: mapped by `new`; nothing refers to it any more.
            unsafe { libc::munmap(self.start, self.len) };
        }
    }
}
