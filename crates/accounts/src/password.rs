//! Password hashes: PBKDF2 (RFC 8018) with HMAC-SHA-256.

use phoebus_proto::hex::{hex, unhex};
use ring::pbkdf2;
use ring::rand::{SecureRandom, SystemRandom};
use std::num::NonZeroU32;

/// Rounds of a new hash: OWASP's advice (2023) for PBKDF2 with HMAC-SHA-256.
const ROUNDS: u32 = 600_000;

/// Most rounds of a hash in the configuration: some seconds of a processor.
const MAX_ROUNDS: u32 = 50_000_000;

const NAME: &str = "pbkdf2-sha256";

/// A password hash: `pbkdf2-sha256:ROUNDS:SALT:HASH`. Debug output hides it.
#[derive(Clone, PartialEq, Eq)]
pub struct PasswordHash {
    rounds: NonZeroU32,
    salt: Vec<u8>,
    hash: Vec<u8>,
}

/// Hashes `password` for a configuration.
///
/// # Errors
/// The system has no random bytes.
pub fn hash_password(password: &[u8]) -> Result<String, ring::error::Unspecified> {
    let mut salt = [0; 16];
    SystemRandom::new().fill(&mut salt)?;
    let mut hash = [0; 32];
    let rounds = NonZeroU32::new(ROUNDS).unwrap_or(NonZeroU32::MIN);
    pbkdf2::derive(pbkdf2::PBKDF2_HMAC_SHA256, rounds, &salt, password, &mut hash);
    Ok(format!("{NAME}:{ROUNDS}:{}:{}", hex(&salt), hex(&hash)))
}

impl PasswordHash {
    /// Parses the form that [`hash_password`] makes.
    pub fn parse(text: &str) -> Option<Self> {
        let [name, rounds, salt, hash] = text.trim().split(':').collect::<Vec<_>>()[..] else { return None };
        let rounds: NonZeroU32 = rounds.parse().ok()?;
        let (salt, hash) = (unhex(salt)?, unhex(hash)?);
        let sound = name == NAME && rounds.get() <= MAX_ROUNDS && salt.len() >= 8 && hash.len() == 32;
        sound.then_some(Self { rounds, salt, hash })
    }

    /// A hash of no password, which takes as long to verify as the slowest of `others`.
    pub fn of_none<'a>(others: impl IntoIterator<Item = &'a Self>) -> Self {
        let rounds = others.into_iter().map(|other| other.rounds).max();
        // No password has a hash of zeros.
        Self { rounds: rounds.unwrap_or(NonZeroU32::MIN), salt: vec![0; 16], hash: vec![0; 32] }
    }

    /// Verifies `password`. Takes some tenths of a second of a processor, on purpose.
    pub fn is_of(&self, password: &[u8]) -> bool {
        pbkdf2::verify(pbkdf2::PBKDF2_HMAC_SHA256, self.rounds, &self.salt, password, &self.hash).is_ok()
    }
}

impl std::fmt::Debug for PasswordHash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("(hashed)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_right_password_is_accepted() {
        // Of Python's hashlib.pbkdf2_hmac("sha256", b"secret", bytes(range(16)), 1000).
        let kept = "pbkdf2-sha256:1000:000102030405060708090a0b0c0d0e0f:\
                    4efb2bbb6d2eb58ea8deaed54417ae2fd87fd50a8a8568709363da60d4560606";
        let hashed = PasswordHash::parse(kept).unwrap();
        assert!(hashed.is_of(b"secret") && !hashed.is_of(b"other") && !format!("{hashed:?}").contains("4efb"));
        let own = PasswordHash::parse(&hash_password(b"secret").unwrap()).unwrap();
        assert!(own.is_of(b"secret") && !own.is_of(b"Secret") && !own.is_of(b""));
        for text in ["", "secret", "md5:1:00:00", "pbkdf2-sha256:0:0011223344556677:00", &kept[..60]] {
            assert!(PasswordHash::parse(text).is_none(), "{text}");
        }
    }
}
