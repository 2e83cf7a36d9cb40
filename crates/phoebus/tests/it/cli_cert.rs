//! `phoebus cert`: openssl and gateways accept its certificates, no file is overwritten, and errors name the bad input.

use phoebus_net::credentials::{CredentialFiles, Credentials};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

fn phoebus(dir: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_phoebus")).arg("cert").args(arguments).current_dir(dir).output().unwrap()
}

fn succeeds(dir: &Path, arguments: &[&str]) -> String {
    let output = phoebus(dir, arguments);
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    assert!(output.stderr.is_empty(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Fails with this code and one line on standard error that contains `expected`.
fn complains(dir: &Path, arguments: &[&str], code: i32, expected: &str) {
    let output = phoebus(dir, arguments);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
    assert!(said.contains(expected) && said.lines().count() == 1, "{arguments:?}: {said}");
    assert!(output.stdout.is_empty());
}

fn openssl(dir: &Path, arguments: &[&str]) -> String {
    let output = Command::new("openssl").args(arguments).current_dir(dir).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn mode(file: &Path) -> u32 {
    fs::metadata(file).unwrap().permissions().mode() & 0o777
}

#[test]
fn certificates_are_accepted_by_openssl_and_gateways() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let said = succeeds(dir, &["init", "--dir", "c", "PG1.example,192.0.2.7", "pg2.example"]);
    for expected in [
        "made a private authority, which counts until 20",
        "c/ca-key.pem: whoever has this key can pass for any gateway",
        "made a certificate for pg1.example, 192.0.2.7, which counts until 20",
        "c/pg2.example-key.pem (mode 600)",
    ] {
        assert!(said.contains(expected), "{expected}: {said}");
    }
    assert!(!said.contains("PRIVATE KEY"));
    for (file, expected) in [("ca-key.pem", 0o600), ("pg1.example-key.pem", 0o600), ("ca.pem", 0o644)] {
        assert_eq!(mode(&dir.join("c").join(file)) & !0o022, expected & !0o022, "{file}");
    }
    assert_eq!(fs::read_dir(dir.join("c")).unwrap().count(), 6, "nothing else is left there");
    for purpose in ["sslserver", "sslclient"] {
        let verify = [
            "verify",
            "-x509_strict",
            "-purpose",
            purpose,
            "-CAfile",
            "c/ca.pem",
            "c/pg1.example.pem",
            "c/pg2.example.pem",
        ];
        assert_eq!(openssl(dir, &verify), "c/pg1.example.pem: OK\nc/pg2.example.pem: OK\n");
    }
    let names = openssl(dir, &["x509", "-in", "c/pg1.example.pem", "-noout", "-ext", "subjectAltName"]);
    assert!(names.contains("DNS:pg1.example, IP Address:192.0.2.7"), "{names}");
    let files = CredentialFiles {
        certificate: dir.join("c/pg1.example.pem"),
        key: dir.join("c/pg1.example-key.pem"),
        authorities: dir.join("c/ca.pem"),
    };
    assert_eq!(Credentials::load(files).unwrap().certificate().unwrap().names, ["pg1.example", "192.0.2.7"]);
}

#[test]
fn authority_is_reused_and_nothing_overwritten_unasked() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    succeeds(dir, &["init", "pg1"]);
    let (authority, first) = (fs::read(dir.join("ca.pem")).unwrap(), fs::read(dir.join("pg1.pem")).unwrap());
    complains(dir, &["init", "pg3", "pg1"], 1, "./pg1.pem is there already; --force replaces it");
    assert!(!dir.join("pg3.pem").exists(), "nothing was begun");
    assert_eq!(fs::read(dir.join("pg1.pem")).unwrap(), first);

    let said = succeeds(dir, &["init", "--force", "--days", "30", "pg1", "pg2"]);
    assert!(said.starts_with("signing with the authority in ./ca.pem\n"), "{said}");
    assert_eq!(fs::read(dir.join("ca.pem")).unwrap(), authority);
    assert_ne!(fs::read(dir.join("pg1.pem")).unwrap(), first);
    openssl(dir, &["verify", "-CAfile", "ca.pem", "pg1.pem", "pg2.pem"]);
    openssl(dir, &["x509", "-in", "pg1.pem", "-noout", "-checkend", "2500000"]);

    fs::remove_file(dir.join("ca-key.pem")).unwrap();
    complains(dir, &["init", "pg4"], 1, "./ca.pem is there and its key ./ca-key.pem is not; expected both");
    fs::rename(dir.join("pg1-key.pem"), dir.join("ca-key.pem")).unwrap();
    complains(dir, &["init", "pg4"], 1, "./ca-key.pem is not the private key of the certificate in ./ca.pem");
    fs::set_permissions(dir.join("ca-key.pem"), fs::Permissions::from_mode(0o644)).unwrap();
    complains(dir, &["init", "pg4"], 1, "run: chmod 600 ./ca-key.pem");
    fs::remove_file(dir.join("ca.pem")).unwrap();
    complains(dir, &["init", "pg4"], 1, "./ca-key.pem is there and its certificate ./ca.pem is not");
}

#[test]
fn bad_arguments_are_named_before_anything_is_created() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    for name in ["", "pg1:5006", "../pg1", "pg1,", "*.example", "a b", "10.0.0"] {
        let wrong = name.rsplit(',').next().unwrap();
        complains(dir, &["init", "pg9", name], 2, &format!("\"{wrong}\" is not a DNS name or an IP address"));
    }
    complains(dir, &["init", "ca"], 2, "\"ca\": its file ca.pem is another's here; expected another name");
    complains(dir, &["init", "pg1", "pg1"], 2, "its file pg1.pem is another's here");
    complains(dir, &["init", "pg1", "pg1-key"], 2, "its file pg1-key.pem is another's here");
    for arguments in [&["init"][..], &["init", "--days", "0", "pg1"], &["show"], &[]] {
        assert_eq!(phoebus(dir, arguments).status.code(), Some(2), "{arguments:?}");
    }
    assert_eq!(fs::read_dir(dir).unwrap().count(), 0);
    fs::write(dir.join("file"), "").unwrap();
    complains(dir, &["init", "--dir", "file", "pg1"], 1, "cannot make the directory file");
}

#[test]
fn certificate_is_shown_as_text_and_json() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let made: Value = serde_json::from_str(&succeeds(dir, &["init", "--json", "pg1"])).unwrap();
    assert_eq!(made["authority_is_new"], true);
    assert_eq!(made["gateways"][0]["key"], "./pg1-key.pem");
    assert_eq!(made["gateways"][0]["names"][0], "pg1");

    let said = succeeds(dir, &["show", "pg1.pem"]);
    let fingerprint = openssl(dir, &["x509", "-in", "pg1.pem", "-noout", "-fingerprint", "-sha256"]);
    let fingerprint = fingerprint.trim().split_once('=').unwrap().1.replace(':', "").to_lowercase();
    for expected in
        ["names    pg1\n", "issuer   CN=Phoebus private authority ", "(364 days left)", "kind     end\n", &fingerprint]
    {
        assert!(said.contains(expected), "{expected}: {said}");
    }
    // A file may hold several certificates, for example of several authorities.
    let both = [fs::read(dir.join("ca.pem")).unwrap(), fs::read(dir.join("pg1.pem")).unwrap()].concat();
    fs::write(dir.join("both.pem"), both).unwrap();
    let shown: Value = serde_json::from_str(&succeeds(dir, &["show", "--json", "both.pem"])).unwrap();
    assert_eq!((&shown[0]["authority"], &shown[1]["authority"]), (&Value::Bool(true), &Value::Bool(false)));
    assert_eq!(shown[1]["sha256"], fingerprint);
    assert!(shown[1]["not_after"].as_str().unwrap().ends_with('Z'));

    complains(
        dir,
        &["show", "pg1-key.pem"],
        1,
        "pg1-key.pem holds no certificate but something else; expected certificates in PEM",
    );
    complains(dir, &["show", "none.pem"], 1, "cannot read none.pem: no such file or directory");
    fs::write(dir.join("bad.pem"), "-----BEGIN CERTIFICATE-----\n").unwrap();
    complains(dir, &["show", "bad.pem"], 1, "bad.pem, line 1: the section that begins here has no END line");
}
