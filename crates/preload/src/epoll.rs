//! epoll(7): what a program asked for is noted from the start, hidden while a handshake is under way, and put back after.
//!
//! While a session is being opened, the kernel's registration of its socket carries our interest and, in place of the
//! program's data, a token that leads back to the entry. An event with a token moves the handshake on and is taken out of
//! what the program gets. It is the event that finds the entry, so nothing depends on which descriptor of an epoll set the
//! program waits on, or in which thread. Once the session is open the program's own registration is restored, which also
//! has the kernel report anew what is ready, to edge-triggered registrations too. After a failure the token stays, and
//! events are turned into those of a failed connect, until the socket connects again or is closed.

use crate::process::no_unwind;
use crate::record::{REGISTRATIONS, Registration};
use crate::sys::{self, EpollEvent, Errno};
use crate::table::{self, Guard, State};
use crate::wait::Budget;
use crate::{config, handshake, real};
use libc::{c_int, sigset_t, timespec};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

const IN: u32 = libc::EPOLLIN as u32;
const OUT: u32 = libc::EPOLLOUT as u32;
const ERR: u32 = libc::EPOLLERR as u32;
const HUP: u32 = libc::EPOLLHUP as u32;
const EDGE: u32 = libc::EPOLLET as u32;
const EXCLUSIVE: u32 = libc::EPOLLEXCLUSIVE as u32;
/// How a registration fires, apart from what for.
const MANNER: u32 = (libc::EPOLLET | libc::EPOLLONESHOT | libc::EPOLLWAKEUP) as u32;
/// What is ready on a socket whose connect failed (tcp_poll of the kernel).
const FAILED: u32 = IN | OUT | (libc::EPOLLRDHUP | libc::EPOLLRDNORM | libc::EPOLLWRNORM) as u32;

const INDEX_BITS: u32 = 15;
const REGISTRATION_BITS: u32 = REGISTRATIONS.ilog2();
const GENERATION_BITS: u32 = 32 - INDEX_BITS - REGISTRATION_BITS;

/// The upper half of every token: random, and above all user-space addresses, so that no program's data look like it.
static TAG: AtomicU32 = AtomicU32::new(0);

/// Chooses the tag.
pub(crate) fn init() {
    let mut tag = [0; 4];
    // Without random numbers the clock serves: the tag guards against accidents, not against the program.
    if sys::random(&mut tag).is_err() {
        tag = (sys::wall_clock().subsec_nanos()).to_ne_bytes();
    }
    TAG.store(u32::from_ne_bytes(tag) | 1 << 31, Ordering::Relaxed);
}

/// Hides the program's interest from the kernel, for a handshake that is about to begin.
pub(crate) fn hide(guard: &mut Guard) {
    each(guard, |registration, token| {
        registration.shown = false;
        EpollEvent { events: IN | OUT | EDGE, u64: token }
    });
}

/// Restores the program's interest, unless another process that shares set and socket has done so: what it asked for since
/// then is not known here.
pub(crate) fn show(guard: &mut Guard) {
    each(guard, |registration, _| {
        registration.shown = true;
        EpollEvent { events: registration.events, u64: registration.data }
    });
}

/// Has every registration fire as the program asked for, so that the failure of a connect can be reported.
pub(crate) fn fail(guard: &mut Guard) {
    each(guard, |registration, token| {
        registration.shown = false;
        EpollEvent { events: registration.events & MANNER | OUT, u64: token }
    });
}

/// Registers anew what the kernel forgot because another socket took the place of the one before.
pub(crate) fn renew(guard: &mut Guard) {
    let Some(record) = guard.record() else { return };
    for registration in record.registered() {
        let dormant = EpollEvent { events: EDGE, u64: registration.data };
        (registration.exclusive, registration.shown) = (false, false);
        let _ = sys::epoll_ctl(registration.epfd, libc::EPOLL_CTL_ADD, registration.fd, dormant);
    }
}

/// Changes every registration that can still be reached and is not as wanted.
fn each(guard: &mut Guard, event: impl Fn(&mut Registration, u64) -> EpollEvent) {
    let cookie = guard.cookie();
    for slot in 0..REGISTRATIONS {
        let token = token(guard, slot);
        let Some(registration) = guard.record().and_then(|record| record.registrations[slot].as_mut()) else {
            continue;
        };
        let mut wanted = *registration;
        let event = event(&mut wanted, token);
        let reached = sys::cookie(registration.fd) == Some(cookie);
        if reached && !(registration.shown && wanted.shown) && change(&mut wanted, event).is_ok() {
            *registration = wanted;
        }
    }
}

fn change(registration: &mut Registration, event: EpollEvent) -> Result<(), Errno> {
    let Registration { epfd, fd, .. } = *registration;
    let exclusive = event.events & EXCLUSIVE != 0;
    // An exclusive registration can be neither changed nor come about by a change (epoll_ctl(2)).
    if !registration.exclusive && !exclusive {
        return sys::epoll_ctl(epfd, libc::EPOLL_CTL_MOD, fd, event);
    }
    registration.exclusive = exclusive;
    sys::epoll_ctl(epfd, libc::EPOLL_CTL_DEL, fd, event)?;
    sys::epoll_ctl(epfd, libc::EPOLL_CTL_ADD, fd, event)
}

fn token(guard: &Guard, slot: usize) -> u64 {
    let (index, generation) = guard.place();
    let low = generation << (INDEX_BITS + REGISTRATION_BITS) | (index as u32) << REGISTRATION_BITS | slot as u32;
    u64::from(TAG.load(Ordering::Relaxed)) << 32 | u64::from(low)
}

/// Entry and registration that a token leads to; `None` within if they are gone.
fn decode(data: u64) -> Option<Option<(Guard, usize)>> {
    let tag = TAG.load(Ordering::Relaxed);
    if tag == 0 || (data >> 32) as u32 != tag {
        return None;
    }
    let low = data as u32;
    let slot = low as usize % REGISTRATIONS;
    let index = (low >> REGISTRATION_BITS) as usize % (1 << INDEX_BITS);
    let same = |guard: &Guard| guard.place().1 % (1 << GENERATION_BITS) == low >> (INDEX_BITS + REGISTRATION_BITS);
    Some(table::at(index).filter(same).map(|guard| (guard, slot)))
}

/// What epoll_ctl(2) does to a socket of interest; `None` if this is none.
fn control(epfd: c_int, operation: c_int, fd: c_int, event: EpollEvent) -> Option<Result<(), Errno>> {
    let mut guard = if operation == libc::EPOLL_CTL_ADD {
        // Most that is added is no TCP socket, or was accepted, or is connected already.
        let unconnected = handshake::tcp_state(fd)? == handshake::TCP_CLOSE;
        if !unconnected && table::is_quiet() {
            return None;
        }
        match table::find(fd) {
            None if unconnected => table::enter(fd, sys::get(fd, libc::SOL_SOCKET, libc::SO_DOMAIN)?)?,
            found => found?,
        }
    } else if table::is_empty() {
        return None;
    } else {
        table::find(fd)?
    };
    let result = match guard.state() {
        State::Open | State::Free => return None,
        State::Watched | State::Pending | State::Failed => register(&mut guard, epfd, operation, fd, event),
    };
    let empty = guard.record().is_none_or(|record| !record.is_watched());
    if empty && guard.state() == State::Watched {
        guard.remove();
    }
    Some(result)
}

/// Does to kernel and record what the program asks for. The kernel decides whether it may.
fn register(guard: &mut Guard, epfd: c_int, operation: c_int, fd: c_int, event: EpollEvent) -> Result<(), Errno> {
    let state = guard.state();
    let record = guard.make_record()?;
    let known = record.position(epfd, fd);
    let free = || libc::ENOSPC;
    let slot = match known {
        Some(slot) => slot,
        None => record.registrations.iter().position(Option::is_none).ok_or_else(free)?,
    };
    let kernels = match state {
        State::Pending => EpollEvent { events: IN | OUT | EDGE, u64: token(guard, slot) },
        State::Failed => EpollEvent { events: event.events & MANNER | OUT, u64: token(guard, slot) },
        _ => event,
    };
    sys::epoll_ctl(epfd, operation, fd, kernels)?;
    let (exclusive, shown) = (kernels.events & EXCLUSIVE != 0, state == State::Watched);
    let asked = Registration { epfd, fd, events: event.events, data: event.u64, exclusive, shown };
    if let Some(record) = guard.record() {
        record.registrations[slot] = (operation != libc::EPOLL_CTL_DEL).then_some(asked);
    }
    Ok(())
}

/// What the program gets for an event of `epfd`: nothing while the handshake is under way.
fn translate(epfd: c_int, event: EpollEvent) -> Option<EpollEvent> {
    let Some(found) = decode(event.u64) else { return Some(event) };
    let (mut guard, slot) = found?;
    let cookie = guard.cookie();
    let last = guard.facts().fd;
    let registration = guard.record()?.registrations[slot].as_mut()?;
    // The set may have another descriptor by now; this one is certainly right.
    registration.epfd = epfd;
    let asked = *registration;
    if guard.state() == State::Pending {
        let fd = [asked.fd, last].into_iter().find(|fd| sys::cookie(*fd) == Some(cookie))?;
        // Once that has settled, the kernel reports what the program is to know by itself.
        handshake::advance(&mut guard, fd);
        return None;
    }
    if guard.state() != State::Failed {
        return None;
    }
    let ready = if guard.facts().errno == 0 { event.events } else { FAILED | ERR | HUP };
    Some(EpollEvent { events: ready & (asked.events | ERR | HUP), u64: asked.data })
}

/// Waits by `wait`, until the program has something to know.
///
/// # Safety
/// `wait` returns how many events it has written to `events`.
unsafe fn wait(
    epfd: c_int,
    events: *mut EpollEvent,
    timeout: Option<Duration>,
    wait: impl Fn(Option<Duration>) -> c_int,
) -> c_int {
    let mut budget = Budget::new(timeout);
    loop {
        let count = wait(budget.next(None));
        if count < 0 {
            return count;
        }
        // SAFETY: the kernel wrote that many.
        let events = unsafe { std::slice::from_raw_parts_mut(events, count as usize) };
        let kept = no_unwind(|| {
            let mut kept = 0;
            for i in 0..events.len() {
                if let Some(event) = translate(epfd, events[i]) {
                    events[kept] = event;
                    kept += 1;
                }
            }
            kept
        });
        let hidden = kept < events.len();
        if kept > 0 || !budget.again(hidden) {
            return kept as c_int;
        }
    }
}

/// A time-out in milliseconds; negative: none.
fn from_ms(timeout: c_int) -> Option<Duration> {
    u64::try_from(timeout).ok().map(Duration::from_millis)
}

hook! {
    /// epoll_ctl(2).
    fn epoll_ctl(epfd: c_int, operation: c_int, fd: c_int, event: *mut EpollEvent) -> c_int {
        let known = matches!(operation, libc::EPOLL_CTL_ADD | libc::EPOLL_CTL_MOD | libc::EPOLL_CTL_DEL);
        let asked = match event.as_ref() {
            Some(event) => *event,
            None if operation == libc::EPOLL_CTL_DEL => EpollEvent { events: 0, u64: 0 },
            None => return real::epoll_ctl(epfd, operation, fd, event),
        };
        if config::get().is_none() || !known {
            return real::epoll_ctl(epfd, operation, fd, event);
        }
        match no_unwind(|| control(epfd, operation, fd, asked)) {
            None => real::epoll_ctl(epfd, operation, fd, event),
            Some(Ok(())) => 0,
            Some(Err(errno)) => {
                sys::set_errno(errno);
                -1
            }
        }
    }

    /// epoll_wait(2).
    fn epoll_wait(epfd: c_int, events: *mut EpollEvent, room: c_int, timeout: c_int) -> c_int {
        if config::get().is_none() {
            return real::epoll_wait(epfd, events, room, timeout);
        }
        wait(epfd, events, from_ms(timeout), |limit| {
            real::epoll_wait(epfd, events, room, crate::wait::to_ms(limit))
        })
    }

    /// epoll_pwait(2).
    fn epoll_pwait(
        epfd: c_int, events: *mut EpollEvent, room: c_int, timeout: c_int, mask: *const sigset_t
    ) -> c_int {
        if config::get().is_none() {
            return real::epoll_pwait(epfd, events, room, timeout, mask);
        }
        wait(epfd, events, from_ms(timeout), |limit| {
            real::epoll_pwait(epfd, events, room, crate::wait::to_ms(limit), mask)
        })
    }

    /// epoll_pwait2(2).
    fn epoll_pwait2(
        epfd: c_int, events: *mut EpollEvent, room: c_int, timeout: *const timespec, mask: *const sigset_t
    ) -> c_int {
        let Some(limit) = crate::wait::from_timespec(timeout) else {
            return real::epoll_pwait2(epfd, events, room, timeout, mask);
        };
        if config::get().is_none() {
            return real::epoll_pwait2(epfd, events, room, timeout, mask);
        }
        wait(epfd, events, limit, |limit| {
            let limit = limit.map(crate::wait::to_timespec);
            let at = limit.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
            real::epoll_pwait2(epfd, events, room, at, mask)
        })
    }
}
