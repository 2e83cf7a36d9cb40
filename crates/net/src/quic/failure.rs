//! The failure of a stream or its connection, as an `io::Error` with a message.

use crate::error::Coded;
use crate::tls::{UNKNOWN_AUTHORITY, is_of_certificate, told};
use phoebus_proto::session::Code;
use quinn::{ConnectionError, VarInt};
use rustls::AlertDescription;
use std::io;

/// QUIC's error code for TLS alert n is this plus n (RFC 9001, section 4.8).
const CRYPTO: u64 = 0x100;

/// A stream's failure, which is permanent.
#[derive(Debug, Clone)]
pub(super) enum Failure {
    /// The peer has reset the stream, or has stopped reading it.
    Reset(Code),
    /// The connection is lost.
    Lost(ConnectionError),
    /// The peer's data has more gaps than this end accepts.
    Scattered,
    /// This end has reset the stream.
    Local,
}

impl Failure {
    /// The failure for the peer's application error code.
    pub(super) fn reset(code: VarInt) -> Self {
        let code = u16::try_from(code.into_inner()).map_or(Code::Reset, |number| match number {
            // quinn sends 0 when the application gives no code, as when a process exits.
            0 => Code::Reset,
            number => Code::from_number(number),
        });
        Self::Reset(code)
    }

    /// Whether the peer has closed the connection in order. Data that it sent before may still be read.
    pub(super) fn is_parting(&self) -> bool {
        matches!(self, Self::Lost(ConnectionError::ApplicationClosed(close)) if close.error_code == VarInt::from_u32(0))
    }

    pub(super) fn code(&self) -> Code {
        match self {
            Self::Reset(code) => *code,
            Self::Lost(error) => code_of(error),
            Self::Scattered => Code::Limit,
            Self::Local => Code::Terminated,
        }
    }
}

impl From<Failure> for io::Error {
    fn from(failure: Failure) -> Self {
        let code = failure.code();
        let reason = match failure {
            Failure::Reset(Code::Reset) => Code::Reset.to_string(),
            Failure::Reset(code) => format!("the peer reset the stream: {code}"),
            Failure::Lost(error) => words(&error),
            Failure::Scattered => "the stream has more gaps than this end accepts".to_owned(),
            Failure::Local => "this end reset the stream".to_owned(),
        };
        Coded { code, reason }.into()
    }
}

fn code_of(error: &ConnectionError) -> Code {
    match error {
        ConnectionError::TimedOut => Code::TimedOut,
        ConnectionError::Reset => Code::Reset,
        ConnectionError::ApplicationClosed(close) => Failure::reset(close.error_code).code(),
        ConnectionError::LocallyClosed => Code::Terminated,
        ConnectionError::VersionMismatch => Code::Version,
        ConnectionError::CidsExhausted => Code::Limit,
        error if alert(error).is_some() => Code::AuthFailed,
        ConnectionError::ConnectionClosed(close)
            if close.error_code == quinn::TransportErrorCode::CONNECTION_REFUSED =>
        {
            Code::Limit
        }
        ConnectionError::ConnectionClosed(_) | ConnectionError::TransportError(_) => Code::Protocol,
    }
}

/// The TLS alert that ended the connection, and whether this end sent it.
fn alert(error: &ConnectionError) -> Option<(AlertDescription, bool)> {
    let (code, ours) = match error {
        ConnectionError::TransportError(error) => (error.code, true),
        ConnectionError::ConnectionClosed(close) => (close.error_code, false),
        _ => return None,
    };
    let alert = u64::from(code).checked_sub(CRYPTO).and_then(|alert| u8::try_from(alert).ok())?;
    Some((alert.into(), ours))
}

/// Whether one end rejected the other's certificate or protocol.
pub(super) fn is_mistrust(error: &ConnectionError) -> bool {
    alert(error).is_some()
}

/// Whether the peer rejected this end's certificate, or the lack of one.
pub(super) fn is_rejection(error: &ConnectionError) -> bool {
    alert(error).is_some_and(|(alert, ours)| !ours && is_of_certificate(alert))
}

/// What happened, to stand at the end of a sentence.
pub(super) fn words(error: &ConnectionError) -> String {
    match (error, alert(error)) {
        // Only the check of pinned keys ends in this alert.
        (ConnectionError::TransportError(_), Some((AlertDescription::AccessDenied, true))) => {
            "the peer presented another key than the one that was named for it".to_owned()
        }
        // quinn keeps the error's text alone. rustls sends this alert for an unknown issuer.
        (ConnectionError::TransportError(_), Some((AlertDescription::UnknownCA, _))) => UNKNOWN_AUTHORITY.to_owned(),
        (ConnectionError::TransportError(error), Some(_)) => error.reason.clone(),
        (_, Some((alert, _))) => refused(alert),
        (ConnectionError::TimedOut, _) => "nothing was received from the peer".to_owned(),
        (ConnectionError::Reset, _) => "the peer was restarted and knows nothing of the connection".to_owned(),
        (ConnectionError::ApplicationClosed(close), _) => match close.reason.as_ref() {
            [] => "the peer closed the connection".to_owned(),
            reason => format!("the peer closed the connection: {}", text(reason)),
        },
        (ConnectionError::ConnectionClosed(close), _)
            if close.error_code == quinn::TransportErrorCode::CONNECTION_REFUSED =>
        {
            "the peer accepts no new connections over QUIC".to_owned()
        }
        (ConnectionError::ConnectionClosed(close), _) => {
            format!("the peer ended the connection: {}", close.error_code)
        }
        (ConnectionError::LocallyClosed, _) => "this end closed the connection".to_owned(),
        (ConnectionError::VersionMismatch, _) => "the peer speaks no common version of QUIC".to_owned(),
        (other, _) => other.to_string(),
    }
}

/// What the peer's alert means for this end, in the words of TLS over other transports.
fn refused(alert: AlertDescription) -> String {
    match alert {
        AlertDescription::NoApplicationProtocol => "the peer does not speak the session protocol".to_owned(),
        alert => told(alert).into_owned(),
    }
}

/// The peer's text, at most 200 characters of it and without control characters, which could harm a terminal.
fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).chars().filter(|c| !c.is_control()).take(200).collect()
}
