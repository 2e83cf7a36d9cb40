//! Tests over paths with a tiny bandwidth-delay product: less than a packet, or a few packets, with queues of a few
//! packets. Controls that count in round trips or packets have the least information there.

use super::host::App;
use super::transfer::{config, start, transfer};
use phoebus_proto::control::{Fixed, Model, Native};
use phoebus_proto::udt::Config;
use phoebus_proto::units::ByteSize;
use phoebus_wan::model::LinkConfig;
use std::time::Duration;

struct Path {
    /// One-way delay in microseconds.
    delay_us: u64,
    /// Bits per second.
    rate: u64,
    /// Queue in packets.
    queue: u64,
}

const PATHS: [Path; 6] = [
    // 8 and 12 bytes: the transmission of a packet takes far longer than its propagation.
    Path { delay_us: 500, rate: 64_000, queue: 3 },
    Path { delay_us: 50, rate: 1_000_000, queue: 4 },
    // One, two and four packets.
    Path { delay_us: 600, rate: 10_000_000, queue: 2 },
    Path { delay_us: 1200, rate: 10_000_000, queue: 4 },
    Path { delay_us: 2400, rate: 10_000_000, queue: 4 },
    // Two packets at the rate of a modem.
    Path { delay_us: 200_000, rate: 64_000, queue: 4 },
];

impl Path {
    const PACKET: u64 = 1538;

    fn link(&self, seed: u64, loss: &str) -> LinkConfig {
        let mut link = super::link(seed, &format!("{}us", self.delay_us), &format!("{}bit", self.rate), loss);
        for direction in [&mut link.forward, &mut link.backward] {
            direction.queue = ByteSize(self.queue * Self::PACKET);
        }
        link
    }

    /// Number of bytes that take 15 s.
    fn bytes(&self) -> u64 {
        self.rate / 8 * 15
    }

    /// The utilization of the link by a transfer of that duration.
    fn share(&self, took: Duration) -> f64 {
        (self.bytes() * Self::PACKET / 1456) as f64 * 8.0 / self.rate as f64 / took.as_secs_f64()
    }
}

/// Transfers with three seeds and checks that each uses more than `least` of the link, including the handshake and
/// startup.
fn check_utilization(path: &Path, name: &str, config: Config, loss: &str, least: f64) {
    for seed in 1..4 {
        let bytes = path.bytes();
        let mut net = start(seed, &path.link(seed, loss), config.clone(), App::writer(bytes));
        let took = transfer(&mut net, bytes, Duration::from_secs(600));
        let share = path.share(took);
        let sent = net.sim.counters(net.link).forward;
        let again = net.sim.node(net.a).only().connection.stats().packets_resent;
        println!(
            "{} bit/s, {} us, queue of {}, loss {loss}, {name}: {share:.2} of the link, {again} of {} sent again",
            path.rate, path.delay_us, path.queue, sent.packets_in
        );
        assert!(share > least, "{name} has {share:.2} of {} bit/s at {} us", path.rate, path.delay_us);
    }
}

#[test]
fn every_control_fills_a_tiny_path() {
    for path in &PATHS {
        let fixed = Fixed { bits_per_second: path.rate * 9 / 10 };
        check_utilization(path, "model", config(Model), "0%", 0.5);
        check_utilization(path, "fixed", config(fixed), "0%", 0.5);
        check_utilization(path, "native", config(Native), "0%", 0.1);
    }
}

#[test]
fn transfers_complete_over_a_tiny_path_with_loss() {
    for path in &PATHS {
        check_utilization(path, "model", config(Model), "2%", 0.3);
        check_utilization(path, "native", config(Native), "2%", 0.02);
    }
}

#[test]
fn transfers_in_both_directions_complete_over_a_tiny_path() {
    for path in &PATHS {
        let bytes = path.bytes() / 4;
        let mut net = start(5, &path.link(5, "0%"), config(Model), App { to_write: bytes, ..App::default() });
        net.sim.node_mut(net.b).on_accept = App { to_write: bytes, ..App::default() };
        let (a, b) = (net.a, net.b);
        let has_all = |host: &super::host::Host| host.connections.values().any(|slot| slot.app.read == bytes);
        let end = net.sim.run(Duration::from_secs(120), |sim| has_all(sim.node(a)) && has_all(sim.node(b)));
        assert_eq!(end, phoebus_wan::sim::End::Met, "{} bit/s at {} us", path.rate, path.delay_us);
    }
}

#[test]
fn shortest_streams_are_delivered_and_closed() {
    // A stream of one byte, and an empty one.
    for path in &PATHS {
        for bytes in [1, 0] {
            let mut net = start(7, &path.link(7, "0%"), config(Model), App::writer(bytes));
            let (a, b) = (net.a, net.b);
            let is_over = |host: &super::host::Host| {
                host.connections.values().next().is_some_and(|slot| slot.connection.closed().is_some())
            };
            let end = net.sim.run(Duration::from_secs(60), |sim| is_over(sim.node(a)) && is_over(sim.node(b)));
            assert_eq!(end, phoebus_wan::sim::End::Met, "{} bit/s at {} us", path.rate, path.delay_us);
            assert_eq!(net.sim.node(b).only().app.read, bytes);
        }
    }
}
