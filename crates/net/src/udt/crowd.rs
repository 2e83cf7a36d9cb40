//! Many connections on one port: each is too slow for its packets to gather, and together they would wake the thread for
//! every packet.
//!
//! While many connections receive at the same time, the thread sleeps for a fixed time between rounds: a small part of
//! the shortest round trip among them, so that none of them notices. Few connections, or a short path, are never made to
//! wait.

use std::time::Duration;

/// Length of a window in which connections are counted: some rounds.
const WINDOW: Duration = Duration::from_millis(10);
/// Connections in a window that make a crowd.
const MANY: u32 = 8;
/// The longest pause: what arrives in it at 10 Gbit/s, 600 KB, is far less than the socket's buffer.
const PAUSE_MAX: Duration = Duration::from_micros(500);
/// The part of a round trip that a pause may take.
const OF_ROUND_TRIP: u32 = 16;

/// The connections that have received lately.
#[derive(Debug)]
pub(super) struct Crowd {
    /// Number of the current window, and when it began.
    window: u32,
    since: Duration,
    /// Connections in this window, and the shortest round trip among them.
    count: u32,
    round_trip: Duration,
    pause: Duration,
}

impl Crowd {
    pub(super) fn new() -> Self {
        Self { window: 1, since: Duration::ZERO, count: 0, round_trip: Duration::MAX, pause: Duration::ZERO }
    }

    /// Counts a connection that has received. `seen` is the connection's own note of the window in which it was counted
    /// last, 0 at first.
    pub(super) fn received(&mut self, now: Duration, seen: &mut u32, round_trip: impl FnOnce() -> Duration) {
        if now >= self.since + WINDOW {
            self.pause = match self.count {
                MANY.. => (self.round_trip / OF_ROUND_TRIP).min(PAUSE_MAX),
                _ => Duration::ZERO,
            };
            (self.window, self.since, self.count, self.round_trip) = (self.window + 1, now, 0, Duration::MAX);
        }
        if std::mem::replace(seen, self.window) != self.window {
            self.count += 1;
            self.round_trip = self.round_trip.min(round_trip());
        }
    }

    /// For how long the thread may sleep between two rounds. Zero where nobody is to wait.
    pub(super) fn pause(&self, now: Duration) -> Duration {
        // After a window in which nothing was received, there is no crowd.
        if now >= self.since + 2 * WINDOW { Duration::ZERO } else { self.pause }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    /// The pause after 100 ms in which `count` connections have received in every millisecond.
    fn pause(count: usize, round_trip: Duration) -> Duration {
        let (mut crowd, mut seen) = (Crowd::new(), vec![0; count]);
        for at in 0..100 {
            seen.iter_mut().for_each(|seen| crowd.received(ms(at), seen, || round_trip));
        }
        crowd.pause(ms(100))
    }

    #[test]
    fn many_connections_on_a_long_path_let_packets_gather() {
        assert_eq!(pause(100, ms(75)), PAUSE_MAX);
        assert_eq!(pause(8, ms(4)), Duration::from_micros(250));
        assert_eq!(pause(7, ms(75)), Duration::ZERO);
    }

    #[test]
    fn crowd_that_has_fallen_silent_is_none() {
        let (mut crowd, mut seen) = (Crowd::new(), [0; 20]);
        for at in [0, 11] {
            seen.iter_mut().for_each(|seen| crowd.received(ms(at), seen, || ms(100)));
        }
        assert_eq!(crowd.pause(ms(12)), PAUSE_MAX);
        assert_eq!(crowd.pause(ms(31)), Duration::ZERO);
    }
}
