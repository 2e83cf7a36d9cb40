//! A brake on guessed passwords: after some wrong ones, a source has to wait before it may try again, longer each time. What comes
//! earlier is refused at once, so that waiting costs no task and no connection.
//!
//! Many sources may guess at one user. After more wrong passwords, that user waits as well, but not at sources where they have logged
//! in before: whoever guesses does not lock users out.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasher, Hash, RandomState};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Wrong passwords of a source that cost nothing: of people who mistype, behind one address.
const FREE: u32 = 5;
/// Wrong passwords for a user that cost nothing, wherever they come from.
const FREE_OF_USER: u32 = 50;
/// The first wait; each further wrong password doubles it.
const FIRST: Duration = Duration::from_secs(1);
/// The longest wait.
const LONGEST: Duration = Duration::from_secs(60);
/// After this time without a wrong password, a source or user is as good as new.
const FORGOTTEN: Duration = Duration::from_secs(600);
/// For how long a source where a user has logged in is known.
const KNOWN: Duration = Duration::from_secs(36 * 3600);
/// Most sources, users and pairs of both that are remembered, of each.
const REMEMBERED: usize = 10_000;

/// Wrong passwords by source and by user. A source is an address; of IPv6, a network of 64 bits, of which one host may have all.
#[derive(Debug, Default)]
pub(crate) struct Guesses {
    state: Mutex<State>,
    /// Of users' names, with a random seed.
    hasher: RandomState,
}

#[derive(Debug, Default)]
struct State {
    sources: HashMap<IpAddr, Failures>,
    users: HashMap<User, Failures>,
    /// How many of a source's failures were for a user.
    pairs: HashMap<(IpAddr, User), Failures>,
    /// When a user has logged in from a source.
    known: HashMap<(IpAddr, User), Instant>,
}

/// The hash of a user's name.
type User = u64;

#[derive(Debug, Clone, Copy)]
struct Failures {
    count: u32,
    last: Instant,
}

impl Failures {
    /// When the next password counts, if the first `free` failures cost nothing.
    fn until(&self, free: u32) -> Instant {
        match self.count.checked_sub(free + 1) {
            None => self.last,
            Some(doubled) => self.last + (FIRST * (1 << doubled.min(6))).min(LONGEST),
        }
    }

    fn counts(&self, now: Instant) -> bool {
        now < self.last + FORGOTTEN
    }

    /// The time that is left to wait.
    fn wait(failures: Option<&Self>, free: u32, now: Instant) -> Option<Duration> {
        let failures = failures.filter(|failures| failures.counts(now))?;
        let left = failures.until(free).saturating_duration_since(now);
        (!left.is_zero()).then_some(left)
    }
}

impl Guesses {
    /// For how long nobody at `from` may try, if they have tried too often.
    pub(crate) fn wait(&self, now: Instant, from: IpAddr) -> Option<Duration> {
        Failures::wait(self.lock().sources.get(&network(from)), FREE, now)
    }

    /// For how long `user` may not try at `from`, because of what others have tried.
    pub(crate) fn user_wait(&self, now: Instant, from: IpAddr, user: &str) -> Option<Duration> {
        let (state, user) = (self.lock(), self.user(user));
        let is_known = state.known.get(&(network(from), user)).is_some_and(|since| now < *since + KNOWN);
        if is_known { None } else { Failures::wait(state.users.get(&user), FREE_OF_USER, now) }
    }

    /// A password for `user` from `from` was wrong. An empty name is nobody's.
    pub(crate) fn failed(&self, now: Instant, from: IpAddr, user: &str) {
        let (mut state, from) = (self.lock(), network(from));
        add(&mut state.sources, from, now);
        if !user.is_empty() {
            let user = self.user(user);
            add(&mut state.users, user, now);
            add(&mut state.pairs, (from, user), now);
        }
    }

    /// A password for `user` from `from` was right. That says nothing of what was tried for others there.
    pub(crate) fn succeeded(&self, now: Instant, from: IpAddr, user: &str) {
        let (mut state, pair) = (self.lock(), (network(from), self.user(user)));
        let own = state.pairs.remove(&pair).map_or(0, |failures| failures.count);
        if let Entry::Occupied(mut failures) = state.sources.entry(pair.0) {
            failures.get_mut().count = failures.get().count.saturating_sub(own);
            if failures.get().count == 0 {
                failures.remove();
            }
        }
        make_room(&mut state.known, &pair, |since| *since);
        state.known.insert(pair, now);
    }

    fn user(&self, name: &str) -> User {
        self.hasher.hash_one(name)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Counts a failure.
fn add<K: Hash + Eq + Copy>(all: &mut HashMap<K, Failures>, key: K, now: Instant) {
    // With so many guessers, one who has guessed little is let off.
    make_room(all, &key, |failures| (failures.counts(now), failures.count));
    let failures = all.entry(key).or_insert(Failures { count: 0, last: now });
    let before = if failures.counts(now) { failures.count } else { 0 };
    *failures = Failures { count: before.saturating_add(1), last: now };
}

/// Forgets the least of some, if a new key finds no room. Looking at all would take too long while many guess.
fn make_room<K: Hash + Eq + Copy, V, R: Ord>(all: &mut HashMap<K, V>, key: &K, rank: impl Fn(&V) -> R) {
    const SOME: usize = 16;
    if all.len() >= REMEMBERED
        && !all.contains_key(key)
        && let Some(least) = all.iter().take(SOME).min_by_key(|(_, value)| rank(value)).map(|(key, _)| *key)
    {
        all.remove(&least);
    }
}

fn network(addr: IpAddr) -> IpAddr {
    match addr.to_canonical() {
        IpAddr::V6(addr) => Ipv6Addr::from_bits(addr.to_bits() >> 64 << 64).into(),
        four => four,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_and_end() {
        let (guesses, start) = (Guesses::default(), Instant::now());
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let [one, near, other]: [IpAddr; 3] =
            ["2001:db8::1", "2001:db8::2", "192.0.2.1"].map(|addr| addr.parse().unwrap());
        for _ in 0..FREE {
            guesses.failed(start, one, "");
        }
        assert_eq!(guesses.wait(start, one), None);
        guesses.failed(start, one, "");
        assert_eq!(guesses.wait(start, near), Some(FIRST));
        assert_eq!((guesses.wait(at(1), one), guesses.wait(start, other)), (None, None));
        for _ in 0..100 {
            guesses.failed(at(1), one, "");
        }
        assert_eq!(guesses.wait(at(1), one), Some(LONGEST));
        assert_eq!(guesses.wait(at(61), one), None);
        guesses.failed(at(700), one, "");
        assert_eq!(guesses.wait(at(700), one), None, "what was long ago is forgotten");
        guesses.failed(at(701), other, "ada");
        guesses.succeeded(at(701), other, "ada");
        assert!(guesses.lock().sources.len() == 1);
    }

    #[test]
    fn own_success_does_not_excuse_guesses_at_others() {
        let (guesses, now) = (Guesses::default(), Instant::now());
        let from: IpAddr = "192.0.2.1".parse().unwrap();
        for _ in 0..4 {
            (0..3).for_each(|_| guesses.failed(now, from, "ada"));
            guesses.failed(now, from, "eve");
            guesses.succeeded(now, from, "eve");
        }
        assert!(guesses.wait(now, from).is_some());
    }

    #[test]
    fn user_waits_after_guesses_from_many_sources_but_not_where_she_is_known() {
        let (guesses, now) = (Guesses::default(), Instant::now());
        let [home, other]: [IpAddr; 2] = ["192.0.2.1", "192.0.2.2"].map(|addr| addr.parse().unwrap());
        guesses.succeeded(now, home, "ada");
        for n in 0..=FREE_OF_USER {
            assert_eq!(guesses.user_wait(now, other, "ada"), None);
            guesses.failed(now, IpAddr::from([10, 0, 0, n as u8]), "ada");
        }
        assert_eq!(guesses.user_wait(now, other, "ada"), Some(FIRST));
        assert_eq!(guesses.user_wait(now, other, "bob"), None);
        assert_eq!(guesses.user_wait(now, home, "ada"), None);
        assert!(guesses.user_wait(now + KNOWN, other, "ada").is_none(), "what was long ago is forgotten");
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let (guesses, now) = (Guesses::default(), Instant::now());
        let worst: IpAddr = "192.0.2.1".parse().unwrap();
        (0..20).for_each(|_| guesses.failed(now, worst, "ada"));
        for n in 0..REMEMBERED as u32 + 10 {
            guesses.failed(now, IpAddr::from(n.to_be_bytes()), &n.to_string());
        }
        for n in 0..REMEMBERED as u32 + 10 {
            guesses.succeeded(now, IpAddr::from(n.to_be_bytes()), "ada");
        }
        let state = guesses.lock();
        assert!(
            state.users.len() <= REMEMBERED && state.pairs.len() <= REMEMBERED && state.sources.len() <= REMEMBERED
        );
        assert_eq!(state.known.len(), REMEMBERED);
        drop(state);
        assert!(guesses.wait(now, worst).is_some());
    }
}
