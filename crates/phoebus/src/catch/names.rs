//! Addresses of the names that settings mention. Programs under the filter look names up by themselves, and connect to
//! addresses. So this process looks up the names of `PHOEBUS_ONLY` and `PHOEBUS_EXCEPT`, and the first gateway's.
//!
//! Names are looked up at the same time, each once at a time. Old addresses serve while they are looked up again. A
//! failure is not kept: the next connect that needs the name looks it up again.

use phoebus_net::dial::resolve;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// How long addresses are used. Names of services that move have times to live of about a minute.
const AGE_MAX: Duration = Duration::from_secs(60);
/// How long a lookup may take. A connect waits for it only if there are no earlier addresses.
const PATIENCE: Duration = Duration::from_secs(5);

/// Names with their addresses, looked up when they are needed.
#[derive(Debug, Default)]
pub(super) struct Names(Vec<Arc<Name>>);

#[derive(Debug)]
struct Name {
    name: String,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    /// None before the first success.
    addresses: Vec<IpAddr>,
    at: Option<Instant>,
    /// The end of the lookup that is under way.
    lookup: Option<watch::Receiver<()>>,
}

impl Names {
    /// Nothing is looked up yet.
    pub(super) fn new(names: impl Iterator<Item = String>) -> Self {
        Self(names.map(|name| Arc::new(Name { name, known: Mutex::default() })).collect())
    }

    /// All names.
    pub(super) fn all(&self) -> Vec<&str> {
        self.0.iter().map(|name| &name.name[..]).collect()
    }

    /// The names that have this address, and those whose addresses are unknown because their lookup has failed.
    pub(super) async fn at(&self, ip: IpAddr) -> (Vec<&str>, Vec<&str>) {
        let lookups: Vec<_> = self.0.iter().filter_map(Name::look_up).collect();
        for mut lookup in lookups {
            // It ends without a message.
            while lookup.changed().await.is_ok() {}
        }
        let (mut there, mut unknown) = (Vec::new(), Vec::new());
        for name in &self.0 {
            let known = name.lock();
            if known.addresses.iter().any(|known| known.to_canonical() == ip) {
                there.push(&name.name[..]);
            } else if known.addresses.is_empty() {
                unknown.push(&name.name[..]);
            }
        }
        (there, unknown)
    }
}

impl Name {
    /// Begins a lookup if its addresses are old and none is under way. Returns what to wait for, if there are none.
    fn look_up(self: &Arc<Self>) -> Option<watch::Receiver<()>> {
        let mut known = self.lock();
        if known.at.is_some_and(|at| at.elapsed() <= AGE_MAX) {
            return None;
        }
        if known.lookup.is_none() {
            let (end, lookup) = watch::channel(());
            known.lookup = Some(lookup);
            let name = self.clone();
            tokio::spawn(async move {
                let found = resolve(&name.name, 0, PATIENCE).await;
                let mut known = name.lock();
                known.lookup = None;
                // Earlier addresses are better than none.
                if let Ok(found) = found {
                    known.addresses = found.iter().map(|addr| addr.ip()).collect();
                    known.at = Some(Instant::now());
                }
                drop(known);
                drop(end);
            });
        }
        known.lookup.clone().filter(|_| known.addresses.is_empty())
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn failed_lookup_is_told_and_not_kept() {
        // No resolver has a label of 64 bytes.
        let none = "x".repeat(64);
        let names = Names::new(["localhost".to_owned(), none.clone()].into_iter());
        let own = IpAddr::from([127, 0, 0, 1]);
        for _ in 0..2 {
            assert_eq!(names.at(own).await, (vec!["localhost"], vec![&none[..]]));
            assert!(names.0[0].lock().at.is_some() && names.0[1].lock().at.is_none());
        }
        // Earlier addresses serve meanwhile, and after a failure.
        names.0[1].lock().addresses.push(own);
        assert_eq!(names.at(own).await, (vec!["localhost", &none[..]], vec![]));
        let again = names.0[1].lock().lookup.clone();
        if let Some(mut lookup) = again {
            while lookup.changed().await.is_ok() {}
        }
        assert_eq!(names.0[1].lock().addresses, [own]);
    }
}
