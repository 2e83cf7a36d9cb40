//! Limits on how many of something exist at a time, in total and per source (P25, invariant 7).

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Counts by source. Its memory is bounded by the number of slots.
#[derive(Debug, Default)]
pub(crate) struct SlotCounter(Mutex<Counts>);

#[derive(Debug, Default)]
struct Counts {
    total: u32,
    by_source: HashMap<IpAddr, u32>,
}

/// The right to be one of the counted, returned on drop.
#[derive(Debug)]
pub(crate) struct Slot {
    counter: Arc<SlotCounter>,
    source: IpAddr,
}

/// Which limit was reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Full {
    Total,
    Source,
}

impl SlotCounter {
    /// A slot for `source`, if fewer than `total` exist in all and fewer than `per_source` of this source.
    pub(crate) fn take(self: &Arc<Self>, source: IpAddr, total: u32, per_source: u32) -> Result<Slot, Full> {
        let source = key(source);
        let mut counts = self.lock();
        if counts.total >= total {
            return Err(Full::Total);
        }
        let count = counts.by_source.entry(source).or_insert(0);
        if *count >= per_source {
            return Err(Full::Source);
        }
        *count += 1;
        counts.total += 1;
        Ok(Slot { counter: self.clone(), source })
    }

    /// How many exist.
    pub(crate) fn total(&self) -> u32 {
        self.lock().total
    }

    fn lock(&self) -> MutexGuard<'_, Counts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut counts = self.counter.lock();
        counts.total -= 1;
        if let Some(count) = counts.by_source.get_mut(&self.source) {
            *count -= 1;
            if *count == 0 {
                counts.by_source.remove(&self.source);
            }
        }
    }
}

/// The source that an address stands for: one customer has one IPv4 address, or 2^64 IPv6 addresses.
pub(crate) fn key(source: IpAddr) -> IpAddr {
    match source.to_canonical() {
        IpAddr::V6(addr) => IpAddr::V6(Ipv6Addr::from_bits(addr.to_bits() & !u128::from(u64::MAX))),
        v4 => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counter_counts_slots_by_source() {
        let counter = Arc::new(SlotCounter::default());
        let take = |source: &str| counter.take(source.parse().unwrap(), 3, 2);
        let first = take("10.0.0.1").unwrap();
        let _second = take("::ffff:10.0.0.1").unwrap();
        assert_eq!(take("10.0.0.1").unwrap_err(), Full::Source);
        let _third = take("2001:db8::1").unwrap();
        assert_eq!(take("10.0.0.2").unwrap_err(), Full::Total);
        drop(first);
        let _fourth = take("2001:db8::2").unwrap();
        assert_eq!(take("10.0.0.2").unwrap_err(), Full::Total);
        assert_eq!(counter.total(), 3);
    }

    #[test]
    fn ipv6_network_counts_as_one_source() {
        let counter = Arc::new(SlotCounter::default());
        let _slot = counter.take("2001:db8::1".parse().unwrap(), 9, 1).unwrap();
        assert_eq!(counter.take("2001:db8::ffff".parse().unwrap(), 9, 1).unwrap_err(), Full::Source);
        assert!(counter.take("2001:db8:0:1::1".parse().unwrap(), 9, 1).is_ok());
    }

    #[test]
    fn finished_tasks_leave_nothing_behind() {
        let counter = Arc::new(SlotCounter::default());
        drop(counter.take("10.0.0.1".parse().unwrap(), 1, 1).unwrap());
        assert!(counter.lock().by_source.is_empty());
    }
}
