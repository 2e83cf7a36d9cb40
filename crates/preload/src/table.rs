//! The sockets of interest, by cookie: a fixed table that needs no memory, no blocking lock, and no notice of every
//! descriptor.
//!
//! A socket keeps its cookie (SO_COOKIE) through dup, fork and whatever else happens to descriptors, and no other
//! socket ever gets it. So an entry whose socket was closed unnoticed is never found again, and is removed when its
//! slot is needed.
//!
//! Each entry has a lock, held for a few system calls that never block. Signals are blocked meanwhile: a handler that
//! connects finds no lock taken by its own thread, and cannot jump out of a locked section. The table is private
//! memory, so a child of fork has a copy ([`crate::process`]); a handshake's data are in [`crate::record`], which is
//! shared.

use crate::addr::RawAddr;
use crate::process::{acquire, release, try_acquire};
use crate::record::Record;
use crate::sys::{self, Errno};
use crate::tcp;
use libc::c_int;
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering};

/// Number of entries. With more sessions at once, the oldest report the gateway as their peer.
const ENTRIES: usize = 1 << 15;
/// Longest distance of an entry from its home slot.
const WINDOW: usize = 64;

/// The state of a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum State {
    /// The entry is free.
    Free = 0,
    /// Not connected, and in epoll sets.
    Watched = 1,
    /// The handshake is under way.
    Pending = 2,
    /// The handshake failed; the program may not know yet.
    Failed = 3,
    /// The session is open: the socket is the program's, and only its peer differs from the kernel's answer.
    Open = 4,
}

/// The content of an entry; visible only with its lock.
#[repr(C)]
pub(crate) struct SocketState {
    /// A descriptor of the socket, as last seen; valid only if its cookie still matches.
    pub(crate) fd: c_int,
    /// The address family that the program believes its socket has.
    pub(crate) family: c_int,
    /// The error that the program has not been told; 0 if none.
    pub(crate) errno: Errno,
    /// Whether the program has closed a descriptor since.
    pub(crate) closed: bool,
    /// The destination of the program's connect.
    pub(crate) destination: RawAddr,
    /// The number of the connect: each has its own in this process.
    pub(crate) attempt: u64,
    /// Orders entries by age.
    stamp: u64,
    record: *mut Record,
}

/// All zero when free.
#[repr(C)]
struct Entry {
    lock: AtomicU32,
    state: AtomicU8,
    generation: AtomicU32,
    socket_state: UnsafeCell<SocketState>,
}

#[repr(C)]
struct Table {
    keys: [AtomicU64; ENTRIES],
    entries: [Entry; ENTRIES],
}

static TABLE: AtomicPtr<Table> = AtomicPtr::new(std::ptr::null_mut());
/// Guards the claiming of entries. A thread with a locked entry may wait for it; its holder waits for no entry.
static CLAIMING: AtomicU32 = AtomicU32::new(0);
static STAMP: AtomicU64 = AtomicU64::new(0);
/// Number of entries in state Pending or Failed: while it is 0, input, output and waiting need no look at the table.
static LIVE: AtomicU32 = AtomicU32::new(0);
/// Entries in state Watched.
static WATCHED: AtomicU32 = AtomicU32::new(0);

/// Allocates the table, which is empty until then.
pub(crate) fn create() -> Result<(), Errno> {
    let table = sys::map(size_of::<Table>(), false)?;
    TABLE.store(table.cast(), Ordering::Release);
    Ok(())
}

/// Whether no handshake is in progress, so that a hook has nothing to do.
#[inline]
pub(crate) fn is_quiet() -> bool {
    LIVE.load(Ordering::Relaxed) == 0
}

/// Whether there is neither a handshake nor an unconnected socket in an epoll set.
#[inline]
pub(crate) fn is_empty() -> bool {
    is_quiet() && WATCHED.load(Ordering::Relaxed) == 0
}

/// The entry of the socket behind `fd`, locked. While it is locked and a handshake is in progress, the hooks that close
/// descriptors wait, so that `fd` stays the same socket.
pub(crate) fn find(fd: c_int) -> Option<Guard> {
    let table = table()?;
    let cookie = sys::cookie(fd)?;
    let guard = Guard::lock(table.position(cookie)?);
    (guard.is_of(fd, cookie) && guard.state() != State::Free).then(|| guard.seen_at(fd))
}

/// The same for a descriptor that is about to be closed. The entry does not note it as the last one seen.
pub(crate) fn find_to_close(fd: c_int) -> Option<Guard> {
    let table = table()?;
    let cookie = sys::cookie(fd)?;
    let guard = Guard::lock(table.position(cookie)?);
    (guard.is_of(fd, cookie) && guard.state() != State::Free).then_some(guard)
}

/// Like [`find`], but only for entries in state Pending or Failed.
pub(crate) fn find_live(fd: c_int) -> Option<Guard> {
    if is_quiet() {
        return None;
    }
    let live = |state| state == State::Pending as u8 || state == State::Failed as u8;
    let table = table()?;
    let cookie = sys::cookie(fd)?;
    // Most descriptors of a busy program are open sessions, which need no lock to be recognized.
    let index = table.position(cookie).filter(|index| live(table.entries[*index].state.load(Ordering::Relaxed)))?;
    let guard = Guard::lock(index);
    (guard.is_of(fd, cookie) && live(guard.state() as u8)).then(|| guard.seen_at(fd))
}

/// Waits until nobody uses the entry of the socket with this cookie, if there is one.
pub(crate) fn wait_for(cookie: u64) {
    if let Some(index) = table().and_then(|table| table.position(cookie)) {
        drop(Guard::lock(index));
    }
}

/// The entry at a recorded slot.
pub(crate) fn at(index: usize) -> Option<Guard> {
    table().filter(|_| index < ENTRIES)?;
    Some(Guard::lock(index)).filter(|guard| guard.state() != State::Free)
}

/// The entry of the socket behind `fd`, created if missing; `None` without a free slot, or if `fd` is no socket.
pub(crate) fn enter(fd: c_int, family: c_int) -> Option<Guard> {
    let table = table()?;
    let cookie = sys::cookie(fd)?;
    loop {
        let mask = sys::block_signals();
        acquire(&CLAIMING);
        let index = table.position(cookie).or_else(|| table.claim(cookie));
        release(&CLAIMING);
        let guard = index.map(Guard::lock);
        // The guard restores the mask that was in force before both.
        let Some(mut guard) = guard else {
            sys::restore_signals(mask);
            return None;
        };
        guard.mask = mask;
        if guard.cookie() != cookie {
            continue;
        }
        if guard.state() == State::Free {
            let stamp = STAMP.fetch_add(1, Ordering::Relaxed);
            *guard.socket_state() = SocketState { fd, family, stamp, ..SocketState::EMPTY };
            guard.set_state(State::Watched);
        }
        return Some(guard);
    }
}

/// Calls `visit` with every entry in state Pending. Slow; for time-outs only.
pub(crate) fn each_pending(mut visit: impl FnMut(Guard)) {
    let Some(table) = table() else { return };
    for (index, entry) in table.entries.iter().enumerate() {
        if entry.state.load(Ordering::Relaxed) == State::Pending as u8 {
            let guard = Guard::lock(index);
            if guard.state() == State::Pending {
                visit(guard);
            }
        }
    }
}

/// A locked entry. Do not hold it across a call that blocks or may be a cancellation point.
pub(crate) struct Guard {
    index: usize,
    mask: u64,
}

impl Guard {
    fn lock(index: usize) -> Self {
        let mask = sys::block_signals();
        acquire(&entry(index).lock);
        Self::locked(index, mask)
    }

    fn try_lock(index: usize) -> Option<Self> {
        let mask = sys::block_signals();
        if !try_acquire(&entry(index).lock) {
            sys::restore_signals(mask);
            return None;
        }
        let guard = Self { index, mask };
        if guard.record_cell().is_none_or(Record::try_lock) {
            return Some(guard);
        }
        // The destructor would release the record, too.
        std::mem::forget(guard);
        release(&entry(index).lock);
        sys::restore_signals(mask);
        None
    }

    fn locked(index: usize, mask: u64) -> Self {
        let guard = Self { index, mask };
        if let Some(record) = guard.record_cell() {
            record.lock();
        }
        guard
    }

    /// The slot of the entry, and the generation of its content.
    pub(crate) fn place(&self) -> (usize, u32) {
        (self.index, entry(self.index).generation.load(Ordering::Relaxed))
    }

    /// Whether this is the entry of the socket with this cookie, and `fd` is still that socket. While this thread
    /// waited for the lock, another may have closed the descriptor, and a new socket may have its number.
    fn is_of(&self, fd: c_int, cookie: u64) -> bool {
        self.cookie() == cookie && sys::cookie(fd) == Some(cookie)
    }

    /// Notes that the socket has this descriptor, whichever was closed before.
    fn seen_at(mut self, fd: c_int) -> Self {
        self.socket_state().fd = fd;
        self.socket_state().closed = false;
        self
    }

    /// The cookie of the socket.
    pub(crate) fn cookie(&self) -> u64 {
        table().map_or(0, |table| table.keys[self.index].load(Ordering::Acquire))
    }

    /// A descriptor of the socket, as last seen.
    pub(crate) fn descriptor(&self) -> c_int {
        // SAFETY: as for `attempt`.
        unsafe { (*entry(self.index).socket_state.get()).fd }
    }

    /// A descriptor that is still the socket's: the last one, or one of those in epoll sets.
    pub(crate) fn valid_descriptor(&mut self) -> Option<c_int> {
        let cookie = self.cookie();
        let last = self.descriptor();
        let registered = self.record().into_iter().flat_map(Record::registered).map(|registration| registration.fd);
        std::iter::once(last).chain(registered).find(|fd| sys::cookie(*fd) == Some(cookie))
    }

    /// The number of the connect that the entry is about; 0 if there was none.
    pub(crate) fn attempt(&self) -> u64 {
        // SAFETY: the lock is held, and nothing else borrows from the guard meanwhile.
        unsafe { (*entry(self.index).socket_state.get()).attempt }
    }

    /// Whether the entry says nothing but that the socket exists.
    pub(crate) fn is_new(&self) -> bool {
        self.state() == State::Watched && self.record_cell().is_none()
    }

    pub(crate) fn state(&self) -> State {
        match entry(self.index).state.load(Ordering::Relaxed) {
            1 => State::Watched,
            2 => State::Pending,
            3 => State::Failed,
            4 => State::Open,
            _ => State::Free,
        }
    }

    pub(crate) fn set_state(&mut self, state: State) {
        let count = |state, by: u32| {
            let counter = match state {
                State::Pending | State::Failed => &LIVE,
                State::Watched => &WATCHED,
                State::Free | State::Open => return,
            };
            counter.fetch_add(by, Ordering::Relaxed);
        };
        // The new count first: a count that dips to zero would let another thread skip its look.
        count(state, 1);
        count(self.state(), u32::MAX);
        entry(self.index).state.store(state as u8, Ordering::Relaxed);
    }

    pub(crate) fn socket_state(&mut self) -> &mut SocketState {
        // SAFETY: the lock is held, and this borrow is the guard's.
        unsafe { &mut *entry(self.index).socket_state.get() }
    }

    fn record_cell(&self) -> Option<&Record> {
        // SAFETY: the lock is held; a record lives until `drop_record`, which borrows the guard.
        unsafe { (*entry(self.index).socket_state.get()).record.as_ref() }
    }

    /// The record of registrations and handshake, if there is one.
    pub(crate) fn record(&mut self) -> Option<&mut Record> {
        // SAFETY: as above; the record's own lock is held with this one, so that no other process uses it either.
        unsafe { self.socket_state().record.as_mut() }
    }

    /// The record, created if missing.
    pub(crate) fn make_record(&mut self) -> Result<&mut Record, Errno> {
        if self.socket_state().record.is_null() {
            let record = Record::create()?;
            // SAFETY: just created, and not known to anyone else.
            unsafe { (*record).lock() };
            self.socket_state().record = record;
        }
        self.record().ok_or(libc::ENOMEM)
    }

    /// Releases the record.
    pub(crate) fn drop_record(&mut self) {
        let record = std::mem::replace(&mut self.socket_state().record, std::ptr::null_mut());
        if !record.is_null() {
            // SAFETY: locked, and nothing else in this process refers to it; other processes have mappings of their
            // own.
            unsafe { Record::destroy(record) };
        }
    }

    /// Takes the entry out of the table.
    pub(crate) fn remove(mut self) {
        self.forget();
    }

    /// Takes the entry out of the table; the guard is of no use afterwards.
    pub(crate) fn forget(&mut self) {
        self.drop_record();
        self.set_state(State::Free);
        *self.socket_state() = SocketState::EMPTY;
        entry(self.index).generation.fetch_add(1, Ordering::Relaxed);
        if let Some(table) = table() {
            table.keys[self.index].store(0, Ordering::Release);
        }
    }

    /// An entry for the socket behind `fd` that is to replace this one. Threads that find it wait.
    pub(crate) fn successor(&mut self, fd: c_int) -> Result<Self, Errno> {
        let mut new = enter(fd, self.socket_state().family).ok_or(libc::ENOBUFS)?;
        new.set_state(self.state());
        Ok(new)
    }

    /// Proceeds to the entry of the socket that is behind `fd` now: it has replaced the earlier one, with all its data.
    pub(crate) fn follow(&mut self, mut new: Self, fd: c_int) {
        let stamp = new.socket_state().stamp;
        *new.socket_state() = SocketState { fd, stamp, ..std::mem::replace(self.socket_state(), SocketState::EMPTY) };
        new.set_state(self.state());
        std::mem::swap(self, &mut new);
        // Masks nest: the one that was in force before both must be restored last.
        std::mem::swap(&mut self.mask, &mut new.mask);
        new.remove();
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(record) = self.record_cell() {
            record.unlock();
        }
        release(&entry(self.index).lock);
        sys::restore_signals(self.mask);
    }
}

impl SocketState {
    const EMPTY: Self = Self {
        fd: 0,
        family: 0,
        errno: 0,
        closed: false,
        destination: RawAddr::EMPTY,
        attempt: 0,
        stamp: 0,
        record: std::ptr::null_mut(),
    };
}

impl Table {
    fn window(cookie: u64) -> impl Iterator<Item = usize> {
        // Fibonacci hashing: cookies are nearly consecutive numbers.
        let home = (cookie.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize;
        (0..WINDOW).map(move |step| home.wrapping_add(step) % ENTRIES)
    }

    fn position(&self, cookie: u64) -> Option<usize> {
        Self::window(cookie).find(|index| self.keys[*index].load(Ordering::Acquire) == cookie)
    }

    /// A slot for a new entry: a free one, or the least worth keeping.
    fn claim(&self, cookie: u64) -> Option<usize> {
        let free = Self::window(cookie).find(|index| self.keys[*index].load(Ordering::Acquire) == 0);
        let index = free.or_else(|| {
            let (_, index) = Self::window(cookie).filter_map(|index| Some((Self::worth(index)?, index))).min()?;
            Self::dispensable(index)?.remove();
            Some(index)
        })?;
        self.keys[index].store(cookie, Ordering::Release);
        Some(index)
    }

    /// The entry there, if it can make room for another.
    fn dispensable(index: usize) -> Option<Guard> {
        Guard::try_lock(index).filter(|guard| matches!(guard.state(), State::Open | State::Watched))
    }

    /// What it costs to drop the entry there: nothing if its socket is gone; little if it is connected directly, and
    /// only its next connect may be a session; otherwise more for younger ones.
    fn worth(index: usize) -> Option<(u8, u64)> {
        let mut guard = Self::dispensable(index)?;
        let (cookie, fd, stamp) = (guard.cookie(), guard.socket_state().fd, guard.socket_state().stamp);
        match guard.state() {
            _ if sys::cookie(fd) != Some(cookie) => Some((0, 0)),
            State::Watched if !matches!(tcp::state(fd), Some(tcp::CLOSE | tcp::SYN_SENT)) => Some((1, stamp)),
            State::Open => Some((2, stamp)),
            _ => None,
        }
    }
}

fn table() -> Option<&'static Table> {
    // SAFETY: null, or a mapping of this type that is never given back; zeroes are a valid table.
    unsafe { TABLE.load(Ordering::Acquire).as_ref() }
}

fn entry(index: usize) -> &'static Entry {
    match table() {
        Some(table) => &table.entries[index],
        // Guards exist only once there is a table.
        None => std::process::abort(),
    }
}

#[cfg(test)]
mod tests;
