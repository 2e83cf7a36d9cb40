//! Tests of the congestion control on paths in virtual time: one sender that always has data, paced as quinn
//! paces, and a bottleneck with a queue. [`beside`] tests several senders on one bottleneck.

mod beside;

use super::*;

const MTU: u64 = 1452;

/// A simulated path and its queue.
struct Path {
    /// Rate of the bottleneck in bytes per second, and capacity of its queue in bytes.
    rate: f64,
    queue: f64,
    /// Round-trip time without the queue, in seconds.
    rtt: f64,
    /// Fraction of random loss.
    loss: f64,
    random: u64,
    busy_until: f64,
}

impl Path {
    fn new(rate: f64, rtt: f64, queue: f64, loss: f64) -> Self {
        Self { rate: rate / 8.0, queue: queue * rate / 8.0 * rtt, rtt, loss, random: 7, busy_until: 0.0 }
    }

    /// The arrival time of a packet sent at `now`, or `None` if it is lost.
    fn carry(&mut self, now: f64) -> Option<f64> {
        let starts = self.busy_until.max(now);
        if (starts - now) * self.rate > self.queue {
            return None;
        }
        self.busy_until = starts + MTU as f64 / self.rate;
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let lost = (self.random >> 11) as f64 / (1u64 << 53) as f64;
        (lost >= self.loss).then_some(self.busy_until + self.rtt / 2.0)
    }
}

/// The results from `from` seconds on: the used fraction of the rate, the fraction of packets lost, and the
/// mean round-trip time in units of the minimum; and, over the whole run, the most gaps at the receiver.
#[derive(Debug)]
struct Outcome {
    used: f64,
    lost: f64,
    rtt: f64,
    gaps: usize,
}

fn run(path: Path, from: f64, seconds: f64) -> Outcome {
    run_by(Control::new(Instant::now(), MTU as u16), path, from, seconds)
}

fn run_by(mut control: Control, mut path: Path, from: f64, seconds: f64) -> Outcome {
    let start = control.min_rtt_at;
    let at = |t: f64| start + Duration::from_secs_f64(t);
    control.random = 1;
    // Packets in flight in sending order: sending time, and arrival time.
    let mut under_way: VecDeque<(f64, Option<f64>)> = VecDeque::new();
    let (mut now, mut paced, mut smoothed) = (0.0, 0.0, path.rtt);
    // When each gap appeared. It lasts until the repair arrives, a little over a round trip later.
    let (mut gaps, mut in_gap, mut most_gaps) = (VecDeque::new(), false, 0);
    let (mut packets, mut delivered, mut lost, mut rtts) = (0.0, 0.0, 0.0, 0.0);
    while now < seconds {
        // Paced as quinn does: 5/4 of the window per round trip, in bursts of 2 ms.
        let window = control.window() as f64;
        let speed = 1.25 * window / smoothed / MTU as f64;
        let burst = ((speed * 0.002) as usize).clamp(10, 256);
        let room = |under_way: &VecDeque<_>| under_way.len() as f64 * (MTU as f64) < window;
        if now >= paced && room(&under_way) {
            let count = burst.min((window / MTU as f64) as usize - under_way.len()).max(1);
            under_way.extend((0..count).map(|_| (now, path.carry(now))));
            control.sent(at(now), count as u64 * MTU);
            paced = now + count as f64 / speed;
        }
        let next = if room(&under_way) { paced } else { f64::INFINITY };
        // Every tenth arriving packet is acknowledged, and with it all before it.
        let tenth = under_way.iter().enumerate().filter(|(_, packet)| packet.1.is_some()).nth(9);
        let heard = tenth.map(|(index, (_, arrived))| (index, arrived.unwrap() + path.rtt / 2.0));
        match heard {
            Some((index, heard)) if heard <= next => {
                now = now.max(heard);
                let told: Vec<_> = under_way.drain(..=index).collect();
                let missing = told.iter().filter(|(_, arrived)| arrived.is_none()).count() as u64;
                for (sent, _) in told.iter().filter(|(_, arrived)| arrived.is_some()) {
                    control.arrived(at(*sent), MTU);
                }
                control.acknowledged(at(now), (under_way.len() as u64 + missing) * MTU, false);
                if missing > 0 {
                    control.missing(at(now), missing * MTU, false);
                }
                let rtt = now - told[index].0;
                for (_, arrived) in &told {
                    if arrived.is_none() && !in_gap {
                        gaps.push_back(now);
                    }
                    in_gap = arrived.is_none();
                }
                while gaps.front().is_some_and(|since| *since < now - 1.2 * rtt) {
                    gaps.pop_front();
                }
                most_gaps = most_gaps.max(gaps.len());
                smoothed += (rtt - smoothed) / 8.0;
                if now > from {
                    packets += told.len() as f64;
                    delivered += told.len() as f64 - missing as f64;
                    lost += missing as f64;
                    rtts += rtt * told.len() as f64;
                }
            }
            _ if next.is_finite() => now = next,
            // Everything in flight was lost: quinn would probe.
            _ => {
                now += 2.0 * smoothed;
                let bytes = under_way.len() as u64 * MTU;
                under_way.clear();
                control.missing(at(now), bytes.max(1), false);
            }
        }
    }
    let most = path.rate * (seconds - from);
    Outcome {
        used: delivered * MTU as f64 / most,
        lost: lost / packets,
        rtt: rtts / packets / path.rtt,
        gaps: most_gaps,
    }
}

#[test]
fn control_fills_a_long_path_with_and_without_loss() {
    let tried = [(0.0, 0.97), (1e-4, 0.97), (1e-3, 0.96), (1e-2, 0.94), (5e-2, 0.9)];
    for (loss, least) in tried {
        let outcome = run(Path::new(1e9, 0.1, 1.3, loss), 2.0, 12.0);
        assert!(outcome.used > least && outcome.rtt < 1.45, "loss {loss}: {outcome:?}");
    }
}

#[test]
fn control_uses_most_of_a_path_with_ten_percent_loss() {
    let outcome = run(Path::new(2e8, 0.1, 1.0, 0.1), 2.0, 12.0);
    assert!(outcome.used > 0.8, "{outcome:?}");
}

#[test]
fn control_finds_more_bandwidth_despite_loss() {
    for loss in [0.0, 5e-2, 8e-2] {
        let now = Instant::now();
        let mut control = Control::new(now, MTU as u16);
        control.rates[0] = 1.25e7;
        control.phase = Phase::Cruise { step: 2, since: now };
        let outcome = run_by(control, Path::new(5e8, 0.1, 1.3, loss), 8.0, 16.0);
        assert!(outcome.used > 0.85, "loss {loss}: {outcome:?}");
    }
}

#[test]
fn control_fills_the_path_within_seconds() {
    let outcome = run(Path::new(1e9, 0.1, 1.3, 1e-4), 1.5, 3.0);
    assert!(outcome.used > 0.9, "{outcome:?}");
}

#[test]
fn control_uses_short_queues_and_slow_paths() {
    for (rate, rtt, queue) in [(1e9, 0.1, 0.25), (1e8, 0.02, 0.5), (1e7, 0.2, 1.0), (1e10, 0.001, 1.0)] {
        let outcome = run(Path::new(rate, rtt, queue, 0.0), 4.0, 12.0);
        assert!(outcome.used > 0.85 && outcome.lost < 0.05, "{rate} bit/s, {rtt} s, queue {queue}: {outcome:?}");
    }
}

#[test]
fn heavy_loss_stays_within_the_receiver_s_gap_limit() {
    let mut control = Control::new(Instant::now(), 1452);
    control.rates[0] = 1.25e8;
    control.min_rtt = Some(Duration::from_millis(300));
    (control.phase, control.loss) = (Phase::Drain, 0.1);
    control.decide();
    assert!(control.window / control.mtu * control.loss <= GAPS);
}

#[test]
fn overflow_stays_within_the_receiver_s_gap_limit() {
    // quinn ends the connection at 1024 gaps.
    for queue in [0.05, 0.1, 0.25, 0.5, 1.0, 2.0] {
        let outcome = run(Path::new(1e9, 0.1, queue, 0.0), 2.0, 6.0);
        assert!(outcome.gaps < 900, "queue {queue}: {outcome:?}");
    }
}

/// Moves `packets` packets, all that the application had, in one round trip of 100 ms that ends at `now`.
fn exchange(control: &mut Control, now: Instant, packets: u64, app_limited: bool) {
    let sent = now.checked_sub(Duration::from_millis(100)).unwrap();
    control.sent(sent, packets * MTU);
    for _ in 0..packets {
        control.arrived(sent, MTU);
    }
    control.acknowledged(now, 0, app_limited);
}

#[test]
fn application_limited_connection_keeps_its_startup() {
    let start = Instant::now();
    let mut control = Control::new(start, MTU as u16);
    for round in 1..100 {
        exchange(&mut control, start + Duration::from_millis(200 * round), 2, true);
    }
    assert_eq!(control.phase, Phase::Startup);
    assert!(control.window >= INITIAL * control.mtu, "{} bytes", control.window);
}

#[test]
fn model_survives_a_pause() {
    let start = Instant::now();
    let mut control = Control::new(start, MTU as u16);
    control.rates[0] = 1.25e8;
    control.min_rtt = Some(Duration::from_millis(100));
    control.phase = Phase::Cruise { step: 3, since: start };
    for round in 1..100 {
        exchange(&mut control, start + Duration::from_millis(200 * round), 2, true);
    }
    assert!(control.rate() >= 1.25e8, "{} bytes a second", control.rate());
}
