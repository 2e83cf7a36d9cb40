//! Client certificates that are judged from outside: by other rules than those of [`Trust`](super::Trust), such as proxy
//! certificates (RFC 3820).
//!
//! Whoever is accepted so has a subject, and no name. No name in its certificates counts, so it passes neither for a peer nor for
//! somebody whom an authority of [`Trust`](super::Trust) has named.

use rustls::pki_types::{CertificateDer, SubjectPublicKeyInfoDer, UnixTime};
use rustls::{CertificateError, DistinguishedName, Error, OtherError};
use std::fmt;
use std::sync::{Arc, LazyLock, OnceLock};
use std::time::{Duration, SystemTime};
use tokio::sync::watch;

/// Judges the certificates of clients that no authority of [`Trust`](super::Trust) vouches for.
pub trait ClientJudge: fmt::Debug + Send + Sync {
    /// Who has shown this chain, in DER and leaf first, at the time `now`.
    ///
    /// # Errors
    /// Why it is not accepted: a sentence whose subject is a certificate. The client does not learn it.
    fn judge(&self, chain: &[&[u8]], now: SystemTime) -> Result<Judged, String>;

    /// Has another number each time that a chain which was accepted may no longer be. Lives as long as the judge.
    fn changes(&self) -> watch::Receiver<u64>;
}

/// A client that a [`ClientJudge`] has accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Judged {
    /// Who it is.
    pub subject: String,
    /// When its certificates expire.
    pub until: SystemTime,
}

/// What a judge says of the client of one handshake.
#[derive(Debug)]
pub(super) struct Verdict {
    judge: Arc<dyn ClientJudge>,
    changes: watch::Receiver<u64>,
    /// The number when the handshake began.
    generation: u64,
    found: OnceLock<Judged>,
}

impl Verdict {
    pub(super) fn new(judge: Arc<dyn ClientJudge>) -> Self {
        let changes = judge.changes();
        let generation = *changes.borrow();
        Self { judge, changes, generation, found: OnceLock::new() }
    }

    /// Judges a chain that the usual authorities did not accept because of `usual`.
    pub(super) fn judge(
        &self,
        leaf: &CertificateDer<'_>,
        rest: &[CertificateDer<'_>],
        now: UnixTime,
        usual: Error,
    ) -> Result<(), Error> {
        if is_final(&usual) {
            return Err(usual);
        }
        let chain: Vec<&[u8]> = std::iter::once(leaf).chain(rest).map(AsRef::as_ref).collect();
        match self.judge.judge(&chain, SystemTime::UNIX_EPOCH + Duration::from_secs(now.as_secs())) {
            Ok(judged) => {
                // A handshake shows one chain.
                let _ = self.found.set(judged);
                Ok(())
            }
            Err(reason) => Err(CertificateError::Other(OtherError(Arc::new(NotAccepted(reason)))).into()),
        }
    }

    /// Whom the judge has accepted; `None` if it was not asked.
    pub(super) fn found(&self) -> Option<&Judged> {
        self.found.get()
    }

    /// Whether the judge would still accept whom it has accepted.
    pub(super) fn counts(&self) -> bool {
        self.found.get().is_none() || self.generation == *self.changes.borrow()
    }

    /// Waits until the judge may no longer accept whom it has accepted; for ever if it has accepted nobody. Cancel safe.
    pub(super) async fn changed(&self) {
        if self.found.get().is_none() {
            return std::future::pending().await;
        }
        // The judge, which has the sender, lives as long as `self`.
        let _ = self.changes.clone().wait_for(|now| *now != self.generation).await;
    }
}

/// Whether an authority of ours has spoken against the certificate. No judge may overrule it.
fn is_final(usual: &Error) -> bool {
    use CertificateError::{
        ExpiredRevocationList, ExpiredRevocationListContext, InvalidOcspResponse, Revoked, UnknownRevocationStatus,
    };
    let Error::InvalidCertificate(problem) = usual else { return true };
    matches!(
        problem,
        Revoked
            | UnknownRevocationStatus
            | ExpiredRevocationList
            | ExpiredRevocationListContext { .. }
            | InvalidOcspResponse
    )
}

/// The public key of a certificate. webpki does not take the certificate of a proxy, whose critical extension it does not know.
pub(super) fn public_key<'a>(certificate: &'a CertificateDer<'_>) -> Result<SubjectPublicKeyInfoDer<'a>, Error> {
    let (_, read) = x509_parser::parse_x509_certificate(certificate).map_err(|_| CertificateError::BadEncoding)?;
    Ok(SubjectPublicKeyInfoDer::from(read.subject_pki.raw))
}

/// The name of no authority, by which a server says that it takes proxy certificates (RFC 8446 §4.2.4): `CN=Grid proxies (RFC 3820)`.
pub(super) static TAKES_PROXIES: LazyLock<[DistinguishedName; 1]> = LazyLock::new(|| {
    const NAME: &[u8] = b"Grid proxies (RFC 3820)";
    const COMMON_NAME: &[u8] = &[0x06, 0x03, 0x55, 0x04, 0x03];
    // X.690 §8: SET OF SEQUENCE { OID, UTF8String }. All lengths have one byte.
    let tagged = |tag: u8, content: &[u8]| [&[tag, u8::try_from(content.len()).unwrap_or(0)], content].concat();
    let attribute = tagged(0x30, &[COMMON_NAME, &tagged(0x0c, NAME)].concat());
    [DistinguishedName::in_sequence(&tagged(0x31, &attribute))]
});

/// The judge's reason.
#[derive(thiserror::Error)]
#[error("{0}")]
struct NotAccepted(String);

// QUIC's errors have the debug text of what TLS reports.
impl fmt::Debug for NotAccepted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use x509_parser::prelude::{FromDer, X509Name};

    #[test]
    fn name_for_proxies_is_a_distinguished_name() {
        let (rest, name) = X509Name::from_der(TAKES_PROXIES[0].as_ref()).unwrap();
        assert!(rest.is_empty());
        assert_eq!(name.to_string(), "CN=Grid proxies (RFC 3820)");
    }

    #[test]
    fn revocation_is_final() {
        for (problem, is) in [
            (CertificateError::Revoked, true),
            (CertificateError::ExpiredRevocationList, true),
            (CertificateError::UnknownIssuer, false),
            (CertificateError::Expired, false),
        ] {
            assert_eq!(is_final(&Error::InvalidCertificate(problem.clone())), is, "{problem:?}");
        }
    }
}
