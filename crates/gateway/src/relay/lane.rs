//! One connection of a bundle: its frames, the limit on its unsent bytes, and its lender.

use super::framing::{Framing, Incoming};
use crate::bundle::ReturnHandle;
use crate::failure::Failure;
use phoebus_net::transport::Change;
use phoebus_net::{Carrier, Stats, Stream};
use phoebus_proto::session::bundle::{Load, Scatter};
use phoebus_proto::session::frame::Role;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

/// How long the transport's counters stay valid. They change within a round trip, and paths that need bundles are long.
const LOOK: Duration = Duration::from_millis(5);

pub(super) struct Lane {
    pub(super) stream: Arc<Stream>,
    pub(super) framing: Framing,
    /// The rest of the incomplete frame, and its offset in the stream.
    sending: Option<(u64, Carrier)>,
    failed: Pin<Box<dyn Future<Output = io::Error> + Send>>,
    /// `None` for the connection on which the session was opened.
    lender: Option<ReturnHandle>,
    /// The lane failed without harm to the session (see `Lanes::lose`).
    pub(super) lost: bool,
    /// The end of the peer's stream was acknowledged on this lane.
    acknowledged: bool,
    /// The transport's counters when the lane joined.
    start: Box<Stats>,
    load: Load,
    /// When `load` was measured.
    looked: Option<Instant>,
    /// The limit on unsent bytes in the transport, once set; `None` where the transport has none.
    bound: Option<u64>,
}

impl Lane {
    pub(super) fn new(stream: Arc<Stream>, framing: Framing, lender: Option<ReturnHandle>) -> Self {
        let watched = stream.clone();
        Self {
            start: Box::new(stream.stats().unwrap_or_default()),
            stream,
            framing,
            sending: None,
            failed: Box::pin(async move { watched.failed().await }),
            lender,
            lost: false,
            acknowledged: false,
            load: Load::default(),
            looked: None,
            bound: Some(0),
        }
    }

    /// Ready when the lane can accept a frame.
    pub(super) fn poll_free(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        if self.sending.is_some() || self.lost || !self.is_known() {
            return Poll::Pending;
        }
        ready!(self.poll_send(cx, &mut |_| {}))?;
        self.stream.poll_write_ready(cx).map_err(Into::into)
    }

    /// Whether both ends know of the lane. An initiator that has not received the answer to ATTACH would not notice a
    /// loss on the lane, so an acceptor waits for the first frame there. Both know the connection on which the session
    /// was opened.
    pub(super) fn is_known(&self) -> bool {
        self.lender.is_none() || self.framing.role() == Role::Initiator || self.framing.has_heard()
    }

    /// Whether the lane can send what `carrier` holds.
    pub(super) fn suits(&self, carrier: &Carrier) -> bool {
        carrier.suits(&self.stream)
    }

    /// Estimated time until the lane has delivered a frame of `len` bytes (or of its best size), in microseconds.
    pub(super) fn due(&mut self, len: Option<usize>) -> u64 {
        self.look();
        self.load.due(len.unwrap_or_else(|| self.load.frame()))
    }

    /// The best number of bytes to give the lane at a time.
    pub(super) fn frame(&self) -> usize {
        self.load.frame()
    }

    /// Begins a frame. The lane must be [free](Lane::poll_free).
    pub(super) fn give(&mut self, scatter: &mut Scatter, carrier: Carrier) -> Result<(), Failure> {
        let offset = scatter.position();
        self.framing.begin_part(scatter, carrier.len())?;
        self.load.ahead += carrier.len() as u64;
        self.sending = Some((offset, carrier));
        Ok(())
    }

    /// The offset of the incomplete frame in the stream.
    pub(super) fn incomplete_offset(&self) -> Option<u64> {
        self.sending.as_ref().map(|(offset, _)| *offset)
    }

    /// Sends control frames that are due and the rest of the incomplete frame.
    pub(super) fn poll_send(&mut self, cx: &mut Context<'_>, sent: &mut dyn FnMut(usize)) -> Poll<Result<(), Failure>> {
        loop {
            let result = self.framing.try_flush(&self.stream).and_then(|()| match &mut self.sending {
                Some((_, carrier)) if !carrier.is_empty() => {
                    let n = carrier.drain(&self.stream)?;
                    self.framing.payload_sent(n);
                    sent(n);
                    Ok(false)
                }
                _ => Ok(true),
            });
            match result {
                Ok(false) => {}
                Ok(true) => {
                    self.sending = None;
                    return Poll::Ready(Ok(()));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => ready!(self.stream.poll_write_ready(cx))?,
                Err(error) => return Poll::Ready(Err(error.into())),
            }
        }
    }

    pub(super) fn poll_failed(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        self.failed.as_mut().poll(cx)
    }

    pub(super) fn poll_incoming(&mut self, cx: &mut Context<'_>) -> Poll<Result<Incoming, Failure>> {
        self.framing.poll_incoming(&self.stream, cx)
    }

    /// Acknowledges the end of the peer's stream once, if it was received here.
    pub(super) fn acknowledge(&mut self) {
        if self.framing.has_ended() && !std::mem::replace(&mut self.acknowledged, true) {
            self.framing.acknowledge();
        }
    }

    /// The transport's counters since the lane joined.
    pub(super) fn stats(&self) -> Option<Stats> {
        Some(self.stream.stats().ok()?.since(&self.start))
    }

    /// Removes the limit on unsent bytes, and returns the connection to its lender, if it has one.
    pub(super) fn give_back(mut self) {
        self.unbind();
        let Self { stream, failed, lender, lost, .. } = self;
        drop(failed);
        if let Some(lender) = lender
            && !lost
        {
            lender.give_back(stream);
        }
    }

    /// The parts to clean up after a failed session: the connection, its framing state, the rest of the incomplete
    /// frame, and the lender.
    pub(super) fn parts(mut self) -> (Arc<Stream>, Framing, Option<Carrier>, Option<ReturnHandle>) {
        self.unbind();
        // Drops `failed`, which holds the connection too.
        let Self { stream, framing, sending, lender, .. } = self;
        (stream, framing, sending.map(|(_, carrier)| carrier), lender)
    }

    /// Reads the transport's counters, unless they were read within `LOOK`, and limits its unsent bytes to what they
    /// suggest.
    fn look(&mut self) {
        let now = Instant::now();
        if self.looked.is_some_and(|looked| now.duration_since(looked) < LOOK) {
            return;
        }
        self.looked = Some(now);
        let Ok(stats) = self.stream.stats() else { return };
        let segment = u64::from(stats.segment_size);
        let unsent_of_frame = self.sending.as_ref().map_or(0, |(_, carrier)| carrier.len() as u64);
        self.load = Load {
            window: u64::from(stats.congestion_window) * segment,
            round_trip: stats.rtt_us,
            ahead: u64::from(stats.in_flight) * segment + u64::from(stats.unsent) + unsent_of_frame,
        };
        let (most, Some(bound)) = (self.load.unsent_max(), self.bound) else { return };
        if most.abs_diff(bound) > bound / 8 {
            // A transport without such a limit holds what its send buffer takes.
            let set = self.stream.set(Change::Unsent(Some(most)));
            self.bound = set.is_ok().then_some(most);
        }
    }

    /// Removes the limit on unsent bytes.
    fn unbind(&mut self) {
        if self.bound.take().is_some_and(|bound| bound > 0) {
            // A connection that has failed needs no limit.
            let _ = self.stream.set(Change::Unsent(None));
        }
    }
}
