//! How long a proved identity stays valid. A handshake tells who was there when it took place, and
//! connections live for days, so the owner of a pooled or shared connection checks the identity before each
//! reuse.

use super::certificate::expires;
use super::in_force::CredentialStore;
use super::judge::{Judged, Verdict};
use rustls::pki_types::CertificateDer;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::time::timeout;

/// A peer's identity, proved by a certificate that this end trusts; without names if the peer presented none.
#[derive(Debug, Clone)]
pub struct Identity {
    /// The DNS names of the certificate's subject alternative name (RFC 6125).
    pub names: Vec<String>,
    /// Who a [`ClientJudge`](super::ClientJudge) says it is; there are no names then.
    pub subject: Option<String>,
    /// How long the identity stays valid.
    pub proof: Proof,
}

/// Longest sleep while waiting for a certificate to expire: a clock may be set during it, of which sleepers
/// are not notified.
const SLEEP: Duration = Duration::from_secs(60);

/// Shows that a handshake has taken place under the credentials that were in force when it began.
///
/// It is valid until other credentials are in force at this end, one of the peer's certificates expires, or the judge of a client
/// has other rules.
/// After that a new handshake might fail: nothing new may start on the connection, while work in progress may
/// finish.
#[derive(Debug, Clone)]
pub struct Proof {
    holder: Arc<CredentialStore>,
    generation: u64,
    until: Option<SystemTime>,
    verdict: Option<Arc<Verdict>>,
}

impl Proof {
    pub(super) fn new(holder: Arc<CredentialStore>, verdict: Option<Arc<Verdict>>) -> Self {
        Self { generation: holder.generation(), holder, until: None, verdict }
    }

    /// The identity of a peer that presented `chain` in that handshake, which has verified it; anonymous if
    /// `chain` is empty.
    pub(crate) fn of(self, chain: &[CertificateDer<'_>]) -> Identity {
        self.of_at(chain, SystemTime::now())
    }

    fn of_at(self, chain: &[CertificateDer<'_>], now: SystemTime) -> Identity {
        if let Some(Judged { subject, until }) = self.verdict.as_ref().and_then(|verdict| verdict.found()).cloned() {
            return Identity { names: Vec::new(), subject: Some(subject), proof: Self { until: Some(until), ..self } };
        }
        let names = chain.first().map(|own| self.holder.get().names(own)).unwrap_or_default();
        // Ignore certificates that had already expired: verification succeeded without them.
        let until = chain.iter().filter_map(|one| expires(one)).filter(|until| *until > now).min();
        Identity { names, subject: None, proof: Self { until, ..self } }
    }

    /// Whether the proof is valid now.
    pub fn counts(&self) -> bool {
        self.counts_at(SystemTime::now())
    }

    fn counts_at(&self, now: SystemTime) -> bool {
        self.generation == self.holder.generation()
            && self.until.is_none_or(|until| now < until)
            && self.verdict.as_ref().is_none_or(|verdict| verdict.counts())
    }

    /// Waits until the proof is no longer valid. Cancel safe.
    pub async fn lapsed(&self) {
        while self.counts() {
            let left = self.until.and_then(|until| until.duration_since(SystemTime::now()).ok());
            let sleep = left.unwrap_or(SLEEP).min(SLEEP);
            // The result does not matter: the loop condition checks again.
            let judged = async {
                match &self.verdict {
                    Some(verdict) => verdict.changed().await,
                    None => std::future::pending().await,
                }
            };
            let changed = async {
                tokio::select! {
                    () = self.holder.changed_from(self.generation) => {}
                    () = judged => {}
                }
            };
            let _ = timeout(sleep, changed).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::Place;
    use super::super::{Credentials, pem};
    use super::*;

    const DAY: Duration = Duration::from_secs(24 * 3600);

    fn shown(credentials: &Credentials, place: &Place, name: &str) -> Identity {
        let chain = pem::certificates(&place.path(&format!("{name}.pem"))).unwrap();
        credentials.proof().of(&chain)
    }

    #[test]
    fn proof_lapses_when_a_certificate_expires() {
        let place = Place::new();
        let (own, other) = (place.credentials("pg1"), place.credentials("pg2"));
        let identity = shown(&own, &place, "pg2");
        assert_eq!(identity.names, ["pg2"]);
        let until = other.certificate_expires().unwrap() + Duration::from_secs(1);
        assert!(identity.proof.counts() && identity.proof.counts_at(until - DAY));
        assert!(!identity.proof.counts_at(until));
        // A handshake in the certificate's last second is valid.
        let chain = pem::certificates(&place.path("pg2.pem")).unwrap();
        let late = own.proof().of_at(&chain, until - Duration::from_millis(1));
        assert!(late.proof.counts_at(until - Duration::from_millis(1)) && !late.proof.counts_at(until));
        // A superfluous certificate that had already expired sets no limit.
        assert!(own.proof().of_at(&chain, until + DAY).proof.counts_at(until + DAY));
        // Nor does an empty chain.
        let nobody = own.proof().of(&[]);
        assert!(nobody.names.is_empty() && nobody.proof.counts_at(until + DAY));
    }

    #[tokio::test]
    async fn proof_lapses_when_credentials_change() {
        let place = Place::new();
        let (own, _) = (place.credentials("pg1"), place.credentials("pg2"));
        let before = shown(&own, &place, "pg2").proof;
        assert!(!own.reload().unwrap() && before.counts(), "nothing has changed");
        assert!(timeout(Duration::from_millis(1), before.lapsed()).await.is_err());
        let waiting = tokio::spawn(async move { before.lapsed().await });
        // Open credentials share what is in force with their original.
        let open = shown(&own.open(), &place, "pg2").proof;
        let renewed = place.credentials("pg1");
        assert!(own.adopt(&renewed) && !own.adopt(&renewed));
        assert!(!open.counts());
        waiting.await.unwrap();
        let after = shown(&own, &place, "pg2").proof;
        assert!(after.counts());
        own.retire();
        assert!(!after.counts());
        after.lapsed().await;
    }
}
