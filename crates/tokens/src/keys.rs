//! The keys of an issuer: a JSON Web Key Set (RFC 7517).

use jsonwebtoken::jwk::{Jwk, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey, DecodingKeyKind};
use serde::Deserialize;
use serde_json::Value;

/// Most keys of an issuer. Issuers have two or three, while they change them.
const KEYS_MAX: usize = 64;
/// Bounds of the modulus of an RSA key, in bits. Longer ones cost too much; shorter ones can be broken.
const RSA_BITS: std::ops::RangeInclusive<usize> = 2048..=8192;

/// Public keys that verify an issuer's signatures.
#[derive(Debug, Clone, Default)]
pub struct KeySet(Vec<Key>);

#[derive(Debug, Clone)]
struct Key {
    id: Option<String>,
    /// The only algorithm that it is for, if it says one.
    algorithm: Option<Algorithm>,
    key: DecodingKey,
}

/// Why a document has no keys.
#[derive(Debug, thiserror::Error)]
pub enum KeysError {
    /// It is not a JSON Web Key Set.
    #[error("it is no JSON Web Key Set: {0}")]
    Malformed(serde_json::Error),
    /// It has too many keys.
    #[error("it has {0} keys; expected at most {KEYS_MAX}")]
    TooMany(usize),
}

impl KeySet {
    /// Reads a JSON Web Key Set. Keys that are for encryption, symmetric, or of an unknown kind are left out (RFC 7517 §5). An issuer may
    /// have withdrawn all: then none is left.
    ///
    /// # Errors
    /// [`KeysError`].
    pub fn parse(document: &[u8]) -> Result<Self, KeysError> {
        #[derive(Deserialize)]
        struct Document {
            keys: Vec<Value>,
        }
        let Document { keys } = serde_json::from_slice(document).map_err(KeysError::Malformed)?;
        let count = keys.len();
        if count > KEYS_MAX {
            return Err(KeysError::TooMany(count));
        }
        Ok(Self(keys.into_iter().filter_map(Key::read).collect()))
    }

    /// Whether no key is left.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The key that a token of this algorithm and key identifier is signed with. A token without an identifier means the only key that
    /// it can mean.
    pub(crate) fn key(&self, id: Option<&str>, algorithm: Algorithm) -> Option<&DecodingKey> {
        let fits = |key: &&Key| {
            key.key.family() == algorithm.family()
                && key.algorithm.is_none_or(|only| only == algorithm)
                && id.is_none_or(|id| key.id.as_deref() == Some(id))
        };
        let mut fitting = self.0.iter().filter(fits);
        let key = fitting.next()?;
        fitting.next().is_none().then_some(&key.key)
    }
}

impl Key {
    fn read(key: Value) -> Option<Self> {
        let jwk: Jwk = serde_json::from_value(key).ok()?;
        let common = &jwk.common;
        let is_for_signatures = matches!(common.public_key_use, None | Some(PublicKeyUse::Signature));
        let algorithm = match common.key_algorithm {
            Some(named) => Some(*crate::ALGORITHMS.iter().find(|known| format!("{known:?}") == named.to_string())?),
            None => None,
        };
        let key = DecodingKey::from_jwk(&jwk).ok()?;
        let has_fitting_family = match algorithm {
            Some(algorithm) => algorithm.family() == key.family(),
            None => crate::ALGORITHMS.iter().any(|algorithm| algorithm.family() == key.family()),
        };
        let has_fitting_length = match key.kind() {
            DecodingKeyKind::RsaModulusExponent { n, .. } => RSA_BITS.contains(&bits(n)),
            DecodingKeyKind::SecretOrDer(_) => true,
        };
        let can_be_used = is_for_signatures && has_fitting_family && has_fitting_length;
        can_be_used.then(|| Self { id: common.key_id.clone(), algorithm, key })
    }
}

/// The length of a number without its leading zeros, in bits.
fn bits(number: &[u8]) -> usize {
    let zeros = number.iter().take_while(|byte| **byte == 0).count();
    let first = number.get(zeros).map_or(0, |byte| byte.leading_zeros() as usize);
    (number.len() - zeros) * 8 - first
}
