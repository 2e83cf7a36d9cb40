//! The errors of this crate.

use super::url::UrlError;
use std::fmt;
use tokio::task::JoinError;

/// A result with this crate's error.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A failure, by kind. Each displays as one sentence that says what was expected.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The request is contradictory, or an option, a variable or a file is wrong. Nothing was begun.
    #[error("{0}")]
    Request(String),
    /// Something that was named does not exist.
    #[error("{0}")]
    Absent(String),
    /// Credentials or trusted authorities are missing or unusable.
    #[error("{0}")]
    Denied(String),
    /// A temporary failure: the same request may succeed later.
    #[error("{0}")]
    Passing(String),
    /// A store failed, or a server cannot be reached. The sentence already ends with the cause, so there is no
    /// `source`.
    #[error("{0}")]
    Files(phoebus_files::Error),
    /// A task of this crate panicked or was cancelled.
    #[error("{0}")]
    Lost(JoinError),
}

impl Error {
    /// [`Self::Request`] with the sentence `why`.
    pub fn request(why: impl fmt::Display) -> Self {
        Self::Request(why.to_string())
    }
}

impl From<phoebus_files::Error> for Error {
    fn from(error: phoebus_files::Error) -> Self {
        Self::Files(error)
    }
}

impl From<JoinError> for Error {
    fn from(error: JoinError) -> Self {
        Self::Lost(error)
    }
}

impl From<UrlError> for Error {
    fn from(error: UrlError) -> Self {
        Self::request(error)
    }
}
