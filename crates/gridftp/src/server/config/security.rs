//! By what ends prove who they are, and what protects what they say.

use super::yes;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Grid security (U1): who the server is, whom it believes, and which user each subject is.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gsi {
    /// The server's certificate, with those that lead to its authority.
    #[serde(default = "hostcert")]
    pub certificate: PathBuf,
    /// Its key, which nobody else may be able to read.
    #[serde(default = "hostkey")]
    pub key: PathBuf,
    /// The directory of authorities, with their signing policies and revocation lists.
    #[serde(default = "authorities")]
    pub authorities: PathBuf,
    /// Which user each subject is, of those that the configuration names.
    #[serde(default = "gridmap")]
    pub gridmap: PathBuf,
}

/// Kerberos (RFC 2228, RFC 4121): by which keys the server knows tickets, and which user each principal is.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Kerberos {
    /// The keytab, with keys of `ftp/HOST@REALM` or `host/HOST@REALM`.
    #[serde(default = "keytab")]
    pub keytab: PathBuf,
    /// Realms whose principals `name@REALM` are the users of these names.
    #[serde(default)]
    pub realms: Vec<String>,
    /// Which user a principal is, written as `name@REALM`, whatever its realm.
    #[serde(default)]
    pub principals: BTreeMap<String, String>,
}

impl Kerberos {
    /// Which user this principal is.
    #[cfg(feature = "kerberos")]
    pub(in super::super) fn user_of<'a>(&'a self, principal: &'a str) -> Option<&'a str> {
        if let Some(user) = self.principals.get(principal) {
            return Some(user);
        }
        let (name, realm) = principal.rsplit_once('@')?;
        // A name of several parts, such as jane/admin, is another than jane.
        let plain = !name.is_empty() && !name.contains(['/', '@', '\\']);
        (plain && self.realms.iter().any(|known| known == realm)).then_some(name)
    }
}

/// Protection by TLS (RFC 4217).
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tls {
    /// The server's certificate, with those that lead to its authority, in PEM.
    pub certificate: PathBuf,
    /// Its key, in PEM, which nobody else may be able to read.
    pub key: PathBuf,
    /// Whether passwords are taken under TLS only: so by default.
    #[serde(default = "yes")]
    pub required: bool,
    /// Whether data connections under TLS have to resume the session of the control connection, by which the client proves that they are
    /// its own: so by default. Data nodes cannot ask for it.
    #[serde(default = "yes")]
    pub data_must_resume: bool,
}

fn keytab() -> PathBuf {
    "/etc/krb5.keytab".into()
}

fn hostcert() -> PathBuf {
    "/etc/grid-security/hostcert.pem".into()
}

fn hostkey() -> PathBuf {
    "/etc/grid-security/hostkey.pem".into()
}

fn authorities() -> PathBuf {
    "/etc/grid-security/certificates".into()
}

fn gridmap() -> PathBuf {
    "/etc/grid-security/grid-mapfile".into()
}
