//! What is demanded of the claims.

use crate::signer::{NOW, Signer, URL, claims, issuer};
use phoebus_tokens::{Claim, Issuer, Token, TokenError, Verified};
use serde_json::{Value, json};

fn verdict(changes: &Value) -> Result<Verified, TokenError> {
    let signer = Signer::new(1);
    signer.verify(&signer.token(&claims(changes)))
}

#[test]
fn token_names_user_and_groups_in_the_realm() {
    let verified = verdict(&json!({})).unwrap();
    assert_eq!(verified.subject, format!("{URL}#ada"));
    assert_eq!((verified.user.as_str(), verified.groups), ("ada@x", vec!["/cms@x".into(), "/cms/admin@x".into()]));
    assert_eq!(verified.expires, NOW + 660);
}

#[test]
fn every_signature_counts() {
    let signer = Signer::new(1);
    for (alg, kid) in [("EdDSA", Some("ed")), ("ES256", Some("ec")), ("EdDSA", None), ("ES256", None)] {
        let mut header = json!({"alg": alg, "typ": "at+jwt"});
        if let Some(kid) = kid {
            header["kid"] = kid.into();
        }
        assert!(signer.verify(&signer.sign(&header, &claims(&json!({})))).is_ok(), "{header}");
    }
}

#[test]
fn claims_decide() {
    let claim =
        |name: &'static str| move |error: &TokenError| matches!(error, TokenError::Claim(claim, _) if claim == name);
    type Is = Box<dyn Fn(&TokenError) -> bool>;
    let cases: Vec<(Value, Is)> = vec![
        (json!({"exp": NOW - 60}), Box::new(|error| *error == TokenError::Expired(60))),
        (json!({"exp": null}), Box::new(claim("exp"))),
        (json!({"exp": "soon"}), Box::new(claim("exp"))),
        (json!({"exp": -1}), Box::new(claim("exp"))),
        (json!({"nbf": NOW + 61}), Box::new(|error| *error == TokenError::NotYet(61))),
        (json!({"iat": NOW + 3600}), Box::new(|error| *error == TokenError::NotYet(3600))),
        (json!({"aud": null}), Box::new(|error| matches!(error, TokenError::Audience(_)))),
        (json!({"aud": []}), Box::new(|error| matches!(error, TokenError::Audience(_)))),
        (json!({"aud": ["pg2.example", "pg1.example."]}), Box::new(|error| matches!(error, TokenError::Audience(_)))),
        (json!({"aud": {"a": 1}}), Box::new(claim("aud"))),
        (json!({"scope": "session.opener"}), Box::new(|error| matches!(error, TokenError::Scope(_)))),
        (json!({"scope": null}), Box::new(|error| matches!(error, TokenError::Scope(_)))),
        (json!({"sub": "a\nb"}), Box::new(claim("sub"))),
        (json!({"sub": ""}), Box::new(claim("sub"))),
        (json!({"sub": "*"}), Box::new(claim("sub"))),
        (json!({"sub": "a".repeat(257)}), Box::new(claim("sub"))),
        (json!({"sub": 7}), Box::new(claim("sub"))),
        (json!({"wlcg.groups": vec!["g"; 33]}), Box::new(|error| *error == TokenError::Groups(33, 32))),
        (json!({"wlcg.groups": [1]}), Box::new(claim("wlcg.groups"))),
        (json!({"iss": null}), Box::new(claim("iss"))),
        (json!({"iss": format!("{URL}/")}), Box::new(|error| matches!(error, TokenError::UnknownIssuer(_)))),
        (json!({"iss": "https://ıssuer.example/x"}), Box::new(|error| matches!(error, TokenError::UnknownIssuer(_)))),
    ];
    for (changes, is_expected) in cases {
        let error = verdict(&changes).unwrap_err();
        assert!(is_expected(&error), "{changes}: {error}");
    }
}

#[test]
fn other_forms_of_claims_count() {
    for changes in [
        json!({"exp": NOW as f64 + 0.5}),
        json!({"exp": NOW - 59}),
        json!({"nbf": NOW + 60}),
        json!({"nbf": null, "iat": null}),
        json!({"aud": ["x", "https://pg1.example"]}),
        json!({"aud": "https://wlcg.cern.ch/jwt/v1/any"}),
        json!({"aud": ["ANY"]}),
        json!({"scope": ["session.open"]}),
        json!({"wlcg.groups": "/cms"}),
    ] {
        verdict(&changes).unwrap_or_else(|error| panic!("{changes}: {error}"));
    }
    // SciTokens need no subject; then there is no user.
    let verified = verdict(&json!({"sub": null, "wlcg.groups": null})).unwrap();
    assert_eq!((verified.subject.as_str(), verified.user.as_str(), verified.groups.len()), (URL, "", 0));
}

#[test]
fn administrator_may_demand_more_or_less() {
    let signer = Signer::new(1);
    let token = |changes| Token::read(&signer.token(&claims(&changes))).unwrap();
    let strict = Issuer { takes_any_audience: false, ..issuer() };
    assert!(strict.verify(&token(json!({"aud": "ANY"})), &signer.keys(), NOW).is_err());
    let local = Issuer {
        realm: String::new(),
        scopes: Vec::new(),
        user: Claim::new("/account/na~1me").unwrap(),
        groups: Claim::new("/account/roles").unwrap(),
        ..issuer()
    };
    let changes = json!({"scope": null, "account": {"na/me": "grace", "roles": ["a", "b"]}});
    let verified = local.verify(&token(changes), &signer.keys(), NOW).unwrap();
    assert_eq!((verified.user.as_str(), verified.groups), ("grace", vec!["a".to_owned(), "b".to_owned()]));
    for name in ["", "/a~2", "/~"] {
        assert!(Claim::new(name).is_none(), "{name}");
    }
    assert!(Issuer::check_realm("cms.cern.ch").is_ok() && Issuer::check_realm("a@b").is_err());
    assert_eq!(Issuer::default_realm("https://a.example:8443/x"), "a.example-8443");
}
