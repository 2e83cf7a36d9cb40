//! Limits on connections by address or user.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

/// Counts of one kind of thing, by owner. Clones share them.
#[derive(Debug)]
pub struct Counts<K>(Arc<Mutex<HashMap<K, usize>>>);

/// A counted thing. Dropping it decrements the count.
#[derive(Debug)]
pub struct Counted<K: Eq + Hash>(Counts<K>, Option<K>);

impl<K> Clone for Counts<K> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<K> Default for Counts<K> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<K: Eq + Hash + Clone> Counts<K> {
    /// Whether `owner` has any.
    pub fn has(&self, whose: &K) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).contains_key(whose)
    }

    /// Counts one more for `owner`. `None` if it has `most` already.
    pub fn add(&self, whose: K, most: usize) -> Option<Counted<K>> {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry(whose.clone()).or_insert(0);
        if *count >= most {
            return None;
        }
        *count += 1;
        Some(Counted(self.clone(), Some(whose)))
    }
}

impl<K: Eq + Hash> Drop for Counted<K> {
    fn drop(&mut self) {
        let Some(whose) = self.1.take() else { return };
        let mut counts = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counts.get_mut(&whose) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                counts.remove(&whose);
            }
        }
    }
}

/// The part of an address that is counted: a whole IPv4 address, or the half of an IPv6 address that a host cannot
/// choose.
pub fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => {
            let mut parts = v6.segments();
            parts[4..].fill(0);
            IpAddr::V6(parts.into())
        }
        v4 => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn released_quota_makes_room() {
        let counts = Counts::default();
        let (first, second) = (counts.add("a", 2), counts.add("a", 2));
        assert!(first.is_some() && second.is_some() && counts.add("a", 2).is_none() && counts.add("b", 2).is_some());
        drop(first);
        assert!(counts.add("a", 2).is_some());
        let net = |text: &str| network(text.parse().unwrap()).to_string();
        assert_eq!((net("2001:db8::1:2:3:4").as_str(), net("::ffff:192.0.2.1").as_str()), ("2001:db8::", "192.0.2.1"));
    }
}
