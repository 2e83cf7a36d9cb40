//! How a session fails on one of its hops.

use phoebus_net::{code_of, reason};
use phoebus_proto::session::bundle::BundleError;
use phoebus_proto::session::frame::FrameError;
use phoebus_proto::session::{Code, ProtocolError};
use std::io;

/// What ended a session before its time, as seen on one connection.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// The connection failed, or ended without the session's end.
    #[error("{}", describe(.0))]
    Io(#[from] io::Error),
    /// The peer broke the framed mode.
    #[error("it sent {0}")]
    Frame(#[from] FrameError),
    /// The peer broke the rules of a bundle.
    #[error("it sent {0}")]
    Bundle(#[from] BundleError),
    /// The peer sent control frames, and little else.
    #[error("it sent more than {0} control frames a second (limits.control_frames), and little else")]
    Control(u32),
    /// The peer broke the handshake.
    #[error(transparent)]
    Protocol(#[from] ProtocolError),
    /// The peer told of a failure further on.
    #[error("{reason}")]
    Told {
        /// Why.
        code: Code,
        /// Where.
        hop: String,
        /// Why, as a sentence.
        reason: String,
    },
    /// The gateway ended it.
    #[error("{reason}")]
    Ours {
        /// Why.
        code: Code,
        /// Why, as a sentence.
        reason: String,
    },
}

impl Failure {
    pub(crate) fn internal(reason: &str) -> Self {
        Self::Ours { code: Code::Internal, reason: reason.to_owned() }
    }

    /// The reason, for machines.
    pub(crate) fn code(&self) -> Code {
        match self {
            Self::Io(error) => code_of(error),
            Self::Frame(_) | Self::Bundle(_) | Self::Protocol(_) => Code::Protocol,
            Self::Control(_) => Code::Limit,
            Self::Told { code, .. } | Self::Ours { code, .. } => *code,
        }
    }
}

fn describe(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => "the connection ended in the middle of a session".to_owned(),
        _ => reason(error),
    }
}
