//! TLS 1.3 over any transport (RFC 8446), and TLS that ends once the ends know each other.
//!
//! - `encrypt` protects all of a connection, and is what gateways use between each other unless told otherwise.
//! - `auth` proves who is at both ends and protects what they settle, OPEN to OPENED. Then each side ends its TLS with
//!   close_notify ([`Stream::unprotect`]) and the next byte is raw, on the same socket, which can be spliced. Anyone on the path
//!   can read, alter or take over what follows.
//!
//! Which of the two is settled by the handshake itself (ALPN, RFC 7301), so that nobody on the path can turn one into the other.
//!
//! An end of the connection below without close_notify is an error, never an end of stream. After close_notify in one direction
//! the other goes on: TLS has half-close of its own.
//!
//! Reading order: [`Tls`] is the transport and [`listener`] the other side, [`AuthClient`] `auth` without a socket; `engine` is TLS without a socket, `connection` what an
//! open connection can do, `fault` what is told when one cannot go on.

mod accept;
mod buffer;
mod client;
mod connection;
mod engine;
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
use phoebus_proto::units::Span;
use rustls::pki_types::ServerName;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// For how much of a connection TLS lasts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// All.
    Encrypt,
    /// Until each side has said all that is to be protected.
    Auth,
}

impl Mode {
    /// As the handshake names it.
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

    /// The transport `tls-auth`: TCP whose ends have proved who they are, with `auth` as [the module](self) says.
    pub fn auth(credentials: Credentials) -> Self {
        Self { name: "tls-auth", under: Arc::new(Tcp), credentials, mode: Mode::Auth }
    }

    /// The same over `under` instead of TCP, under another name.
    #[must_use]
    pub fn over(self, under: Arc<dyn Transport>, name: &'static str) -> Self {
        Self { name, under, ..self }
    }

    /// What the other end may lack. Its listeners for TCP take TLS by themselves.
    fn remedy(&self, fault: &Fault) -> String {
        match (fault, self.under.name()) {
            (Fault::NotTls, "tcp") => String::new(),
            (Fault::NotTls, under) => format!(": its [[listen]] for {under} needs security = \"encrypt\""),
            _ => String::new(),
        }
    }

    /// TLS as the connecting end of `io`, with one who has to be `name`.
    async fn secure(&self, io: Stream, name: ServerName<'static>) -> Result<Stream, Settling> {
        let proof = self.credentials.proof();
        let config = self.credentials.client_config(&[self.mode.protocol()]);
        let mut engine = Engine::client(config, name, Intake::Exact)?;
        connection::settle(&io, &mut engine).await?;
        // The other end chose from what was offered, or ignored the question: then it is no gateway.
        if engine.protocol() != Some(self.mode.protocol()) {
            return Err(Fault::Protocol.into());
        }
        Ok(established(io, engine, self.mode, proof))
    }
}

/// What follows a handshake, of whose beginning `proof` is.
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

    /// [`Target::name`] has to be one that the other end's certificate is for.
    ///
    /// The other end looks at this end's certificate after this end is done: where it does not accept it, the first read says
    /// so, with `PermissionDenied`.
    fn connect<'a>(
        &'a self,
        to: &'a Target,
        profile: &'a Profile,
        limit: Duration,
    ) -> Boxed<'a, Result<Stream, Error>> {
        Box::pin(async move {
            let name = ServerName::try_from(to.name.to_string()).map_err(|_| Error::Untrusted {
                to: to.addr.to_string(),
                reason: format!("\"{}\" is no name or address that a certificate could be for", to.name),
            })?;
            let connect = async {
                let io = self.under.connect(to, profile, limit).await?;
                self.secure(io, name).await.map_err(|settling| match settling {
                    Settling::Io(source) => Error::Connect { to: to.addr, source },
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
        let offer = Offer { encrypt: self.mode == Mode::Encrypt, auth: self.mode == Mode::Auth, none: false };
        Ok(listener(self.under.listen(addr, profile)?, &self.credentials, offer))
    }
}
