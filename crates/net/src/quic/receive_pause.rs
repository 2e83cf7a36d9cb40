//! Lets the packets of bulk flows gather in the kernel while the threads of QUIC sleep
//! ([`ReadThreshold`](crate::transport::ReadThreshold)).
//!
//! Every datagram that arrives wakes a thread that waits for its socket, whatever the runtime does with the event. So a
//! thread that has just received sleeps for a moment before it waits again, as long as an owner of a stream allows that.
//! Its timers and the calls of other threads wait, too: hence at most for [`PAUSE_MAX`], and for no longer than the most
//! impatient of the streams allows. Their bytes together must fit into the sockets' buffers.

use super::ready_signal::lock;
use crate::transport::ReadThreshold;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The longest sleep. Pacing has its timers on the same threads, and quinn makes up for at most 256 packets: at this time,
/// a connection can still send 3 Gbit/s.
const PAUSE_MAX: Duration = Duration::from_millis(1);
/// The shortest sleep: less than this, and a thread would wake as often as for datagrams.
const PAUSE_MIN: Duration = Duration::from_micros(200);
/// The part of a socket's buffer that may fill meanwhile: the kernel also counts what it keeps with each packet.
const OF_BUFFER: f64 = 0.125;

thread_local! {
    /// Whether this thread has received a datagram since it last waited.
    static HAS_RECEIVED: Cell<bool> = const { Cell::new(false) };
}

/// The streams that allow it, and how long the threads may sleep.
#[derive(Debug)]
pub(super) struct ReceivePause(Mutex<Streams>);

#[derive(Debug)]
struct Streams {
    next: u64,
    allowed: BTreeMap<u64, ReadThreshold>,
    /// Bytes in the receive buffers of the sockets.
    buffers: BTreeMap<u64, u64>,
    time: Duration,
}

/// One stream's permission. Dropping it withdraws it.
#[derive(Debug)]
pub(super) struct PausePermit {
    receive_pause: Arc<ReceivePause>,
    number: u64,
}

/// A socket that the threads serve. Dropping it says that they no longer do.
#[derive(Debug)]
pub(super) struct ServedSocket {
    receive_pause: Arc<ReceivePause>,
    number: u64,
}

impl Default for ReceivePause {
    fn default() -> Self {
        let (allowed, buffers) = (BTreeMap::new(), BTreeMap::new());
        Self(Mutex::new(Streams { next: 0, allowed, buffers, time: Duration::ZERO }))
    }
}

impl ReceivePause {
    /// Lets the packets of one more stream gather as `threshold` says.
    pub(super) fn allow(self: &Arc<Self>, threshold: ReadThreshold) -> PausePermit {
        let mut streams = lock(&self.0);
        let number = streams.number();
        streams.allowed.insert(number, threshold);
        streams.update();
        PausePermit { receive_pause: self.clone(), number }
    }

    /// The threads serve another socket, whose receive buffer has so many bytes.
    pub(super) fn opened(self: &Arc<Self>, buffer: u64) -> ServedSocket {
        let mut streams = lock(&self.0);
        let number = streams.number();
        streams.buffers.insert(number, buffer);
        streams.update();
        ServedSocket { receive_pause: self.clone(), number }
    }

    /// To be called before a thread waits for events.
    pub(super) fn before_wait(&self) {
        if HAS_RECEIVED.take() {
            let time = self.time();
            if time >= PAUSE_MIN {
                std::thread::sleep(time);
            }
        }
    }

    fn time(&self) -> Duration {
        lock(&self.0).time
    }
}

impl Streams {
    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn update(&mut self) {
        let least = self.allowed.values().map(|threshold| threshold.within).min().unwrap_or_default().min(PAUSE_MAX);
        let rate = |threshold: &ReadThreshold| threshold.bytes as f64 / threshold.within.as_secs_f64().max(1e-6);
        let all: f64 = self.allowed.values().map(rate).sum();
        let buffer = self.buffers.values().copied().min().unwrap_or(u64::MAX);
        let fits = Duration::try_from_secs_f64(buffer as f64 * OF_BUFFER / all.max(1.0)).unwrap_or(PAUSE_MAX);
        self.time = least.min(fits);
    }
}

impl Drop for PausePermit {
    fn drop(&mut self) {
        let mut streams = lock(&self.receive_pause.0);
        streams.allowed.remove(&self.number);
        streams.update();
    }
}

impl Drop for ServedSocket {
    fn drop(&mut self) {
        let mut streams = lock(&self.receive_pause.0);
        streams.buffers.remove(&self.number);
        streams.update();
    }
}

/// To be called when this thread has received datagrams.
pub(super) fn received() {
    HAS_RECEIVED.set(true);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn threshold(bytes: u64, micros: u64) -> ReadThreshold {
        ReadThreshold { bytes, within: Duration::from_micros(micros) }
    }

    #[test]
    fn most_impatient_stream_decides() {
        let receive_pause = Arc::<ReceivePause>::default();
        assert_eq!(receive_pause.time(), Duration::ZERO);
        let patient = receive_pause.allow(threshold(250_000, 5000));
        assert_eq!(receive_pause.time(), PAUSE_MAX);
        let impatient = receive_pause.allow(threshold(50_000, 500));
        assert_eq!(receive_pause.time(), Duration::from_micros(500));
        drop(impatient);
        assert_eq!(receive_pause.time(), PAUSE_MAX);
        drop(patient);
        assert_eq!(receive_pause.time(), Duration::ZERO);
        received();
        receive_pause.before_wait();
        assert!(!HAS_RECEIVED.get());
    }

    #[test]
    fn bytes_of_all_streams_fit_into_the_smallest_buffer() {
        let receive_pause = Arc::<ReceivePause>::default();
        let _large = receive_pause.opened(8 << 20);
        let small = receive_pause.opened(200_000);
        // 1 Gbit/s each; an eighth of the buffer is 25 KB.
        let one = receive_pause.allow(threshold(250_000, 2000));
        assert_eq!(receive_pause.time(), Duration::from_micros(200));
        let two = receive_pause.allow(threshold(250_000, 2000));
        assert_eq!(receive_pause.time(), Duration::from_micros(100));
        drop(small);
        assert_eq!(receive_pause.time(), PAUSE_MAX);
        drop((one, two));
    }
}
