//! An authority, a host and a user with a proxy, in a directory as Globus expects it.

use super::{ok, run};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;

/// The user.
pub const USER: &str = "/O=Grid/OU=Lab/CN=Lab User";

/// An authority, a host and a user with a proxy, in a directory as Globus expects it.
pub struct Lab(tempfile::TempDir);

impl Lab {
    pub fn new() -> Self {
        let lab = Self(tempfile::tempdir().unwrap());
        let script = r#"
            ca='/O=Grid/OU=Lab/CN=Lab CA'
            openssl req -x509 -newkey rsa:2048 -nodes -sha256 -days 30 -subj "$ca" -keyout ca.key -out ca.pem \
              -addext basicConstraints=critical,CA:TRUE -addext keyUsage=critical,keyCertSign,cRLSign 2>&1
            mkdir certs; hash=$(openssl x509 -in ca.pem -noout -subject_hash); cp ca.pem certs/$hash.0
            printf "access_id_CA X509 '%s'\npos_rights globus CA:sign\ncond_subjects globus '\"/O=Grid/OU=Lab/*\"'\n" "$ca" > certs/$hash.signing_policy
            make() {
              openssl req -newkey rsa:2048 -nodes -sha256 -subj "$2" -keyout $1.key -out $1.csr 2>&1
              printf 'basicConstraints=CA:FALSE\nkeyUsage=digitalSignature,keyEncipherment\n%s\n' "$3" > $1.ext
              openssl x509 -req -in $1.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 30 -sha256 -extfile $1.ext -out $1.pem 2>&1
              chmod 600 $1.key
            }
            make host /O=Grid/OU=Lab/CN=localhost subjectAltName=DNS:localhost,IP:127.0.0.1
            make user "$USER_DN" ''
            make other /O=Grid/OU=Lab/CN=Other ''
            printf '"%s" jane\n' "$USER_DN" > grid-mapfile
            printf '"%s" %s\n' "$USER_DN" "$(id -un)" > grid-mapfile.unix
            X509_CERT_DIR=$PWD/certs X509_USER_CERT=$PWD/user.pem X509_USER_KEY=$PWD/user.key grid-proxy-init -rfc -bits 2048 -q -out proxy 2>&1
            X509_CERT_DIR=$PWD/certs X509_USER_CERT=$PWD/other.pem X509_USER_KEY=$PWD/other.key grid-proxy-init -rfc -bits 2048 -q -out other.proxy 2>&1
        "#;
        ok(&run(Command::new("sh").args(["-eu", "-c", script]).env("USER_DN", USER).current_dir(lab.0.path())));
        fs::set_permissions(lab.path("host.key"), fs::Permissions::from_mode(0o600)).unwrap();
        lab
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Gives a command this user's proxy, and no other credentials.
    pub fn with_proxy<'a>(&self, command: &'a mut Command, proxy: &str) -> &'a mut Command {
        command.env("HOME", "/nonexistent").env("X509_CERT_DIR", self.path("certs"));
        command.env("X509_USER_PROXY", self.path(proxy)).env("GLOBUS_HOSTNAME", "localhost")
    }
}
