//! One connection of a bundle: its frames, what may wait in it, and who has lent it.

use super::failure::Failure;
use super::framing::{Framing, Incoming};
use crate::bundle::Lender;
use phoebus_net::transport::Change;
use phoebus_net::{Carrier, Stats, Stream};
use phoebus_proto::session::bundle::{Load, Scatter};
use phoebus_proto::session::frame::Role;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

/// For how long the transport's counters count: they change within a round trip, and paths that need bundles are long.
const LOOK: Duration = Duration::from_millis(5);

pub(super) struct Lane {
    pub(super) stream: Arc<Stream>,
    pub(super) framing: Framing,
    /// What is left of the frame under way, and where it lies in the stream.
    sending: Option<(u64, Carrier)>,
    failed: Pin<Box<dyn Future<Output = io::Error> + Send>>,
    /// None for the connection on which the session was opened.
    lender: Option<Lender>,
    /// It failed when everything about the session had been said on another.
    pub(super) lost: bool,
    /// The end of the peer's stream was acknowledged on it.
    acknowledged: bool,
    /// When it joined.
    start: Box<Stats>,
    load: Load,
    /// When that was so.
    looked: Option<Instant>,
    /// The bound on what may wait in the transport, once it is in force; `None` where the transport has none.
    bound: Option<u64>,
}

impl Lane {
    pub(super) fn new(stream: Arc<Stream>, framing: Framing, lender: Option<Lender>) -> Self {
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

    /// Ready when it can be given a frame.
    pub(super) fn poll_free(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        if self.sending.is_some() || self.lost || !self.is_known() {
            return Poll::Pending;
        }
        ready!(self.poll_send(cx, &mut |_| {}))?;
        self.stream.poll_write_ready(cx).map_err(Into::into)
    }

    /// Whether both ends know of it. An initiator that has not heard the answer to ATTACH would not miss what was lost on it, and so an
    /// acceptor waits for the first frame there. The connection on which the session was opened is known.
    pub(super) fn is_known(&self) -> bool {
        self.lender.is_none() || self.framing.role() == Role::Initiator || self.framing.has_heard()
    }

    /// Whether it can have what `carrier` holds.
    pub(super) fn suits(&self, carrier: &Carrier) -> bool {
        carrier.suits(&self.stream)
    }

    /// When it will have delivered a frame of `len` bytes, or of as many as it is best given: microseconds from now.
    pub(super) fn due(&mut self, len: Option<usize>) -> u64 {
        self.look();
        self.load.due(len.unwrap_or_else(|| self.load.frame()))
    }

    /// How many bytes it is best given at a time.
    pub(super) fn frame(&self) -> usize {
        self.load.frame()
    }

    /// Begins a frame; only where it is [free](Lane::poll_free).
    pub(super) fn give(&mut self, scatter: &mut Scatter, carrier: Carrier) -> Result<(), Failure> {
        let offset = scatter.position();
        self.framing.begin_part(scatter, carrier.len())?;
        self.load.ahead += carrier.len() as u64;
        self.sending = Some((offset, carrier));
        Ok(())
    }

    /// Where the frame under way lies in the stream.
    pub(super) fn under_way(&self) -> Option<u64> {
        self.sending.as_ref().map(|(offset, _)| *offset)
    }

    /// Sends what is due and what is left of the frame under way.
    pub(super) fn poll_send(&mut self, cx: &mut Context<'_>, sent: &mut dyn FnMut(usize)) -> Poll<Result<(), Failure>> {
        loop {
            let result = self.framing.try_flush(&self.stream).and_then(|()| match &mut self.sending {
                Some((_, carrier)) if !carrier.is_empty() => {
                    let n = carrier.drain(&self.stream)?;
                    self.framing.paid(n);
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

    /// Confirms the end of the peer's stream, if it has come here; once.
    pub(super) fn acknowledge(&mut self) {
        if self.framing.has_ended() && !std::mem::replace(&mut self.acknowledged, true) {
            self.framing.acknowledge();
        }
    }

    /// What it has done since it joined.
    pub(super) fn stats(&self) -> Option<Stats> {
        Some(self.stream.stats().ok()?.since(&self.start))
    }

    /// Gives it back to whoever lent it, if anyone did, as it came.
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

    /// What there is to be brought to an end where the session has failed: the connection, what was said on it, what is left of
    /// the frame under way, and who has lent it.
    pub(super) fn parts(mut self) -> (Arc<Stream>, Framing, Option<Carrier>, Option<Lender>) {
        self.unbind();
        // Who watches holds the connection as well.
        let Self { stream, framing, sending, lender, .. } = self;
        (stream, framing, sending.map(|(_, carrier)| carrier), lender)
    }

    /// Takes the transport's counters, unless it has of late, and has no more wait there than they suggest.
    fn look(&mut self) {
        let now = Instant::now();
        if self.looked.is_some_and(|looked| now.duration_since(looked) < LOOK) {
            return;
        }
        self.looked = Some(now);
        let Ok(stats) = self.stream.stats() else { return };
        let segment = u64::from(stats.segment_size);
        let under_way = self.sending.as_ref().map_or(0, |(_, carrier)| carrier.len() as u64);
        self.load = Load {
            window: u64::from(stats.congestion_window) * segment,
            round_trip: stats.rtt_us,
            ahead: u64::from(stats.in_flight) * segment + u64::from(stats.unsent) + under_way,
        };
        let (most, Some(bound)) = (self.load.unsent_max(), self.bound) else { return };
        if most.abs_diff(bound) > bound / 8 {
            // A transport without such a bound holds what its send buffer takes.
            let set = self.stream.set(Change::Unsent(Some(most)));
            self.bound = set.is_ok().then_some(most);
        }
    }

    /// Lets wait in the transport what it has room for.
    fn unbind(&mut self) {
        if self.bound.take().is_some_and(|bound| bound > 0) {
            // A connection that has failed needs no bound.
            let _ = self.stream.set(Change::Unsent(None));
        }
    }
}
