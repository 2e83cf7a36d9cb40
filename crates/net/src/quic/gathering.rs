//! Lets the packets of bulk flows gather in the kernel while the threads of QUIC sleep
//! ([`ReadThreshold`](crate::transport::ReadThreshold)).
//!
//! Every datagram that arrives wakes a thread that waits for its socket, whatever the runtime does with the event. So a
//! thread that has just received sleeps for a moment before it waits again, as long as an owner of a stream allows that.
//! Its timers and the calls of other threads wait, too: hence at most for [`MOST`].

use super::bell::lock;
use std::cell::Cell;
use std::sync::Mutex;
use std::time::Duration;

/// The longest sleep. Pacing has its timers on the same threads, and quinn's sends bursts of so much.
const MOST: Duration = Duration::from_millis(2);
/// The shortest sleep: less than this, and a thread would wake as often as for datagrams.
const WORTHWHILE: Duration = Duration::from_micros(200);

thread_local! {
    /// Whether this thread has received a datagram since it last waited.
    static HAS_RECEIVED: Cell<bool> = const { Cell::new(false) };
}

/// The streams that allow it.
#[derive(Debug, Default)]
pub(super) struct Gathering(Mutex<Streams>);

#[derive(Debug, Default)]
struct Streams {
    number: usize,
    /// How long the packets of the stream may gather that began last.
    time: Duration,
}

impl Gathering {
    /// One more stream allows that its packets gather for `time`.
    pub(super) fn begin(&self, time: Duration) {
        let mut streams = lock(&self.0);
        streams.number += 1;
        streams.time = time.min(MOST);
    }

    /// One stream less allows it.
    pub(super) fn end(&self) {
        let mut streams = lock(&self.0);
        streams.number = streams.number.saturating_sub(1);
    }

    /// To be called before a thread waits for events.
    pub(super) fn before_wait(&self) {
        if HAS_RECEIVED.take() {
            let time = self.time();
            if time >= WORTHWHILE {
                std::thread::sleep(time);
            }
        }
    }

    fn time(&self) -> Duration {
        let streams = lock(&self.0);
        if streams.number > 0 { streams.time } else { Duration::ZERO }
    }
}

/// To be called when this thread has received datagrams.
pub(super) fn received() {
    HAS_RECEIVED.set(true);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_gather_while_any_stream_allows_it() {
        let gathering = Gathering::default();
        assert_eq!(gathering.time(), Duration::ZERO);
        gathering.begin(Duration::from_micros(500));
        gathering.begin(Duration::from_millis(5));
        gathering.end();
        assert_eq!(gathering.time(), MOST);
        gathering.end();
        assert_eq!(gathering.time(), Duration::ZERO);
        received();
        gathering.before_wait();
        assert!(!HAS_RECEIVED.get());
    }
}
