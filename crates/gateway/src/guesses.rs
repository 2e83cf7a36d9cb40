//! A brake on guessed passwords: after some wrong ones, an address has to wait before it may try again, longer each time. What comes
//! earlier is refused at once, so that waiting costs no task and no connection.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Wrong passwords that cost nothing: of people who mistype, behind one address.
const FREE: u32 = 5;
/// The first wait; each further wrong password doubles it.
const FIRST: Duration = Duration::from_secs(1);
/// The longest wait.
const LONGEST: Duration = Duration::from_secs(60);
/// After this time without a wrong password, an address is as good as new.
const FORGOTTEN: Duration = Duration::from_secs(600);
/// Most addresses that are remembered.
const ADDRESSES: usize = 10_000;

/// Wrong passwords by address; of IPv6, by network of 64 bits, of which one host may have all.
#[derive(Debug, Default)]
pub(crate) struct Guesses(Mutex<HashMap<IpAddr, Failures>>);

#[derive(Debug, Clone, Copy)]
struct Failures {
    count: u32,
    last: Instant,
}

impl Failures {
    fn until(&self) -> Instant {
        match self.count.checked_sub(FREE + 1) {
            None => self.last,
            Some(doubled) => self.last + (FIRST * (1 << doubled.min(6))).min(LONGEST),
        }
    }

    fn counts(&self, now: Instant) -> bool {
        now < self.last + FORGOTTEN
    }
}

impl Guesses {
    /// For how long `from` may not try, if it has tried too often.
    pub(crate) fn wait(&self, now: Instant, from: IpAddr) -> Option<Duration> {
        let failures = *self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&network(from))?;
        let left = failures.until().saturating_duration_since(now);
        (failures.counts(now) && !left.is_zero()).then_some(left)
    }

    /// A password from `from` was wrong.
    pub(crate) fn failed(&self, now: Instant, from: IpAddr) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let from = network(from);
        if all.len() >= ADDRESSES && !all.contains_key(&from) {
            all.retain(|_, failures| failures.counts(now));
            // With so many guessers, the one who has guessed least is let off.
            if all.len() >= ADDRESSES
                && let Some(least) = all.iter().min_by_key(|(_, failures)| failures.count).map(|(from, _)| *from)
            {
                all.remove(&least);
            }
        }
        let failures = all.entry(from).or_insert(Failures { count: 0, last: now });
        let before = if failures.counts(now) { failures.count } else { 0 };
        *failures = Failures { count: before.saturating_add(1), last: now };
    }

    /// A password from `from` was right.
    pub(crate) fn succeeded(&self, from: IpAddr) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&network(from));
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
            guesses.failed(start, one);
        }
        assert_eq!(guesses.wait(start, one), None);
        guesses.failed(start, one);
        assert_eq!(guesses.wait(start, near), Some(FIRST));
        assert_eq!((guesses.wait(at(1), one), guesses.wait(start, other)), (None, None));
        for _ in 0..100 {
            guesses.failed(at(1), one);
        }
        assert_eq!(guesses.wait(at(1), one), Some(LONGEST));
        assert_eq!(guesses.wait(at(61), one), None);
        guesses.failed(at(700), one);
        assert_eq!(guesses.wait(at(700), one), None, "what was long ago is forgotten");
        guesses.failed(at(701), other);
        guesses.succeeded(other);
        assert!(guesses.0.lock().unwrap().len() == 1);
    }

    #[test]
    fn remembered_addresses_are_bounded() {
        let (guesses, now) = (Guesses::default(), Instant::now());
        let worst: IpAddr = "192.0.2.1".parse().unwrap();
        (0..20).for_each(|_| guesses.failed(now, worst));
        for n in 0..ADDRESSES as u32 + 10 {
            guesses.failed(now, IpAddr::from(n.to_be_bytes()));
        }
        assert_eq!(guesses.0.lock().unwrap().len(), ADDRESSES);
        assert!(guesses.wait(now, worst).is_some());
    }
}
