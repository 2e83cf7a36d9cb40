//! How many bytes clients make the server keep for them: commands that were sent ahead, and listings that nobody has read yet. They are
//! counted for each connection, each address and in all, as all that untrusted peers can ask for has to be.

use super::count::network;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What may be kept for an address, and in all, and what is.
#[derive(Debug)]
pub(super) struct Memory {
    per_address: u64,
    most: u64,
    used: Mutex<Used>,
}

#[derive(Debug, Default)]
struct Used {
    all: u64,
    addresses: HashMap<IpAddr, u64>,
}

/// What is kept for one connection, for as long as this is there.
#[derive(Debug)]
pub(super) struct Held {
    memory: Arc<Memory>,
    address: IpAddr,
    bytes: u64,
}

impl Memory {
    /// So many bytes for each address, and for all of them.
    pub(super) fn new(per_address: u64, most: u64) -> Arc<Self> {
        Arc::new(Self { per_address, most, used: Mutex::default() })
    }

    /// Nothing yet, for a connection from this address.
    pub(super) fn held(self: &Arc<Self>, address: IpAddr) -> Held {
        Held { memory: self.clone(), address: network(address), bytes: 0 }
    }

    fn used(&self) -> MutexGuard<'_, Used> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Held {
    /// How much it is.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// So many more, if the address and all together stay within their bounds.
    #[must_use]
    pub(super) fn try_add(&mut self, bytes: u64) -> bool {
        let used = self.memory.used();
        let own = used.addresses.get(&self.address).copied().unwrap_or(0);
        let fits = |there: u64, most: u64| there.checked_add(bytes).is_some_and(|sum| sum <= most);
        if !fits(own, self.memory.per_address) || !fits(used.all, self.memory.most) {
            return false;
        }
        drop(used);
        self.add(bytes);
        true
    }

    /// So many more, which are there already.
    pub(super) fn add(&mut self, bytes: u64) {
        let mut used = self.memory.used();
        used.all = used.all.saturating_add(bytes);
        let own = used.addresses.entry(self.address).or_insert(0);
        *own = own.saturating_add(bytes);
        self.bytes = self.bytes.saturating_add(bytes);
    }

    /// So many less.
    pub(super) fn take(&mut self, bytes: u64) {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        let mut used = self.memory.used();
        used.all = used.all.saturating_sub(bytes);
        let Some(own) = used.addresses.get_mut(&self.address) else { return };
        *own = own.saturating_sub(bytes);
        if *own == 0 {
            used.addresses.remove(&self.address);
        }
    }

    /// Nothing is kept any more.
    pub(super) fn clear(&mut self) {
        self.take(self.bytes);
    }

    /// Whether the address or all together have used up what they may.
    pub(super) fn is_full(&self) -> bool {
        let used = self.memory.used();
        let own = used.addresses.get(&self.address).copied().unwrap_or(0);
        own >= self.memory.per_address || used.all >= self.memory.most
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_counted_for_each_address_and_in_all() {
        let memory = Memory::new(100, 250);
        let held = |last: u8| memory.held([192, 0, 2, last].into());
        let (mut first, mut second, mut third) = (held(1), held(1), held(2));
        assert!(first.try_add(60) && !second.try_add(41) && second.try_add(40) && first.is_full());
        assert!(third.try_add(100) && !third.try_add(1));
        let mut fourth = held(3);
        assert!(fourth.try_add(50) && !fourth.try_add(1) && fourth.is_full());
        first.take(10);
        assert!(fourth.try_add(1) && !first.is_full() && first.bytes() == 50);
        drop((second, third));
        first.clear();
        fourth.add(1000);
        assert!(fourth.is_full() && first.is_full() && !first.try_add(1));
        drop(fourth);
        assert!(first.try_add(100));
        drop(first);
        assert!(memory.used().all == 0 && memory.used().addresses.is_empty());
    }
}
