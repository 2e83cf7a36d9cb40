//! Session identifiers that were seen: an OPEN may ride in a SYN, which the network can deliver twice (RFC 7413 §2.1).

use phoebus_proto::session::SessionId;
use std::collections::{HashSet, VecDeque};
use std::sync::{Mutex, PoisonError};

/// The last so many identifiers.
#[derive(Debug, Default)]
pub(crate) struct Seen(Mutex<Window>);

#[derive(Debug, Default)]
struct Window {
    known: HashSet<SessionId>,
    order: VecDeque<SessionId>,
}

impl Seen {
    /// Remembers `session`, forgetting the oldest beyond `most`; false when it was known already.
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
    fn the_second_is_refused_until_it_is_forgotten() {
        let seen = Seen::default();
        let id = |n| SessionId([n; 16]);
        assert!(seen.is_new(id(1), 2));
        assert!(!seen.is_new(id(1), 2));
        assert!(seen.is_new(id(2), 2) && seen.is_new(id(3), 2));
        assert!(!seen.is_new(id(2), 2));
        assert!(seen.is_new(id(1), 2));
        assert_eq!(seen.0.lock().unwrap().known.len(), 2);
    }
}
