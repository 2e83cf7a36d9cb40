//! Moves a session's bytes between its two hops until both directions have ended or one hop has failed (P19–P23,
//! S21–S23).
//!
//! ```text
//!   first ──take──► carrier ──give──► second      direction Up:   client to destination
//!   first ◄──give── carrier ◄──take── second      direction Down: destination to client
//! ```
//!
//! One task drives both directions, so that a session costs one future and a few hundred bytes. Three rules carry the
//! invariants:
//!
//! - A direction takes bytes only after it has given all that it holds. A receiver that stops reading therefore stops
//!   the sender, and memory is bounded by the sockets' buffers and one carrier per direction (P22), or one per
//!   connection of a bundle.
//! - The relay watches both connections for failures at all times, even one that it is not reading, so that a reset
//!   passes at once although the other side is full.
//! - Only an end of stream is forwarded as an end: FIN on a raw connection, SHUTDOWN on a framed one. Everything else
//!   is a failure: a raw connection is reset; a framed one receives RESET, and is closed as well unless both sides
//!   agree that it is free.

mod allowance;
mod coalescing;
mod end;
mod framing;
mod lane;
mod lanes;
mod reset;
mod reset_lanes;
mod taken;

pub(crate) use end::End;

use crate::failure::{Failure, Side};
use crate::sessions::ActiveSession;
use coalescing::Coalescer;
use end::Carries;
use phoebus_net::{Carrier, PipePool, Stream};
use phoebus_proto::session::message::{Message, Refused};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};
use taken::Taken;

/// Why a relay failed.
#[derive(Debug)]
pub(crate) struct Broken {
    /// On which hop it failed; `None` when the gateway itself ended the session.
    pub(crate) side: Option<Side>,
    pub(crate) failure: Failure,
}

impl Broken {
    /// The hop whose connection is unusable. A connection that has reported a failure further on remains usable.
    fn dead(&self) -> Option<Side> {
        self.side.filter(|_| !matches!(self.failure, Failure::Reported { .. }))
    }
}

/// Transfers in one direction before the other sessions of the thread get their turn: some megabytes with pipes of 256
/// KiB.
const TURNS: usize = 16;

/// A session between two connections.
pub(crate) struct Relay {
    pub(crate) first: End,
    pub(crate) second: End,
    up: Direction,
    down: Direction,
    means: Means,
}

/// What a direction uses.
#[derive(Debug, Clone)]
pub(crate) struct Means {
    /// Lends carriers.
    pub(crate) pool: Arc<PipePool>,
    /// The most bytes that a direction may hold in its carrier.
    pub(crate) hold: usize,
    /// How long bytes of a bulk flow may gather before they are read; zero if not at all.
    pub(crate) receive_coalescing: Duration,
}

#[derive(Default)]
struct Direction {
    carrier: Option<Carrier>,
    coalescer: Coalescer,
    /// The sender's stream has ended.
    ended: bool,
    /// The end has been forwarded to the receiver.
    passed_on: bool,
}

impl Relay {
    pub(crate) fn new(first: End, second: End, means: Means) -> Self {
        Self { first, second, up: Direction::default(), down: Direction::default(), means }
    }

    /// Runs until the session has ended: all bytes and both ends are forwarded, and every raw peer has acknowledged
    /// what it was sent. Returns any other outcome as an error; dropping the relay then resets both hops.
    pub(crate) async fn run(&mut self, live: &ActiveSession) -> Result<(), Broken> {
        let (first, second) = (self.first.stream.clone(), self.second.stream.clone());
        // A bundle watches its own connections.
        let [alone_first, alone_second] = [&self.first, &self.second].map(|end| end.lanes().is_none());
        let watched = async {
            let (mut first, mut second, mut ended) = (pin!(first.failed()), pin!(second.failed()), pin!(live.ended()));
            std::future::poll_fn(|cx| {
                if let Poll::Ready(result) = self.poll(cx, live) {
                    return Poll::Ready(result);
                }
                let failed = match (alone_first, alone_second) {
                    (true, _) if let Poll::Ready(error) = first.as_mut().poll(cx) => Some((Side::First, error)),
                    (_, true) if let Poll::Ready(error) = second.as_mut().poll(cx) => Some((Side::Second, error)),
                    _ => None,
                };
                if let Some((side, error)) = failed {
                    // Over UDT, a peer that closes after its last acknowledgement looks like one that has failed. What
                    // came before that completes the session.
                    if let Poll::Ready(Ok(())) = self.poll(cx, live) {
                        return Poll::Ready(Ok(()));
                    }
                    return Poll::Ready(Err(Broken { side: Some(side), failure: error.into() }));
                }
                ended.as_mut().poll(cx).map(|failure| Err(Broken { side: None, failure }))
            })
            .await
        };
        let watched = watched.await;
        // Both connections may serve other sessions.
        self.up.coalescer.end(&first);
        self.down.coalescer.end(&second);
        if let Err(broken) = watched {
            self.pass_on_rest(&broken, live).await;
            return Err(self.with_reported_reason(broken));
        }
        let framed = [self.first.is_framed(), self.second.is_framed()];
        for (side, stream, framed) in [(Side::First, &first, framed[0]), (Side::Second, &second, framed[1])] {
            if framed {
                continue;
            }
            tokio::select! {
                delivered = stream.delivered(Duration::MAX) => {
                    delivered.map_err(|error| Broken { side: Some(side), failure: error.into() })?;
                }
                failure = live.ended() => return Err(Broken { side: None, failure }),
            }
        }
        Ok(())
    }

    /// Forwards what a raw connection delivered before it failed and the kernel still buffers: on a direct connection,
    /// too, these bytes would arrive before the failure. Gives up when nothing moves for `SILENCE`, or after
    /// `REST_TIME_MAX`.
    async fn pass_on_rest(&mut self, broken: &Broken, live: &ActiveSession) {
        const SILENCE: Duration = Duration::from_millis(500);
        const REST_TIME_MAX: Duration = Duration::from_secs(3);
        let Self { first, second, up, down, means } = self;
        let (from, to, direction, is_up) = match (broken.side, &broken.failure) {
            (Some(Side::First), Failure::Io(_)) => (first, second, up, true),
            (Some(Side::Second), Failure::Io(_)) => (second, first, down, false),
            _ => return,
        };
        if from.is_framed() || direction.ended {
            return;
        }
        let (begun, mut moved) = (Instant::now(), true);
        while std::mem::take(&mut moved) && begun.elapsed() < REST_TIME_MAX {
            let count = |n| if is_up { live.count_up(n) } else { live.count_down(n) };
            let rest = std::future::poll_fn(|cx| {
                direction.poll_rest(cx, from, to, means, |n| {
                    moved = true;
                    count(n);
                })
            });
            if tokio::time::timeout(SILENCE, rest).await.is_ok() {
                return;
            }
        }
    }

    /// Ends the session on both hops after it is `broken`, behind the bytes already forwarded: on a direct connection,
    /// too, a reset follows what was sent before it. Does not wait for a receiver that has stopped; bytes still held
    /// for it are lost with the session.
    ///
    /// Returns the framed connections, first and second, that are free for another session. All others are reset.
    /// `held` is the right to use the connections; it is released when none of them is in use here.
    pub(crate) async fn pass_reset_on<H: Send + Sync + 'static>(
        self,
        why: &Refused<'_>,
        broken: &Broken,
        held: &Arc<H>,
    ) -> [Option<Arc<Stream>>; 2] {
        let mut reason = vec![0; 2048];
        let len = Message::Refused(*why).encode(&mut reason).unwrap_or(0);
        let reason = reason.get(phoebus_proto::session::PREFIX_LEN..len).unwrap_or_default();
        let Self { first, second, up, down, .. } = self;
        let leave = async |side, end: End, carrier| {
            if broken.dead() == Some(side) {
                return None;
            }
            let End { stream, carries } = end;
            match carries {
                Carries::Raw => {
                    reset::raw(stream).await;
                    None
                }
                Carries::Framed(framing) => reset::framed(End::framed_as(stream, *framing), carrier, reason).await,
                Carries::Bundle(lanes) => {
                    drop((stream, carrier));
                    Box::pin(lanes.pass_reset_on(reason, held)).await
                }
            }
        };
        let (first, second) =
            tokio::join!(leave(Side::First, first, down.carrier), leave(Side::Second, second, up.carrier));
        [first, second]
    }

    /// Returns the connections of bundles to their lenders after a session that has ended well.
    pub(crate) fn give_back(self) {
        for end in [self.first, self.second] {
            if let Carries::Bundle(lanes) = end.carries {
                lanes.give_back();
            }
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>, live: &ActiveSession) -> Poll<Result<(), Broken>> {
        let Self { first, second, up, down, means } = self;
        for (side, end) in [(Side::First, &mut *first), (Side::Second, &mut *second)] {
            let failed = |failure| Broken { side: Some(side), failure };
            end.poll_members(cx, |stream| live.joined(side, stream)).map_err(failed)?;
        }
        let up = up.poll(cx, (Side::First, first), (Side::Second, second), means, |n| live.count_up(n))?;
        let down = down.poll(cx, (Side::Second, second), (Side::First, first), means, |n| live.count_down(n))?;
        // A direction that has just forwarded its end owes an acknowledgement on the other direction's connection.
        let on = |side| move |failure| Broken { side: Some(side), failure };
        let dues = [
            first.poll_control_frames(cx).map_err(on(Side::First))?.is_ready(),
            second.poll_control_frames(cx).map_err(on(Side::Second))?.is_ready(),
        ];
        for (side, end) in [(Side::First, &mut *first), (Side::Second, &mut *second)] {
            end.left().iter().for_each(|stream| live.left(side, stream));
        }
        let over = up.is_ready() && down.is_ready() && dues == [true, true] && first.is_over() && second.is_over();
        if over { Poll::Ready(Ok(())) } else { Poll::Pending }
    }

    /// Replaces a bare "connection reset" by the reason that the peer sent before it closed.
    fn with_reported_reason(&mut self, broken: Broken) -> Broken {
        let end = match (&broken.side, &broken.failure) {
            (Some(Side::First), Failure::Io(_)) => &mut self.first,
            (Some(Side::Second), Failure::Io(_)) => &mut self.second,
            _ => return broken,
        };
        match end.reported_reason() {
            Some(failure) => Broken { failure, ..broken },
            None => broken,
        }
    }
}

impl Direction {
    /// Ready when this direction has ended, its end has been forwarded, and `from` has nothing more to read about the
    /// session.
    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        (from_side, from): (Side, &mut End),
        (to_side, to): (Side, &mut End),
        means: &Means,
        mut count: impl FnMut(usize),
    ) -> Poll<Result<(), Broken>> {
        let on = |side| move |failure| Broken { side: Some(side), failure };
        for _ in 0..TURNS {
            let Poll::Ready(given) = to.poll_send(cx, &mut self.carrier, &mut count) else {
                let waits = self.coalescer.end_overdue_wait(&from.stream, cx);
                waits.map_err(|error| on(from_side)(error.into()))?;
                return Poll::Pending;
            };
            given.map_err(on(to_side))?;
            if self.ended {
                self.carrier = None;
                if !self.passed_on {
                    ready!(to.poll_shutdown(cx, &mut count)).map_err(on(to_side))?;
                    self.passed_on = true;
                    from.acknowledge();
                }
                return from.poll_rest(cx).map_err(on(from_side));
            }
            let fresh = |source: &Stream| means.pool.carrier(source, &to.stream);
            let most = to.most_at_a_time(means.hold);
            match from.poll_recv(cx, &mut self.carrier, fresh, most).map_err(on(from_side))? {
                Poll::Ready(Taken::Bytes) => self.coalescer.received(self.carrier.as_ref().map_or(0, Carrier::len)),
                Poll::Ready(Taken::End) => {
                    self.ended = true;
                    // Only short acknowledgements follow.
                    self.coalescer.end(&from.stream);
                }
                Poll::Pending => {
                    // An idle session holds no pipe.
                    self.carrier = None;
                    // Each connection of a bundle brings a part of what is awaited.
                    if from.lanes().is_none() {
                        let waits = self.coalescer.wait(&from.stream, means.receive_coalescing, cx);
                        waits.map_err(|error| on(from_side)(error.into()))?;
                    }
                    return Poll::Pending;
                }
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Ready when all that `from` delivered before it failed has been forwarded, or `to` has failed as well.
    fn poll_rest(
        &mut self,
        cx: &mut Context<'_>,
        from: &mut End,
        to: &mut End,
        means: &Means,
        mut count: impl FnMut(usize),
    ) -> Poll<()> {
        loop {
            if ready!(to.poll_send(cx, &mut self.carrier, &mut count)).is_err() {
                return Poll::Ready(());
            }
            let fresh = |source: &Stream| means.pool.carrier(source, &to.stream);
            let most = to.most_at_a_time(means.hold);
            let Poll::Ready(Ok(Taken::Bytes)) = from.poll_recv(cx, &mut self.carrier, fresh, most) else {
                return Poll::Ready(());
            };
        }
    }
}

#[cfg(test)]
mod recorded;
#[cfg(test)]
mod tests;
