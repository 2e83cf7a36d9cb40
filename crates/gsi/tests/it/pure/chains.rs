//! The rules of proxy chains, one by one.

use phoebus_gsi::certificate::{Certificate, MAX_CHAIN};
use phoebus_gsi::credential::{Credential, provider};
use phoebus_gsi::proxy::issue::{CLOCK_SKEW, IssueError, ProxyProfile, create, issue};
use phoebus_gsi::proxy::request::Request;
use phoebus_gsi::proxy::verify::{ChainError, ProxyProblem, Verified, verify};
use phoebus_gsi::proxy::{Format, Kind, Rights};
use rcgen::KeyUsagePurpose;

use crate::pure::world::{HOST, NOW, USER, WORLD, entity, independent_proxy, key};

fn check(chain: &[Certificate], now: i64) -> Result<Verified, ChainError> {
    verify(chain.to_vec(), &WORLD.trust, &provider(), now)
}

fn problem(chain: &[Certificate], now: i64) -> ProxyProblem {
    match check(chain, now).unwrap_err() {
        ChainError::Proxy { problem, .. } => problem,
        other => panic!("{other}"),
    }
}

fn made(from: &Credential, terms: &ProxyProfile) -> Credential {
    create(from, terms, &provider(), NOW).unwrap()
}

fn full() -> ProxyProfile {
    ProxyProfile { not_after: NOW + 3600, ..ProxyProfile::delegation(false) }
}

#[test]
fn nested_proxy_has_its_owner_s_identity() {
    let first = made(&WORLD.user, &full());
    let second = made(&first, &ProxyProfile { rights: Rights::Limited, ..full() });
    let verified = check(second.chain(), NOW).unwrap();
    assert_eq!((verified.identity(), verified.proxies(), verified.is_limited()), (USER, 2, true));
    assert_eq!(verified.not_after(), NOW + 3600);
    assert!(!check(first.chain(), NOW).unwrap().is_limited());
    assert!(!check(WORLD.user.chain(), NOW).unwrap().is_limited());
    assert!(check(WORLD.host.chain(), NOW).unwrap().is_host("DTN.example.org"));
}

#[test]
fn independent_proxy_has_its_own_identity() {
    let independent = made(&WORLD.user, &ProxyProfile { rights: Rights::Independent, ..full() });
    let after = made(&independent, &full());
    let name = independent.certificate().subject().as_str();
    assert_eq!(check(independent.chain(), NOW).unwrap().identity(), name);
    assert_eq!(check(after.chain(), NOW).unwrap().identity(), name);
}

#[test]
fn proxy_with_a_host_s_name_is_not_the_host() {
    let mallory = independent_proxy("mallory", HOST);
    let verified = check(mallory.chain(), NOW).unwrap();
    assert_eq!(verified.identity(), format!("/O=Grid/OU=Test/CN=mallory/CN={HOST}"));
    assert!(!verified.is_host(HOST));
    // Nor does a proxy of the host's own certificate count, whatever its rights.
    for rights in [Rights::Full, Rights::Limited, Rights::Independent] {
        let service = made(&WORLD.host, &ProxyProfile { rights, ..full() });
        let verified = check(service.chain(), NOW).unwrap();
        assert!(!verified.is_host(HOST));
    }
}

#[test]
fn validity_is_checked_for_every_proxy() {
    let long = made(&WORLD.user, &full());
    assert!(check(long.chain(), NOW + 3600).is_ok());
    assert_eq!(problem(long.chain(), NOW + 3601), ProxyProblem::Expired(NOW + 3600));
    assert!(check(long.chain(), NOW - CLOCK_SKEW).is_ok());
    assert_eq!(problem(long.chain(), NOW - CLOCK_SKEW - 1), ProxyProblem::NotYet(NOW - CLOCK_SKEW));
    // A proxy never outlives its issuer, whatever was requested.
    let after = made(&long, &ProxyProfile { not_after: i64::MAX, ..full() });
    assert_eq!(after.not_after(), NOW + 3600);
    let late = create(&long, &full(), &provider(), NOW + 4000).unwrap_err();
    assert!(matches!(late, IssueError::Expired { .. }), "{late}");
}

#[test]
fn chain_must_be_complete_and_ordered() {
    let second = made(&made(&WORLD.user, &full()), &full());
    let [leaf, middle, end] = [0, 1, 2].map(|at| second.chain()[at].clone());
    assert!(check(&[leaf.clone(), middle.clone(), end.clone()], NOW).is_ok());
    assert!(matches!(check(&[], NOW), Err(ChainError::Empty)));
    assert!(matches!(check(&[leaf.clone(), middle.clone()], NOW), Err(ChainError::NoEndEntity(_))));
    assert!(matches!(problem(&[leaf.clone(), end.clone()], NOW), ProxyProblem::Issuer(_)));
    assert!(matches!(problem(&[middle.clone(), leaf, end.clone()], NOW), ProxyProblem::Issuer(_)));
    let stranger = entity(&WORLD.issuer, "Somebody Else", &[]);
    assert!(matches!(problem(&[middle.clone(), stranger.certificate().clone()], NOW), ProxyProblem::Issuer(_)));
    let long = vec![middle; MAX_CHAIN + 1];
    assert!(matches!(check(&long, NOW), Err(ChainError::TooLong(33))));
}

#[test]
fn forged_signature_is_refused() {
    let proxy = made(&WORLD.user, &full());
    // The same names with another key, of an impostor with an equal name.
    let twin = entity(&WORLD.issuer, "Test User", &[]);
    let chain = [proxy.certificate().clone(), twin.certificate().clone()];
    assert!(matches!(problem(&chain, NOW), ProxyProblem::Signature(_)));
    // Every byte of the signed part and of the signature matters, as far as the altered certificate still
    // parses.
    let der = proxy.certificate().der().to_vec();
    let mut refused = 0;
    for at in 0..der.len() {
        let mut altered = der.clone();
        altered[at] ^= 1;
        if let Ok(certificate) = Certificate::parse(&altered) {
            let chain = [certificate, WORLD.user.certificate().clone()];
            assert!(check(&chain, NOW).is_err(), "a flipped bit in byte {at} was not noticed");
            refused += 1;
        }
    }
    assert!(refused > 100, "only {refused} alterations could be tried");
}

#[test]
fn path_lengths_are_enforced_on_verify_and_issue() {
    let one = made(&WORLD.user, &ProxyProfile { path_length: Some(1), ..full() });
    let two = made(&one, &full());
    assert!(check(two.chain(), NOW).is_ok());
    let error = create(&two, &full(), &provider(), NOW).unwrap_err();
    assert!(
        matches!(error, IssueError::Forbidden { problem: ProxyProblem::PathLength { allowed: 1, .. }, .. }),
        "{error}"
    );
}

#[test]
fn limited_proxies_stay_limited_and_formats_do_not_mix() {
    let limited = made(&WORLD.user, &ProxyProfile { rights: Rights::Limited, ..full() });
    for rights in [Rights::Limited, Rights::Independent] {
        assert!(check(made(&limited, &ProxyProfile { rights, ..full() }).chain(), NOW).is_ok());
    }
    let error = create(&limited, &full(), &provider(), NOW).unwrap_err();
    assert!(matches!(error, IssueError::Forbidden { problem: ProxyProblem::WasLimited, .. }), "{error}");
    for format in [Format::Legacy, Format::Draft, Format::Rfc] {
        let first = made(&WORLD.user, &ProxyProfile { format: Some(format), ..full() });
        let after = made(&first, &full());
        assert_eq!(after.certificate().kind().proxy().map(|proxy| proxy.format), Some(format));
        assert!(check(after.chain(), NOW).is_ok());
        for other in [Format::Legacy, Format::Draft, Format::Rfc].into_iter().filter(|other| *other != format) {
            let error = create(&first, &ProxyProfile { format: Some(other), ..full() }, &provider(), NOW).unwrap_err();
            assert!(matches!(error, IssueError::Forbidden { problem: ProxyProblem::Mixed, .. }), "{error}");
        }
    }
}

#[test]
fn legacy_format_refuses_unsupported_properties() {
    for terms in [
        ProxyProfile { format: Some(Format::Legacy), rights: Rights::Independent, ..full() },
        ProxyProfile { format: Some(Format::Legacy), path_length: Some(1), ..full() },
    ] {
        assert_eq!(create(&WORLD.user, &terms, &provider(), NOW).unwrap_err(), IssueError::Legacy);
    }
}

#[test]
fn issuer_without_digital_signature_usage_is_refused() {
    let silent = entity(&WORLD.issuer, "Silent", &[KeyUsagePurpose::KeyEncipherment]);
    let error = create(&silent, &full(), &provider(), NOW).unwrap_err();
    assert!(matches!(error, IssueError::Forbidden { problem: ProxyProblem::IssuerKeyUsage(_), .. }), "{error}");
}

#[test]
fn answer_for_another_key_is_refused() {
    let request = Request::for_key(key()).unwrap();
    let proxy = issue(&WORLD.user, key().public_key(), &full(), NOW).unwrap();
    assert_eq!(*proxy.kind(), Kind::Proxy(proxy.kind().proxy().unwrap().clone()));
    assert!(request.complete(vec![proxy, WORLD.user.certificate().clone()]).is_err());
}

#[test]
fn keys_are_not_shown() {
    let credential = made(&WORLD.user, &full());
    let text = credential.to_pem();
    let secret = text.split("PRIVATE KEY-----").nth(1).unwrap().lines().nth(1).unwrap();
    for shown in [
        format!("{credential:?}"),
        format!("{:?}", credential.key()),
        format!("{:?}", WORLD.endpoint(&credential).credential),
    ] {
        assert!(!shown.contains(secret), "{shown}");
    }
}
