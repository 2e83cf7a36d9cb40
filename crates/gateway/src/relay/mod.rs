//! Moves a session's bytes between its two hops until both directions have ended or one hop has failed (P19–P23, S21–S23).
//!
//! ```text
//!   first ──take──► carrier ──give──► second      direction Up:   client to destination
//!   first ◄──give── carrier ◄──take── second      direction Down: destination to client
//! ```
//!
//! One task drives both directions, so that a session costs one future and a few hundred bytes. Three rules carry the
//! invariants:
//!
//! - A direction takes bytes only when it has given all that it holds: a receiver that stops reading stops the sender, and
//!   memory is what the sockets and one carrier hold (P22), or one for each connection of a bundle.
//! - Failures are watched on both connections at all times, also on one that is not being read, so that a reset passes at
//!   once although the other side is full.
//! - An end passes on only as an end: a raw end of stream, or SHUTDOWN on a framed connection. Everything else is a failure:
//!   raw connections are reset, framed ones told, and reset as well unless both sides agree that they are free.

mod allowance;
mod end;
mod failure;
mod framing;
mod lane;
mod lanes;
mod parting;

pub(crate) use end::End;
pub(crate) use failure::Failure;

use crate::live::Live;
use end::{Carries, Taken};
use phoebus_net::{Carrier, PipePool, Stream};
use phoebus_proto::session::message::{Message, Refused};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

/// One of the two hops of a session at this gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Side {
    /// Towards the client.
    First,
    /// Towards the destination.
    Second,
}

/// The end of a relay that did not go well.
#[derive(Debug)]
pub(crate) struct Broken {
    /// On which hop it failed; `None` when the gateway itself ended the session.
    pub(crate) side: Option<Side>,
    pub(crate) failure: Failure,
}

impl Broken {
    /// The hop whose connection is of no more use. One that has told of a failure further on is as good as before.
    fn dead(&self) -> Option<Side> {
        self.side.filter(|_| !matches!(self.failure, Failure::Told { .. }))
    }
}

/// Turns of one direction before the other sessions of the thread get theirs: with pipes of 256 KiB, some megabytes.
const TURNS: usize = 16;

/// A session between two connections.
pub(crate) struct Relay {
    pub(crate) first: End,
    pub(crate) second: End,
    up: Direction,
    down: Direction,
    pool: Arc<PipePool>,
    /// Most bytes that a direction holds in its carrier.
    hold: usize,
}

#[derive(Default)]
struct Direction {
    carrier: Option<Carrier>,
    /// The sender's stream has ended.
    ended: bool,
    /// So has the receiver's.
    passed_on: bool,
}

impl Relay {
    pub(crate) fn new(first: End, second: End, pool: Arc<PipePool>, hold: usize) -> Self {
        Self { first, second, up: Direction::default(), down: Direction::default(), pool, hold }
    }

    /// Runs until the session has ended: all bytes given on, both ends passed on, and everything that a raw peer was sent
    /// acknowledged by it. Whatever ends it otherwise is returned; dropping the relay then resets both hops.
    pub(crate) async fn run(&mut self, live: &Live) -> Result<(), Broken> {
        let (first, second) = (self.first.stream.clone(), self.second.stream.clone());
        // A bundle looks after its own.
        let [alone_first, alone_second] = [&self.first, &self.second].map(|end| end.lanes().is_none());
        let watched = async {
            let (mut first, mut second, mut ended) = (pin!(first.failed()), pin!(second.failed()), pin!(live.ended()));
            std::future::poll_fn(|cx| {
                if let Poll::Ready(result) = self.poll(cx, live) {
                    return Poll::Ready(result);
                }
                let on = |side| move |failure| Broken { side: Some(side), failure };
                if alone_first && let Poll::Ready(error) = first.as_mut().poll(cx) {
                    return Poll::Ready(Err(on(Side::First)(error.into())));
                }
                if alone_second && let Poll::Ready(error) = second.as_mut().poll(cx) {
                    return Poll::Ready(Err(on(Side::Second)(error.into())));
                }
                ended.as_mut().poll(cx).map(|failure| Err(Broken { side: None, failure }))
            })
            .await
        };
        if let Err(broken) = watched.await {
            self.pass_on_rest(&broken, live).await;
            return Err(self.with_last_words(broken));
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

    /// Gives on what a raw connection had brought before it failed and the kernel still has: on a direct connection too, it
    /// would arrive before the failure. Given up when nothing moves, or after a while.
    async fn pass_on_rest(&mut self, broken: &Broken, live: &Live) {
        const SILENCE: Duration = Duration::from_millis(500);
        const PATIENCE: Duration = Duration::from_secs(3);
        let Self { first, second, up, down, pool, hold } = self;
        let (from, to, direction, is_up) = match (broken.side, &broken.failure) {
            (Some(Side::First), Failure::Io(_)) => (first, second, up, true),
            (Some(Side::Second), Failure::Io(_)) => (second, first, down, false),
            _ => return,
        };
        if from.is_framed() || direction.ended {
            return;
        }
        let (begun, mut moved) = (Instant::now(), true);
        while std::mem::take(&mut moved) && begun.elapsed() < PATIENCE {
            let count = |n| if is_up { live.count_up(n) } else { live.count_down(n) };
            let rest = std::future::poll_fn(|cx| {
                direction.poll_rest(cx, from, to, (pool, *hold), |n| {
                    moved = true;
                    count(n);
                })
            });
            if tokio::time::timeout(SILENCE, rest).await.is_ok() {
                return;
            }
        }
    }

    /// Ends the session on both hops after it is `broken`, behind the bytes that were passed on before: on a direct connection
    /// too, a reset follows what was sent before it. A receiver that has stopped is not waited for, and what is still held
    /// here for it is lost with the session.
    ///
    /// Returns the framed connections, first and second, that are free for another session. All others are reset. `held` is the
    /// right to the connections, and is let go when none of them is in use here.
    pub(crate) async fn part<H: Send + Sync + 'static>(
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
                    parting::raw(stream).await;
                    None
                }
                Carries::Framed(framing) => parting::framed(End::framed_as(stream, *framing), carrier, reason).await,
                Carries::Bundle(lanes) => {
                    drop((stream, carrier));
                    Box::pin(lanes.part(reason, held)).await
                }
            }
        };
        let (first, second) =
            tokio::join!(leave(Side::First, first, down.carrier), leave(Side::Second, second, up.carrier));
        [first, second]
    }

    /// Gives back what others have lent to bundles, after a session that has ended well.
    pub(crate) fn give_back(self) {
        for end in [self.first, self.second] {
            if let Carries::Bundle(lanes) = end.carries {
                lanes.give_back();
            }
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>, live: &Live) -> Poll<Result<(), Broken>> {
        let Self { first, second, up, down, pool, hold } = self;
        for (side, end) in [(Side::First, &mut *first), (Side::Second, &mut *second)] {
            let failed = |failure| Broken { side: Some(side), failure };
            end.poll_members(cx, |stream| live.joined(side, stream)).map_err(failed)?;
        }
        let up = up.poll(cx, (Side::First, first), (Side::Second, second), (pool, *hold), |n| live.count_up(n))?;
        let down =
            down.poll(cx, (Side::Second, second), (Side::First, first), (pool, *hold), |n| live.count_down(n))?;
        // A direction that has just passed its end on owes the other one's connection an acknowledgement.
        let on = |side| move |failure| Broken { side: Some(side), failure };
        let dues = [
            first.poll_dues(cx).map_err(on(Side::First))?.is_ready(),
            second.poll_dues(cx).map_err(on(Side::Second))?.is_ready(),
        ];
        for (side, end) in [(Side::First, &mut *first), (Side::Second, &mut *second)] {
            end.left().iter().for_each(|stream| live.left(side, stream));
        }
        let over = up.is_ready() && down.is_ready() && dues == [true, true] && first.is_over() && second.is_over();
        if over { Poll::Ready(Ok(())) } else { Poll::Pending }
    }

    /// Replaces a bare "connection reset" by what the peer had said before it went.
    fn with_last_words(&mut self, broken: Broken) -> Broken {
        let end = match (&broken.side, &broken.failure) {
            (Some(Side::First), Failure::Io(_)) => &mut self.first,
            (Some(Side::Second), Failure::Io(_)) => &mut self.second,
            _ => return broken,
        };
        match end.last_words() {
            Some(failure) => Broken { failure, ..broken },
            None => broken,
        }
    }
}

impl Direction {
    /// Ready when this direction has ended and been passed on, and nothing more is to be read about the session from the
    /// end that it reads.
    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        (from_side, from): (Side, &mut End),
        (to_side, to): (Side, &mut End),
        (pool, hold): (&Arc<PipePool>, usize),
        mut count: impl FnMut(usize),
    ) -> Poll<Result<(), Broken>> {
        let on = |side| move |failure| Broken { side: Some(side), failure };
        for _ in 0..TURNS {
            ready!(to.poll_give(cx, &mut self.carrier, &mut count)).map_err(on(to_side))?;
            if self.ended {
                self.carrier = None;
                if !self.passed_on {
                    ready!(to.poll_shutdown(cx, &mut count)).map_err(on(to_side))?;
                    self.passed_on = true;
                    from.acknowledge();
                }
                return from.poll_rest(cx).map_err(on(from_side));
            }
            let fresh = |source: &Stream| pool.carrier(source, &to.stream);
            match from.poll_take(cx, &mut self.carrier, fresh, to.most_at_a_time(hold)).map_err(on(from_side))? {
                Poll::Ready(Taken::Bytes) => {}
                Poll::Ready(Taken::End) => self.ended = true,
                Poll::Pending => {
                    // An idle session holds no pipe.
                    self.carrier = None;
                    return Poll::Pending;
                }
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Ready when nothing more is there that `from` had brought before it failed, or `to` has failed as well.
    fn poll_rest(
        &mut self,
        cx: &mut Context<'_>,
        from: &mut End,
        to: &mut End,
        (pool, hold): (&Arc<PipePool>, usize),
        mut count: impl FnMut(usize),
    ) -> Poll<()> {
        loop {
            if ready!(to.poll_give(cx, &mut self.carrier, &mut count)).is_err() {
                return Poll::Ready(());
            }
            let fresh = |source: &Stream| pool.carrier(source, &to.stream);
            let most = to.most_at_a_time(hold);
            let Poll::Ready(Ok(Taken::Bytes)) = from.poll_take(cx, &mut self.carrier, fresh, most) else {
                return Poll::Ready(());
            };
        }
    }
}

#[cfg(test)]
mod tests;
