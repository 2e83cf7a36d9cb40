//! Data connections authenticated by proxies: `DCAU A` and `S` with `PROT C`, `S` and `P` (GFD.20, section 3.1).

use super::error::Error;
use super::opened::Opened;
use phoebus_gsi::channel::{Channel, MAX_RECORD, Protection};
use phoebus_gsi::context::{Endpoint, Expect};
use phoebus_net::Stream;
use std::io;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::task::coop::consume_budget;
use tokio::time::timeout;

/// Bytes that are protected at once: several records, written by one system call.
const SEAL: usize = 256 << 10;

/// The protection of one connection.
#[derive(Debug)]
pub(super) struct Gsi {
    channel: Channel,
    /// Received bytes that were not opened.
    come: Vec<u8>,
    plain: Opened,
}

impl Gsi {
    /// Performs the handshake over `stream`. The end that `connected` is the TLS client.
    pub(super) async fn up(
        (endpoint, peer, protection): (&Endpoint, &Expect, Protection),
        stream: &Stream,
        connected: bool,
        reply_timeout: Duration,
    ) -> Result<Self, Error> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
        let now = i64::try_from(now).unwrap_or(i64::MAX);
        let mut out = Vec::new();
        let channel = match connected {
            true => Channel::connect(endpoint, peer.clone(), protection, now, &mut out),
            false => Channel::accept(endpoint, peer.clone(), protection, now),
        };
        let mut layer =
            Self { channel: channel.map_err(Error::ChannelSecurity)?, come: Vec::new(), plain: Opened::default() };
        timeout(reply_timeout, layer.agree(stream, out)).await.map_err(|_| Error::Stalled(reply_timeout))??;
        Ok(layer)
    }

    async fn agree(&mut self, stream: &Stream, mut out: Vec<u8>) -> Result<(), Error> {
        loop {
            write(stream, &out, false).await?;
            out.clear();
            let progress = self.channel.handshake(&self.come, &mut out);
            let progress = match progress {
                Ok(progress) => progress,
                Err(error) => {
                    // An alert may not arrive. The reset tells the peer too.
                    let _ = write(stream, &out, false).await;
                    return Err(Error::ChannelSecurity(error));
                }
            };
            self.come.drain(..progress.used);
            if progress.open {
                write(stream, &out, false).await?;
                return Ok(());
            }
            if out.is_empty() && self.more(stream).await? == 0 {
                return Err(Error::Broken(io::ErrorKind::UnexpectedEof.into()));
            }
        }
    }

    /// Receives more. 0 at the end. Cancel safe.
    async fn more(&mut self, stream: &Stream) -> io::Result<usize> {
        let mut room = [0; MAX_RECORD];
        let len = read(stream, &mut room).await?;
        self.come.extend_from_slice(&room[..len]);
        Ok(len)
    }

    /// Reads data. 0 at the end. Cancel safe.
    pub(super) async fn read(&mut self, stream: &Stream, room: &mut [u8]) -> io::Result<usize> {
        loop {
            if !self.plain.is_empty() {
                return Ok(self.plain.read(room));
            }
            if self.is_clear() && self.come.is_empty() {
                return read(stream, room).await;
            }
            let used = self.channel.open(&self.come, self.plain.more()).map_err(io::Error::other)?;
            self.come.drain(..used);
            if self.plain.is_empty() && self.more(stream).await? == 0 {
                // An end within a record is a cut.
                return if self.come.is_empty() { Ok(0) } else { Err(io::ErrorKind::UnexpectedEof.into()) };
            }
        }
    }

    /// Whether a read may succeed without waiting for the connection.
    pub(super) fn is_ready(&self) -> bool {
        !self.plain.is_empty() || !self.come.is_empty()
    }

    /// Whether bytes are raw once the ends know each other.
    pub(super) fn is_clear(&self) -> bool {
        self.channel.protection() == Protection::Clear
    }

    /// As `bytes` go over the connection, some at a time; what is left is given back.
    pub(super) fn seal<'a>(&mut self, bytes: &'a [u8], out: &mut Vec<u8>) -> io::Result<&'a [u8]> {
        let (now, later) = bytes.split_at(bytes.len().min(SEAL));
        out.clear();
        self.channel.seal(now, out).map_err(io::Error::other)?;
        Ok(later)
    }
}

async fn read(stream: &Stream, room: &mut [u8]) -> io::Result<usize> {
    // Tokens and records may bring nothing that is waited for, one after the other.
    consume_budget().await;
    loop {
        match stream.try_read(room) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => stream.readable().await?,
            other => return other,
        }
    }
}

async fn write(stream: &Stream, mut bytes: &[u8], more: bool) -> io::Result<()> {
    while !bytes.is_empty() {
        match stream.try_write(bytes, more) {
            Ok(n) => bytes = &bytes[n..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => stream.writable().await?,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
