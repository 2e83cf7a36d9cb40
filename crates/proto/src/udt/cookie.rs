//! Cookies: what a stranger has to repeat before anything is remembered of it.
//!
//! A cookie shows that its bearer receives what is sent to its address. It is a keyed hash (SipHash-2-4) of that address, the
//! request and the time, so that nothing has to be stored and nobody else can make one. UDT gives it 32 bits: a blind
//! attacker needs two billion guesses for one connection, each answered by nothing. Whoever has seen one could send it again
//! for as long as it is good: therefore each opens [one connection](Spent).

use super::seq::Seq;
use siphasher::sip::SipHasher24;
use std::collections::HashSet;
use std::hash::Hasher;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// Makes and checks cookies, and draws numbers that others cannot guess.
#[derive(Debug, Clone)]
pub(super) struct Secret {
    cookies: [u8; 16],
    numbers: [u8; 16],
    drawn: u64,
}

impl Secret {
    /// A cookie is taken for one to two of these.
    const LIFETIME: Duration = Duration::from_secs(60);

    pub(super) fn new(seed: [u8; 32]) -> Self {
        let (mut cookies, mut numbers) = ([0; 16], [0; 16]);
        cookies.copy_from_slice(&seed[..16]);
        numbers.copy_from_slice(&seed[16..]);
        Self { cookies, numbers, drawn: 0 }
    }

    /// The cookie for a request.
    pub(super) fn cookie(&self, now: Duration, from: SocketAddr, socket: u32, seq: Seq) -> u32 {
        self.at(period(now), from, socket, seq)
    }

    /// Whether `cookie` was made for this request, not long ago.
    pub(super) fn verify(&self, now: Duration, from: SocketAddr, socket: u32, seq: Seq, cookie: u32) -> bool {
        let now = period(now);
        self.at(now, from, socket, seq) == cookie || now > 0 && self.at(now - 1, from, socket, seq) == cookie
    }

    /// A number that is new and cannot be guessed.
    pub(super) fn draw(&mut self) -> u64 {
        self.drawn += 1;
        let mut hasher = SipHasher24::new_with_key(&self.numbers);
        hasher.write_u64(self.drawn);
        hasher.finish()
    }

    fn at(&self, period: u64, from: SocketAddr, socket: u32, seq: Seq) -> u32 {
        let mut hasher = SipHasher24::new_with_key(&self.cookies);
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

/// Cookies that have opened a connection, for as long as they are good.
#[derive(Debug, Default)]
pub(super) struct Spent {
    /// With the socket that each was given to: those of this period, and of the one before.
    recent: [HashSet<(u32, u32)>; 2],
    period: u64,
}

impl Spent {
    /// Most that are remembered of one period, 1 MB: a thousand new connections per second. Of what is beyond, a replay costs
    /// what a connection costs that nothing is heard on.
    const MAX: usize = 1 << 16;

    /// Remembers that a cookie was used by the client with this socket.
    pub(super) fn add(&mut self, now: Duration, socket: u32, cookie: u32) {
        self.forget(now);
        if self.recent[0].len() < Self::MAX {
            self.recent[0].insert((socket, cookie));
        }
    }

    /// Whether it was used.
    pub(super) fn contains(&mut self, now: Duration, socket: u32, cookie: u32) -> bool {
        self.forget(now);
        self.recent.iter().any(|spent| spent.contains(&(socket, cookie)))
    }

    /// One that was used in the period before the last is no longer good.
    fn forget(&mut self, now: Duration) {
        let now = period(now);
        if now > self.period {
            let last = std::mem::take(&mut self.recent[0]);
            self.recent[1] = if now == self.period + 1 { last } else { HashSet::new() };
            self.period = now;
        }
    }
}

fn period(now: Duration) -> u64 {
    now.as_secs() / Secret::LIFETIME.as_secs()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cookie_is_good_for_its_request_its_secret_and_its_time() {
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
    fn what_is_spent_is_remembered_for_as_long_as_it_is_good() {
        let (secret, mut spent) = (Secret::new([1; 32]), Spent::default());
        let from: SocketAddr = "192.0.2.1:9000".parse().unwrap();
        for (given, used, socket) in [(0, 0, 1), (59, 60, 2), (119, 119, 3), (130, 200, 4), (900, 901, 5)] {
            let [given, used] = [given, used].map(Duration::from_secs);
            let cookie = secret.cookie(given, from, socket, Seq::new(9));
            assert!(!spent.contains(used, socket, cookie));
            spent.add(used, socket, cookie);
            assert!(!spent.contains(used, socket + 1, cookie));
            let mut at = used;
            while secret.verify(at, from, socket, Seq::new(9), cookie) {
                assert!(
                    spent.contains(at, socket, cookie),
                    "given at {given:?}, used at {used:?}, sent again at {at:?}"
                );
                at += Duration::from_secs(1);
            }
        }
        assert_eq!(spent.recent.each_ref().map(HashSet::len), [0, 1], "what is no longer good is forgotten");
    }

    #[test]
    fn no_more_than_a_bound_is_remembered() {
        let mut spent = Spent::default();
        for n in 0..Spent::MAX as u32 + 10 {
            spent.add(Duration::ZERO, n, n);
        }
        assert_eq!(spent.recent[0].len(), Spent::MAX);
    }

    #[test]
    fn numbers_differ() {
        let mut secret = Secret::new([3; 32]);
        let drawn: Vec<u64> = (0..3).map(|_| secret.draw()).collect();
        assert!(drawn[0] != drawn[1] && drawn[1] != drawn[2]);
    }
}
