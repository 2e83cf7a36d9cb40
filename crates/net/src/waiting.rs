//! How connections are waited for: for what is to be acknowledged, for the other end, and with a part of tokio's budget.

use crate::duplex::OtherEnd;
use rustix::event::{PollFd, PollFlags, Timespec};
use std::io;
use std::os::fd::AsFd;
use std::task::{Context, Poll};
use std::time::Duration;

/// What `ready` says, as a part of tokio's cooperative budget: a task that always finds something ready gives way to others now and
/// then. Sockets of tokio's own do so by themselves.
pub(crate) fn cooperative<T>(cx: &mut Context<'_>, ready: impl FnOnce(&mut Context<'_>) -> Poll<T>) -> Poll<T> {
    let turn = std::task::ready!(tokio::task::coop::poll_proceed(cx));
    let result = ready(cx);
    if result.is_ready() {
        turn.made_progress();
    }
    result
}

/// What the kernel knows of the other end of `socket`.
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

/// How [`Stream::delivered`](crate::Stream::delivered) waits, on whatever clock: the kernel has no event for an empty send queue, so that it is asked,
/// ever more rarely.
#[derive(Debug)]
pub(crate) struct Waiting {
    patience: Duration,
    pause: Duration,
    /// The least that was left so far, and for how long it has not become less.
    least: usize,
    silent: Duration,
}

impl Waiting {
    const FIRST: Duration = Duration::from_millis(1);
    const LONGEST: Duration = Duration::from_millis(200);

    pub(crate) fn new(patience: Duration) -> Self {
        Self { patience, pause: Self::FIRST, least: usize::MAX, silent: Duration::ZERO }
    }

    /// How long to wait before the next look, now that so many bytes are left; nothing, if none are.
    ///
    /// # Errors
    /// `TimedOut` where none were acknowledged for too long.
    pub(crate) fn next(&mut self, left: usize) -> io::Result<Option<Duration>> {
        if left == 0 {
            return Ok(None);
        }
        self.silent = if left < self.least { Duration::ZERO } else { self.silent + self.pause };
        self.least = left.min(self.least);
        if self.silent > self.patience {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let pause = self.pause;
        self.pause = (pause * 2).min(Self::LONGEST);
        Ok(Some(pause))
    }
}
