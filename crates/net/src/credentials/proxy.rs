//! A user's proxy certificate (RFC 3820): one file with the certificate, its key, and the chain below an authority, as
//! grid-proxy-init writes it.
//!
//! Who has no better certificate shows it, and only to servers that take proxies. Proxies last for hours, and another program
//! renews them, so each handshake reads the file again.

use super::judge::{TAKES_PROXIES, public_key};
use super::{CredentialsError, certificate, pem, provider};
use rustls::sign::CertifiedKey;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

/// Reads the proxy in `file`, which has to be valid at `now`.
pub(super) fn read(file: &Path, now: SystemTime) -> Result<CertifiedKey, CredentialsError> {
    let unusable = |problem: String| CredentialsError::Unusable { file: file.into(), problem };
    let (chain, key) = (pem::certificates(file)?, pem::key(file)?);
    let expires = chain.iter().filter_map(|one| certificate::expires(one)).min();
    if let Some(expired) = expires.filter(|until| *until <= now) {
        let on = certificate::date(expired);
        return Err(unusable(format!("the proxy expired on {on}; grid-proxy-init makes a new one")));
    }
    let key = provider().key_provider.load_private_key(key).map_err(|error| unusable(error.to_string()))?;
    let shown = chain.first().and_then(|own| public_key(own).ok());
    if key.public_key().is_some_and(|own| shown.is_none_or(|shown| own.as_ref() != shown.as_ref())) {
        return Err(CredentialsError::Mismatch { certificate: file.into(), key: file.into() });
    }
    Ok(CertifiedKey::new(chain, key))
}

/// What to show to a server that names these authorities.
pub(super) fn shown_to(authorities: &[&[u8]], file: &Path) -> Option<Arc<CertifiedKey>> {
    let is_asked = authorities.contains(&TAKES_PROXIES[0].as_ref());
    is_asked.then(|| read(file, SystemTime::now()).ok()).flatten().map(Arc::new)
}
