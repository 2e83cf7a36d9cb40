//! Listens for signs of life from one neighbour on its connections (`docs/protocol/session.md` §6.6).

use phoebus_net::Stream;
use phoebus_net::transport::{Pulse, Security};
use phoebus_proto::session::Code;
use std::collections::HashSet;
use std::time::{Duration, Instant};
use tokio::task::yield_now;
use tokio::time::sleep;

/// Longest pause between two probes.
const LOOK: Duration = Duration::from_millis(100);
/// The number of probes that must go unanswered.
const QUESTIONS: u32 = 10;
/// How long a neighbour that can be probed must be silent: at least this time, and this many of its round trips.
const SILENCE: Duration = Duration::from_secs(1);
const TRIPS: u32 = 8;
/// Replaces `SILENCE` where there is other evidence of death: the neighbour's port refuses connections, or another
/// process has taken its place.
const SILENCE_DOUBTED: Duration = Duration::from_millis(200);

/// Late checks are not counted until they add up to this many times the limit. On a busy host, this process hears late,
/// and a neighbour on the same host answers late.
const LATE: u32 = 5;

/// What was heard from a neighbour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ProbeResult {
    /// Signs of life.
    Life,
    /// Nothing on any connection for the whole limit.
    Silence,
    /// No connection, or none any more, on which anything could be heard. That proves nothing.
    NoConnection,
}

/// See the module. It keeps neither connections nor streams open.
#[derive(Debug)]
pub(crate) struct LivenessProbe(Vec<WatchedConnection>);

/// A connection, and its count of signs of life at the last check.
#[derive(Debug)]
struct WatchedConnection {
    pulse: Box<dyn Pulse>,
    before: u64,
}

impl LivenessProbe {
    /// Listens on these connections. Several pulses may belong to the same connection.
    pub(crate) fn at(pulses: impl IntoIterator<Item = Box<dyn Pulse>>) -> Self {
        let mut ids = HashSet::new();
        let place = |pulse: Box<dyn Pulse>| {
            let before = pulse.heard().filter(|_| ids.insert(pulse.id()))?;
            Some(WatchedConnection { pulse, before })
        };
        Self(pulses.into_iter().filter_map(place).collect())
    }

    /// Whether there is no connection to listen on.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether it listens on the connection of this pulse.
    fn is_at(&self, pulse: &dyn Pulse) -> bool {
        self.0.iter().any(|place| place.pulse.id() == pulse.id())
    }

    /// Whether anything was received since the last call; `None` if no connection is left.
    fn hears(&mut self) -> Option<bool> {
        let all: Vec<bool> = self.0.iter_mut().filter_map(WatchedConnection::hears).collect();
        (!all.is_empty()).then(|| all.contains(&true))
    }

    /// Sends probes. Returns the longest round trip of the connections that can send them, if there are any.
    fn ask(&self) -> Option<Duration> {
        self.0.iter().filter_map(|place| place.pulse.ask()).max()
    }

    /// Probes the neighbour until nothing is heard for the limit, or the neighbour is still heard after twice the
    /// limit. (What was in flight when a process died is heard for a moment afterwards.) Where probes are impossible,
    /// and on the longest paths, the limit is `most`. `is_refused` tells whether the neighbour's port refuses
    /// connections as well.
    pub(crate) async fn listen(&mut self, most: Duration, is_refused: impl Fn() -> bool) -> ProbeResult {
        let mut silence = Silence::default();
        loop {
            let least = if is_refused() { SILENCE_DOUBTED } else { SILENCE };
            let limit = limit(self.ask(), least, most);
            let pause = pause(limit);
            let late = wait(pause).await;
            let Some(hears) = self.hears() else { return ProbeResult::NoConnection };
            if let Some(heard) = silence.after((pause, late), hears, limit) {
                return heard;
            }
        }
    }

    /// Listens on each connection separately, and keeps those that have fallen silent. Where one process has replaced
    /// another, the rest belong to the new one.
    pub(crate) async fn retain_silent(&mut self, most: Duration) {
        let mut undecided: Vec<_> = self.0.drain(..).map(|place| (place, Silence::default())).collect();
        while !undecided.is_empty() {
            let limits: Vec<_> =
                undecided.iter().map(|(place, _)| limit(place.pulse.ask(), SILENCE_DOUBTED, most)).collect();
            let pause = limits.iter().copied().map(pause).min().unwrap_or(LOOK);
            let late = wait(pause).await;
            let looked = undecided.into_iter().zip(limits);
            undecided = looked
                .filter_map(|((mut place, mut silence), limit)| {
                    let hears = place.hears()?;
                    match silence.after((pause, late), hears, limit) {
                        None => Some((place, silence)),
                        Some(ProbeResult::Silence) => {
                            self.0.push(place);
                            None
                        }
                        Some(_) => None,
                    }
                })
                .collect();
        }
    }

    /// Ends connections shared by streams that began before `before`: the process at their other end has died.
    pub(crate) fn abandon(&self, before: Instant) {
        for place in &self.0 {
            place.pulse.abandon(before, Code::Reset, "the neighbour's process has died");
        }
    }
}

/// The connections of a process that has died.
#[derive(Debug)]
pub(crate) struct DeadConnections<'a> {
    /// Listens on the connections that have fallen silent.
    pub(crate) probe: &'a LivenessProbe,
    /// Connections without a pulse belong to the process if they are older than this.
    pub(crate) before: Instant,
    /// When another process had taken its place. Later connections do not belong to the dead process, however silent.
    pub(crate) replaced: Option<Instant>,
}

impl DeadConnections<'_> {
    /// Whether the connection of this stream, in use since `since`, is one of them.
    pub(crate) fn has(&self, stream: &Stream, since: Instant) -> bool {
        self.has_of(stream.pulse(), since)
    }

    fn has_of(&self, pulse: Option<Box<dyn Pulse>>, since: Instant) -> bool {
        match pulse {
            Some(pulse) => self.probe.is_at(&*pulse) && self.replaced.is_none_or(|replaced| since <= replaced),
            None => since <= self.before,
        }
    }
}

impl WatchedConnection {
    /// Whether anything was received since the last call; `None` if the connection has ended.
    fn hears(&mut self) -> Option<bool> {
        let now = self.pulse.heard()?;
        Some(std::mem::replace(&mut self.before, now) != now)
    }
}

/// How long there was silence so far.
#[derive(Debug, Default)]
struct Silence {
    /// Time since the start, and since something was last heard.
    all: Duration,
    silent: Duration,
    /// Probes since something was last heard.
    unanswered: u32,
    /// Total time of late checks.
    late: Duration,
}

impl Silence {
    /// Counts a check that came `late` after `pause`. Returns the result as soon as there is one; `limit` is the
    /// required silence.
    fn after(&mut self, (pause, late): (Duration, Duration), hears: bool, limit: Duration) -> Option<ProbeResult> {
        if !hears && late > pause / 2 && self.late < LATE * limit {
            self.late += pause + late;
            return None;
        }
        self.all += pause;
        (self.silent, self.unanswered) =
            if hears { (Duration::ZERO, 0) } else { (self.silent + pause, self.unanswered + 1) };
        if self.silent >= limit && self.unanswered >= QUESTIONS {
            return Some(ProbeResult::Silence);
        }
        (self.all >= 2 * limit && self.silent < limit / 2).then_some(ProbeResult::Life)
    }
}

/// The required silence on a connection with this round trip, or without probes.
fn limit(rtt: Option<Duration>, least: Duration, most: Duration) -> Duration {
    rtt.map_or(most, |rtt| (TRIPS * rtt).max(least).min(most))
}

/// The pause between two probes.
fn pause(limit: Duration) -> Duration {
    LOOK.min(limit / QUESTIONS)
}

/// Waits for `pause`, and lets other tasks read what has arrived, so that a pause of this process does not look like
/// silence of the other. For the same reason, a check counts as `pause` long, whatever the clock says. Returns how late
/// it was.
async fn wait(pause: Duration) -> Duration {
    let begun = Instant::now();
    sleep(pause).await;
    yield_now().await;
    begun.elapsed().saturating_sub(pause)
}

/// Whether a beacon with this protection is evidence about a connection with that one. Anyone who can send packets can
/// reset an unencrypted beacon or open one under another name, so such a beacon must not end a connection that nobody
/// can forge.
pub(crate) fn is_believed(beacon: Security, connection: Security) -> bool {
    beacon > Security::None || connection == Security::None
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// The pulse of a connection that answers, or does not.
    #[derive(Debug)]
    struct Told {
        id: usize,
        answers: bool,
        heard: AtomicU64,
    }

    impl Pulse for Told {
        fn id(&self) -> usize {
            self.id
        }

        fn heard(&self) -> Option<u64> {
            Some(self.heard.load(Ordering::Relaxed))
        }

        fn ask(&self) -> Option<Duration> {
            self.heard.fetch_add(self.answers.into(), Ordering::Relaxed);
            Some(Duration::from_millis(1))
        }
    }

    fn told(id: usize, answers: bool) -> Box<dyn Pulse> {
        Box::new(Told { id, answers, heard: AtomicU64::new(0) })
    }

    #[tokio::test]
    async fn keep_silent_keeps_only_silent_connections() {
        let mut probe =
            LivenessProbe::at([told(1, true), told(2, false), told(2, true), told(3, true), told(4, false)]);
        probe.retain_silent(Duration::from_secs(3)).await;
        let mut ids: Vec<_> = probe.0.iter().map(|place| place.pulse.id()).collect();
        ids.sort_unstable();
        assert_eq!(ids, [2, 4]);
    }

    #[test]
    fn connection_newer_than_replacement_is_not_dead() {
        let (before, probe) = (Instant::now(), LivenessProbe::at([told(1, false)]));
        let replaced = before + Duration::from_secs(1);
        let [its, later] = [Duration::ZERO, Duration::from_millis(1)].map(|more| replaced + more);
        let has = |replaced, pulse: Option<usize>, since| {
            DeadConnections { probe: &probe, before, replaced }.has_of(pulse.map(|id| told(id, false)), since)
        };
        assert!(has(None, Some(1), later), "nobody is there any more");
        assert_eq!([its, later].map(|since| has(Some(replaced), Some(1), since)), [true, false]);
        assert_eq!([before, its].map(|since| has(Some(replaced), None, since)), [true, false]);
        assert!(!has(Some(replaced), Some(2), before), "something is heard there");
    }

    #[test]
    fn late_checks_are_ignored_up_to_a_limit() {
        let (limit, pause) = (Duration::from_millis(200), Duration::from_millis(20));
        let looks = |late: Duration| {
            let mut silence = Silence::default();
            (1..1000).find(|_| silence.after((pause, late), false, limit).is_some())
        };
        assert_eq!(looks(pause / 2), Some(10));
        // Each takes 40 ms of the second that is not counted.
        assert_eq!(looks(pause), Some(25 + 10));
        let mut silence = Silence::default();
        assert!((0..9).all(|_| silence.after((pause, Duration::ZERO), false, limit).is_none()));
        assert_eq!(silence.after((pause, pause), false, limit), None);
        assert_eq!(silence.after((pause, Duration::ZERO), false, limit), Some(ProbeResult::Silence));
    }

    #[tokio::test]
    async fn neighbour_lives_if_one_connection_answers() {
        let most = Duration::from_secs(3);
        assert_eq!(LivenessProbe::at([told(1, true), told(2, false)]).listen(most, || false).await, ProbeResult::Life);
        assert_eq!(
            LivenessProbe::at([told(1, false), told(2, false)]).listen(most, || true).await,
            ProbeResult::Silence
        );
        assert_eq!(LivenessProbe::at([]).listen(most, || true).await, ProbeResult::NoConnection);
    }
}
