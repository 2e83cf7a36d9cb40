//! Sockets whose connection is over, and that may connect again: by connect(2) to AF_UNSPEC, or after an error that the
//! program has been told.
//!
//! The table then has to know their epoll sets, also those to which they were added while they were connected. What
//! was changed on a socket for its gateway is undone, so that one of another address family is replaced again.

use crate::process::no_unwind;
use crate::record::{REGISTRATIONS, Registration};
use crate::socket::{self, SocketKind};
use crate::table::{self, Guard, State};
use crate::{changes, epoll_sets, registrations, sys};
use libc::c_int;

/// Prepares the socket of an open session, which ends now.
pub(crate) fn after_session(guard: Guard, fd: c_int) {
    let place = guard.place();
    // The kernel takes its time for processes with many descriptors.
    drop(guard);
    let sets = sets_of(fd);
    let is_it = |guard: &Guard| guard.place() == place && guard.state() == State::Open;
    let Some(mut guard) = table::find(fd).filter(is_it) else { return };
    guard.set_state(State::Watched);
    // Calls that still wait for the session find that it is gone.
    guard.facts().attempt = 0;
    note(&mut guard, &sets);
    let changes = changes::take(guard.cookie());
    socket::undo(&mut guard, fd, &changes);
    registrations::show(&mut guard);
    if guard.record().is_none_or(|record| !record.is_watched()) {
        guard.remove();
    }
}

/// Prepares a socket whose direct connection ends now, if it had one.
pub(crate) fn after_direct(fd: c_int) {
    no_unwind(|| {
        if SocketKind::of(fd) != SocketKind::Tcp {
            return;
        }
        let sets = sets_of(fd);
        let Some(family) = sys::family(fd).filter(|_| sets[0].is_some()) else { return };
        let Some(mut guard) = table::enter(fd, family) else { return };
        if guard.state() == State::Watched {
            note(&mut guard, &sets);
            if guard.is_new() {
                guard.remove();
            }
        }
    });
}

/// The registrations of a socket, the found ones first. Those with a token are in the table already.
fn sets_of(fd: c_int) -> [Option<Registration>; REGISTRATIONS] {
    let mut found = [None; REGISTRATIONS];
    let mut count = 0;
    epoll_sets::each(fd, |registration| {
        if count < REGISTRATIONS && !registrations::is_token(registration.data) {
            found[count] = Some(registration);
            count += 1;
        }
    });
    found
}

/// Records the registrations that an entry lacks.
fn note(guard: &mut Guard, sets: &[Option<Registration>; REGISTRATIONS]) {
    for registration in sets.iter().flatten() {
        let Ok(record) = guard.make_record() else { return };
        if record.position(registration.epfd, registration.fd).is_none()
            && let Some(free) = record.registrations.iter_mut().find(|slot| slot.is_none())
        {
            *free = Some(*registration);
        }
    }
}
