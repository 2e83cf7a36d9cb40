//! Cookies: what a stranger has to repeat before anything is remembered of it.
//!
//! A cookie shows that its bearer receives what is sent to its address. It is a keyed hash (SipHash-2-4) of that address, the
//! request and the time, so that nothing has to be stored and nobody else can make one. UDT gives it 32 bits: a blind
//! attacker needs two billion guesses for one connection, each answered by nothing.

use super::seq::Seq;
use siphasher::sip::SipHasher24;
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
    fn numbers_differ() {
        let mut secret = Secret::new([3; 32]);
        let drawn: Vec<u64> = (0..3).map(|_| secret.draw()).collect();
        assert!(drawn[0] != drawn[1] && drawn[1] != drawn[2]);
    }
}
