//! What is known of the segment to one peer (S1): figures from the counters of connections that run over it, and which
//! transports were to be had. Kept across reloads, bounded, and forgotten as it ages.

use crate::choose::Figures;
use phoebus_net::Stats;
use phoebus_proto::units::Span;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Looks that are kept: of a hundred sessions at a time, those of half a minute; of one, those of a quarter of an hour.
const LOOKS_MAX: usize = 256;
/// How old a look may be to tell of loss and rate: what a busy hour has taught holds for the next session.
const AGE: Duration = Duration::from_secs(3600);
/// How old one may be to tell of the round trip, if there are newer ones: routes change.
const ROUTE_AGE: Duration = Duration::from_secs(300);
/// Segments that must have been sent for a look to tell of loss: one lost in a thousand shows.
const SEGMENTS_LEAST: u64 = 1000;
/// How often the time doubles after which a transport that could not be had is tried again.
const DOUBLED_MAX: u32 = 5;

/// What is known of a segment.
#[derive(Debug, Default)]
pub(crate) struct Survey(Mutex<Book>);

#[derive(Debug, Default)]
struct Book {
    /// The oldest first.
    looks: VecDeque<Look>,
    failures: BTreeMap<Box<str>, Failure>,
}

/// What was seen of a connection over some time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Look {
    at: Instant,
    round_trip: Duration,
    /// Share of the segments that were sent again, and rate in bits per second, where enough was sent to tell.
    moved: Option<(f64, f64)>,
}

/// Where a connection's counters stood.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Mark {
    segments: u64,
    retransmits: u64,
    acknowledged: u64,
}

/// A transport that could not be had.
#[derive(Debug, Clone, PartialEq)]
struct Failure {
    why: String,
    /// When it may be tried again.
    again: Instant,
    /// In a row.
    times: u32,
}

/// What is known of a segment at one moment.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct SegmentStatus {
    /// Round trip of the path without queues, in microseconds; 0 if nothing was measured.
    pub rtt_us: u64,
    /// Share of what was sent that was lost, if enough was sent to tell.
    pub loss: Option<f64>,
    /// The highest rate at which data was delivered, in bits per second.
    pub bits_per_s: Option<f64>,
    /// Since the last measurement.
    pub age_s: Option<f64>,
}

impl Mark {
    pub(crate) fn of(stats: &Stats) -> Self {
        Self { segments: stats.segments_sent, retransmits: stats.retransmits, acknowledged: stats.bytes_acked }
    }

    /// What happened from here to `stats`; moves the mark there if that was enough to tell of loss. Segments that only
    /// acknowledge are sent too, so that the bytes must be as many.
    pub(crate) fn look(&mut self, stats: &Stats, at: Instant) -> Option<Look> {
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
            return Some(Look { at, round_trip, moved: None });
        }
        let loss = since(now.retransmits, self.retransmits) as f64 / segments as f64;
        *self = now;
        Some(Look { at, round_trip, moved: Some((loss.min(1.0), stats.delivery_rate as f64 * 8.0)) })
    }
}

impl Survey {
    /// Notes what was seen.
    pub(crate) fn saw(&self, look: Look) {
        let mut book = self.lock();
        // One that only tells of the round trip takes the place of the last one like it: it is the news that counts.
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

    /// Notes what a fresh connection knows.
    pub(crate) fn saw_stats(&self, stats: &Stats, now: Instant) {
        if let Some(look) = Mark::of(stats).look(stats, now) {
            self.saw(look);
        }
    }

    /// What the segment is like, as far as is known at `now`.
    pub(crate) fn figures(&self, now: Instant) -> Figures {
        let book = self.lock();
        let age = |look: &Look| now.saturating_duration_since(look.at);
        let fresh = book.looks.iter().filter(|look| age(look) <= ROUTE_AGE);
        let least = fresh.map(|look| look.round_trip).min();
        let moved: Vec<_> = book.looks.iter().filter(|look| age(look) <= AGE).filter_map(|look| look.moved).collect();
        Figures {
            round_trip: least.or_else(|| book.looks.back().map(|look| look.round_trip)),
            loss: median(moved.iter().map(|(loss, _)| *loss).collect()),
            rate: moved.iter().map(|(_, rate)| *rate).max_by(f64::total_cmp),
        }
    }

    /// Since the last look.
    pub(crate) fn age(&self, now: Instant) -> Option<Duration> {
        self.lock().looks.back().map(|look| now.saturating_duration_since(look.at))
    }

    /// Whether `transport` is to be had, as far as is known, or may at least be tried at `now`.
    pub(crate) fn may_try(&self, transport: &str, now: Instant) -> bool {
        self.lock().failures.get(transport).is_none_or(|failure| now >= failure.again)
    }

    /// Why `transport` could not be had when it was last tried.
    pub(crate) fn failure(&self, transport: &str) -> Option<String> {
        self.lock().failures.get(transport).map(|failure| failure.why.clone())
    }

    /// Notes that `transport` was to be had.
    pub(crate) fn works(&self, transport: &str) {
        self.lock().failures.remove(transport);
    }

    /// Notes that it was not. The first time it is left alone for `pause`. Returns for how long now.
    pub(crate) fn fails(&self, transport: &str, why: &str, now: Instant, pause: Duration) -> Span {
        let mut book = self.lock();
        let times = book.failures.get(transport).map_or(0, |failure| failure.times + 1);
        let pause = pause * (1 << times.min(DOUBLED_MAX));
        book.failures.insert(transport.into(), Failure { why: why.to_owned(), again: now + pause, times });
        Span(pause)
    }

    /// Forgets what could not be had: nothing could, so that it was not the transports' fault.
    pub(crate) fn forgive(&self) {
        self.lock().failures.clear();
    }

    /// The same of all but `transport`.
    pub(crate) fn forgive_others(&self, transport: &str) {
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

    fn lock(&self) -> MutexGuard<'_, Book> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The middle one: what a control loses while it looks for the rate of a path, all within a second, says little of the path.
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
    fn loss_is_that_of_most_looks_and_the_round_trip_the_least_of_late() {
        let (segment, start) = (Survey::default(), Instant::now());
        assert_eq!(segment.figures(start), Figures::default());
        let mut mark = Mark::default();
        // A start that loses a third, and then one in a hundred; a queue builds up.
        let counters = [(20_000, 3000, 1000), (60_000, 13_000, 1100), (80_000, 23_000, 1200)];
        for (n, (rtt, segments, retransmits)) in counters.into_iter().enumerate() {
            let at = start + Duration::from_secs(n as u64);
            segment.saw(mark.look(&stats(rtt, segments, retransmits), at).unwrap());
        }
        let expected =
            Figures { round_trip: Some(Duration::from_millis(20)), loss: Some(0.01), rate: Some(8_000_000.0) };
        assert_eq!(segment.figures(start + Duration::from_secs(3)), expected);
        // The queue's round trip is the route's when nothing shorter was seen for long.
        let late = segment.figures(start + ROUTE_AGE + Duration::from_millis(500));
        assert_eq!(late.round_trip, Some(Duration::from_millis(60)));
        // In the end nothing is left but the last round trip.
        let later = segment.figures(start + AGE * 2);
        assert_eq!(later, Figures { round_trip: Some(Duration::from_millis(80)), loss: None, rate: None });
    }

    #[test]
    fn few_segments_tell_of_the_round_trip_alone() {
        let (segment, now) = (Survey::default(), Instant::now());
        segment.saw(Mark::default().look(&stats(5000, 999, 500), now).unwrap());
        // So do those that only acknowledge.
        let receiver = Stats { bytes_acked: 1000, ..stats(4000, 50_000, 0) };
        segment.saw(Mark::default().look(&receiver, now).unwrap());
        assert_eq!(
            segment.figures(now),
            Figures { round_trip: Some(Duration::from_millis(4)), loss: None, rate: None }
        );
        assert_eq!(Mark::default().look(&stats(0, 5000, 0), now), None);
    }

    #[test]
    fn the_book_is_bounded() {
        let (segment, start) = (Survey::default(), Instant::now());
        for n in 0..10_000_u64 {
            let mut mark = Mark::default();
            segment.saw(mark.look(&stats(5000, 2000, n % 3), start + Duration::from_millis(n)).unwrap());
        }
        assert_eq!(segment.lock().looks.len(), LOOKS_MAX);
    }

    #[test]
    fn what_could_not_be_had_is_left_alone_for_longer_each_time() {
        let (segment, start) = (Survey::default(), Instant::now());
        let minute = Duration::from_secs(60);
        assert!(segment.may_try("quic", start));
        let pauses = [60, 120, 240, 480, 960, 1920, 1920];
        for pause in pauses {
            assert_eq!(segment.fails("quic", "no answer", start, minute), Span(Duration::from_secs(pause)));
            let again = start + Duration::from_secs(pause);
            assert!(!segment.may_try("quic", again - minute / 60) && segment.may_try("quic", again));
        }
        assert_eq!(segment.failure("quic").as_deref(), Some("no answer"));
        assert!(segment.may_try("udt", start));
        segment.works("quic");
        assert_eq!((segment.failure("quic"), segment.may_try("quic", start)), (None, true));
        assert_eq!(segment.fails("quic", "no answer", start, minute), Span(minute));
        segment.forgive();
        assert!(segment.may_try("quic", start));
    }
}
