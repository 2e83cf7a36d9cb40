//! Filters of names in a tree.

use crate::key::Key;
use crate::store::{Meta, Time};
use globset::{GlobBuilder, GlobMatcher};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// An invalid pattern.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("\"{pattern}\" is no pattern: {reason}")]
pub struct PatternError {
    pattern: String,
    reason: String,
}

impl PatternError {
    pub(super) fn new(pattern: &str, reason: impl Into<String>) -> Self {
        Self { pattern: pattern.chars().take(200).collect(), reason: reason.into() }
    }
}

/// Include and exclude rules; the first match counts.
///
/// A pattern without a slash matches names at any depth; with a slash, paths from the top of the tree (a leading `/`
/// does only that); with a trailing slash, only directories. `*` and `?` stay within a name, `**` does not; `[a-z]` and
/// `{a,b}` are as in shells. A rule for a directory holds for its content, unless another rule matches that; but an
/// excluded directory is not entered. Without a match, an object is left out if all rules include, and taken otherwise.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    rules: Vec<Rule>,
    /// Name of directories that are never taken, whatever the rules.
    pub never: Option<Vec<u8>>,
    /// Limits of size and age.
    pub bounds: Bounds,
}

/// Limits of size and age, for files only. Files of unknown size or time are taken.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Bounds {
    /// Smallest size in bytes.
    pub min_size: Option<u64>,
    /// Largest size in bytes.
    pub max_size: Option<u64>,
    /// Earliest time of modification.
    pub from: Option<Time>,
    /// Latest time of modification.
    pub to: Option<Time>,
}

impl Bounds {
    /// Whether the file `meta` is within the limits.
    pub fn take(&self, meta: &Meta) -> bool {
        let size = |bound: Option<u64>, fits: fn(u64, u64) -> bool| match (meta.size, bound) {
            (Some(size), Some(bound)) => fits(size, bound),
            _ => true,
        };
        let time = |bound: Option<Time>, fits: fn(Time, Time) -> bool| match (meta.modified, bound) {
            (Some(time), Some(bound)) => fits(time, bound),
            _ => true,
        };
        size(self.min_size, |size, least| size >= least)
            && size(self.max_size, |size, most| size <= most)
            && time(self.from, |time, first| !first.is_after(time))
            && time(self.to, |time, last| !time.is_after(last))
    }
}

#[derive(Debug, Clone)]
struct Rule {
    includes: bool,
    dirs_only: bool,
    whole_path: bool,
    glob: GlobMatcher,
}

impl Filter {
    /// Adds an include rule.
    ///
    /// # Errors
    /// The pattern is invalid.
    pub fn include(&mut self, pattern: &str) -> Result<(), PatternError> {
        self.add(pattern, true)
    }

    /// Adds an exclude rule.
    ///
    /// # Errors
    /// The pattern is invalid.
    pub fn exclude(&mut self, pattern: &str) -> Result<(), PatternError> {
        self.add(pattern, false)
    }

    /// Whether `key`, relative to the top of the tree, is taken; or entered, if it is a directory.
    pub fn takes(&self, key: &Key, is_dir: bool) -> bool {
        let (mut key, mut dir) = (key.clone(), is_dir);
        let never = self.never.as_deref();
        if never.is_some_and(|never| key.parent().parts().chain(is_dir.then(|| key.name())).any(|name| name == never)) {
            return false;
        }
        while !key.is_root() {
            if let Some(rule) = self.rules.iter().find(|rule| rule.matches(&key, dir)) {
                return rule.includes;
            }
            (key, dir) = (key.parent(), true);
        }
        is_dir || self.rules.is_empty() || self.rules.iter().any(|rule| !rule.includes)
    }

    fn add(&mut self, pattern: &str, includes: bool) -> Result<(), PatternError> {
        let (bare, dirs_only) = pattern.strip_suffix('/').map_or((pattern, false), |bare| (bare, true));
        let whole_path = bare.contains('/');
        let glob = compile(pattern, bare.strip_prefix('/').unwrap_or(bare))?;
        self.rules.push(Rule { includes, dirs_only, whole_path, glob });
        Ok(())
    }
}

impl Rule {
    fn matches(&self, key: &Key, is_dir: bool) -> bool {
        let what = if self.whole_path { key.as_bytes() } else { key.name() };
        (is_dir || !self.dirs_only) && matches(&self.glob, what)
    }
}

/// The matcher of `bare`, the part of `pattern` without its slashes.
pub(super) fn compile(pattern: &str, bare: &str) -> Result<GlobMatcher, PatternError> {
    if bare.is_empty() {
        return Err(PatternError::new(pattern, "it is empty"));
    }
    let glob = GlobBuilder::new(bare).literal_separator(true).backslash_escape(true).build();
    Ok(glob.map_err(|e| PatternError::new(pattern, e.kind().to_string()))?.compile_matcher())
}

/// Whether `glob` matches bytes, which may be invalid UTF-8.
pub(super) fn matches(glob: &GlobMatcher, what: &[u8]) -> bool {
    glob.is_match(Path::new(OsStr::from_bytes(what)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(rules: &[(bool, &str)], paths: &[&str]) -> Vec<String> {
        let mut filter = Filter::default();
        for &(includes, pattern) in rules {
            if includes { filter.include(pattern).unwrap() } else { filter.exclude(pattern).unwrap() }
        }
        let is_dir = |path: &str| path.ends_with('/');
        let takes = |path: &&&str| filter.takes(&Key::parse(path).unwrap(), is_dir(path));
        paths.iter().filter(takes).map(|path| (*path).to_owned()).collect()
    }

    #[test]
    fn first_matching_rule_applies() {
        let paths = ["a.h5", "a.tmp", "run1/", "run1/a.h5", "run1/keep.tmp", "run1/x/b.tmp", "cache/"];
        assert_eq!(taken(&[], &paths), paths);
        assert_eq!(
            taken(&[(true, "keep.tmp"), (false, "*.tmp"), (false, "cache/")], &paths),
            ["a.h5", "run1/", "run1/a.h5", "run1/keep.tmp"]
        );
        assert_eq!(taken(&[(true, "*.h5")], &paths), ["a.h5", "run1/", "run1/a.h5", "cache/"]);
        assert_eq!(
            taken(&[(false, "/a.*")], &paths),
            ["run1/", "run1/a.h5", "run1/keep.tmp", "run1/x/b.tmp", "cache/"]
        );
        assert_eq!(
            taken(&[(true, "run*/")], &paths),
            ["run1/", "run1/a.h5", "run1/keep.tmp", "run1/x/b.tmp", "cache/"]
        );
        assert_eq!(taken(&[(false, "run1/**/*.tmp")], &["run1/x/b.tmp", "b.tmp"]), ["b.tmp"]);
    }

    #[test]
    fn bounds_hold_for_what_is_known() {
        let at = |seconds| Some(Time { seconds, nanos: 0 });
        let bounds = Bounds { min_size: Some(10), max_size: Some(20), from: at(100), to: at(200) };
        let file = |size, seconds: Option<i64>| Meta {
            kind: crate::store::Kind::File,
            size,
            modified: seconds.and_then(at),
            mode: None,
            sparse: false,
            identity: None,
        };
        for (size, seconds, taken) in [
            (Some(10), Some(100), true),
            (Some(20), Some(200), true),
            (Some(9), Some(150), false),
            (Some(21), Some(150), false),
            (Some(15), Some(99), false),
            (Some(15), Some(201), false),
            (None, None, true),
        ] {
            assert_eq!(bounds.take(&file(size, seconds)), taken, "{size:?} {seconds:?}");
        }
        assert!(Bounds::default().take(&file(Some(0), Some(0))));
    }

    #[test]
    fn says_what_is_no_pattern() {
        for pattern in ["", "/", "[a", "{a", "a\\"] {
            let error = Filter::default().exclude(pattern).unwrap_err().to_string();
            assert!(error.starts_with(&format!("\"{pattern}\" is no pattern: ")), "{error}");
        }
        assert!(matches(&compile("*", "*").unwrap(), b"\xff"));
    }
}
