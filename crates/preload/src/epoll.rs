//! epoll(7): records the program's registrations from the start, and hides events of a handshake from the program.
//!
//! An event with a token ([`registrations`](crate::registrations)) continues the handshake, and is removed from the
//! program's result. The event leads to the entry, so it does not matter on which descriptor of an epoll set the
//! program waits, or in which thread. After a failure, events are replaced by those of a failed connect, until the
//! socket connects again or is closed.

use crate::process::no_unwind;
use crate::record::Registration;
use crate::registrations::{after_failure, decode, token, while_pending};
use crate::sys::{self, EpollEvent, Errno};
use crate::table::{self, Guard, State};
use crate::tcp;
use crate::wait::Budget;
use crate::{config, epoll_sets, handshake, real};
use libc::{c_int, sigset_t, timespec};
use std::time::Duration;

const IN: u32 = libc::EPOLLIN as u32;
const OUT: u32 = libc::EPOLLOUT as u32;
const ERR: u32 = libc::EPOLLERR as u32;
const HUP: u32 = libc::EPOLLHUP as u32;
const EXCLUSIVE: u32 = libc::EPOLLEXCLUSIVE as u32;
/// Events of a socket whose connect failed (the kernel's tcp_poll).
const FAILED: u32 = IN | OUT | (libc::EPOLLRDHUP | libc::EPOLLRDNORM | libc::EPOLLWRNORM) as u32;

/// Pause after an event of a removed entry, so that a thread that waits for others does not spin.
const STALE_PAUSE: Duration = Duration::from_millis(5);

/// What epoll_ctl(2) does to a socket of interest; `None` for others.
fn control(epfd: c_int, operation: c_int, fd: c_int, event: EpollEvent) -> Option<Result<(), Errno>> {
    let mut guard = if operation == libc::EPOLL_CTL_ADD {
        // Most registered descriptors are no TCP sockets, or are accepted or connected already. One that is being
        // connected directly may fail, and connect again.
        let unconnected = matches!(tcp::state(fd)?, tcp::CLOSE | tcp::SYN_SENT);
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

/// Applies the program's request to kernel and record. The kernel decides whether it is permitted.
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
        State::Pending => while_pending(token(guard, slot)),
        State::Failed => after_failure(event.events, token(guard, slot)),
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

/// Whether an event is that of an entry that was removed: the kernel may report it again at once.
fn is_stale(event: EpollEvent) -> bool {
    matches!(decode(event.u64), Some(None))
}

/// The program's event for an event of `epfd`; `None` during the handshake.
fn translate(epfd: c_int, event: EpollEvent) -> Option<EpollEvent> {
    let Some(found) = decode(event.u64) else { return Some(event) };
    let (mut guard, slot) = found?;
    let cookie = guard.cookie();
    let last = guard.socket_state().fd;
    let registration = guard.record()?.registrations[slot].as_mut()?;
    // The set may know it by another descriptor; this one is certainly valid.
    registration.epfd = epfd;
    let asked = *registration;
    if guard.state() == State::Pending {
        let fd = [asked.fd, last].into_iter().find(|fd| sys::cookie(*fd) == Some(cookie))?;
        // After the handshake, the kernel reports what the program has to know.
        handshake::advance(&mut guard, fd);
        return None;
    }
    if guard.state() != State::Failed {
        return None;
    }
    let ready = if guard.socket_state().errno == 0 { event.events } else { FAILED | ERR | HUP };
    Some(EpollEvent { events: ready & (asked.events | ERR | HUP), u64: asked.data })
}

/// Calls `wait` until the program has an event.
///
/// # Safety
/// `wait` returns the number of events that it has written to `events`.
unsafe fn wait(
    epfd: c_int,
    events: *mut EpollEvent,
    timeout: Option<Duration>,
    wait: impl Fn(Option<Duration>) -> c_int,
) -> c_int {
    epoll_sets::note(epfd);
    let mut budget = Budget::new(timeout);
    loop {
        let count = wait(budget.next(None));
        if count < 0 {
            return count;
        }
        // SAFETY: the kernel wrote that many.
        let events = unsafe { std::slice::from_raw_parts_mut(events, count as usize) };
        let (kept, stale) = no_unwind(|| {
            let (mut kept, mut stale) = (0, false);
            for i in 0..events.len() {
                stale |= is_stale(events[i]);
                if let Some(event) = translate(epfd, events[i]) {
                    events[kept] = event;
                    kept += 1;
                }
            }
            (kept, stale)
        });
        let hidden = kept < events.len();
        if kept > 0 || !budget.again(hidden) {
            return kept as c_int;
        }
        if stale {
            sys::sleep(STALE_PAUSE);
        }
    }
}

/// A time-out in milliseconds; none if negative.
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
        epoll_sets::note(epfd);
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
