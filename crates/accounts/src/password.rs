//! Password hashes: PBKDF2 (RFC 8018) with HMAC-SHA-256.

use phoebus_proto::hex::{hex, unhex};
use phoebus_proto::session::auth::scram::{KEY_LEN, Keys, Salting, Verifier};
use ring::pbkdf2;
use ring::rand::{SecureRandom, SystemRandom};
use std::borrow::Cow;
use std::num::NonZeroU32;

/// Rounds of a new hash: OWASP's advice (2023) for PBKDF2 with HMAC-SHA-256.
const ROUNDS: u32 = 600_000;

/// Most rounds of a hash in the configuration: some seconds of a processor.
const MAX_ROUNDS: u32 = 50_000_000;

const NAME: &str = "pbkdf2-sha256";

/// Bytes of a new salt.
const SALT: usize = 16;

/// A new verifier of `password`, for a users file.
///
/// # Errors
/// The system has no random bytes.
pub fn new_verifier(password: &[u8]) -> Result<Verifier, ring::error::Unspecified> {
    let mut salt = [0; SALT];
    SystemRandom::new().fill(&mut salt)?;
    let salting = Salting::new(&salt, ROUNDS).ok_or(ring::error::Unspecified)?;
    Ok(scram_keys(password, salting).verifier())
}

/// The keys of `password`, salted in this way (RFC 5802 §3). Takes some tenths of a second of a processor, on purpose.
pub fn scram_keys(password: &[u8], salting: Salting) -> Keys {
    Keys::of(salting, &salted(password, salting))
}

fn salted(password: &[u8], salting: Salting) -> [u8; KEY_LEN] {
    let mut salted = [0; KEY_LEN];
    let rounds = NonZeroU32::new(salting.rounds()).unwrap_or(NonZeroU32::MIN);
    pbkdf2::derive(pbkdf2::PBKDF2_HMAC_SHA256, rounds, salting.salt(), &prepared(password), &mut salted);
    salted
}

/// The password as SCRAM and PostgreSQL hash it: prepared by SASLprep (RFC 4013) where that is possible, and else as it is.
fn prepared(password: &[u8]) -> Cow<'_, [u8]> {
    match std::str::from_utf8(password).ok().and_then(|text| stringprep::saslprep(text).ok()) {
        Some(Cow::Owned(text)) => Cow::Owned(text.into_bytes()),
        _ => Cow::Borrowed(password),
    }
}

/// What a server keeps of a password: `pbkdf2-sha256:ROUNDS:SALT:HASH`, or a verifier of SCRAM. Debug output hides it.
#[derive(Clone, PartialEq, Eq)]
pub struct PasswordHash(Form);

#[derive(Clone, PartialEq, Eq)]
enum Form {
    Hash { rounds: NonZeroU32, salt: Vec<u8>, hash: Vec<u8> },
    Verifier(Box<Verifier>),
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
    /// Parses the form that [`hash_password`] makes, or that of a [`Verifier`].
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        if let Some(verifier) = Verifier::parse(text) {
            return Some(verifier.into());
        }
        let [name, rounds, salt, hash] = text.split(':').collect::<Vec<_>>()[..] else { return None };
        let rounds: NonZeroU32 = rounds.parse().ok()?;
        let (salt, hash) = (unhex(salt)?, unhex(hash)?);
        let sound = name == NAME && rounds.get() <= MAX_ROUNDS && salt.len() >= 8 && hash.len() == 32;
        sound.then_some(Self(Form::Hash { rounds, salt, hash }))
    }

    /// A hash of no password, which takes as long to verify as the slowest of `others`.
    pub fn of_none<'a>(others: impl IntoIterator<Item = &'a Self>) -> Self {
        let rounds = others.into_iter().map(Self::rounds).max().unwrap_or(NonZeroU32::MIN);
        // No password has a hash of zeros.
        Self(Form::Hash { rounds, salt: vec![0; 16], hash: vec![0; 32] })
    }

    /// Verifies `password`. Takes some tenths of a second of a processor, on purpose.
    pub fn is_of(&self, password: &[u8]) -> bool {
        match &self.0 {
            Form::Hash { rounds, salt, hash } => {
                pbkdf2::verify(pbkdf2::PBKDF2_HMAC_SHA256, *rounds, salt, password, hash).is_ok()
            }
            Form::Verifier(verifier) => verifier.is_of(&salted(password, verifier.salting)),
        }
    }

    fn rounds(&self) -> NonZeroU32 {
        match &self.0 {
            Form::Hash { rounds, .. } => *rounds,
            Form::Verifier(verifier) => NonZeroU32::new(verifier.salting.rounds()).unwrap_or(NonZeroU32::MIN),
        }
    }
}

impl From<Verifier> for PasswordHash {
    fn from(verifier: Verifier) -> Self {
        Self(Form::Verifier(Box::new(verifier)))
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
        let verifier = new_verifier("päßword".as_bytes()).unwrap().to_string();
        let scram = PasswordHash::parse(&format!("{verifier}\n")).unwrap();
        assert!(scram.is_of("päßword".as_bytes()) && !scram.is_of(b"password"));
        for text in ["", "secret", "md5:1:00:00", "pbkdf2-sha256:0:0011223344556677:00", &kept[..60]] {
            assert!(PasswordHash::parse(text).is_none(), "{text}");
        }
    }
}
