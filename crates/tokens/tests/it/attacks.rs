//! What attackers do to tokens (RFC 8725 §2).

use crate::signer::{NOW, Signer, URL, claims, issuer, message, with_signature};
use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD as BASE64;
use phoebus_tokens::{Algorithm, Issuer, TOKEN_MAX, Token, TokenError};
use proptest::prelude::*;
use ring::hmac;
use serde_json::{Value, json};

fn usual() -> Value {
    json!({"alg": "EdDSA", "kid": "ed"})
}

#[test]
fn unsigned_tokens_are_refused() {
    let signer = Signer::new(1);
    for alg in ["none", "None", "NONE", "nOnE", ""] {
        let forged = message(&json!({"alg": alg}), &claims(&json!({})));
        for token in [with_signature(&forged, b""), [&forged[..], b"."].concat(), forged.clone()] {
            assert!(matches!(signer.verify(&token), Err(TokenError::Malformed(_))), "{alg}");
        }
    }
    let stripped = with_signature(&message(&usual(), &claims(&json!({}))), b"");
    assert_eq!(signer.verify(&stripped), Err(TokenError::Signature));
}

#[test]
fn public_key_is_no_secret() {
    let signer = Signer::new(1);
    for secret in [signer.ed_public().to_vec(), signer.document().to_string().into_bytes()] {
        let forged = message(&json!({"alg": "HS256", "kid": "ed"}), &claims(&json!({})));
        let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, &secret), &forged);
        assert!(matches!(signer.verify(&with_signature(&forged, tag.as_ref())), Err(TokenError::Algorithm(_))));
    }
}

#[test]
fn keys_that_a_token_brings_do_not_count() {
    let (signer, attacker) = (Signer::new(1), Signer::new(2));
    let own = attacker.document()["keys"][0].clone();
    for header in [
        json!({"alg": "EdDSA", "kid": "ed", "jwk": own}),
        json!({"alg": "EdDSA", "kid": "ed", "jku": "https://attacker.example/keys"}),
        json!({"alg": "EdDSA", "kid": "ed", "x5u": "https://attacker.example/c", "x5c": ["AAAA"]}),
        json!({"alg": "EdDSA", "jwk": own}),
        usual(),
    ] {
        let forged = attacker.sign(&header, &claims(&json!({})));
        assert_eq!(signer.verify(&forged), Err(TokenError::Signature), "{header}");
    }
}

#[test]
fn key_identifiers_are_only_compared() {
    let signer = Signer::new(1);
    for kid in ["", "../../dev/null", "ED", "ed\0", "ed' OR '1'='1", "ec", &"k".repeat(5000)] {
        let token = signer.sign(&json!({"alg": "EdDSA", "kid": kid}), &claims(&json!({})));
        assert_eq!(signer.verify(&token), Err(TokenError::UnknownKey), "{kid}");
    }
}

#[test]
fn another_algorithm_than_the_keys_or_the_issuers_is_refused() {
    let signer = Signer::new(1);
    // Signed by the right key, but named otherwise.
    for alg in ["ES256", "RS256", "PS256", "ES384"] {
        let own = message(&json!({"alg": alg, "kid": "ed"}), &claims(&json!({})));
        assert!(matches!(signer.verify(&with_signature(&own, &[7; 64])), Err(TokenError::UnknownKey)), "{alg}");
    }
    let token = Token::read(&signer.token(&claims(&json!({})))).unwrap();
    let only_rsa = Issuer { algorithms: vec![Algorithm::RS256], ..issuer() };
    let refused = only_rsa.verify(&token, &signer.keys(), NOW).unwrap_err();
    assert_eq!(refused.to_string(), "the token's algorithm is not accepted; expected RS256");
}

#[test]
fn demands_of_the_header_that_are_not_known_are_refused() {
    let signer = Signer::new(1);
    for header in [
        json!({"alg": "EdDSA", "kid": "ed", "crit": ["exp"], "exp": 1}),
        json!({"alg": "EdDSA", "kid": "ed", "crit": ["b64"], "b64": false}),
        json!({"alg": "EdDSA", "kid": "ed", "crit": []}),
        json!({"alg": "EdDSA", "kid": "ed", "typ": "logout+jwt"}),
        json!({"alg": "EdDSA", "kid": "ed", "typ": "dpop+jwt"}),
    ] {
        let token = signer.sign(&header, &claims(&json!({})));
        assert!(matches!(signer.verify(&token), Err(TokenError::Malformed(_))), "{header}");
    }
}

#[test]
fn changed_claims_are_refused() {
    let signer = Signer::new(1);
    let token = String::from_utf8(signer.token(&claims(&json!({})))).unwrap();
    let other = String::from_utf8(message(&usual(), &claims(&json!({"sub": "root"})))).unwrap();
    let parts: Vec<&str> = token.split('.').collect();
    let forged = format!("{}.{}.{}", parts[0], other.split('.').nth(1).unwrap(), parts[2]);
    assert_eq!(signer.verify(forged.as_bytes()), Err(TokenError::Signature));
}

#[test]
fn long_or_strange_bytes_are_refused() {
    let signer = Signer::new(1);
    let padded = signer.token(&claims(&json!({"padding": "x".repeat(TOKEN_MAX)})));
    assert!(matches!(signer.verify(&padded), Err(TokenError::Malformed(_))));
    let token = signer.token(&claims(&json!({})));
    for strange in [
        [&token[..], b"\n"].concat(),
        [b" ", &token[..]].concat(),
        [&token[..], b"=="].concat(),
        [&token[..], b"."].concat(),
        b"..".to_vec(),
        Vec::new(),
    ] {
        assert!(matches!(signer.verify(&strange), Err(TokenError::Malformed(_))));
    }
    // Deep nesting.
    let deep = format!("{{\"iss\":\"{URL}\",\"a\":{}", "[".repeat(4000));
    let message = format!("{}.{}", BASE64.encode(usual().to_string()), BASE64.encode(deep));
    assert!(matches!(signer.verify(&with_signature(message.as_bytes(), &[7; 64])), Err(TokenError::Malformed(_))));
}

proptest! {
    #[test]
    fn changed_tokens_are_never_accepted(at in 0usize..400, bit in 0u8..8) {
        let signer = Signer::new(1);
        let token = signer.token(&claims(&json!({})));
        let mut forged = token.clone();
        let at = at % forged.len();
        forged[at] ^= 1 << bit;
        // The last character of a part may have unused bits, which the decoder refuses too.
        prop_assert!(forged == token || signer.verify(&forged).is_err());
    }
}
