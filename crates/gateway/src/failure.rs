//! Failures of sessions, and the hop on which they occur.

use phoebus_net::{code_of, reason};
use phoebus_proto::session::bundle::BundleError;
use phoebus_proto::session::frame::FrameError;
use phoebus_proto::session::{Code, ProtocolError};
use std::io;

/// One of the two hops of a session at this gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Side {
    /// Towards the client.
    First,
    /// Towards the destination.
    Second,
}

/// Why a session failed, as seen on one connection.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// The connection failed, or ended without the session's end.
    #[error("{}", describe(.0))]
    Io(#[from] io::Error),
    /// The peer violated the framed mode.
    #[error("it sent {0}")]
    Frame(#[from] FrameError),
    /// The peer violated the rules of a bundle.
    #[error("it sent {0}")]
    Bundle(#[from] BundleError),
    /// The peer sent too many control frames. The value is the limit per second.
    #[error("it sent more than {0} control frames a second (limits.control_frames), and little else")]
    Control(u32),
    /// The peer violated the handshake.
    #[error(transparent)]
    Protocol(#[from] ProtocolError),
    /// The peer reported a failure further on.
    #[error("{reason}")]
    Reported {
        /// The code of the reason.
        code: Code,
        /// The hop that failed.
        hop: String,
        /// The reason, as a sentence.
        reason: String,
    },
    /// This gateway ended the session.
    #[error("{reason}")]
    Local {
        /// The code of the reason.
        code: Code,
        /// The reason, as a sentence.
        reason: String,
    },
}

impl Failure {
    pub(crate) fn internal(reason: &str) -> Self {
        Self::Local { code: Code::Internal, reason: reason.to_owned() }
    }

    /// The code of the reason.
    pub(crate) fn code(&self) -> Code {
        match self {
            Self::Io(error) => code_of(error),
            Self::Frame(_) | Self::Bundle(_) | Self::Protocol(_) => Code::Protocol,
            Self::Control(_) => Code::Limit,
            Self::Reported { code, .. } | Self::Local { code, .. } => *code,
        }
    }
}

fn describe(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => "the connection ended in the middle of a session".to_owned(),
        _ => reason(error),
    }
}
