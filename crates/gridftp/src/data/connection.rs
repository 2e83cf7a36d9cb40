//! A data connection.

use super::error::Error;
use super::losses::Losses;
use super::security::{ChannelSecurity, SecureLayer};
use crate::room::room;
use phoebus_net::bulk::Bulk;
use phoebus_net::{DatagramRoute, Stream};
use std::io;
use std::time::Duration;
use tokio::task::coop::consume_budget;
use tokio::time::{Instant, timeout, timeout_at};

/// How long received bytes wait for more before they are passed on.
const LINGER: Duration = Duration::from_secs(1);

/// Longest wait for the peer's close_notify, after all data was delivered.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// Bytes that the peer may send before its end, after it has received everything.
const LAST_BYTES: usize = 16 * 1024;

/// A connection that a thread uses without a runtime. Dropping it resets it.
pub(super) struct Loose {
    pub(super) bulk: Bulk,
    layer: Option<SecureLayer>,
    to: usize,
    doubtful: bool,
    /// Whether the peer is authenticated.
    proved: bool,
}

impl Loose {
    /// Returns it to the caller's runtime. Resets it if that fails.
    pub(super) fn settle(self) -> io::Result<Connection> {
        let Self { bulk, layer, to, doubtful, proved } = self;
        Ok(Connection { stream: bulk.into_stream()?, layer, is_broken: false, to, doubtful, proved })
    }
}

/// A data connection. Dropping it resets it, so that the peer sees a cut.
#[derive(Debug)]
pub(super) struct Connection {
    stream: Stream,
    layer: Option<SecureLayer>,
    /// Whether a protected write was not finished.
    is_broken: bool,
    /// Index of the address that this end connected to.
    pub(super) to: usize,
    /// Whether the read end may be that of a killed sender.
    doubtful: bool,
    /// Whether the peer is authenticated.
    proved: bool,
}

impl Connection {
    /// Performs the handshake of `security` on `stream`. `connected`: this end has connected.
    pub(super) async fn up(
        stream: Stream,
        to: usize,
        security: Option<&ChannelSecurity>,
        connected: bool,
        reply_timeout: Duration,
    ) -> Result<Self, Error> {
        let layer = match security {
            Some(security) => Some(SecureLayer::up(security, &stream, connected, reply_timeout).await?),
            None => None,
        };
        let proved = stream.identity().is_some()
            || matches!(
                security,
                Some(
                    ChannelSecurity::Gsi { .. }
                        | ChannelSecurity::Pinned(_)
                        | ChannelSecurity::TlsClient(..)
                        | ChannelSecurity::TlsServer { resumes: true, .. }
                )
            );
        Ok(Self { stream, layer, is_broken: false, to, doubtful: false, proved })
    }

    /// Whether it is a plain TCP socket, which a thread can use ([`Loose`]).
    pub(super) fn is_bulk(&self) -> bool {
        let clear = match &self.layer {
            None => true,
            Some(SecureLayer::Gsi(gsi)) => gsi.is_clear() && !gsi.is_ready(),
            Some(SecureLayer::Tls(_)) => false,
            #[cfg(feature = "kerberos")]
            Some(SecureLayer::Kerberos(_)) => false,
        };
        clear && self.stream.is_bulk()
    }

    /// Waits until the peer has sent something or ended. A failed connection is an error.
    pub(super) async fn spoken(&self) -> io::Result<()> {
        self.readable().await?;
        self.stream.is_quiet().map(drop)
    }

    /// Whether the peer of a kept connection, which only receives, has ended it or sent something all the same.
    pub(super) async fn has_ended(&mut self) -> bool {
        /// Most looks. After a few, what comes is no longer the session tickets of TLS, which are read past.
        const LOOKS: usize = 10;
        for _ in 0..LOOKS {
            if matches!(self.stream.is_quiet(), Ok(true)) {
                return false;
            }
            if self.layer.is_none() || timeout(Duration::from_millis(10), self.read(&mut [0])).await.is_ok() {
                return true;
            }
        }
        true
    }

    /// The peer's address.
    pub(super) fn peer_addr(&self) -> io::Result<std::net::SocketAddr> {
        self.stream.peer_addr()
    }

    /// This end's address.
    pub(super) fn local_addr(&self) -> io::Result<std::net::SocketAddr> {
        self.stream.local_addr()
    }

    /// Where gateways relay datagrams of this connection's session.
    pub(super) fn datagrams(&self) -> Option<DatagramRoute> {
        self.stream.datagrams().copied()
    }

    /// The most bytes that go in one segment, if there are segments.
    pub(super) fn segment_size(&self) -> Option<u32> {
        self.stream.stats().ok().map(|stats| stats.segment_size).filter(|size| *size > 0)
    }

    /// A secret that only the two ends of TLS know. `None` if there is no TLS.
    pub(super) fn exported(&self, label: &[u8], context: &[u8]) -> Option<[u8; 32]> {
        match &self.layer {
            Some(SecureLayer::Tls(tls)) => tls.exported(label, context),
            _ => None,
        }
    }

    /// Whether the peer is authenticated.
    pub(super) fn is_proved(&self) -> bool {
        self.proved
    }

    /// Detaches it from the runtime, for a thread. Resets it if that fails.
    pub(super) fn loosen(self) -> io::Result<Loose> {
        let Self { stream, layer, to, doubtful, proved, .. } = self;
        Ok(Loose { bulk: stream.into_bulk()?, layer, to, doubtful, proved })
    }

    /// Waits until something can be written, as long as the peer makes progress within each `stall_timeout`. Cancel safe.
    pub(super) async fn room(&self, stall_timeout: Duration) -> Result<(), Error> {
        room(&self.stream, stall_timeout).await.map_err(|error| match error.kind() {
            io::ErrorKind::TimedOut => Error::Stalled(stall_timeout),
            _ => error.into(),
        })
    }

    /// Reads, waiting for data. 0 at the end, which may be [doubtful](Self::is_doubtful). Cancel safe.
    pub(super) async fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        match self.take(room).await {
            // On a transport without an end of its own, the end is the loss of the connection. TLS has an end of its
            // own.
            Err(error)
                if error.kind() == io::ErrorKind::ConnectionReset
                    && !self.stream.has_end_of_stream()
                    && !matches!(self.layer, Some(SecureLayer::Tls(_))) =>
            {
                self.doubtful = true;
                Ok(0)
            }
            other => other,
        }
    }

    /// Whether the end that was read may be only that of the connection: bare UDT has no other.
    pub(super) fn is_doubtful(&self) -> bool {
        self.doubtful
    }

    async fn take(&mut self, room: &mut [u8]) -> io::Result<usize> {
        // A connection that is always ready yields to others now and then.
        consume_budget().await;
        match self.layer.as_mut() {
            Some(SecureLayer::Gsi(gsi)) => return gsi.read(&self.stream, room).await,
            Some(SecureLayer::Tls(tls)) => return tls.read(&self.stream, room).await,
            #[cfg(feature = "kerberos")]
            Some(SecureLayer::Kerberos(tokens)) => {
                let len = tokens.read(&self.stream, room).await?;
                self.doubtful |= len == 0 && !tokens.has_ended();
                return Ok(len);
            }
            None => {}
        }
        loop {
            match self.stream.try_read(room) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.stream.readable().await?,
                other => return other,
            }
        }
    }

    /// Reads until `room` is full, the stream ends, or the bytes have waited long enough: whoever monitors progress
    /// then sees even slow progress. Returns the number of bytes, and whether the stream has ended.
    pub(super) async fn fill(&mut self, room: &mut [u8]) -> io::Result<(usize, bool)> {
        let mut len = self.read(room).await?;
        let until = Instant::now() + LINGER;
        let mut ended = len == 0;
        while len < room.len() && !ended {
            match timeout_at(until, self.read(&mut room[len..])).await {
                Ok(read) => match read? {
                    0 => ended = true,
                    n => len += n,
                },
                Err(_) => break,
            }
        }
        Ok((len, ended))
    }

    /// Waits until there is something to read. Cancel safe.
    pub(super) async fn readable(&self) -> io::Result<()> {
        match self.layer.as_ref() {
            Some(SecureLayer::Gsi(gsi)) if gsi.is_ready() => Ok(()),
            // Data may have been taken from the connection already.
            Some(SecureLayer::Tls(_)) => Ok(()),
            #[cfg(feature = "kerberos")]
            Some(SecureLayer::Kerberos(tokens)) if tokens.is_ready() => Ok(()),
            _ => self.stream.readable().await,
        }
    }

    /// Writes all of `bytes`. With `more`, the last segment may wait for further data.
    pub(super) async fn write(&mut self, mut bytes: &[u8], more: bool, stall_timeout: Duration) -> Result<(), Error> {
        // A dropped or failed write leaves a partial record, after which nothing can follow: above all nothing in clear.
        if self.is_broken {
            return Err(io::Error::from(io::ErrorKind::BrokenPipe).into());
        }
        match self.layer.take_if(|layer| !matches!(layer, SecureLayer::Gsi(gsi) if gsi.is_clear())) {
            None => return self.write_raw(bytes, more, stall_timeout).await,
            Some(mut layer) => {
                self.is_broken = true;
                match &mut layer {
                    SecureLayer::Tls(tls) => tls.write(&self.stream, bytes, stall_timeout).await?,
                    #[cfg(feature = "kerberos")]
                    SecureLayer::Kerberos(tokens) => {
                        let mut sealed = Vec::new();
                        while !bytes.is_empty() {
                            bytes = tokens.seal(bytes, &mut sealed)?;
                            self.write_raw(&sealed, more || !bytes.is_empty(), stall_timeout).await?;
                        }
                    }
                    SecureLayer::Gsi(gsi) => {
                        let mut sealed = Vec::new();
                        while !bytes.is_empty() {
                            bytes = gsi.seal(bytes, &mut sealed)?;
                            self.write_raw(&sealed, more || !bytes.is_empty(), stall_timeout).await?;
                        }
                    }
                }
                self.layer = Some(layer);
                self.is_broken = false;
            }
        }
        Ok(())
    }

    async fn write_raw(&self, mut bytes: &[u8], more: bool, stall_timeout: Duration) -> Result<(), Error> {
        while !bytes.is_empty() {
            match self.stream.try_write(bytes, more) {
                Ok(n) => bytes = &bytes[n..],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.room(stall_timeout).await?,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Counts retransmissions.
    pub(super) fn count(&self, losses: Option<&Losses>) {
        if let (Some(losses), Ok(stats)) = (losses, self.stream.stats()) {
            losses.add(&stats);
        }
    }

    /// Ends the sending side after all data is delivered. The kernel does the rest; on other transports, the peer
    /// confirms with an end of its own.
    pub(super) async fn finish(mut self, stall_timeout: Duration) -> io::Result<()> {
        self.say_end(stall_timeout).await?;
        if !self.stream.has_end_of_stream() {
            // The end of such a transport overtakes data, even retransmissions. So data is delivered first.
            self.stream.delivered(stall_timeout).await?;
            self.stream.close();
            return Ok(());
        }
        self.stream.shutdown_write()?;
        if !self.stream.delivers_after_drop() {
            self.confirmed(stall_timeout).await?;
        } else if let Some(SecureLayer::Tls(tls)) = self.layer.as_mut() {
            tls.take_tickets(&self.stream).await;
            // A socket that is closed before the peer's close_notify has come answers it with a reset, which a gateway on the way
            // takes for a failure of the session. The caller does not wait for it.
            self.stream.disarm();
            tokio::spawn(timeout(LAST_WORDS, async move { self.drain().await }));
            return Ok(());
        }
        self.stream.close();
        Ok(())
    }

    /// Reads up to the end of a peer that only receives.
    async fn drain(&mut self) -> io::Result<()> {
        if let Some(SecureLayer::Tls(tls)) = self.layer.as_mut() {
            return tls.await_close_notify(&self.stream, LAST_BYTES).await;
        }
        let (mut room, mut left) = ([0; 256], LAST_BYTES);
        loop {
            match self.take(&mut room).await? {
                0 => return Ok(()),
                len => left = left.checked_sub(len).ok_or(io::ErrorKind::InvalidData)?,
            }
        }
    }

    /// Sends the authenticated end.
    async fn say_end(&mut self, stall_timeout: Duration) -> io::Result<()> {
        match self.layer.as_mut() {
            Some(SecureLayer::Tls(tls)) => tls.close(&self.stream, stall_timeout).await,
            #[cfg(feature = "kerberos")]
            Some(SecureLayer::Kerberos(tokens)) => {
                let mut end = Vec::new();
                let sealed = tokens.seal(&[], &mut end).map(drop);
                sealed.map_err(|error| io::Error::other(error.to_string()))?;
                self.write_raw(&end, false, stall_timeout).await.map_err(|error| io::Error::other(error.to_string()))
            }
            _ => Ok(()),
        }
    }

    /// Waits for the peer's end, as long as it makes progress within each `stall_timeout`.
    async fn confirmed(&mut self, stall_timeout: Duration) -> io::Result<()> {
        let (mut room, mut least) = ([0; 1], usize::MAX);
        loop {
            match timeout(stall_timeout, self.take(&mut room)).await {
                Ok(Ok(0)) => return Ok(()),
                Ok(Ok(_)) => {
                    let why = "the other end of the data connection sent something, and it only receives";
                    return Err(io::Error::new(io::ErrorKind::InvalidData, why));
                }
                Ok(Err(error)) => return Err(error),
                Err(_) => {
                    let left = self.stream.unacknowledged()?;
                    if left >= least {
                        return Err(io::ErrorKind::TimedOut.into());
                    }
                    least = left;
                }
            }
        }
    }

    /// Ends this side, and closes the connection once the other side has ended as well: closed before that, it would reset what the
    /// other side still sends, and a gateway on the way would see a failure. Waits for `limit` at most.
    pub(super) async fn part(mut self, limit: Duration) {
        let ended = timeout(limit, async {
            self.say_end(limit).await?;
            self.stream.shutdown_write()?;
            self.drain().await
        });
        if ended.await.is_ok_and(|ended| ended.is_ok()) {
            self.stream.close();
        }
    }

    /// Closes a completely received connection without waiting for the peer.
    pub(super) async fn leave(mut self, stall_timeout: Duration) -> io::Result<()> {
        if self.stream.delivers_after_drop() {
            return self.finish(stall_timeout).await;
        }
        self.say_end(stall_timeout).await?;
        self.stream.shutdown_write()?;
        tokio::spawn(async move {
            // The data has arrived; the peer hears of the end or finds out.
            let _ = self.stream.delivered(stall_timeout).await;
            self.stream.close();
        });
        Ok(())
    }

    /// Closes a connection that the peer has ended or that is idle.
    pub(super) fn close(mut self) {
        if let Some(SecureLayer::Tls(tls)) = &mut self.layer {
            tls.release(&self.stream);
        }
        self.stream.close();
    }
}
