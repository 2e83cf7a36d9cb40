//! What is said of failures: a code (RFC 959, section 4.2) and one sentence.

use crate::data;
use phoebus_files::{Error, Sort};
use phoebus_proto::gridftp::reply::Reply;

/// Why a task came to nothing.
#[derive(Debug)]
pub(super) enum Failure {
    /// For a reason that was put in words where it was found.
    Said(Reply),
    /// A file.
    File(Error),
    /// The data channel.
    Data(data::Error),
    /// The client stopped it, or is gone.
    Stopped,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        // Stores of this machine have no words of their own: these are the data channel's, which a flow has handed on.
        match error {
            Error::Store { reason, sort: Sort::NoSpace, .. } => Self::Said(Reply::new(552, reason)),
            // As other servers say it (RFC 4217, section 10.2).
            Error::Store { reason, sort: Sort::Denied, .. } => Self::Said(Reply::new(522, reason)),
            Error::Store { reason, .. } => {
                Self::Said(Reply::new(426, format!("{reason}; nothing is kept of it as a file")))
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
        Self::Said(Reply::new(code, text))
    }

    pub(super) fn reply(&self) -> Reply {
        match self {
            Self::Said(reply) => reply.clone(),
            // By these words GCT's clients, and many of FTP, know that it is not there from that it cannot be looked at.
            Self::File(error) if error.sort() == Sort::NotFound => {
                Reply::new(550, format!("{error}: No such file or directory"))
            }
            Self::File(error) => Reply::new(code_of(error), error.to_string()),
            Self::Data(error) => Reply::new(code_of_data(error), error.to_string()),
            Self::Stopped => Reply::new(426, "stopped"),
        }
    }
}

fn code_of(error: &Error) -> u16 {
    match error.sort() {
        _ if is_not_empty(error) => 550,
        Sort::NotFound | Sort::Exists | Sort::Denied | Sort::Request => 550,
        Sort::NoSpace => 452,
        Sort::Passing if matches!(error, Error::Busy { .. }) => 450,
        Sort::Passing if matches!(error, Error::Stalled { .. }) => 426,
        Sort::Passing | Sort::Verification | Sort::Changed | Sort::Other => 451,
    }
}

/// Whether a directory stays since something is in it: that does not pass by itself.
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
