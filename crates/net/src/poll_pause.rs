//! How long a thread that has read everything sleeps before it polls a bulk connection again, so that arriving segments
//! gather.
//!
//! A receiver that is faster than the sender would otherwise be woken for each segment, and the sender's side pays for each
//! wake-up. The pause doubles while little gathers: a sender that serves several connections in turn fills each of them
//! slowly. It shrinks before the receive buffer is full, since then the sender would wait.

use std::cell::Cell;
use std::time::Duration;

/// The shortest pause, to which the kernel's own timer slack of some 50 µs is added, and the longest, which is short beside the
/// round trip of any long path.
const PAUSE: [Duration; 2] = [Duration::from_micros(10), Duration::from_micros(500)];

/// Bytes that are worth a wake-up. Of a small receive buffer, an eighth is enough.
const ENOUGH: usize = 128 << 10;

/// The pause of one connection.
#[derive(Debug)]
pub(crate) struct PollPause {
    pause: Cell<Duration>,
    /// Bytes that were read since the last pause.
    gathered: Cell<usize>,
}

impl PollPause {
    /// The shortest pause.
    pub(crate) fn new() -> Self {
        Self { pause: Cell::new(PAUSE[0]), gathered: Cell::new(0) }
    }

    /// Counts bytes that were read.
    pub(crate) fn received(&self, bytes: usize) {
        self.gathered.set(self.gathered.get().saturating_add(bytes));
    }

    /// The next pause, now that nothing is left to read. `buffer` is the size of the receive buffer as the kernel counts it,
    /// with its own overhead: a full one holds about half of it.
    pub(crate) fn next(&self, buffer: usize) -> Duration {
        let (gathered, pause) = (self.gathered.take(), self.pause.get());
        if gathered > 0 {
            self.pause.set(match gathered {
                few if few < ENOUGH.min(buffer / 8) => (2 * pause).min(PAUSE[1]),
                many if many >= buffer / 4 => (pause / 2).max(PAUSE[0]),
                _ => pause,
            });
        }
        self.pause.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pause_follows_what_gathers() {
        let (pause, buffer) = (PollPause::new(), 6 << 20);
        let after = |reads: &[usize]| {
            reads.iter().for_each(|bytes| pause.received(*bytes));
            pause.next(buffer).as_micros()
        };
        assert_eq!([after(&[20_000]), after(&[20_000]), after(&[64_000])], [20, 40, 80]);
        // Several reads that filled the reader's room are one gathering.
        assert_eq!([after(&[65_536, 65_536]), after(&[65_536; 8])], [80, 80]);
        assert_eq!([after(&[1; 9]), after(&[1]), after(&[1]), after(&[1])], [160, 320, 500, 500]);
        // A wait without bytes says nothing.
        assert_eq!(after(&[]), 500);
        assert_eq!([after(&[2 << 20]), after(&[1 << 20, 1 << 20])], [250, 125]);
        // In a small buffer, less is enough, and a quarter is much.
        let pause = PollPause::new();
        pause.received(16_384);
        assert_eq!(pause.next(128 << 10).as_micros(), 10);
        pause.received(32_768);
        assert_eq!(pause.next(128 << 10).as_micros(), 10);
    }
}
