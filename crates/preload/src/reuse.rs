//! Sockets whose connection is over, and that may connect again: by connect(2) to AF_UNSPEC, or after an error that the
//! program has been told.
//!
//! The table then has to know their epoll sets, also those to which they were added while they were connected. What
//! was changed on a socket for its gateway is undone, so that one of another address family is replaced again.

use crate::process::{no_unwind, shares_memory};
use crate::socket::{self, SocketKind};
use crate::table::{self, Guard, State};
use crate::{changes, epoll_sets, registrations, sys};
use libc::c_int;

/// Prepares the socket of an open session, which ends now.
pub(crate) fn after_session(mut guard: Guard, fd: c_int) {
    // The parent of a child of vfork sees by its next connect that the session is over.
    if shares_memory() {
        return;
    }
    guard.set_state(State::Watched);
    // Calls that still wait for the session find that it is gone.
    guard.socket_state().attempt = 0;
    learn_sets(&mut guard, fd);
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
        if SocketKind::of(fd) != SocketKind::Tcp || shares_memory() {
            return;
        }
        let Some(family) = sys::family(fd) else { return };
        // Other threads that change a registration meanwhile wait for the entry.
        let Some(mut guard) = table::enter(fd, family) else { return };
        if guard.state() == State::Watched {
            learn_sets(&mut guard, fd);
        }
        if guard.is_new() {
            guard.remove();
        }
    });
}

/// Records the registrations of the socket as the kernel has them now. Those with a token are in the table already.
fn learn_sets(guard: &mut Guard, fd: c_int) {
    epoll_sets::each(fd, |registration| {
        if registrations::is_token(registration.data) {
            return;
        }
        let Ok(record) = guard.make_record() else { return };
        let known = record.position(registration.epfd, registration.fd);
        if let Some(slot) = known.or_else(|| record.registrations.iter().position(Option::is_none)) {
            record.registrations[slot] = Some(registration);
        }
    });
}
