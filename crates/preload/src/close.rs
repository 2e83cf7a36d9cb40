//! close(2) and shutdown(2) while a session is being opened.
//!
//! A socket that is closed may live on by a descriptor that dup or fork made, and its handshake with it. So a close only
//! marks the entry, and the next call on another descriptor clears the mark. Of those that stay marked a few are kept; the
//! rest, and whatever was closed unseen, goes at the latest when the handshake would have timed out.

use crate::handshake;
use crate::process::{no_unwind, shares_memory};
use crate::table::{self, State};
use crate::{config, real};
use libc::c_int;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// Entries of closed sockets that are kept.
const KEPT: usize = 64;

/// Their places, plus one.
static CLOSED: [AtomicU32; KEPT] = [const { AtomicU32::new(0) }; KEPT];
static NEXT: AtomicUsize = AtomicUsize::new(0);

/// Notes that a descriptor is about to be closed.
fn closing(fd: c_int) {
    // A child of vfork closes its own descriptors, not those that the table is about.
    if shares_memory() {
        return;
    }
    let Some(mut guard) = table::find(fd) else { return };
    match guard.state() {
        State::Free | State::Open => {}
        State::Watched | State::Failed => guard.remove(),
        State::Pending => {
            guard.facts().closed = true;
            let place = guard.place().0;
            drop(guard);
            keep(place);
        }
    }
}

/// Keeps one more, and lets go of the one that was kept longest.
fn keep(place: usize) {
    let slot = NEXT.fetch_add(1, Ordering::Relaxed) % KEPT;
    let oldest = CLOSED[slot].swap(place as u32 + 1, Ordering::Relaxed);
    if let Some(mut guard) = oldest.checked_sub(1).and_then(|place| table::at(place as usize)) {
        // Another socket may have the place by now; if it is closed as well, it goes a little early.
        if guard.state() == State::Pending && guard.facts().closed {
            guard.remove();
        }
    }
}

hook! {
    /// close(2).
    fn close(fd: c_int) -> c_int {
        if !table::is_empty() {
            no_unwind(|| closing(fd));
        }
        real::close(fd)
    }

    /// close(2) by the C library's own name.
    fn __close(fd: c_int) -> c_int {
        close(fd)
    }

    /// shutdown(2): ends a connect that is under way, as in the kernel.
    fn shutdown(fd: c_int, how: c_int) -> c_int {
        if config::get().is_some() && !table::is_quiet() && (libc::SHUT_RD..=libc::SHUT_RDWR).contains(&how) {
            let ended = no_unwind(|| {
                let mut guard = table::find_live(fd).filter(|guard| guard.state() == State::Pending)?;
                let waiting = matches!(handshake::advance(&mut guard, fd), handshake::Stage::Waiting { .. });
                waiting.then(|| handshake::abandon(&mut guard, fd))
            });
            if ended.is_some() {
                return 0;
            }
        }
        real::shutdown(fd, how)
    }
}
