//! Whom clients with certificates are issued by. The revocation lists are looked at before somebody proves who he is: programs that fetch
//! them tell nobody, and one that has run out shuts out everybody of its authority.

use super::config::Gsi;
use phoebus_gsi::context::Endpoint;
use phoebus_gsi::credential::Credential;
use phoebus_gsi::trust::directory::DirectoryError;
use phoebus_gsi::trust::kept::Kept;
use phoebus_gsi::trust::{MissingPolicy, TrustStore};
use rustls::crypto::CryptoProvider;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::sync::Mutex;
use tokio::time::timeout;

/// How long a login waits until lists have been looked at: far longer than a disk takes that works. What was read before counts then.
const PATIENCE: Duration = Duration::from_secs(5);

/// A directory of authorities, at which one looks at a time.
pub(crate) struct Authorities {
    kept: Kept,
    /// When the last look began.
    looking: Arc<Mutex<Option<Instant>>>,
}

/// Who this end is, and whom it believes. There is nothing in it to be shown.
#[derive(Clone)]
pub(crate) struct Own {
    pub(crate) credential: Credential,
    pub(crate) provider: Arc<CryptoProvider>,
    pub(crate) authorities: Arc<Authorities>,
}

impl Own {
    /// What contexts are made with.
    pub(crate) fn endpoint(&self) -> Endpoint {
        self.endpoint_with(&self.credential)
    }

    /// The same with what was lent.
    pub(crate) fn endpoint_with(&self, credential: &Credential) -> Endpoint {
        let (trust, provider) = (self.authorities.trust(), self.provider.clone());
        Endpoint { credential: credential.clone(), trust, provider }
    }

    /// Takes lists that were replaced.
    pub(crate) async fn look(&self) {
        let asked = Instant::now();
        let looked = async {
            let mut began = self.authorities.looking.clone().lock_owned().await;
            // One that began since has seen all that there was.
            if began.is_some_and(|began| began >= asked) {
                return;
            }
            *began = Some(Instant::now());
            let own = self.clone();
            // Whoever leaves meanwhile leaves no second look beside this one.
            let look = move || {
                own.authorities.look(&own.provider);
                drop(began);
            };
            let _ = tokio::task::spawn_blocking(look).await;
        };
        if timeout(PATIENCE, looked).await.is_err() {
            tracing::warn!("the directory of authorities takes long to be read; what was read before counts");
        }
    }
}

impl fmt::Debug for Own {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.credential.certificate().subject())
    }
}

impl Authorities {
    /// Those of a configuration. A file that cannot be used may be a revocation list, without which nobody is believed.
    pub(super) fn of(gsi: &Gsi) -> Result<Self, DirectoryError> {
        // Authorities without a signing policy may name nobody, as in GCT.
        let kept = Kept::read(&gsi.authorities, MissingPolicy::Refuse)?;
        Ok(Self { kept, looking: Arc::default() })
    }

    fn trust(&self) -> Arc<TrustStore> {
        self.kept.trust()
    }

    fn look(&self, provider: &CryptoProvider) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
        let now = i64::try_from(now).unwrap_or(i64::MAX);
        let looked = self.kept.look(provider.signature_verification_algorithms.all, now);
        for path in looked.taken {
            tracing::info!(path = %path.display(), "a revocation list was replaced, and counts");
        }
        for error in looked.problems {
            tracing::warn!(%error, "a revocation list was replaced by one that cannot be used; what was read before counts");
        }
    }
}
