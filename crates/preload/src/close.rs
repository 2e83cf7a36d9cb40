//! close(2), dup2(2) and the like, and shutdown(2), while a session is being opened.
//!
//! A closed socket may live on through a descriptor that dup or fork made. Then its handshake, its place in epoll sets
//! and its unreported failure live on, too. So a close only marks the entry, and the next call on another descriptor
//! clears the mark. A few marked entries are kept. The others, and sockets that were closed without a call to this
//! library, are removed when the handshake would have timed out, or when their slot is needed.

use crate::process::{no_unwind, shares_memory};
use crate::sys::{self, Errno};
use crate::table::{self, State};
use crate::{config, handshake, real, registrations};
use libc::{c_int, c_uint};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// Entries of closed sockets that are kept.
pub(crate) const KEPT: usize = 64;

/// Their slots, plus one.
static CLOSED: [AtomicU32; KEPT] = [const { AtomicU32::new(0) }; KEPT];
static NEXT: AtomicUsize = AtomicUsize::new(0);

/// Closes a descriptor by `close`, or gives its number to another file. If there is an entry for it that may change,
/// the entry is locked meanwhile: no thread continues a handshake on a number that now belongs to another socket.
/// `None` if there is no such entry; the program's own call may then block.
pub(crate) fn closing(fd: c_int, close: impl FnOnce() -> Result<(), Errno>) -> Option<Result<(), Errno>> {
    // A child of vfork closes its own descriptors, not those of the table.
    if shares_memory() {
        return None;
    }
    let mut guard = table::find_to_close(fd)?;
    match guard.state() {
        State::Free | State::Open => None,
        state => {
            if state == State::Failed {
                // Epoll sets keep the registration for other descriptors of the socket, and nothing can change it after
                // this call.
                registrations::show_level_triggered(&mut guard);
            }
            // The socket itself is released after the lock: with SO_LINGER that may block.
            let last = if state == State::Pending { sys::duplicate(fd).ok() } else { None };
            let result = close();
            if result.is_ok() {
                guard.socket_state().closed = true;
                let place = guard.place().0;
                drop(guard);
                keep(place);
            } else {
                drop(guard);
            }
            last.into_iter().for_each(sys::close);
            Some(result)
        }
    }
}

/// Closes the descriptors from `first` to `last` that have a handshake in progress.
fn closing_range(first: c_uint, last: c_uint) {
    if shares_memory() {
        return;
    }
    table::each_pending(|guard| {
        let (fd, place) = (guard.descriptor(), guard.place());
        drop(guard);
        if c_uint::try_from(fd).is_ok_and(|fd| (first..=last).contains(&fd))
            && table::find(fd).is_some_and(|guard| guard.place() == place)
        {
            closing(fd, || sys::try_close(fd));
        }
    });
}

/// Gives the number `to` to the file behind `from`; by `real` if `to` has no handshake.
fn duplicating(from: c_int, to: c_int, cloexec: bool, real: impl FnOnce() -> c_int) -> c_int {
    // If there is nothing to duplicate, `to` stays unchanged.
    let closes = !table::is_empty() && from != to && sys::status_flags(from).is_ok();
    let replaced = if closes { no_unwind(|| closing(to, || sys::dup3(from, to, cloexec))) } else { None };
    match replaced {
        None => real(),
        Some(Ok(())) => to,
        Some(Err(errno)) => {
            sys::set_errno(errno);
            -1
        }
    }
}

/// Keeps one more entry, and releases the oldest.
fn keep(place: usize) {
    let slot = NEXT.fetch_add(1, Ordering::Relaxed) % KEPT;
    let oldest = CLOSED[slot].swap(place as u32 + 1, Ordering::Relaxed);
    if let Some(mut guard) = oldest.checked_sub(1).and_then(|place| table::at(place as usize)) {
        // Another socket may have the slot by now. If it is closed as well, it is released a little early.
        if !matches!(guard.state(), State::Free | State::Open) && guard.socket_state().closed {
            guard.remove();
        }
    }
}

hook! {
    /// close(2).
    fn close(fd: c_int) -> c_int {
        let closed = if table::is_empty() { None } else { no_unwind(|| closing(fd, || sys::try_close(fd))) };
        match closed {
            None => real::close(fd),
            Some(Ok(())) => 0,
            Some(Err(errno)) => {
                sys::set_errno(errno);
                -1
            }
        }
    }

    /// close(2) by the C library's own name.
    fn __close(fd: c_int) -> c_int {
        close(fd)
    }

    /// close_range(2).
    fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
        // With these flags, the call only marks them or closes the calling thread's own copies.
        let spares = flags as c_uint & (libc::CLOSE_RANGE_CLOEXEC | libc::CLOSE_RANGE_UNSHARE) != 0;
        if first <= last && !spares && !table::is_quiet() {
            no_unwind(|| closing_range(first, last));
        }
        real::close_range(first, last, flags)
    }

    /// closefrom(3).
    fn closefrom(first: c_int) -> () {
        if !table::is_quiet() {
            no_unwind(|| closing_range(c_uint::try_from(first).unwrap_or(0), c_uint::MAX));
        }
        real::closefrom(first)
    }

    /// dup2(2).
    fn dup2(from: c_int, to: c_int) -> c_int {
        duplicating(from, to, false, || real::dup2(from, to))
    }

    /// dup2(2) by the C library's own name.
    fn __dup2(from: c_int, to: c_int) -> c_int {
        dup2(from, to)
    }

    /// dup3(2).
    fn dup3(from: c_int, to: c_int, flags: c_int) -> c_int {
        if flags & !libc::O_CLOEXEC != 0 {
            return real::dup3(from, to, flags);
        }
        duplicating(from, to, flags != 0, || real::dup3(from, to, flags))
    }

    /// shutdown(2): ends a connect in progress, as in the kernel.
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
