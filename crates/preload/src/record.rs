//! What a socket needs until its session is open: its places in epoll sets, and the handshake with its buffers.
//!
//! A record is a mapping of its own, shared with children of fork: a handshake that was under way at the fork goes on in
//! whichever process asks for it, as the connection itself would, and no process reads what another already has. The kernel
//! frees the memory when the last of them gives it back. Untouched pages cost nothing.

use crate::process::{back_off, owner};
use crate::sys::{self, Errno};
use libc::c_int;
use phoebus_proto::agent::Running;
use phoebus_proto::session::{Initiator, MESSAGE_MAX};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

/// Epoll sets that one unconnected socket can be in. Programs use one, libraries sometimes a second.
pub(crate) const REGISTRATIONS: usize = 8;
/// Room for PREFACE, HELLO, AUTH and an OPEN with the longest path there is; later for the report.
pub(crate) const OUT_SIZE: usize = 16 * 1024;
/// Addresses of a gateway that are tried.
pub(crate) const GATEWAYS: usize = 8;
/// How often a lock that another process holds is looked at before it is asked whether that process still exists.
const PATIENCE: u32 = 500;

/// The record; it begins its mapping.
#[repr(C)]
pub(crate) struct Record {
    lock: AtomicU32,
    /// The epoll sets that the socket is in.
    pub(crate) registrations: [Option<Registration>; REGISTRATIONS],
    /// The handshake, from connect(2) until the program knows how it ended.
    pub(crate) attempt: Option<Attempt>,
}

/// The place of a descriptor in an epoll set, as the program asked for it.
#[derive(Clone, Copy)]
pub(crate) struct Registration {
    pub(crate) epfd: c_int,
    pub(crate) fd: c_int,
    pub(crate) events: u32,
    pub(crate) data: u64,
    /// Whether the kernel has it with EPOLLEXCLUSIVE, and so cannot change it.
    pub(crate) exclusive: bool,
    /// Whether the kernel has it as the program asked for it.
    pub(crate) shown: bool,
}

/// One connect(2) of the program.
pub(crate) struct Attempt {
    /// How it stands, also for other processes that share it.
    pub(crate) outcome: Outcome,
    /// Whether the connection and what is written here may disagree.
    pub(crate) unsettled: Mark,
    pub(crate) handshake: Option<Handshake>,
    /// The session's identifier.
    pub(crate) session: [u8; 16],
    /// The gateway's addresses, those of an agent before it first, and the one in use.
    pub(crate) gateways: Gateways,
    pub(crate) gateway: usize,
    /// The agent, if one runs.
    pub(crate) agent: Option<Running>,
    /// Whether the gateway has said anything.
    pub(crate) heard: bool,
    /// When it began, and when patience ends.
    pub(crate) begun: Duration,
    pub(crate) until: Duration,
    /// The congestion control that the socket had, with a zero at its end; empty if it was left alone.
    pub(crate) congestion_control: [u8; 16],
    /// Whether the kernel did not permit the congestion control that the settings ask for.
    pub(crate) untuned: bool,
    /// Whether IPV6_V6ONLY was cleared, to reach a gateway over IPv4.
    pub(crate) widened: bool,
}

/// The state machine of the handshake; its buffers are in the record's mapping.
pub(crate) type Handshake = Initiator<&'static mut [u8], &'static mut [u8]>;

/// Set while bytes move between the connection and a handshake, or either is replaced. Only who holds the record's lock does
/// that, so whoever takes the lock and finds the mark has it from a process that was killed meanwhile: whether those bytes
/// have moved is not known, and the connection is of no use.
pub(crate) struct Mark(AtomicBool);

/// How an attempt stands.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    Running,
    Opened,
    Failed(Errno),
    /// The gateway could not be reached, and the settings let the connection go direct then.
    Direct,
}

/// A few addresses.
#[derive(Clone, Copy)]
pub(crate) struct Gateways {
    addresses: [Option<SocketAddr>; GATEWAYS],
}

impl Attempt {
    /// The agent, if it is at the address in use.
    pub(crate) fn agent_in_use(&self) -> Option<&Running> {
        let address = self.gateways.get(self.gateway)?;
        self.agent.as_ref().filter(|agent| agent.addresses.contains(&Some(address)))
    }
}

impl Record {
    const HEADER: usize = size_of::<Self>().next_multiple_of(64);
    const LEN: usize = Self::HEADER + OUT_SIZE + MESSAGE_MAX;

    /// Maps a new record.
    pub(crate) fn create() -> Result<*mut Self, Errno> {
        let record = sys::map(Self::LEN, true)?.cast::<Self>();
        let empty = Self { lock: AtomicU32::new(0), registrations: [None; REGISTRATIONS], attempt: None };
        // SAFETY: the mapping is aligned to pages, longer than a record, and nobody else's.
        unsafe { record.write(empty) };
        Ok(record)
    }

    /// Gives the mapping back.
    ///
    /// # Safety
    /// The record was created here, is locked, and is not referred to any more in this process.
    pub(crate) unsafe fn destroy(record: *mut Self) {
        // SAFETY: valid by the caller's promise; other processes wait for the lock on their own mappings of it.
        unsafe {
            (*record).unlock();
            sys::unmap(record.cast(), Self::LEN);
        }
    }

    /// The two buffers, for a handshake that begins; the one before must be forgotten.
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

    /// Takes the lock that keeps other processes out. Threads of this one are kept out by the table's entry.
    pub(crate) fn lock(&self) {
        let own = owner();
        let mut tries = 0_u32;
        loop {
            match self.lock.compare_exchange_weak(0, own, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return,
                // Left behind by this process itself, which cannot be: its threads are kept out.
                Err(holder) if holder == own => return,
                Err(holder) => {
                    tries = tries.wrapping_add(1);
                    // A process that was killed while it held the lock must not stop the others.
                    if tries.is_multiple_of(PATIENCE) && sys::is_gone(holder) {
                        let _ = self.lock.compare_exchange(holder, 0, Ordering::Relaxed, Ordering::Relaxed);
                    }
                    back_off(tries);
                }
            }
        }
    }

    /// Releases it.
    pub(crate) fn unlock(&self) {
        self.lock.store(0, Ordering::Release);
    }

    /// Whether the socket is in any epoll set.
    pub(crate) fn is_watched(&self) -> bool {
        self.registrations.iter().any(Option::is_some)
    }

    /// The registrations there are.
    pub(crate) fn registered(&mut self) -> impl Iterator<Item = &mut Registration> {
        self.registrations.iter_mut().flatten()
    }

    /// Where the registration of `fd` in `epfd` stands.
    pub(crate) fn position(&self, epfd: c_int, fd: c_int) -> Option<usize> {
        self.registrations.iter().position(|slot| slot.as_ref().is_some_and(|r| r.epfd == epfd && r.fd == fd))
    }
}

impl Mark {
    pub(crate) const fn new() -> Self {
        Self(AtomicBool::new(false))
    }

    /// Nothing that follows happens before this, as seen by those who outlive this process.
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

    /// The same, those first that a socket of this family reaches as it is.
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
    fn a_record_outlives_the_process_that_made_it() {
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
