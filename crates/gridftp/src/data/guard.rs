//! Who is at the other end of a data connection, and what protects its bytes (`DCAU`, `PROT`; GFD.20, section 3.1; RFC 4217;
//! U1, U3).

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
use std::time::Duration;

pub use phoebus_gsi::channel::Protection;

/// How data connections are authenticated and protected.
#[derive(Clone)]
pub enum Guard {
    /// By proxies. The side that connects is TLS's client.
    Gsi {
        /// Who this end is, and whom it believes.
        endpoint: Endpoint,
        /// Who the other end has to be.
        peer: Expect,
        /// What protects the bytes that follow.
        protection: Protection,
    },
    /// By TLS, of which this end is the server, whoever connects: that of FTPS is (RFC 4217, section 7).
    TlsServer {
        /// What it shows, and which sessions it remembers.
        config: Arc<ServerConfig>,
        /// Whether the other end has to resume one of these, by which it proves that it is the client of the control connection.
        resumes: bool,
    },
    /// By TLS, of which this end is the client: that of FTPS is.
    TlsClient(Arc<ClientConfig>, ServerName<'static>),
    /// By TLS between ends that have told each other their keys.
    Pinned(Pinned),
    /// By what protects the control connection: Kerberos.
    #[cfg(feature = "kerberos")]
    Kerberos {
        /// The ends that know each other.
        context: Arc<phoebus_krb5::Context>,
        /// Whether nobody else can read it (PROT P); otherwise nobody else can alter it (PROT S).
        private: bool,
    },
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gsi { peer, protection, .. } => write!(f, "Gsi({peer:?}, {protection:?})"),
            Self::TlsServer { resumes, .. } => write!(f, "TlsServer(resumes: {resumes})"),
            Self::Pinned(_) => f.write_str("Pinned"),
            #[cfg(feature = "kerberos")]
            Self::Kerberos { context, private } => write!(f, "Kerberos({context:?}, {private})"),
            Self::TlsClient(_, name) => write!(f, "TlsClient({name:?})"),
        }
    }
}

/// The protection of one connection.
#[derive(Debug)]
pub(super) enum Shield {
    Gsi(Box<Gsi>),
    Tls(Tls),
    #[cfg(feature = "kerberos")]
    Kerberos(Tokens),
}

impl Shield {
    /// Agrees with the other end of `stream`, which this end has `connected` to, or has not.
    pub(super) async fn up(guard: &Guard, stream: &Stream, connected: bool, patience: Duration) -> Result<Self, Error> {
        Ok(match guard {
            Guard::Gsi { endpoint, peer, protection } => {
                Self::Gsi(Box::new(Gsi::up((endpoint, peer, *protection), stream, connected, patience).await?))
            }
            #[cfg(feature = "kerberos")]
            Guard::Kerberos { context, private } => Self::Kerberos(Tokens::new(context.clone(), *private)),
            Guard::Pinned(pinned) => Self::Tls(pinned.up(stream, connected, patience).await?),
            Guard::TlsServer { config, resumes } => {
                let (config, sessions) = Unproven::of(config);
                let tls = Tls::accept(config, Tickets::BeforeWords, stream, patience).await;
                let tls = tls.map_err(Error::Tls)?;
                if *resumes && !tls.has_resumed() {
                    return Err(Error::NotResumed);
                }
                // Those of a stranger who was refused would prove that he is the client when he comes back.
                sessions.accept();
                Self::Tls(tls)
            }
            Guard::TlsClient(config, name) => {
                Self::Tls(Tls::connect(config.clone(), name.clone(), stream, patience).await.map_err(Error::Tls)?)
            }
        })
    }
}
