//! The limit on connections that have not requested a session yet (P25, invariant 7). If all slots are taken, the connection that has
//! waited longest gives way, of the source that has most: whoever opens connections and says nothing does not keep others out.

use crate::slots::{Full, key};
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// The connections that wait, by source.
#[derive(Debug, Default)]
pub(crate) struct HandshakeSlots(Mutex<Waiting>);

#[derive(Debug, Default)]
struct Waiting {
    total: u32,
    /// In the order of their arrival. `None`: it does not give way.
    by_source: HashMap<IpAddr, BTreeMap<u64, Option<Arc<Notify>>>>,
    next: u64,
}

/// The right to wait, returned on drop.
#[derive(Debug)]
pub(crate) struct HandshakeSlot {
    slots: Arc<HandshakeSlots>,
    source: IpAddr,
    number: u64,
}

impl HandshakeSlots {
    /// A slot for `source`, if fewer than `per_source` of this source wait. If `total` wait already, one of those that can give way
    /// does. `gives_way` is told when this one has to.
    pub(crate) fn take(
        self: &Arc<Self>,
        source: IpAddr,
        (total, per_source): (u32, u32),
        gives_way: Option<Arc<Notify>>,
    ) -> Result<HandshakeSlot, Full> {
        let source = key(source);
        let mut waiting = self.lock();
        if waiting.by_source.get(&source).is_some_and(|own| own.len() as u64 >= u64::from(per_source)) {
            return Err(Full::Source);
        }
        if waiting.total >= total && !waiting.shed() {
            return Err(Full::Total);
        }
        let number = waiting.next;
        waiting.next += 1;
        waiting.total += 1;
        waiting.by_source.entry(source).or_default().insert(number, gives_way);
        Ok(HandshakeSlot { slots: self.clone(), source, number })
    }

    /// How many wait.
    pub(crate) fn total(&self) -> u32 {
        self.lock().total
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiting {
    /// Ends one that gives way. False if none does.
    fn shed(&mut self) -> bool {
        let first = |own: &BTreeMap<u64, Option<Arc<Notify>>>| {
            own.iter().find(|(_, gives_way)| gives_way.is_some()).map(|(number, _)| *number)
        };
        let candidates = self.by_source.iter().filter_map(|(source, own)| Some((own.len(), first(own)?, *source)));
        let most_then_oldest = |(count, number, _): &(usize, u64, IpAddr)| (*count, u64::MAX - number);
        let Some((_, number, source)) = candidates.max_by_key(most_then_oldest) else { return false };
        if let Some(Some(gives_way)) = self.remove(source, number) {
            gives_way.notify_one();
        }
        true
    }

    fn remove(&mut self, source: IpAddr, number: u64) -> Option<Option<Arc<Notify>>> {
        let own = self.by_source.get_mut(&source)?;
        let removed = own.remove(&number)?;
        if own.is_empty() {
            self.by_source.remove(&source);
        }
        self.total -= 1;
        Some(removed)
    }
}

impl Drop for HandshakeSlot {
    fn drop(&mut self) {
        // One that has given way is gone already.
        self.slots.lock().remove(self.source, self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(n: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, n])
    }

    fn is_told(notify: &Notify) -> bool {
        let mut told = std::pin::pin!(notify.notified());
        told.as_mut().enable()
    }

    #[test]
    fn the_oldest_of_the_source_that_has_most_gives_way() {
        let slots = Arc::new(HandshakeSlots::default());
        let take = |n: u8| {
            let notify = Arc::new(Notify::new());
            slots.take(source(n), (4, 3), Some(notify.clone())).map(|slot| (slot, notify))
        };
        let (_honest, honest) = take(1).unwrap();
        let [(_a, first), (_b, second), (_c, third)] = [(); 3].map(|()| take(2).unwrap());
        assert_eq!(take(2).unwrap_err(), Full::Source);
        let _next = take(3).unwrap();
        assert_eq!([&honest, &first, &second, &third].map(|notify| is_told(notify)), [false, true, false, false]);
        assert_eq!(slots.total(), 4);
        // Of several that have as many, the oldest.
        let _more = take(4).unwrap();
        let _more = take(5).unwrap();
        assert!(is_told(&second) && is_told(&honest) && !is_told(&third));
    }

    #[test]
    fn slots_are_returned_once() {
        let slots = Arc::new(HandshakeSlots::default());
        let kept = slots.take(source(1), (1, 1), None).unwrap();
        assert_eq!(slots.take(source(2), (1, 1), None).unwrap_err(), Full::Total, "it does not give way");
        drop(kept);
        let given = slots.take(source(1), (1, 1), Some(Arc::default())).unwrap();
        let _next = slots.take(source(2), (1, 1), Some(Arc::default())).unwrap();
        drop(given);
        assert_eq!((slots.total(), slots.lock().by_source.len()), (1, 1));
    }
}
