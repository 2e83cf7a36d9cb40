//! How a front end and its data nodes know each other: by a secret that both have in a file, of which each proves to the other
//! that it has it (HMAC-SHA-256 over both ends' random numbers, keys for TLS and whom it is for), and under which rights that a client
//! has lent go from one to the other (ChaCha20-Poly1305). All that follows the proofs goes under TLS between those keys.

use super::super::config::ConfigError;
use super::super::hex::{hex, unhex};
use phoebus_proto::gridftp::pin::Pin;
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::hmac::{self, HMAC_SHA256};
use ring::rand::{SecureRandom, SystemRandom};
use std::fmt;
use std::io::Read;
use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use zeroize::Zeroizing;

/// The fewest bytes of a secret: what nobody can try out.
const LEAST: usize = 32;

/// The most that are read.
const MOST: u64 = 4096;

/// The shared secret. Never shown.
pub(in super::super) struct Secret(hmac::Key);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(secret)")
    }
}

/// What both ends have said, of which the proofs are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in super::super) struct Talk {
    pub(in super::super) user: String,
    /// Where the client is.
    pub(in super::super) client: IpAddr,
    pub(in super::super) of_front: [u8; 32],
    pub(in super::super) of_node: [u8; 32],
    /// Which key each shows under TLS.
    pub(in super::super) front_key: Pin,
    pub(in super::super) node_key: Pin,
}

impl Secret {
    /// Reads it.
    ///
    /// # Errors
    /// The file cannot be read, others can read it, or it is short.
    pub(in super::super) fn read(path: &Path) -> Result<Self, ConfigError> {
        let wrong = |why: String| ConfigError::Value(format!("stripes.secret: {}: {why}", path.display()));
        let file = std::fs::File::open(path).map_err(|error| wrong(error.to_string()))?;
        let mode = file.metadata().map_err(|error| wrong(error.to_string()))?.permissions().mode();
        if mode & 0o077 != 0 {
            return Err(wrong("holds a secret, but others can read it; chmod 600 it".to_owned()));
        }
        let mut text = Zeroizing::new(Vec::new());
        file.take(MOST).read_to_end(&mut text).map_err(|error| wrong(error.to_string()))?;
        let secret = text.trim_ascii();
        if secret.len() < LEAST {
            return Err(wrong(format!("at least {LEAST} bytes were expected, as `openssl rand -hex 32` prints them")));
        }
        Ok(Self(hmac::Key::new(HMAC_SHA256, secret)))
    }

    /// The proof of one end, which is called `whose`.
    pub(in super::super) fn proof(&self, whose: Whose, talk: &Talk) -> String {
        hex(hmac::sign(&self.0, &said(whose, talk)).as_ref())
    }

    /// Whether `proof` is that of one end.
    pub(in super::super) fn is_proof(&self, whose: Whose, talk: &Talk, proof: &str) -> bool {
        unhex(proof).is_some_and(|proof| hmac::verify(&self.0, &said(whose, talk), &proof).is_ok())
    }

    /// What the `count`th thing that is lent in a talk goes under. Each has a key of its own, so that none is used twice.
    fn key(&self, talk: &Talk, count: u64) -> Option<LessSafeKey> {
        let text = [&said(Whose::Lent, talk)[..], &count.to_be_bytes()].concat();
        let key = hmac::sign(&self.0, &text);
        UnboundKey::new(&CHACHA20_POLY1305, key.as_ref()).ok().map(LessSafeKey::new)
    }

    /// `text` for the other end only.
    pub(in super::super) fn seal(&self, talk: &Talk, count: u64, text: &str) -> Option<String> {
        let mut bytes = text.as_bytes().to_vec();
        let nonce = Nonce::assume_unique_for_key([0; NONCE_LEN]);
        self.key(talk, count)?.seal_in_place_append_tag(nonce, Aad::empty(), &mut bytes).ok()?;
        Some(hex(&bytes))
    }

    /// What was sealed.
    pub(in super::super) fn open(&self, talk: &Talk, count: u64, sealed: &str) -> Option<Zeroizing<String>> {
        let mut bytes = unhex(sealed)?;
        let nonce = Nonce::assume_unique_for_key([0; NONCE_LEN]);
        let plain = self.key(talk, count)?.open_in_place(nonce, Aad::empty(), &mut bytes).ok()?;
        str::from_utf8(plain).ok().map(|text| Zeroizing::new(text.to_owned()))
    }
}

/// Whose a proof is, so that none is another's.
#[derive(Debug, Clone, Copy)]
pub(in super::super) enum Whose {
    Front,
    Node,
    Lent,
}

fn said(whose: Whose, talk: &Talk) -> Vec<u8> {
    let name: &[u8] = match whose {
        Whose::Front => b"phoebus front end 2",
        Whose::Node => b"phoebus data node 2",
        Whose::Lent => b"phoebus lent rights 2",
    };
    let client = talk.client.to_string();
    let Talk { user, of_front, of_node, front_key, node_key, .. } = talk;
    [name, user.as_bytes(), client.as_bytes(), of_front, of_node, &front_key.0, &node_key.0]
        .iter()
        .flat_map(|part| [&(part.len() as u64).to_be_bytes()[..], part].concat())
        .collect()
}

/// A number that nobody can guess.
pub(in super::super) fn random() -> Option<[u8; 32]> {
    let mut bytes = [0; 32];
    SystemRandom::new().fill(&mut bytes).ok().map(|()| bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proofs_are_of_one_end_of_one_talk() {
        let secret = Secret(hmac::Key::new(HMAC_SHA256, &[7; 32]));
        let (front_key, node_key) = (Pin([3; 32]), Pin([4; 32]));
        let (user, client) = ("jane".to_owned(), [192, 0, 2, 1].into());
        let talk = Talk { user, client, of_front: [1; 32], of_node: [2; 32], front_key, node_key };
        let proof = secret.proof(Whose::Front, &talk);
        assert!(secret.is_proof(Whose::Front, &talk, &proof) && !secret.is_proof(Whose::Node, &talk, &proof));
        for other in [
            Talk { user: "john".to_owned(), ..talk.clone() },
            Talk { client: [192, 0, 2, 2].into(), ..talk.clone() },
            Talk { of_front: [2; 32], of_node: [1; 32], ..talk.clone() },
            Talk { front_key: Pin([5; 32]), ..talk.clone() },
            Talk { node_key: Pin([5; 32]), ..talk.clone() },
        ] {
            assert!(!secret.is_proof(Whose::Front, &other, &proof));
        }
        let other = Secret(hmac::Key::new(HMAC_SHA256, &[8; 32]));
        assert!(!other.is_proof(Whose::Front, &talk, &proof) && !secret.is_proof(Whose::Front, &talk, ""));
        let sealed = secret.seal(&talk, 0, "lent").unwrap();
        assert_eq!(secret.open(&talk, 0, &sealed).unwrap().as_str(), "lent");
        assert!(secret.open(&talk, 1, &sealed).is_none() && other.open(&talk, 0, &sealed).is_none());
        assert!(secret.open(&talk, 0, &sealed.replace(&sealed[..2], "zz")).is_none());
    }

    #[test]
    fn a_secret_is_long_and_nobody_elses() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("secret");
        let read = |text: &str, mode| {
            std::fs::write(&file, text).unwrap();
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
            Secret::read(&file).map(|secret| format!("{secret:?}")).map_err(|error| error.to_string())
        };
        assert_eq!(read(&"x".repeat(64), 0o600).unwrap(), "(secret)");
        assert!(read("short", 0o600).unwrap_err().contains("at least 32 bytes"));
        assert!(read(&"x".repeat(64), 0o640).unwrap_err().contains("others can read it"));
        assert!(Secret::read(&dir.path().join("gone")).unwrap_err().to_string().contains("stripes.secret"));
    }
}
