//! Expands patterns as shells do: component by component. Hidden names match only a leading dot.

use super::filter::{PatternError, compile, matches};
use crate::error::Error;
use crate::key::{Key, KeyError};
use crate::store::{Kind, Meta, Store};
use globset::GlobMatcher;

/// Most matches at any level.
const MAX_MATCHES: usize = 1 << 20;

/// A path with `*`, `?`, `[…]` or `{…}` in some components.
#[derive(Debug, Clone)]
pub struct Pattern {
    parts: Vec<Part>,
}

#[derive(Debug, Clone)]
enum Part {
    Literal(Vec<u8>),
    Glob { glob: GlobMatcher, hidden: bool },
}

/// Whether `path` is a pattern.
pub fn is_pattern(path: &str) -> bool {
    path.contains(['*', '?', '[', '{'])
}

impl Pattern {
    /// Parses a pattern. A backslash quotes the next character.
    ///
    /// # Errors
    /// A component is invalid, or is `**`, in place of which there is recursion.
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

/// The matches of `pattern` in `store`, sorted.
///
/// # Errors
/// A directory on the path cannot be read, or too many names match.
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

/// Adds the matches in the directory `key` to `found`. Nothing if it is no directory.
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
