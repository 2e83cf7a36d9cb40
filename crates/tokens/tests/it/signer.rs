//! Signs tokens as issuers do, and as attackers would.

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD as BASE64;
use phoebus_tokens::{ALGORITHMS, Claim, Issuer, KeySet, Token, TokenError, Verified};
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair};
use serde_json::{Value, json};

pub(crate) const URL: &str = "https://issuer.example/x";
pub(crate) const NOW: u64 = 1_800_000_000;

/// An issuer's keys: one of each kind.
pub(crate) struct Signer {
    ed: Ed25519KeyPair,
    ec: EcdsaKeyPair,
}

impl Signer {
    pub(crate) fn new(seed: u8) -> Self {
        let random = SystemRandom::new();
        let ec = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random).unwrap();
        Self {
            ed: Ed25519KeyPair::from_seed_unchecked(&[seed; 32]).unwrap(),
            ec: EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, ec.as_ref(), &random).unwrap(),
        }
    }

    pub(crate) fn ed_public(&self) -> &[u8] {
        self.ed.public_key().as_ref()
    }

    /// The document with the public keys.
    pub(crate) fn document(&self) -> Value {
        let (x, y) = self.ec.public_key().as_ref()[1..].split_at(32);
        json!({"keys": [
            {"kty": "OKP", "crv": "Ed25519", "kid": "ed", "use": "sig", "alg": "EdDSA", "x": BASE64.encode(self.ed_public())},
            {"kty": "EC", "crv": "P-256", "kid": "ec", "x": BASE64.encode(x), "y": BASE64.encode(y)},
        ]})
    }

    pub(crate) fn keys(&self) -> KeySet {
        KeySet::parse(self.document().to_string().as_bytes()).unwrap()
    }

    /// A token with this header, signed as the header says.
    pub(crate) fn sign(&self, header: &Value, claims: &Value) -> Vec<u8> {
        let message = message(header, claims);
        let signature = match header["alg"].as_str() {
            Some("EdDSA") => self.ed.sign(&message).as_ref().to_vec(),
            Some("ES256") => self.ec.sign(&SystemRandom::new(), &message).unwrap().as_ref().to_vec(),
            _ => Vec::new(),
        };
        with_signature(&message, &signature)
    }

    /// A token of the usual form.
    pub(crate) fn token(&self, claims: &Value) -> Vec<u8> {
        self.sign(&json!({"alg": "EdDSA", "typ": "JWT", "kid": "ed"}), claims)
    }

    pub(crate) fn verify(&self, token: &[u8]) -> Result<Verified, TokenError> {
        issuer().verify(&Token::read(token)?, &self.keys(), NOW)
    }
}

pub(crate) fn message(header: &Value, claims: &Value) -> Vec<u8> {
    format!("{}.{}", BASE64.encode(header.to_string()), BASE64.encode(claims.to_string())).into_bytes()
}

pub(crate) fn with_signature(message: &[u8], signature: &[u8]) -> Vec<u8> {
    [message, b".", BASE64.encode(signature).as_bytes()].concat()
}

pub(crate) fn issuer() -> Issuer {
    Issuer {
        url: URL.into(),
        realm: "x".into(),
        audiences: vec!["pg1.example".into(), "https://pg1.example".into()],
        takes_any_audience: true,
        algorithms: ALGORITHMS.to_vec(),
        scopes: vec!["session.open".into()],
        user: Claim::new("sub").unwrap(),
        groups: Claim::new("wlcg.groups").unwrap(),
    }
}

/// Claims that the issuer's tokens have to have, changed by `changes`; null removes one.
pub(crate) fn claims(changes: &Value) -> Value {
    let mut claims = json!({
        "iss": URL, "sub": "ada", "aud": "pg1.example", "exp": NOW + 600, "iat": NOW, "nbf": NOW,
        "scope": "storage.read:/ session.open", "wlcg.groups": ["/cms", "/cms/admin"],
    });
    let fields = claims.as_object_mut().unwrap();
    for (name, value) in changes.as_object().unwrap() {
        fields.insert(name.clone(), value.clone());
    }
    fields.retain(|_, value| !value.is_null());
    claims
}
