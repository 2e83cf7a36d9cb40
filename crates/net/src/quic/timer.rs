//! The timer of a connection, with microsecond precision where that matters.
//!
//! quinn paces by bursts of at most 2 ms, and cannot make up for the time between the end of a burst and its
//! next look at the clock. The runtime's timers are rounded up to a millisecond twice, by its timer wheel and
//! by epoll's time-out, so that a wait of 1.6 ms takes 2.6 ms on average, and a connection sends 0.8 of its
//! window per round trip instead of 1.25. So the kernel times short waits ([`timerfd_create`]).

use quinn::AsyncTimer;
use rustix::fd::OwnedFd;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};
use tokio::io::unix::AsyncFd;
use tokio::time::{Sleep, sleep_until};

/// Waits up to this length are precise. Longer ones are not pacing, and a millisecond does not matter there.
const SHORT: Duration = Duration::from_millis(10);

/// The timer; see the module documentation.
#[derive(Debug)]
pub(super) struct Timer {
    deadline: Instant,
    coarse: Pin<Box<Sleep>>,
    /// Created for the first short wait: most connections never have one, and it costs a file descriptor.
    exact: Option<AsyncFd<OwnedFd>>,
    is_exact: bool,
}

impl Timer {
    /// Creates a timer on the caller's runtime.
    pub(super) fn new(deadline: Instant) -> Self {
        let mut timer = Self { deadline, coarse: Box::pin(sleep_until(deadline.into())), exact: None, is_exact: false };
        timer.set(deadline);
        timer
    }

    fn set(&mut self, deadline: Instant) {
        self.deadline = deadline;
        let wait = deadline.saturating_duration_since(Instant::now());
        // Without a free descriptor, the runtime's precision has to do.
        self.is_exact = wait <= SHORT && self.set_exact(wait).is_ok();
        if !self.is_exact {
            self.coarse.as_mut().reset(deadline.into());
        }
    }

    fn set_exact(&mut self, wait: Duration) -> io::Result<()> {
        let timer = match &mut self.exact {
            Some(timer) => timer,
            none => none.insert(create()?),
        };
        // 0 would disarm the timer.
        let wait = wait.max(Duration::from_nanos(1));
        let it_value = Timespec { tv_sec: wait.as_secs().cast_signed(), tv_nsec: wait.subsec_nanos().into() };
        let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value };
        timerfd_settime(timer.get_ref(), TimerfdTimerFlags::empty(), &once)?;
        Ok(())
    }
}

fn create() -> io::Result<AsyncFd<OwnedFd>> {
    let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
    crate::sys::watch_timer(timerfd_create(TimerfdClockId::Monotonic, flags)?)
}

impl AsyncTimer for Timer {
    fn reset(self: Pin<&mut Self>, deadline: Instant) {
        self.get_mut().set(deadline);
    }

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.get_mut();
        let Some(exact) = this.exact.as_ref().filter(|_| this.is_exact) else {
            return Future::poll(this.coarse.as_mut(), cx);
        };
        loop {
            if Instant::now() >= this.deadline {
                return Poll::Ready(());
            }
            // The descriptor may still be ready from an earlier deadline, so its counter is cleared.
            let Ok(mut ready) = ready!(exact.poll_read_ready(cx)) else {
                // The runtime is shutting down, and this task with it.
                return Poll::Pending;
            };
            let _ = ready.try_io(|timer| Ok(rustix::io::read(timer.get_ref(), &mut [0; 8])?));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;

    #[tokio::test]
    async fn timer_fires_at_each_deadline() {
        let mut timer = Timer::new(Instant::now() + Duration::from_secs(3600));
        let mut timer = Pin::new(&mut timer);
        for micros in [200, 30_000, 0, 1500, 12_000, 700] {
            let deadline = Instant::now() + Duration::from_micros(micros);
            timer.as_mut().reset(deadline);
            poll_fn(|cx| timer.as_mut().poll(cx)).await;
            assert!(Instant::now() >= deadline);
        }
        // A timer that is postponed while armed must not fire at its first deadline.
        let first = Instant::now() + Duration::from_micros(100);
        timer.as_mut().reset(first);
        let waits = poll_fn(|cx| Poll::Ready(timer.as_mut().poll(cx))).await.is_pending();
        assert!(waits || Instant::now() >= first);
        std::thread::sleep(Duration::from_millis(1));
        let deadline = Instant::now() + Duration::from_millis(5);
        timer.as_mut().reset(deadline);
        poll_fn(|cx| timer.as_mut().poll(cx)).await;
        assert!(Instant::now() >= deadline);
    }
}
