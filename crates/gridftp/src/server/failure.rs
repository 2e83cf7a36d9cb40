//! Failures of tasks, and their replies: a code (RFC 959, section 4.2) and a sentence.

use crate::data;
use phoebus_files::{Error, ErrorKind};
use phoebus_proto::gridftp::reply::Reply;

/// Why a task failed.
#[derive(Debug)]
pub(super) enum Failure {
    /// With a reply of its own.
    Reply(Reply),
    /// An error of a file.
    File(Error),
    /// An error of the data channel.
    Data(data::Error),
    /// The client stopped it, or is gone.
    Stopped,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        // Local stores have no `Store` errors of their own: this one comes from a flow of the data channel.
        match error {
            Error::Store { reason, kind: ErrorKind::NoSpace, .. } => Self::Reply(Reply::new(552, reason)),
            // RFC 4217, section 10.2.
            Error::Store { reason, kind: ErrorKind::Denied, .. } => Self::Reply(Reply::new(522, reason)),
            Error::Store { reason, .. } => {
                Self::Reply(Reply::new(426, format!("{reason}; nothing is kept of it as a file")))
            }
            other => Self::File(other),
        }
    }
}

impl From<data::Error> for Failure {
    fn from(error: data::Error) -> Self {
        match error {
            data::Error::Store(error) => error.into(),
            other => Self::Data(other),
        }
    }
}

impl Failure {
    pub(super) fn say(code: u16, text: impl AsRef<[u8]>) -> Self {
        Self::Reply(Reply::new(code, text))
    }

    pub(super) fn reply(&self) -> Reply {
        match self {
            Self::Reply(reply) => reply.clone(),
            // GCT's and many FTP clients recognize a missing file by this text.
            Self::File(error) if error.kind() == ErrorKind::NotFound => {
                Reply::new(550, format!("{error}: No such file or directory"))
            }
            Self::File(error) => Reply::new(code_of(error), error.to_string()),
            Self::Data(error) => Reply::new(code_of_data(error), error.to_string()),
            Self::Stopped => Reply::new(426, "stopped"),
        }
    }
}

fn code_of(error: &Error) -> u16 {
    match error.kind() {
        _ if is_not_empty(error) => 550,
        ErrorKind::NotFound | ErrorKind::Exists | ErrorKind::Denied | ErrorKind::Request => 550,
        ErrorKind::NoSpace => 452,
        ErrorKind::Passing if matches!(error, Error::Busy { .. }) => 450,
        ErrorKind::Passing if matches!(error, Error::Stalled { .. }) => 426,
        ErrorKind::Passing | ErrorKind::Verification | ErrorKind::Changed | ErrorKind::Other => 451,
    }
}

/// Whether a directory could not be removed because it is not empty. That is no passing condition.
fn is_not_empty(error: &Error) -> bool {
    matches!(error, Error::Io { source, .. } if source.kind() == std::io::ErrorKind::DirectoryNotEmpty)
}

fn code_of_data(error: &data::Error) -> u16 {
    match error {
        data::Error::Net(_)
        | data::Error::Ports(..)
        | data::Error::Nobody(_)
        | data::Error::Stranger { .. }
        | data::Error::Strangers { .. }
        | data::Error::Direction(_) => 425,
        data::Error::NotResumed => 522,
        _ => 426,
    }
}
