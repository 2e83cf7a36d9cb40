//! An authority and the certificates that it issued, in a directory of their own.

use phoebus_net::credentials::{Authority, CredentialFiles, Credentials};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

pub(crate) struct Place {
    dir: tempfile::TempDir,
    authority: Authority,
}

impl Place {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (authority, own) = Authority::create("an authority", SystemTime::now()).unwrap();
        fs::write(dir.path().join("ca.pem"), own.certificate).unwrap();
        Self { dir, authority }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Issues a certificate and key for `name`.
    pub(crate) fn issue(&self, name: &str) -> CredentialFiles {
        let issued = self.authority.issue(name, &[], SystemTime::now(), Duration::from_secs(86_400)).unwrap();
        let files = CredentialFiles {
            certificate: self.path(&format!("{name}.pem")),
            key: self.path(&format!("{name}-key.pem")),
            authorities: self.path("ca.pem"),
        };
        fs::write(&files.certificate, issued.certificate).unwrap();
        fs::write(&files.key, issued.key).unwrap();
        fs::set_permissions(&files.key, fs::Permissions::from_mode(0o600)).unwrap();
        files
    }

    pub(crate) fn credentials(&self, name: &str) -> Credentials {
        Credentials::load(self.issue(name)).unwrap()
    }

    /// Credentials issued by this authority whose owner trusts the authority of `other`.
    #[allow(dead_code, reason = "not every test that shares this needs it")]
    pub(crate) fn credentials_that_trust(&self, name: &str, other: &Self) -> Credentials {
        Credentials::load(CredentialFiles { authorities: other.path("ca.pem"), ..self.issue(name) }).unwrap()
    }
}
