//! What a pattern names, as shells expand it: component by component, hidden names only where the pattern shows its dot.

use super::filter::{PatternError, compile, matches};
use crate::error::Error;
use crate::key::{Key, KeyError};
use crate::store::{Kind, Meta, Store};
use globset::GlobMatcher;

/// How many names a pattern may have matched at any level.
const MAX_MATCHES: usize = 1 << 20;

/// A path with `*`, `?`, `[…]` or `{…}` in some of its components.
#[derive(Debug, Clone)]
pub struct Pattern {
    parts: Vec<Part>,
}

#[derive(Debug, Clone)]
enum Part {
    Literal(Vec<u8>),
    Glob { glob: GlobMatcher, hidden: bool },
}

/// Whether `path` has any character that makes it a pattern.
pub fn is_pattern(path: &str) -> bool {
    path.contains(['*', '?', '[', '{'])
}

impl Pattern {
    /// Reads a pattern; a backslash takes the meaning of the character that follows.
    ///
    /// # Errors
    /// A component of it is no pattern, or is `**`, for which there is recursion.
    pub fn parse(path: &str) -> Result<Self, PatternError> {
        let part = |part: &str| {
            if part.contains("**") {
                return Err(PatternError::new(
                    path,
                    "** is for filters; a directory is carried with all that is in it",
                ));
            }
            if !is_pattern(part) {
                return Ok(Part::Literal(part.replace('\\', "").into_bytes()));
            }
            Ok(Part::Glob { glob: compile(path, part)?, hidden: part.starts_with('.') })
        };
        let parts = path.split('/').filter(|part| !part.is_empty()).map(part).collect::<Result<_, _>>()?;
        Ok(Self { parts })
    }
}

/// What there is in `store` that `pattern` names, in the order of names.
///
/// # Errors
/// A directory on the way cannot be read, or too much matches.
pub async fn expand(store: &dyn Store, pattern: &Pattern) -> Result<Vec<(Key, Meta)>, Error> {
    let mut found = vec![Key::ROOT];
    for part in &pattern.parts {
        let mut next = Vec::new();
        for key in &found {
            match part {
                Part::Literal(name) => next.extend(key.join(name)),
                Part::Glob { glob, hidden } => matching(store, key, glob, *hidden, &mut next).await?,
            }
            if next.len() > MAX_MATCHES {
                let limit = MAX_MATCHES as u64;
                return Err(Error::Limit { name: store.name(), what: "the number of names that match", limit });
            }
        }
        found = next;
    }
    found.sort();
    let mut all = Vec::new();
    for key in found {
        match store.stat(&key).await {
            Ok(meta) => all.push((key, meta)),
            Err(Error::NotFound { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(all)
}

/// Adds to `found` what in the directory `key` matches; nothing if it is none.
async fn matching(
    store: &dyn Store,
    key: &Key,
    glob: &GlobMatcher,
    hidden: bool,
    found: &mut Vec<Key>,
) -> Result<(), Error> {
    match store.stat(key).await {
        Ok(meta) if meta.kind == Kind::Dir => {}
        Ok(_) | Err(Error::NotFound { .. }) => return Ok(()),
        Err(error) => return Err(error),
    }
    let mut listing = store.list(key).await?;
    loop {
        let page = listing.more().await?;
        if page.is_empty() {
            return Ok(());
        }
        let shown = page.iter().filter(|entry| hidden || !entry.name.starts_with(b"."));
        let names = shown.filter(|entry| matches(glob, &entry.name));
        found.extend(names.map(|entry| key.join(&entry.name)).filter_map(Result::<Key, KeyError>::ok));
        if found.len() > MAX_MATCHES {
            return Ok(());
        }
    }
}
