//! The simulator with a small reliable protocol over lossy links, and the ways in which runs end.

use super::*;
use crate::model::{DirectionConfig, DirectionUpdate};

const SECOND: Duration = Duration::from_secs(1);

/// Go-back-N: when a timer expires, the sender repeats everything from the first unacknowledged datagram on.
/// Datagrams carry their number, acknowledgements the next expected number.
enum Party {
    Sender { total: u32, window: u32, acknowledged: u32, next: u32, time_limit: Duration, deadline: Option<Duration> },
    Receiver { expected: u32, discarded: u32, answer: bool },
}

impl Party {
    fn sender(total: u32, window: u32, time_limit: Duration) -> Self {
        Self::Sender { total, window, acknowledged: 0, next: 0, time_limit, deadline: None }
    }

    fn receiver() -> Self {
        Self::Receiver { expected: 0, discarded: 0, answer: false }
    }

    fn received(&self) -> u32 {
        if let Self::Receiver { expected, .. } = self { *expected } else { 0 }
    }
}

impl Node for Party {
    type Packet = Datagram;

    fn receive(&mut self, now: Duration, _from: Port, packet: Datagram) {
        let number = u32::from_be_bytes(packet.0[..4].try_into().unwrap());
        match self {
            Self::Sender { acknowledged, next, time_limit, deadline, total, .. } if number > *acknowledged => {
                (*acknowledged, *next) = (number, number.max(*next));
                *deadline = (number < *total).then_some(now + *time_limit);
            }
            Self::Sender { .. } => {}
            Self::Receiver { expected, discarded, answer } => {
                *discarded += u32::from(number != *expected);
                *expected += u32::from(number == *expected);
                *answer = true;
            }
        }
    }

    fn poll(&mut self, now: Duration) -> Option<(Port, Datagram)> {
        match self {
            Self::Sender { total, window, acknowledged, next, time_limit, deadline } => {
                if deadline.is_some_and(|deadline| deadline <= now) {
                    (*next, *deadline) = (*acknowledged, None);
                }
                if *next == *total.min(&mut (*acknowledged + *window)) {
                    return None;
                }
                let mut payload = vec![0; 1000];
                payload[..4].copy_from_slice(&next.to_be_bytes());
                *next += 1;
                deadline.get_or_insert(now + *time_limit);
                Some((Port(0), Datagram(payload)))
            }
            Self::Receiver { expected, answer, .. } => {
                std::mem::take(answer).then(|| (Port(0), Datagram(expected.to_be_bytes().to_vec())))
            }
        }
    }

    fn next_wakeup(&self) -> Option<Duration> {
        if let Self::Sender { deadline, .. } = self { *deadline } else { None }
    }
}

fn link(delay: &str, rate: &str, loss: &str) -> LinkConfig {
    let parsed = (delay.parse().unwrap(), rate.parse().unwrap(), loss.parse().unwrap());
    LinkConfig::symmetric(5, DirectionConfig { delay: parsed.0, rate: parsed.1, loss: parsed.2, ..Default::default() })
}

/// Sends `total` datagrams over `link`; returns the time taken and how many datagrams arrived out of order.
fn transfer(total: u32, window: u32, link: &LinkConfig) -> (Duration, u32) {
    let mut sim = Simulator::new();
    let sender = sim.add(Party::sender(total, window, Duration::from_millis(150)));
    let receiver = sim.add(Party::receiver());
    sim.join(sender, receiver, link);
    assert_eq!(sim.run(600 * SECOND, |sim| sim.node(receiver).received() == total), End::Met);
    let Party::Receiver { discarded, .. } = sim.node(receiver) else { unreachable!("added as a receiver") };
    (sim.now(), *discarded)
}

#[test]
fn transfer_sends_exactly_a_window_per_round_trip() {
    let link = link("25ms", "100mbit", "0%");
    let transmission = |payload| Duration::from_nanos(Datagram(vec![0; payload]).amount().bytes * 80);
    // Each acknowledgement releases one more datagram: the round trip of a window's first datagram sets the
    // pace.
    let round = Duration::from_millis(50) + transmission(1000) + transmission(4);
    let last_window = 10 * transmission(1000) + Duration::from_millis(25);
    assert_eq!(transfer(100, 10, &link), (9 * round + last_window, 0));
}

#[test]
fn lossy_runs_are_reproducible() {
    let link = link("25ms", "100mbit", "2%");
    let (time, discarded) = transfer(1000, 10, &link);
    assert!(time > transfer(1000, 10, &self::link("25ms", "100mbit", "0%")).0);
    assert!(discarded > 0);
    assert_eq!(transfer(1000, 10, &link), (time, discarded));
    assert_ne!(transfer(1000, 10, &LinkConfig { seed: 6, ..link }), (time, discarded));
}

#[test]
fn different_nodes_share_a_simulator_and_links_can_change() {
    /// Forwards packets from one port to the other.
    struct Hub(Vec<(Port, Datagram)>);
    impl Node for Hub {
        type Packet = Datagram;
        fn receive(&mut self, _: Duration, from: Port, packet: Datagram) {
            self.0.push((Port(1 - from.0), packet));
        }
        fn poll(&mut self, _: Duration) -> Option<(Port, Datagram)> {
            self.0.pop()
        }
        fn next_wakeup(&self) -> Option<Duration> {
            None
        }
    }
    let mut sim: Simulator<Box<dyn Node<Packet = Datagram>>> = Simulator::new();
    let sender = sim.add(Box::new(Party::sender(10, 1, SECOND)));
    let hub = sim.add(Box::new(Hub(Vec::new())));
    let receiver = sim.add(Box::new(Party::receiver()));
    sim.join(sender, hub, &link("10ms", "unlimited", "0%"));
    let second = sim.join(hub, receiver, &link("20ms", "unlimited", "0%"));
    let acknowledged = |sim: &mut Simulator<_>, number| sim.counters(second).backward.packets_out == number;
    assert_eq!(sim.run(SECOND, |sim| acknowledged(sim, 4)), End::Met);
    assert_eq!(sim.now(), Duration::from_millis(3 * 60 + 50));
    let slower = DirectionUpdate { delay: "70ms".parse().ok(), ..Default::default() };
    let now = sim.now();
    sim.link_mut(second).way(Direction::Backward).update(now, &slower);
    assert_eq!(sim.run(SECOND, |sim| acknowledged(sim, 6)), End::Met);
    assert_eq!(sim.now(), now + Duration::from_millis(2 * (60 + 50)));
}

#[test]
fn run_reports_how_it_ended() {
    let mut sim = Simulator::new();
    let sender = sim.add(Party::sender(1, 1, SECOND));
    let receiver = sim.add(Party::receiver());
    let link_id = sim.join(sender, receiver, &link("10ms", "unlimited", "100%"));
    assert_eq!(sim.run(5 * SECOND / 2, |_| false), End::TimedOut);
    assert_eq!((sim.now(), sim.counters(link_id).forward.random_drops.segments), (5 * SECOND / 2, 3));

    let mut done = Simulator::new();
    done.add(Party::receiver());
    assert_eq!(done.run(SECOND, |_| false), End::Idle);
}

#[test]
fn zero_delay_loop_and_idle_wakeup_are_detected() {
    struct Mirror(Option<Datagram>, Option<Duration>);
    impl Node for Mirror {
        type Packet = Datagram;
        fn receive(&mut self, _: Duration, _: Port, packet: Datagram) {
            self.0 = Some(packet);
        }
        fn poll(&mut self, _: Duration) -> Option<(Port, Datagram)> {
            self.0.take().map(|packet| (Port(0), packet))
        }
        fn next_wakeup(&self) -> Option<Duration> {
            self.1
        }
    }
    let mut sim = Simulator::new();
    let ends = [Some(Datagram(Vec::new())), None].map(|packet| sim.add(Mirror(packet, None)));
    sim.join(ends[0], ends[1], &LinkConfig::default());
    assert_eq!(sim.run(SECOND, |_| false), End::Stuck);

    let mut sim = Simulator::new();
    sim.add(Mirror(None, Some(Duration::ZERO)));
    assert_eq!(sim.run(SECOND, |_| false), End::Stuck);
}
