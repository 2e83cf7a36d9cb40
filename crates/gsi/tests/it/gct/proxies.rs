//! Proxies made by `grid-proxy-init` verify with this crate, and this crate's proxies satisfy
//! `grid-proxy-info` and `openssl verify`.

use std::fs;

use phoebus_gsi::credential::{Credential, provider};
use phoebus_gsi::files;
use phoebus_gsi::proxy::issue::{ProxyProfile, create};
use phoebus_gsi::proxy::verify::{ChainError, ProxyProblem, Verified, verify};
use phoebus_gsi::proxy::{Format, Rights};

use crate::gct::lab::{CA, Lab, USER, attempt, now, run};

fn check(lab: &Lab, credential: &Credential) -> Result<Verified, ChainError> {
    verify(credential.chain().to_vec(), &lab.trust(), &provider(), now())
}

fn terms(rights: Rights, format: Format) -> ProxyProfile {
    ProxyProfile { rights, path_length: None, format: Some(format), not_after: now() + 3600 }
}

#[test]
fn proxies_of_grid_proxy_init_verify() {
    let lab = Lab::new();
    for (name, arguments, format, rights) in [
        ("rfc", &["-rfc"][..], Format::Rfc, Rights::Full),
        ("rfc-limited", &["-rfc", "-limited"], Format::Rfc, Rights::Limited),
        ("rfc-independent", &["-rfc", "-independent"], Format::Rfc, Rights::Independent),
        ("draft", &["-draft"], Format::Draft, Rights::Full),
        ("draft-limited", &["-draft", "-limited"], Format::Draft, Rights::Limited),
        ("legacy", &["-old"], Format::Legacy, Rights::Full),
        ("legacy-limited", &["-old", "-limited"], Format::Legacy, Rights::Limited),
        ("large", &["-rfc", "-bits", "4096"], Format::Rfc, Rights::Full),
    ] {
        lab.user_proxy(name, arguments);
        let credential = lab.credential(name);
        let proxy = credential.certificate().kind().proxy().unwrap().clone();
        assert_eq!((proxy.format, &proxy.rights), (format, &rights), "{name}");
        let verified = check(&lab, &credential).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(verified.proxies(), 1, "{name}");
        assert_eq!(verified.is_limited(), rights == Rights::Limited, "{name}");
        let identity = verified.identity();
        if rights == Rights::Independent {
            assert!(identity.starts_with(&format!("{USER}/CN=")), "{name}: {identity}");
        } else {
            assert_eq!(identity, USER, "{name}");
        }
    }
}

#[test]
fn chains_of_gct_proxies_obey_the_rules() {
    let lab = Lab::new();
    lab.user_proxy("first", &["-rfc"]);
    lab.proxy_init("second", ("first", "first"), &["-rfc", "-limited"]);
    let second = check(&lab, &lab.credential("second")).unwrap();
    assert_eq!((second.proxies(), second.is_limited(), second.identity()), (2, true, USER));

    // GCT makes such proxies without an error, and refuses them when presented. So does this crate.
    lab.proxy_init("third", ("second", "second"), &["-rfc"]);
    let third = lab.credential("third");
    if third.certificate().kind().proxy().unwrap().rights == Rights::Full {
        let error = check(&lab, &third).unwrap_err();
        assert!(matches!(error, ChainError::Proxy { problem: ProxyProblem::WasLimited, .. }), "{error}");
    }
    // For this option, 0 means no limit.
    lab.user_proxy("short", &["-rfc", "-path-length", "1"]);
    lab.proxy_init("within", ("short", "short"), &["-rfc"]);
    assert!(check(&lab, &lab.credential("within")).is_ok());
    lab.proxy_init("beyond", ("within", "within"), &["-rfc"]);
    let error = check(&lab, &lab.credential("beyond")).unwrap_err();
    let expected = ProxyProblem::PathLength { allowed: 1, found: 2 };
    assert!(matches!(&error, ChainError::Proxy { problem, .. } if *problem == expected), "{error}");
}

#[test]
fn unknown_policy_language_is_refused() {
    let lab = Lab::new();
    fs::write(lab.path("policy"), "whatever").unwrap();
    let policy = lab.path("policy");
    lab.user_proxy("restricted", &["-rfc", "-policy", policy.to_str().unwrap(), "-pl", "1.3.6.1.4.1.99999.1"]);
    let error = check(&lab, &lab.credential("restricted")).unwrap_err();
    assert!(error.to_string().contains("1.3.6.1.4.1.99999.1"), "{error}");
}

#[test]
fn gct_and_openssl_accept_our_proxies() {
    let lab = Lab::new();
    for (rights, format, says) in [
        (Rights::Full, Format::Rfc, "RFC 3820 compliant impersonation proxy"),
        (Rights::Limited, Format::Rfc, "RFC 3820 compliant limited proxy"),
        (Rights::Independent, Format::Rfc, "RFC 3820 compliant independent proxy"),
        (Rights::Full, Format::Draft, "Proxy draft (pre-RFC) compliant impersonation proxy"),
        (Rights::Limited, Format::Draft, "Proxy draft (pre-RFC) compliant limited proxy"),
        (Rights::Full, Format::Legacy, "full legacy globus proxy"),
        (Rights::Limited, Format::Legacy, "limited legacy globus proxy"),
    ] {
        let terms = terms(rights.clone(), format);
        let made = create(&lab.credential_of("user"), &terms, &provider(), now()).unwrap();
        let twice = create(&made, &terms, &provider(), now()).unwrap();
        for (name, credential) in [("made", &made), ("twice", &twice)] {
            assert!(check(&lab, credential).is_ok(), "{rights:?} {format:?} {name}");
            files::save(credential, &lab.path(name)).unwrap();
            let info = run(lab.command("grid-proxy-info", Some(name)).arg("-all"));
            let kind = info.lines().find(|line| line.starts_with("type")).unwrap_or_default();
            assert!(kind.contains(says), "{rights:?} {format:?} {name}: {info}");
            run(lab.command("grid-proxy-info", Some(name)).args(["-exists", "-valid", "0:55"]));
            if format == Format::Rfc {
                let file = lab.path(name);
                let (file, authority) = (file.to_str().unwrap(), lab.path("ca.pem"));
                let (ok, text) = attempt(lab.command("openssl", None).args([
                    "verify",
                    "-allow_proxy_certs",
                    "-CAfile",
                    authority.to_str().unwrap(),
                    "-untrusted",
                    file,
                    file,
                ]));
                assert!(ok, "{rights:?} {name}: {text}");
            }
        }
    }
}

#[test]
fn keys_of_every_kind_issue_and_receive_proxies() {
    let lab = Lab::new();
    for (name, key) in [
        ("p256", "ec -pkeyopt ec_paramgen_curve:P-256"),
        ("p384", "ec -pkeyopt ec_paramgen_curve:P-384"),
        ("ed25519", "ed25519"),
        ("rsa3072", "rsa:3072"),
    ] {
        lab.entity(name, &format!("/O=Grid/OU=Lab/CN={name}"), "ca", key, "");
        let made = create(&lab.credential_of(name), &ProxyProfile::delegation(false), &provider(), now()).unwrap();
        let verified = check(&lab, &made).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(verified.identity(), format!("/O=Grid/OU=Lab/CN={name}"));
        files::save(&made, &lab.path("made")).unwrap();
        assert!(check(&lab, &lab.credential("made")).is_ok(), "{name}");
        let (ok, text) = attempt(lab.command("grid-proxy-info", Some("made")).arg("-identity"));
        assert!(ok && text.trim() == verified.identity(), "{name}: {text}");
    }
}

#[test]
fn errors_name_file_and_problem() {
    let lab = Lab::new();
    let read = |name: &str| files::credential(&lab.path(name), &provider()).unwrap_err().to_string();
    lab.user_proxy("open", &[]);
    run(std::process::Command::new("chmod").arg("644").arg(lab.path("open")));
    assert!(read("open").contains("chmod 600"), "{}", read("open"));
    assert!(read("absent").contains("absent: No such file"), "{}", read("absent"));
    lab.openssl("rsa -in user.key -aes128 -passout pass:secret -out locked.key");
    let both = files::credential_of_two(&lab.path("user.pem"), &lab.path("locked.key"), &provider()).unwrap_err();
    assert!(both.to_string().contains("locked.key: the private key is encrypted"), "{both}");
    let other = files::credential_of_two(&lab.path("user.pem"), &lab.path("host.key"), &provider()).unwrap_err();
    assert!(other.to_string().contains(USER), "{other}");
    let authority = Credential::from_two_pems(
        (&crate::gct::lab::read(&lab.path("ca.pem")), "ca.pem"),
        (&crate::gct::lab::read(&lab.path("ca.key")), "ca.key"),
        &provider(),
    )
    .unwrap();
    let error = create(&authority, &ProxyProfile::delegation(false), &provider(), now()).unwrap_err();
    assert!(error.to_string().contains(CA), "{error}");
}
