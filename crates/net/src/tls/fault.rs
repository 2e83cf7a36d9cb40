//! What goes wrong with TLS, told to people: who showed what, and what was expected.

use crate::credentials;
use rustls::{AlertDescription, CertificateError, Error};
use std::fmt;
use std::io;
use std::time::{Duration, SystemTime};

/// Why a connection cannot go on.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Fault {
    /// TLS itself, or a certificate.
    Tls(Error),
    /// The connection under it ended without the other end's close_notify: anyone could have ended it.
    Cut {
        /// Before both ends had settled anything.
        handshaking: bool,
    },
    /// What arrived is something else.
    NotTls,
    /// The ends agreed on no use of the connection, or on one that was not asked for.
    Protocol,
    /// A handshake goes on where TLS is about to end.
    Unexpected,
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        Self::Tls(error)
    }
}

impl Fault {
    /// Whether the other end failed to prove who it is, or says so of this one, or the ends differ on how to protect the hop.
    pub(super) fn is_distrust(&self) -> bool {
        match self {
            Self::Tls(Error::AlertReceived(alert)) => !matches!(
                alert,
                AlertDescription::InternalError | AlertDescription::UserCanceled | AlertDescription::BadRecordMac
            ),
            Self::Tls(error) => matches!(
                error,
                Error::InvalidCertificate(_)
                    | Error::NoCertificatesPresented
                    | Error::NoApplicationProtocol
                    | Error::PeerIncompatible(_)
            ),
            Self::Protocol | Self::NotTls => true,
            Self::Cut { .. } | Self::Unexpected => false,
        }
    }

    /// As those who read and write get it: `PermissionDenied` for distrust, `UnexpectedEof` for a cut, otherwise `InvalidData`.
    pub(super) fn into_io(self) -> io::Error {
        let kind = match &self {
            _ if self.is_distrust() => io::ErrorKind::PermissionDenied,
            Self::Cut { .. } => io::ErrorKind::UnexpectedEof,
            _ => io::ErrorKind::InvalidData,
        };
        io::Error::new(kind, self.to_string())
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cut { handshaking: true } => f.write_str("it ended the connection during the TLS handshake"),
            Self::Cut { handshaking: false } => {
                f.write_str("the connection was cut: it ended without TLS close_notify")
            }
            Self::NotTls => f.write_str("it does not speak TLS, which this hop is configured for"),
            Self::Protocol => f.write_str("it does not offer the kind of security that this hop is configured for"),
            Self::Unexpected => f.write_str(
                "it sent new keys or a session ticket, which have no place on a hop whose TLS ends once both ends are known",
            ),
            Self::Tls(error) => tls(error, f),
        }
    }
}

fn tls(error: &Error, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match error {
        Error::InvalidCertificate(problem) => certificate(problem, f),
        Error::NoCertificatesPresented => f.write_str("it showed no certificate; expected one of a trusted authority"),
        Error::NoApplicationProtocol => f.write_str("it asks for a kind of security that is not offered here"),
        Error::AlertReceived(alert) => told(*alert, f),
        Error::PeerIncompatible(_) => write!(f, "it does not offer what this hop needs, which is TLS 1.3 ({error})"),
        Error::InvalidMessage(_) | Error::InappropriateMessage { .. } | Error::InappropriateHandshakeMessage { .. } => {
            write!(f, "it sent what is not TLS at this place ({error})")
        }
        Error::DecryptError => f.write_str("what it sent was altered on the way"),
        _ => write!(f, "TLS failed: {error}"),
    }
}

fn certificate(problem: &CertificateError, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let day = |at: &rustls::pki_types::UnixTime| {
        credentials::date(SystemTime::UNIX_EPOCH + Duration::from_secs(at.as_secs()))
    };
    match problem {
        CertificateError::NotValidForNameContext { expected, presented } => {
            let presented: Vec<&str> = presented.iter().map(|name| inner(name)).collect();
            let presented = if presented.is_empty() { "nobody".to_owned() } else { presented.join(", ") };
            write!(f, "it showed a certificate for {presented}; expected one for {}", expected.to_str())
        }
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            f.write_str("its certificate is not signed by an authority that is trusted here")
        }
        CertificateError::ExpiredContext { not_after, .. } => {
            write!(f, "its certificate expired on {}; a new one is needed", day(not_after))
        }
        CertificateError::NotValidYetContext { not_before, .. } => {
            write!(f, "its certificate is not valid before {}: are the clocks right?", day(not_before))
        }
        CertificateError::InvalidPurposeContext { required, .. } => {
            write!(f, "its certificate is not meant for {required:?}; expected one for both ends of a connection")
        }
        other => write!(f, "its certificate does not count: {other}"),
    }
}

/// The name within `DnsName("…")`.
fn inner(shown: &str) -> &str {
    shown.split_once('(').map_or(shown, |(_, rest)| rest.trim_end_matches(')').trim_matches('"'))
}

/// What the other end says about this one.
fn told(alert: AlertDescription, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    use AlertDescription as Alert;
    let text = match alert {
        Alert::CertificateRequired => "it wants to see a certificate of this end",
        Alert::UnknownCA | Alert::DecryptError => {
            "it does not accept this end's certificate: it trusts no authority that signed it"
        }
        Alert::CertificateExpired => "it does not accept this end's certificate: it has expired, or a clock is wrong",
        Alert::BadCertificate
        | Alert::UnsupportedCertificate
        | Alert::CertificateRevoked
        | Alert::CertificateUnknown
        | Alert::AccessDenied => "it does not accept this end's certificate",
        Alert::NoApplicationProtocol => "it does not offer the kind of security that this hop is configured for",
        Alert::ProtocolVersion => "it does not speak TLS 1.3",
        Alert::HandshakeFailure | Alert::InsufficientSecurity => "it finds nothing that both ends can use",
        other => return write!(f, "it ended TLS with the alert {other:?}"),
    };
    f.write_str(text)
}
