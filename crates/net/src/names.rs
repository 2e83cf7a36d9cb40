//! Resolves names on behalf of clients with the host's resolver, `getaddrinfo(3)`, on a bounded number of
//! threads shared fairly among the sources.
//!
//! Only the host's resolver is asked: `/etc/hosts`, `nsswitch.conf` (NIS, LDAP, mDNS, containers), search
//! domains and the options of `resolv.conf` then apply here as for every other program of the host, and a
//! session reaches the same address as a direct connection. A resolver in this process (hickory-resolver,
//! c-ares) could be cancelled, but reads only some of these.
//!
//! `getaddrinfo` blocks for as long as name servers are silent, and cannot be interrupted. So each lookup
//! runs on a thread of its own, which keeps its permit until it returns, even if nobody waits for the result
//! any more. Permits are limited in total and for each source. A lookup that waits for a permit is only a
//! future: dropping it, or its time-out, frees everything.

use crate::dial::{ATTEMPTS_MAX, ordered};
use crate::error::Error;
use phoebus_proto::units::Span;
use std::collections::HashMap;
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;
use tokio::sync::{Semaphore, oneshot};
use tokio::time::timeout;

/// Most addresses of one family that are kept of an answer: twice as many as are tried.
const ADDRESSES_PER_FAMILY: usize = 2 * ATTEMPTS_MAX;

type Lookup = dyn Fn(&str, u16) -> io::Result<Vec<SocketAddr>> + Send + Sync;

/// Name lookups for many sources; the module documentation describes the limits.
pub struct Names {
    turns: Arc<Semaphore>,
    lookups: usize,
    per_source: usize,
    sources: Mutex<Sources>,
    lookup: Arc<Lookup>,
}

#[derive(Default)]
struct Sources {
    turns: HashMap<IpAddr, Weak<Semaphore>>,
    /// Number of sources left when idle ones were last removed.
    kept: usize,
}

impl fmt::Debug for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Names").field("lookups", &self.lookups).field("per_source", &self.per_source).finish()
    }
}

impl Names {
    /// Creates a resolver that runs at most `lookups` lookups at a time, and at most `per_source` for one
    /// source.
    pub fn new(lookups: usize, per_source: usize) -> Self {
        Self::with(lookups, per_source, |name, port| Ok((name, port).to_socket_addrs()?.collect()))
    }

    fn with(
        lookups: usize,
        per_source: usize,
        lookup: impl Fn(&str, u16) -> io::Result<Vec<SocketAddr>> + Send + Sync + 'static,
    ) -> Self {
        let turns = Arc::new(Semaphore::new(lookups.min(Semaphore::MAX_PERMITS)));
        Self { turns, lookups, per_source, sources: Mutex::default(), lookup: Arc::new(lookup) }
    }

    /// Whether the resolver has these limits.
    pub fn is_for(&self, lookups: usize, per_source: usize) -> bool {
        (self.lookups, self.per_source) == (lookups, per_source)
    }

    /// Resolves `name` on behalf of `source`; the addresses are in the order in which to try them. `limit`
    /// bounds the whole, including the wait for a permit.
    ///
    /// # Errors
    /// As [`dial::resolve`](crate::dial::resolve).
    pub async fn resolve(
        &self,
        source: IpAddr,
        name: &str,
        port: u16,
        limit: Duration,
    ) -> Result<Vec<SocketAddr>, Error> {
        let failed = |source| Error::Resolve { name: name.to_owned(), source };
        match timeout(limit, self.look_up(source, name, port)).await {
            Ok(found) => found.map(ordered).map_err(failed),
            Err(_) => Err(Error::Timeout { to: format!("the resolver for {name}"), limit: Span(limit) }),
        }
    }

    async fn look_up(&self, source: IpAddr, name: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        // Take the source's own permit first: a source at its limit then blocks no other source.
        let own = self.turns_of(source).acquire_owned().await.map_err(io::Error::other)?;
        let turn = self.turns.clone().acquire_owned().await.map_err(io::Error::other)?;
        let (lookup, name, (done, found)) = (self.lookup.clone(), name.to_owned(), oneshot::channel());
        std::thread::Builder::new().name("resolver".to_owned()).spawn(move || {
            let result = lookup(&name, port).map(some_of_each);
            drop((own, turn));
            // The receiver may have given up.
            let _ = done.send(result);
        })?;
        found.await.map_err(|_| io::Error::other("the resolver's thread has died"))?
    }

    fn turns_of(&self, source: IpAddr) -> Arc<Semaphore> {
        let mut sources = self.sources.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(turns) = sources.turns.get(&source).and_then(Weak::upgrade) {
            return turns;
        }
        if sources.turns.len() > 2 * sources.kept + 16 {
            sources.turns.retain(|_, turns| turns.strong_count() > 0);
            sources.kept = sources.turns.len();
        }
        let turns = Arc::new(Semaphore::new(self.per_source.min(Semaphore::MAX_PERMITS)));
        sources.turns.insert(source, Arc::downgrade(&turns));
        turns
    }
}

/// Keeps the first addresses of each family, without duplicates. A name server may answer with thousands, and
/// the caller would look at all.
fn some_of_each(found: Vec<SocketAddr>) -> Vec<SocketAddr> {
    let mut kept = Vec::new();
    for addr in found {
        let of_its_family = kept.iter().filter(|other: &&SocketAddr| other.is_ipv4() == addr.is_ipv4());
        if of_its_family.count() < ADDRESSES_PER_FAMILY && !kept.contains(&addr) {
            kept.push(addr);
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;

    const PATIENCE: Duration = Duration::from_secs(60);

    /// A resolver in which names beginning with `slow` are answered when the sender is dropped; the counter
    /// counts started lookups.
    fn names() -> (Names, Arc<AtomicUsize>, mpsc::Sender<()>) {
        let (begun, (gate, wait)) = (Arc::<AtomicUsize>::default(), mpsc::channel());
        let (count, wait) = (begun.clone(), Mutex::new(wait));
        let names = Names::with(6, 2, move |name, port| {
            count.fetch_add(1, Ordering::SeqCst);
            if name.starts_with("slow") {
                let _ = wait.lock().unwrap().recv();
            }
            Ok(vec![SocketAddr::from(([127, 0, 0, 1], port))])
        });
        (names, begun, gate)
    }

    #[tokio::test]
    async fn source_with_hanging_lookups_does_not_block_other_sources() {
        let (names, begun, gate) = names();
        let names = Arc::new(names);
        let ask = |source: [u8; 4], name: &'static str, limit| {
            let names = names.clone();
            tokio::spawn(async move { names.resolve(source.into(), name, 7, limit).await })
        };
        let slow: Vec<_> = (0..300).map(|_| ask([10, 0, 0, 1], "slow.example", Duration::from_millis(50))).collect();
        for asked in slow {
            assert!(matches!(asked.await.unwrap(), Err(Error::Timeout { .. })));
        }
        // The threads may start after the callers have given up.
        while begun.load(Ordering::SeqCst) < 2 {
            tokio::task::yield_now().await;
        }
        assert_eq!(begun.load(Ordering::SeqCst), 2, "what waited for a turn was never asked for");
        let found = ask([10, 0, 0, 2], "quick.example", PATIENCE).await.unwrap().unwrap();
        assert_eq!(found, [SocketAddr::from(([127, 0, 0, 1], 7))]);
        // The two abandoned lookups keep their permits until they return.
        let late = ask([10, 0, 0, 1], "quick.example", Duration::from_millis(50)).await.unwrap();
        assert!(matches!(late, Err(Error::Timeout { .. })), "{late:?}");
        drop(gate);
        ask([10, 0, 0, 1], "quick.example", PATIENCE).await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn answer_is_truncated_for_each_family() {
        let names = Names::with(6, 2, |_, port| {
            let six = |n: u16| SocketAddr::from(([0x2001, 0xdb8, 0, 0, 0, 0, 0, n], port));
            let four = |n: u16| SocketAddr::from(([10, 0, (n >> 8) as u8, n as u8], port));
            Ok((0..4000).map(four).chain([four(0), six(0)]).chain((0..4000).map(six)).collect())
        });
        let found = names.resolve([10, 0, 0, 1].into(), "many.example", 7, PATIENCE).await.unwrap();
        let (four, six): (Vec<_>, Vec<_>) = found.into_iter().partition(SocketAddr::is_ipv4);
        assert_eq!((four.len(), six.len()), (ADDRESSES_PER_FAMILY, ADDRESSES_PER_FAMILY));
        assert_eq!(four[15], SocketAddr::from(([10, 0, 0, 15], 7)), "the first of them");
    }

    #[tokio::test]
    async fn idle_sources_are_removed() {
        let (names, ..) = names();
        for n in 0..1000u32 {
            names.resolve(IpAddr::V4(n.into()), "quick.example", 7, PATIENCE).await.unwrap();
        }
        assert!(names.sources.lock().unwrap().turns.len() < 50);
    }
}
