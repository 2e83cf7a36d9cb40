//! Identifies the memory of a process, and provides locks that survive fork.
//!
//! A child of fork has a copy of the memory, in which other threads' locks stay taken for ever. A child of vfork shares
//! the memory itself. A page that the kernel wipes in copies (MADV_WIPEONFORK) tells the two apart. The first to find
//! it wiped gives the copy a number: one more than the number of the memory that was copied. A taken lock holds this
//! number. A lock that holds another number was copied while it was taken, and is free. Process numbers would not do: a
//! child in a PID namespace of its own may have its parent's.

use crate::sys::{self, Errno};
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use std::time::Duration;

const PAGE: usize = 4096;
/// How often a waiting thread looks at a lock before it yields, and before it sleeps.
const SPINS: u32 = 64;
const YIELDS: u32 = 1000;

/// Content of the page; 0 in a fresh copy.
#[repr(C)]
struct Owner {
    /// The number of this memory.
    number: AtomicU32,
    /// The first process that used this memory.
    pid: AtomicU32,
}

/// Points into the page.
static OWNER: AtomicPtr<Owner> = AtomicPtr::new(std::ptr::null_mut());
/// The last number given, here or in the memory that this was copied from.
static LAST: AtomicU32 = AtomicU32::new(0);

/// Sets up the page.
pub(crate) fn create() -> Result<(), Errno> {
    let page = sys::map(PAGE, false)?;
    // Without it (Linux before 4.14), copies that are made past the C library's fork go unnoticed.
    let _ = sys::wipe_on_fork(page, PAGE);
    // The first call in a child of fork may be made by a child of vfork of its own, in the same memory.
    // SAFETY: the handler only stores to atomics.
    unsafe { libc::pthread_atfork(None, None, Some(own_copy)) };
    OWNER.store(page.cast(), Ordering::Release);
    owner();
    owning_process();
    Ok(())
}

/// Notes the process and the number of a copy that fork has just made.
unsafe extern "C" fn own_copy() {
    if let Some(cell) = cell() {
        cell.number.store(0, Ordering::Relaxed);
        cell.pid.store(0, Ordering::Relaxed);
        owner();
        owning_process();
    }
}

fn cell() -> Option<&'static Owner> {
    // SAFETY: null, or a mapping that is never given back; any bytes are valid atomics.
    unsafe { OWNER.load(Ordering::Acquire).as_ref() }
}

/// The number of this memory, never 0. No process that it was copied from has had the same.
pub(crate) fn owner() -> u32 {
    const ALONE: u32 = 1;
    let Some(cell) = cell() else { return ALONE };
    match cell.number.load(Ordering::Relaxed) {
        0 => {
            // A number repeats only after 2^32 generations of processes.
            let next = LAST.load(Ordering::Relaxed).wrapping_add(1).max(1);
            match cell.number.compare_exchange(0, next, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => LAST.store(next, Ordering::Relaxed),
                // Another thread of a process that has just been made.
                Err(number) => return number,
            }
            next
        }
        number => number,
    }
}

/// The first process that used this memory.
fn owning_process() -> u32 {
    let Some(cell) = cell() else { return sys::getpid() };
    match cell.pid.load(Ordering::Relaxed) {
        0 => {
            let own = sys::getpid();
            cell.pid.store(own, Ordering::Relaxed);
            own
        }
        pid => pid,
    }
}

/// Whether this process runs in the memory of another, as children of vfork do. Its descriptors are its own, but the
/// table describes the parent's.
pub(crate) fn shares_memory() -> bool {
    owning_process() != sys::getpid()
}

/// Takes a lock if it is free.
pub(crate) fn try_acquire(lock: &AtomicU32) -> bool {
    let (own, holder) = (owner(), lock.load(Ordering::Relaxed));
    holder != own && lock.compare_exchange(holder, own, Ordering::Acquire, Ordering::Relaxed).is_ok()
}

/// Takes a lock. Hold it only for a moment, and with signals blocked.
pub(crate) fn acquire(lock: &AtomicU32) {
    let mut tries = 0_u32;
    while !try_acquire(lock) {
        tries = tries.wrapping_add(1);
        back_off(tries);
    }
}

/// Lets the holder of a lock run, even if this thread has a real-time priority and the holder has not.
pub(crate) fn back_off(tries: u32) {
    match tries {
        ..SPINS => std::hint::spin_loop(),
        SPINS..YIELDS => sys::yield_now(),
        _ => sys::sleep(Duration::from_micros(50)),
    }
}

/// Releases a lock.
pub(crate) fn release(lock: &AtomicU32) {
    lock.store(0, Ordering::Release);
}

/// A value behind such a lock.
pub(crate) struct Locked<T> {
    lock: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: the value is only reached with the lock held.
unsafe impl<T: Send> Sync for Locked<T> {}

impl<T> Locked<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self { lock: AtomicU32::new(0), value: UnsafeCell::new(value) }
    }

    /// Uses the value. `work` must not block or be a cancellation point.
    pub(crate) fn with<R>(&self, work: impl FnOnce(&mut T) -> R) -> R {
        let mask = sys::block_signals();
        acquire(&self.lock);
        // SAFETY: the lock is held, and the borrow ends before it is released.
        let result = work(unsafe { &mut *self.value.get() });
        release(&self.lock);
        sys::restore_signals(mask);
        result
    }
}

/// Runs `work`, and ends the process if it panics: no panic may unwind into a program that is not Rust's. Destructors
/// must not run in a cancelled thread, so `work` must not be a cancellation point.
pub(crate) fn no_unwind<R>(work: impl FnOnce() -> R) -> R {
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            std::process::abort();
        }
    }
    let bomb = Bomb;
    let result = work();
    std::mem::forget(bomb);
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn child_of_fork_knows_itself_at_once() {
        create().unwrap();
        let parent = owner();
        // SAFETY: the child makes system calls only.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let cell = cell().unwrap();
            let known = cell.pid.load(Ordering::Relaxed) == sys::getpid();
            let numbered = !matches!(cell.number.load(Ordering::Relaxed), 0) && owner() != parent;
            // SAFETY: ends the child.
            unsafe { libc::_exit(i32::from(!(known && numbered))) };
        }
        let mut status = 0;
        // SAFETY: `status` is valid for writing.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
    }
}
