//! One end of a relay: a connection that carries the stream raw or framed, or a bundle of connections, behind one set of
//! operations.

use super::failure::Failure;
use super::framing::{Framing, Incoming};
use super::lanes::Lanes;
use crate::bundle::Roster;
use phoebus_net::{Carrier, Stream};
use phoebus_proto::session::frame::Role;
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

/// A connection and how it carries the stream.
pub(crate) struct End {
    /// Of a bundle, the one on which the session was opened.
    pub(crate) stream: Arc<Stream>,
    pub(super) carries: Carries,
}

/// How the stream is carried.
pub(super) enum Carries {
    /// The bytes as they are.
    Raw,
    /// In frames.
    Framed(Box<Framing>),
    /// In frames on several connections.
    Bundle(Box<Lanes>),
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
        Self { stream, carries: Carries::Raw }
    }

    /// In frames; `role` is this end's.
    /// The peer may send so many control frames a second.
    pub(crate) fn framed(stream: Arc<Stream>, role: Role, control_frames: u32) -> Self {
        Self::framed_as(stream, Framing::new(role, control_frames))
    }

    /// In frames, of which some may have passed.
    pub(super) fn framed_as(stream: Arc<Stream>, framing: Framing) -> Self {
        Self { stream, carries: Carries::Framed(Box::new(framing)) }
    }

    /// In frames on this connection and on those that come by way of `roster`.
    /// The peer may send so many control frames a second on each.
    pub(crate) fn bundle(stream: Arc<Stream>, role: Role, roster: Arc<Roster>, control_frames: u32) -> Self {
        let lanes = Lanes::new(stream.clone(), role, roster, control_frames);
        Self { stream, carries: Carries::Bundle(Box::new(lanes)) }
    }

    pub(crate) fn is_framed(&self) -> bool {
        !matches!(self.carries, Carries::Raw)
    }

    /// The connections, if they are a bundle.
    pub(crate) fn lanes(&self) -> Option<&Lanes> {
        match &self.carries {
            Carries::Bundle(lanes) => Some(lanes),
            Carries::Raw | Carries::Framed(_) => None,
        }
    }

    /// How many bytes it is best given at a time where a direction holds at most `hold`. A bundle holds several carriers.
    pub(crate) fn most_at_a_time(&self, hold: usize) -> usize {
        self.lanes().map_or(hold, |lanes| lanes.frame(hold))
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
            let max = match &mut self.carries {
                Carries::Raw => max,
                Carries::Framed(framing) => match ready!(framing.poll_incoming(&self.stream, cx))? {
                    Incoming::Payload(len) => len.min(max),
                    Incoming::End | Incoming::Over => return Poll::Ready(Ok(Taken::End)),
                },
                Carries::Bundle(lanes) => return lanes.poll_take(cx, carrier, fresh, max),
            };
            ready!(self.stream.poll_read_ready(cx))?;
            match carrier.get_or_insert_with(|| fresh(&self.stream)).fill(&self.stream, max) {
                Ok(0) if self.is_framed() => {
                    return Poll::Ready(Err(Failure::Io(io::ErrorKind::UnexpectedEof.into())));
                }
                Ok(0) => return Poll::Ready(Ok(Taken::End)),
                Ok(n) => {
                    if let Carries::Framed(framing) = &mut self.carries {
                        framing.took(n);
                    }
                    return Poll::Ready(Ok(Taken::Bytes));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error.into())),
            }
        }
    }

    /// Sends all that `carrier` holds; `sent` is told of each part. A bundle takes the carrier away instead, and goes on with what
    /// it has taken each time that this is called.
    pub(crate) fn poll_give(
        &mut self,
        cx: &mut Context<'_>,
        carrier: &mut Option<Carrier>,
        mut sent: impl FnMut(usize),
    ) -> Poll<Result<(), Failure>> {
        if let Carries::Bundle(lanes) = &mut self.carries {
            return lanes.poll_give(cx, carrier, &mut sent);
        }
        let Some(carrier) = carrier else { return Poll::Ready(Ok(())) };
        while !carrier.is_empty() {
            if let Carries::Framed(framing) = &mut self.carries {
                ready!(poll_flush(framing, &self.stream, cx))?;
                if !framing.owes() {
                    framing.begin_data(carrier.len())?;
                    continue;
                }
            }
            match carrier.drain(&self.stream) {
                Ok(n) => {
                    if let Carries::Framed(framing) = &mut self.carries {
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

    /// Ends the stream towards this end's peer (S21); `sent` is told of bytes that still went before.
    pub(crate) fn poll_shutdown(
        &mut self,
        cx: &mut Context<'_>,
        mut sent: impl FnMut(usize),
    ) -> Poll<Result<(), Failure>> {
        let framing = match &mut self.carries {
            Carries::Raw => return Poll::Ready(self.stream.shutdown_write().map_err(Into::into)),
            Carries::Framed(framing) => framing,
            Carries::Bundle(lanes) => return lanes.poll_shutdown(cx, &mut sent),
        };
        if !framing.shutdown_begun() {
            ready!(poll_flush(framing, &self.stream, cx))?;
            framing.begin_shutdown()?;
        }
        poll_flush(framing, &self.stream, cx)
    }

    /// All that the peer sent, its end included, went on to the next hop.
    pub(crate) fn acknowledge(&mut self) {
        match &mut self.carries {
            Carries::Raw => {}
            Carries::Framed(framing) => framing.acknowledge(),
            Carries::Bundle(lanes) => lanes.acknowledge(),
        }
    }

    /// Sends what is due besides the stream, unless a frame is under way, whose sender does it then.
    pub(crate) fn poll_dues(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        match &mut self.carries {
            Carries::Framed(framing) if !framing.owes() => poll_flush(framing, &self.stream, cx),
            Carries::Bundle(lanes) => lanes.poll_dues(cx),
            Carries::Raw | Carries::Framed(_) => Poll::Ready(Ok(())),
        }
    }

    /// Reads what still belongs to the session after the peer's stream has ended: acknowledgements.
    pub(crate) fn poll_rest(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        let framing = match &mut self.carries {
            Carries::Raw => return Poll::Ready(Ok(())),
            Carries::Framed(framing) => framing,
            Carries::Bundle(lanes) => return lanes.poll_rest(cx),
        };
        loop {
            if ready!(framing.poll_incoming(&self.stream, cx))? == Incoming::Over {
                return Poll::Ready(Ok(()));
            }
        }
    }

    /// Takes connections in that have joined a bundle, and looks for those that have failed; `joined` is called with each new one.
    pub(crate) fn poll_members(
        &mut self,
        cx: &mut Context<'_>,
        joined: impl FnMut(&Arc<Stream>),
    ) -> Result<(), Failure> {
        match &mut self.carries {
            Carries::Bundle(lanes) => lanes.poll_members(cx, joined),
            Carries::Raw | Carries::Framed(_) => Ok(()),
        }
    }

    /// The connections of a bundle that have failed since this was last asked for, and carry nothing any more.
    pub(crate) fn left(&mut self) -> Vec<Arc<Stream>> {
        match &mut self.carries {
            Carries::Bundle(lanes) => lanes.left(),
            Carries::Raw | Carries::Framed(_) => Vec::new(),
        }
    }

    /// Whether nothing is left to be said or heard about the session.
    pub(crate) fn is_over(&self) -> bool {
        match &self.carries {
            Carries::Raw => true,
            Carries::Framed(framing) => framing.is_over(),
            Carries::Bundle(lanes) => lanes.is_over(),
        }
    }

    /// Why a framed peer has gone, if it said so before it went.
    pub(crate) fn last_words(&mut self) -> Option<Failure> {
        match &mut self.carries {
            Carries::Raw => None,
            Carries::Framed(framing) => framing.last_words(&self.stream),
            Carries::Bundle(lanes) => lanes.last_words(),
        }
    }

    /// Brings a framed connection on which the session was given up for `reason` nearer to being free: sends what is left of
    /// the frame under way, which `carrier` holds, and RESET; discards what comes. Returns how many bytes moved.
    pub(crate) fn try_part(
        &mut self,
        carrier: Option<&mut Carrier>,
        reason: &[u8],
        scratch: &mut [u8],
    ) -> Result<usize, Failure> {
        let Carries::Framed(framing) = &mut self.carries else { return Ok(0) };
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
        let role = match &self.carries {
            Carries::Raw => return false,
            Carries::Framed(framing) => framing.role(),
            Carries::Bundle(lanes) => lanes.role(),
        };
        role == Role::Initiator
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
