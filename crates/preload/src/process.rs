//! Whose memory this is, and locks that survive fork.
//!
//! A child of fork has a copy of the memory, in which other threads' locks stay taken for ever; a child of vfork has the
//! memory itself. The two are told apart by a page that the kernel wipes in copies (MADV_WIPEONFORK): it holds the number of
//! the process whose memory this is, which is also what a taken lock holds. A lock that holds another number was copied
//! while it was taken, and is free.

use crate::sys::{self, Errno};
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use std::time::Duration;

const PAGE: usize = 4096;
/// Looks at a lock before a waiting thread lets others run, and before it sleeps.
const SPINS: u32 = 64;
const YIELDS: u32 = 1000;

/// Points into the page; 0 there means a fresh copy.
static OWNER: AtomicPtr<AtomicU32> = AtomicPtr::new(std::ptr::null_mut());

/// Sets the page up.
pub(crate) fn create() -> Result<(), Errno> {
    let page = sys::map(PAGE, false)?;
    if sys::wipe_on_fork(page, PAGE).is_err() {
        // Linux before 4.14: copies made past the C library's fork go unnoticed.
        // SAFETY: the handler only stores to an atomic.
        unsafe { libc::pthread_atfork(None, None, Some(forget)) };
    }
    OWNER.store(page.cast(), Ordering::Release);
    owner();
    Ok(())
}

unsafe extern "C" fn forget() {
    if let Some(cell) = cell() {
        cell.store(0, Ordering::Relaxed);
    }
}

fn cell() -> Option<&'static AtomicU32> {
    // SAFETY: null, or a mapping that is never given back; any bytes are a valid atomic.
    unsafe { OWNER.load(Ordering::Acquire).as_ref() }
}

/// The number of the process whose memory this is.
pub(crate) fn owner() -> u32 {
    let Some(cell) = cell() else { return sys::getpid() };
    match cell.load(Ordering::Relaxed) {
        0 => {
            let own = sys::getpid();
            cell.store(own, Ordering::Relaxed);
            own
        }
        owner => owner,
    }
}

/// Whether this process runs in the memory of another, as children of vfork do: its descriptors are its own, but what is
/// known about them is the parent's.
pub(crate) fn shares_memory() -> bool {
    owner() != sys::getpid()
}

/// Takes a lock if it is free.
pub(crate) fn try_acquire(lock: &AtomicU32) -> bool {
    let (own, holder) = (owner(), lock.load(Ordering::Relaxed));
    holder != own && lock.compare_exchange(holder, own, Ordering::Acquire, Ordering::Relaxed).is_ok()
}

/// Takes a lock. It must be held for a moment only, and with signals blocked.
pub(crate) fn acquire(lock: &AtomicU32) {
    let mut tries = 0_u32;
    while !try_acquire(lock) {
        tries = tries.wrapping_add(1);
        back_off(tries);
    }
}

/// Lets whoever holds a lock go on, also where this thread has a real-time priority and that one has not.
pub(crate) fn back_off(tries: u32) {
    match tries {
        ..SPINS => std::hint::spin_loop(),
        SPINS..YIELDS => sys::yield_now(),
        _ => sys::sleep(Duration::from_micros(50)),
    }
}

/// Gives a lock back.
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

    /// Uses the value. `work` must neither wait nor be a point of cancellation.
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

/// Runs `work` and ends the process should it panic: no panic may unwind into a program that is not Rust's. Destructors
/// must not stand in the way of a cancelled thread, so this is only for work that is no point of cancellation.
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
