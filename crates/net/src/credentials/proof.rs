//! For how long what an end has proved counts. Whoever keeps connections for later, or shares one among many, asks before it is
//! used again: a handshake says who was there when it took place, and connections live for days.

use super::certificate::{expires, names_in};
use super::in_force::Holder;
use rustls::pki_types::CertificateDer;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::time::timeout;

/// Who an end has proved to be, by a certificate that this end trusts; nobody, without names, where it showed none.
#[derive(Debug, Clone)]
pub struct Identity {
    /// The names that the certificate is for (RFC 6125: DNS names of its subject alternative name).
    pub names: Vec<String>,
    /// For how long that counts.
    pub proof: Proof,
}

/// The longest that is slept at a time until a certificate expires: clocks are set, and sleep is not told.
const SLEEP: Duration = Duration::from_secs(60);

/// That a handshake has taken place, under the credentials that were in force when it began.
///
/// It counts until others are in force at this end, or a certificate expires that the other end has shown. Then a handshake would
/// end otherwise, or might: nothing new belongs on the connection, while what has begun on it may go on.
#[derive(Debug, Clone)]
pub struct Proof {
    holder: Arc<Holder>,
    turn: u64,
    until: Option<SystemTime>,
}

impl Proof {
    pub(super) fn new(holder: Arc<Holder>) -> Self {
        Self { turn: holder.turn(), holder, until: None }
    }

    /// Who has shown `chain` in that handshake, which has verified it; nobody, where that is empty.
    pub(crate) fn of(self, chain: &[CertificateDer<'_>]) -> Identity {
        self.of_at(chain, SystemTime::now())
    }

    fn of_at(self, chain: &[CertificateDer<'_>], now: SystemTime) -> Identity {
        let names = chain.first().map(|own| names_in(own)).unwrap_or_default();
        // One that has expired already was verified without: nobody needed it.
        let until = chain.iter().filter_map(|one| expires(one)).filter(|until| *until > now).min();
        Identity { names, proof: Self { until, ..self } }
    }

    /// Whether it counts now.
    pub fn counts(&self) -> bool {
        self.counts_at(SystemTime::now())
    }

    fn counts_at(&self, now: SystemTime) -> bool {
        self.turn == self.holder.turn() && self.until.is_none_or(|until| now < until)
    }

    /// Waits until it counts no more. Cancel safe.
    pub async fn lapsed(&self) {
        while self.counts() {
            let left = self.until.and_then(|until| until.duration_since(SystemTime::now()).ok());
            let sleep = left.unwrap_or(SLEEP).min(SLEEP);
            // What is over by then is seen above.
            let _ = timeout(sleep, self.holder.turned(self.turn)).await;
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
    fn it_counts_until_a_certificate_expires() {
        let place = Place::new();
        let (own, other) = (place.credentials("pg1"), place.credentials("pg2"));
        let identity = shown(&own, &place, "pg2");
        assert_eq!(identity.names, ["pg2"]);
        let until = other.certificate_expires().unwrap() + Duration::from_secs(1);
        assert!(identity.proof.counts() && identity.proof.counts_at(until - DAY));
        assert!(!identity.proof.counts_at(until));
        // A handshake in its last second is one like any other.
        let chain = pem::certificates(&place.path("pg2.pem")).unwrap();
        let late = own.proof().of_at(&chain, until - Duration::from_millis(1));
        assert!(late.proof.counts_at(until - Duration::from_millis(1)) && !late.proof.counts_at(until));
        // One that nobody needed, since it had expired before, says nothing.
        assert!(own.proof().of_at(&chain, until + DAY).proof.counts_at(until + DAY));
        // Nor does one that has shown nothing.
        let nobody = own.proof().of(&[]);
        assert!(nobody.names.is_empty() && nobody.proof.counts_at(until + DAY));
    }

    #[tokio::test]
    async fn it_counts_until_something_else_is_in_force() {
        let place = Place::new();
        let (own, _) = (place.credentials("pg1"), place.credentials("pg2"));
        let before = shown(&own, &place, "pg2").proof;
        assert!(!own.reload().unwrap() && before.counts(), "nothing has changed");
        assert!(timeout(Duration::from_millis(1), before.lapsed()).await.is_err());
        let waiting = tokio::spawn(async move { before.lapsed().await });
        // Who takes those without certificates shares what is in force.
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
