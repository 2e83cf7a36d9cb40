//! Remembered failures and successful logins of addresses.

use super::network;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long failures are remembered after the last one: longer than the longest delay, so that waiting does not reset it.
const FAILURES_FOR: Duration = Duration::from_secs(900);

/// Most queues with failures: some megabytes. A new one replaces the one with the oldest failure.
const QUEUES: usize = 1 << 14;

/// How long a user counts as known at an address: users come daily.
const KNOWN_FOR: Duration = Duration::from_secs(36 * 3600);

/// Most addresses with known users: some megabytes.
const ADDRESSES: usize = 1 << 12;

/// Most known users of an address. Each gives a guesser there another queue.
const USERS: usize = 32;

/// Clients that wait for one another: all of an address, or those who claim to be a user known there.
pub(super) type QueueKey = (IpAddr, Option<String>);

/// Delays after failures.
#[derive(Debug, Clone, Copy)]
pub struct Delays {
    /// After the first. It doubles with each further one.
    pub first: Duration,
    /// The longest.
    pub most: Duration,
}

impl Delays {
    /// Delays that begin with `first`. `most` is by default a third of `login`, the time to log in, and at most 20 s: a
    /// client that shares an address with a guesser waits for one or two delays, and still gets in.
    pub fn new(first: Duration, most: Option<Duration>, login: Duration) -> Self {
        let usual = (login / 3).min(Duration::from_secs(20));
        Self { first, most: most.unwrap_or(usual) }
    }

    fn after(&self, failures: u32) -> Duration {
        let Some(again) = failures.checked_sub(1) else { return Duration::ZERO };
        let times = 2_u32.checked_pow(again);
        times.map_or(self.most, |times| self.first.saturating_mul(times).min(self.most))
    }
}

/// What is remembered.
#[derive(Debug, Default)]
pub(super) struct Remembered {
    failures: Mutex<HashMap<QueueKey, (u32, Instant)>>,
    /// Known users with the times of their logins, the latest last.
    known: Mutex<HashMap<IpAddr, Vec<(String, Instant)>>>,
}

impl Remembered {
    /// The queue of a client at `address` that claims to be `user`.
    pub(super) fn queue(&self, from: IpAddr, user: &str, now: Instant) -> QueueKey {
        let from = network(from);
        let known = lock(&self.known);
        let is_known =
            known.get(&from).is_some_and(|users| users.iter().any(|one| one.0 == user && is_known(one, now)));
        (from, is_known.then(|| user.to_owned()))
    }

    /// The delay of the queue's next password.
    pub(super) fn owed(&self, queue: &QueueKey, delays: Delays, now: Instant) -> Duration {
        let failures = lock(&self.failures);
        let Some((count, last)) = failures.get(queue) else { return Duration::ZERO };
        let since = now.saturating_duration_since(*last);
        if since < FAILURES_FOR { delays.after(*count).saturating_sub(since) } else { Duration::ZERO }
    }

    /// Counts a failure of the queue. Successful logins subtract nothing: a guesser may have an own password.
    pub(super) fn failed(&self, queue: QueueKey, now: Instant) {
        let mut failures = lock(&self.failures);
        if failures.len() >= QUEUES && !failures.contains_key(&queue) {
            failures.retain(|_, (_, last)| now.saturating_duration_since(*last) < FAILURES_FOR);
            let oldest = failures.iter().min_by_key(|(_, (_, last))| *last).map(|(queue, _)| queue.clone());
            if let Some(oldest) = oldest.filter(|_| failures.len() >= QUEUES) {
                failures.remove(&oldest);
            }
        }
        let (count, last) = failures.entry(queue).or_insert((0, now));
        if now.saturating_duration_since(*last) >= FAILURES_FOR {
            *count = 0;
        }
        (*count, *last) = (count.saturating_add(1), now);
    }

    /// Records a login of `user` from `address`.
    pub(super) fn succeeded(&self, from: IpAddr, user: &str, now: Instant) {
        let (from, mut known) = (network(from), lock(&self.known));
        if known.len() >= ADDRESSES && !known.contains_key(&from) {
            known.retain(|_, users| users.last().is_some_and(|last| is_known(last, now)));
            let oldest = known.iter().min_by_key(|(_, users)| users.last().map(|(_, at)| *at)).map(|(from, _)| *from);
            if let Some(oldest) = oldest.filter(|_| known.len() >= ADDRESSES) {
                known.remove(&oldest);
            }
        }
        let users = known.entry(from).or_default();
        users.retain(|one| one.0 != user && is_known(one, now));
        if users.len() >= USERS {
            users.remove(0);
        }
        users.push((user.to_owned(), now));
    }
}

fn is_known((_, at): &(String, Instant), now: Instant) -> bool {
    now.saturating_duration_since(*at) < KNOWN_FOR
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DELAYS: Delays = Delays { first: Duration::from_secs(1), most: Duration::from_secs(30) };

    fn ip(last: u8) -> IpAddr {
        [192, 0, 2, last].into()
    }

    #[test]
    fn each_failed_login_waits_longer_until_forgotten() {
        let seconds = Duration::from_secs;
        let (remembered, now) = (Remembered::default(), Instant::now());
        let owed = |from: IpAddr, now| remembered.owed(&remembered.queue(from, "jane", now), DELAYS, now);
        let another = |from: IpAddr, now| {
            remembered.failed(remembered.queue(from, "jane", now), now);
            owed(from, now)
        };
        assert_eq!(owed(ip(1), now), seconds(0));
        let delays: Vec<_> = (0..7).map(|_| another(ip(1), now).as_secs()).collect();
        assert_eq!(delays, [1, 2, 4, 8, 16, 30, 30]);
        assert_eq!(another(ip(2), now), seconds(1));
        (0..100).for_each(|_| assert!(another(ip(1), now) <= seconds(30)));
        assert_eq!([10, 30, 40].map(|after| owed(ip(1), now + seconds(after)).as_secs()), [20, 0, 0]);
        // WaitingPassword /64 of IPv6 is one address.
        let [a, b] = ["2001:db8::1", "2001:db8::2:1"].map(|text| another(text.parse().unwrap(), now));
        assert_eq!((a, b), (seconds(1), seconds(2)));
        assert_eq!(owed(ip(1), now + FAILURES_FOR), seconds(0));
        assert_eq!(another(ip(1), now + FAILURES_FOR), seconds(1));
    }

    #[test]
    fn successful_login_is_remembered_for_a_while() {
        let (remembered, now) = (Remembered::default(), Instant::now());
        let is_known = |user: &str, now| remembered.queue(ip(1), user, now).1.is_some();
        remembered.succeeded(ip(1), "jane", now);
        assert!(is_known("jane", now) && !is_known("joe", now) && remembered.queue(ip(2), "jane", now).1.is_none());
        assert!(!is_known("jane", now + KNOWN_FOR));
        let later = now + KNOWN_FOR / 2;
        remembered.succeeded(ip(1), "jane", later);
        assert!(is_known("jane", now + KNOWN_FOR));
    }

    #[test]
    fn no_more_is_remembered_than_has_room() {
        let (remembered, now) = (Remembered::default(), Instant::now());
        let address = |i: usize| IpAddr::from(std::net::Ipv4Addr::from(0x0800_0000 + i as u32));
        for i in 0..QUEUES + 10 {
            remembered.failed((address(i), None), now + Duration::from_micros(i as u64));
        }
        assert_eq!(lock(&remembered.failures).len(), QUEUES);
        for i in 0..ADDRESSES + 10 {
            remembered.succeeded(address(i), "jane", now + Duration::from_micros(i as u64));
        }
        for i in 0..USERS + 10 {
            remembered.succeeded(ip(1), &format!("user {i}"), now + Duration::from_secs(1));
        }
        let known = lock(&remembered.known);
        assert!(known.len() == ADDRESSES && known[&ip(1)].len() == USERS);
        assert!(!known.contains_key(&address(0)) && known.contains_key(&address(ADDRESSES + 9)));
        assert_eq!(known[&ip(1)].last().unwrap().0, format!("user {}", USERS + 9));
    }
}
