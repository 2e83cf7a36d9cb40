//! The kernel's registrations of a socket in epoll sets: hidden during a handshake, and restored afterwards.
//!
//! While a session is being opened, the kernel's registration of its socket has our interest and, in place of the
//! program's data, a token that leads back to the entry. When the session is open, the program's own registration is
//! restored. The kernel then reports anew what is ready, also to edge-triggered registrations. After a failure the
//! token stays.

use crate::record::{REGISTRATIONS, Registration};
use crate::sys::{self, EpollEvent, Errno};
use crate::table::{self, Guard};
use std::sync::atomic::{AtomicU32, Ordering};

const IN: u32 = libc::EPOLLIN as u32;
const OUT: u32 = libc::EPOLLOUT as u32;
const EDGE: u32 = libc::EPOLLET as u32;
const EXCLUSIVE: u32 = libc::EPOLLEXCLUSIVE as u32;
/// Flags of a registration besides its events.
const MANNER: u32 = (libc::EPOLLET | libc::EPOLLONESHOT | libc::EPOLLWAKEUP) as u32;

const INDEX_BITS: u32 = 15;
const REGISTRATION_BITS: u32 = REGISTRATIONS.ilog2();
const GENERATION_BITS: u32 = 32 - INDEX_BITS - REGISTRATION_BITS;

/// The upper half of every token: random, and above all user-space addresses, so that no program's data look like it.
static TAG: AtomicU32 = AtomicU32::new(0);

/// Chooses the tag.
pub(crate) fn init() {
    let mut tag = [0; 4];
    // Without random numbers the clock is used: the tag guards against accidents, not against the program.
    if sys::random(&mut tag).is_err() {
        tag = (sys::wall_clock().subsec_nanos()).to_ne_bytes();
    }
    TAG.store(u32::from_ne_bytes(tag) | 1 << 31, Ordering::Relaxed);
}

/// Hides the program's interest from the kernel, before a handshake begins.
pub(crate) fn hide(guard: &mut Guard) {
    each(guard, |registration, token| {
        registration.shown = false;
        while_pending(token)
    });
}

/// Restores the program's interest, unless another process that shares set and socket has done so: this process does
/// not know what that one has requested since.
pub(crate) fn show(guard: &mut Guard) {
    each(guard, |registration, _| {
        registration.shown = true;
        EpollEvent { events: registration.events, u64: registration.data }
    });
}

/// Restores the program's interest before its descriptor is closed, where the kernel would otherwise report the token for
/// ever. Others report it once at most, and must not be armed again: the program may be done with them.
pub(crate) fn show_level_triggered(guard: &mut Guard) {
    each_if(
        guard,
        |registration| registration.events & (EDGE | libc::EPOLLONESHOT as u32) == 0,
        |registration, _| {
            registration.shown = true;
            EpollEvent { events: registration.events, u64: registration.data }
        },
    );
}

/// Lets every registration report as the program requested it, so that it reports the failure of a connect.
pub(crate) fn fail(guard: &mut Guard) {
    each(guard, |registration, token| {
        registration.shown = false;
        after_failure(registration.events, token)
    });
}

/// Events to request from the kernel during a handshake.
pub(crate) fn while_pending(token: u64) -> EpollEvent {
    EpollEvent { events: IN | OUT | EDGE, u64: token }
}

/// Events to request from the kernel after a failure, in place of the program's.
pub(crate) fn after_failure(events: u32, token: u64) -> EpollEvent {
    EpollEvent { events: events & MANNER | OUT, u64: token }
}

/// Takes the socket out of its epoll sets, before another replaces it. The record keeps those in which it was: the
/// program may have closed a set or a descriptor, and their numbers may belong to others.
pub(crate) fn withdraw(guard: &mut Guard) {
    let cookie = guard.cookie();
    let Some(record) = guard.record() else { return };
    for slot in &mut record.registrations {
        let Some(Registration { epfd, fd, .. }) = *slot else { continue };
        let none = EpollEvent { events: 0, u64: 0 };
        let was_there = sys::cookie(fd) == Some(cookie) && sys::epoll_ctl(epfd, libc::EPOLL_CTL_DEL, fd, none).is_ok();
        if !was_there {
            *slot = None;
        }
    }
}

/// Puts the socket into its epoll sets again, where it reports nothing to the program yet.
pub(crate) fn renew(guard: &mut Guard) {
    let cookie = guard.cookie();
    for slot in 0..REGISTRATIONS {
        // The kernel always reports a hang-up, and an unconnected socket has one.
        let dormant = EpollEvent { events: EDGE, u64: token(guard, slot) };
        let Some(registration) = guard.record().and_then(|record| record.registrations[slot].as_mut()) else {
            continue;
        };
        (registration.exclusive, registration.shown) = (false, false);
        if sys::cookie(registration.fd) == Some(cookie) {
            let _ = sys::epoll_ctl(registration.epfd, libc::EPOLL_CTL_ADD, registration.fd, dormant);
        }
    }
}

/// Changes every reachable registration that differs from the wanted one.
fn each(guard: &mut Guard, event: impl Fn(&mut Registration, u64) -> EpollEvent) {
    each_if(guard, |_| true, event);
}

/// The same for those that `concerns` selects.
fn each_if(
    guard: &mut Guard,
    concerns: impl Fn(&Registration) -> bool,
    event: impl Fn(&mut Registration, u64) -> EpollEvent,
) {
    let cookie = guard.cookie();
    for slot in 0..REGISTRATIONS {
        let token = token(guard, slot);
        let Some(registration) = guard.record().and_then(|record| record.registrations[slot].as_mut()) else {
            continue;
        };
        if !concerns(registration) {
            continue;
        }
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
    // An exclusive registration can neither be changed nor result from a change (epoll_ctl(2)).
    if !registration.exclusive && !exclusive {
        return sys::epoll_ctl(epfd, libc::EPOLL_CTL_MOD, fd, event);
    }
    registration.exclusive = exclusive;
    sys::epoll_ctl(epfd, libc::EPOLL_CTL_DEL, fd, event)?;
    sys::epoll_ctl(epfd, libc::EPOLL_CTL_ADD, fd, event)
}

pub(crate) fn token(guard: &Guard, slot: usize) -> u64 {
    let (index, generation) = guard.place();
    let low = generation << (INDEX_BITS + REGISTRATION_BITS) | (index as u32) << REGISTRATION_BITS | slot as u32;
    u64::from(TAG.load(Ordering::Relaxed)) << 32 | u64::from(low)
}

/// Whether the kernel's registration has a token in place of the program's data.
pub(crate) fn is_token(data: u64) -> bool {
    let tag = TAG.load(Ordering::Relaxed);
    tag != 0 && (data >> 32) as u32 == tag
}

/// The entry and registration of a token; `None` within if they are gone.
pub(crate) fn decode(data: u64) -> Option<Option<(Guard, usize)>> {
    if !is_token(data) {
        return None;
    }
    let low = data as u32;
    let slot = low as usize % REGISTRATIONS;
    let index = (low >> REGISTRATION_BITS) as usize % (1 << INDEX_BITS);
    let same = |guard: &Guard| guard.place().1 % (1 << GENERATION_BITS) == low >> (INDEX_BITS + REGISTRATION_BITS);
    Some(table::at(index).filter(same).map(|guard| (guard, slot)))
}
