//! Recently seen session identifiers. An OPEN may be in a SYN, which the network can deliver twice (RFC 7413 §2.1).

use phoebus_proto::session::SessionId;
use std::collections::{HashSet, VecDeque};
use std::sync::{Mutex, PoisonError};

/// A bounded number of recent identifiers.
#[derive(Debug, Default)]
pub(crate) struct ReplayFilter(Mutex<Window>);

#[derive(Debug, Default)]
struct Window {
    known: HashSet<SessionId>,
    order: VecDeque<SessionId>,
}

impl ReplayFilter {
    /// Remembers `session`, and forgets the oldest beyond `most`. Returns false if it was known already.
    pub(crate) fn is_new(&self, session: SessionId, most: usize) -> bool {
        let mut window = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !window.known.insert(session) {
            return false;
        }
        window.order.push_back(session);
        while window.order.len() > most.max(1) {
            if let Some(oldest) = window.order.pop_front() {
                window.known.remove(&oldest);
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duplicate_is_refused_until_it_is_forgotten() {
        let seen = ReplayFilter::default();
        let id = |n| SessionId([n; 16]);
        assert!(seen.is_new(id(1), 2));
        assert!(!seen.is_new(id(1), 2));
        assert!(seen.is_new(id(2), 2) && seen.is_new(id(3), 2));
        assert!(!seen.is_new(id(2), 2));
        assert!(seen.is_new(id(1), 2));
        assert_eq!(seen.0.lock().unwrap().known.len(), 2);
    }
}
