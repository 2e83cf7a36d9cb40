//! What SCRAM derives from a password: the keys of a client, and the verifier of a server (RFC 5802 §3).

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, Mac};
use sha2::{Digest, Sha256};
use std::fmt;
use subtle::ConstantTimeEq;

/// Bytes of every key and hash.
pub const KEY_LEN: usize = 32;
/// Longest salt, in bytes.
pub const SALT_MAX: usize = 64;
/// Fewest rounds of PBKDF2 that are accepted: RFC 7677's least.
pub const ROUNDS_MIN: u32 = 4096;
/// Most rounds: some seconds of a processor.
pub const ROUNDS_MAX: u32 = 50_000_000;
/// What a verifier's text begins with, as in PostgreSQL.
const NAME: &str = "SCRAM-SHA-256";

/// A keyed hash.
pub(super) type Mac256 = Hmac<Sha256>;

/// A MAC under `key`.
pub(super) fn mac(key: &[u8]) -> Mac256 {
    match Mac256::new_from_slice(key) {
        Ok(mac) => mac,
        Err(_) => unreachable!("HMAC takes keys of any length"),
    }
}

/// The MAC of `bytes` under `key`.
pub(super) fn mac_of(key: &[u8], bytes: &[u8]) -> [u8; KEY_LEN] {
    mac(key).chain_update(bytes).finalize().into_bytes().into()
}

/// A seed for [`Salting::of_nobody`], made of secret bytes.
pub fn seed_of(bytes: &[u8]) -> [u8; KEY_LEN] {
    Sha256::digest(bytes).into()
}

/// How a password was hashed. The default is that of no password.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Salting {
    salt: [u8; SALT_MAX],
    len: u8,
    rounds: u32,
}

impl Default for Salting {
    fn default() -> Self {
        Self { salt: [0; SALT_MAX], len: 1, rounds: ROUNDS_MIN }
    }
}

impl Salting {
    /// `None` if the salt is empty or longer than [`SALT_MAX`], or `rounds` is not from [`ROUNDS_MIN`] to [`ROUNDS_MAX`].
    pub fn new(salt: &[u8], rounds: u32) -> Option<Self> {
        let mut kept = [0; SALT_MAX];
        kept.get_mut(..salt.len())?.copy_from_slice(salt);
        let sound = !salt.is_empty() && (ROUNDS_MIN..=ROUNDS_MAX).contains(&rounds);
        sound.then_some(Self { salt: kept, len: salt.len() as u8, rounds })
    }

    /// The salting of a user who is not known, like one of `others`: the same for each seed and name. `None` if there are no others.
    pub fn of_nobody(seed: &[u8; KEY_LEN], name: &str, others: &[Self]) -> Option<Self> {
        let made = mac_of(seed, name.as_bytes());
        // By the highest hash, so that a new kind of salting changes as few names as possible, and another user of a kind none.
        let hash = |like: &&Self| mac_of(&made, &[&like.rounds.to_be_bytes()[..], &[like.len]].concat());
        let like = others.iter().max_by_key(hash)?;
        let mut salt = [0; SALT_MAX];
        for (part, bytes) in (0u8..).zip(salt.chunks_mut(KEY_LEN)) {
            bytes.copy_from_slice(&mac_of(&made, &[part])[..bytes.len()]);
        }
        salt[like.len.into()..].fill(0);
        Some(Self { salt, ..*like })
    }

    /// The salt.
    pub fn salt(&self) -> &[u8] {
        &self.salt[..self.len.into()]
    }

    /// Rounds of PBKDF2.
    pub fn rounds(&self) -> u32 {
        self.rounds
    }
}

/// What a client keeps in place of a password. Whoever has it can log in where the password was hashed in this way, and nowhere
/// else.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Keys {
    /// How the password was hashed.
    pub salting: Salting,
    pub(super) client: [u8; KEY_LEN],
    pub(super) server: [u8; KEY_LEN],
}

/// What a server keeps in place of a password. It cannot log in with that.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Verifier {
    /// How the password was hashed.
    pub salting: Salting,
    pub(super) stored: [u8; KEY_LEN],
    pub(super) server: [u8; KEY_LEN],
}

impl Keys {
    /// The keys of a password whose hash by PBKDF2 with HMAC-SHA-256 is `salted`.
    pub fn of(salting: Salting, salted: &[u8; KEY_LEN]) -> Self {
        Self { salting, client: mac_of(salted, b"Client Key"), server: mac_of(salted, b"Server Key") }
    }

    /// Keys that were kept ([`Keys::client`], [`Keys::server`]).
    pub fn kept(salting: Salting, client: [u8; KEY_LEN], server: [u8; KEY_LEN]) -> Self {
        Self { salting, client, server }
    }

    /// The key that a client proves itself with.
    pub fn client(&self) -> &[u8; KEY_LEN] {
        &self.client
    }

    /// The key that a server proves itself with.
    pub fn server(&self) -> &[u8; KEY_LEN] {
        &self.server
    }

    /// The verifier of the same password.
    pub fn verifier(&self) -> Verifier {
        Verifier { salting: self.salting, stored: Sha256::digest(self.client).into(), server: self.server }
    }
}

impl Verifier {
    /// A verifier that no password has.
    pub fn of_nobody(salting: Salting) -> Self {
        Self { salting, stored: [0; KEY_LEN], server: [0; KEY_LEN] }
    }

    /// Reads `SCRAM-SHA-256$ROUNDS:SALT$STORED:SERVER`, the last three in base64, as PostgreSQL writes it.
    pub fn parse(text: &str) -> Option<Self> {
        let rest = text.strip_prefix(NAME)?.strip_prefix('$')?;
        let (salting, keys) = rest.split_once('$')?;
        let ((rounds, salt), (stored, server)) = (salting.split_once(':')?, keys.split_once(':')?);
        let key = |text: &str| STANDARD.decode(text).ok()?.try_into().ok();
        let salting = Salting::new(&STANDARD.decode(salt).ok()?, rounds.parse().ok()?)?;
        Some(Self { salting, stored: key(stored)?, server: key(server)? })
    }

    /// Whether a password has it whose hash by PBKDF2 with HMAC-SHA-256 is `salted`.
    pub fn is_of(&self, salted: &[u8; KEY_LEN]) -> bool {
        Keys::of(self.salting, salted).verifier().stored.ct_eq(&self.stored).into()
    }
}

/// The form that [`Verifier::parse`] reads.
impl fmt::Display for Verifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [salt, stored, server] =
            [self.salting.salt(), &self.stored, &self.server].map(|bytes| STANDARD.encode(bytes));
        write!(f, "{NAME}${}:{salt}${stored}:{server}", self.salting.rounds)
    }
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(keys of a password)")
    }
}

impl fmt::Debug for Verifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(verifier of a password)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verifier_is_read_as_it_is_written_and_hides_its_keys() {
        let keys = Keys::of(Salting::new(b"a salt", 4096).unwrap(), &[7; KEY_LEN]);
        let verifier = keys.verifier();
        let text = verifier.to_string();
        assert!(text.starts_with("SCRAM-SHA-256$4096:YSBzYWx0$"), "{text}");
        assert_eq!(Verifier::parse(&text), Some(verifier));
        assert!(verifier.is_of(&[7; KEY_LEN]) && !verifier.is_of(&[8; KEY_LEN]));
        assert!(!Verifier::of_nobody(keys.salting).is_of(&[0; KEY_LEN]));
        let said = format!("{keys:?} {verifier:?}");
        assert!(!said.contains("YSBz") && !said.chars().any(|c| c.is_ascii_digit()), "{said}");
        let cut = |len: usize| Verifier::parse(&text[..len]);
        assert!((0..text.len()).all(|len| cut(len).is_none()), "{text}");
        for wrong in [
            text.replace("4096", "1"),
            text.replace("4096", "4000000000"),
            text.replace("YSBzYWx0", ""),
            text.replace("256", "512"),
        ] {
            assert_eq!(Verifier::parse(&wrong), None, "{wrong}");
        }
    }
}
