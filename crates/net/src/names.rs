//! Names that others ask for, resolved by the host's own resolver, `getaddrinfo(3)`, on threads of which nobody has all.
//!
//! The host's resolver is asked, and no other: `/etc/hosts`, `nsswitch.conf` (NIS, LDAP, mDNS, containers), search domains and the
//! options of `resolv.conf` then count here as they do for every other program of the host, and a name leads a session where it leads
//! a direct connection. A resolver of this process's own (hickory-resolver, c-ares) can be cancelled, but reads only some of these.
//!
//! `getaddrinfo` blocks, for as long as name servers are silent, and cannot be interrupted. So each lookup has a thread, which keeps
//! its turn until it is done, whether anybody still waits for it or not. Turns are limited in all and for each source. What
//! waits for a turn is a future and nothing else: dropped, or out of time, it is gone.

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

/// Addresses of a name that are kept of each family: twice as many as are tried.
const OF_EACH_FAMILY: usize = 2 * ATTEMPTS_MAX;

type Lookup = dyn Fn(&str, u16) -> io::Result<Vec<SocketAddr>> + Send + Sync;

/// Lookups for many sources. See the module.
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
    /// How many there were after those without a lookup were last forgotten.
    kept: usize,
}

impl fmt::Debug for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Names").field("lookups", &self.lookups).field("per_source", &self.per_source).finish()
    }
}

impl Names {
    /// For so many `lookups` at a time, and from one source.
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

    /// Whether it is for so many at a time.
    pub fn is_for(&self, lookups: usize, per_source: usize) -> bool {
        (self.lookups, self.per_source) == (lookups, per_source)
    }

    /// The addresses of `name`, for whom `source` stands, in the order in which they are to be tried. `limit` is for all of it, the
    /// wait for a turn included.
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
        // The source's own first: whoever has had its share holds up no other's.
        let own = self.turns_of(source).acquire_owned().await.map_err(io::Error::other)?;
        let turn = self.turns.clone().acquire_owned().await.map_err(io::Error::other)?;
        let (lookup, name, (done, found)) = (self.lookup.clone(), name.to_owned(), oneshot::channel());
        std::thread::Builder::new().name("resolver".to_owned()).spawn(move || {
            let result = lookup(&name, port).map(some_of_each);
            drop((own, turn));
            // Nobody may wait for it any more.
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

/// The first addresses of each family, once each. A name server may say thousands, and whoever asked would look at all.
fn some_of_each(found: Vec<SocketAddr>) -> Vec<SocketAddr> {
    let mut kept = Vec::new();
    for addr in found {
        let of_its_family = kept.iter().filter(|other: &&SocketAddr| other.is_ipv4() == addr.is_ipv4());
        if of_its_family.count() < OF_EACH_FAMILY && !kept.contains(&addr) {
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

    /// Names beginning with `slow` are answered when the sender is dropped; counts lookups that have begun.
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
    async fn a_source_whose_names_take_for_ever_denies_them_to_nobody_else() {
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
        // Their threads may take longer to run than anybody has waited.
        while begun.load(Ordering::SeqCst) < 2 {
            tokio::task::yield_now().await;
        }
        assert_eq!(begun.load(Ordering::SeqCst), 2, "what waited for a turn was never asked for");
        let found = ask([10, 0, 0, 2], "quick.example", PATIENCE).await.unwrap().unwrap();
        assert_eq!(found, [SocketAddr::from(([127, 0, 0, 1], 7))]);
        // The two that nobody waits for any more keep their turns until they are done.
        let late = ask([10, 0, 0, 1], "quick.example", Duration::from_millis(50)).await.unwrap();
        assert!(matches!(late, Err(Error::Timeout { .. })), "{late:?}");
        drop(gate);
        ask([10, 0, 0, 1], "quick.example", PATIENCE).await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn a_name_has_so_many_addresses_of_each_family_and_no_more() {
        let names = Names::with(6, 2, |_, port| {
            let six = |n: u16| SocketAddr::from(([0x2001, 0xdb8, 0, 0, 0, 0, 0, n], port));
            let four = |n: u16| SocketAddr::from(([10, 0, (n >> 8) as u8, n as u8], port));
            Ok((0..4000).map(four).chain([four(0), six(0)]).chain((0..4000).map(six)).collect())
        });
        let found = names.resolve([10, 0, 0, 1].into(), "many.example", 7, PATIENCE).await.unwrap();
        let (four, six): (Vec<_>, Vec<_>) = found.into_iter().partition(SocketAddr::is_ipv4);
        assert_eq!((four.len(), six.len()), (OF_EACH_FAMILY, OF_EACH_FAMILY));
        assert_eq!(four[15], SocketAddr::from(([10, 0, 0, 15], 7)), "the first of them");
    }

    #[tokio::test]
    async fn sources_without_a_lookup_are_forgotten() {
        let (names, ..) = names();
        for n in 0..1000u32 {
            names.resolve(IpAddr::V4(n.into()), "quick.example", 7, PATIENCE).await.unwrap();
        }
        assert!(names.sources.lock().unwrap().turns.len() < 50);
    }
}
