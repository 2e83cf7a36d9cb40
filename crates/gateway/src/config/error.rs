//! What is wrong with a configuration, and where.

use std::ops::Range;
use std::path::{Path, PathBuf};

/// A configuration that cannot be used. One sentence: file, line and column where they are known, what was expected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}{}: {message}", file.display(), place(*at))]
pub struct ConfigError {
    file: PathBuf,
    /// Line and column, from 1.
    at: Option<(usize, usize)>,
    message: String,
}

impl ConfigError {
    pub(super) fn new(file: &Path, message: impl Into<String>) -> Self {
        Self { file: file.to_owned(), at: None, message: message.into() }
    }

    pub(super) fn at(file: &Path, text: &str, span: Range<usize>, message: impl Into<String>) -> Self {
        let before = text.get(..span.start).unwrap_or(text);
        let line = before.bytes().filter(|byte| *byte == b'\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
        Self { at: Some((line, column)), ..Self::new(file, message) }
    }
}

fn place(at: Option<(usize, usize)>) -> String {
    at.map(|(line, column)| format!(":{line}:{column}")).unwrap_or_default()
}
