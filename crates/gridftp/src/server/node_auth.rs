//! Authentication between a front end and its data nodes. Both have a secret in a file, and each proves that it knows
//! it: HMAC-SHA-256 over the random numbers and TLS keys of both ends, the user and the client. After the proofs, TLS
//! between those keys carries everything. Delegated credentials are also sealed under the secret (ChaCha20-Poly1305).

use super::config::ConfigError;
use phoebus_proto::gridftp::pin::Pin;
use phoebus_proto::hex::{hex, unhex};
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::hmac::{self, HMAC_SHA256};
use ring::rand::{SecureRandom, SystemRandom};
use std::fmt;
use std::io::Read;
use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use zeroize::Zeroizing;

/// Name of the protocol under TLS (ALPN, RFC 7301).
pub(super) const PROTOCOL: &[u8] = b"phoebus-node/1";

/// Delegated in place of a credential if data goes under TLS, for which each node has its own certificate.
pub(super) const TLS: &str = "TLS";

/// Shortest secret, in bytes, that nobody can guess.
const LEAST: usize = 32;

/// Most bytes that are read of the file.
const MOST: u64 = 4096;

/// The shared secret. Debug output hides it.
pub(super) struct Secret(hmac::Key);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(secret)")
    }
}

/// What both ends have sent, over which the proofs are computed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Transcript {
    pub(super) user: String,
    /// Address of the client.
    pub(super) client: IpAddr,
    pub(super) of_front: [u8; 32],
    pub(super) of_node: [u8; 32],
    /// Fingerprints of the keys that the two ends use for TLS.
    pub(super) front_key: Pin,
    pub(super) node_key: Pin,
}

impl Secret {
    /// Reads the secret from a file.
    ///
    /// # Errors
    /// The file cannot be read, other users can read it, or it is too short.
    pub(super) fn read(path: &Path) -> Result<Self, ConfigError> {
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

    /// Computes the proof of one end.
    pub(super) fn proof(&self, purpose: Purpose, transcript: &Transcript) -> String {
        hex(hmac::sign(&self.0, &input(purpose, transcript)).as_ref())
    }

    /// Verifies the proof of one end.
    pub(super) fn is_proof(&self, purpose: Purpose, transcript: &Transcript, proof: &str) -> bool {
        unhex(proof).is_some_and(|proof| hmac::verify(&self.0, &input(purpose, transcript), &proof).is_ok())
    }

    /// What the `count`th thing that is lent in a transcript goes under. Each has a key of its own, so that none is
    /// used twice.
    fn key(&self, transcript: &Transcript, count: u64) -> Option<LessSafeKey> {
        let text = [&input(Purpose::Delegation, transcript)[..], &count.to_be_bytes()].concat();
        let key = hmac::sign(&self.0, &text);
        UnboundKey::new(&CHACHA20_POLY1305, key.as_ref()).ok().map(LessSafeKey::new)
    }

    /// Encrypts the `count`th delegation.
    pub(super) fn seal(&self, transcript: &Transcript, count: u64, text: &str) -> Option<String> {
        let mut bytes = text.as_bytes().to_vec();
        let nonce = Nonce::assume_unique_for_key([0; NONCE_LEN]);
        self.key(transcript, count)?.seal_in_place_append_tag(nonce, Aad::empty(), &mut bytes).ok()?;
        Some(hex(&bytes))
    }

    /// Decrypts the `count`th delegation.
    pub(super) fn open(&self, transcript: &Transcript, count: u64, sealed: &str) -> Option<Zeroizing<String>> {
        let mut bytes = unhex(sealed)?;
        let nonce = Nonce::assume_unique_for_key([0; NONCE_LEN]);
        let plain = self.key(transcript, count)?.open_in_place(nonce, Aad::empty(), &mut bytes).ok()?;
        str::from_utf8(plain).ok().map(|text| Zeroizing::new(text.to_owned()))
    }
}

/// What a proof is for; a proof for one purpose is invalid for others.
#[derive(Debug, Clone, Copy)]
pub(super) enum Purpose {
    Front,
    Node,
    Delegation,
}

fn input(purpose: Purpose, transcript: &Transcript) -> Vec<u8> {
    let name: &[u8] = match purpose {
        Purpose::Front => b"phoebus front end 2",
        Purpose::Node => b"phoebus data node 2",
        Purpose::Delegation => b"phoebus lent rights 2",
    };
    let client = transcript.client.to_string();
    let Transcript { user, of_front, of_node, front_key, node_key, .. } = transcript;
    [name, user.as_bytes(), client.as_bytes(), of_front, of_node, &front_key.0, &node_key.0]
        .iter()
        .flat_map(|part| [&(part.len() as u64).to_be_bytes()[..], part].concat())
        .collect()
}

/// An unpredictable number.
pub(super) fn random() -> Option<[u8; 32]> {
    let mut bytes = [0; 32];
    SystemRandom::new().fill(&mut bytes).ok().map(|()| bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proof_holds_for_one_end_and_one_transcript() {
        let secret = Secret(hmac::Key::new(HMAC_SHA256, &[7; 32]));
        let (front_key, node_key) = (Pin([3; 32]), Pin([4; 32]));
        let (user, client) = ("jane".to_owned(), [192, 0, 2, 1].into());
        let transcript = Transcript { user, client, of_front: [1; 32], of_node: [2; 32], front_key, node_key };
        let proof = secret.proof(Purpose::Front, &transcript);
        assert!(
            secret.is_proof(Purpose::Front, &transcript, &proof)
                && !secret.is_proof(Purpose::Node, &transcript, &proof)
        );
        for other in [
            Transcript { user: "john".to_owned(), ..transcript.clone() },
            Transcript { client: [192, 0, 2, 2].into(), ..transcript.clone() },
            Transcript { of_front: [2; 32], of_node: [1; 32], ..transcript.clone() },
            Transcript { front_key: Pin([5; 32]), ..transcript.clone() },
            Transcript { node_key: Pin([5; 32]), ..transcript.clone() },
        ] {
            assert!(!secret.is_proof(Purpose::Front, &other, &proof));
        }
        let other = Secret(hmac::Key::new(HMAC_SHA256, &[8; 32]));
        assert!(
            !other.is_proof(Purpose::Front, &transcript, &proof) && !secret.is_proof(Purpose::Front, &transcript, "")
        );
        let sealed = secret.seal(&transcript, 0, "lent").unwrap();
        assert_eq!(secret.open(&transcript, 0, &sealed).unwrap().as_str(), "lent");
        assert!(secret.open(&transcript, 1, &sealed).is_none() && other.open(&transcript, 0, &sealed).is_none());
        assert!(secret.open(&transcript, 0, &sealed.replace(&sealed[..2], "zz")).is_none());
    }

    #[test]
    fn secrets_are_long_and_private() {
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
