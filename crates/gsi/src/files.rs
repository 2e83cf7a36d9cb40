//! The usual file locations of Grid tools for credentials and trust, and functions to read them.

use std::ffi::OsString;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::{fs, io};

use rustls::crypto::CryptoProvider;
use zeroize::Zeroizing;

use crate::credential::{Credential, CredentialError};
use crate::gridmap::{GridMap, GridMapError};
use crate::trust::directory::{DirectoryError, read, read_file};

/// Largest file with a credential, in bytes.
pub const MAX_CREDENTIAL_FILE: u64 = 4 * 1024 * 1024;

/// The files of one user or service. Environment variables take precedence over the user's files, and those
/// over the host's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Places {
    /// The proxy: `X509_USER_PROXY`, or `/tmp/x509up_uUID`.
    pub proxy: PathBuf,
    /// Certificate and key: `X509_USER_CERT` and `X509_USER_KEY`, or those in `~/.globus`.
    pub user: (PathBuf, PathBuf),
    /// The host's: `/etc/grid-security/hostcert.pem` and `hostkey.pem`.
    pub host: (PathBuf, PathBuf),
    /// Authorities: `X509_CERT_DIR`, or the first existing one of `~/.globus/certificates` and
    /// `/etc/grid-security/certificates`.
    pub authorities: Vec<PathBuf>,
    /// `GRIDMAP`, or `/etc/grid-security/grid-mapfile`.
    pub gridmap: PathBuf,
}

/// The reason why a file was not read or written.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// Reading failed, or the file is too long.
    #[error(transparent)]
    Read(#[from] DirectoryError),
    /// Users other than the owner may read the private key.
    #[error("{0}: holds a private key, but its mode {mode:04o} lets other users access it; run: chmod 600 {0}", .path.display())]
    Mode {
        /// The file.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// The file contains no usable credential.
    #[error(transparent)]
    Credential(#[from] CredentialError),
    /// The file is no grid-mapfile.
    #[error(transparent)]
    GridMap(#[from] GridMapError),
    /// Writing failed.
    #[error("{}: {error}", .path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
}

impl Places {
    /// The usual locations, given access to the environment, the user's id and home directory.
    pub fn usual(environment: impl Fn(&str) -> Option<OsString>, uid: u32, home: Option<&Path>) -> Self {
        let set = |name| environment(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let machine = Path::new("/etc/grid-security");
        let globus = home.map(|home| home.join(".globus"));
        let own = |name| globus.as_deref().unwrap_or(machine).join(name);
        let authorities = match set("X509_CERT_DIR") {
            Some(directory) => vec![directory],
            None => globus.iter().map(|own| own.join("certificates")).chain([machine.join("certificates")]).collect(),
        };
        Self {
            proxy: set("X509_USER_PROXY").unwrap_or_else(|| PathBuf::from(format!("/tmp/x509up_u{uid}"))),
            user: (
                set("X509_USER_CERT").unwrap_or_else(|| own("usercert.pem")),
                set("X509_USER_KEY").unwrap_or_else(|| own("userkey.pem")),
            ),
            host: (machine.join("hostcert.pem"), machine.join("hostkey.pem")),
            authorities,
            gridmap: set("GRIDMAP").unwrap_or_else(|| machine.join("grid-mapfile")),
        }
    }
}

/// Reads a proxy file, with certificates and key in one.
///
/// # Errors
/// [`FileError`]; a key that other users may read is refused.
pub fn credential(path: &Path, provider: &CryptoProvider) -> Result<Credential, FileError> {
    let text = secret(path)?;
    Ok(Credential::from_pem(&text, &path.display().to_string(), provider)?)
}

/// Reads a certificate chain and its key from two files.
///
/// # Errors
/// [`FileError`]; a key that other users may read is refused.
pub fn credential_of_two(certificate: &Path, key: &Path, provider: &CryptoProvider) -> Result<Credential, FileError> {
    let certificates = read(certificate, MAX_CREDENTIAL_FILE)?;
    let secret = secret(key)?;
    let (certificate, key) = (certificate.display().to_string(), key.display().to_string());
    Ok(Credential::from_two_pems((&certificates, &certificate), (&secret, &key), provider)?)
}

/// Writes a proxy file that only its owner can read, and replaces an existing one.
///
/// # Errors
/// [`FileError::Write`].
pub fn save(credential: &Credential, path: &Path) -> Result<(), FileError> {
    let write = || {
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(format!(".{}.new", std::process::id()));
        let new = path.with_file_name(name);
        // A new file, so that no other process has it open, and created without following a link that someone
        // may have planted.
        let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
        file.write_all(credential.to_pem().as_bytes()).and_then(|()| fs::rename(&new, path)).inspect_err(|_| {
            // The original error is reported; a leftover file would add nothing to it.
            let _ = fs::remove_file(&new);
        })
    };
    write().map_err(|error| FileError::Write { path: path.to_owned(), error })
}

/// Reads a grid-mapfile.
///
/// # Errors
/// [`FileError`].
pub fn gridmap(path: &Path) -> Result<GridMap, FileError> {
    let text = read(path, crate::gridmap::MAX_FILE as u64)?;
    Ok(GridMap::parse(&String::from_utf8_lossy(&text), &path.display().to_string())?)
}

/// Reads a file with a private key into memory that is wiped when dropped.
fn secret(path: &Path) -> Result<Zeroizing<Vec<u8>>, FileError> {
    let io = |error| DirectoryError::Io { path: path.to_owned(), error };
    let file = fs::File::open(path).map_err(io)?;
    let mode = file.metadata().map_err(io)?.mode() & 0o7777;
    if mode & 0o077 != 0 {
        return Err(FileError::Mode { path: path.to_owned(), mode });
    }
    Ok(Zeroizing::new(read_file(file, path, MAX_CREDENTIAL_FILE)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn environment_takes_precedence() {
        let none = Places::usual(|_| None, 1000, Some(Path::new("/home/jane")));
        assert_eq!(none.proxy, Path::new("/tmp/x509up_u1000"));
        assert_eq!(none.user.1, Path::new("/home/jane/.globus/userkey.pem"));
        assert_eq!(none.authorities[0], Path::new("/home/jane/.globus/certificates"));
        let all = Places::usual(|name| Some(format!("/x/{name}").into()), 1000, None);
        assert_eq!(all.proxy, Path::new("/x/X509_USER_PROXY"));
        assert_eq!(all.authorities, [Path::new("/x/X509_CERT_DIR")]);
        assert_eq!(all.gridmap, Path::new("/x/GRIDMAP"));
    }
}
