//! One end of a relay: a connection (raw or framed) or a bundle of connections, behind one set of operations.

use super::framing::{Framing, Incoming};
use super::lanes::Lanes;
use super::taken::Taken;
use crate::bundle::BundleMembers;
use crate::failure::Failure;
use phoebus_net::{Carrier, Stream};
use phoebus_proto::session::frame::Role;
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

/// A connection and how it carries the stream.
pub(crate) struct End {
    /// In a bundle, the connection on which the session was opened.
    pub(crate) stream: Arc<Stream>,
    pub(super) carries: Carries,
}

/// The form in which the stream is carried.
pub(super) enum Carries {
    /// Raw: the bytes as they are.
    Raw,
    /// In frames.
    Framed(Box<Framing>),
    /// In frames on several connections.
    Bundle(Box<Lanes>),
}

impl End {
    /// Raw: the bytes as they are.
    pub(crate) fn raw(stream: Arc<Stream>) -> Self {
        Self { stream, carries: Carries::Raw }
    }

    /// Framed; `role` is the role of this end. The peer may send `control_frames` control frames per second.
    pub(crate) fn framed(stream: Arc<Stream>, role: Role, control_frames: u32) -> Self {
        Self::framed_as(stream, Framing::new(role, control_frames))
    }

    /// Framed, in a state in which frames may have passed already.
    pub(super) fn framed_as(stream: Arc<Stream>, framing: Framing) -> Self {
        Self { stream, carries: Carries::Framed(Box::new(framing)) }
    }

    /// Framed, on this connection and on those that join through `members`. The peer may send `control_frames` control
    /// frames per second on each.
    pub(crate) fn bundle(stream: Arc<Stream>, role: Role, members: Arc<BundleMembers>, control_frames: u32) -> Self {
        let lanes = Lanes::new(stream.clone(), role, members, control_frames);
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

    /// The best number of bytes to give it at a time, where a direction holds at most `hold`. A bundle holds several
    /// carriers.
    pub(crate) fn most_at_a_time(&self, hold: usize) -> usize {
        self.lanes().map_or(hold, |lanes| lanes.frame(hold))
    }

    /// Fills `carrier` with at most `max` bytes of the peer's stream. The carrier must be empty; `fresh` makes one if
    /// there is none.
    pub(crate) fn poll_recv(
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
                Carries::Bundle(lanes) => return lanes.poll_recv(cx, carrier, fresh, max),
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

    /// Sends all that `carrier` holds, and calls `sent` for each part. A bundle takes the carrier away instead, and
    /// continues with the carriers that it has taken on each call.
    pub(crate) fn poll_send(
        &mut self,
        cx: &mut Context<'_>,
        carrier: &mut Option<Carrier>,
        mut sent: impl FnMut(usize),
    ) -> Poll<Result<(), Failure>> {
        if let Carries::Bundle(lanes) = &mut self.carries {
            return lanes.poll_send(cx, carrier, &mut sent);
        }
        let Some(carrier) = carrier else { return Poll::Ready(Ok(())) };
        while !carrier.is_empty() {
            if let Carries::Framed(framing) = &mut self.carries {
                ready!(poll_flush(framing, &self.stream, cx))?;
                if !framing.payload_is_incomplete() {
                    framing.begin_data(carrier.len())?;
                    continue;
                }
            }
            match carrier.drain(&self.stream) {
                Ok(n) => {
                    if let Carries::Framed(framing) = &mut self.carries {
                        framing.payload_sent(n);
                    }
                    sent(n);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => ready!(self.stream.poll_write_ready(cx))?,
                Err(error) => return Poll::Ready(Err(error.into())),
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Ends the stream towards this end's peer (S21). Calls `sent` for bytes that still go before the end.
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

    /// Records that everything the peer sent, its end included, was forwarded to the next hop.
    pub(crate) fn acknowledge(&mut self) {
        match &mut self.carries {
            Carries::Raw => {}
            Carries::Framed(framing) => framing.acknowledge(),
            Carries::Bundle(lanes) => lanes.acknowledge(),
        }
    }

    /// Sends control frames that are due. Does nothing while a DATA frame is incomplete: [`End::poll_send`] sends them
    /// behind it.
    pub(crate) fn poll_control_frames(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        match &mut self.carries {
            Carries::Framed(framing) if !framing.payload_is_incomplete() => poll_flush(framing, &self.stream, cx),
            Carries::Bundle(lanes) => lanes.poll_control_frames(cx),
            Carries::Raw | Carries::Framed(_) => Poll::Ready(Ok(())),
        }
    }

    /// Reads acknowledgements, which belong to the session even after the peer's stream has ended.
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

    /// Adds connections that have joined a bundle, and checks for those that have failed. Calls `joined` with each new
    /// one.
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

    /// The connections of a bundle that have failed since the last call, and carry nothing any more.
    pub(crate) fn left(&mut self) -> Vec<Arc<Stream>> {
        match &mut self.carries {
            Carries::Bundle(lanes) => lanes.left(),
            Carries::Raw | Carries::Framed(_) => Vec::new(),
        }
    }

    /// Whether nothing is left to send or receive for the session.
    pub(crate) fn is_over(&self) -> bool {
        match &self.carries {
            Carries::Raw => true,
            Carries::Framed(framing) => framing.is_over(),
            Carries::Bundle(lanes) => lanes.is_over(),
        }
    }

    /// The reason that a framed peer gave before it closed, if any.
    pub(crate) fn reported_reason(&mut self) -> Option<Failure> {
        match &mut self.carries {
            Carries::Raw => None,
            Carries::Framed(framing) => framing.reported_reason(&self.stream),
            Carries::Bundle(lanes) => lanes.reported_reason(),
        }
    }

    /// Takes one step towards freeing a framed connection whose session was abandoned for `reason`: sends the rest of
    /// the incomplete frame, which `carrier` holds, and RESET; discards what arrives. Returns how many bytes moved.
    pub(crate) fn try_reset(
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
                while framing.payload_is_incomplete() && !carrier.is_empty() {
                    let n = carrier.drain(&self.stream)?;
                    framing.payload_sent(n);
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
