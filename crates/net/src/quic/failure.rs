//! How a stream or its connection failed, as an `io::Error` and in words.

use crate::error::Coded;
use phoebus_proto::session::Code;
use quinn::{ConnectionError, VarInt};
use rustls::AlertDescription;
use std::io;

/// QUIC's code for the peer's TLS alert n is this and n (RFC 9001, section 4.8).
const CRYPTO: u64 = 0x100;

/// How a stream failed. It stays so.
#[derive(Debug, Clone)]
pub(super) enum Failure {
    /// The peer has reset it, or does not want any more.
    Reset(Code),
    /// The connection is gone.
    Lost(ConnectionError),
    /// There are more gaps in what the peer sent than are taken.
    Scattered,
    /// This end gave it up.
    Local,
}

impl Failure {
    /// The peer's application error code.
    pub(super) fn reset(code: VarInt) -> Self {
        let code = u16::try_from(code.into_inner()).map_or(Code::Reset, |number| match number {
            // What quinn sends when nobody says more, as for a process that is going.
            0 => Code::Reset,
            number => Code::from_number(number),
        });
        Self::Reset(code)
    }

    /// Whether a peer that has all it wanted has closed the connection. What it sent before may still be read.
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
            Failure::Reset(code) => format!("the peer gave the stream up: {code}"),
            Failure::Lost(error) => words(&error),
            Failure::Scattered => "the peer left more gaps in the stream than are taken".to_owned(),
            Failure::Local => "this end gave the stream up".to_owned(),
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

/// Whether one end did not accept what the other showed.
pub(super) fn is_mistrust(error: &ConnectionError) -> bool {
    alert(error).is_some()
}

/// What happened, to stand at the end of a sentence.
pub(super) fn words(error: &ConnectionError) -> String {
    match (error, alert(error)) {
        // What pinned keys alone are refused by.
        (ConnectionError::TransportError(_), Some((AlertDescription::AccessDenied, true))) => {
            "the peer showed another key than the one that was named for it".to_owned()
        }
        (ConnectionError::TransportError(error), Some(_)) => error.reason.clone(),
        (_, Some((alert, _))) => refused(alert),
        (ConnectionError::TimedOut, _) => "nothing was heard of the peer".to_owned(),
        (ConnectionError::Reset, _) => "the peer was restarted and knows nothing of the connection".to_owned(),
        (ConnectionError::ApplicationClosed(close), _) => match close.reason.as_ref() {
            [] => "the peer closed the connection".to_owned(),
            reason => format!("the peer closed the connection: {}", text(reason)),
        },
        (ConnectionError::ConnectionClosed(close), _)
            if close.error_code == quinn::TransportErrorCode::CONNECTION_REFUSED =>
        {
            "the peer takes no new connections over QUIC".to_owned()
        }
        (ConnectionError::ConnectionClosed(close), _) => {
            format!("the peer ended the connection: {}", close.error_code)
        }
        (ConnectionError::LocallyClosed, _) => "this end closed the connection".to_owned(),
        (ConnectionError::VersionMismatch, _) => "the peer speaks no common version of QUIC".to_owned(),
        (other, _) => other.to_string(),
    }
}

/// What the peer's alert says about this end.
fn refused(alert: AlertDescription) -> String {
    match alert {
        AlertDescription::CertificateRequired => "the peer wants a certificate, and this end has none".to_owned(),
        AlertDescription::UnknownCA => "the peer does not trust the authority of this end's certificate".to_owned(),
        AlertDescription::CertificateExpired => "the peer says that this end's certificate has expired".to_owned(),
        AlertDescription::CertificateRevoked => "the peer says that this end's certificate was revoked".to_owned(),
        AlertDescription::NoApplicationProtocol => "the peer does not speak the session protocol".to_owned(),
        // rustls names a certificate so that its authority's namesake has not signed.
        AlertDescription::DecryptError
        | AlertDescription::BadCertificate
        | AlertDescription::CertificateUnknown
        | AlertDescription::UnsupportedCertificate
        | AlertDescription::AccessDenied => format!("the peer does not accept this end's certificate ({alert:?})"),
        alert => format!("the peer ended the handshake ({alert:?})"),
    }
}

/// A peer's words without what could harm a terminal.
fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).chars().filter(|c| !c.is_control()).take(200).collect()
}
