//! Directories of authorities, signing policies and revocation lists, made by `openssl`.

use std::fs;

use phoebus_gsi::credential::provider;
use phoebus_gsi::proxy::verify::{ChainError, Verified, verify};
use phoebus_gsi::trust::kept::{Looked, TrustDirectory};
use phoebus_gsi::trust::{MissingPolicy, PathError, directory};

use crate::gct::lab::{CA, Lab, USER, now, run};

fn check(lab: &Lab, name: &str, at: i64) -> Result<Verified, PathError> {
    let mut chain = vec![lab.certificate(name)];
    if lab.path("between.pem").exists() {
        chain.push(lab.certificate("between"));
    }
    verify(chain, &lab.trust(), &provider(), at).map_err(|error| match error {
        ChainError::Path(error) => error,
        other => panic!("{other}"),
    })
}

#[test]
fn signing_policy_limits_the_names_of_an_authority() {
    let lab = Lab::new();
    assert_eq!(check(&lab, "user", now()).unwrap().identity(), USER);
    lab.policy("ca", CA, "/O=Grid/OU=Elsewhere/*");
    let error = check(&lab, "user", now()).unwrap_err();
    assert_eq!(error, PathError::Policy { subject: USER.into(), authority: CA.into() });
    lab.policy("ca", "/O=Another", "/O=Grid/OU=Lab/*");
    let error = check(&lab, "user", now()).unwrap_err();
    assert_eq!(error, PathError::NoPolicy { subject: USER.into(), authority: CA.into() });
    let lenient = directory::load(&lab.path("certs"), MissingPolicy::Allow).unwrap().strict().unwrap();
    assert!(verify(vec![lab.certificate("user")], &lenient, &provider(), now()).is_ok());
}

#[test]
fn validity_is_checked_on_the_whole_path() {
    let lab = Lab::new();
    let day = 86_400;
    assert!(matches!(check(&lab, "user", now() + 21 * day), Err(PathError::Expired { whose: "it", .. })));
    assert!(matches!(check(&lab, "user", now() - day), Err(PathError::NotYet { .. })));
    // The authority's certificate expires ten days after the first certificates; then even a certificate with
    // a longer validity is rejected.
    lab.openssl("x509 -req -in user.csr -CA ca.pem -CAkey ca.key -days 60 -sha256 -extfile user.ext -out user.pem");
    let error = check(&lab, "user", now() + 40 * day).unwrap_err();
    assert!(matches!(error, PathError::Expired { whose: "the authority at its root", .. }), "{error}");
}

#[test]
fn untrusted_issuers_are_refused() {
    let lab = Lab::new();
    lab.entity("self", "/O=Grid/OU=Lab/CN=Self", "ca", "rsa:2048", "");
    lab.openssl("x509 -req -in self.csr -signkey self.key -days 5 -sha256 -extfile self.ext -out self.pem");
    assert!(check(&lab, "self", now()).is_err());
    let other = Lab::fresh();
    // The same names with another key: the signature does not verify.
    let error = verify(vec![other.certificate("user")], &lab.trust(), &provider(), now()).unwrap_err();
    assert!(error.to_string().contains("not signed by the key"), "{error}");
}

#[test]
fn intermediate_needs_the_root_s_policy_and_its_own() {
    let lab = Lab::new();
    let between = "/O=Grid/OU=Lab/CN=Between";
    let extension = "basicConstraints=critical,CA:TRUE,pathlen:0\nkeyUsage=critical,keyCertSign,cRLSign";
    lab.entity("between", between, "ca", "rsa:2048", extension);
    lab.entity("below", "/O=Grid/OU=Lab/CN=Below", "between", "rsa:2048", "");
    let error = check(&lab, "below", now()).unwrap_err();
    assert!(matches!(error, PathError::NoPolicy { authority, .. } if authority == between));
    lab.policy("between", between, "/O=Grid/OU=Lab/CN=Be*");
    assert_eq!(check(&lab, "below", now()).unwrap().identity(), "/O=Grid/OU=Lab/CN=Below");
    lab.policy("ca", CA, "/O=Grid/OU=Lab/CN=Below");
    let error = check(&lab, "below", now()).unwrap_err();
    assert!(matches!(error, PathError::Policy { subject, .. } if subject == between));
    // If the directory contains the intermediate, the peer need not send it.
    lab.policy("ca", CA, "/O=Grid/OU=Lab/*");
    fs::copy(lab.path("between.pem"), lab.path("certs/Between.pem")).unwrap();
    let alone = vec![lab.certificate("below")];
    assert!(verify(alone, &lab.trust(), &provider(), now()).is_ok());
}

/// Writes the configuration for `openssl ca` in a lab.
fn with_ca(lab: &Lab) -> String {
    let configuration = "[ca]\ndefault_ca=d\n[d]\ndatabase=index\ncrlnumber=number\ndefault_md=sha256\nunique_subject=no\n\
                         certificate=ca.pem\nprivate_key=ca.key\ncrl_extensions=e\n[e]\nauthorityKeyIdentifier=keyid\n";
    fs::write(lab.path("ca.cnf"), configuration).unwrap();
    fs::write(lab.path("index"), "").unwrap();
    fs::write(lab.path("number"), "01\n").unwrap();
    configuration.to_owned()
}

#[test]
fn revocation_lists_apply_until_they_expire() {
    let lab = Lab::new();
    let configuration = with_ca(&lab);
    lab.openssl("ca -config ca.cnf -gencrl -crldays 2 -out certs/lab.r0");
    assert!(check(&lab, "user", now()).is_ok());
    lab.openssl("ca -config ca.cnf -revoke user.pem");
    lab.openssl("ca -config ca.cnf -gencrl -crldays 2 -out certs/lab.r0");
    assert_eq!(check(&lab, "user", now()).unwrap_err(), PathError::Revoked { subject: USER.into() });
    assert!(check(&lab, "host", now()).is_ok());
    let later = now() + 3 * 86_400;
    assert!(matches!(check(&lab, "host", later), Err(PathError::ListExpired { .. })));
    // A list of version 1, which openssl makes without a CRL number, is rejected on loading and not ignored.
    fs::write(lab.path("ca.cnf"), configuration.replace("crlnumber=number\n", "").replace("crl_extensions=e\n", ""))
        .unwrap();
    lab.openssl("ca -config ca.cnf -gencrl -crldays 2 -out certs/lab.r0");
    let loaded = directory::load(&lab.path("certs"), MissingPolicy::Refuse).unwrap();
    let problem = loaded.problems[0].to_string();
    assert!(problem.contains("lab.r0") && problem.contains("version 2"), "{problem}");
}

#[test]
fn replaced_list_takes_effect_if_usable() {
    let (lab, forger, provider) = (Lab::new(), Lab::fresh(), provider());
    with_ca(&lab);
    with_ca(&forger);
    let list = lab.path("certs/lab.r0");
    let expired = "-crl_lastupdate 20200101000000Z -crl_nextupdate 20200102000000Z";
    lab.openssl(&format!("ca -config ca.cnf -gencrl {expired} -out certs/lab.r0"));
    let kept = TrustDirectory::read(&lab.path("certs"), MissingPolicy::Refuse).unwrap();
    let check = |name: &str| {
        verify(vec![lab.certificate(name)], &kept.trust(), &provider, now()).map(drop).map_err(|error| match error {
            ChainError::Path(error) => error,
            other => panic!("{other}"),
        })
    };
    let look = || kept.look(provider.signature_verification_algorithms.all, now());
    let nothing = |looked: Looked| looked.taken.is_empty() && looked.problems.is_empty();
    assert!(nothing(look()) && matches!(check("user"), Err(PathError::ListExpired { .. })));

    // A new list takes effect at once. Later damage to the file changes nothing and is reported once.
    let fresh = |lab: &Lab, days: u32| {
        lab.openssl(&format!("ca -config ca.cnf -gencrl -crldays {days} -out fresh"));
        fs::rename(lab.path("fresh"), lab.path("certs/lab.r0")).unwrap();
    };
    fresh(&lab, 2);
    assert_eq!(look().taken, [&*list]);
    assert!(check("user").is_ok() && nothing(look()));
    fresh(&forger, 3);
    let forged = fs::read(forger.path("certs/lab.r0")).unwrap();
    let late = |lab: &Lab| {
        lab.openssl(
            "ca -config ca.cnf -gencrl -crl_lastupdate 20500101000000Z -crl_nextupdate 20500102000000Z -out late",
        );
        fs::read(lab.path("late")).unwrap()
    };
    for (content, says) in [
        (&b"hello"[..], "holds no revocation list"),
        (&b""[..], "holds no revocation list"),
        (&forged[..forged.len() / 2], "lab.r0: "),
        (&forged, "not signed by the authority"),
        (&late(&forger), "not signed by the authority"),
    ] {
        fs::write(&list, content).unwrap();
        let looked = look();
        assert!(looked.taken.is_empty() && looked.problems.len() == 1, "{looked:?}");
        assert!(looked.problems[0].to_string().contains(says), "{looked:?}");
        assert!(nothing(look()) && check("user").is_ok());
    }
    fs::remove_file(&list).unwrap();
    assert!(nothing(look()) && check("user").is_ok());
    // A revocation takes effect at the next check, and an older list does not undo it.
    lab.openssl("ca -config ca.cnf -revoke user.pem");
    fresh(&lab, 2);
    assert_eq!(look().taken.len(), 1);
    assert_eq!(check("user").unwrap_err(), PathError::Revoked { subject: USER.into() });
    lab.openssl(&format!("ca -config ca.cnf -gencrl {expired} -out certs/lab.r0"));
    assert!(nothing(look()) && matches!(check("user"), Err(PathError::Revoked { .. })));
    fs::rename(lab.path("certs"), lab.path("away")).unwrap();
    assert_eq!((look().problems.len(), look().problems.len()), (1, 0));
}

#[test]
fn directory_works_without_hashes_and_reports_bad_files() {
    let lab = Lab::new();
    let hash = lab.openssl("x509 -in ca.pem -noout -subject_hash");
    let old = |end: &str| lab.path(&format!("certs/{}.{end}", hash.trim()));
    fs::rename(old("0"), lab.path("certs/Lab.pem")).unwrap();
    fs::rename(old("signing_policy"), lab.path("certs/Lab.signing_policy")).unwrap();
    assert!(check(&lab, "user", now()).is_ok());

    fs::write(lab.path("certs/Bad.pem"), "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n").unwrap();
    fs::write(lab.path("certs/Worse.pem"), "hello").unwrap();
    fs::write(lab.path("certs/Bad.signing_policy"), "access_id_CA X509 '/CN=a'\nhello\n").unwrap();
    fs::copy(lab.path("user.pem"), lab.path("certs/user.pem")).unwrap();
    let loaded = directory::load(&lab.path("certs"), MissingPolicy::Refuse).unwrap();
    let problems: Vec<String> = loaded.problems.iter().map(ToString::to_string).collect();
    for part in ["Bad.pem: not an X.509", "Worse.pem: holds no", "Bad.signing_policy, line 2", "user.pem: /O=Grid"] {
        assert!(problems.iter().any(|problem| problem.contains(part)), "{part}: {problems:?}");
    }
    assert!(verify(vec![lab.certificate("user")], &loaded.store, &provider(), now()).is_ok());
    run(std::process::Command::new("mkdir").arg(lab.path("empty")));
    let error = directory::load(&lab.path("empty"), MissingPolicy::Refuse).err().unwrap();
    assert!(error.to_string().contains("holds no certificate"), "{error}");
}

#[test]
fn weak_and_old_certificates_are_refused_with_a_reason() {
    let lab = Lab::new();
    lab.openssl("x509 -req -in user.csr -CA ca.pem -CAkey ca.key -days 5 -sha1 -extfile user.ext -out user.pem");
    let error = check(&lab, "user", now()).unwrap_err();
    assert!(error.to_string().contains("SHA-256 or stronger"), "{error}");
    lab.openssl("x509 -req -in user.csr -CA ca.pem -CAkey ca.key -days 5 -sha256 -out user.pem");
    let error = check(&lab, "user", now()).unwrap_err();
    assert!(error.to_string().contains("version 3"), "{error}");
    lab.authority("small", "/O=Grid/OU=Lab/CN=Small", "rsa:1024");
    lab.entity("tiny", "/O=Grid/OU=Lab/CN=Tiny", "small", "rsa:2048", "");
    assert!(check(&lab, "tiny", now()).is_err());
}
