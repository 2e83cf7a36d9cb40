//! A place in a store.

use phoebus_files::Error;
use phoebus_files::key::Key;
use phoebus_files::plan::{Pattern, expand};
use phoebus_files::store::{Kind, Meta, Store};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

/// A place in a store.
#[derive(Debug, Clone)]
pub struct Place {
    /// The store. Two places are in the same one exactly if these are the same pointer.
    pub store: Arc<dyn Store>,
    /// The key in it.
    pub key: Key,
    /// Whether it was written with a trailing slash, or as `.`: then a directory is meant, with its content.
    pub inside: bool,
    /// The key as written, relative to the store's root, if it may be a pattern.
    pub(crate) pattern: Option<String>,
}

impl Place {
    /// Metadata, if it exists.
    pub async fn meta(&self) -> Result<Option<Meta>, Error> {
        match self.store.stat(&self.key).await {
            Ok(meta) => Ok(Some(meta)),
            Err(Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Whether it is an existing directory.
    pub async fn is_dir(&self) -> Result<bool, Error> {
        Ok(self.meta().await?.is_some_and(|meta| meta.kind == Kind::Dir))
    }

    /// The keys that it stands for: itself, or if that does not exist and it is a pattern, all matches.
    ///
    /// # Errors
    /// Nothing matches, or a directory cannot be read.
    pub async fn all(&self) -> Result<Vec<Key>, Error> {
        let Some(pattern) = &self.pattern else { return Ok(vec![self.key.clone()]) };
        if self.meta().await?.is_some() {
            return Ok(vec![self.key.clone()]);
        }
        let request =
            |reason: String| Error::Store { name: self.name(), reason, kind: phoebus_files::ErrorKind::Request };
        let pattern = Pattern::parse(pattern).map_err(|error| request(error.to_string()))?;
        let found = expand(&*self.store, &pattern).await?;
        if found.is_empty() {
            let reason = "nothing matches".to_owned();
            return Err(Error::Store { name: self.name(), reason, kind: phoebus_files::ErrorKind::NotFound });
        }
        Ok(found.into_iter().map(|(key, _)| key).collect())
    }

    /// Its name in messages.
    pub fn name(&self) -> String {
        shown(&*self.store, &self.key)
    }

    /// Whether it was written as a pattern.
    pub fn is_pattern(&self) -> bool {
        self.pattern.is_some()
    }
}

/// The name of `key` of `store` in messages: a path, or a URL.
pub fn shown(store: &dyn Store, key: &Key) -> String {
    let store = store.name();
    format!("{}/{key}", store.strip_prefix("file://").unwrap_or(&store))
}

/// Absolute, with `..` resolved as the system does.
pub(crate) fn whole_path(path: &Path) -> std::io::Result<PathBuf> {
    if path.as_os_str().is_empty() {
        return Err(std::io::Error::new(std::io::ErrorKind::InvalidInput, "a path was expected that is not empty"));
    }
    let whole = std::path::absolute(path)?;
    let parts: Vec<Component<'_>> = whole.components().collect();
    let Some(last) = parts.iter().rposition(|part| *part == Component::ParentDir) else { return Ok(whole) };
    let begin: PathBuf = parts[..=last].iter().collect();
    let rest: PathBuf = parts[last + 1..].iter().collect();
    Ok(begin.canonicalize()?.join(rest))
}

/// `text`, which is the path `path`, as an absolute pattern. Special characters of the working directory's own name are
/// quoted.
pub(crate) fn pattern_of(text: &str, path: &Path) -> Option<String> {
    if path.is_absolute() {
        return Some(text.to_owned());
    }
    let here = std::env::current_dir().ok()?.into_os_string().into_string().ok()?;
    Some(format!("{}/{text}", escaped(&here)))
}

/// Quotes `text` as a pattern.
pub(crate) fn escaped(text: &str) -> String {
    text.chars().flat_map(|c| "*?[]{}\\".contains(c).then_some('\\').into_iter().chain(Some(c))).collect()
}

pub(crate) fn is_inside(path: &Path) -> bool {
    let bytes = path.as_os_str().as_bytes();
    let last = bytes.rsplit(|&b| b == b'/').next().unwrap_or_default();
    [&b""[..], b".", b".."].contains(&last)
}
