//! A descriptor to poll: readable while something is pending.

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

/// An eventfd(2); see the module.
#[derive(Debug)]
pub(crate) struct Bell(OwnedFd);

impl Bell {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    /// Makes the descriptor readable. Fails only after 2^64 calls without a [`clear`](Self::clear).
    pub(crate) fn ring(&self) {
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    /// Makes the descriptor unreadable.
    pub(crate) fn clear(&self) {
        let _ = rustix::io::read(&self.0, &mut [0_u8; 8]);
    }

    /// Waits until the descriptor is readable, for this many milliseconds; negative: without a limit. Returns whether
    /// it is.
    pub(crate) fn wait(&self, milliseconds: i32) -> bool {
        let limit = u64::try_from(milliseconds).ok().map(Duration::from_millis);
        let begun = Instant::now();
        loop {
            let left = limit.map(|limit| limit.saturating_sub(begun.elapsed()));
            let wait = left.and_then(|left| Timespec::try_from(left).ok());
            match poll(&mut [PollFd::new(&self.0, PollFlags::IN)], wait.as_ref()) {
                // A signal interrupted the wait; continue for the remaining time.
                Err(rustix::io::Errno::INTR) => {}
                outcome => return outcome.is_ok_and(|ready| ready > 0),
            }
        }
    }

    pub(crate) fn number(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}
