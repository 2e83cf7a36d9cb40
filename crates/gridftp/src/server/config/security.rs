//! Authentication and protection.

use super::yes;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Grid security (U1).
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gsi {
    /// The server's certificate with its chain.
    #[serde(default = "hostcert")]
    pub certificate: PathBuf,
    /// Its private key, which only the owner may read.
    #[serde(default = "hostkey")]
    pub key: PathBuf,
    /// Directory of authorities, with signing policies and revocation lists.
    #[serde(default = "authorities")]
    pub authorities: PathBuf,
    /// Grid-mapfile, which maps subjects to users of the configuration.
    #[serde(default = "gridmap")]
    pub gridmap: PathBuf,
}

/// Kerberos (RFC 2228, RFC 4121).
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Kerberos {
    /// Keytab with keys of `ftp/HOST@REALM` or `host/HOST@REALM`.
    #[serde(default = "keytab")]
    pub keytab: PathBuf,
    /// Realms whose principals `name@REALM` map to the users `name`.
    #[serde(default)]
    pub realms: Vec<String>,
    /// Users of other principals, written as `name@REALM`.
    #[serde(default)]
    pub principals: BTreeMap<String, String>,
}

impl Kerberos {
    /// The user of a principal.
    #[cfg(feature = "kerberos")]
    pub(in super::super) fn user_of<'a>(&'a self, principal: &'a str) -> Option<&'a str> {
        if let Some(user) = self.principals.get(principal) {
            return Some(user);
        }
        let (name, realm) = principal.rsplit_once('@')?;
        // A principal of several parts, such as jane/admin, is not jane.
        let plain = !name.is_empty() && !name.contains(['/', '@', '\\']);
        (plain && self.realms.iter().any(|known| known == realm)).then_some(name)
    }
}

/// Protection by TLS (RFC 4217).
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tls {
    /// The server's certificate with its chain, in PEM.
    pub certificate: PathBuf,
    /// Its private key in PEM, which only the owner may read.
    pub key: PathBuf,
    /// Whether passwords are accepted under TLS only. True by default.
    #[serde(default = "yes")]
    pub required: bool,
    /// Whether data connections under TLS must resume the TLS session of the control connection, which proves that they
    /// are the same client's. True by default. Data nodes cannot require it.
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
