//! epoll(7): what a program has registered is kept from the start; while a handshake is pending, the kernel is given the
//! handshake's interest instead, and the events are taken out of what the program sees. Afterwards its own interest is put
//! back, which also arms edge-triggered and one-shot registrations again.

use crate::pending::{self, Found};
use crate::poll::{failed_events, nanoseconds, timespec_of};
use crate::progress::{Progress, step};
use crate::{config, real, sys};
use libc::{c_int, c_short, epoll_event, sigset_t, timespec};
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// Registrations of sockets that are not connected yet, in all epoll descriptors of the process.
const ENTRIES: usize = 4096;
/// Marks events of handshakes. No pointer and no descriptor looks like this, and both are what programs put here.
const MARK: u64 = 0xf0eb_05f0_0000_0000;
const MARK_MASK: u64 = 0xffff_ffff_0000_0000;

#[derive(Clone, Copy)]
struct Entry {
    /// The socket; 0: the entry is free.
    cookie: u64,
    ep: c_int,
    fd: c_int,
    events: u32,
    data: u64,
    /// The kernel has the handshake's interest and not the program's.
    hidden: bool,
}

const FREE: Entry = Entry { cookie: 0, ep: -1, fd: -1, events: 0, data: 0, hidden: false };

struct Table(UnsafeCell<[Entry; ENTRIES]>);
// SAFETY: entries are touched only in `with`.
unsafe impl Sync for Table {}

static TABLE: Table = Table(UnsafeCell::new([FREE; ENTRIES]));
static OWNER: AtomicU32 = AtomicU32::new(0);
/// Entries up to here may be in use.
static HIGH: AtomicUsize = AtomicUsize::new(0);

/// Works with the registrations; `None` in a signal handler that interrupted its own thread here.
fn with<T>(work: impl FnOnce(&mut [Entry; ENTRIES]) -> T) -> Option<T> {
    let me = sys::thread();
    loop {
        match OWNER.compare_exchange_weak(0, me, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => break,
            Err(owner) if owner == me => return None,
            // SAFETY: no conditions.
            Err(_) => unsafe { libc::sched_yield() },
        };
    }
    // SAFETY: this thread alone is the owner.
    let result = work(unsafe { &mut *TABLE.0.get() });
    OWNER.store(0, Ordering::Release);
    Some(result)
}

fn used(entries: &mut [Entry; ENTRIES]) -> impl Iterator<Item = (usize, &mut Entry)> {
    let high = HIGH.load(Ordering::Relaxed).min(ENTRIES);
    entries[..high].iter_mut().enumerate().filter(|(_, entry)| entry.cookie != 0)
}

/// Keeps a registration, in place of an earlier one of the same descriptors. A full table forgets its first entry.
fn keep(new: Entry) -> Option<usize> {
    with(|entries| {
        let same = used(entries).find(|(_, entry)| entry.ep == new.ep && entry.fd == new.fd).map(|(index, _)| index);
        let free = || entries.iter().position(|entry| entry.cookie == 0);
        let index = same.or_else(free).unwrap_or(0);
        entries[index] = new;
        HIGH.fetch_max(index + 1, Ordering::Relaxed);
        index
    })
}

fn remove(ep: c_int, fd: c_int) {
    with(|entries| {
        for (_, entry) in used(entries) {
            if entry.ep == ep && entry.fd == fd {
                *entry = FREE;
            }
        }
    });
}

fn control(op: c_int, entry: &Entry, events: u32, data: u64) -> c_int {
    let mut event = epoll_event { events, u64: data };
    // SAFETY: a whole event.
    unsafe { real::epoll_ctl(entry.ep, op, entry.fd, &raw mut event) }
}

fn mark(index: usize) -> u64 {
    MARK | index as u64
}

/// # Safety
/// As for epoll_ctl(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_ctl(ep: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
    // SAFETY: the program's own event, where there is one.
    let wanted = unsafe { event.as_ref() }.copied();
    if let Some(wanted) = wanted
        && (op == libc::EPOLL_CTL_ADD || op == libc::EPOLL_CTL_MOD)
        && config::active().is_some()
        && let Some(cookie) = unconnected(fd)
    {
        let mut entry = Entry { cookie, ep, fd, events: wanted.events, data: wanted.u64, hidden: false };
        if let Found::Pending(guard) = pending::find_cookie(cookie)
            && let Progress::Waits(guard, events) = step(fd, guard)
        {
            entry.hidden = true;
            let Some(index) = keep(entry) else { return sys::fail(libc::ENOMEM) };
            let result = control(op, &entry, interest(events), mark(index));
            drop(guard);
            if result != 0 {
                let errno = sys::errno();
                remove(ep, fd);
                sys::set_errno(errno);
            }
            return result;
        }
        // SAFETY: the program's own call.
        let result = unsafe { real::epoll_ctl(ep, op, fd, event) };
        if result == 0 {
            keep(entry);
        }
        return result;
    }
    if op == libc::EPOLL_CTL_DEL && HIGH.load(Ordering::Relaxed) > 0 && config::active().is_some() {
        remove(ep, fd);
    }
    // SAFETY: the program's own call.
    unsafe { real::epoll_ctl(ep, op, fd, event) }
}

/// The cookie of a TCP socket without a peer: one that may yet be connected, or is being.
fn unconnected(fd: c_int) -> Option<u64> {
    sys::tcp_family(fd)?;
    if sys::option(fd, libc::SOL_SOCKET, libc::SO_ACCEPTCONN) != Some(0) {
        return None;
    }
    let cookie = sys::cookie(fd)?;
    if !matches!(pending::find_cookie(cookie), Found::None) {
        return Some(cookie);
    }
    let before = sys::errno();
    // SAFETY: all zeros is a valid sockaddr_storage, with room for every address.
    let connected = unsafe {
        let mut addr: libc::sockaddr_storage = std::mem::zeroed();
        let mut len = size_of_val(&addr) as libc::socklen_t;
        real::getpeername(fd, (&raw mut addr).cast(), &raw mut len) == 0
    };
    sys::set_errno(before);
    (!connected).then_some(cookie)
}

/// Level-triggered: a handshake takes all there is, or is called again.
fn interest(events: c_short) -> u32 {
    if events & libc::POLLOUT != 0 { libc::EPOLLOUT as u32 } else { libc::EPOLLIN as u32 }
}

/// A handshake has begun on `fd` and waits for `events`: the kernel's interest becomes the handshake's.
pub(crate) fn hide(fd: c_int, cookie: u64, events: c_short) {
    let before = sys::errno();
    with(|entries| {
        for (index, entry) in used(entries) {
            if entry.cookie == cookie && entry.fd == fd {
                entry.hidden = control(libc::EPOLL_CTL_MOD, entry, interest(events), mark(index)) == 0;
            }
        }
    });
    sys::set_errno(before);
}

/// A handshake has ended: the program's interest is put back, and the registrations are no longer of concern.
pub(crate) fn restore(cookie: u64) {
    let before = sys::errno();
    with(|entries| {
        for (_, entry) in used(entries) {
            if entry.cookie == cookie {
                if entry.hidden {
                    control(libc::EPOLL_CTL_MOD, entry, entry.events, entry.data);
                }
                *entry = FREE;
            }
        }
    });
    sys::set_errno(before);
}

/// A socket was closed before its session was open.
pub(crate) fn forget(cookie: u64) {
    with(|entries| used(entries).filter(|(_, entry)| entry.cookie == cookie).for_each(|(_, entry)| *entry = FREE));
}

/// Another socket was put under `fd`: the kernel has forgotten the old one's registrations.
pub(crate) fn moved(old: u64, new: u64, fd: c_int) {
    with(|entries| {
        for (_, entry) in used(entries) {
            if entry.cookie == old && entry.fd == fd {
                entry.cookie = new;
                control(libc::EPOLL_CTL_ADD, entry, entry.events, entry.data);
            }
        }
    });
}

/// Moves the handshake that an event of the kernel belongs to. `Some`: what the program is to see instead.
fn handle(index: usize) -> Option<epoll_event> {
    let entry = with(|entries| entries.get(index).copied())?.filter(|entry| entry.cookie != 0 && entry.hidden)?;
    let Found::Pending(guard) = pending::find_cookie(entry.cookie) else {
        restore(entry.cookie);
        return None;
    };
    match step(entry.fd, guard) {
        Progress::Open => None,
        Progress::Waits(_, events) => {
            control(libc::EPOLL_CTL_MOD, &entry, interest(events), mark(index));
            None
        }
        Progress::Failed(guard, _) => {
            // The program learns the reason from SO_ERROR; until then the state stays, its registration does not.
            drop(guard);
            restore(entry.cookie);
            let events = failed_events((entry.events & 0xffff) as c_short) as u16;
            Some(epoll_event { events: events.into(), u64: entry.data })
        }
    }
}

/// The program's wait, `kernel` being the call that it made, without the handshakes' events.
fn wait(events: *mut epoll_event, timeout_ns: Option<u64>, kernel: impl Fn(Option<u64>) -> c_int) -> c_int {
    let deadline = timeout_ns.map(|ns| sys::now().saturating_add(ns));
    let mut left = timeout_ns;
    loop {
        let n = kernel(left);
        let Ok(count @ 1..) = usize::try_from(n) else { return n };
        // SAFETY: the kernel has filled so many of the program's events.
        let events = unsafe { std::slice::from_raw_parts_mut(events, count) };
        let mut kept = 0;
        for i in 0..count {
            let event = events[i];
            let shown =
                if event.u64 & MARK_MASK == MARK { handle((event.u64 & !MARK_MASK) as usize) } else { Some(event) };
            if let Some(shown) = shown {
                events[kept] = shown;
                kept += 1;
            }
        }
        if kept > 0 || left == Some(0) {
            return kept as c_int;
        }
        left = deadline.map(|deadline| deadline.saturating_sub(sys::now()));
    }
}

/// # Safety
/// As for epoll_wait(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_wait(ep: c_int, events: *mut epoll_event, max: c_int, timeout: c_int) -> c_int {
    if HIGH.load(Ordering::Relaxed) == 0 {
        // SAFETY: the program's own call.
        return unsafe { real::epoll_wait(ep, events, max, timeout) };
    }
    let timeout_ns = u64::try_from(timeout).ok().map(|ms| ms * 1_000_000);
    // SAFETY: the program's own call, with the time that is left of its own.
    wait(events, timeout_ns, |left| unsafe { real::epoll_wait(ep, events, max, milliseconds(left)) })
}

/// # Safety
/// As for epoll_pwait(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_pwait(
    ep: c_int,
    events: *mut epoll_event,
    max: c_int,
    timeout: c_int,
    mask: *const sigset_t,
) -> c_int {
    let timeout_ns = u64::try_from(timeout).ok().map(|ms| ms * 1_000_000);
    // SAFETY: as above.
    wait(events, timeout_ns, |left| unsafe { real::epoll_pwait(ep, events, max, milliseconds(left), mask) })
}

/// # Safety
/// As for epoll_pwait2(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_pwait2(
    ep: c_int,
    events: *mut epoll_event,
    max: c_int,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the program's own time.
    let timeout_ns = unsafe { timeout.as_ref() }.map(nanoseconds);
    wait(events, timeout_ns, |left| {
        let time = left.map(timespec_of);
        let time = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        // SAFETY: as above.
        unsafe { real::epoll_pwait2(ep, events, max, time, mask) }
    })
}

/// The time as epoll_wait takes it, rounded up so that a wait never ends early.
fn milliseconds(left: Option<u64>) -> c_int {
    left.map_or(-1, |ns| c_int::try_from(ns.div_ceil(1_000_000)).unwrap_or(c_int::MAX))
}
