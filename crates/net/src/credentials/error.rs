//! What can be wrong with credentials.

use std::io;
use std::path::PathBuf;

/// Credentials that cannot be used. Each is one sentence that names the file and shows nothing of a key.
#[derive(Debug, thiserror::Error)]
pub enum CredentialsError {
    /// The file cannot be read.
    #[error("cannot read {file}: {}", crate::reason(source))]
    Read {
        /// The file.
        file: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The file cannot be written.
    #[error("cannot write {file}: {}", crate::reason(source))]
    Write {
        /// The file.
        file: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The file is too large to be one.
    #[error("{file} is larger than {max} bytes; expected {expected} in PEM")]
    Large {
        /// The file.
        file: PathBuf,
        /// The most that is read.
        max: u64,
        /// What should be in it.
        expected: &'static str,
    },
    /// Others than its owner may read or write the key.
    #[error("{file} holds a private key that others than its owner can read (mode {mode:03o}); run: chmod 600 {file}")]
    Exposed {
        /// The file.
        file: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// The file is not PEM all through.
    #[error("{file}, line {line}: {problem}; expected {expected} in PEM")]
    Pem {
        /// The file.
        file: PathBuf,
        /// The line, from 1: the one that is wrong, or the first of the section that is.
        line: usize,
        /// What is wrong.
        problem: &'static str,
        /// What should be in the file.
        expected: &'static str,
    },
    /// The file holds nothing of what it should.
    #[error("{file} holds {found}; expected {expected} in PEM, which begins with \"-----BEGIN {label}-----\"")]
    Absent {
        /// The file.
        file: PathBuf,
        /// What is there instead.
        found: &'static str,
        /// What should be in it.
        expected: &'static str,
        /// How that begins.
        label: &'static str,
    },
    /// The key is encrypted.
    #[error(
        "the private key in {file} is encrypted; expected one without a passphrase, as this writes it: \
         openssl pkey -in {file} -out NEW.pem"
    )]
    Encrypted {
        /// The file.
        file: PathBuf,
    },
    /// A certificate or key is not one that can be used.
    #[error("{file}: {problem}")]
    Unusable {
        /// The file.
        file: PathBuf,
        /// Why, and what was expected.
        problem: String,
    },
    /// The key is another certificate's.
    #[error("{key} is not the private key of the certificate in {certificate}")]
    Mismatch {
        /// The certificate.
        certificate: PathBuf,
        /// The key.
        key: PathBuf,
    },
    /// A name that no certificate can carry.
    #[error("\"{name}\" is not a DNS name or an IP address")]
    Name {
        /// The name.
        name: String,
    },
    /// A key or certificate could not be made.
    #[error("cannot make a certificate: {0}")]
    Make(String),
}
