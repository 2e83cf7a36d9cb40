//! Looking at passwords without harm to others: hashing takes a processor for some tenths of a second, on purpose, and whoever connects
//! can ask for it (RFC 2577, section 5: guesses are to be bounded and delayed).
//!
//! - [`Checks`]: few at a time, and of each address one after the other, so that nobody waits for all that another has asked for.
//! - [`Failures`]: after a failed login the next password from that address waits until it is looked at, the longer the more of them
//!   there were. An answer that waited would tell by its silence, and whoever guesses need not stay for it.

use super::count::network;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// How long an address is remembered after its last failure: longer than the longest delay, so that patience gains nothing.
const REMEMBERED: Duration = Duration::from_secs(900);

/// How many addresses are remembered: some megabytes. One that is more takes the place of the one whose last failure is oldest.
const ADDRESSES: usize = 1 << 14;

/// Whose turn it is to have a password looked at.
#[derive(Debug)]
pub(super) struct Checks {
    threads: Arc<Semaphore>,
    /// One place for each line that somebody waits or is at work in.
    lines: Mutex<HashMap<(IpAddr, Line), Weak<Semaphore>>>,
}

/// Who waits for one another.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Line {
    /// All who show tickets from an address.
    Tickets,
    /// All who show passwords from an address. Of each user the first waits here.
    Passwords,
    /// All who show those of a user: who shares an address with those who guess at another's does not wait for all of them.
    User(String),
}

impl Checks {
    /// So many at a time.
    pub(super) fn new(at_once: usize) -> Self {
        let threads = Arc::new(Semaphore::new(at_once.clamp(1, Semaphore::MAX_PERMITS)));
        Self { threads, lines: Mutex::default() }
    }

    /// Carries out `check` of a ticket on a thread that may take its time, when it is the turn of `from`; nothing if it panics. Dropped
    /// before its turn, it takes none.
    #[cfg_attr(not(feature = "kerberos"), allow(dead_code, reason = "only Kerberos has tickets"))]
    pub(super) async fn ticket<T: Send + 'static>(
        &self,
        from: IpAddr,
        check: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let place = self.place(from, Line::Tickets).await?;
        self.run(vec![place], check).await
    }

    /// The same for a password of `user`, once what `from` owes for its `failures` has passed; no `T` is one more.
    pub(super) async fn password<T: Send + 'static>(
        &self,
        (from, user): (IpAddr, &str),
        failures: Arc<Failures>,
        check: impl FnOnce() -> Option<T> + Send + 'static,
    ) -> Option<T> {
        let of_user = self.place(from, Line::User(user.to_owned())).await?;
        let own = self.place(from, Line::Passwords).await?;
        // Nobody else from there fails meanwhile.
        tokio::time::sleep(failures.owed(from, Instant::now())).await;
        let checked = self.run(vec![of_user, own], move || {
            let checked = check();
            // Also if whoever has asked is gone by now.
            if checked.is_none() {
                failures.another(from, Instant::now());
            }
            checked
        });
        checked.await.flatten()
    }

    /// The line's place comes first: of each one waits for a thread, and those wait in line. No semaphore is ever closed.
    async fn run<T: Send + 'static>(
        &self,
        places: Vec<OwnedSemaphorePermit>,
        check: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let thread = self.threads.clone().acquire_owned().await.ok()?;
        let checked = tokio::task::spawn_blocking(move || {
            let _places = (places, thread);
            check()
        });
        checked.await.ok()
    }

    async fn place(&self, from: IpAddr, line: Line) -> Option<OwnedSemaphorePermit> {
        let place = self.semaphore((network(from), line));
        place.acquire_owned().await.ok()
    }

    fn semaphore(&self, line: (IpAddr, Line)) -> Arc<Semaphore> {
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(place) = lines.get(&line).and_then(Weak::upgrade) {
            return place;
        }
        lines.retain(|_, place| place.strong_count() > 0);
        let place = Arc::new(Semaphore::new(1));
        lines.insert(line, Arc::downgrade(&place));
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
    /// After the first failure the next password waits for `first`, and after each further one twice as long, up to `most`.
    pub(super) fn new(first: Duration, most: Duration) -> Self {
        Self { first, most, addresses: Mutex::default() }
    }

    /// How long the next password from this address waits.
    pub(super) fn owed(&self, from: IpAddr, now: Instant) -> Duration {
        let addresses = self.addresses.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((count, last)) = addresses.get(&network(from)) else { return Duration::ZERO };
        let since = now.saturating_duration_since(*last);
        let times = count.checked_sub(1).filter(|_| since < REMEMBERED).map(|again| 2_u32.checked_pow(again));
        let delay = times.map_or(Duration::ZERO, |times| {
            times.map_or(self.most, |times| self.first.saturating_mul(times).min(self.most))
        });
        delay.saturating_sub(since)
    }

    /// Counts one more failure from this address. A login that succeeds takes nothing away: whoever guesses at another's password may have
    /// one of his own.
    pub(super) fn another(&self, from: IpAddr, now: Instant) {
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
        (*count, *last) = (count.saturating_add(1), now);
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
        let another = |from: IpAddr, now| {
            failures.another(from, now);
            failures.owed(from, now)
        };
        assert_eq!(failures.owed(ip(1), now), seconds(0));
        let delays: Vec<_> = (0..7).map(|_| another(ip(1), now).as_secs()).collect();
        assert_eq!(delays, [1, 2, 4, 8, 16, 30, 30]);
        assert_eq!(another(ip(2), now), seconds(1));
        (0..100).for_each(|_| assert!(another(ip(1), now) <= seconds(30)));
        assert_eq!([10, 30, 40].map(|after| failures.owed(ip(1), now + seconds(after)).as_secs()), [20, 0, 0]);
        // One /64 of IPv6 is one address.
        let [a, b] = ["2001:db8::1", "2001:db8::2:1"].map(|text| another(text.parse().unwrap(), now));
        assert_eq!((a, b), (seconds(1), seconds(2)));
        assert_eq!(failures.owed(ip(1), now + REMEMBERED), seconds(0));
        assert_eq!(another(ip(1), now + REMEMBERED), seconds(1));
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
                    .ticket(ip(from), move || {
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
        let place = checks.semaphore((ip(9), Line::Tickets));
        assert!(place.available_permits() == 1 && checks.lines.lock().unwrap().len() == 1);
    }

    #[tokio::test]
    async fn what_an_address_owes_is_waited_for_before_its_password_is_looked_at() {
        let delay = Duration::from_millis(200);
        let (checks, failures) = (Arc::new(Checks::new(1)), Arc::new(Failures::new(delay, delay)));
        let order = Arc::new(Mutex::new(Vec::new()));
        let ask = |from: u8, user: &'static str, right: bool| {
            let (checks, failures, order) = (checks.clone(), failures.clone(), order.clone());
            let check = move || {
                order.lock().unwrap().push((from, user, Instant::now()));
                right.then_some(user)
            };
            async move { checks.password((ip(from), user), failures, check).await }
        };
        assert_eq!(ask(1, "jane", false).await, None);
        let guesses: Vec<_> = (0..50).map(|_| tokio::spawn(ask(1, "jane", false))).collect();
        tokio::task::yield_now().await;
        // Who comes from elsewhere waits for nothing, and another user from there for the one guess whose turn it is.
        assert_eq!(ask(2, "jane", true).await, Some("jane"));
        assert_eq!(ask(1, "joe", true).await, Some("joe"));
        for guess in guesses {
            guess.abort();
        }
        let order = order.lock().unwrap();
        let from_there: Vec<_> = order.iter().filter(|(from, ..)| *from == 1).collect();
        assert_eq!(from_there.iter().map(|(_, user, _)| *user).collect::<Vec<_>>()[..3], ["jane", "jane", "joe"]);
        // Right or wrong, it is looked at so long after the failure before.
        assert!(from_there.windows(2).all(|two| two[1].2 - two[0].2 >= delay));
    }
}
