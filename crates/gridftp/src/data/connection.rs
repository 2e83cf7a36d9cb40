//! One data connection.

use super::error::Error;
use super::guard::{Guard, Shield};
use super::settings::Losses;
use crate::room::room;
use phoebus_net::Stream;
use phoebus_net::bulk::Bulk;
use std::io;
use std::time::Duration;
use tokio::task::coop::consume_budget;
use tokio::time::{Instant, timeout, timeout_at};

/// How long what has come waits for more before it is handed on.
const LINGER: Duration = Duration::from_secs(1);

/// A connection that a thread has, and no runtime watches. Dropped, it is reset as a [`Connection`] is.
pub(super) struct Loose {
    pub(super) bulk: Bulk,
    shield: Option<Shield>,
    to: usize,
    doubtful: bool,
    /// Whether the other end has shown who it is.
    proved: bool,
}

impl Loose {
    /// Itself under the watch of the caller's runtime again. If that cannot be it is reset.
    pub(super) fn settle(self) -> io::Result<Connection> {
        let Self { bulk, shield, to, doubtful, proved } = self;
        Ok(Connection { stream: bulk.into_stream()?, shield, to, doubtful, proved })
    }
}

/// A connection. Dropped, it is reset: what it carried is then cut, and its other end sees so.
#[derive(Debug)]
pub(super) struct Connection {
    stream: Stream,
    shield: Option<Shield>,
    /// Which of the addresses that were connected to is at its other end.
    pub(super) to: usize,
    /// Whether it has ended in a way that does not tell whether the other end wanted it to.
    doubtful: bool,
    /// Whether the other end has shown who it is.
    proved: bool,
}

impl Connection {
    /// Makes one of `stream`, on which the ends first agree as `guard` says; `connected` is whether this end connected.
    pub(super) async fn up(
        stream: Stream,
        to: usize,
        guard: Option<&Guard>,
        connected: bool,
        patience: Duration,
    ) -> Result<Self, Error> {
        let shield = match guard {
            Some(guard) => Some(Shield::up(guard, &stream, connected, patience).await?),
            None => None,
        };
        let proved = stream.identity().is_some()
            || matches!(
                guard,
                Some(
                    Guard::Gsi { .. }
                        | Guard::Pinned(_)
                        | Guard::TlsClient(..)
                        | Guard::TlsServer { resumes: true, .. }
                )
            );
        Ok(Self { stream, shield, to, doubtful: false, proved })
    }

    /// Whether its bytes are those of a TCP socket as they are, so that a thread can have it ([`Loose`]).
    pub(super) fn is_bulk(&self) -> bool {
        let clear = match &self.shield {
            None => true,
            Some(Shield::Gsi(gsi)) => gsi.is_clear() && !gsi.is_ready(),
            Some(Shield::Tls(_)) => false,
            #[cfg(feature = "kerberos")]
            Some(Shield::Kerberos(_)) => false,
        };
        clear && self.stream.is_bulk()
    }

    /// Waits until the other end has said something, or ended; one that has failed is an error.
    pub(super) async fn spoken(&self) -> io::Result<()> {
        self.readable().await?;
        self.stream.is_quiet().map(drop)
    }

    /// Whether the other end has shown who it is.
    pub(super) fn is_proved(&self) -> bool {
        self.proved
    }

    /// Itself for a thread. If that cannot be it is reset.
    pub(super) fn loosen(self) -> io::Result<Loose> {
        let Self { stream, shield, to, doubtful, proved } = self;
        Ok(Loose { bulk: stream.into_bulk()?, shield, to, doubtful, proved })
    }

    /// Waits until there is room for something to be written, as long as the other end takes more within each `stall`; cancel safe.
    pub(super) async fn room(&self, stall: Duration) -> Result<(), Error> {
        room(&self.stream, stall).await.map_err(|error| match error.kind() {
            io::ErrorKind::TimedOut => Error::Stalled(stall),
            _ => error.into(),
        })
    }

    /// Reads what is there, or waits for it; 0 at the end, which may be [doubtful](Self::is_doubtful). Cancel safe.
    pub(super) async fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        match self.take(room).await {
            // Where a transport has no end of its own, all that there is of one is that the connection is gone. TLS says by itself
            // that it was the end.
            Err(error)
                if error.kind() == io::ErrorKind::ConnectionReset
                    && !self.stream.has_ends()
                    && !matches!(self.shield, Some(Shield::Tls(_))) =>
            {
                self.doubtful = true;
                Ok(0)
            }
            other => other,
        }
    }

    /// Whether the end that was read may be that of the connection alone, and not of what was sent: bare UDT has no other.
    pub(super) fn is_doubtful(&self) -> bool {
        self.doubtful
    }

    async fn take(&mut self, room: &mut [u8]) -> io::Result<usize> {
        // One that is never waited for gives way to others now and then.
        consume_budget().await;
        match self.shield.as_mut() {
            Some(Shield::Gsi(gsi)) => return gsi.read(&self.stream, room).await,
            Some(Shield::Tls(tls)) => return tls.read(&self.stream, room).await,
            #[cfg(feature = "kerberos")]
            Some(Shield::Kerberos(tokens)) => {
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

    /// Reads until `room` is full, the stream ends, or what has come has waited for more for long enough: whoever looks
    /// whether anything moves sees that it does, however slowly. Gives how much it is, and whether the stream has ended.
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

    /// Waits until there is something to read; cancel safe.
    pub(super) async fn readable(&self) -> io::Result<()> {
        match self.shield.as_ref() {
            Some(Shield::Gsi(gsi)) if gsi.is_ready() => Ok(()),
            // What is there may have been taken from the connection already.
            Some(Shield::Tls(_)) => Ok(()),
            #[cfg(feature = "kerberos")]
            Some(Shield::Kerberos(tokens)) if tokens.is_ready() => Ok(()),
            _ => self.stream.readable().await,
        }
    }

    /// Writes all of `bytes`; with `more`, what follows may be waited for before a short segment is sent.
    pub(super) async fn write(&mut self, mut bytes: &[u8], more: bool, stall: Duration) -> Result<(), Error> {
        // A write that was given up has taken it along: nothing can follow half a record.
        match self.shield.take_if(|shield| !matches!(shield, Shield::Gsi(gsi) if gsi.is_clear())) {
            None => return self.write_raw(bytes, more, stall).await,
            Some(mut shield) => {
                match &mut shield {
                    Shield::Tls(tls) => tls.write(&self.stream, bytes, stall).await?,
                    #[cfg(feature = "kerberos")]
                    Shield::Kerberos(tokens) => {
                        let mut sealed = Vec::new();
                        while !bytes.is_empty() {
                            bytes = tokens.seal(bytes, &mut sealed)?;
                            self.write_raw(&sealed, more || !bytes.is_empty(), stall).await?;
                        }
                    }
                    Shield::Gsi(gsi) => {
                        let mut sealed = Vec::new();
                        while !bytes.is_empty() {
                            bytes = gsi.seal(bytes, &mut sealed)?;
                            self.write_raw(&sealed, more || !bytes.is_empty(), stall).await?;
                        }
                    }
                }
                self.shield = Some(shield);
            }
        }
        Ok(())
    }

    async fn write_raw(&self, mut bytes: &[u8], more: bool, stall: Duration) -> Result<(), Error> {
        while !bytes.is_empty() {
            match self.stream.try_write(bytes, more) {
                Ok(n) => bytes = &bytes[n..],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.room(stall).await?,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Counts what became of what was sent.
    pub(super) fn count(&self, losses: Option<&Losses>) {
        if let (Some(losses), Ok(stats)) = (losses, self.stream.stats()) {
            losses.add(&stats);
        }
    }

    /// Ends what this end sends: all of it is delivered before the end is. The rest is left to the kernel; where it is not the kernel's,
    /// the other end says by an end of its own that it has all.
    pub(super) async fn finish(mut self, stall: Duration) -> io::Result<()> {
        self.say_end(stall).await?;
        if !self.stream.has_ends() {
            // Its end follows nothing, not even what is lost: what was written has to be there first.
            self.stream.delivered(stall).await?;
            self.stream.close();
            return Ok(());
        }
        self.stream.shutdown_write()?;
        if !self.stream.outlives() {
            self.confirmed(stall).await?;
        } else if let Some(Shield::Tls(tls)) = self.shield.as_mut() {
            tls.take_tickets(&self.stream).await;
        }
        self.stream.close();
        Ok(())
    }

    /// Says under protection that nothing more comes from this end.
    async fn say_end(&mut self, stall: Duration) -> io::Result<()> {
        match self.shield.as_mut() {
            Some(Shield::Tls(tls)) => tls.close(&self.stream, stall).await,
            #[cfg(feature = "kerberos")]
            Some(Shield::Kerberos(tokens)) => {
                let mut end = Vec::new();
                let sealed = tokens.seal(&[], &mut end).map(drop);
                sealed.map_err(|error| io::Error::other(error.to_string()))?;
                self.write_raw(&end, false, stall).await.map_err(|error| io::Error::other(error.to_string()))
            }
            _ => Ok(()),
        }
    }

    /// Waits for the other end's end, as long as it takes more within each `stall`.
    async fn confirmed(&mut self, stall: Duration) -> io::Result<()> {
        let (mut room, mut least) = ([0; 1], usize::MAX);
        loop {
            match timeout(stall, self.take(&mut room)).await {
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

    /// How much the other end has not acknowledged.
    pub(super) fn unacknowledged(&self) -> io::Result<usize> {
        self.stream.unacknowledged()
    }

    /// Ends one of which all has come, without waiting for the other end.
    pub(super) async fn leave(mut self, stall: Duration) -> io::Result<()> {
        if self.stream.outlives() {
            return self.finish(stall).await;
        }
        self.say_end(stall).await?;
        self.stream.shutdown_write()?;
        tokio::spawn(async move {
            // Whatever becomes of it: what this end was to get is there, and the other end hears of it or finds out.
            let _ = self.stream.delivered(stall).await;
            self.stream.close();
        });
        Ok(())
    }

    /// Closes one whose other end has ended it, or that carries nothing.
    pub(super) fn close(mut self) {
        if let Some(Shield::Tls(tls)) = &mut self.shield {
            tls.release(&self.stream);
        }
        self.stream.close();
    }
}
