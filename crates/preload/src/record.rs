//! What a socket needs until its session is open: its registrations in epoll sets, and the handshake with its buffers.
//!
//! A record is a mapping of its own, shared with children of fork. A handshake that was in progress at the fork
//! continues in whichever process asks for it, as the connection itself would, and no process reads what another
//! already has. The kernel frees the memory when the last process releases it. Untouched pages cost nothing.

use crate::asked::Asked;
use crate::changes::Changes;
use crate::sys::{self, Errno};
use libc::c_int;
use phoebus_config::agent::Running;
use phoebus_proto::session::auth::Exchange;
use phoebus_proto::session::plan::{Plan, RedirectEnd};
use phoebus_proto::session::{Initiator, MESSAGE_MAX};
use std::cell::UnsafeCell;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Epoll sets that one unconnected socket can be in. Programs use one, libraries sometimes a second.
pub(crate) const REGISTRATIONS: usize = 8;
/// Room for PREFACE, HELLO, AUTH and the longest OPEN; later for the report.
pub(crate) const OUT_SIZE: usize = 16 * 1024;
/// Number of addresses of a gateway that are tried.
pub(crate) const GATEWAYS: usize = 8;
/// PTHREAD_MUTEX_ROBUST of the GNU C library.
const ROBUST: c_int = 1;

/// The record, at the start of its mapping.
#[repr(C)]
pub(crate) struct Record {
    lock: UnsafeCell<libc::pthread_mutex_t>,
    /// The epoll sets of the socket.
    pub(crate) registrations: [Option<Registration>; REGISTRATIONS],
    /// The handshake, from connect(2) until the program knows the result.
    pub(crate) attempt: Option<Attempt>,
}

/// The registration of a descriptor in an epoll set, as the program requested it.
#[derive(Clone, Copy)]
pub(crate) struct Registration {
    pub(crate) epfd: c_int,
    pub(crate) fd: c_int,
    pub(crate) events: u32,
    pub(crate) data: u64,
    /// Whether the kernel has it with EPOLLEXCLUSIVE, and so cannot change it.
    pub(crate) exclusive: bool,
    /// Whether the kernel has it as the program requested it.
    pub(crate) shown: bool,
}

/// One connect(2) of the program.
pub(crate) struct Attempt {
    /// Its state, also for other processes that share it.
    pub(crate) outcome: Outcome,
    /// Whether the connection and this record may disagree.
    pub(crate) unsettled: ChangeInProgress,
    pub(crate) handshake: Option<Handshake>,
    /// How the user proves a password.
    pub(crate) exchange: Option<Exchange>,
    /// The session's identifier.
    pub(crate) session: [u8; 16],
    /// Which gateway is asked, and what to do after a failure.
    pub(crate) plan: Plan<Asked>,
    /// Why no further gateway was asked, if a redirect was followed or impossible.
    pub(crate) end: Option<RedirectEnd>,
    /// The gateway's addresses, after those of an agent, and the one in use.
    pub(crate) gateways: Gateways,
    pub(crate) gateway: usize,
    /// Why each of them could not be connected; 0 if it was not tried or did not fail.
    pub(crate) failures: [Errno; GATEWAYS],
    /// The agent, if one runs.
    pub(crate) agent: Option<Running>,
    /// Whether the gateway has said anything.
    pub(crate) heard: bool,
    /// When it began, and when its time limit ends.
    pub(crate) begun: Duration,
    pub(crate) until: Duration,
    /// What was changed on the socket.
    pub(crate) changes: Changes,
    /// Whether the kernel did not permit the congestion control that the settings ask for.
    pub(crate) untuned: bool,
    /// Whether the socket, of IPv6, was connected to a gateway over IPv4.
    pub(crate) mapped: bool,
    /// The descriptor with which the program connects.
    pub(crate) connecting: c_int,
}

/// The state machine of the handshake; its buffers are in the record's mapping.
pub(crate) type Handshake = Initiator<&'static mut [u8], &'static mut [u8]>;

/// Set while bytes move between the connection and a handshake, or either is replaced.
///
/// Only the holder of the record's lock does that. Whoever takes the lock and finds this set has inherited it from a
/// process that was killed meanwhile. Nothing tells whether the bytes have moved, so the connection is of no use.
pub(crate) struct ChangeInProgress(AtomicBool);

/// The state of an attempt.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    Running,
    Opened,
    Failed(Errno),
    /// The gateway could not be reached, and the settings permit a direct connection.
    Direct,
}

/// A few addresses.
#[derive(Clone, Copy)]
pub(crate) struct Gateways {
    addresses: [Option<SocketAddr>; GATEWAYS],
}

impl Attempt {
    /// The agent, if its address is in use.
    pub(crate) fn agent_in_use(&self) -> Option<&Running> {
        self.agent_at(self.gateway)
    }

    /// The agent, if the gateway's address of this index is the agent's.
    pub(crate) fn agent_at(&self, index: usize) -> Option<&Running> {
        let address = self.gateways.get(index)?;
        self.agent.as_ref().filter(|agent| agent.addresses.contains(&Some(address)))
    }

    /// Records why the address in use cannot be connected.
    pub(crate) fn failed(&mut self, errno: Errno) {
        if let Some(failure) = self.failures.get_mut(self.gateway) {
            *failure = errno;
        }
    }

    /// Whether no address of the gateway can be reached, so that a direct connection may be made instead. Errors for want
    /// of something on this host say nothing about the gateway. An address of a family that this host does not have is
    /// not reachable, and no proof either.
    pub(crate) fn is_gateway_absent(&self) -> bool {
        const WANTS: [Errno; 11] = [
            libc::EMFILE,
            libc::ENFILE,
            libc::ENOMEM,
            libc::ENOBUFS,
            libc::EBADF,
            libc::ENOTSOCK,
            libc::EINVAL,
            libc::EISCONN,
            libc::EALREADY,
            libc::EADDRINUSE,
            libc::EMSGSIZE,
        ];
        let failures = || self.failures.iter().filter(|errno| **errno != 0);
        failures().any(|errno| *errno != libc::EADDRNOTAVAIL) && failures().all(|errno| !WANTS.contains(errno))
    }

    /// The failed address whose error says most about the gateway, and that error: a refusal shows that the host is
    /// there, while a missing route may be a fault of this host. Among equals, the first.
    pub(crate) fn telling(&self) -> Option<(usize, Errno)> {
        let weight = |errno| match errno {
            libc::ECONNREFUSED => 5,
            libc::ETIMEDOUT => 4,
            libc::EHOSTUNREACH => 3,
            libc::ENETUNREACH => 2,
            _ => 1,
        };
        let failures = self.failures.iter().copied().enumerate().filter(|(_, errno)| *errno != 0);
        failures.rev().max_by_key(|(_, errno)| weight(*errno))
    }
}

impl Record {
    const HEADER: usize = size_of::<Self>().next_multiple_of(64);
    const LEN: usize = Self::HEADER + OUT_SIZE + MESSAGE_MAX;

    /// Maps a new record.
    pub(crate) fn create() -> Result<*mut Self, Errno> {
        let record = sys::map(Self::LEN, true)?.cast::<Self>();
        let lock = UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER);
        // SAFETY: the mapping is aligned to pages, longer than a record, and nobody else's.
        unsafe { record.write(Self { lock, registrations: [None; REGISTRATIONS], attempt: None }) };
        // SAFETY: just written, and nobody else's.
        match make_robust(unsafe { (*record).lock.get() }) {
            0 => Ok(record),
            errno => {
                // SAFETY: mapped above, and not used any more.
                unsafe { sys::unmap(record.cast(), Self::LEN) };
                Err(errno)
            }
        }
    }

    /// Releases the mapping.
    ///
    /// # Safety
    /// The record was created here, is locked, and is not used any more in this process.
    pub(crate) unsafe fn destroy(record: *mut Self) {
        // SAFETY: valid by the caller's promise; other processes wait for the lock on their own mappings of it.
        unsafe {
            (*record).unlock();
            sys::unmap(record.cast(), Self::LEN);
        }
    }

    /// The two buffers for a new handshake; the earlier one must be forgotten.
    pub(crate) fn buffers(&mut self) -> (&'static mut [u8], &'static mut [u8]) {
        if let Some(attempt) = &mut self.attempt {
            attempt.handshake = None;
        }
        let start = (&raw mut *self).cast::<u8>();
        // SAFETY: both lie in the mapping, beyond the header and apart; they live as long as it, and the handshake that
        // holds them, the only one, goes with it.
        unsafe {
            let out = std::slice::from_raw_parts_mut(start.add(Self::HEADER), OUT_SIZE);
            let inbox = std::slice::from_raw_parts_mut(start.add(Self::HEADER + OUT_SIZE), MESSAGE_MAX);
            (out, inbox)
        }
    }

    /// Takes the lock that excludes other processes. The table's entry excludes threads of this one. If a process is
    /// killed while it holds the lock, the kernel passes the lock on.
    pub(crate) fn lock(&self) {
        let lock = self.lock.get();
        // SAFETY: the mutex was made by `create`, and is where it was; its mapping lives as long as this borrow.
        unsafe {
            if libc::pthread_mutex_lock(lock) == libc::EOWNERDEAD {
                // The attempt's mark tells what that process left.
                libc::pthread_mutex_consistent(lock);
            }
        }
    }

    /// Takes the lock if no other process has it. Returns whether it did.
    pub(crate) fn try_lock(&self) -> bool {
        let lock = self.lock.get();
        // SAFETY: as for `lock`.
        unsafe {
            match libc::pthread_mutex_trylock(lock) {
                0 => true,
                libc::EOWNERDEAD => {
                    libc::pthread_mutex_consistent(lock);
                    true
                }
                _ => false,
            }
        }
    }

    /// Releases it.
    pub(crate) fn unlock(&self) {
        // SAFETY: as above; this thread has taken it.
        unsafe { libc::pthread_mutex_unlock(self.lock.get()) };
    }

    /// Whether the socket is in any epoll set.
    pub(crate) fn is_watched(&self) -> bool {
        self.registrations.iter().any(Option::is_some)
    }

    /// The current registrations.
    pub(crate) fn registered(&mut self) -> impl Iterator<Item = &mut Registration> {
        self.registrations.iter_mut().flatten()
    }

    /// The index of the registration of `fd` in `epfd`, which may be known by a copy of that descriptor.
    pub(crate) fn position(&self, epfd: c_int, fd: c_int) -> Option<usize> {
        let find = |is_same: &dyn Fn(c_int) -> bool| {
            let is_it = |slot: &Option<Registration>| slot.is_some_and(|known| known.fd == fd && is_same(known.epfd));
            self.registrations.iter().position(is_it)
        };
        find(&|known| known == epfd).or_else(|| find(&|known| sys::is_same_file(known, epfd)))
    }
}

/// Makes a mutex for processes that share its memory. The kernel releases it for a process that dies (robust mutexes,
/// pthread_mutexattr_setrobust(3)). The kernel knows the holder, so it also works across PID namespaces. Returns 0 or
/// an error number.
fn make_robust(mutex: *mut libc::pthread_mutex_t) -> Errno {
    let mut attributes = std::mem::MaybeUninit::<libc::pthread_mutexattr_t>::zeroed();
    let at = attributes.as_mut_ptr();
    // SAFETY: both are valid for writing, and initialized in this order.
    unsafe {
        let mut errno = libc::pthread_mutexattr_init(at);
        if errno == 0 {
            errno = libc::pthread_mutexattr_setpshared(at, libc::PTHREAD_PROCESS_SHARED);
        }
        if errno == 0 {
            errno = libc::pthread_mutexattr_setrobust(at, ROBUST);
        }
        if errno == 0 {
            errno = libc::pthread_mutex_init(mutex, at);
        }
        libc::pthread_mutexattr_destroy(at);
        errno
    }
}

impl ChangeInProgress {
    pub(crate) const fn new() -> Self {
        Self(AtomicBool::new(false))
    }

    /// Nothing that follows happens before this, as seen by processes that outlive this one.
    pub(crate) fn set(&self) {
        self.0.swap(true, Ordering::AcqRel);
    }

    /// Everything before has happened.
    pub(crate) fn clear(&self) {
        self.0.store(false, Ordering::Release);
    }

    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

impl Gateways {
    pub(crate) const NONE: Self = Self { addresses: [None; GATEWAYS] };

    /// The first few of `addresses`, each once.
    pub(crate) fn new(addresses: impl Iterator<Item = SocketAddr>) -> Self {
        let mut gateways = Self::NONE;
        for address in addresses {
            if gateways.contains(address) {
                continue;
            }
            match gateways.addresses.iter_mut().find(|slot| slot.is_none()) {
                Some(slot) => *slot = Some(address),
                None => break,
            }
        }
        gateways
    }

    /// The same; addresses that a socket of this family reaches without a change come first.
    pub(crate) fn for_family(&self, family: c_int) -> Self {
        let native = |address: &SocketAddr| address.is_ipv4() == (family == libc::AF_INET);
        Self::new(self.iter().filter(native).chain(self.iter().filter(|address| !native(address))))
    }

    pub(crate) fn get(&self, index: usize) -> Option<SocketAddr> {
        self.addresses.get(index).copied().flatten()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = SocketAddr> {
        self.addresses.iter().filter_map(|address| *address)
    }

    pub(crate) fn contains(&self, address: SocketAddr) -> bool {
        self.iter().any(|known| known == address)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.addresses[0].is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gateways_of_the_sockets_own_family_come_first() {
        let [four, six, other]: [SocketAddr; 3] =
            ["10.0.0.1:5006", "[2001:db8::1]:5006", "10.0.0.2:5006"].map(|text| text.parse().unwrap());
        let gateways = Gateways::new([four, six, four, other].into_iter());
        let order = |family| gateways.for_family(family).iter().collect::<Vec<_>>();
        assert_eq!(order(libc::AF_INET), [four, other, six]);
        assert_eq!(order(libc::AF_INET6), [six, four, other]);
        assert!(gateways.contains(six) && !Gateways::NONE.contains(six) && Gateways::NONE.is_empty());
    }

    #[test]
    fn record_outlives_its_process() {
        let record = Record::create().unwrap();
        // SAFETY: created above, used by this thread only.
        let (out, inbox) = unsafe { (*record).buffers() };
        (out[OUT_SIZE - 1], inbox[MESSAGE_MAX - 1]) = (1, 2);
        // SAFETY: as above.
        unsafe {
            (*record).lock();
            Record::destroy(record);
        }
    }
}
