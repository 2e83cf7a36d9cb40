//! The connections of a bundle as a relay sees them: one end of a session, whose bytes they share (S1, P22).
//!
//! Each [`Lane`] is given a whole carrier at a time, which it keeps until the frame is sent: a lane that is slow holds up its own
//! frame and nobody else's. Where all lanes have one under way, the bundle takes no more, and so a direction of it holds as many
//! carriers as there are lanes. Incoming frames wait in the transport until their bytes are next ([`Gather`]).

use super::end::{End, Taken};
use super::failure::Failure;
use super::framing::{Framing, Incoming};
use super::lane::Lane;
use super::parting;
use crate::bundle::{Newcomer, Roster};
use phoebus_net::{Carrier, Stats, Stream};
use phoebus_proto::session::bundle::{Gather, Next, Scatter};
use phoebus_proto::session::frame::Role;
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

/// The least that a lane is given at a time where memory is what is short: for less, headers and system calls would show.
const FRAME_MIN: usize = 16 << 10;

/// The connections of one hop.
pub(crate) struct Lanes {
    role: Role,
    /// Control frames that the peer may send on each in a second.
    control_frames: u32,
    lanes: Vec<Lane>,
    scatter: Scatter,
    /// The lane that is to have what is taken next.
    chosen: Option<usize>,
    gather: Gather,
    roster: Arc<Roster>,
    /// Connections that were lost since this was last asked for.
    left: Vec<Arc<Stream>>,
    /// This side's stream has ended.
    shut: bool,
    /// So has the peer's, and it was passed on.
    passed_on: bool,
}

impl Lanes {
    /// Of the one connection that there is at first; others come by way of `roster`.
    pub(crate) fn new(first: Arc<Stream>, role: Role, roster: Arc<Roster>, control_frames: u32) -> Self {
        let mut lanes = Self {
            role,
            control_frames,
            lanes: Vec::new(),
            scatter: Scatter::default(),
            chosen: None,
            gather: Gather::default(),
            roster,
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
        for Newcomer { stream, lender } in self.roster.arrived(cx) {
            // Nobody else holds it, so that it can be watched by this thread alone.
            let stream = match Arc::try_unwrap(stream).map(Stream::rehome) {
                Ok(stream) => Arc::new(stream?),
                Err(shared) => shared,
            };
            joined(&stream);
            let mut lane = Lane::new(stream, Framing::striped(self.role, self.control_frames), Some(lender));
            if self.shut {
                lane.framing.begin_end(&self.scatter)?;
            } else if self.role == Role::Initiator {
                // The acceptor gives the lane nothing before it has heard of it there.
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
        // Whatever comes first on a lane, it says that the initiator knows of it; nobody else may be reading.
        for number in 0..self.lanes.len() {
            let lane = &mut self.lanes[number];
            if !lane.lost
                && !lane.is_known()
                && self.gather.wants(number)
                && let Poll::Ready(incoming) = lane.poll_incoming(cx)
            {
                self.come(number, incoming)?;
            }
        }
        Ok(())
    }

    /// See [`End::left`].
    pub(super) fn left(&mut self) -> Vec<Arc<Stream>> {
        std::mem::take(&mut self.left)
    }

    /// See [`End::poll_take`].
    pub(super) fn poll_take(
        &mut self,
        cx: &mut Context<'_>,
        carrier: &mut Option<Carrier>,
        fresh: impl Fn(&Stream) -> Carrier,
        max: usize,
    ) -> Poll<Result<Taken, Failure>> {
        loop {
            let (number, len) = match self.gather.next(self.roster.is_complete())? {
                Next::End => return Poll::Ready(Ok(Taken::End)),
                Next::Payload { lane, len } => (lane, len as usize),
                Next::Wait => {
                    ready!(self.poll_headers(cx))?;
                    continue;
                }
            };
            let lane = &mut self.lanes[number];
            ready!(lane.stream.poll_read_ready(cx))?;
            // The last one came from another lane, which may have been further in its handshake.
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

    /// Reads the next header of every lane whose bytes were taken. Ready when one has come.
    fn poll_headers(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        let mut come = false;
        for number in 0..self.lanes.len() {
            if !self.gather.wants(number) || self.lanes[number].lost {
                continue;
            }
            match self.lanes[number].poll_incoming(cx) {
                Poll::Pending => {}
                Poll::Ready(incoming) => {
                    come = true;
                    self.come(number, incoming)?;
                }
            }
        }
        if come { Poll::Ready(Ok(())) } else { Poll::Pending }
    }

    fn come(&mut self, number: usize, incoming: Result<Incoming, Failure>) -> Result<(), Failure> {
        match incoming {
            Ok(incoming) => self.heed(number, incoming),
            Err(failure) => self.lose(number, failure),
        }
    }

    fn heed(&mut self, number: usize, incoming: Incoming) -> Result<(), Failure> {
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

    /// See [`End::poll_give`]. Pending while every lane has a frame under way, so that nothing is taken before it is known on which
    /// lane it goes, and how much of it.
    pub(super) fn poll_give(
        &mut self,
        cx: &mut Context<'_>,
        carrier: &mut Option<Carrier>,
        sent: &mut dyn FnMut(usize),
    ) -> Poll<Result<(), Failure>> {
        // What follows need not wait for what is under way.
        let _ = self.poll_under_way(cx, sent)?;
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

    /// The lane that can be given a frame, `full` if it is there already, and will have delivered it first.
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
                // The others are asked again without it.
                (Some((number, failure)), _) => self.lose(number, failure)?,
                (None, Some(number)) => return Poll::Ready(Ok(number)),
                (None, None) => return Poll::Pending,
            }
        }
    }

    /// Whether the lane can be given a frame now.
    fn is_free(&mut self, number: usize, cx: &mut Context<'_>) -> Result<bool, Failure> {
        match self.lanes[number].poll_free(cx) {
            Poll::Ready(Err(failure)) => self.lose(number, failure).map(|()| false),
            free => Ok(free.is_ready()),
        }
    }

    /// Goes on with the frames under way, the first in the stream first: where lanes share a buffer, the one that the peer waits
    /// for gets its room. Ready when there are none.
    fn poll_under_way(&mut self, cx: &mut Context<'_>, sent: &mut dyn FnMut(usize)) -> Poll<Result<(), Failure>> {
        let mut after = 0;
        let mut idle = true;
        loop {
            let next = self.lanes.iter_mut().filter_map(|lane| {
                let offset = lane.under_way()?;
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
        ready!(self.poll_under_way(cx, sent))?;
        ready!(self.poll_dues(cx))?;
        if !self.shut {
            self.shut = true;
            for lane in self.lanes.iter_mut().filter(|lane| !lane.lost) {
                lane.framing.begin_end(&self.scatter)?;
            }
        }
        self.poll_dues(cx)
    }

    /// See [`End::acknowledge`].
    pub(super) fn acknowledge(&mut self) {
        self.passed_on = true;
        self.lanes.iter_mut().for_each(Lane::acknowledge);
    }

    /// See [`End::poll_dues`].
    pub(super) fn poll_dues(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        let mut done = true;
        for number in 0..self.lanes.len() {
            let lane = &mut self.lanes[number];
            if lane.under_way().is_some() || lane.lost {
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
                    Poll::Ready(Ok(incoming)) => self.heed(number, incoming)?,
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

    /// Whether nothing is left to be said or heard about the session, and nobody is on the way in.
    pub(super) fn is_over(&self) -> bool {
        self.lanes.iter().all(|lane| lane.lost || lane.framing.is_over()) && self.roster.close()
    }

    /// A lane has failed, and the session with it, unless nothing can have been lost: this end has given it no bytes, none that it
    /// has announced are missing, and another lane is left. Bytes that the peer has given it are known to the peer, which fails the
    /// session then. It does not know of those that this host's kernel has acknowledged and nobody has read: so the lane is read on.
    /// Or all was said about the session on another lane.
    fn lose(&mut self, number: usize, failure: Failure) -> Result<(), Failure> {
        if matches!(failure, Failure::Io(_)) && self.gather.wants(number) {
            let lane = &mut self.lanes[number];
            if let Some(incoming) = lane.framing.read_on(&lane.stream)? {
                self.heed(number, incoming)?;
            }
        }
        let settled = self.lanes.iter().any(|lane| !lane.lost && lane.framing.is_over());
        let framing = &self.lanes[number].framing;
        let is_unused = !framing.has_sent() && !framing.is_midway() && !self.gather.awaits(number);
        let another = self.lanes.iter().enumerate().any(|(other, lane)| other != number && !lane.lost);
        let loses_nothing = matches!(failure, Failure::Io(_)) && is_unused && another;
        if !(loses_nothing || settled) || matches!(failure, Failure::Told { .. }) {
            return Err(failure);
        }
        self.lanes[number].lost = true;
        self.left.push(self.lanes[number].stream.clone());
        self.gather.leave(number);
        Ok(())
    }

    /// Why the peer has gone, if it said so on any lane before it went.
    pub(super) fn last_words(&mut self) -> Option<Failure> {
        self.lanes.iter_mut().find_map(|lane| lane.framing.last_words(&lane.stream))
    }

    /// What the lanes beside the first have done.
    pub(crate) fn stats(&self) -> Stats {
        let further = self.lanes.iter().skip(1).filter_map(Lane::stats);
        further.fold(Stats::default(), |sum, stats| sum.with(&stats))
    }

    /// How many bytes the lane is best given that has what is taken next. All together hold about `hold`.
    pub(super) fn frame(&self, hold: usize) -> usize {
        let share = (hold / self.lanes.len().max(1)).max(FRAME_MIN);
        self.chosen.map_or(share, |number| self.lanes[number].frame().min(share))
    }

    /// After a session that has ended: gives the lanes beside the first back.
    pub(crate) fn give_back(self) {
        self.lanes.into_iter().for_each(Lane::give_back);
    }

    /// After a session that has failed for `reason`: clears all lanes of it, each by itself, and gives back those that are free
    /// then. Returns the first, if it is. `held` is let go when the last is through.
    pub(super) async fn part<H: Send + Sync + 'static>(self, reason: &[u8], held: &Arc<H>) -> Option<Arc<Stream>> {
        let Self { lanes, roster, .. } = self;
        roster.give_up();
        let mut lanes = lanes.into_iter().map(|lane| {
            let (stream, framing, carrier, lender) = lane.parts();
            (End::framed_as(stream, framing), carrier, lender)
        });
        let first = lanes.next();
        for (end, carrier, lender) in lanes {
            let (reason, held) = (reason.to_vec(), held.clone());
            tokio::spawn(async move {
                if let (Some(stream), Some(lender)) = (parting::framed(end, carrier, &reason).await, lender) {
                    lender.give_back(stream);
                }
                drop(held);
            });
        }
        let (end, carrier, _) = first?;
        parting::framed(end, carrier, reason).await
    }
}

#[cfg(test)]
mod tests;
