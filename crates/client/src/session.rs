//! An open session: two byte streams that end separately, or together by an error (invariant 1, S21).

use crate::report::Report;
use phoebus_net::tcp::Plain;
use phoebus_net::{Stats, Stream};
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A session. Both the session and a reference to it implement reading and writing, so that two tasks can do one
/// each. Dropping it resets it, and the destination reads an error; [`Session::finish`] closes it in order.
#[derive(Debug)]
pub struct Session {
    stream: Stream,
    report: Report,
    finish_limit: Duration,
    /// Whether this end's stream was shut down.
    sent_all: AtomicBool,
    /// Whether the destination's stream was read to its end.
    read_all: AtomicBool,
}

impl Session {
    pub(crate) fn new(stream: Stream, report: Report, finish_limit: Duration) -> Self {
        Self { stream, report, finish_limit, sent_all: AtomicBool::new(false), read_all: AtomicBool::new(false) }
    }

    /// The session's report, hop by hop.
    pub fn report(&self) -> &Report {
        &self.report
    }

    /// Statistics of the first hop.
    ///
    /// # Errors
    /// If the kernel does not provide them.
    pub fn stats(&self) -> io::Result<Stats> {
        self.stream.stats()
    }

    /// Waits until the session fails, and returns the error; for times without a pending read or write.
    pub async fn failed(&self) -> io::Error {
        self.stream.failed().await
    }

    /// Ends this end's stream if [`AsyncWrite::poll_shutdown`] has not, waits until the next hop has acknowledged all
    /// of it, and closes. Call this after the destination's stream has been read to its end.
    ///
    /// # Errors
    /// The session failed first, or the destination's stream has not ended, in which case the session is reset.
    pub async fn finish(self) -> io::Result<()> {
        if !self.read_all.load(Relaxed) {
            let why = "the session was finished before the destination's stream had been read to its end";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        self.end_stream()?;
        self.stream.delivered(self.finish_limit).await?;
        self.stream.close();
        Ok(())
    }

    /// The session as a connection without a runtime, which the caller then owns, and its report.
    ///
    /// # Errors
    /// If the first hop is not a TCP connection that carries the session's bytes raw.
    pub fn into_plain(self) -> io::Result<(Plain, Report)> {
        Ok((self.stream.into_plain()?, self.report))
    }

    /// The session as a connection of any transport, for callers that carry bytes over any, and its report. The
    /// caller is then responsible for an orderly end.
    pub fn into_stream(self) -> (Stream, Report) {
        (self.stream, self.report)
    }

    fn end_stream(&self) -> io::Result<()> {
        if self.sent_all.swap(true, Relaxed) { Ok(()) } else { self.stream.shutdown_write() }
    }
}

impl AsyncRead for &Session {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if buffer.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        loop {
            match self.stream.try_read(buffer.initialize_unfilled()) {
                Ok(n) => {
                    buffer.advance(n);
                    self.read_all.fetch_or(n == 0, Relaxed);
                    return Poll::Ready(Ok(()));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => ready!(self.stream.poll_read_ready(cx))?,
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

impl AsyncWrite for &Session {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        loop {
            match self.stream.try_write(bytes, false) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => ready!(self.stream.poll_write_ready(cx))?,
                result => return Poll::Ready(result),
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    /// Ends this end's stream; the destination's continues.
    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.end_stream())
    }
}

impl AsyncRead for Session {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut &*self).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Session {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut &*self).poll_write(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut &*self).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut &*self).poll_shutdown(cx)
    }
}
