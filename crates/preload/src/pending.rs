//! Sockets whose session is not open yet, or has failed and not been asked why. State is kept under the socket's cookie.
//!
//! A fixed table in memory that is there from the start: a hook must not allocate. Locks are held for a few system calls
//! that do not wait; a signal handler that meets its own thread's lock is told that the socket is busy.

use crate::sys;
use libc::c_int;
use phoebus_proto::session::Initiator;
use std::cell::UnsafeCell;
use std::net::SocketAddr;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// Handshakes at a time in one process. A program that connects more at once gets EAGAIN, as from a full port range.
const SLOTS: usize = 1024;
/// Room for PREFACE, HELLO, AUTH and an OPEN with the longest path there is.
const OUT_SIZE: usize = 8 * 1024;
/// Room for the longest message.
const IN_SIZE: usize = phoebus_proto::session::MESSAGE_MAX;

pub(crate) type Handshake = Initiator<&'static mut [u8], &'static mut [u8]>;

/// How far a session has come.
pub(crate) enum Phase {
    /// The connection to the gateway is being made.
    Connecting,
    /// The handshake's bytes are on their way.
    Talking,
    /// The session failed with this errno, which the program has not been told yet.
    Failed(c_int),
}

/// One socket's state.
pub(crate) struct Pending {
    pub(crate) phase: Phase,
    pub(crate) handshake: Option<Handshake>,
    pub(crate) destination: SocketAddr,
    pub(crate) gateway: SocketAddr,
    /// The descriptor that was connected, and how often it was duplicated since.
    pub(crate) fd: c_int,
    pub(crate) duplicates: u32,
    pub(crate) since: u64,
}

struct Slot {
    /// The thread that works with the slot; 0: none.
    owner: AtomicU32,
    state: UnsafeCell<Option<Pending>>,
}

// SAFETY: `state` is only touched by the thread whose number is in `owner`.
unsafe impl Sync for Slot {}

/// The socket of each slot; 0: free, 1: being filled. Apart from the slots so that a search stays in few cache lines.
static COOKIES: [AtomicU64; SLOTS] = [const { AtomicU64::new(0) }; SLOTS];
static TABLE: [Slot; SLOTS] = [const { Slot { owner: AtomicU32::new(0), state: UnsafeCell::new(None) } }; SLOTS];
static COUNT: AtomicUsize = AtomicUsize::new(0);
static BUFFERS: AtomicPtr<u8> = AtomicPtr::new(std::ptr::null_mut());

const CLAIMED: u64 = 1;

/// Sets the memory aside; pages are only touched when a handshake uses them.
pub(crate) fn prepare() -> bool {
    let len = SLOTS * (OUT_SIZE + IN_SIZE);
    // SAFETY: a fresh private mapping touches nothing that exists.
    let memory = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            len,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
            0,
        )
    };
    if memory == libc::MAP_FAILED {
        return false;
    }
    BUFFERS.store(memory.cast(), Ordering::Release);
    true
}

/// Whether there is any: the one question that every hook asks of every call.
pub(crate) fn any() -> bool {
    COUNT.load(Ordering::Relaxed) > 0
}

/// What a search found.
pub(crate) enum Found {
    /// Nothing: the socket is the program's.
    None,
    /// The state, for as long as the guard lives.
    Pending(Guard),
    /// State that this very thread is working with, further down its stack.
    Busy,
}

/// The state of the socket behind `fd`.
pub(crate) fn find(fd: c_int) -> Found {
    if !any() || crate::config::active().is_none() {
        return Found::None;
    }
    sys::cookie(fd).map_or(Found::None, find_cookie)
}

/// The state of the socket with this cookie.
pub(crate) fn find_cookie(cookie: u64) -> Found {
    let Some(index) = COOKIES.iter().position(|known| known.load(Ordering::Acquire) == cookie) else {
        return Found::None;
    };
    let Some(guard) = lock(index) else { return Found::Busy };
    // It may have been released while this thread waited.
    if COOKIES[index].load(Ordering::Acquire) == cookie { Found::Pending(guard) } else { Found::None }
}

/// A free slot with its buffers; `fill` makes the state that is to be kept under `cookie`.
pub(crate) fn create(
    cookie: u64,
    fill: impl FnOnce(&'static mut [u8], &'static mut [u8]) -> Option<Pending>,
) -> Option<Guard> {
    let claim =
        |index: &usize| COOKIES[*index].compare_exchange(0, CLAIMED, Ordering::AcqRel, Ordering::Relaxed).is_ok();
    let index = (0..SLOTS).find(claim).or_else(|| {
        sweep();
        (0..SLOTS).find(claim)
    })?;
    let Some(mut guard) = lock(index) else {
        COOKIES[index].store(0, Ordering::Release);
        return None;
    };
    let start = BUFFERS.load(Ordering::Acquire).wrapping_add(index * (OUT_SIZE + IN_SIZE));
    // SAFETY: the mapping has a part for each slot; this slot was free, so that nobody else holds its part, and the state
    // that borrows it is dropped before the slot is free again.
    let (out, inbox) = unsafe {
        (std::slice::from_raw_parts_mut(start, OUT_SIZE), std::slice::from_raw_parts_mut(start.add(OUT_SIZE), IN_SIZE))
    };
    *guard.state() = fill(out, inbox);
    if guard.state().is_none() {
        COOKIES[index].store(0, Ordering::Release);
        return None;
    }
    COUNT.fetch_add(1, Ordering::AcqRel);
    COOKIES[index].store(cookie, Ordering::Release);
    Some(guard)
}

/// Frees slots whose sockets are gone without anybody having seen it.
fn sweep() {
    for (index, cookie) in COOKIES.iter().enumerate() {
        let known = cookie.load(Ordering::Acquire);
        if known > CLAIMED
            && let Some(guard) = lock(index)
            && cookie.load(Ordering::Acquire) == known
            && sys::cookie(guard.fd) != Some(known)
            && guard.duplicates == 0
        {
            guard.release();
        }
    }
}

fn lock(index: usize) -> Option<Guard> {
    let me = sys::thread();
    loop {
        match TABLE[index].owner.compare_exchange_weak(0, me, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => return Some(Guard { index }),
            Err(owner) if owner == me => return None,
            // SAFETY: no conditions.
            Err(_) => unsafe { libc::sched_yield() },
        };
    }
}

/// Exclusive use of one socket's state.
pub(crate) struct Guard {
    index: usize,
}

impl Guard {
    /// Ends the handshake: from here on the socket is the program's.
    pub(crate) fn release(mut self) {
        *self.state() = None;
        COOKIES[self.index].store(0, Ordering::Release);
        COUNT.fetch_sub(1, Ordering::AcqRel);
    }

    pub(crate) fn cookie(&self) -> u64 {
        COOKIES[self.index].load(Ordering::Acquire)
    }

    fn state(&mut self) -> &mut Option<Pending> {
        // SAFETY: the guard proves that this thread owns the slot.
        unsafe { &mut *TABLE[self.index].state.get() }
    }
}

impl Deref for Guard {
    type Target = Pending;

    fn deref(&self) -> &Pending {
        // SAFETY: as in `state`; a slot with a cookie has a state, and a guard is only handed out for such.
        unsafe { (*TABLE[self.index].state.get()).as_ref().unwrap_unchecked() }
    }
}

impl DerefMut for Guard {
    fn deref_mut(&mut self) -> &mut Pending {
        // SAFETY: as above.
        unsafe { (*TABLE[self.index].state.get()).as_mut().unwrap_unchecked() }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        TABLE[self.index].owner.store(0, Ordering::Release);
    }
}
