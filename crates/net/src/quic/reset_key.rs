//! The key of stateless resets (RFC 9000, section 10.3), kept across restarts.
//!
//! A restarted gateway knows nothing of its former connections. Its peers would keep sending until their idle
//! time-out. With the previous key it recognises its own connection ids and answers with the token that it
//! once issued for each: a peer then learns at once that the connection, and every session on it, is gone.
//!
//! A holder of the key can end the gateway's connections, so only the owner may read the file.

use quinn::EndpointConfig;
use quinn_proto::HashedConnectionIdGenerator;
use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};
use std::fs::{self, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;

/// Length of the secret from which the keys are derived, in bytes.
const SECRET: usize = 32;

/// The key; see the module documentation.
#[derive(Clone)]
pub struct ResetKey {
    reset: hmac::Key,
    /// Connection ids carry a checksum under this key, so that only ids of this gateway trigger a reset.
    ids: u64,
}

impl ResetKey {
    /// Makes a random key, for an endpoint that does not survive a restart.
    ///
    /// # Errors
    /// When the system has no random bytes.
    pub fn random() -> io::Result<Self> {
        let mut secret = [0; SECRET];
        SystemRandom::new().fill(&mut secret).map_err(|_| io::Error::other("the system has no random bytes"))?;
        Ok(Self::derive(&secret))
    }

    /// Loads the key from the file at `path`, or creates the file.
    ///
    /// # Errors
    /// When the file cannot be read or created, has other content, or users other than its owner may read it.
    pub fn load_or_create(path: &Path) -> io::Result<Self> {
        match fs::File::open(path) {
            Ok(file) => Self::load(file),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Self::create(path),
            Err(error) => Err(error),
        }
        .map_err(|error| io::Error::new(error.kind(), format!("{}: {}", path.display(), crate::reason(&error))))
    }

    fn load(mut file: fs::File) -> io::Result<Self> {
        let mode = file.metadata()?.permissions().mode();
        if mode & 0o077 != 0 {
            let text = format!("others may read this key (mode {:03o}, not 600)", mode & 0o777);
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
        }
        let mut secret = [0; SECRET + 1];
        let mut len = 0;
        while len < secret.len() {
            match file.read(&mut secret[len..])? {
                0 => break,
                n => len += n,
            }
        }
        match secret[..len].try_into() {
            Ok(secret) => Ok(Self::derive(secret)),
            Err(_) => Err(io::Error::new(io::ErrorKind::InvalidData, format!("not the {SECRET} bytes of a key"))),
        }
    }

    /// Writes to a temporary name first, so that a power failure leaves no partial key.
    fn create(path: &Path) -> io::Result<Self> {
        let mut secret = [0; SECRET];
        SystemRandom::new().fill(&mut secret).map_err(|_| io::Error::other("the system has no random bytes"))?;
        let mut draft = path.as_os_str().to_owned();
        draft.push(format!(".{}", std::process::id()));
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&draft)?;
        file.write_all(&secret)?;
        file.sync_all()?;
        fs::rename(&draft, path)?;
        Ok(Self::derive(&secret))
    }

    fn derive(secret: &[u8; SECRET]) -> Self {
        let secret = hmac::Key::new(hmac::HMAC_SHA256, secret);
        let reset = hmac::sign(&secret, b"phoebus quic stateless reset");
        let ids = hmac::sign(&secret, b"phoebus quic connection id");
        let ids = ids.as_ref().iter().take(8).fold(0, |key, byte| (key << 8) | u64::from(*byte));
        Self { reset: hmac::Key::new(hmac::HMAC_SHA256, reset.as_ref()), ids }
    }

    /// The configuration of an endpoint with this key.
    pub(super) fn endpoint(&self) -> EndpointConfig {
        let mut config = EndpointConfig::new(Arc::new(self.reset.clone()));
        let ids = self.ids;
        config.cid_generator(move || Box::new(HashedConnectionIdGenerator::from_key(ids)));
        config
    }
}

impl std::fmt::Debug for ResetKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ResetKey")
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed step fails the test")]
mod tests {
    use super::*;

    #[test]
    fn key_survives_a_restart_and_is_private_to_its_owner() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("reset.key");
        let made = ResetKey::load_or_create(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let read = ResetKey::load_or_create(&path).unwrap();
        assert_eq!(made.ids, read.ids);
        assert_eq!(hmac::sign(&made.reset, b"x").as_ref(), hmac::sign(&read.reset, b"x").as_ref());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "no draft is left");

        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        assert!(ResetKey::load_or_create(&path).unwrap_err().to_string().contains("mode 640, not 600"));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        fs::write(&path, "short").unwrap();
        assert!(ResetKey::load_or_create(&path).unwrap_err().to_string().contains("not the 32 bytes of a key"));
    }
}
