//! What can go wrong with a file, said in one sentence that names it.

use crate::range::Extent;
use crate::sum::Sum;
use std::io;
use std::time::Duration;

/// A failure. Its text names the file, what was being done, and what was expected.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no such file or directory.
    #[error("{name} does not exist")]
    NotFound {
        /// The file.
        name: String,
    },
    /// The directory that something is to be in does not exist.
    #[error("the directory above {name} does not exist")]
    NoParent {
        /// What was to be in it.
        name: String,
    },
    /// There is one already, and it was not to be replaced.
    #[error("{name} exists already")]
    Exists {
        /// The file.
        name: String,
    },
    /// No room on the device, or in the quota.
    #[error("no space for {name}: {source}")]
    NoSpace {
        /// The file.
        name: String,
        /// As the system says it.
        source: io::Error,
    },
    /// The system or the other end does not allow it.
    #[error("cannot {act} {name}: {source}")]
    Denied {
        /// The file.
        name: String,
        /// What was to be done.
        act: &'static str,
        /// As the system says it.
        source: io::Error,
    },
    /// A directory was to be moved into itself.
    #[error("{name}: it cannot be moved into itself, as {to}")]
    IntoItself {
        /// The directory.
        name: String,
        /// What it was to become.
        to: String,
    },
    /// The path leads out of the directory that it has to stay in, by a symbolic link or a mount.
    #[error("{name} leads out of {root}")]
    Escapes {
        /// The file.
        name: String,
        /// The directory.
        root: String,
    },
    /// It is not what was expected: a directory for a file, a device, a socket.
    #[error("{name} is {is}, not {expected}")]
    Kind {
        /// The file.
        name: String,
        /// What it is.
        is: &'static str,
        /// What it should be.
        expected: &'static str,
    },
    /// Another transfer writes the same destination.
    #[error("another transfer is writing {name}")]
    Busy {
        /// The destination.
        name: String,
    },
    /// The source is another than it was when the transfer began.
    #[error("{name} changed while it was being read")]
    Changed {
        /// The source.
        name: String,
    },
    /// The source ended before its size.
    #[error("{name} ended at byte {at}, before the {expected} bytes that it should have")]
    Short {
        /// The source.
        name: String,
        /// Where it ended.
        at: u64,
        /// Its size.
        expected: u64,
    },
    /// Bytes that do not belong to the object, or came where others had been agreed.
    #[error("{name} has no bytes {extent}")]
    Beyond {
        /// The object.
        name: String,
        /// What was asked for or sent.
        extent: Extent,
    },
    /// Not all bytes are there.
    #[error("{name} is not complete: {missing} of {size} bytes are missing")]
    Incomplete {
        /// The destination.
        name: String,
        /// How many bytes are missing.
        missing: u64,
        /// How many it should have.
        size: u64,
    },
    /// The checksums of both ends differ. What was written is not kept.
    #[error("{name} was damaged on the way: {} should be {expected} and is {found}", expected.algorithm())]
    Mismatch {
        /// The destination.
        name: String,
        /// Of the source.
        expected: Sum,
        /// Of the destination.
        found: Sum,
    },
    /// The ends have no checksum in common, and verification was asked for.
    #[error("{name} cannot be verified: {reason}")]
    Unverifiable {
        /// The destination.
        name: String,
        /// Why.
        reason: String,
    },
    /// Nothing moved for as long as is waited.
    #[error("{name} stalled: nothing moved for {} seconds", after.as_secs())]
    Stalled {
        /// The file.
        name: String,
        /// How long was waited.
        after: Duration,
    },
    /// No connection to a server could be made.
    #[error("{name}: {reason}")]
    Unreached {
        /// The server.
        name: String,
        /// Why.
        reason: String,
    },
    /// It was asked to end ([`crate::Stop`]), or a failure affects all that has not begun.
    #[error("{name} was interrupted")]
    Stopped {
        /// The file.
        name: String,
    },
    /// Something is larger or more than is accepted.
    #[error("{name}: {what} is more than the {limit} that are accepted")]
    Limit {
        /// The file or directory.
        name: String,
        /// What is too large.
        what: &'static str,
        /// The limit.
        limit: u64,
    },
    /// The store cannot do this.
    #[error("{name}: {what} is not possible here")]
    Unsupported {
        /// The file or store.
        name: String,
        /// What was asked for.
        what: &'static str,
    },
    /// Anything else that the system reports.
    #[error("cannot {act} {name}: {source}")]
    Io {
        /// The file.
        name: String,
        /// What was to be done.
        act: &'static str,
        /// As the system says it.
        source: io::Error,
    },
    /// What a store lists as a directory may be a symbolic link to one, and what is in it was to be removed or taken
    /// away.
    #[error(
        "{name} may be a symbolic link to a directory, which the server does not tell: what is in it stays \
         (--trust-listings takes it for a directory)"
    )]
    MayBeLink {
        /// What is listed as a directory.
        name: String,
    },
    /// What a store that is no file system reports of its own.
    #[error("{name}: {reason}")]
    Store {
        /// The file.
        name: String,
        /// The store's sentence.
        reason: String,
        /// What sort of failure it is.
        kind: ErrorKind,
    },
}

/// Sorts of failure, for exit codes and for whether to try again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// Something is not there.
    NotFound,
    /// Something is there already.
    Exists,
    /// No room.
    NoSpace,
    /// Not allowed.
    Denied,
    /// The bytes are not those of the source.
    Verification,
    /// The source changed.
    Changed,
    /// The connection, the other end or the device failed in a way that may pass.
    Passing,
    /// It makes no sense as it was asked.
    Request,
    /// Anything else.
    Other,
}

impl Error {
    /// What sort of failure this is.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::NotFound { .. } | Self::NoParent { .. } => ErrorKind::NotFound,
            Self::Exists { .. } => ErrorKind::Exists,
            Self::NoSpace { .. } => ErrorKind::NoSpace,
            Self::Denied { .. } | Self::Escapes { .. } => ErrorKind::Denied,
            Self::Mismatch { .. } | Self::Unverifiable { .. } => ErrorKind::Verification,
            Self::Changed { .. } | Self::Short { .. } => ErrorKind::Changed,
            Self::Stalled { .. } | Self::Busy { .. } | Self::Incomplete { .. } | Self::Unreached { .. } => {
                ErrorKind::Passing
            }
            Self::Kind { .. }
            | Self::IntoItself { .. }
            | Self::Beyond { .. }
            | Self::Limit { .. }
            | Self::Unsupported { .. }
            | Self::MayBeLink { .. } => ErrorKind::Request,
            Self::Io { .. } | Self::Stopped { .. } => ErrorKind::Other,
            Self::Store { kind, .. } => *kind,
        }
    }

    /// Whether the same may succeed a little later.
    pub fn may_pass(&self) -> bool {
        match self {
            Self::Mismatch { .. } => true,
            Self::Io { source, .. } => matches!(
                source.kind(),
                io::ErrorKind::Interrupted | io::ErrorKind::TimedOut | io::ErrorKind::ResourceBusy
            ),
            other => matches!(other.kind(), ErrorKind::Passing | ErrorKind::Changed),
        }
    }

    /// The same failure once more, for somebody else who has to hear of it.
    #[must_use]
    pub fn again(&self) -> Self {
        match self {
            Self::NotFound { name } => Self::NotFound { name: name.clone() },
            Self::NoParent { name } => Self::NoParent { name: name.clone() },
            Self::Exists { name } => Self::Exists { name: name.clone() },
            Self::NoSpace { name, source } => Self::NoSpace { name: name.clone(), source: same(source) },
            Self::Denied { name, act, source } => Self::Denied { name: name.clone(), act, source: same(source) },
            Self::IntoItself { name, to } => Self::IntoItself { name: name.clone(), to: to.clone() },
            Self::Escapes { name, root } => Self::Escapes { name: name.clone(), root: root.clone() },
            Self::Kind { name, is, expected } => Self::Kind { name: name.clone(), is, expected },
            Self::Busy { name } => Self::Busy { name: name.clone() },
            Self::Changed { name } => Self::Changed { name: name.clone() },
            Self::Short { name, at, expected } => Self::Short { name: name.clone(), at: *at, expected: *expected },
            Self::Beyond { name, extent } => Self::Beyond { name: name.clone(), extent: *extent },
            Self::Incomplete { name, missing, size } => {
                Self::Incomplete { name: name.clone(), missing: *missing, size: *size }
            }
            Self::Mismatch { name, expected, found } => {
                Self::Mismatch { name: name.clone(), expected: expected.clone(), found: found.clone() }
            }
            Self::Unverifiable { name, reason } => Self::Unverifiable { name: name.clone(), reason: reason.clone() },
            Self::Stalled { name, after } => Self::Stalled { name: name.clone(), after: *after },
            Self::Unreached { name, reason } => Self::Unreached { name: name.clone(), reason: reason.clone() },
            Self::Stopped { name } => Self::Stopped { name: name.clone() },
            Self::Limit { name, what, limit } => Self::Limit { name: name.clone(), what, limit: *limit },
            Self::Unsupported { name, what } => Self::Unsupported { name: name.clone(), what },
            Self::MayBeLink { name } => Self::MayBeLink { name: name.clone() },
            Self::Io { name, act, source } => Self::Io { name: name.clone(), act, source: same(source) },
            Self::Store { name, reason, kind } => {
                Self::Store { name: name.clone(), reason: reason.clone(), kind: *kind }
            }
        }
    }

    /// The failure `source` of the system, met while doing `act` to `name`.
    pub(crate) fn io(name: impl ToString, act: &'static str, source: io::Error) -> Self {
        let name = name.to_string();
        match source.kind() {
            io::ErrorKind::NotFound => Self::NotFound { name },
            io::ErrorKind::AlreadyExists => Self::Exists { name },
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::NoSpace { name, source },
            io::ErrorKind::FileTooLarge => Self::NoSpace { name, source },
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => Self::Denied { name, act, source },
            io::ErrorKind::IsADirectory => Self::Kind { name, is: "a directory", expected: "a file" },
            io::ErrorKind::NotADirectory => {
                Self::Kind { name, is: "a file, or leads through one", expected: "a directory" }
            }
            _ => Self::Io { name, act, source },
        }
    }
}

/// What the system reported, once more: by its number if it has one.
fn same(error: &io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(number) => io::Error::from_raw_os_error(number),
        None => io::Error::new(error.kind(), error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_error_is_the_same() {
        let name = || "x".to_owned();
        for error in [
            Error::NotFound { name: name() },
            Error::Short { name: name(), at: 1, expected: 2 },
            Error::Store { name: name(), reason: "gone".into(), kind: ErrorKind::NoSpace },
            Error::Io { name: name(), act: "read", source: io::Error::from_raw_os_error(5) },
            Error::NoSpace { name: name(), source: io::Error::new(io::ErrorKind::StorageFull, "the quota is used up") },
        ] {
            let again = error.again();
            assert_eq!((again.to_string(), again.kind()), (error.to_string(), error.kind()));
            assert_eq!(format!("{again:?}"), format!("{:?}", error.again()));
        }
    }
}
