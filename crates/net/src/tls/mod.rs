//! TLS 1.3 over any transport (RFC 8446), and TLS that ends once the ends have authenticated each other.
//!
//! - `encrypt` protects all of a connection; gateways use it between each other by default.
//! - `auth` authenticates both ends and protects the session's handshake, OPEN to OPENED. Then each side ends its TLS with
//!   close_notify ([`Stream::unprotect`]) and the next byte is raw, on the same socket, which can be spliced. Anyone on the
//!   path can read, alter or take over what follows.
//!
//! The TLS handshake itself negotiates which of the two applies (ALPN, RFC 7301), so nobody on the path can change it.
//!
//! An end of the underlying connection without close_notify is an error, never an end of stream. After close_notify in one
//! direction the other goes on: TLS has half-close.
//!
//! Reading order: [`Tls`] is the transport and [`listener`] its accepting side; [`AuthClient`] is `auth` without a socket.
//! `engine` is TLS without a socket, `connection` operates an open connection, `fault` describes failures.

mod accept;
mod buffer;
mod client;
mod connection;
mod engine;
mod exporter;
mod fault;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod hostile;
#[cfg(test)]
mod tests;

pub use accept::{Offer, listener};
pub use client::AuthClient;

use crate::credentials::{Credentials, Proof};
use crate::error::Error;
use crate::profile::Profile;
use crate::stream::Stream;
use crate::tcp::Tcp;
use crate::transport::{Boxed, Listener, Target, Transport};
use connection::{Connection, Settling};
use engine::{Engine, Intake};
use fault::Fault;
pub use fault::{UNKNOWN_AUTHORITY, WANTS_CERTIFICATE};
pub(crate) use fault::{is_of_certificate, told};
use phoebus_proto::units::Span;
use rustls::pki_types::ServerName;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// How much of a connection TLS protects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// All of it.
    Encrypt,
    /// The handshake of the session: each side ends its TLS when it has sent everything that is to be
    /// protected.
    Auth,
}

impl Mode {
    /// The name in ALPN.
    fn protocol(self) -> &'static [u8] {
        match self {
            Self::Encrypt => b"phoebus/1",
            Self::Auth => b"phoebus-auth/1",
        }
    }

    fn of(protocol: &[u8]) -> Option<Self> {
        [Self::Encrypt, Self::Auth].into_iter().find(|mode| mode.protocol() == protocol)
    }
}

/// TLS over another transport.
#[derive(Debug, Clone)]
pub struct Tls {
    name: &'static str,
    under: Arc<dyn Transport>,
    credentials: Credentials,
    mode: Mode,
}

impl Tls {
    /// The transport `tls`: all bytes over TCP are encrypted.
    pub fn encrypt(credentials: Credentials) -> Self {
        Self { name: "tls", under: Arc::new(Tcp), credentials, mode: Mode::Encrypt }
    }

    /// The transport `tls-auth`: TCP with mutual authentication; the [module documentation](self) describes
    /// `auth`.
    pub fn auth(credentials: Credentials) -> Self {
        Self { name: "tls-auth", under: Arc::new(Tcp), credentials, mode: Mode::Auth }
    }

    /// The same over `under` instead of TCP, with another name.
    #[must_use]
    pub fn over(self, under: Arc<dyn Transport>, name: &'static str) -> Self {
        Self { name, under, ..self }
    }

    /// A hint how to fix the peer's configuration. Listeners for TCP accept TLS without one.
    fn remedy(&self, fault: &Fault) -> String {
        match (fault, self.under.name()) {
            (Fault::NotTls, "tcp") => String::new(),
            (Fault::NotTls, under) => format!(": its [[listen]] for {under} needs security = \"encrypt\""),
            _ => String::new(),
        }
    }

    /// Performs the TLS handshake as the client of `io`; the server must prove to be `name`.
    async fn secure(&self, io: Stream, name: ServerName<'static>) -> Result<Stream, Settling> {
        let proof = self.credentials.proof();
        let config = self.credentials.client_config(&[self.mode.protocol()]);
        let mut engine = Engine::client(config, name, Intake::Exact)?;
        connection::settle(&io, &mut engine).await?;
        // The server chose from the offered protocols, or ignored ALPN: then it is no gateway.
        if engine.protocol() != Some(self.mode.protocol()) {
            return Err(Fault::Protocol.into());
        }
        Ok(established(io, engine, self.mode, proof))
    }
}

/// Wraps `io` after a handshake; `proof` was taken before the handshake.
fn established(io: Stream, mut engine: Engine, mode: Mode, proof: Proof) -> Stream {
    if mode == Mode::Encrypt {
        engine.set_intake(Intake::Bulk);
    }
    let identity = proof.of(engine.peer_certificates());
    Connection::new(io, engine, mode, identity).into()
}

impl Transport for Tls {
    fn name(&self) -> &'static str {
        self.name
    }

    /// The peer's certificate must be for [`Target::name`].
    ///
    /// The server checks this end's certificate after this end's handshake is complete: if it rejects the
    /// certificate, the first read fails with `PermissionDenied`.
    fn connect<'a>(
        &'a self,
        to: &'a Target,
        profile: &'a Profile,
        limit: Duration,
    ) -> Boxed<'a, Result<Stream, Error>> {
        Box::pin(async move {
            let name = ServerName::try_from(to.name.to_string()).map_err(|_| Error::Untrusted {
                to: to.addr.to_string(),
                reason: format!("\"{}\" is not a name or address that a certificate can carry", to.name),
            })?;
            let connect = async {
                let io = self.under.connect(to, profile, limit).await?;
                self.secure(io, name).await.map_err(|settling| match settling {
                    Settling::Io(source) => Error::Connect { to: to.addr, source },
                    Settling::Fault(fault) if fault.is_told() => {
                        Error::Rejected { to: format!("{} at {}", to.name, to.addr), reason: fault.to_string() }
                    }
                    Settling::Fault(fault) if fault.is_distrust() => {
                        let to = format!("{} at {}", to.name, to.addr);
                        Error::Untrusted { to, reason: format!("{fault}{}", self.remedy(&fault)) }
                    }
                    Settling::Fault(fault) => Error::Connect { to: to.addr, source: fault.into_io() },
                })
            };
            let late = Error::Timeout { to: to.addr.to_string(), limit: Span(limit) };
            tokio::time::timeout(limit, connect).await.unwrap_or(Err(late))
        })
    }

    fn listen(&self, addr: SocketAddr, profile: &Profile) -> Result<Box<dyn Listener>, Error> {
        let offer =
            Offer { encrypt: self.mode == Mode::Encrypt, auth: self.mode == Mode::Auth, none: false, others: false };
        Ok(listener(self.under.listen(addr, profile)?, &self.credentials, offer))
    }
}
