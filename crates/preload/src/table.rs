//! What is known of sockets, by their cookie: a fixed table that needs no memory, no lock that blocks, and no news of every
//! descriptor.
//!
//! A socket keeps its cookie (SO_COOKIE) through dup, fork and whatever else happens to descriptors, and no other socket
//! ever gets it, so an entry whose socket was closed behind our back is never found again, and goes when its place is
//! needed.
//!
//! Each entry has a lock that is held for a few system calls that never wait. Signals are blocked meanwhile: a handler that
//! connects finds no lock taken by its own thread, and cannot jump out of a locked section. The table is private memory, so
//! that a child of fork has a copy ([`crate::process`]); what a handshake needs is in [`crate::record`], which is shared.

use crate::addr::RawAddr;
use crate::process::{acquire, release, try_acquire};
use crate::record::Record;
use crate::sys::{self, Errno};
use libc::c_int;
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering};

/// Entries. More sessions than this at once are fine, but the oldest then report the gateway as their peer.
const ENTRIES: usize = 1 << 15;
/// How far from its home an entry may stand.
const WINDOW: usize = 64;

/// What is known of a socket.
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
    /// The session is open: the socket is the program's, only its peer is not what the kernel says.
    Open = 4,
}

/// What an entry says; only to be seen with its lock.
#[repr(C)]
pub(crate) struct Facts {
    /// A descriptor of the socket, as last seen; not to be trusted without a look at its cookie.
    pub(crate) fd: c_int,
    /// The address family that the program believes its socket has.
    pub(crate) family: c_int,
    /// The error that the program has not been told; 0 if none.
    pub(crate) errno: Errno,
    /// Whether the program has closed a descriptor since.
    pub(crate) closed: bool,
    /// Where the program has connected to.
    pub(crate) destination: RawAddr,
    /// Which connect that was: each has a number of its own in this process.
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
    facts: UnsafeCell<Facts>,
}

#[repr(C)]
struct Table {
    keys: [AtomicU64; ENTRIES],
    entries: [Entry; ENTRIES],
}

static TABLE: AtomicPtr<Table> = AtomicPtr::new(std::ptr::null_mut());
/// Guards the claiming of entries. May be waited for with an entry locked; whoever holds it waits for none.
static CLAIMING: AtomicU32 = AtomicU32::new(0);
static STAMP: AtomicU64 = AtomicU64::new(0);
/// Entries in state Pending or Failed: while there are none, input, output and waiting need no look at the table.
static LIVE: AtomicU32 = AtomicU32::new(0);
/// Entries in state Watched.
static WATCHED: AtomicU32 = AtomicU32::new(0);

/// Sets memory aside. Until then there is nothing in the table.
pub(crate) fn create() -> Result<(), Errno> {
    let table = sys::map(size_of::<Table>(), false)?;
    TABLE.store(table.cast(), Ordering::Release);
    Ok(())
}

/// Whether no handshake is under way, so that a hook has nothing to do.
#[inline]
pub(crate) fn is_quiet() -> bool {
    LIVE.load(Ordering::Relaxed) == 0
}

/// Whether neither that nor an unconnected socket in an epoll set is known.
#[inline]
pub(crate) fn is_empty() -> bool {
    is_quiet() && WATCHED.load(Ordering::Relaxed) == 0
}

/// The entry of the socket behind `fd`, locked. While it is locked and a handshake is under way, the hooks that close
/// descriptors wait, so that `fd` stays the same socket.
pub(crate) fn find(fd: c_int) -> Option<Guard> {
    let table = table()?;
    let cookie = sys::cookie(fd)?;
    let guard = Guard::lock(table.position(cookie)?);
    (guard.is_of(fd, cookie) && guard.state() != State::Free).then(|| guard.in_use())
}

/// Like [`find`], but only for entries in state Pending or Failed.
pub(crate) fn find_live(fd: c_int) -> Option<Guard> {
    if is_quiet() {
        return None;
    }
    let live = |state| state == State::Pending as u8 || state == State::Failed as u8;
    let table = table()?;
    let cookie = sys::cookie(fd)?;
    // Most descriptors of a busy program are open sessions: they are told apart without a lock.
    let index = table.position(cookie).filter(|index| live(table.entries[*index].state.load(Ordering::Relaxed)))?;
    let guard = Guard::lock(index);
    (guard.is_of(fd, cookie) && live(guard.state() as u8)).then(|| guard.in_use())
}

/// Waits until nobody is busy with the entry of the socket with this cookie, if there is one.
pub(crate) fn wait_for(cookie: u64) {
    if let Some(index) = table().and_then(|table| table.position(cookie)) {
        drop(Guard::lock(index));
    }
}

/// The entry at a place that was noted.
pub(crate) fn at(index: usize) -> Option<Guard> {
    table().filter(|_| index < ENTRIES)?;
    Some(Guard::lock(index)).filter(|guard| guard.state() != State::Free)
}

/// The entry of the socket behind `fd`, made if there was none; `None` when there is no room or `fd` is no socket.
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
            *guard.facts() = Facts { fd, family, stamp, ..Facts::EMPTY };
            guard.set_state(State::Watched);
        }
        return Some(guard);
    }
}

/// Calls `visit` with every entry in state Pending. Long; for time-outs only.
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

/// A locked entry. Not to be held across anything that waits or may be a point of cancellation.
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
        Some(Self::locked(index, mask))
    }

    fn locked(index: usize, mask: u64) -> Self {
        let guard = Self { index, mask };
        if let Some(record) = guard.record_cell() {
            record.lock();
        }
        guard
    }

    /// Where the entry stands, and which of those that stood there it is.
    pub(crate) fn place(&self) -> (usize, u32) {
        (self.index, entry(self.index).generation.load(Ordering::Relaxed))
    }

    /// Whether this is the entry of the socket with this cookie, and `fd` is still that socket: another thread may have
    /// closed the descriptor, and a new socket may have its number, while this one waited for the lock.
    fn is_of(&self, fd: c_int, cookie: u64) -> bool {
        self.cookie() == cookie && sys::cookie(fd) == Some(cookie)
    }

    /// The same of a socket that has a descriptor, whichever of them was closed before.
    fn in_use(mut self) -> Self {
        self.facts().closed = false;
        self
    }

    /// The cookie of the socket.
    pub(crate) fn cookie(&self) -> u64 {
        table().map_or(0, |table| table.keys[self.index].load(Ordering::Acquire))
    }

    /// A descriptor of the socket, as last seen.
    pub(crate) fn descriptor(&self) -> c_int {
        // SAFETY: as for `attempt`.
        unsafe { (*entry(self.index).facts.get()).fd }
    }

    /// The number of the connect that the entry is about; 0 if there was none.
    pub(crate) fn attempt(&self) -> u64 {
        // SAFETY: the lock is held, and nothing else borrows from the guard meanwhile.
        unsafe { (*entry(self.index).facts.get()).attempt }
    }

    /// Whether nothing is known of the socket but that it is there.
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
        // The new one first: a count that dips to zero would let another thread look away.
        count(state, 1);
        count(self.state(), u32::MAX);
        entry(self.index).state.store(state as u8, Ordering::Relaxed);
    }

    pub(crate) fn facts(&mut self) -> &mut Facts {
        // SAFETY: the lock is held, and this borrow is the guard's.
        unsafe { &mut *entry(self.index).facts.get() }
    }

    fn record_cell(&self) -> Option<&Record> {
        // SAFETY: the lock is held; a record lives until `drop_record`, which borrows the guard.
        unsafe { (*entry(self.index).facts.get()).record.as_ref() }
    }

    /// The record of registrations and handshake, if there is one.
    pub(crate) fn record(&mut self) -> Option<&mut Record> {
        // SAFETY: as above; the record's own lock is held with this one, so that no other process uses it either.
        unsafe { self.facts().record.as_mut() }
    }

    /// The record, made if there was none.
    pub(crate) fn make_record(&mut self) -> Result<&mut Record, Errno> {
        if self.facts().record.is_null() {
            let record = Record::create()?;
            // SAFETY: just created, and not known to anyone else.
            unsafe { (*record).lock() };
            self.facts().record = record;
        }
        self.record().ok_or(libc::ENOMEM)
    }

    /// Gives the record back.
    pub(crate) fn drop_record(&mut self) {
        let record = std::mem::replace(&mut self.facts().record, std::ptr::null_mut());
        if !record.is_null() {
            // SAFETY: locked, and nothing else in this process refers to it; other processes have mappings of their own.
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
        *self.facts() = Facts::EMPTY;
        entry(self.index).generation.fetch_add(1, Ordering::Relaxed);
        if let Some(table) = table() {
            table.keys[self.index].store(0, Ordering::Release);
        }
    }

    /// An entry for the socket behind `fd`, which is to take the place of this one. Whoever finds it waits.
    pub(crate) fn successor(&mut self, fd: c_int) -> Result<Self, Errno> {
        let mut new = enter(fd, self.facts().family).ok_or(libc::ENOBUFS)?;
        new.set_state(self.state());
        Ok(new)
    }

    /// Follows to the entry of the socket that is behind `fd` now: it took the place of the one before, with all that is known of it.
    pub(crate) fn follow(&mut self, mut new: Self, fd: c_int) {
        let stamp = new.facts().stamp;
        *new.facts() = Facts { fd, stamp, ..std::mem::replace(self.facts(), Facts::EMPTY) };
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

impl Facts {
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

    /// A place for a new entry: a free one, or that of a socket that is gone, or of the oldest session.
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

    /// The entry there, if it could make room for another.
    fn dispensable(index: usize) -> Option<Guard> {
        Guard::try_lock(index).filter(|guard| matches!(guard.state(), State::Open | State::Watched))
    }

    /// What it would cost to do without the entry there: nothing if its socket is gone, otherwise the more the younger it is.
    fn worth(index: usize) -> Option<u64> {
        let mut guard = Self::dispensable(index)?;
        let (cookie, fd, stamp) = (guard.cookie(), guard.facts().fd, guard.facts().stamp);
        match guard.state() {
            _ if sys::cookie(fd) != Some(cookie) => Some(0),
            State::Open => Some(stamp.saturating_add(1)),
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
