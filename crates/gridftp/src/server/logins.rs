//! Looking at passwords without harm to others: hashing takes a processor for some tenths of a second, on purpose, and whoever connects
//! can ask for it (RFC 2577, section 5: guesses are to be bounded and delayed).
//!
//! - [`Checks`]: few at a time, and of each address one after the other, so that nobody waits for all that another has asked for.
//! - [`Failures`]: answers to failed logins wait, the longer the more of them came from an address.

use super::count::network;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;

/// How long an address is remembered after its last failure: longer than the longest delay, so that patience gains nothing.
const REMEMBERED: Duration = Duration::from_secs(900);

/// How many addresses are remembered: some megabytes. One that is more takes the place of the one whose last failure is oldest.
const ADDRESSES: usize = 1 << 14;

/// Whose turn it is to have a password looked at.
#[derive(Debug)]
pub(super) struct Checks {
    threads: Arc<Semaphore>,
    /// One place for each address that waits or is at work.
    addresses: Mutex<HashMap<IpAddr, Weak<Semaphore>>>,
}

impl Checks {
    /// So many at a time.
    pub(super) fn new(at_once: usize) -> Self {
        let threads = Arc::new(Semaphore::new(at_once.clamp(1, Semaphore::MAX_PERMITS)));
        Self { threads, addresses: Mutex::default() }
    }

    /// Carries out `check` on a thread that may take its time, when it is the turn of `from`; nothing if it panics. Dropped before its
    /// turn, it takes none.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        from: IpAddr,
        check: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let place = self.place(network(from));
        // Neither semaphore is ever closed. The address's comes first: of each address one waits for a thread, and those wait in line.
        let own = place.acquire_owned().await.ok()?;
        let thread = self.threads.clone().acquire_owned().await.ok()?;
        let checked = tokio::task::spawn_blocking(move || {
            let _places = (own, thread);
            check()
        });
        checked.await.ok()
    }

    fn place(&self, from: IpAddr) -> Arc<Semaphore> {
        let mut addresses = self.addresses.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(place) = addresses.get(&from).and_then(Weak::upgrade) {
            return place;
        }
        addresses.retain(|_, place| place.strong_count() > 0);
        let place = Arc::new(Semaphore::new(1));
        addresses.insert(from, Arc::downgrade(&place));
        place
    }
}

/// Failed logins by address.
#[derive(Debug)]
pub(super) struct Failures {
    first: Duration,
    most: Duration,
    addresses: Mutex<HashMap<IpAddr, (u32, Instant)>>,
}

impl Failures {
    /// The answer to the first failure waits for `first`, and each further one twice as long, up to `most`.
    pub(super) fn new(first: Duration, most: Duration) -> Self {
        Self { first, most, addresses: Mutex::default() }
    }

    /// Counts one more failure from this address, and says how long its answer is to wait. A login that succeeds takes nothing away:
    /// whoever guesses at another's password may have one of his own.
    pub(super) fn another(&self, from: IpAddr, now: Instant) -> Duration {
        let from = network(from);
        let mut addresses = self.addresses.lock().unwrap_or_else(PoisonError::into_inner);
        if addresses.len() >= ADDRESSES && !addresses.contains_key(&from) {
            addresses.retain(|_, (_, last)| now - *last < REMEMBERED);
            let oldest = addresses.iter().min_by_key(|(_, (_, last))| *last).map(|(address, _)| *address);
            if let Some(oldest) = oldest.filter(|_| addresses.len() >= ADDRESSES) {
                addresses.remove(&oldest);
            }
        }
        let (count, last) = addresses.entry(from).or_insert((0, now));
        if now - *last >= REMEMBERED {
            *count = 0;
        }
        let delay =
            2_u32.checked_pow(*count).map_or(self.most, |times| self.first.saturating_mul(times).min(self.most));
        (*count, *last) = (count.saturating_add(1), now);
        delay
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    fn ip(last: u8) -> IpAddr {
        [192, 0, 2, last].into()
    }

    #[test]
    fn each_failure_waits_longer_until_it_is_forgotten() {
        let seconds = Duration::from_secs;
        let (failures, now) = (Failures::new(seconds(1), seconds(30)), Instant::now());
        let delays: Vec<_> = (0..7).map(|_| failures.another(ip(1), now).as_secs()).collect();
        assert_eq!(delays, [1, 2, 4, 8, 16, 30, 30]);
        assert_eq!(failures.another(ip(2), now), seconds(1));
        (0..100).for_each(|_| assert!(failures.another(ip(1), now) <= seconds(30)));
        // One /64 of IPv6 is one address.
        let [a, b] = ["2001:db8::1", "2001:db8::2:1"].map(|text| failures.another(text.parse().unwrap(), now));
        assert_eq!((a, b), (seconds(1), seconds(2)));
        assert_eq!(failures.another(ip(1), now + REMEMBERED), seconds(1));
    }

    #[test]
    fn no_more_addresses_are_remembered_than_have_room() {
        let failures = Failures::new(Duration::from_secs(1), Duration::from_secs(30));
        for i in 0..(ADDRESSES as u32 + 10) {
            failures.another(std::net::Ipv4Addr::from(0x0800_0000 + i).into(), Instant::now());
        }
        assert_eq!(failures.addresses.lock().unwrap().len(), ADDRESSES);
    }

    #[tokio::test]
    async fn who_asks_for_much_is_waited_for_once() {
        let checks = Arc::new(Checks::new(1));
        let (open, opened) = mpsc::channel::<()>();
        let order = Arc::new(Mutex::new(Vec::new()));
        let mut all = Vec::new();
        let ask = |from: u8, wait: Option<mpsc::Receiver<()>>| {
            let (checks, order) = (checks.clone(), order.clone());
            tokio::spawn(async move {
                checks
                    .run(ip(from), move || {
                        let _ = wait.map(|wait| wait.recv());
                        order.lock().unwrap().push(from);
                    })
                    .await
            })
        };
        all.push(ask(1, Some(opened)));
        tokio::task::yield_now().await;
        for _ in 0..20 {
            all.push(ask(1, None));
            tokio::task::yield_now().await;
        }
        // One who leaves takes no turn.
        let gone = ask(3, None);
        tokio::task::yield_now().await;
        all.push(ask(2, None));
        tokio::task::yield_now().await;
        gone.abort();
        assert!(gone.await.is_err());
        open.send(()).unwrap();
        for one in all {
            one.await.unwrap().unwrap();
        }
        let order = order.lock().unwrap();
        let at = order.iter().position(|from| *from == 2).unwrap();
        assert!(at <= 2 && order.len() == 22 && !order.contains(&3), "{order:?}");
        assert!(checks.place(ip(9)).available_permits() == 1 && checks.addresses.lock().unwrap().len() == 1);
    }
}
