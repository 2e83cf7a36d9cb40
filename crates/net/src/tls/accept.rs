//! The accepting side: one listener for clients with TLS and, where permitted, clients without it.

use super::connection::{self, Settling};
use super::engine::{Engine, Intake};
use super::fault::Fault;
use super::{Mode, established};
use crate::credentials::{Credentials, Proof};
use crate::stream::Stream;
use crate::transport::{Boxed, Listener, Pending};
use phoebus_proto::proxy_header::Origin;
use rustls::ServerConfig;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

/// The first byte of a TLS connection: the content type of the record with the ClientHello. No session begins
/// with it.
const HANDSHAKE_RECORD: u8 = 0x16;
/// What programs name in ALPN that speak HTTP/1.1 inside TLS (RFC 7301 §6).
const HTTP: &[u8] = b"http/1.1";

/// The kinds of protection that a listener accepts. [`Stream::security`] tells which one the client chose,
/// and [`Stream::identity`] who it is; the caller decides whether that suffices for the client's request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Offer {
    /// TLS for the whole connection.
    pub encrypt: bool,
    /// TLS for the handshake of the session only.
    pub auth: bool,
    /// No TLS: clients without it. Requires a transport whose bytes can be peeked at (TCP).
    pub none: bool,
    /// TLS for the whole connection, of programs that do not know this protocol: they name `http/1.1` in ALPN, or nothing.
    pub others: bool,
}

impl Offer {
    fn protocols(self) -> Vec<&'static [u8]> {
        let offered =
            [(self.encrypt, Mode::Encrypt.protocol()), (self.auth, Mode::Auth.protocol()), (self.others, HTTP)];
        offered.into_iter().filter(|(offered, _)| *offered).map(|(_, protocol)| protocol).collect()
    }

    /// The protection of a connection for which the client has agreed to this protocol.
    fn mode(self, protocol: Option<&[u8]>) -> Option<Mode> {
        match protocol {
            None | Some(HTTP) => self.others.then_some(Mode::Encrypt),
            Some(protocol) => Mode::of(protocol),
        }
    }
}

/// Wraps the connections of `under` in the protection that `offer` describes.
pub fn listener(under: Box<dyn Listener>, credentials: &Credentials, offer: Offer) -> Box<dyn Listener> {
    Box::new(Listening { under, credentials: credentials.clone(), offer })
}

#[derive(Debug)]
struct Listening {
    under: Box<dyn Listener>,
    credentials: Credentials,
    offer: Offer,
}

impl Listener for Listening {
    fn accept(&self) -> Boxed<'_, io::Result<(Box<dyn Pending>, SocketAddr)>> {
        Box::pin(async {
            let (under, from) = self.under.accept().await?;
            let pending = Arriving { under, credentials: self.credentials.clone(), offer: self.offer };
            Ok((Box::new(pending) as Box<dyn Pending>, from))
        })
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.under.local_addr()
    }

    fn note(&self) -> Option<&str> {
        self.under.note()
    }
}

#[derive(Debug)]
struct Arriving {
    under: Box<dyn Pending>,
    credentials: Credentials,
    offer: Offer,
}

impl Pending for Arriving {
    fn origin(&mut self) -> Boxed<'_, io::Result<Origin>> {
        self.under.origin()
    }

    fn handshake(self: Box<Self>) -> Boxed<'static, io::Result<Stream>> {
        Box::pin(async move {
            let io = self.under.handshake().await?;
            if self.offer.none && !begins_with_tls(&io).await? {
                return Ok(io);
            }
            let (config, proof) = self.credentials.server_handshake(&self.offer.protocols());
            secure(io, config, self.offer, proof).await.map_err(|settling| match settling {
                Settling::Io(error) => error,
                Settling::Fault(fault) => fault.into_io(),
            })
        })
    }
}

/// Peeks at the first byte without consuming it.
async fn begins_with_tls(io: &Stream) -> io::Result<bool> {
    let Some(socket) = io.socket() else { return Ok(true) };
    let mut first = [0];
    Ok(socket.peek(&mut first).await? == 1 && first[0] == HANDSHAKE_RECORD)
}

/// Performs the TLS handshake as the server of `io`.
async fn secure(io: Stream, config: Arc<ServerConfig>, offer: Offer, proof: Proof) -> Result<Stream, Settling> {
    let mut engine = Engine::server(config, Intake::Exact)?;
    connection::settle(&io, &mut engine).await?;
    let mode = offer.mode(engine.protocol()).ok_or(Fault::Protocol)?;
    Ok(established(io, engine, mode, proof))
}
