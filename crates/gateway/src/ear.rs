//! Listens for signs of life of one neighbour on its connections (`docs/protocol/session.md` §6.6).

use phoebus_net::Stream;
use phoebus_net::transport::{Pulse, Security};
use phoebus_proto::session::Code;
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
/// What does instead of a second where its port refuses connections as well.
const SILENCE_REFUSED: Duration = Duration::from_millis(200);

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
        let mut places: Vec<Place> = Vec::new();
        for pulse in pulses {
            let is_new = places.iter().all(|place| place.pulse.id() != pulse.id());
            if let Some(before) = pulse.heard().filter(|_| is_new) {
                places.push(Place { pulse, before });
            }
        }
        Self(places)
    }

    /// Whether it listens on the connection of this stream.
    pub(crate) fn is_at(&self, stream: &Stream) -> bool {
        stream.pulse().is_some_and(|pulse| self.0.iter().any(|place| place.pulse.id() == pulse.id()))
    }

    /// Whether something has come since this was last asked for; nothing if no connection is left.
    fn hears(&mut self) -> Option<bool> {
        let mut hears = None;
        for Place { pulse, before } in &mut self.0 {
            if let Some(now) = pulse.heard() {
                hears = Some(hears == Some(true) || now != *before);
                *before = now;
            }
        }
        hears
    }

    /// Asks for signs of life. Returns the longest round trip of the connections that can ask, if there are any.
    pub(crate) fn ask(&self) -> Option<Duration> {
        self.0.iter().filter_map(|place| place.pulse.ask()).max()
    }

    /// Waits until nothing is heard for long enough, or the neighbour is still heard after twice that time. It is asked
    /// meanwhile. What was on its way when a process died is heard for a moment after it. Where it cannot be asked, and on the
    /// longest paths, `most` is long enough. `is_refused` tells whether its port refuses connections as well.
    pub(crate) async fn listen(&mut self, most: Duration, is_refused: impl Fn() -> bool) -> Heard {
        let (mut all, mut silent, mut unanswered) = (Duration::ZERO, Duration::ZERO, 0);
        loop {
            let least = if is_refused() { SILENCE_REFUSED } else { SILENCE };
            let limit = self.ask().map_or(most, |rtt| (TRIPS * rtt).max(least).min(most));
            let pause = LOOK.min(limit / QUESTIONS);
            sleep(pause).await;
            // What has come is to be read first: a pause of this process is no silence of the other. For the same reason a look
            // counts for the time that it was to take, whatever the clock says.
            yield_now().await;
            all += pause;
            match self.hears() {
                None => return Heard::NoConnection,
                Some(true) => (silent, unanswered) = (Duration::ZERO, 0),
                Some(false) => (silent, unanswered) = (silent + pause, unanswered + 1),
            }
            if silent >= limit && unanswered >= QUESTIONS {
                return Heard::Silence;
            }
            if all >= 2 * limit && silent < limit / 2 {
                return Heard::Life;
            }
        }
    }

    /// Ends the connections that streams share, if they began `before` that time: the process at their other end has died.
    pub(crate) fn abandon(&self, before: Instant) {
        for place in &self.0 {
            place.pulse.abandon(before, Code::Reset, "the neighbour's process has died");
        }
    }
}

/// Whether a beacon of this protection says anything about connections of that one. Whoever can send packets can reset one in the
/// clear, or light one under another's name; what nobody can forge does not end by it.
pub(crate) fn is_believed(beacon: Security, connection: Security) -> bool {
    beacon > Security::None || connection == Security::None
}
