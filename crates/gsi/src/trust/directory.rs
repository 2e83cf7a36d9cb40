//! Loads a directory of authorities, with hashed names (`HASH.0`, `HASH.signing_policy`, `HASH.r0`, as GCT
//! requires) or without (`NAME.pem`, `NAME.signing_policy`, `NAME.crl.pem`).
//!
//! The whole directory is loaded at once, because file names are not relied on: the subjects inside the files
//! relate authorities, policies and lists. Whoever can write to the directory decides who is trusted.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use rustls::pki_types::SignatureVerificationAlgorithm;
use rustls::pki_types::pem::SectionKind;

use super::policy::{MAX_POLICY, PolicyError, SigningPolicy};
use super::{AuthorityError, MissingPolicy, TrustStore};
use crate::certificate::{Certificate, CertificateError};
use crate::pem;

/// Most files of one directory that are read; the IGTF's has about a thousand.
pub const MAX_FILES: usize = 20_000;
/// Largest certificate file, in bytes.
pub const MAX_AUTHORITY_FILE: u64 = 4 * 1024 * 1024;
/// Largest revocation list, in bytes; those of large authorities have several millions.
pub const MAX_LIST_FILE: u64 = 64 * 1024 * 1024;

/// The reason why a directory, or a file in it, was not read.
#[derive(Debug, thiserror::Error)]
pub enum DirectoryError {
    /// Reading failed.
    #[error("{}: {error}", .path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// The directory has too many files.
    #[error("{}: holds more than {MAX_FILES} files", .0.display())]
    TooMany(PathBuf),
    /// The file is too large.
    #[error("{}: more than {limit} bytes", .path.display())]
    TooLong {
        /// The file.
        path: PathBuf,
        /// The size limit, in bytes.
        limit: u64,
    },
    /// The directory contains no authority.
    #[error("{}: holds no certificate of an authority (HASH.0 or NAME.pem)", .0.display())]
    Empty(PathBuf),
    /// The file is not PEM.
    #[error("{}: {problem}", .path.display())]
    Pem {
        /// The file.
        path: PathBuf,
        /// The problem.
        problem: String,
    },
    /// The file contains a malformed certificate.
    #[error("{}: {error}", .path.display())]
    Certificate {
        /// The file.
        path: PathBuf,
        /// The problem.
        error: CertificateError,
    },
    /// The certificate is not an authority's, or the revocation list is not usable.
    #[error("{}: {error}", .path.display())]
    Authority {
        /// The file.
        path: PathBuf,
        /// The problem.
        error: AuthorityError,
    },
    /// The file is not a signing policy.
    #[error(transparent)]
    Policy(#[from] PolicyError),
}

/// The content of a directory.
pub struct Loaded {
    /// Everything that could be read.
    pub store: TrustStore,
    /// Files that could not be read. Skipping one removes trust and adds none, unless it is a revocation
    /// list; the caller decides whether to continue ([`Loaded::strict`] does not).
    pub problems: Vec<DirectoryError>,
}

impl Loaded {
    /// Returns the store if every file could be read.
    ///
    /// # Errors
    /// The first [`DirectoryError`].
    pub fn strict(self) -> Result<TrustStore, DirectoryError> {
        match self.problems.into_iter().next() {
            Some(problem) => Err(problem),
            None => Ok(self.store),
        }
    }
}

/// The role of a file, by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Role {
    Authority,
    Policy,
    List,
}

/// Loads a directory.
///
/// # Errors
/// [`DirectoryError`] if it cannot be listed, or contains no authority; problems of single files are in
/// [`Loaded::problems`].
pub fn load(directory: &Path, missing_policy: MissingPolicy) -> Result<Loaded, DirectoryError> {
    let mut loaded = Loaded { store: TrustStore::new(missing_policy), problems: Vec::new() };
    for (path, role) in files(directory)? {
        if let Err(problem) = take(&mut loaded.store, &path, role) {
            loaded.problems.push(problem);
        }
    }
    if loaded.store.authorities() == 0 {
        let nothing = DirectoryError::Empty(directory.to_owned());
        return Err(loaded.problems.into_iter().next().unwrap_or(nothing));
    }
    Ok(loaded)
}

/// The revocation list files of a directory.
pub(super) fn lists(directory: &Path) -> Result<Vec<PathBuf>, DirectoryError> {
    let lists = files(directory)?.into_iter().filter(|(_, role)| *role == Role::List);
    Ok(lists.map(|(path, _)| path).collect())
}

/// The files of a directory with a known role, sorted.
fn files(directory: &Path) -> Result<Vec<(PathBuf, Role)>, DirectoryError> {
    let io = |error| DirectoryError::Io { path: directory.to_owned(), error };
    let mut files = Vec::new();
    for entry in fs::read_dir(directory).map_err(io)? {
        let path = entry.map_err(io)?.path();
        if let Some(role) = path.file_name().and_then(|name| role(&name.to_string_lossy())) {
            files.push((path, role));
        }
        if files.len() > MAX_FILES {
            return Err(DirectoryError::TooMany(directory.to_owned()));
        }
    }
    // A directory's order is arbitrary, and error reports should not be.
    files.sort();
    Ok(files)
}

fn role(name: &str) -> Option<Role> {
    let (stem, last) = name.rsplit_once('.')?;
    let number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    match last {
        "signing_policy" => Some(Role::Policy),
        "crl" => Some(Role::List),
        "pem" | "crt" if stem.ends_with(".crl") => Some(Role::List),
        "pem" | "crt" => Some(Role::Authority),
        _ if last.strip_prefix('r').is_some_and(number) => Some(Role::List),
        _ if number(last) => Some(Role::Authority),
        _ => None,
    }
}

fn take(store: &mut TrustStore, path: &Path, role: Role) -> Result<(), DirectoryError> {
    let authority = |error| DirectoryError::Authority { path: path.to_owned(), error };
    match role {
        Role::Authority => {
            let text = read(path, MAX_AUTHORITY_FILE)?;
            for der in blocks(&text, SectionKind::Certificate, path)? {
                let certificate = Certificate::parse(&der)
                    .map_err(|error| DirectoryError::Certificate { path: path.to_owned(), error })?;
                store.add_authority(&certificate).map_err(authority)?;
            }
        }
        Role::Policy => {
            let text = read(path, MAX_POLICY as u64)?;
            let text = String::from_utf8_lossy(&text);
            store.add_policy(SigningPolicy::parse(&text, &path.display().to_string())?);
        }
        Role::List => {
            let text = read(path, MAX_LIST_FILE)?;
            for der in blocks(&text, SectionKind::Crl, path)? {
                store.add_list(&der).map_err(authority)?;
            }
        }
    }
    Ok(())
}

/// Updates the store with the revocation lists of a changed file, and returns whether one of them took
/// effect. If one list of the file is not usable, none is taken.
pub(super) fn take_list(
    store: &mut TrustStore,
    path: &Path,
    algorithms: &[&dyn SignatureVerificationAlgorithm],
    now: i64,
) -> Result<bool, DirectoryError> {
    let text = read(path, MAX_LIST_FILE)?;
    let lists = blocks(&text, SectionKind::Crl, path)?;
    let lists = lists.iter().map(|der| store.newer_list(der, algorithms, now)).collect::<Result<Vec<_>, _>>();
    let lists = lists.map_err(|error| DirectoryError::Authority { path: path.to_owned(), error })?;
    let mut counts = false;
    for list in lists.into_iter().flatten() {
        store.put_list(list);
        counts = true;
    }
    Ok(counts)
}

/// The blocks of a PEM file, or the whole content of a DER file.
fn blocks(text: &[u8], kind: SectionKind, path: &Path) -> Result<Vec<Vec<u8>>, DirectoryError> {
    let problem = |problem| DirectoryError::Pem { path: path.to_owned(), problem };
    if text.first() == Some(&crate::der::SEQUENCE) {
        return Ok(vec![text.to_vec()]);
    }
    let blocks: Vec<Vec<u8>> = pem::blocks(text, kind).collect::<Result<_, _>>().map_err(problem)?;
    if blocks.is_empty() {
        return Err(problem(format!(
            "holds no {}",
            if kind == SectionKind::Crl { "revocation list" } else { "certificate" }
        )));
    }
    Ok(blocks)
}

/// Reads a whole file; longer ones than `limit` bytes are an error.
pub(crate) fn read(path: &Path, limit: u64) -> Result<Vec<u8>, DirectoryError> {
    let file = File::open(path).map_err(|error| DirectoryError::Io { path: path.to_owned(), error })?;
    read_file(file, path, limit)
}

/// As [`read`], for an open file.
pub(crate) fn read_file(file: File, path: &Path, limit: u64) -> Result<Vec<u8>, DirectoryError> {
    let io = |error| DirectoryError::Io { path: path.to_owned(), error };
    let mut text = Vec::new();
    file.take(limit + 1).read_to_end(&mut text).map_err(io)?;
    if text.len() as u64 > limit {
        return Err(DirectoryError::TooLong { path: path.to_owned(), limit });
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_names_determine_roles() {
        for (name, is) in [
            ("5ed36f68.0", Some(Role::Authority)),
            ("5ed36f68.12", Some(Role::Authority)),
            ("5ed36f68.r0", Some(Role::List)),
            ("5ed36f68.signing_policy", Some(Role::Policy)),
            ("Example.pem", Some(Role::Authority)),
            ("Example.crl.pem", Some(Role::List)),
            ("Example.signing_policy", Some(Role::Policy)),
            ("Example.crl_url", None),
            ("Example.info", None),
            ("Example.namespaces", None),
            ("README", None),
            ("5ed36f68.r", None),
        ] {
            assert_eq!(role(name), is, "{name}");
        }
    }
}
