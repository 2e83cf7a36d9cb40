//! Cookies: a client must return one before the listener keeps any state for it.
//!
//! A cookie proves that the client receives packets at its source address. It is a keyed hash (SipHash-2-4) of that
//! address, the request and the time. So the listener stores nothing, and nobody else can forge one. UDT gives a cookie
//! 32 bits: a blind attacker needs two billion guesses on average for one connection, and no guess is answered. An
//! observer could replay a cookie while it is valid, so each cookie opens only [one connection](UsedCookies).

use super::seq::Seq;
use siphasher::sip::SipHasher24;
use std::collections::HashSet;
use std::hash::Hasher;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// Makes and verifies cookies, and generates unpredictable numbers.
#[derive(Debug, Clone)]
pub(super) struct Secret {
    cookie_key: [u8; 16],
    number_key: [u8; 16],
    /// Numbers generated so far.
    counter: u64,
}

impl Secret {
    /// A cookie is valid for the period in which it was made and for the next one.
    const PERIOD: Duration = Duration::from_secs(60);

    pub(super) fn new(seed: [u8; 32]) -> Self {
        let (mut cookie_key, mut number_key) = ([0; 16], [0; 16]);
        cookie_key.copy_from_slice(&seed[..16]);
        number_key.copy_from_slice(&seed[16..]);
        Self { cookie_key, number_key, counter: 0 }
    }

    /// The cookie for a request with this source address, socket and sequence number.
    pub(super) fn cookie(&self, now: Duration, from: SocketAddr, socket: u32, seq: Seq) -> u32 {
        self.hash(period(now), from, socket, seq)
    }

    /// Whether `cookie` was made for this request in this period or the one before.
    pub(super) fn verify(&self, now: Duration, from: SocketAddr, socket: u32, seq: Seq, cookie: u32) -> bool {
        let now = period(now);
        self.hash(now, from, socket, seq) == cookie || now > 0 && self.hash(now - 1, from, socket, seq) == cookie
    }

    /// A new unpredictable number.
    pub(super) fn random(&mut self) -> u64 {
        self.counter += 1;
        let mut hasher = SipHasher24::new_with_key(&self.number_key);
        hasher.write_u64(self.counter);
        hasher.finish()
    }

    fn hash(&self, period: u64, from: SocketAddr, socket: u32, seq: Seq) -> u32 {
        let mut hasher = SipHasher24::new_with_key(&self.cookie_key);
        match from.ip() {
            IpAddr::V4(ip) => hasher.write(&ip.octets()),
            IpAddr::V6(ip) => hasher.write(&ip.octets()),
        }
        hasher.write_u16(from.port());
        hasher.write_u32(socket);
        hasher.write_u32(seq.get());
        hasher.write_u64(period);
        hasher.finish() as u32
    }
}

/// Cookies that have opened a connection, for as long as they are valid.
#[derive(Debug, Default)]
pub(super) struct UsedCookies {
    /// Client sockets and cookies used in this period, and in the one before.
    recent: [HashSet<(u32, u32)>; 2],
    period: u64,
}

impl UsedCookies {
    /// Most entries of one period, 1 MB: a thousand new connections per second. The replay of a cookie beyond this
    /// limit costs one accepted connection that ends with the idle time-out.
    const MAX: usize = 1 << 16;

    /// Records that the client with this socket has used `cookie`.
    pub(super) fn add(&mut self, now: Duration, socket: u32, cookie: u32) {
        self.expire(now);
        if self.recent[0].len() < Self::MAX {
            self.recent[0].insert((socket, cookie));
        }
    }

    /// Whether the client with this socket has used `cookie`.
    pub(super) fn contains(&mut self, now: Duration, socket: u32, cookie: u32) -> bool {
        self.expire(now);
        self.recent.iter().any(|used| used.contains(&(socket, cookie)))
    }

    /// Drops cookies used before the previous period: they are no longer valid.
    fn expire(&mut self, now: Duration) {
        let now = period(now);
        if now > self.period {
            let last = std::mem::take(&mut self.recent[0]);
            self.recent[1] = if now == self.period + 1 { last } else { HashSet::new() };
            self.period = now;
        }
    }
}

fn period(now: Duration) -> u64 {
    now.as_secs() / Secret::PERIOD.as_secs()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cookie_is_valid_only_for_its_request_secret_and_time() {
        let (secret, other) = (Secret::new([1; 32]), Secret::new([2; 32]));
        let from: SocketAddr = "192.0.2.1:9000".parse().unwrap();
        let at = Duration::from_secs(59);
        let cookie = secret.cookie(at, from, 7, Seq::new(9));
        let verify = |secret: &Secret, seconds, from: &str, socket, seq| {
            secret.verify(Duration::from_secs(seconds), from.parse().unwrap(), socket, Seq::new(seq), cookie)
        };
        assert!(verify(&secret, 59, "192.0.2.1:9000", 7, 9));
        assert!(verify(&secret, 119, "192.0.2.1:9000", 7, 9));
        assert!(!verify(&secret, 120, "192.0.2.1:9000", 7, 9));
        assert!(!verify(&other, 59, "192.0.2.1:9000", 7, 9));
        assert!(!verify(&secret, 59, "192.0.2.2:9000", 7, 9));
        assert!(!verify(&secret, 59, "192.0.2.1:9001", 7, 9));
        assert!(!verify(&secret, 59, "192.0.2.1:9000", 8, 9));
        assert!(!verify(&secret, 59, "192.0.2.1:9000", 7, 8));
    }

    #[test]
    fn used_cookies_are_remembered_while_they_are_valid() {
        let (secret, mut used_cookies) = (Secret::new([1; 32]), UsedCookies::default());
        let from: SocketAddr = "192.0.2.1:9000".parse().unwrap();
        for (given, used, socket) in [(0, 0, 1), (59, 60, 2), (119, 119, 3), (130, 200, 4), (900, 901, 5)] {
            let [given, used] = [given, used].map(Duration::from_secs);
            let cookie = secret.cookie(given, from, socket, Seq::new(9));
            assert!(!used_cookies.contains(used, socket, cookie));
            used_cookies.add(used, socket, cookie);
            assert!(!used_cookies.contains(used, socket + 1, cookie));
            let mut at = used;
            while secret.verify(at, from, socket, Seq::new(9), cookie) {
                assert!(
                    used_cookies.contains(at, socket, cookie),
                    "given at {given:?}, used at {used:?}, sent again at {at:?}"
                );
                at += Duration::from_secs(1);
            }
        }
        assert_eq!(used_cookies.recent.each_ref().map(HashSet::len), [0, 1], "expired cookies are dropped");
    }

    #[test]
    fn number_of_remembered_cookies_is_bounded() {
        let mut used_cookies = UsedCookies::default();
        for n in 0..UsedCookies::MAX as u32 + 10 {
            used_cookies.add(Duration::ZERO, n, n);
        }
        assert_eq!(used_cookies.recent[0].len(), UsedCookies::MAX);
    }

    #[test]
    fn random_numbers_differ() {
        let mut secret = Secret::new([3; 32]);
        let drawn: Vec<u64> = (0..3).map(|_| secret.random()).collect();
        assert!(drawn[0] != drawn[1] && drawn[1] != drawn[2]);
    }
}
