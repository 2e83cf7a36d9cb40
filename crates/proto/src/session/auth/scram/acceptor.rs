//! The gateway's side.

use super::keys::{KEY_LEN, Verifier, mac_of};
use super::text::{attribute, bytes, name};
use super::{AuthError, Binding, Bound, NONCE_LEN, NONCES_MAX, USER_MAX, header};
use crate::session::auth::{Check, Proven, Verdict};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

/// The header of an initiator without TLS that would bind its proof if it could.
const WOULD_BIND: &str = "y,,";
/// Room to decode what the second message repeats.
const BOUND_ROOM: usize = 64;

/// The users whom an acceptor knows.
pub trait Verifiers: Send {
    /// The verifier of this user's password. Of a user who is not known, or has no password, one that nobody's password has, with a
    /// salt and rounds that are the same at each request, so that strangers learn no names.
    fn verifier(&self, user: &str) -> Verifier;
}

/// One exchange.
pub struct Acceptor<V> {
    verifiers: V,
    /// What the connection's TLS exports.
    binding: Option<Binding>,
    nonce: [u8; NONCE_LEN],
    begun: Option<Begun>,
    claimed: String,
}

struct Begun {
    /// What the second message has to repeat.
    bound: Vec<u8>,
    user: String,
    verifier: Verifier,
    /// Both nonces.
    nonces: String,
    /// The first message without its header, and the challenge, with a comma behind each.
    covered: String,
}

impl<V: Verifiers> Acceptor<V> {
    /// An exchange with these random bytes, which must not be used twice.
    pub fn new(verifiers: V, binding: Option<Binding>, random: [u8; NONCE_LEN]) -> Self {
        Self { verifiers, binding, nonce: random, begun: None, claimed: String::new() }
    }

    /// An exchange in which the first message and the challenge were these, without a header and with a comma behind each.
    #[cfg(test)]
    pub(super) fn begun(verifiers: V, (user, nonces): (&str, &str), covered: &str) -> Self {
        let (verifier, bound) = (verifiers.verifier(user), header(None).as_bytes().to_vec());
        let (user, nonces, covered) = (user.to_owned(), nonces.to_owned(), covered.to_owned());
        let begun = Some(Begun { bound, user, verifier, nonces, covered });
        Self { begun, ..Self::new(verifiers, None, [0; NONCE_LEN]) }
    }

    fn begin(&self, data: &str) -> Result<(Begun, String), AuthError> {
        let expected = Bound::of(self.binding.as_ref());
        let (bare, bound) = match data.strip_prefix(WOULD_BIND).filter(|_| self.binding.is_none()) {
            Some(bare) => (bare, WOULD_BIND.as_bytes()),
            None => {
                let own = header(self.binding.as_ref());
                // The same without its last comma, behind which a name to act for may stand.
                let is_for_another = data.starts_with(&own[..own.len() - 1]);
                let otherwise = if is_for_another { AuthError::ForAnother } else { AuthError::Unbound };
                let bare = data.strip_prefix(own).ok_or(otherwise)?;
                (bare, expected.as_bytes())
            }
        };
        let mut rest = bare;
        let (user, nonce) = (name(attribute(&mut rest, "n")?)?, attribute(&mut rest, "r")?);
        let is_name = !user.is_empty() && user.len() <= USER_MAX && !user.chars().any(char::is_control);
        let is_nonce = !nonce.is_empty() && nonce.bytes().all(|letter| letter.is_ascii_graphic());
        let nonces = format!("{nonce}{}", STANDARD.encode(self.nonce));
        if !is_name || !is_nonce || nonces.len() > NONCES_MAX {
            return Err(AuthError::Malformed);
        }
        let verifier = self.verifiers.verifier(&user);
        let salt = STANDARD.encode(verifier.salting.salt());
        let challenge = format!("r={nonces},s={salt},i={}", verifier.salting.rounds());
        let (bound, covered) = (bound.to_vec(), format!("{bare},{challenge},"));
        Ok((Begun { bound, user, verifier, nonces, covered }, challenge))
    }

    /// The own proof, if the initiator's is right.
    fn end(begun: &Begun, data: &str) -> Result<String, AuthError> {
        let (without_proof, proof) = data.rsplit_once(",p=").ok_or(AuthError::Malformed)?;
        let mut rest = without_proof;
        let (bound, nonces) = (attribute(&mut rest, "c")?, attribute(&mut rest, "r")?);
        let mut room = [0; BOUND_ROOM];
        if !bool::from(bytes(bound, &mut room)?.ct_eq(&begun.bound)) {
            return Err(AuthError::Unbound);
        }
        if nonces != begun.nonces {
            return Err(AuthError::Nonce);
        }
        let covered = format!("{}{without_proof}", begun.covered);
        let mut room = [0; KEY_LEN + 3];
        let proof = bytes(proof, &mut room)?;
        let signature = mac_of(&begun.verifier.stored, covered.as_bytes());
        let mut key = [0; KEY_LEN];
        key.iter_mut().zip(proof.iter().zip(&signature)).for_each(|(key, (proof, by))| *key = proof ^ by);
        let stored: [u8; KEY_LEN] = Sha256::digest(key).into();
        let is_right = proof.len() == KEY_LEN && bool::from(stored.ct_eq(&begun.verifier.stored));
        let own = mac_of(&begun.verifier.server, covered.as_bytes());
        if is_right { Ok(format!("v={}", STANDARD.encode(own))) } else { Err(AuthError::Wrong) }
    }
}

impl<V: Verifiers> Check for Acceptor<V> {
    fn receive(&mut self, data: &[u8]) -> Verdict {
        let Ok(data) = std::str::from_utf8(data) else { return Verdict::Refused(AuthError::Malformed) };
        let verdict = match self.begun.take() {
            None => self.begin(data).map(|(begun, challenge)| {
                self.claimed.clone_from(&begun.user);
                self.begun = Some(begun);
                Verdict::Continue(challenge.into_bytes())
            }),
            Some(begun) => Self::end(&begun, data).map(|last| {
                Verdict::Proven(Proven { subject: begun.user, vouched: None, last: Some(last.into_bytes()) })
            }),
        };
        verdict.unwrap_or_else(Verdict::Refused)
    }

    fn claimed(&self) -> &str {
        &self.claimed
    }
}
