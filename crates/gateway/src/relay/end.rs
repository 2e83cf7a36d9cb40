//! One end of a relay: a connection that carries the stream raw or framed, behind one set of operations.

use super::failure::Failure;
use super::framing::{Framing, Incoming};
use phoebus_net::{Carrier, Stream};
use phoebus_proto::session::frame::Role;
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

/// A connection and how it carries the stream.
#[derive(Debug)]
pub(crate) struct End {
    pub(crate) stream: Arc<Stream>,
    framing: Option<Box<Framing>>,
}

/// What an end had to give.
pub(crate) enum Taken {
    /// The carrier now holds bytes.
    Bytes,
    /// The peer's stream has ended.
    End,
}

impl End {
    /// The bytes as they are.
    pub(crate) fn raw(stream: Arc<Stream>) -> Self {
        Self { stream, framing: None }
    }

    /// In frames; `role` is this end's.
    pub(crate) fn framed(stream: Arc<Stream>, role: Role) -> Self {
        Self { stream, framing: Some(Box::new(Framing::new(role))) }
    }

    pub(crate) fn is_framed(&self) -> bool {
        self.framing.is_some()
    }

    /// Fills `carrier` with at most `max` bytes of the peer's stream. Only for an empty carrier; `fresh` gives one where there
    /// is none.
    pub(crate) fn poll_take(
        &mut self,
        cx: &mut Context<'_>,
        carrier: &mut Option<Carrier>,
        fresh: impl Fn(&Stream) -> Carrier,
        max: usize,
    ) -> Poll<Result<Taken, Failure>> {
        loop {
            let max = match &mut self.framing {
                None => max,
                Some(framing) => match ready!(framing.poll_incoming(&self.stream, cx))? {
                    Incoming::Payload(len) => len.min(max),
                    Incoming::End | Incoming::Over => return Poll::Ready(Ok(Taken::End)),
                },
            };
            ready!(self.stream.poll_read_ready(cx))?;
            match carrier.get_or_insert_with(|| fresh(&self.stream)).fill(&self.stream, max) {
                Ok(0) if self.framing.is_some() => {
                    return Poll::Ready(Err(Failure::Io(io::ErrorKind::UnexpectedEof.into())));
                }
                Ok(0) => return Poll::Ready(Ok(Taken::End)),
                Ok(n) => {
                    if let Some(framing) = &mut self.framing {
                        framing.took(n);
                    }
                    return Poll::Ready(Ok(Taken::Bytes));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error.into())),
            }
        }
    }

    /// Sends all that `carrier` holds; `sent` is told of each part.
    pub(crate) fn poll_give(
        &mut self,
        cx: &mut Context<'_>,
        carrier: &mut Carrier,
        mut sent: impl FnMut(usize),
    ) -> Poll<Result<(), Failure>> {
        while !carrier.is_empty() {
            if let Some(framing) = &mut self.framing {
                ready!(poll_flush(framing, &self.stream, cx))?;
                if !framing.owes() {
                    framing.begin_data(carrier.len())?;
                    continue;
                }
            }
            match carrier.drain(&self.stream) {
                Ok(n) => {
                    if let Some(framing) = &mut self.framing {
                        framing.paid(n);
                    }
                    sent(n);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => ready!(self.stream.poll_write_ready(cx))?,
                Err(error) => return Poll::Ready(Err(error.into())),
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Ends the stream towards this end's peer (S21).
    pub(crate) fn poll_shutdown(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        let Some(framing) = &mut self.framing else {
            return Poll::Ready(self.stream.shutdown_write().map_err(Into::into));
        };
        if !framing.shutdown_begun() {
            ready!(poll_flush(framing, &self.stream, cx))?;
            framing.begin_shutdown()?;
        }
        poll_flush(framing, &self.stream, cx)
    }

    /// All that the peer sent, its end included, went on to the next hop.
    pub(crate) fn acknowledge(&mut self) {
        if let Some(framing) = &mut self.framing {
            framing.acknowledge();
        }
    }

    /// Sends what is due besides the stream, unless a frame is under way, whose sender does it then.
    pub(crate) fn poll_dues(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        match &mut self.framing {
            Some(framing) if !framing.owes() => poll_flush(framing, &self.stream, cx),
            _ => Poll::Ready(Ok(())),
        }
    }

    /// Reads what still belongs to the session after the peer's stream has ended: acknowledgements.
    pub(crate) fn poll_rest(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        let Some(framing) = &mut self.framing else { return Poll::Ready(Ok(())) };
        loop {
            if ready!(framing.poll_incoming(&self.stream, cx))? == Incoming::Over {
                return Poll::Ready(Ok(()));
            }
        }
    }

    /// Whether nothing is left to be said or heard about the session.
    pub(crate) fn is_over(&self) -> bool {
        self.framing.as_ref().is_none_or(|framing| framing.is_over())
    }

    /// Why a framed peer has gone, if it said so before it went.
    pub(crate) fn last_words(&mut self) -> Option<Failure> {
        self.framing.as_mut()?.last_words(&self.stream)
    }

    /// Brings a framed connection on which the session was given up for `reason` nearer to being free: sends what is left of
    /// the frame under way, which `carrier` holds, and RESET; discards what comes. Returns how many bytes moved.
    pub(crate) fn try_part(
        &mut self,
        carrier: Option<&mut Carrier>,
        reason: &[u8],
        scratch: &mut [u8],
    ) -> Result<usize, Failure> {
        let Some(framing) = &mut self.framing else { return Ok(0) };
        let mut moved = if framing.is_over() { 0 } else { framing.discard(&self.stream, scratch)? };
        framing.begin_reset(reason);
        let sent = || -> io::Result<()> {
            framing.try_flush(&self.stream)?;
            if let Some(carrier) = carrier {
                while framing.owes() && !carrier.is_empty() {
                    let n = carrier.drain(&self.stream)?;
                    framing.paid(n);
                    moved += n;
                }
                framing.try_flush(&self.stream)?;
            }
            Ok(())
        };
        match { sent }() {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error.into()),
            _ => Ok(moved),
        }
    }

    pub(crate) fn is_initiator(&self) -> bool {
        self.framing.as_ref().is_some_and(|framing| framing.role() == Role::Initiator)
    }
}

fn poll_flush(framing: &mut Framing, stream: &Stream, cx: &mut Context<'_>) -> Poll<Result<(), Failure>> {
    loop {
        match framing.try_flush(stream) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => ready!(stream.poll_write_ready(cx))?,
            done => return Poll::Ready(done.map_err(Into::into)),
        }
    }
}
