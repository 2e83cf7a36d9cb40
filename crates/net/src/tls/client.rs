//! The client of `tls-auth` without a socket, for callers that move the bytes themselves: TLS protects the
//! session's handshake and ends in both directions before the stream begins.
//!
//! The client never asks for bytes behind the record with the peer's close_notify: they belong to the stream.

use super::Mode;
use super::engine::{Engine, Intake};
use super::fault::Fault;
use crate::credentials::Credentials;
use rustls::pki_types::{ServerName, UnixTime};
use rustls::time_provider::TimeProvider;
use std::io;
use std::sync::Arc;
use std::time::SystemTime;

/// A fixed time.
#[derive(Debug)]
struct At(UnixTime);

impl TimeProvider for At {
    fn current_time(&self) -> Option<UnixTime> {
        Some(self.0)
    }
}

/// A sans-IO client; see the module documentation. Errors are those of a [`Stream`](crate::Stream) under
/// `tls-auth`: `PermissionDenied` means that one end has not proved its identity, or that the ends differ on
/// how to protect the hop. After an error, [`AuthClient::outgoing`] contains the alert for the peer.
#[derive(Debug)]
pub struct AuthClient {
    engine: Engine,
}

impl AuthClient {
    /// Starts a handshake with a server that must present a certificate for `name`, a host name or an
    /// address, that is valid at `at`.
    ///
    /// # Errors
    /// `InvalidInput` when no certificate can carry `name`.
    pub fn new(credentials: &Credentials, name: &str, at: SystemTime) -> io::Result<Self> {
        let server = ServerName::try_from(name.to_owned()).map_err(|_| {
            let why = format!("\"{name}\" is not a name or address that a certificate can carry");
            io::Error::new(io::ErrorKind::InvalidInput, why)
        })?;
        let mut config = Arc::unwrap_or_clone(credentials.client_config(&[Mode::Auth.protocol()]));
        let since = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        config.time_provider = Arc::new(At(UnixTime::since_unix_epoch(since)));
        Ok(Self { engine: Engine::client(Arc::new(config), server, Intake::Exact).map_err(Fault::into_io)? })
    }

    /// The bytes to send.
    pub fn outgoing(&self) -> &[u8] {
        self.engine.outgoing()
    }

    /// Removes the first `n` bytes of [`AuthClient::outgoing`], which were sent.
    pub fn sent(&mut self, n: usize) {
        self.engine.sent(n);
    }

    /// How many of the next bytes certainly belong to TLS; 0 once the peer has sent close_notify.
    pub fn want(&mut self) -> usize {
        self.engine.space().len()
    }

    /// See [`Stream::channel_binding`](crate::Stream::channel_binding). `None` before [`AuthClient::is_ready`].
    pub fn channel_binding(&self) -> Option<[u8; 32]> {
        self.engine.channel_binding()
    }

    /// Consumes received bytes, at most [`AuthClient::want`], and returns their number.
    ///
    /// # Errors
    /// See [`AuthClient`].
    pub fn receive(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let space = self.engine.space();
        let n = space.len().min(bytes.len());
        space[..n].copy_from_slice(&bytes[..n]);
        self.engine.received(n).map_err(Fault::into_io)?;
        // The server chose from the offered protocols, or ignored ALPN: then it is no gateway.
        if self.is_ready() && self.engine.protocol() != Some(Mode::Auth.protocol()) {
            return Err(Fault::Protocol.into_io());
        }
        Ok(n)
    }

    /// Whether the handshake is complete and both ends may write.
    pub fn is_ready(&self) -> bool {
        !self.engine.is_handshaking()
    }

    /// Encrypts as much of `bytes` as fits, and returns the number of bytes.
    ///
    /// # Errors
    /// See [`AuthClient`].
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.engine.write(bytes).map_err(Fault::into_io)
    }

    /// Decrypts what the peer wrote; `None` when more bytes must arrive first, 0 after its close_notify.
    /// `out` must not be empty.
    ///
    /// # Errors
    /// See [`AuthClient`].
    pub fn read(&mut self, out: &mut [u8]) -> io::Result<Option<usize>> {
        self.engine.read(out).map_err(Fault::into_io)
    }

    /// Sends close_notify. The bytes written behind [`AuthClient::outgoing`] belong to the stream.
    ///
    /// # Errors
    /// See [`AuthClient`].
    pub fn close(&mut self) -> io::Result<()> {
        self.engine.close().map_err(Fault::into_io)
    }

    /// Whether this end has sent close_notify.
    pub fn is_closed(&self) -> bool {
        self.engine.is_closed()
    }
}
