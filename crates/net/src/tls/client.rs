//! The connecting end of `tls-auth` without a socket, for those who move the bytes themselves: TLS that protects what is settled,
//! and ends on both sides before the stream begins.
//!
//! No byte behind the record in which the other end closes is ever wanted: it belongs to the stream.

use super::Mode;
use super::engine::{Engine, Intake};
use super::fault::Fault;
use crate::credentials::Credentials;
use rustls::pki_types::{ServerName, UnixTime};
use rustls::time_provider::TimeProvider;
use std::io;
use std::sync::Arc;
use std::time::SystemTime;

/// A time that was looked up before.
#[derive(Debug)]
struct At(UnixTime);

impl TimeProvider for At {
    fn current_time(&self) -> Option<UnixTime> {
        Some(self.0)
    }
}

/// See the module. Errors are those of a [`Stream`](crate::Stream) under `tls-auth`: `PermissionDenied` says that one end does not
/// prove who it is, or that the ends differ on how to protect the hop. After one, [`AuthClient::outgoing`] has what the other end
/// is to be told about it.
#[derive(Debug)]
pub struct AuthClient {
    engine: Engine,
}

impl AuthClient {
    /// To one who has to show a certificate for `name`, a host name or an address, that counts at the time `at`.
    ///
    /// # Errors
    /// `InvalidInput` when no certificate could be for such a name.
    pub fn new(credentials: &Credentials, name: &str, at: SystemTime) -> io::Result<Self> {
        let server = ServerName::try_from(name.to_owned()).map_err(|_| {
            let why = format!("\"{name}\" is no name or address that a certificate could be for");
            io::Error::new(io::ErrorKind::InvalidInput, why)
        })?;
        let mut config = Arc::unwrap_or_clone(credentials.client_config(&[Mode::Auth.protocol()]));
        let since = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        config.time_provider = Arc::new(At(UnixTime::since_unix_epoch(since)));
        Ok(Self { engine: Engine::client(Arc::new(config), server, Intake::Exact).map_err(Fault::into_io)? })
    }

    /// What is to be sent.
    pub fn outgoing(&self) -> &[u8] {
        self.engine.outgoing()
    }

    /// Notes that the first `n` bytes of [`AuthClient::outgoing`] were sent.
    pub fn sent(&mut self, n: usize) {
        self.engine.sent(n);
    }

    /// How many bytes surely belong to TLS, of those that come next. 0 once the other end has closed.
    pub fn want(&mut self) -> usize {
        self.engine.space().len()
    }

    /// Takes what came, at most [`AuthClient::want`] bytes of it, and says how many that were.
    ///
    /// # Errors
    /// As the type says.
    pub fn receive(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let space = self.engine.space();
        let n = space.len().min(bytes.len());
        space[..n].copy_from_slice(&bytes[..n]);
        self.engine.received(n).map_err(Fault::into_io)?;
        // The other end chose from what was offered, or ignored the question: then it is no gateway.
        if self.is_ready() && self.engine.protocol() != Some(Mode::Auth.protocol()) {
            return Err(Fault::Protocol.into_io());
        }
        Ok(n)
    }

    /// Whether both ends know each other, and may write.
    pub fn is_ready(&self) -> bool {
        !self.engine.is_handshaking()
    }

    /// Encrypts as much of `bytes` as there is room for, and says how much that was.
    ///
    /// # Errors
    /// As the type says.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.engine.write(bytes).map_err(Fault::into_io)
    }

    /// Takes what the other end wrote; `None` when more has to come, 0 once it has closed. `out` must not be empty.
    ///
    /// # Errors
    /// As the type says.
    pub fn read(&mut self, out: &mut [u8]) -> io::Result<Option<usize>> {
        self.engine.read(out).map_err(Fault::into_io)
    }

    /// Ends what this end has to protect. What is written to the connection behind [`AuthClient::outgoing`] is the stream's.
    ///
    /// # Errors
    /// As the type says.
    pub fn close(&mut self) -> io::Result<()> {
        self.engine.close().map_err(Fault::into_io)
    }

    /// Whether this end has closed.
    pub fn is_closed(&self) -> bool {
        self.engine.is_closed()
    }
}
