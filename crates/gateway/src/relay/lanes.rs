//! The connections of a bundle as a relay sees them: one end of a session, whose bytes they share (S1, P22).
//!
//! Each [`Lane`] receives a whole carrier at a time, and keeps it until the frame is sent: a slow lane delays only its
//! own frame. When all lanes are sending, the bundle takes no more, so each direction holds at most one carrier per
//! lane. Incoming frames wait in the transport until their bytes are next ([`Gather`]).

use super::framing::{Framing, Incoming};
use super::lane::Lane;
use super::taken::Taken;
use crate::bundle::{BundleMembers, JoinedConnection};
use crate::failure::Failure;
use phoebus_net::{Carrier, Stats, Stream};
use phoebus_proto::session::bundle::{Gather, Next, Scatter};
use phoebus_proto::session::frame::Role;
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

/// The smallest frame where memory is short, in bytes. With smaller ones, the cost of headers and system calls would
/// show.
const FRAME_MIN: usize = 16 << 10;

/// The connections of one hop.
pub(crate) struct Lanes {
    role: Role,
    /// Control frames per second that the peer may send on each lane.
    control_frames: u32,
    pub(super) lanes: Vec<Lane>,
    scatter: Scatter,
    /// The lane that sends what is taken next.
    chosen: Option<usize>,
    gather: Gather,
    pub(super) members: Arc<BundleMembers>,
    /// Connections lost since the last call of [`Lanes::left`].
    left: Vec<Arc<Stream>>,
    /// This side's stream has ended.
    shut: bool,
    /// The peer's stream has ended, and its end was forwarded.
    passed_on: bool,
}

impl Lanes {
    /// A bundle of one connection so far; others join through `members`.
    pub(crate) fn new(first: Arc<Stream>, role: Role, members: Arc<BundleMembers>, control_frames: u32) -> Self {
        let mut lanes = Self {
            role,
            control_frames,
            lanes: Vec::new(),
            scatter: Scatter::default(),
            chosen: None,
            gather: Gather::default(),
            members,
            left: Vec::new(),
            shut: false,
            passed_on: false,
        };
        lanes.gather.join();
        lanes.lanes.push(Lane::new(first, Framing::striped(role, control_frames), None));
        lanes
    }

    pub(crate) fn role(&self) -> Role {
        self.role
    }

    /// See [`End::poll_members`].
    pub(super) fn poll_members(
        &mut self,
        cx: &mut Context<'_>,
        mut joined: impl FnMut(&Arc<Stream>),
    ) -> Result<(), Failure> {
        for JoinedConnection { stream, lender } in self.members.arrived(cx) {
            // As the only owner, this thread alone can watch it.
            let stream = match Arc::try_unwrap(stream).map(Stream::move_to_runtime) {
                Ok(stream) => Arc::new(stream?),
                Err(shared) => shared,
            };
            joined(&stream);
            let mut lane = Lane::new(stream, Framing::striped(self.role, self.control_frames), Some(lender));
            if self.shut {
                lane.framing.begin_end(&self.scatter)?;
            } else if self.role == Role::Initiator {
                // The acceptor sends nothing on the lane before it has received a frame there.
                lane.framing.begin_ping();
            }
            self.gather.join();
            self.lanes.push(lane);
        }
        for number in 0..self.lanes.len() {
            if !self.lanes[number].lost
                && let Poll::Ready(error) = self.lanes[number].poll_failed(cx)
            {
                self.lose(number, error.into())?;
            }
        }
        // Any first frame on a lane shows that the initiator knows of the lane. Nothing else may be reading it.
        for number in 0..self.lanes.len() {
            let lane = &mut self.lanes[number];
            if !lane.lost
                && !lane.is_known()
                && self.gather.wants(number)
                && let Poll::Ready(incoming) = lane.poll_incoming(cx)
            {
                self.handle_arrival(number, incoming)?;
            }
        }
        Ok(())
    }

    /// See [`End::left`].
    pub(super) fn left(&mut self) -> Vec<Arc<Stream>> {
        std::mem::take(&mut self.left)
    }

    /// See [`End::poll_recv`].
    pub(super) fn poll_recv(
        &mut self,
        cx: &mut Context<'_>,
        carrier: &mut Option<Carrier>,
        fresh: impl Fn(&Stream) -> Carrier,
        max: usize,
    ) -> Poll<Result<Taken, Failure>> {
        loop {
            let (number, len) = match self.gather.next(self.members.is_complete())? {
                Next::End => return Poll::Ready(Ok(Taken::End)),
                Next::Payload { lane, len } => (lane, len as usize),
                Next::Wait => {
                    ready!(self.poll_headers(cx))?;
                    continue;
                }
            };
            let lane = &mut self.lanes[number];
            ready!(lane.stream.poll_read_ready(cx))?;
            // The carrier was made for another lane, which may be in another state of its handshake.
            let _ = carrier.take_if(|carrier| !carrier.suits(&lane.stream));
            match carrier.get_or_insert_with(|| fresh(&lane.stream)).fill(&lane.stream, len.min(max)) {
                Ok(0) => return Poll::Ready(Err(Failure::Io(io::ErrorKind::UnexpectedEof.into()))),
                Ok(n) => {
                    lane.framing.took(n);
                    self.gather.took(number, u32::try_from(n).unwrap_or(u32::MAX));
                    return Poll::Ready(Ok(Taken::Bytes));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error.into())),
            }
        }
    }

    /// Reads the next header of every lane whose bytes were taken. Ready when one has arrived.
    fn poll_headers(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        let mut arrived = false;
        for number in 0..self.lanes.len() {
            if !self.gather.wants(number) || self.lanes[number].lost {
                continue;
            }
            match self.lanes[number].poll_incoming(cx) {
                Poll::Pending => {}
                Poll::Ready(incoming) => {
                    arrived = true;
                    self.handle_arrival(number, incoming)?;
                }
            }
        }
        if arrived { Poll::Ready(Ok(())) } else { Poll::Pending }
    }

    fn handle_arrival(&mut self, number: usize, incoming: Result<Incoming, Failure>) -> Result<(), Failure> {
        match incoming {
            Ok(incoming) => self.handle_incoming(number, incoming),
            Err(failure) => self.lose(number, failure),
        }
    }

    fn handle_incoming(&mut self, number: usize, incoming: Incoming) -> Result<(), Failure> {
        let lane = &mut self.lanes[number];
        let position = lane.framing.position();
        match incoming {
            Incoming::Payload(len) => {
                let announced = u32::try_from(len).unwrap_or(u32::MAX);
                self.gather.data(number, position - u64::from(announced), announced)?;
            }
            Incoming::End => {
                self.gather.shutdown(number, position)?;
                if self.passed_on {
                    lane.acknowledge();
                }
            }
            Incoming::Over => {}
        }
        Ok(())
    }

    /// See [`End::poll_send`]. Pending while every lane is sending, so that bytes are taken only once their lane and
    /// the size of its frame are known.
    pub(super) fn poll_send(
        &mut self,
        cx: &mut Context<'_>,
        carrier: &mut Option<Carrier>,
        sent: &mut dyn FnMut(usize),
    ) -> Poll<Result<(), Failure>> {
        // New bytes need not wait for incomplete frames.
        let _ = self.poll_incomplete(cx, sent)?;
        if let Some(full) = carrier.take_if(|carrier| !carrier.is_empty()) {
            let number = match self.chosen.take() {
                Some(number) if self.lanes[number].suits(&full) && self.is_free(number, cx)? => number,
                _ => match self.poll_choose(cx, Some(&full))? {
                    Poll::Ready(number) => number,
                    Poll::Pending => {
                        *carrier = Some(full);
                        return Poll::Pending;
                    }
                },
            };
            let lane = &mut self.lanes[number];
            lane.give(&mut self.scatter, full)?;
            let _ = lane.poll_send(cx, sent)?;
        }
        if !self.shut {
            self.chosen = Some(ready!(self.poll_choose(cx, None))?);
        }
        Poll::Ready(Ok(()))
    }

    /// The free lane that will deliver a frame first. `full` is the frame, if it is already there.
    fn poll_choose(&mut self, cx: &mut Context<'_>, full: Option<&Carrier>) -> Poll<Result<usize, Failure>> {
        loop {
            let Self { lanes, scatter, .. } = self;
            let mut failed = None;
            let chosen = scatter.choose(lanes.len(), |number| {
                let lane = &mut lanes[number];
                match lane.poll_free(cx) {
                    Poll::Ready(Ok(())) if full.is_none_or(|full| lane.suits(full)) => {
                        Some(lane.due(full.map(Carrier::len)))
                    }
                    Poll::Ready(Err(failure)) => {
                        failed = Some((number, failure));
                        None
                    }
                    _ => None,
                }
            });
            match (failed, chosen) {
                // Choose again among the others.
                (Some((number, failure)), _) => self.lose(number, failure)?,
                (None, Some(number)) => return Poll::Ready(Ok(number)),
                (None, None) => return Poll::Pending,
            }
        }
    }

    /// Whether the lane can accept a frame now.
    fn is_free(&mut self, number: usize, cx: &mut Context<'_>) -> Result<bool, Failure> {
        match self.lanes[number].poll_free(cx) {
            Poll::Ready(Err(failure)) => self.lose(number, failure).map(|()| false),
            free => Ok(free.is_ready()),
        }
    }

    /// Continues the incomplete frames in stream order: where lanes share a buffer, the frame that the peer waits for
    /// gets the room. Ready when none is left.
    fn poll_incomplete(&mut self, cx: &mut Context<'_>, sent: &mut dyn FnMut(usize)) -> Poll<Result<(), Failure>> {
        let mut after = 0;
        let mut idle = true;
        loop {
            let next = self.lanes.iter_mut().filter_map(|lane| {
                let offset = lane.incomplete_offset()?;
                (offset >= after).then_some((offset, lane))
            });
            let Some((offset, lane)) = next.min_by_key(|(offset, _)| *offset) else { break };
            after = offset + 1;
            idle &= lane.poll_send(cx, sent)?.is_ready();
        }
        if idle { Poll::Ready(Ok(())) } else { Poll::Pending }
    }

    /// See [`End::poll_shutdown`].
    pub(super) fn poll_shutdown(
        &mut self,
        cx: &mut Context<'_>,
        sent: &mut dyn FnMut(usize),
    ) -> Poll<Result<(), Failure>> {
        ready!(self.poll_incomplete(cx, sent))?;
        ready!(self.poll_control_frames(cx))?;
        if !self.shut {
            self.shut = true;
            for lane in self.lanes.iter_mut().filter(|lane| !lane.lost) {
                lane.framing.begin_end(&self.scatter)?;
            }
        }
        self.poll_control_frames(cx)
    }

    /// See [`End::acknowledge`].
    pub(super) fn acknowledge(&mut self) {
        self.passed_on = true;
        self.lanes.iter_mut().for_each(Lane::acknowledge);
    }

    /// See [`End::poll_control_frames`].
    pub(super) fn poll_control_frames(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        let mut done = true;
        for number in 0..self.lanes.len() {
            let lane = &mut self.lanes[number];
            if lane.incomplete_offset().is_some() || lane.lost {
                continue;
            }
            match lane.poll_send(cx, &mut |_| {}) {
                Poll::Ready(Err(failure)) => self.lose(number, failure)?,
                sent => done &= sent.is_ready(),
            }
        }
        if done { Poll::Ready(Ok(())) } else { Poll::Pending }
    }

    /// See [`End::poll_rest`].
    pub(super) fn poll_rest(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        let mut done = true;
        for number in 0..self.lanes.len() {
            while !self.lanes[number].lost {
                match self.lanes[number].poll_incoming(cx) {
                    Poll::Ready(Ok(Incoming::Over)) => break,
                    Poll::Ready(Ok(incoming)) => self.handle_incoming(number, incoming)?,
                    Poll::Ready(Err(failure)) => self.lose(number, failure)?,
                    Poll::Pending => {
                        done = false;
                        break;
                    }
                }
            }
        }
        if done { Poll::Ready(Ok(())) } else { Poll::Pending }
    }

    /// Whether nothing is left to send or receive for the session, and no connection is about to join.
    pub(super) fn is_over(&self) -> bool {
        self.lanes.iter().all(|lane| lane.lost || lane.framing.is_over()) && self.members.close()
    }

    /// Handles the failure of a lane. The session fails with it, unless nothing can be lost. That holds in two cases:
    /// this end has sent no bytes on the lane, no announced bytes are missing, and another lane is left; or another
    /// lane has completed the session. The peer fails the session itself if it knows that bytes it sent on the lane are
    /// lost. It does not know of bytes that this host's kernel has acknowledged and the gateway has not read, so the
    /// rest of the lane is read first. The acknowledgement that completes the session may be among them, also where the
    /// peer's stream has ended.
    fn lose(&mut self, number: usize, failure: Failure) -> Result<(), Failure> {
        let expects_frames = self.gather.wants(number) || self.gather.has_ended(number);
        if matches!(failure, Failure::Io(_)) && expects_frames {
            let lane = &mut self.lanes[number];
            if let Some(incoming) = lane.framing.read_on(&lane.stream)? {
                self.handle_incoming(number, incoming)?;
            }
        }
        let settled = self.lanes.iter().any(|lane| !lane.lost && lane.framing.is_over());
        let framing = &self.lanes[number].framing;
        let is_unused = !framing.has_sent() && !framing.is_midway() && !self.gather.has_unread(number);
        let another = self.lanes.iter().enumerate().any(|(other, lane)| other != number && !lane.lost);
        let loses_nothing = matches!(failure, Failure::Io(_)) && is_unused && another;
        if !(loses_nothing || settled) || matches!(failure, Failure::Reported { .. }) {
            return Err(failure);
        }
        self.lanes[number].lost = true;
        self.left.push(self.lanes[number].stream.clone());
        self.gather.leave(number);
        Ok(())
    }

    /// The reason that the peer gave on any lane before it closed, if any.
    pub(super) fn reported_reason(&mut self) -> Option<Failure> {
        self.lanes.iter_mut().find_map(|lane| lane.framing.reported_reason(&lane.stream))
    }

    /// The sum of the counters of all lanes but the first.
    pub(crate) fn stats(&self) -> Stats {
        let further = self.lanes.iter().skip(1).filter_map(Lane::stats);
        further.fold(Stats::default(), |sum, stats| sum.with(&stats))
    }

    /// The best size of the next frame for the chosen lane, in bytes. All lanes together hold about `hold`.
    pub(super) fn frame(&self, hold: usize) -> usize {
        let share = (hold / self.lanes.len().max(1)).max(FRAME_MIN);
        self.chosen.map_or(share, |number| self.lanes[number].frame().min(share))
    }

    /// Returns all lanes but the first to their lenders after a session that has ended.
    pub(crate) fn give_back(self) {
        self.lanes.into_iter().for_each(Lane::give_back);
    }
}

#[cfg(test)]
mod tests;
