//! Errors of credentials.

use std::io;
use std::path::PathBuf;

/// Unusable credentials. Each message is one sentence that names the file and reveals nothing of a key.
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
    /// The file is too large for credentials.
    #[error("{file} is larger than {max} bytes; expected {expected} in PEM")]
    Large {
        /// The file.
        file: PathBuf,
        /// The size limit, in bytes.
        max: u64,
        /// The expected content.
        expected: &'static str,
    },
    /// Users other than the owner may read or write the private key.
    #[error("{file} holds a private key that others than its owner can read (mode {mode:03o}); run: chmod 600 {file}")]
    Exposed {
        /// The file.
        file: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// The file contains malformed PEM.
    #[error("{file}, line {line}: {problem}; expected {expected} in PEM")]
    Pem {
        /// The file.
        file: PathBuf,
        /// The faulty line, or the first line of the faulty section, counted from 1.
        line: usize,
        /// The problem.
        problem: &'static str,
        /// The expected content.
        expected: &'static str,
    },
    /// The file lacks the expected content.
    #[error("{file} holds {found}; expected {expected} in PEM, which begins with \"-----BEGIN {label}-----\"")]
    Absent {
        /// The file.
        file: PathBuf,
        /// What the file contains instead.
        found: &'static str,
        /// The expected content.
        expected: &'static str,
        /// The PEM label of the expected content.
        label: &'static str,
    },
    /// The private key is encrypted.
    #[error(
        "the private key in {file} is encrypted; expected one without a passphrase, as this writes it: \
         openssl pkey -in {file} -out NEW.pem"
    )]
    Encrypted {
        /// The file.
        file: PathBuf,
    },
    /// The system has no authorities of web servers.
    #[error(
        "this system has no certificates of authorities (Debian: apt install ca-certificates); expected them, or authorities = \"FILE\""
    )]
    NoAuthorities,
    /// A certificate or key is well-formed but cannot be used.
    #[error("{file}: {problem}")]
    Unusable {
        /// The file.
        file: PathBuf,
        /// The problem, and what was expected.
        problem: String,
    },
    /// The private key does not belong to the certificate.
    #[error("{key} is not the private key of the certificate in {certificate}")]
    Mismatch {
        /// The certificate.
        certificate: PathBuf,
        /// The key.
        key: PathBuf,
    },
    /// A certificate cannot carry the name.
    #[error("\"{name}\" is not a DNS name or an IP address")]
    Name {
        /// The name.
        name: String,
    },
    /// Making a key or certificate failed.
    #[error("cannot make a certificate: {0}")]
    Make(String),
}
