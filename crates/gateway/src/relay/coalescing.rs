//! Receive coalescing: a bulk flow wakes the relay once for what arrives in `limits.receive_coalescing`, not for every
//! few segments (invariant 9).
//!
//! On a path of 1 Gbit/s the kernel hands over some 60 KB at a time, and such a wake-up costs as much as the bytes. So
//! the connection is told how many bytes must wait before it becomes readable: as many as the flow brings in the
//! configured time. They wait for [`Coalescing::longest_wait`] at most; then one byte suffices again.
//!
//! Short and slow flows are never coalesced. A flow that pauses has to be bulk again for a while before it is, and for
//! twice as long after each pause: a sender that waits for answers to its requests loses a small part of its time. Each
//! time that a flow was coalesced for that long without a pause, half of it suffices from then on. An end of stream and a
//! failure wake the relay at once in any case. The connections of a bundle are not coalesced, since each brings only a
//! part of what is awaited.

use phoebus_net::Stream;
use phoebus_net::transport::{Change, ReadThreshold};
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::Context;
use std::time::{Duration, Instant};
use tokio::time::Sleep;

/// Bytes after which a direction is watched at all: most sessions have fewer, and pay nothing.
const WATCHED_FROM: u64 = 1 << 20;
/// How many times the configured time one measurement of the rate lasts: long enough to contain several batches of a
/// link, short enough to follow a flow that slows down.
const WINDOW: u32 = 4;
/// Windows in a row in which a flow must be bulk before it is coalesced, at first and at most: 32 ms and 33 s if the
/// configured time is 2 ms.
const REQUIRED_WINDOWS: [u32; 2] = [4, 4096];
/// The smallest number of bytes worth waiting for: less than a link delivers at a time.
const THRESHOLD_MIN: u64 = 16 << 10;
/// The largest number: more gains little.
const THRESHOLD_MAX: u64 = 1 << 20;

/// Applies [`Coalescing`] to the connection that one direction of a relay reads.
#[derive(Debug, Default)]
pub(super) struct Coalescer {
    /// Bytes that have arrived, until the direction is watched.
    bytes: u64,
    active: Option<Box<Active>>,
    /// The transport has no read threshold.
    is_unsupported: bool,
}

#[derive(Debug)]
struct Active {
    coalescing: Coalescing,
    /// Whether bytes have arrived since the last wait began.
    has_received: bool,
    /// When bytes that wait shall be read, however few they are.
    deadline: Pin<Box<Sleep>>,
}

impl Coalescer {
    /// Counts `n` bytes that were read.
    pub(super) fn received(&mut self, n: usize) {
        match &mut self.active {
            Some(active) => {
                active.has_received = true;
                active.coalescing.received(n as u64);
            }
            None => self.bytes = self.bytes.saturating_add(n as u64),
        }
    }

    /// To be called when nothing can be read from `stream`, with the time for which bytes may gather. Wakes the task if
    /// they gather for too long.
    ///
    /// # Errors
    /// When the threshold cannot be lowered, because the connection has failed.
    pub(super) fn wait(&mut self, stream: &Stream, delay: Duration, cx: &mut Context<'_>) -> io::Result<()> {
        if self.is_unsupported || delay.is_zero() || (self.active.is_none() && self.bytes < WATCHED_FROM) {
            return Ok(());
        }
        let now = Instant::now();
        let active = self.active.get_or_insert_with(|| {
            let deadline = Box::pin(tokio::time::sleep(Duration::ZERO));
            Box::new(Active { coalescing: Coalescing::new(delay, now), has_received: true, deadline })
        });
        if std::mem::take(&mut active.has_received) {
            if let Some(bytes) = active.coalescing.drained(now)
                && let Err(error) = stream.set(threshold(bytes, delay))
            {
                // The first threshold shows whether the transport has any.
                let is_unsupported = error.kind() == io::ErrorKind::Unsupported;
                (self.is_unsupported, self.active) = (true, None);
                return if is_unsupported { Ok(()) } else { Err(error) };
            }
            if let Some(longest) = active.coalescing.longest_wait() {
                active.deadline.as_mut().reset((now + longest).into());
            }
        }
        self.end_overdue_wait(stream, cx)
    }

    /// Makes readable what has waited for too long. To be called, too, when nothing is read from `stream` because the
    /// receiver takes nothing: the transport must not gather for a flow that has stopped.
    ///
    /// # Errors
    /// As [`Coalescer::wait`].
    pub(super) fn end_overdue_wait(&mut self, stream: &Stream, cx: &mut Context<'_>) -> io::Result<()> {
        if let Some(active) = &mut self.active
            && active.coalescing.longest_wait().is_some()
            && active.deadline.as_mut().poll(cx).is_ready()
        {
            stream.set(Change::ReadThreshold(ReadThreshold::NONE))?;
            // If bytes have come since the last wait, it is the receiver who is slow, and the sender has not paused.
            active.coalescing.overdue(Instant::now(), !active.has_received);
        }
        Ok(())
    }

    /// Makes `stream` readable by a single byte again, for other readers.
    pub(super) fn end(&mut self, stream: &Stream) {
        if self.active.take().is_some_and(|active| active.coalescing.longest_wait().is_some()) {
            // A connection that has failed needs no threshold.
            let _ = stream.set(Change::ReadThreshold(ReadThreshold::NONE));
        }
    }
}

fn threshold(bytes: u64, delay: Duration) -> Change {
    Change::ReadThreshold(if bytes > 1 { ReadThreshold { bytes, within: delay } } else { ReadThreshold::NONE })
}

/// The state of one direction of a relay, without a clock or a connection.
#[derive(Debug)]
struct Coalescing {
    delay: Duration,
    /// When the current window began, and how many bytes have arrived in it.
    since: Instant,
    bytes: u64,
    /// The number of bulk windows in a row, and how many there must be.
    bulk_windows: u32,
    required_windows: u32,
    /// The number of bytes that must wait before the connection becomes readable.
    threshold: u64,
    /// The number of windows in which it was coalesced, since the last pause.
    coalesced_windows: u32,
}

impl Coalescing {
    /// For a flow that begins at `now`, and whose bytes may gather for `delay`.
    fn new(delay: Duration, now: Instant) -> Self {
        Self {
            delay,
            since: now,
            bytes: 0,
            bulk_windows: 0,
            required_windows: REQUIRED_WINDOWS[0],
            threshold: 1,
            coalesced_windows: 0,
        }
    }

    /// Counts `n` bytes that were read.
    fn received(&mut self, n: u64) {
        self.bytes += n;
    }

    /// To be called when there is nothing to read after bytes were read. Returns the threshold to set, if it changes.
    fn drained(&mut self, now: Instant) -> Option<u64> {
        let elapsed = now.saturating_duration_since(self.since);
        if elapsed < self.delay * WINDOW {
            return None;
        }
        let expected = (self.bytes as f64 * self.delay.as_secs_f64() / elapsed.as_secs_f64()) as u64;
        (self.since, self.bytes) = (now, 0);
        self.coalesced_windows += u32::from(self.threshold > 1);
        let is_trusted = self.coalesced_windows >= self.required_windows;
        if is_trusted {
            (self.required_windows, self.coalesced_windows) = ((self.required_windows / 2).max(REQUIRED_WINDOWS[0]), 0);
        }
        self.bulk_windows =
            if expected < THRESHOLD_MIN { 0 } else { (self.bulk_windows + 1).min(self.required_windows) };
        let wanted = if self.bulk_windows < self.required_windows { 1 } else { expected.min(THRESHOLD_MAX) };
        if is_trusted && wanted > 1 {
            // Set again even if it is the same: the transport takes no more than a part of its buffer, which grows.
            self.threshold = wanted;
            return Some(wanted);
        }
        // A system call for each small change would cost more than it gains.
        let is_near = wanted > 1 && self.threshold.abs_diff(wanted) <= self.threshold / 4;
        if is_near || wanted == self.threshold {
            return None;
        }
        self.threshold = wanted;
        Some(wanted)
    }

    /// How long bytes may wait from now on, if they have to wait: somewhat longer than they usually take.
    fn longest_wait(&self) -> Option<Duration> {
        (self.threshold > 1).then(|| self.delay * 3 / 2)
    }

    /// To be called when the threshold was lowered to a byte at `now`, because fewer bytes were read within
    /// [`Coalescing::longest_wait`]; `has_paused` says whether the sender is the cause.
    fn overdue(&mut self, now: Instant, has_paused: bool) {
        (self.bulk_windows, self.threshold, self.coalesced_windows) = (0, 1, 0);
        if has_paused {
            self.required_windows = (self.required_windows * 2).min(REQUIRED_WINDOWS[1]);
        }
        (self.since, self.bytes) = (now, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: [u64; 0] = [];
    const DELAY: Duration = Duration::from_millis(2);
    const MILLISECOND: Duration = Duration::from_millis(1);

    /// A flow in virtual time.
    struct Flow {
        coalescing: Coalescing,
        now: Instant,
    }

    impl Flow {
        fn new() -> Self {
            let now = Instant::now();
            Self { coalescing: Coalescing::new(DELAY, now), now }
        }

        /// Delivers `bytes` in each of the next `milliseconds`. Returns the thresholds that were set.
        fn deliver(&mut self, bytes: u64, milliseconds: u32) -> Vec<u64> {
            let each = |_| {
                self.now += MILLISECOND;
                self.coalescing.received(bytes);
                self.coalescing.drained(self.now)
            };
            (0..milliseconds).filter_map(each).collect()
        }
    }

    #[test]
    fn bulk_flow_waits_for_what_it_brings_in_the_time() {
        let mut flow = Flow::new();
        assert_eq!(flow.deliver(125_000, 31), NONE, "a transfer of 4 MB is short");
        assert_eq!(flow.coalescing.longest_wait(), None);
        assert_eq!(flow.deliver(125_000, 16), [250_000], "small changes change nothing");
        assert_eq!(flow.deliver(125_000, 24), [250_000], "the buffer may have grown");
        assert_eq!(flow.coalescing.longest_wait(), Some(3 * MILLISECOND));
        assert_eq!(flow.deliver(250_000, 16), [500_000]);
        assert_eq!(flow.deliver(10_000_000, 8), [THRESHOLD_MAX]);
    }

    #[test]
    fn slow_flow_never_waits() {
        let mut flow = Flow::new();
        assert_eq!(flow.deliver(8000, 1000), NONE);
        // A fast one that becomes slow stops waiting.
        assert_eq!(flow.deliver(125_000, 200).first(), Some(&250_000));
        assert_eq!(flow.deliver(1000, 20).last(), Some(&1));
        assert_eq!(flow.coalescing.longest_wait(), None);
    }

    #[test]
    fn pause_ends_the_waiting() {
        let mut flow = Flow::new();
        flow.deliver(125_000, 100);
        flow.coalescing.overdue(flow.now, true);
        flow.now += Duration::from_millis(80);
        assert_eq!(flow.deliver(125_000, 63), NONE, "bursts of 7 MB are short now");
        assert_eq!(flow.deliver(125_000, 16), [250_000]);
    }

    #[test]
    fn slow_receiver_is_no_pause_of_the_sender() {
        let mut flow = Flow::new();
        flow.deliver(125_000, 100);
        flow.coalescing.overdue(flow.now, false);
        assert_eq!(flow.coalescing.longest_wait(), None);
        assert_eq!(flow.deliver(125_000, 31), NONE);
        assert_eq!(flow.deliver(125_000, 8), [250_000]);
    }

    #[test]
    fn flow_that_goes_on_without_pauses_is_trusted_again() {
        let mut flow = Flow::new();
        flow.deliver(125_000, 100);
        for _ in 0..5 {
            flow.coalescing.overdue(flow.now, true);
        }
        assert_eq!(flow.coalescing.required_windows, 128);
        // It has to be bulk for a second. While it is coalesced, each second without a pause halves that. The batches are
        // smaller than the threshold here, which makes no difference.
        flow.deliver(62_500, 4 * 1024);
        assert_eq!((flow.coalescing.required_windows, flow.coalescing.threshold), (4, 125_000));
    }

    #[test]
    fn answers_of_megabytes_lose_little() {
        // 4 MB at 1 Gbit/s, and the next are sent once these were read: the last bytes of each wait if they are coalesced.
        let (mut flow, end) = (Flow::new(), Duration::from_secs(60));
        let (began, mut lost) = (flow.now, Duration::ZERO);
        while flow.now - began < end {
            flow.deliver(125_000, 32);
            if let Some(longest) = flow.coalescing.longest_wait() {
                (flow.now, lost) = (flow.now + longest, lost + longest);
                flow.coalescing.overdue(flow.now, true);
            }
        }
        assert!(lost > Duration::ZERO && lost < end / 1000, "{lost:?}");
    }

    #[test]
    fn sender_that_waits_for_answers_loses_little() {
        // 64 KB in each half of a millisecond, sent only after the last were read: a threshold is never reached.
        let (mut flow, end) = (Flow::new(), Duration::from_secs(60));
        let (began, mut lost) = (flow.now, Duration::ZERO);
        while flow.now - began < end {
            flow.now += MILLISECOND / 2;
            flow.coalescing.received(65_536);
            flow.coalescing.drained(flow.now);
            if let Some(longest) = flow.coalescing.longest_wait() {
                (flow.now, lost) = (flow.now + longest, lost + longest);
                flow.coalescing.overdue(flow.now, true);
            }
        }
        assert!(lost > Duration::ZERO && lost < end / 1000, "{lost:?}");
    }
}
