//! Authentication of the peer and protection of data (`DCAU`, `PROT`; GFD.20, section 3.1; RFC 4217; U1, U3).

use super::error::Error;
use super::gsi::Gsi;
#[cfg(feature = "kerberos")]
use super::kerberos::Tokens;
use super::pinned::Pinned;
use super::sessions::Unproven;
use crate::tls::{Tickets, Tls};
use phoebus_gsi::context::{Endpoint, Expect};
use phoebus_net::Stream;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ServerConfig};
use std::fmt;
use std::sync::Arc;
#[cfg(feature = "kerberos")]
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

pub use phoebus_gsi::channel::Protection;

/// How data connections are authenticated and protected.
#[derive(Clone)]
pub enum ChannelSecurity {
    /// By proxies. The connecting end is the TLS client.
    Gsi {
        /// The credential of this end, and the trusted authorities.
        endpoint: Endpoint,
        /// The expected peer.
        peer: Expect,
        /// The protection of data.
        protection: Protection,
    },
    /// By TLS, with this end as its server, whichever end connects, as in FTPS (RFC 4217, section 7).
    TlsServer {
        /// Certificate and sessions.
        config: Arc<ServerConfig>,
        /// Whether the peer must resume one of the sessions, which proves that it is the client of the control
        /// connection.
        resumes: bool,
    },
    /// By TLS, with this end as its client, as in FTPS.
    TlsClient(Arc<ClientConfig>, ServerName<'static>),
    /// By TLS between pinned keys.
    Pinned(Pinned),
    /// By the Kerberos context of the control connection.
    #[cfg(feature = "kerberos")]
    Kerberos {
        /// The context.
        context: Arc<phoebus_krb5::Context>,
        /// Whether data is encrypted (PROT P), or only authenticated (PROT S).
        private: bool,
        /// The sequence number of the last message before the transfer.
        before: Arc<AtomicU64>,
    },
}

impl ChannelSecurity {
    /// Records that a transfer begins. Commands that come from now on belong to the messages that have to arrive before its
    /// end, even if they are read before its connection is accepted.
    pub(super) fn begin(&self) {
        #[cfg(feature = "kerberos")]
        if let Self::Kerberos { context, before, .. } = self {
            before.store(context.latest(), Ordering::Relaxed);
        }
    }
}

impl fmt::Debug for ChannelSecurity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gsi { peer, protection, .. } => write!(f, "Gsi({peer:?}, {protection:?})"),
            Self::TlsServer { resumes, .. } => write!(f, "TlsServer(resumes: {resumes})"),
            Self::Pinned(_) => f.write_str("Pinned"),
            #[cfg(feature = "kerberos")]
            Self::Kerberos { context, private, .. } => write!(f, "Kerberos({context:?}, {private})"),
            Self::TlsClient(_, name) => write!(f, "TlsClient({name:?})"),
        }
    }
}

/// The protection of one connection.
#[derive(Debug)]
pub(super) enum SecureLayer {
    Gsi(Box<Gsi>),
    Tls(Tls),
    #[cfg(feature = "kerberos")]
    Kerberos(Tokens),
}

impl SecureLayer {
    /// Performs the handshake over `stream`. `connected`: this end has connected.
    pub(super) async fn up(
        security: &ChannelSecurity,
        stream: &Stream,
        connected: bool,
        reply_timeout: Duration,
    ) -> Result<Self, Error> {
        Ok(match security {
            ChannelSecurity::Gsi { endpoint, peer, protection } => {
                Self::Gsi(Box::new(Gsi::up((endpoint, peer, *protection), stream, connected, reply_timeout).await?))
            }
            #[cfg(feature = "kerberos")]
            ChannelSecurity::Kerberos { context, private, before } => {
                Self::Kerberos(Tokens::new(context.clone(), *private, before.load(Ordering::Relaxed)))
            }
            ChannelSecurity::Pinned(pinned) => Self::Tls(pinned.up(stream, connected, reply_timeout).await?),
            ChannelSecurity::TlsServer { config, resumes } => {
                let (config, sessions) = Unproven::of(config);
                let tls = Tls::accept(config, Tickets::BeforeWords, stream, reply_timeout).await;
                let tls = tls.map_err(Error::Tls)?;
                if *resumes && !tls.has_resumed() {
                    return Err(Error::NotResumed);
                }
                // Sessions of a refused stranger would let it resume one when it comes back.
                sessions.accept();
                Self::Tls(tls)
            }
            ChannelSecurity::TlsClient(config, name) => {
                Self::Tls(Tls::connect(config.clone(), name.clone(), stream, reply_timeout).await.map_err(Error::Tls)?)
            }
        })
    }
}
