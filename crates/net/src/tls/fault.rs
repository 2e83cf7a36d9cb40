//! Faults of TLS, with messages that say what was presented and what was expected.

use crate::credentials;
use rustls::{AlertDescription, CertificateError, Error};
use std::borrow::Cow;
use std::fmt;
use std::io;
use std::time::{Duration, SystemTime};

/// What errors say of a certificate of an authority that is not trusted here, over any transport.
pub const UNKNOWN_AUTHORITY: &str = "its certificate is not signed by an authority that is trusted here";
/// What errors say if the peer requires a certificate and this end has none, over any transport.
pub const WANTS_CERTIFICATE: &str = "it wants to see a certificate of this end";

/// The reason why a connection cannot continue.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Fault {
    /// A TLS error or a rejected certificate.
    Tls(Error),
    /// The underlying connection ended without the peer's close_notify: anyone could have ended it.
    Cut {
        /// Whether the handshake was still in progress.
        handshaking: bool,
    },
    /// The peer does not speak TLS.
    NotTls,
    /// The ends agreed on no application protocol, or on one that was not offered.
    Protocol,
    /// A post-handshake message arrived where TLS is about to end.
    Unexpected,
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        Self::Tls(error)
    }
}

impl Fault {
    /// Whether the peer has rejected this end's certificate, or the lack of one.
    pub(super) fn is_told(&self) -> bool {
        matches!(self, Self::Tls(Error::AlertReceived(alert)) if is_of_certificate(*alert))
    }

    /// Whether one end has not proved its identity to the other, or the ends differ on how to protect the
    /// hop.
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

    /// The error for readers and writers: `PermissionDenied` for distrust, `UnexpectedEof` for a cut,
    /// otherwise `InvalidData`.
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
        Error::AlertReceived(alert) => f.write_str(&told(*alert)),
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
        CertificateError::UnknownIssuer | CertificateError::BadSignature => f.write_str(UNKNOWN_AUTHORITY),
        CertificateError::ExpiredContext { not_after, .. } => {
            write!(f, "its certificate expired on {}; a new one is needed", day(not_after))
        }
        CertificateError::NotValidYetContext { not_before, .. } => {
            write!(f, "its certificate is not valid before {}: are the clocks right?", day(not_before))
        }
        CertificateError::InvalidPurposeContext { required, .. } => {
            write!(f, "its certificate is not meant for {required:?}; expected one for both ends of a connection")
        }
        CertificateError::Revoked => f.write_str("its authority has revoked its certificate"),
        CertificateError::ExpiredRevocationListContext { next_update, .. } => {
            write!(f, "the list of certificates that its authority has revoked is too old since {}", day(next_update))
        }
        CertificateError::Other(own) => write!(f, "{}", own.0),
        other => write!(f, "its certificate is not accepted: {other}"),
    }
}

/// The name within `DnsName("…")`.
fn inner(shown: &str) -> &str {
    shown.split_once('(').map_or(shown, |(_, rest)| rest.trim_end_matches(')').trim_matches('"'))
}

/// Whether the peer's alert is about this end's certificate.
pub(crate) fn is_of_certificate(alert: AlertDescription) -> bool {
    use AlertDescription as Alert;
    matches!(
        alert,
        Alert::CertificateRequired
            | Alert::UnknownCA
            | Alert::DecryptError
            | Alert::CertificateExpired
            | Alert::BadCertificate
            | Alert::UnsupportedCertificate
            | Alert::CertificateRevoked
            | Alert::CertificateUnknown
            | Alert::AccessDenied
    )
}

/// The meaning of the peer's alert.
pub(crate) fn told(alert: AlertDescription) -> Cow<'static, str> {
    use AlertDescription as Alert;
    let text = match alert {
        Alert::CertificateRequired => WANTS_CERTIFICATE,
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
        Alert::HandshakeFailure | Alert::InsufficientSecurity => "it has no cipher suite in common with this end",
        other => return format!("it ended TLS with the alert {other:?}").into(),
    };
    text.into()
}
