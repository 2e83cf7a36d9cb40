//! Moves the bytes of a handshake between a connection and its state machine.

use phoebus_config::bearer::BearerError;
use phoebus_net::Stream;
use phoebus_proto::session::ProtocolError;
use phoebus_proto::session::acceptor::{Acceptor, State as Accepting};
use phoebus_proto::session::initiator::{Initiator, State as Initiating};
use phoebus_proto::session::login::LoginError;
use std::io;
use tokio::task::yield_now;

/// Consecutive reads before other tasks get a turn, and time-outs and shutdown are checked, even if more bytes are
/// waiting. 16: a greeting and a request take at most six reads, unless they arrive byte by byte.
const READS: u32 = 16;

/// Why a handshake failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HandshakeError {
    /// The peer closed the connection, between two sessions or before the first.
    #[error("the connection was closed")]
    Closed,
    /// The connection failed.
    #[error("{}", phoebus_net::reason(.0))]
    Io(#[from] io::Error),
    /// The peer does not follow the protocol.
    #[error(transparent)]
    Protocol(#[from] ProtocolError),
    /// Authentication with the peer has failed.
    #[error(transparent)]
    Login(#[from] OwnLoginError),
}

/// Why this end could not authenticate with a peer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OwnLoginError {
    /// The exchange has failed.
    #[error(transparent)]
    Exchange(#[from] LoginError),
    /// The peer wants a token, and the user's cannot be used.
    #[error(transparent)]
    Bearer(#[from] BearerError),
}

/// An initiator with this crate's buffers.
pub(crate) type Asking = Initiator<Vec<u8>, Vec<u8>>;

/// Reads until the peer has greeted.
pub(crate) async fn greeting(stream: &Stream, acceptor: &mut Acceptor) -> Result<(), HandshakeError> {
    let mut reads: u32 = 0;
    while acceptor.state() == Accepting::Greeting {
        reads = reads.wrapping_add(1);
        if reads.is_multiple_of(READS) {
            yield_now().await;
        }
        let n = read(stream, acceptor.space()?).await?;
        acceptor.received(n)?;
    }
    Ok(())
}

/// Reads until the peer sends a request. Answers its greeting when nothing more is available to read; if the request
/// came with the greeting, the answer can wait until the request has been passed on.
pub(crate) async fn next_request(stream: &Stream, acceptor: &mut Acceptor) -> Result<(), HandshakeError> {
    let mut reads: u32 = 0;
    while acceptor.state() != Accepting::Asked {
        reads = reads.wrapping_add(1);
        if reads.is_multiple_of(READS) {
            // No other await yields while bytes keep arriving.
            yield_now().await;
        }
        let n = match stream.try_read(acceptor.space()?) {
            Ok(0) => return Err(HandshakeError::Closed),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                send_outgoing(stream, acceptor).await?;
                read(stream, acceptor.space()?).await?
            }
            read => read?,
        };
        acceptor.received(n)?;
    }
    Ok(())
}

/// Sends as much of the acceptor's output as fits without waiting. A failure shows when the rest is sent.
pub(crate) fn send_what_fits(stream: &Stream, acceptor: &mut Acceptor) {
    while !acceptor.outgoing().is_empty()
        && let Ok(n) = stream.try_write(acceptor.outgoing(), false)
    {
        acceptor.sent(n);
    }
}

/// Sends the acceptor's output.
pub(crate) async fn send_outgoing(stream: &Stream, acceptor: &mut Acceptor) -> io::Result<()> {
    while !acceptor.outgoing().is_empty() {
        let n = write(stream, acceptor.outgoing()).await?;
        acceptor.sent(n);
    }
    Ok(())
}

/// Sends the initiator's output and reads until the answer is complete. `heard` tells, even after a failure, whether
/// the peer sent anything.
pub(crate) async fn answer(stream: &Stream, asking: &mut Asking, heard: &mut bool) -> Result<(), HandshakeError> {
    *heard = false;
    loop {
        while !asking.outgoing().is_empty() {
            let n = write(stream, asking.outgoing()).await?;
            asking.sent(n);
        }
        if !matches!(asking.state(), Initiating::Greeting | Initiating::Opening) {
            return Ok(());
        }
        let n = read(stream, asking.space()?).await?;
        *heard = true;
        asking.received(n)?;
    }
}

async fn read(stream: &Stream, space: &mut [u8]) -> Result<usize, HandshakeError> {
    loop {
        match stream.try_read(space) {
            Ok(0) => return Err(HandshakeError::Closed),
            Ok(n) => return Ok(n),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => stream.readable().await?,
            Err(error) => return Err(error.into()),
        }
    }
}

async fn write(stream: &Stream, bytes: &[u8]) -> io::Result<usize> {
    loop {
        match stream.try_write(bytes, false) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => stream.writable().await?,
            result => return result,
        }
    }
}
