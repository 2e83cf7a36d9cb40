//! The control beside other flows on one bottleneck, in virtual time: next to further model flows, paced as
//! quinn paces, and to CUBIC flows (RFC 9438), sent as TCP sends.

use super::*;

/// A packet: its sending time, and whether it arrives.
type Packet = (f64, bool);

/// The congestion control of a flow.
enum Sender {
    Model(Box<Control>),
    Cubic(Cubic),
}

/// CUBIC with HyStart++'s delay-based exit from slow start (RFC 9406), in packets.
struct Cubic {
    window: f64,
    threshold: f64,
    /// The window before the last loss, the start of the growth since, the time to regain that window, and
    /// Reno's window by now.
    most: f64,
    epoch: Option<f64>,
    until_most: f64,
    reno: f64,
    /// Losses of packets sent before this time belong to the last loss event.
    recovers: f64,
    rtt: f64,
    min_rtt: f64,
    round_ends: f64,
    round_rtt: f64,
}

impl Cubic {
    fn new() -> Self {
        Self {
            window: 10.0,
            threshold: f64::INFINITY,
            most: 0.0,
            epoch: None,
            until_most: 0.0,
            reno: 0.0,
            recovers: -1.0,
            rtt: 0.0,
            min_rtt: f64::INFINITY,
            round_ends: 0.0,
            round_rtt: f64::INFINITY,
        }
    }

    fn heard(&mut self, now: f64, told: &[Packet], rtt: f64) {
        let last = told.last().unwrap().0;
        let acked = told.iter().filter(|packet| packet.1).count() as f64;
        self.rtt = if self.rtt == 0.0 { rtt } else { self.rtt + (rtt - self.rtt) / 8.0 };
        self.min_rtt = self.min_rtt.min(rtt);
        if acked < told.len() as f64 {
            let lost = told.iter().filter(|packet| !packet.1).map(|packet| packet.0).fold(0.0, f64::max);
            if lost > self.recovers {
                self.recovers = now;
                self.most = if self.window < self.most { self.window * 0.85 } else { self.window };
                self.window = (self.window * 0.7).max(2.0);
                (self.threshold, self.epoch) = (self.window, None);
            }
        } else if last > self.recovers && self.window < self.threshold {
            self.window += acked;
            self.round_rtt = self.round_rtt.min(rtt);
            if last >= self.round_ends {
                if self.round_rtt > self.min_rtt + (self.min_rtt / 8.0).clamp(0.004, 0.016) {
                    self.threshold = self.window;
                }
                (self.round_ends, self.round_rtt) = (now, f64::INFINITY);
            }
        } else if last > self.recovers {
            self.avoid_congestion(now, acked);
        }
    }

    fn avoid_congestion(&mut self, now: f64, acked: f64) {
        let epoch = *self.epoch.get_or_insert_with(|| {
            self.most = self.most.max(self.window);
            self.until_most = ((self.most - self.window) / 0.4).cbrt();
            self.reno = self.window;
            now
        });
        let later = now - epoch + self.rtt - self.until_most;
        let target = (self.most + 0.4 * later.powi(3)).clamp(self.window, 1.5 * self.window);
        self.reno += acked / self.window * if self.reno < self.most { 3.0 * 0.3 / 1.7 } else { 1.0 };
        let grown = self.window + ((target - self.window) / self.window).min(0.5) * acked;
        self.window = grown.max(self.reno.min(self.window + acked));
    }
}

struct Flow {
    sender: Sender,
    under_way: VecDeque<Packet>,
    /// Number of packets whose fate the sender knows, and number of all packets that have arrived.
    told: u64,
    arrived: u64,
    /// Acknowledgements under way: the last packet that each covers, and its arrival time.
    acks: VecDeque<(u64, f64)>,
    /// When pacing permits the next packet, and the flow's current time.
    paced: f64,
    now: f64,
    rtt: f64,
    /// Packets delivered in the measured period.
    delivered: f64,
}

impl Flow {
    fn new(sender: Sender, begins: f64, rtt: f64) -> Self {
        let (under_way, acks) = (VecDeque::new(), VecDeque::new());
        Self { sender, under_way, told: 0, arrived: 0, acks, paced: begins, now: 0.0, rtt, delivered: 0.0 }
    }

    /// The window in packets, the burst size, and the number of packets per acknowledgement.
    fn manner(&self) -> (f64, usize, u64) {
        match &self.sender {
            Sender::Model(control) => {
                let burst = (self.speed() * 0.002) as usize;
                (control.window / MTU as f64, burst.clamp(10, 256), 10)
            }
            Sender::Cubic(cubic) => (cubic.window, usize::MAX, 2),
        }
    }

    /// Pacing rate, in packets per second.
    fn speed(&self) -> f64 {
        match &self.sender {
            Sender::Model(control) => 1.25 * control.window / MTU as f64 / self.rtt,
            Sender::Cubic(_) => f64::INFINITY,
        }
    }

    fn next_sending(&self) -> f64 {
        let has_room = (self.under_way.len() as f64) < self.manner().0;
        if has_room { self.paced.max(self.now) } else { f64::INFINITY }
    }

    fn next_hearing(&self) -> f64 {
        self.acks.front().map_or(f64::INFINITY, |ack| ack.1)
    }

    fn last(&self) -> u64 {
        self.told + self.under_way.len() as u64 - 1
    }

    fn send(&mut self, path: &mut Path, start: Instant) {
        let (window, burst, every) = self.manner();
        let count = burst.min((window.ceil() as usize).saturating_sub(self.under_way.len())).max(1);
        for _ in 0..count {
            let arrives = path.carry(self.now);
            self.under_way.push_back((self.now, arrives.is_some()));
            if let Some(arrives) = arrives {
                self.arrived += 1;
                if self.arrived.is_multiple_of(every) {
                    self.acks.push_back((self.last(), arrives + path.rtt / 2.0));
                }
            }
        }
        self.paced = self.now + count as f64 / self.speed();
        if let Sender::Model(control) = &mut self.sender {
            control.sent(start + Duration::from_secs_f64(self.now), count as u64 * MTU);
        }
    }

    fn hear(&mut self, path: &Path, start: Instant) {
        let Some((last, _)) = self.acks.pop_front() else { return };
        let Some(count) = (last + 1).checked_sub(self.told).filter(|count| *count > 0) else { return };
        let told: Vec<Packet> = self.under_way.drain(..count as usize).collect();
        self.told += count;
        let rtt = (self.now - told.last().unwrap().0).max(path.rtt);
        self.rtt += (rtt - self.rtt) / 8.0;
        self.delivered += told.iter().filter(|packet| packet.1).count() as f64;
        match &mut self.sender {
            Sender::Cubic(cubic) => cubic.heard(self.now, &told, rtt),
            Sender::Model(control) => {
                let at = |t: f64| start + Duration::from_secs_f64(t);
                for (sent, _) in told.iter().filter(|packet| packet.1) {
                    control.arrived(at(*sent), MTU);
                }
                let missing = told.iter().filter(|packet| !packet.1).count() as u64;
                control.acknowledged(at(self.now), (self.under_way.len() as u64 + missing) * MTU, false);
                if missing > 0 {
                    control.missing(at(self.now), missing * MTU, false);
                }
            }
        }
    }

    /// If no acknowledgement is due for the packets in flight, a time-out reports them as lost.
    fn mind_silence(&mut self) {
        if self.acks.is_empty() && !self.under_way.is_empty() && self.next_sending().is_infinite() {
            self.acks.push_back((self.last(), self.now + 2.0 * self.rtt));
        }
    }
}

/// Rates in Mbit/s of `models` model flows and `cubics` CUBIC flows from `from` seconds on, on a path of 500
/// Mbit/s and 40 ms with a queue of `queue` round trips.
fn share(models: usize, cubics: usize, queue: f64, from: f64, seconds: f64, seed: u64) -> Vec<f64> {
    let start = Instant::now();
    let mut path = Path::new(5e8, 0.04, queue, 0.0);
    let model = |index| {
        let mut control = Control::new(start, MTU as u16);
        control.random = seed * 7919 + index as u64 * 104_729;
        Sender::Model(Box::new(control))
    };
    let senders = (0..models).map(model).chain((0..cubics).map(|_| Sender::Cubic(Cubic::new())));
    // The CUBIC flows start first, some milliseconds apart.
    let begins = |index| 0.02 * ((index + cubics) % (models + cubics)) as f64;
    let new = |(index, sender)| Flow::new(sender, begins(index), path.rtt);
    let mut flows: Vec<Flow> = senders.enumerate().map(new).collect();
    let mut counted = false;
    loop {
        let next = |flow: &Flow| flow.next_hearing().min(flow.next_sending());
        let flow = flows.iter_mut().min_by(|one, other| next(one).total_cmp(&next(other))).unwrap();
        flow.now = next(flow);
        let now = flow.now;
        if flow.next_hearing() <= flow.next_sending() {
            flow.hear(&path, start);
        } else {
            flow.send(&mut path, start);
        }
        flow.mind_silence();
        if !counted && now >= from {
            counted = true;
            flows.iter_mut().for_each(|flow| flow.delivered = 0.0);
        }
        if now >= seconds {
            let factor = MTU as f64 * 8e-6 / (seconds - from);
            return flows.iter().map(|flow| flow.delivered * factor).collect();
        }
    }
}

fn jain(shares: &[f64]) -> f64 {
    let sum: f64 = shares.iter().sum();
    sum * sum / shares.len() as f64 / shares.iter().map(|share| share * share).sum::<f64>()
}

#[test]
fn model_holds_a_fair_share_beside_cubic() {
    for (count, least) in [(1, 0.85), (3, 0.85)] {
        for (from, seconds) in [(2.0, 8.0), (10.0, 40.0)] {
            for seed in 1..4 {
                let shares = share(count, count, 1.0, from, seconds, seed);
                let index = jain(&shares);
                assert!(index > least, "from {from} to {seconds} s, seed {seed}: {index:.3} of {shares:.0?}");
            }
        }
    }
}

#[test]
fn model_shares_fairly_with_nine_cubic_flows() {
    let shares = share(1, 9, 1.0, 30.0, 90.0, 1);
    let cubics: f64 = shares.iter().skip(1).sum();
    assert!(shares[0] > 25.0 && cubics > 225.0, "{shares:.0?}");
}

#[test]
fn model_flows_share_fairly() {
    for (count, seed) in [(2, 1), (2, 2), (3, 1), (3, 2), (4, 1), (4, 2)] {
        let shares = share(count, 0, 1.0, 10.0, 40.0, seed);
        let (index, all) = (jain(&shares), shares.iter().sum::<f64>());
        assert!(index > 0.9 && all > 480.0, "seed {seed}: {index:.3} of {shares:.0?}");
    }
}
