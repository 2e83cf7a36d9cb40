//! Helpers for waiting on connections: for acknowledgement, for the peer, and within tokio's cooperative
//! budget.

use crate::duplex::OtherEnd;
use rustix::event::{PollFd, PollFlags, Timespec};
use std::io;
use std::os::fd::AsFd;
use std::task::{Context, Poll};
use std::time::Duration;

/// Polls `ready` within tokio's cooperative budget: a task that always finds something ready yields to others
/// now and then. Tokio's own sockets do this by themselves.
pub(crate) fn cooperative<T>(cx: &mut Context<'_>, ready: impl FnOnce(&mut Context<'_>) -> Poll<T>) -> Poll<T> {
    let turn = std::task::ready!(tokio::task::coop::poll_proceed(cx));
    let result = ready(cx);
    if result.is_ready() {
        turn.made_progress();
    }
    result
}

/// What the kernel knows of the peer of `socket`.
pub(crate) fn other_end(socket: &impl AsFd) -> Option<OtherEnd> {
    let mut fds = [PollFd::new(socket, PollFlags::RDHUP)];
    rustix::event::poll(&mut fds, Some(&Timespec::default())).ok()?;
    let seen = fds[0].revents();
    Some(match () {
        () if seen.intersects(PollFlags::ERR | PollFlags::HUP) => OtherEnd::Gone,
        () if seen.contains(PollFlags::RDHUP) => OtherEnd::Ended,
        () => OtherEnd::Open,
    })
}

/// The polling schedule of [`Stream::delivered`](crate::Stream::delivered), independent of any clock. The
/// kernel has no event for an empty send queue, so callers poll it at growing intervals.
#[derive(Debug)]
pub(crate) struct Waiting {
    time_limit: Duration,
    pause: Duration,
    /// The smallest unacknowledged count seen so far, and the time since it last decreased.
    least: usize,
    silent: Duration,
}

impl Waiting {
    const FIRST: Duration = Duration::from_millis(1);
    const LONGEST: Duration = Duration::from_millis(200);

    pub(crate) fn new(time_limit: Duration) -> Self {
        Self { time_limit, pause: Self::FIRST, least: usize::MAX, silent: Duration::ZERO }
    }

    /// The pause before the next poll, given the number of unacknowledged bytes; `None` when it is 0.
    ///
    /// # Errors
    /// `TimedOut` when nothing more was acknowledged for `time_limit`.
    pub(crate) fn next(&mut self, left: usize) -> io::Result<Option<Duration>> {
        if left == 0 {
            return Ok(None);
        }
        self.silent = if left < self.least { Duration::ZERO } else { self.silent + self.pause };
        self.least = left.min(self.least);
        if self.silent > self.time_limit {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let pause = self.pause;
        self.pause = (pause * 2).min(Self::LONGEST);
        Ok(Some(pause))
    }
}
