//! The end of an attempt: the program's result, and what the table keeps of its socket.

use super::Stage;
use crate::config::Config;
use crate::record::Outcome;
use crate::report::{self, Failure};
use crate::sys::Errno;
use crate::table::{Guard, State};
use crate::{changes, gateways, registrations, socket};
use libc::c_int;

/// Ends an attempt that failed. Returns the error for the program, or `None` if the socket connects directly to the
/// destination instead.
pub(super) fn give_up(guard: &mut Guard, fd: c_int, config: &Config, failure: &Failure, direct: bool) -> Option<Errno> {
    let destination = guard.socket_state().destination;
    // Of several addresses, the program gets the most informative error.
    let telling = guard.record().and_then(|record| record.attempt.as_ref()?.telling());
    let failure = match (failure, telling) {
        (Failure::Connect(_), Some((_, errno))) => &Failure::Connect(errno),
        (failure, _) => failure,
    };
    let mut redirected = false;
    if let (Some(attempt), Some(to)) =
        (guard.record().and_then(|record| record.attempt.as_mut()), destination.socket_addr())
    {
        report::failed(config, attempt, failure, to, direct);
        redirected = attempt.plan.redirected().is_some();
        attempt.handshake = None;
    }
    if failure.is_unreachable() && !redirected {
        gateways::nobody_answered();
    }
    socket::reset(guard, fd);
    let outcome = match destination.socket_addr().filter(|_| direct) {
        Some(to) => socket::fit_directly(guard, fd, to)
            .and_then(|()| socket::start_plain(fd, &destination))
            .map_or_else(Outcome::Failed, |()| Outcome::Direct),
        None => Outcome::Failed(failure.errno()),
    };
    if let Some(attempt) = guard.record().and_then(|record| record.attempt.as_mut()) {
        attempt.outcome = outcome;
        attempt.unsettled.clear();
    }
    match outcome {
        Outcome::Failed(errno) => Some(errno),
        _ => None,
    }
}

/// Gives the socket to the program in this state.
pub(super) fn settle(guard: &mut Guard, state: State) -> Stage {
    match state {
        State::Open => {
            registrations::show(guard);
            let cookie = guard.cookie();
            if let Some(attempt) = guard.record().and_then(|record| record.attempt.as_ref()) {
                changes::keep(cookie, &attempt.changes);
            }
            guard.drop_record();
            guard.set_state(state);
            Stage::Plain
        }
        State::Failed => {
            guard.set_state(state);
            registrations::fail(guard);
            if !is_watched(guard) {
                guard.drop_record();
            }
            Stage::Failed
        }
        _ => {
            withdraw(guard);
            Stage::Plain
        }
    }
}

/// Leaves in the table only the epoll sets of a socket without a session.
pub(super) fn withdraw(guard: &mut Guard) {
    registrations::show(guard);
    if let Some(record) = guard.record().filter(|record| record.is_watched()) {
        record.attempt = None;
        guard.socket_state().errno = 0;
        guard.set_state(State::Watched);
    } else {
        guard.forget();
    }
}

pub(super) fn is_watched(guard: &mut Guard) -> bool {
    guard.record().is_some_and(|record| record.is_watched())
}
