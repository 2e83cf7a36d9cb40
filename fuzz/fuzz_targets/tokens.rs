//! Bearer tokens, documents with keys and metadata of issuers from anyone: no token is believed, and nothing panics.
#![no_main]

use libfuzzer_sys::fuzz_target;
use phoebus_tokens::{ALGORITHMS, Claim, Issuer, KeySet, Token, discovery};

const KEYS: &[u8] =
    br#"{"keys":[{"kty":"OKP","crv":"Ed25519","kid":"k","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}"#;

fuzz_target!(|input: (&[u8], &[u8])| {
    let (token, document) = input;
    let _ = discovery::keys_url("https://a.example", document);
    let keys = [KeySet::parse(document).ok(), KeySet::parse(KEYS).ok()];
    let Ok(token) = Token::read(token) else { return };
    let issuer = Issuer {
        url: token.issuer().to_owned(),
        realm: String::new(),
        audiences: vec!["x".to_owned()],
        takes_any_audience: true,
        algorithms: ALGORITHMS.to_vec(),
        scopes: Vec::new(),
        user: Claim::new("sub").expect("it is a name"),
        groups: Claim::new("/groups").expect("it is a path"),
    };
    for keys in keys.into_iter().flatten() {
        assert!(issuer.verify(&token, &keys, 0).is_err());
    }
});
