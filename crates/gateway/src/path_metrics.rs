//! Measurements of the segment to one peer (S1): figures from the counters of connections over it, and which transports
//! were available. Kept across reloads, bounded, and forgotten with age.

use crate::choose::Figures;
use phoebus_net::Stats;
use phoebus_proto::units::Span;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The number of samples kept: those of half a minute with a hundred sessions, or of a quarter of an hour with one.
const LOOKS_MAX: usize = 256;
/// Maximum age of a sample for loss and rate: what a busy hour has shown holds for the next session.
const AGE: Duration = Duration::from_secs(3600);
/// Maximum age of a sample for the round trip, if there are newer ones: routes change.
const ROUTE_AGE: Duration = Duration::from_secs(300);
/// The number of sent segments that a sample needs to show loss: enough to see one lost in a thousand.
const SEGMENTS_LEAST: u64 = 1000;
/// How often the retry pause of an unavailable transport doubles.
const DOUBLED_MAX: u32 = 5;

/// The measurements of a segment.
#[derive(Debug, Default)]
pub(crate) struct PathMetrics(Mutex<Measurements>);

#[derive(Debug, Default)]
struct Measurements {
    /// Samples, the oldest first.
    looks: VecDeque<PathSample>,
    failures: BTreeMap<Box<str>, Failure>,
}

/// A measurement of one connection over some time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct PathSample {
    at: Instant,
    round_trip: Duration,
    /// The share of segments that were retransmitted, and the rate in bits per second, where enough was sent to tell.
    moved: Option<(f64, f64)>,
}

/// A connection's counters at some time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct CounterSnapshot {
    segments: u64,
    retransmits: u64,
    acknowledged: u64,
}

/// A transport that was unavailable.
#[derive(Debug, Clone, PartialEq)]
struct Failure {
    why: String,
    /// When it may be tried again.
    again: Instant,
    /// Consecutive failures before this one.
    times: u32,
}

/// The current measurements of a segment.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct SegmentStatus {
    /// Round trip of the path without queues, in microseconds; 0 if nothing was measured.
    pub rtt_us: u64,
    /// The share of sent segments that was lost, if enough was sent to tell.
    pub loss: Option<f64>,
    /// The highest rate at which data was delivered, in bits per second.
    pub bits_per_s: Option<f64>,
    /// Time since the last measurement, in seconds.
    pub age_s: Option<f64>,
}

impl CounterSnapshot {
    pub(crate) fn of(stats: &Stats) -> Self {
        Self { segments: stats.segments_sent, retransmits: stats.retransmits, acknowledged: stats.bytes_acked }
    }

    /// The change from this snapshot to `stats`. Moves the snapshot to `stats` if that was enough to show loss. Pure
    /// acknowledgements count as segments too, so enough bytes must have been acknowledged as well.
    pub(crate) fn look(&mut self, stats: &Stats, at: Instant) -> Option<PathSample> {
        if stats.rtt_us == 0 {
            return None;
        }
        let round_trip = Duration::from_micros(stats.rtt_us);
        let now = Self::of(stats);
        let since = |now: u64, then: u64| now.saturating_sub(then);
        let segments = since(now.segments, self.segments);
        let bytes = since(now.acknowledged, self.acknowledged);
        let enough = segments >= SEGMENTS_LEAST && bytes >= SEGMENTS_LEAST * u64::from(stats.segment_size.max(500)) / 2;
        if !enough {
            return Some(PathSample { at, round_trip, moved: None });
        }
        let loss = since(now.retransmits, self.retransmits) as f64 / segments as f64;
        *self = now;
        Some(PathSample { at, round_trip, moved: Some((loss.min(1.0), stats.delivery_rate as f64 * 8.0)) })
    }
}

impl PathMetrics {
    /// Records a sample.
    pub(crate) fn record(&self, look: PathSample) {
        let mut book = self.lock();
        // A sample of only the round trip merges with the previous one of its kind.
        if look.moved.is_none()
            && let Some(last) = book.looks.back_mut().filter(|last| last.moved.is_none())
            && look.at.saturating_duration_since(last.at) < ROUTE_AGE / 8
        {
            last.round_trip = last.round_trip.min(look.round_trip);
            return;
        }
        if book.looks.len() == LOOKS_MAX {
            book.looks.pop_front();
        }
        book.looks.push_back(look);
    }

    /// Records the measurements of a new connection.
    pub(crate) fn record_stats(&self, stats: &Stats, now: Instant) {
        if let Some(look) = CounterSnapshot::of(stats).look(stats, now) {
            self.record(look);
        }
    }

    /// The figures of the segment as of `now`.
    pub(crate) fn figures(&self, now: Instant) -> Figures {
        let book = self.lock();
        let age = |look: &PathSample| now.saturating_duration_since(look.at);
        let fresh = book.looks.iter().filter(|look| age(look) <= ROUTE_AGE);
        let least = fresh.map(|look| look.round_trip).min();
        let moved: Vec<_> = book.looks.iter().filter(|look| age(look) <= AGE).filter_map(|look| look.moved).collect();
        Figures {
            round_trip: least.or_else(|| book.looks.back().map(|look| look.round_trip)),
            loss: median(moved.iter().map(|(loss, _)| *loss).collect()),
            rate: moved.iter().map(|(_, rate)| *rate).max_by(f64::total_cmp),
        }
    }

    /// The age of the last sample.
    pub(crate) fn age(&self, now: Instant) -> Option<Duration> {
        self.lock().looks.back().map(|look| now.saturating_duration_since(look.at))
    }

    /// Whether `transport` is available as far as known, or may be tried again at `now`.
    pub(crate) fn may_try(&self, transport: &str, now: Instant) -> bool {
        self.lock().failures.get(transport).is_none_or(|failure| now >= failure.again)
    }

    /// Why `transport` was unavailable when it was last tried.
    pub(crate) fn failure(&self, transport: &str) -> Option<String> {
        self.lock().failures.get(transport).map(|failure| failure.why.clone())
    }

    /// Records that `transport` was available.
    pub(crate) fn record_success(&self, transport: &str) {
        self.lock().failures.remove(transport);
    }

    /// Records that `transport` was unavailable. The first time, it is not tried again for `pause`. Returns the current
    /// pause.
    pub(crate) fn record_failure(&self, transport: &str, why: &str, now: Instant, pause: Duration) -> Span {
        let mut book = self.lock();
        let times = book.failures.get(transport).map_or(0, |failure| failure.times + 1);
        let pause = pause * (1 << times.min(DOUBLED_MAX));
        book.failures.insert(transport.into(), Failure { why: why.to_owned(), again: now + pause, times });
        Span(pause)
    }

    /// Forgets all failures: every transport failed, so none was to blame.
    pub(crate) fn clear_failures(&self) {
        self.lock().failures.clear();
    }

    /// Forgets the failures of all other transports than `transport`.
    pub(crate) fn clear_other_failures(&self, transport: &str) {
        self.lock().failures.retain(|failed, _| **failed == *transport);
    }

    pub(crate) fn status(&self, now: Instant) -> SegmentStatus {
        let figures = self.figures(now);
        SegmentStatus {
            rtt_us: figures.round_trip.map_or(0, |span| u64::try_from(span.as_micros()).unwrap_or(u64::MAX)),
            loss: figures.loss,
            bits_per_s: figures.rate,
            age_s: self.age(now).map(|age| age.as_secs_f64()),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Measurements> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The median. It ignores what a congestion control loses within a second while it searches for the path's rate.
fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stats(rtt_us: u64, segments: u64, retransmits: u64) -> Stats {
        Stats {
            rtt_us,
            segments_sent: segments,
            retransmits,
            bytes_acked: segments * 1448,
            segment_size: 1448,
            delivery_rate: 1_000_000,
            ..Stats::default()
        }
    }

    #[test]
    fn figures_are_median_loss_and_least_recent_round_trip() {
        let (segment, start) = (PathMetrics::default(), Instant::now());
        assert_eq!(segment.figures(start), Figures::default());
        let mut mark = CounterSnapshot::default();
        // A start that loses a third, then one in a hundred, while a queue builds up.
        let counters = [(20_000, 3000, 1000), (60_000, 13_000, 1100), (80_000, 23_000, 1200)];
        for (n, (rtt, segments, retransmits)) in counters.into_iter().enumerate() {
            let at = start + Duration::from_secs(n as u64);
            segment.record(mark.look(&stats(rtt, segments, retransmits), at).unwrap());
        }
        let expected =
            Figures { round_trip: Some(Duration::from_millis(20)), loss: Some(0.01), rate: Some(8_000_000.0) };
        assert_eq!(segment.figures(start + Duration::from_secs(3)), expected);
        // The round trip with the queue counts when nothing shorter was measured for long.
        let late = segment.figures(start + ROUTE_AGE + Duration::from_millis(500));
        assert_eq!(late.round_trip, Some(Duration::from_millis(60)));
        // In the end, only the last round trip remains.
        let later = segment.figures(start + AGE * 2);
        assert_eq!(later, Figures { round_trip: Some(Duration::from_millis(80)), loss: None, rate: None });
    }

    #[test]
    fn few_segments_show_only_the_round_trip() {
        let (segment, now) = (PathMetrics::default(), Instant::now());
        segment.record(CounterSnapshot::default().look(&stats(5000, 999, 500), now).unwrap());
        // Pure acknowledgements show no loss either.
        let receiver = Stats { bytes_acked: 1000, ..stats(4000, 50_000, 0) };
        segment.record(CounterSnapshot::default().look(&receiver, now).unwrap());
        assert_eq!(
            segment.figures(now),
            Figures { round_trip: Some(Duration::from_millis(4)), loss: None, rate: None }
        );
        assert_eq!(CounterSnapshot::default().look(&stats(0, 5000, 0), now), None);
    }

    #[test]
    fn number_of_samples_is_bounded() {
        let (segment, start) = (PathMetrics::default(), Instant::now());
        for n in 0..10_000_u64 {
            let mut mark = CounterSnapshot::default();
            segment.record(mark.look(&stats(5000, 2000, n % 3), start + Duration::from_millis(n)).unwrap());
        }
        assert_eq!(segment.lock().looks.len(), LOOKS_MAX);
    }

    #[test]
    fn retry_pause_doubles_with_each_failure() {
        let (segment, start) = (PathMetrics::default(), Instant::now());
        let minute = Duration::from_secs(60);
        assert!(segment.may_try("quic", start));
        let pauses = [60, 120, 240, 480, 960, 1920, 1920];
        for pause in pauses {
            assert_eq!(segment.record_failure("quic", "no answer", start, minute), Span(Duration::from_secs(pause)));
            let again = start + Duration::from_secs(pause);
            assert!(!segment.may_try("quic", again - minute / 60) && segment.may_try("quic", again));
        }
        assert_eq!(segment.failure("quic").as_deref(), Some("no answer"));
        assert!(segment.may_try("udt", start));
        segment.record_success("quic");
        assert_eq!((segment.failure("quic"), segment.may_try("quic", start)), (None, true));
        assert_eq!(segment.record_failure("quic", "no answer", start, minute), Span(minute));
        segment.clear_failures();
        assert!(segment.may_try("quic", start));
    }
}
