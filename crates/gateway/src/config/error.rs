//! What is wrong with a configuration, and where.

use phoebus_proto::text::{self, TextError};
use std::ops::Range;
use std::path::{Path, PathBuf};

/// An invalid configuration. The message is one sentence: file, line and column where known, and what was expected.
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

    /// For a file that cannot be read as text.
    pub(super) fn unreadable(file: &Path, error: &TextError) -> Self {
        let at = if let TextError::NotUtf8 { line, column } = error { Some((*line, *column)) } else { None };
        let message = match error {
            TextError::Read(error) => format!("cannot read the configuration: {}", phoebus_net::reason(error)),
            _ => format!("this {error}; expected a configuration in TOML"),
        };
        Self { at, ..Self::new(file, message) }
    }

    pub(super) fn at(file: &Path, all: &str, span: Range<usize>, message: impl Into<String>) -> Self {
        let before = all.get(..span.start).unwrap_or(all);
        Self { at: Some(text::place(before)), ..Self::new(file, message) }
    }
}

fn place(at: Option<(usize, usize)>) -> String {
    at.map(|(line, column)| format!(":{line}:{column}")).unwrap_or_default()
}
