//! Listens for signs of life of one neighbour on its connections (`docs/protocol/session.md` §6.6).

use phoebus_net::Stream;
use phoebus_net::transport::{Pulse, Security};
use phoebus_proto::session::Code;
use std::collections::HashSet;
use std::time::{Duration, Instant};
use tokio::task::yield_now;
use tokio::time::sleep;

/// Longest pause between two questions.
const LOOK: Duration = Duration::from_millis(100);
/// Questions that have to remain without an answer.
const QUESTIONS: u32 = 10;
/// How long a neighbour that can be asked has to be silent, and for how many of its round trips.
const SILENCE: Duration = Duration::from_secs(1);
const TRIPS: u32 = 8;
/// What is enough instead of a second where something else speaks against it: its port refuses connections, or another process
/// has taken its place.
const SILENCE_DOUBTED: Duration = Duration::from_millis(200);

/// For how many times as long as is enough looks do not count that come late: whoever is held up himself, on a busy host, hears late, and a
/// neighbour there answers late.
const LATE: u32 = 5;

/// What is to be heard of a neighbour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Heard {
    /// Signs of life.
    Life,
    /// Nothing on any connection for as long as counts.
    Silence,
    /// There is no connection, or no longer one, on which anything could be heard: that shows nothing.
    NoConnection,
}

/// See the module. It keeps no connection open, and no stream.
#[derive(Debug)]
pub(crate) struct Ear(Vec<Place>);

/// A connection, and what was heard there before.
#[derive(Debug)]
struct Place {
    pulse: Box<dyn Pulse>,
    before: u64,
}

impl Ear {
    /// On these connections, of which several may be the same.
    pub(crate) fn at(pulses: impl IntoIterator<Item = Box<dyn Pulse>>) -> Self {
        let mut ids = HashSet::new();
        let place = |pulse: Box<dyn Pulse>| {
            let before = pulse.heard().filter(|_| ids.insert(pulse.id()))?;
            Some(Place { pulse, before })
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

    /// Whether something has come since this was last asked for; nothing if no connection is left.
    fn hears(&mut self) -> Option<bool> {
        let all: Vec<bool> = self.0.iter_mut().filter_map(Place::hears).collect();
        (!all.is_empty()).then(|| all.contains(&true))
    }

    /// Asks for signs of life. Returns the longest round trip of the connections that can ask, if there are any.
    fn ask(&self) -> Option<Duration> {
        self.0.iter().filter_map(|place| place.pulse.ask()).max()
    }

    /// Waits until nothing is heard for long enough, or the neighbour is still heard after twice that time. It is asked
    /// meanwhile. What was on its way when a process died is heard for a moment after it. Where it cannot be asked, and on the
    /// longest paths, `most` is long enough. `is_refused` tells whether its port refuses connections as well.
    pub(crate) async fn listen(&mut self, most: Duration, is_refused: impl Fn() -> bool) -> Heard {
        let mut silence = Silence::default();
        loop {
            let least = if is_refused() { SILENCE_DOUBTED } else { SILENCE };
            let limit = limit(self.ask(), least, most);
            let pause = pause(limit);
            let late = wait(pause).await;
            let Some(hears) = self.hears() else { return Heard::NoConnection };
            if let Some(heard) = silence.after((pause, late), hears, limit) {
                return heard;
            }
        }
    }

    /// Listens on each connection by itself, and keeps those that have fallen silent: where one process has taken the place of
    /// another, the rest are its own.
    pub(crate) async fn keep_silent(&mut self, most: Duration) {
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
                        Some(Heard::Silence) => {
                            self.0.push(place);
                            None
                        }
                        Some(_) => None,
                    }
                })
                .collect();
        }
    }

    /// Ends the connections that streams share, if they began `before` that time: the process at their other end has died.
    pub(crate) fn abandon(&self, before: Instant) {
        for place in &self.0 {
            place.pulse.abandon(before, Code::Reset, "the neighbour's process has died");
        }
    }
}

/// The connections of a process that has died.
#[derive(Debug)]
pub(crate) struct Dead<'a> {
    /// At those that have fallen silent.
    pub(crate) ear: &'a Ear,
    /// Those on which nothing can be heard are its if they are older than this.
    pub(crate) before: Instant,
    /// When another process had taken its place: what began after that is none of its, however silent.
    pub(crate) replaced: Option<Instant>,
}

impl Dead<'_> {
    /// Whether the connection of this stream is one of them, which is in use `since` that time.
    pub(crate) fn has(&self, stream: &Stream, since: Instant) -> bool {
        self.has_of(stream.pulse(), since)
    }

    fn has_of(&self, pulse: Option<Box<dyn Pulse>>, since: Instant) -> bool {
        match pulse {
            Some(pulse) => self.ear.is_at(&*pulse) && self.replaced.is_none_or(|replaced| since <= replaced),
            None => since <= self.before,
        }
    }
}

impl Place {
    /// Whether something has come since this was last asked for; nothing if the connection has ended.
    fn hears(&mut self) -> Option<bool> {
        let now = self.pulse.heard()?;
        Some(std::mem::replace(&mut self.before, now) != now)
    }
}

/// For how long there was silence so far.
#[derive(Debug, Default)]
struct Silence {
    /// Since the beginning, and since something was last heard.
    all: Duration,
    silent: Duration,
    /// Questions since then.
    unanswered: u32,
    /// How long looks have taken that came late.
    late: Duration,
}

impl Silence {
    /// Counts a look after this pause, which came so `late`. Says what that shows as soon as it shows anything; `limit` is long enough.
    fn after(&mut self, (pause, late): (Duration, Duration), hears: bool, limit: Duration) -> Option<Heard> {
        if !hears && late > pause / 2 && self.late < LATE * limit {
            self.late += pause + late;
            return None;
        }
        self.all += pause;
        (self.silent, self.unanswered) =
            if hears { (Duration::ZERO, 0) } else { (self.silent + pause, self.unanswered + 1) };
        if self.silent >= limit && self.unanswered >= QUESTIONS {
            return Some(Heard::Silence);
        }
        (self.all >= 2 * limit && self.silent < limit / 2).then_some(Heard::Life)
    }
}

/// How long silence has to last on a connection of this round trip, if it can ask.
fn limit(rtt: Option<Duration>, least: Duration, most: Duration) -> Duration {
    rtt.map_or(most, |rtt| (TRIPS * rtt).max(least).min(most))
}

/// The pause between two questions.
fn pause(limit: Duration) -> Duration {
    LOOK.min(limit / QUESTIONS)
}

/// What has come is to be read before the next look: a pause of this process is no silence of the other. For the same reason a look
/// counts for the time that it was to take, whatever the clock says. Returns by how much it was late.
async fn wait(pause: Duration) -> Duration {
    let begun = Instant::now();
    sleep(pause).await;
    yield_now().await;
    begun.elapsed().saturating_sub(pause)
}

/// Whether a beacon of this protection says anything about connections of that one. Whoever can send packets can reset one in the
/// clear, or light one under another's name; what nobody can forge does not end by it.
pub(crate) fn is_believed(beacon: Security, connection: Security) -> bool {
    beacon > Security::None || connection == Security::None
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// The pulse of a connection, which answers or not.
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
    async fn of_several_connections_those_are_kept_that_are_silent() {
        let mut ear = Ear::at([told(1, true), told(2, false), told(2, true), told(3, true), told(4, false)]);
        ear.keep_silent(Duration::from_secs(3)).await;
        let mut ids: Vec<_> = ear.0.iter().map(|place| place.pulse.id()).collect();
        ids.sort_unstable();
        assert_eq!(ids, [2, 4]);
    }

    #[test]
    fn what_began_after_another_process_was_there_is_none_of_the_dead_ones() {
        let (before, ear) = (Instant::now(), Ear::at([told(1, false)]));
        let replaced = before + Duration::from_secs(1);
        let [its, later] = [Duration::ZERO, Duration::from_millis(1)].map(|more| replaced + more);
        let has = |replaced, pulse: Option<usize>, since| {
            Dead { ear: &ear, before, replaced }.has_of(pulse.map(|id| told(id, false)), since)
        };
        assert!(has(None, Some(1), later), "nobody is there any more");
        assert_eq!([its, later].map(|since| has(Some(replaced), Some(1), since)), [true, false]);
        assert_eq!([before, its].map(|since| has(Some(replaced), None, since)), [true, false]);
        assert!(!has(Some(replaced), Some(2), before), "something is heard there");
    }

    #[test]
    fn looks_that_come_late_do_not_count_though_not_for_ever() {
        let (limit, pause) = (Duration::from_millis(200), Duration::from_millis(20));
        let looks = |late: Duration| {
            let mut silence = Silence::default();
            (1..1000).find(|_| silence.after((pause, late), false, limit).is_some())
        };
        assert_eq!(looks(pause / 2), Some(10));
        // Each takes 40 ms of the second that is let pass.
        assert_eq!(looks(pause), Some(25 + 10));
        let mut silence = Silence::default();
        assert!((0..9).all(|_| silence.after((pause, Duration::ZERO), false, limit).is_none()));
        assert_eq!(silence.after((pause, pause), false, limit), None);
        assert_eq!(silence.after((pause, Duration::ZERO), false, limit), Some(Heard::Silence));
    }

    #[tokio::test]
    async fn one_that_answers_is_enough_to_live() {
        let most = Duration::from_secs(3);
        assert_eq!(Ear::at([told(1, true), told(2, false)]).listen(most, || false).await, Heard::Life);
        assert_eq!(Ear::at([told(1, false), told(2, false)]).listen(most, || true).await, Heard::Silence);
        assert_eq!(Ear::at([]).listen(most, || true).await, Heard::NoConnection);
    }
}
