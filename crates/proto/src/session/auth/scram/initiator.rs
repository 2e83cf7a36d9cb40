//! The user's side. It does not allocate, so that the preload shim can run it.

use super::keys::{KEY_LEN, Keys, SALT_MAX, Salting, mac};
use super::text::{Text, attribute, bytes};
use super::{AuthError, Binding, Bound, NONCE_LEN, NONCE_TEXT, NONCES_MAX, PLAIN, PLUS, header};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hmac::Mac;
use sha2::{Digest, Sha256};
use std::fmt::{self, Write};
use subtle::ConstantTimeEq;

/// Who logs in, and on which connection.
#[derive(Clone, Copy)]
pub struct Login<'a> {
    /// The user's name, at most [`USER_MAX`](super::USER_MAX) bytes.
    pub user: &'a str,
    /// The keys of the user's password.
    pub keys: &'a Keys,
    /// What the connection's TLS exports; `None` without TLS.
    pub binding: Option<&'a Binding>,
}

/// The state of the exchange. Each call takes the same [`Login`]. Debug output has no secret.
#[derive(Clone, Copy)]
pub struct Initiator {
    nonce: [u8; NONCE_TEXT],
    step: Step,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    Begun,
    /// The acceptor's proof has to be this.
    Answered([u8; KEY_LEN]),
    Over,
}

impl fmt::Debug for Login<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Login").field("user", &self.user).finish_non_exhaustive()
    }
}

impl fmt::Debug for Initiator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Initiator").field("is_over", &self.is_over()).finish_non_exhaustive()
    }
}

impl Initiator {
    /// An exchange with these random bytes, which must not be used twice.
    pub fn new(random: [u8; NONCE_LEN]) -> Self {
        let mut nonce = [0; NONCE_TEXT];
        // 18 bytes make 24 letters.
        let _ = STANDARD.encode_slice(random, &mut nonce);
        Self { nonce, step: Step::Begun }
    }

    /// The mechanism's name.
    pub fn mechanism(login: &Login) -> &'static str {
        if login.binding.is_some() { PLUS } else { PLAIN }
    }

    /// Writes the first message.
    ///
    /// # Errors
    /// [`AuthError::NoRoom`].
    pub fn first<'r>(&self, login: &Login, room: &'r mut [u8]) -> Result<&'r [u8], AuthError> {
        let mut text = Text::new(room);
        text.write_str(header(login.binding)).map_err(|_| AuthError::NoRoom)?;
        self.bare(login, &mut text)?;
        Ok(text.into_bytes())
    }

    /// How the acceptor has salted the user's password, by its challenge.
    ///
    /// # Errors
    /// [`AuthError::Malformed`], also for numbers of rounds beyond the limits.
    pub fn salting(challenge: &[u8]) -> Result<Salting, AuthError> {
        let mut rest = std::str::from_utf8(challenge).map_err(|_| AuthError::Malformed)?;
        attribute(&mut rest, "r")?;
        let (salt, rounds) = (attribute(&mut rest, "s")?, attribute(&mut rest, "i")?);
        let mut room = [0; SALT_MAX + 3];
        let rounds = rounds.parse().map_err(|_| AuthError::Malformed)?;
        Salting::new(bytes(salt, &mut room)?, rounds).ok_or(AuthError::Malformed)
    }

    /// Writes the answer to the acceptor's challenge.
    ///
    /// # Errors
    /// A challenge out of turn or that is none, another salt or number of rounds than the keys have, and [`AuthError::NoRoom`].
    pub fn answer<'r>(&mut self, login: &Login, challenge: &[u8], room: &'r mut [u8]) -> Result<&'r [u8], AuthError> {
        if self.step != Step::Begun {
            return Err(AuthError::Unexpected);
        }
        let challenge = std::str::from_utf8(challenge).map_err(|_| AuthError::Malformed)?;
        let mut rest = challenge;
        let nonce = attribute(&mut rest, "r")?;
        let is_ours = nonce.as_bytes().strip_prefix(&self.nonce).is_some_and(|theirs| !theirs.is_empty());
        if !is_ours || nonce.len() > NONCES_MAX {
            return Err(AuthError::Nonce);
        }
        // Rounds that the gateway names are never computed here, so that it cannot name too many or too few.
        if Self::salting(challenge.as_bytes()) != Ok(login.keys.salting) {
            return Err(AuthError::OtherSalt);
        }
        let stored: [u8; KEY_LEN] = Sha256::digest(login.keys.client()).into();
        let mut macs = [mac(&stored), mac(login.keys.server())];
        let mut add = |bytes: &[u8]| macs.iter_mut().for_each(|mac| mac.update(bytes));
        let mut bare = Text::new(&mut *room);
        self.bare(login, &mut bare)?;
        add(bare.as_bytes());
        add(b",");
        add(challenge.as_bytes());
        add(b",");
        let mut text = Text::new(room);
        text.write_str("c=").map_err(|_| AuthError::NoRoom)?;
        text.base64(Bound::of(login.binding).as_bytes())?;
        write!(text, ",r={nonce}").map_err(|_| AuthError::NoRoom)?;
        add(text.as_bytes());
        let [mut proof, signature]: [[u8; KEY_LEN]; 2] = macs.map(|mac| mac.finalize().into_bytes().into());
        proof.iter_mut().zip(login.keys.client()).for_each(|(byte, key)| *byte ^= key);
        text.write_str(",p=").map_err(|_| AuthError::NoRoom)?;
        text.base64(&proof)?;
        self.step = Step::Answered(signature);
        Ok(text.into_bytes())
    }

    /// Checks the acceptor's proof.
    ///
    /// # Errors
    /// [`AuthError::Unproved`] if it is wrong.
    pub fn conclude(&mut self, proof: &[u8]) -> Result<(), AuthError> {
        let Step::Answered(expected) = self.step else { return Err(AuthError::Unexpected) };
        let text = std::str::from_utf8(proof).map_err(|_| AuthError::Unproved)?;
        let mut room = [0; KEY_LEN + 3];
        let given = attribute(&mut { text }, "v").and_then(|value| bytes(value, &mut room));
        if !given.is_ok_and(|given| given.ct_eq(&expected).into()) {
            return Err(AuthError::Unproved);
        }
        self.step = Step::Over;
        Ok(())
    }

    /// Whether the acceptor has proved itself.
    pub fn is_over(&self) -> bool {
        self.step == Step::Over
    }

    /// The part of the first message that both proofs cover.
    fn bare(&self, login: &Login, text: &mut Text) -> Result<(), AuthError> {
        text.write_str("n=").map_err(|_| AuthError::NoRoom)?;
        text.name(login.user)?;
        text.write_str(",r=").map_err(|_| AuthError::NoRoom)?;
        self.nonce.iter().try_for_each(|letter| text.write_char(char::from(*letter))).map_err(|_| AuthError::NoRoom)
    }
}
