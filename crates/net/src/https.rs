//! Fetches a short document over HTTPS (RFC 9110), such as the keys of somebody who issues tokens. Blocks, in bounded time and memory.

use crate::credentials::{self, CredentialsError};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use ureq::tls::{Certificate, RootCerts, TlsConfig, TlsProvider};
use ureq::{Agent, Error};

/// Longest document, in bytes.
const DOCUMENT_MAX: u64 = 1 << 20;
/// Longest time for one document, from the lookup of the name to its last byte.
const LIMIT: Duration = Duration::from_secs(20);

/// Fetches documents from servers whose certificates are from given authorities. It follows no redirects.
#[derive(Debug, Clone)]
pub struct Https(Agent);

/// Why a document could not be fetched.
#[derive(Debug, thiserror::Error)]
pub enum HttpsError {
    /// There is nothing at the URL: the server has answered 404 or 410.
    #[error("{0}: there is no such document")]
    NotFound(String),
    /// Anything else.
    #[error("{url}: {source}")]
    Failed {
        /// The URL.
        url: String,
        /// Why.
        source: Box<Error>,
    },
    /// The server has answered, but not with a document.
    #[error("{url}: the server answered {status}; expected 200")]
    Status {
        /// The URL.
        url: String,
        /// HTTP's status code.
        status: u16,
    },
}

impl Https {
    /// With the authorities in a PEM file, or with those of the system.
    ///
    /// # Errors
    /// The file cannot be used.
    pub fn new(authorities: Option<&Path>) -> Result<Self, CredentialsError> {
        let found = match authorities {
            Some(file) => credentials::certificates(file)?,
            None => rustls_native_certs::load_native_certs().certs,
        };
        if found.is_empty() {
            return Err(CredentialsError::NoAuthorities);
        }
        let roots = found.iter().map(|der| Certificate::from_der(der).to_owned());
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = TlsConfig::builder()
            .provider(TlsProvider::Rustls)
            .root_certs(RootCerts::Specific(Arc::new(roots.collect())))
            .unversioned_rustls_crypto_provider(provider)
            .build();
        let config = Agent::config_builder()
            .https_only(true)
            // What a gateway fetches does not depend on the shell that it was started from.
            .proxy(None)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .http_status_as_error(false)
            .timeout_global(Some(LIMIT))
            .max_idle_connections(0)
            .user_agent(concat!("phoebus/", env!("CARGO_PKG_VERSION")))
            .tls_config(tls)
            .build();
        Ok(Self(config.into()))
    }

    /// Fetches the document at `url`.
    ///
    /// # Errors
    /// [`HttpsError`].
    pub fn get(&self, url: &str) -> Result<Vec<u8>, HttpsError> {
        let failed = |source| HttpsError::Failed { url: url.to_owned(), source: Box::new(source) };
        let mut answer = self.0.get(url).call().map_err(failed)?;
        match answer.status().as_u16() {
            200 => answer.body_mut().with_config().limit(DOCUMENT_MAX).read_to_vec().map_err(failed),
            404 | 410 => Err(HttpsError::NotFound(url.to_owned())),
            status => Err(HttpsError::Status { url: url.to_owned(), status }),
        }
    }
}
