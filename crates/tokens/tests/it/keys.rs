//! Documents with keys.

use crate::signer::{NOW, Signer, claims, issuer};
use phoebus_tokens::{KeySet, KeysError, Token, TokenError};
use serde_json::{Value, json};

fn parse(document: &Value) -> Result<KeySet, KeysError> {
    KeySet::parse(document.to_string().as_bytes())
}

#[test]
fn keys_of_other_kinds_are_left_out() {
    let signer = Signer::new(1);
    let mut document = signer.document();
    let others = json!([
        {"kty": "oct", "kid": "secret", "k": "AAAA"},
        {"kty": "RSA", "kid": "short", "n": "AQAB", "e": "AQAB"},
        {"kty": "EC", "crv": "secp256k1", "kid": "coin", "x": "AA", "y": "AA"},
        {"kty": "XYZ"},
        "text",
        {"kty": "OKP", "crv": "Ed25519", "kid": "for-encryption", "use": "enc", "x": "AAAA"},
    ]);
    document["keys"].as_array_mut().unwrap().extend(others.as_array().unwrap().iter().cloned());
    let token = Token::read(&signer.token(&claims(&json!({})))).unwrap();
    issuer().verify(&token, &parse(&document).unwrap(), NOW).unwrap();
    assert!(parse(&json!({"keys": others})).unwrap().is_empty());
    // An issuer that has withdrawn all.
    let withdrawn = parse(&json!({"keys": []})).unwrap();
    assert_eq!(issuer().verify(&token, &withdrawn, NOW), Err(TokenError::UnknownKey));
    assert!(matches!(parse(&json!({"keys": vec![others[0].clone(); 65]})), Err(KeysError::TooMany(65))));
    assert!(matches!(parse(&json!({})), Err(KeysError::Malformed(_))));
}

#[test]
fn token_without_identifier_needs_the_only_key_of_its_kind() {
    let signer = Signer::new(1);
    let token = signer.sign(&json!({"alg": "EdDSA"}), &claims(&json!({})));
    signer.verify(&token).unwrap();
    let mut two = signer.document();
    two["keys"].as_array_mut().unwrap().push(Signer::new(2).document()["keys"][0].clone());
    let token = Token::read(&token).unwrap();
    assert_eq!(issuer().verify(&token, &parse(&two).unwrap(), NOW), Err(TokenError::UnknownKey));
}

#[test]
fn old_key_no_longer_counts_after_a_change_of_keys() {
    let (before, after) = (Signer::new(1), Signer::new(2));
    let token = Token::read(&before.token(&claims(&json!({})))).unwrap();
    assert!(issuer().verify(&token, &before.keys(), NOW).is_ok());
    assert_eq!(issuer().verify(&token, &after.keys(), NOW), Err(TokenError::Signature));
}
