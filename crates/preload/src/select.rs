//! select(2) and pselect(2), on top of the same looks as poll.

use crate::pending::{self, Found};
use crate::poll::{look, nanoseconds, timespec_of};
use crate::{real, sys};
use libc::{c_int, c_short, fd_set, sigset_t, timespec, timeval};

/// # Safety
/// As for select(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn select(
    n: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    // SAFETY: the program's sets.
    let mut sets = unsafe { [read.as_mut(), write.as_mut(), except.as_mut()] };
    if !concerned(n, &sets) {
        // SAFETY: the program's own call.
        return unsafe { real::select(n, read, write, except, timeout) };
    }
    // SAFETY: the program's own.
    let time = unsafe { timeout.as_mut() };
    let begun = sys::now();
    let total = time.as_ref().map(|time| time.tv_sec as u64 * 1_000_000_000 + time.tv_usec as u64 * 1000);
    let result = watch(n, &mut sets, total, std::ptr::null());
    if let (Some(time), Some(total)) = (time, total) {
        // Linux says how much time was left.
        let left = total.saturating_sub(sys::now() - begun) / 1000;
        *time = timeval { tv_sec: (left / 1_000_000) as i64, tv_usec: (left % 1_000_000) as i64 };
    }
    result
}

/// # Safety
/// As for pselect(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pselect(
    n: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the program's sets.
    let mut sets = unsafe { [read.as_mut(), write.as_mut(), except.as_mut()] };
    if !concerned(n, &sets) {
        // SAFETY: the program's own call.
        return unsafe { real::pselect(n, read, write, except, timeout, mask) };
    }
    // SAFETY: the program's own.
    watch(n, &mut sets, unsafe { timeout.as_ref() }.map(nanoseconds), mask)
}

type Sets<'a> = [Option<&'a mut fd_set>; 3];

/// What poll calls the three sets.
const EVENTS: [c_short; 3] =
    [libc::POLLIN | libc::POLLERR | libc::POLLHUP, libc::POLLOUT | libc::POLLERR, libc::POLLPRI];

fn contains(set: &fd_set, fd: c_int) -> bool {
    // SAFETY: callers keep `fd` below FD_SETSIZE.
    unsafe { libc::FD_ISSET(fd, set) }
}

/// Whether a handshake is in one of the sets. Programs with larger sets than the C library's select past the shim.
fn concerned(n: c_int, sets: &Sets) -> bool {
    pending::any()
        && (0..=libc::FD_SETSIZE as c_int).contains(&n)
        && (0..n)
            .any(|fd| sets.iter().flatten().any(|set| contains(set, fd)) && !matches!(pending::find(fd), Found::None))
}

fn watch(n: c_int, sets: &mut Sets, timeout_ns: Option<u64>, mask: *const sigset_t) -> c_int {
    // SAFETY: all zeros is an empty set.
    let empty: fd_set = unsafe { std::mem::zeroed() };
    let wanted: [fd_set; 3] = std::array::from_fn(|i| sets[i].as_deref().copied().unwrap_or(empty));
    let deadline = timeout_ns.map(|ns| sys::now().saturating_add(ns));
    loop {
        let (mut mine, mut seen) = (wanted, [empty; 3]);
        let mut decided = 0;
        for fd in 0..n {
            if !wanted.iter().any(|set| contains(set, fd)) || matches!(pending::find(fd), Found::None) {
                continue;
            }
            // SAFETY: `fd` is below `n`, and so below FD_SETSIZE.
            mine.iter_mut().for_each(|set| unsafe { libc::FD_CLR(fd, set) });
            match look(fd, libc::POLLIN | libc::POLLOUT | libc::POLLPRI) {
                Ok(events) => decided += note(fd, events, &wanted, &mut seen),
                // SAFETY: as above.
                Err(events) if events & libc::POLLOUT != 0 => unsafe { libc::FD_SET(fd, &raw mut mine[1]) },
                // SAFETY: as above.
                Err(_) => unsafe { libc::FD_SET(fd, &raw mut mine[0]) },
            }
        }
        let left = deadline.map(|deadline| deadline.saturating_sub(sys::now()));
        let time = if decided > 0 { Some(timespec_of(0)) } else { left.map(timespec_of) };
        let time_pointer = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        let [r, w, e] = &mut mine;
        // SAFETY: three sets of this call; the mask is the program's.
        let result = unsafe { real::pselect(n, r, w, e, time_pointer, mask) };
        if result < 0 && decided == 0 {
            return result;
        }
        for fd in 0..n {
            if result <= 0 || !mine.iter().any(|set| contains(set, fd)) {
                continue;
            }
            decided += match pending::find(fd) {
                Found::None if (0..3).all(|i| !contains(&mine[i], fd) || contains(&wanted[i], fd)) => {
                    note(fd, EVENTS.iter().fold(0, |all, one| all | one), &mine, &mut seen)
                }
                _ => look(fd, libc::POLLIN | libc::POLLOUT | libc::POLLPRI)
                    .map_or(0, |events| note(fd, events, &wanted, &mut seen)),
            };
        }
        if decided > 0 || left == Some(0) {
            for (set, seen) in sets.iter_mut().zip(seen) {
                if let Some(set) = set {
                    **set = seen;
                }
            }
            return decided;
        }
    }
}

/// Marks `fd` in the sets that `events` stand for and that were asked for; returns in how many.
fn note(fd: c_int, events: c_short, wanted: &[fd_set; 3], seen: &mut [fd_set; 3]) -> c_int {
    let mut marked = 0;
    for i in 0..3 {
        if events & EVENTS[i] != 0 && contains(&wanted[i], fd) {
            // SAFETY: `fd` is below FD_SETSIZE.
            unsafe { libc::FD_SET(fd, &raw mut seen[i]) };
            marked += 1;
        }
    }
    marked
}
