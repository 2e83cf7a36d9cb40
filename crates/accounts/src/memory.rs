//! Memory that clients make the server use: commands sent ahead, and listings that nobody has read yet. Limited by
//! connection, by address and in total.

use crate::count::network;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The limits and the current use.
#[derive(Debug)]
pub struct Memory {
    per_address: u64,
    most: u64,
    used: Mutex<Used>,
}

#[derive(Debug, Default)]
struct Used {
    all: u64,
    addresses: HashMap<IpAddr, u64>,
}

/// The use of one connection. Dropping it frees it.
#[derive(Debug)]
pub struct Held {
    memory: Arc<Memory>,
    address: IpAddr,
    bytes: u64,
}

impl Memory {
    /// Limits of `per_address` bytes for each address, and of `most` bytes in total.
    pub fn new(per_address: u64, most: u64) -> Arc<Self> {
        Arc::new(Self { per_address, most, used: Mutex::default() })
    }

    /// The account of a new connection from `address`.
    pub fn held(self: &Arc<Self>, address: IpAddr) -> Held {
        Held { memory: self.clone(), address: network(address), bytes: 0 }
    }

    fn used(&self) -> MutexGuard<'_, Used> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Held {
    /// Bytes in use.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Adds `bytes` if the address and the total stay within their limits. Returns whether they do.
    #[must_use]
    pub fn try_add(&mut self, bytes: u64) -> bool {
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

    /// Adds `bytes` that are in memory already, whatever the limits.
    pub fn add(&mut self, bytes: u64) {
        let mut used = self.memory.used();
        used.all = used.all.saturating_add(bytes);
        let own = used.addresses.entry(self.address).or_insert(0);
        *own = own.saturating_add(bytes);
        self.bytes = self.bytes.saturating_add(bytes);
    }

    /// Subtracts `bytes`.
    pub fn take(&mut self, bytes: u64) {
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

    /// Frees everything.
    pub fn clear(&mut self) {
        self.take(self.bytes);
    }

    /// Whether the address or the total has reached its limit.
    pub fn is_full(&self) -> bool {
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
