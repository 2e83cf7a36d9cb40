//! WLCG Bearer Token Discovery 1.0: where the token of a user is. In this order:
//!
//! 1. the value of `BEARER_TOKEN`;
//! 2. the file that `BEARER_TOKEN_FILE` names;
//! 3. `bt_uUID` in `XDG_RUNTIME_DIR`;
//! 4. `/tmp/bt_uUID`.
//!
//! The files of 3 and 4 may be missing. Files are read anew each time, since tokens live for an hour or less.

use crate::private_file;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::{fmt, fs, io};

/// Longest token, in bytes.
const TOKEN_MAX: usize = 12 << 10;
/// The variable with a token.
const VALUE: &str = "BEARER_TOKEN";
/// The variable that names a file with one.
const FILE: &str = "BEARER_TOKEN_FILE";

/// Where a process looks for a token. Debug output has no token.
#[derive(Clone, PartialEq, Eq)]
pub struct BearerPlaces {
    value: Option<String>,
    /// Files, and whether each has to be there.
    files: Vec<(PathBuf, bool)>,
}

impl fmt::Debug for BearerPlaces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BearerPlaces").field("files", &self.files).finish_non_exhaustive()
    }
}

/// Why a token cannot be used. No text has anything of it.
#[derive(Debug, thiserror::Error)]
pub enum BearerError {
    /// It cannot be read.
    #[error("{file}: {source}; expected the file with a bearer token")]
    Io {
        /// The file.
        file: String,
        /// Why.
        source: io::Error,
    },
    /// Others could read it, or it is another user's.
    #[error(
        "{file}: {whose} (mode {mode:o}); expected a file of this user with mode 600, and a new token if others may have read it"
    )]
    Public {
        /// The file.
        file: String,
        /// What is wrong.
        whose: &'static str,
        /// Its permissions.
        mode: u32,
    },
    /// It is no token.
    #[error("{place}: expected one bearer token of at most 12 KiB, and nothing else")]
    Malformed {
        /// The file or variable.
        place: String,
    },
}

impl BearerPlaces {
    /// The places of this process's user. `lookup` is usually [`environment::variable`](crate::environment::variable).
    pub fn of(lookup: impl Fn(&str) -> Option<String>) -> Self {
        let given = |name: &str| lookup(name).filter(|value| !value.is_empty());
        if let Some(value) = given(VALUE) {
            return Self { value: Some(value), files: Vec::new() };
        }
        if let Some(file) = given(FILE) {
            // A process may change its directory later.
            let file = std::path::absolute(&file).unwrap_or_else(|_| file.into());
            return Self { value: None, files: vec![(file, true)] };
        }
        // What this process owns, whoever that is, tells its user.
        let Ok(own) = fs::metadata("/proc/self") else { return Self { value: None, files: Vec::new() } };
        let name = format!("bt_u{}", own.uid());
        let directories = given("XDG_RUNTIME_DIR").map(PathBuf::from).into_iter().chain([PathBuf::from("/tmp")]);
        Self { value: None, files: directories.map(|directory| (directory.join(&name), false)).collect() }
    }

    /// What tells apart processes that look at different places, without anything of a token.
    pub fn source(lookup: impl Fn(&str) -> Option<String>) -> String {
        let given = |name: &str| lookup(name).filter(|value| !value.is_empty());
        match (given(VALUE), given(FILE)) {
            (Some(value), _) => format!("value {:016x}", hash_of(&value)),
            (None, Some(file)) => {
                format!("file {}", std::path::absolute(&file).unwrap_or_else(|_| file.into()).display())
            }
            (None, None) => String::new(),
        }
    }

    /// Reads the token that is there now. `None` if there is none.
    ///
    /// # Errors
    /// [`BearerError`].
    pub fn read(&self) -> Result<Option<String>, BearerError> {
        if let Some(value) = &self.value {
            return token(value, || VALUE.to_owned()).map(Some);
        }
        for (file, has_to_be_there) in &self.files {
            match Self::read_file(file)? {
                None if *has_to_be_there => {
                    let (file, source) = (file.display().to_string(), io::ErrorKind::NotFound.into());
                    return Err(BearerError::Io { file, source });
                }
                None => {}
                found => return Ok(found),
            }
        }
        Ok(None)
    }

    fn read_file(path: &Path) -> Result<Option<String>, BearerError> {
        let file = || path.display().to_string();
        // Where everybody can write, somebody may have put a link.
        let read = if path.starts_with("/tmp") { private_file::read_no_link } else { private_file::read };
        let found = read(path).map_err(|source| BearerError::Io { file: file(), source })?;
        let Some(found) = found else { return Ok(None) };
        let own = fs::metadata("/proc/self").map(|own| own.uid());
        if own.is_ok_and(|own| own != found.owner && found.owner != 0) {
            return Err(BearerError::Public { file: file(), whose: "it is another user's", mode: found.mode });
        }
        if found.mode & 0o077 != 0 {
            return Err(BearerError::Public { file: file(), whose: "others can read it", mode: found.mode });
        }
        token(&found.text, file).map(Some)
    }
}

fn hash_of(value: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// The token in a text, which may have white space around it (RFC 6750 §2.1).
fn token(text: &str, place: impl Fn() -> String) -> Result<String, BearerError> {
    let token = text.trim();
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~+/=".contains(&byte);
    let is_token = !token.is_empty() && token.len() <= TOKEN_MAX && token.bytes().all(is_plain);
    if is_token { Ok(token.to_owned()) } else { Err(BearerError::Malformed { place: place() }) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn places(variables: &[(&str, &str)]) -> BearerPlaces {
        BearerPlaces::of(|name| variables.iter().find(|(own, _)| *own == name).map(|(_, value)| (*value).to_owned()))
    }

    fn write(path: &Path, text: &str, mode: u32) {
        fs::write(path, text).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn places_are_looked_at_in_order() {
        let dir = tempfile::tempdir().unwrap();
        let uid = fs::metadata(dir.path()).unwrap().uid();
        let (own, runtime) = (dir.path().join("own"), dir.path().join(format!("bt_u{uid}")));
        let (own_text, dir_text) = (own.to_str().unwrap(), dir.path().to_str().unwrap());
        let all = [(VALUE, "a.b.c"), (FILE, own_text), ("XDG_RUNTIME_DIR", dir_text)];
        write(&own, " d.e.f\n", 0o600);
        write(&runtime, "g.h.i\n", 0o400);
        assert_eq!(places(&all).read().unwrap().as_deref(), Some("a.b.c"));
        assert_eq!(places(&all[1..]).read().unwrap().as_deref(), Some("d.e.f"));
        assert_eq!(places(&all[2..]).read().unwrap().as_deref(), Some("g.h.i"));
        // Files are read anew.
        let places = places(&all[1..]);
        write(&own, "j.k.l", 0o600);
        assert_eq!(places.read().unwrap().as_deref(), Some("j.k.l"));
        fs::remove_file(&own).unwrap();
        assert!(matches!(places.read(), Err(BearerError::Io { .. })));
    }

    #[test]
    fn link_where_everybody_can_write_is_not_followed() {
        let dir = tempfile::tempdir_in("/tmp").unwrap();
        let (file, link) = (dir.path().join("token"), dir.path().join("link"));
        write(&file, "a.b.c", 0o600);
        std::os::unix::fs::symlink(&file, &link).unwrap();
        assert!(matches!(places(&[(FILE, link.to_str().unwrap())]).read(), Err(BearerError::Io { .. })));
        assert_eq!(places(&[(FILE, file.to_str().unwrap())]).read().unwrap().as_deref(), Some("a.b.c"));
    }

    #[test]
    fn files_that_others_can_read_or_without_a_token_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("token");
        let places = places(&[(FILE, file.to_str().unwrap())]);
        write(&file, "a.b.c", 0o644);
        assert!(matches!(places.read(), Err(BearerError::Public { mode: 0o644, .. })));
        for text in ["", "\n", "a.b.c d", "a\nb", "ä", &"x".repeat(TOKEN_MAX + 1)] {
            write(&file, text, 0o600);
            let error = places.read().unwrap_err();
            assert!(matches!(error, BearerError::Malformed { .. }), "{error}");
        }
        assert!(!format!("{:?}", self::places(&[(VALUE, "secret.secret.secret")])).contains("secret"));
    }
}
