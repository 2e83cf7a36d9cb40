//! The side that is connected to: one listener for those who come with TLS and, where that is allowed, those who come without.

use super::connection::{self, Settling};
use super::engine::{Engine, Intake};
use super::fault::Fault;
use super::{Mode, established};
use crate::credentials::{Credentials, Proof};
use crate::stream::Stream;
use crate::transport::{Boxed, Listener, Pending};
use rustls::ServerConfig;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

/// The first byte of a TLS connection: the type of the record that carries ClientHello. No session begins with it.
const HANDSHAKE_RECORD: u8 = 0x16;

/// How those who connect may protect the connection. Which one did is what [`Stream::security`] says, and who it was
/// [`Stream::identity`]: whether that is enough for what they ask is for the caller to decide.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Offer {
    /// All of it.
    pub encrypt: bool,
    /// What is settled first.
    pub auth: bool,
    /// Not at all: clients that know no TLS. Only over a transport whose bytes can be looked at before they are read (TCP).
    pub none: bool,
}

impl Offer {
    fn protocols(self) -> Vec<&'static [u8]> {
        let offered = [(self.encrypt, Mode::Encrypt), (self.auth, Mode::Auth)];
        offered.into_iter().filter(|(offered, _)| *offered).map(|(_, mode)| mode.protocol()).collect()
    }
}

/// `under`, with what `offer` says around its connections.
pub fn listener(under: Box<dyn Listener>, credentials: &Credentials, offer: Offer) -> Box<dyn Listener> {
    let config = credentials.server_config(&offer.protocols());
    Box::new(Listening { under, config, credentials: credentials.clone(), offer })
}

#[derive(Debug)]
struct Listening {
    under: Box<dyn Listener>,
    config: Arc<ServerConfig>,
    credentials: Credentials,
    offer: Offer,
}

impl Listener for Listening {
    fn accept(&self) -> Boxed<'_, io::Result<(Box<dyn Pending>, SocketAddr)>> {
        Box::pin(async {
            let (under, from) = self.under.accept().await?;
            let (config, credentials) = (self.config.clone(), self.credentials.clone());
            let pending = Arriving { under, config, credentials, offer: self.offer };
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
    config: Arc<ServerConfig>,
    credentials: Credentials,
    offer: Offer,
}

impl Pending for Arriving {
    fn handshake(self: Box<Self>) -> Boxed<'static, io::Result<Stream>> {
        Box::pin(async move {
            let io = self.under.handshake().await?;
            if self.offer.none && !begins_with_tls(&io).await? {
                return Ok(io);
            }
            secure(io, self.config, self.credentials.proof()).await.map_err(|settling| match settling {
                Settling::Io(error) => error,
                Settling::Fault(fault) => fault.into_io(),
            })
        })
    }
}

/// Looks at the first byte without taking it.
async fn begins_with_tls(io: &Stream) -> io::Result<bool> {
    let Some(socket) = io.socket() else { return Ok(true) };
    let mut first = [0];
    Ok(socket.peek(&mut first).await? == 1 && first[0] == HANDSHAKE_RECORD)
}

/// TLS as the end of `io` that is connected to.
async fn secure(io: Stream, config: Arc<ServerConfig>, proof: Proof) -> Result<Stream, Settling> {
    let mut engine = Engine::server(config, Intake::Exact)?;
    connection::settle(&io, &mut engine).await?;
    let mode = engine.protocol().and_then(Mode::of).ok_or(Fault::Protocol)?;
    Ok(established(io, engine, mode, proof))
}
