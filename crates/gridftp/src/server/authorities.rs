//! The certificate authorities that clients are verified against. Revocation lists are read again before each login:
//! the programs that fetch them notify nobody, and an expired list refuses everybody of its authority.

use super::config::Gsi;
use phoebus_gsi::context::Endpoint;
use phoebus_gsi::credential::Credential;
use phoebus_gsi::trust::directory::DirectoryError;
use phoebus_gsi::trust::kept::TrustDirectory;
use phoebus_gsi::trust::{MissingPolicy, TrustStore};
use rustls::crypto::CryptoProvider;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::sync::Mutex;
use tokio::time::timeout;

/// Longest wait of a login for the lists to be read, far longer than a working disk takes. After it, the earlier lists
/// hold.
const LOOK_TIME_MAX: Duration = Duration::from_secs(5);

/// A directory of authorities. One task at a time reads it.
pub(crate) struct Authorities {
    kept: TrustDirectory,
    /// Start of the last read.
    reading: Arc<Mutex<Option<Instant>>>,
}

/// The credential of this server, and the authorities that it trusts. Debug output has no secrets.
#[derive(Clone)]
pub(crate) struct HostIdentity {
    pub(crate) credential: Credential,
    pub(crate) provider: Arc<CryptoProvider>,
    pub(crate) authorities: Arc<Authorities>,
}

impl HostIdentity {
    /// The endpoint for new security contexts.
    pub(crate) fn endpoint(&self) -> Endpoint {
        self.endpoint_with(&self.credential)
    }

    /// The same with a delegated credential.
    pub(crate) fn endpoint_with(&self, credential: &Credential) -> Endpoint {
        let (trust, provider) = (self.authorities.trust(), self.provider.clone());
        Endpoint { credential: credential.clone(), trust, provider }
    }

    /// Reads revocation lists that were replaced.
    pub(crate) async fn refresh(&self) {
        let asked = Instant::now();
        let looked = async {
            let mut began = self.authorities.reading.clone().lock_owned().await;
            // A read that began after the request has seen all lists.
            if began.is_some_and(|began| began >= asked) {
                return;
            }
            *began = Some(Instant::now());
            let own = self.clone();
            // The lock stays with the read, so that a client that leaves starts no second one.
            let look = move || {
                own.authorities.look(&own.provider);
                drop(began);
            };
            let _ = tokio::task::spawn_blocking(look).await;
        };
        if timeout(LOOK_TIME_MAX, looked).await.is_err() {
            tracing::warn!(
                "the directory of authorities takes long to be read; the version read before stays in force"
            );
        }
    }
}

impl fmt::Debug for HostIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.credential.certificate().subject())
    }
}

impl Authorities {
    /// Reads the directory. Any unusable file is an error, since it may be a revocation list.
    pub(super) fn of(gsi: &Gsi) -> Result<Self, DirectoryError> {
        // Authorities without a signing policy may name nobody, as in GCT.
        let kept = TrustDirectory::read(&gsi.authorities, MissingPolicy::Refuse)?;
        Ok(Self { kept, reading: Arc::default() })
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
            tracing::warn!(%error, "a revocation list was replaced by one that cannot be used; the version read before stays in force");
        }
    }
}
