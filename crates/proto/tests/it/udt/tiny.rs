//! Paths that hold next to nothing: less than a packet, or a few, with queues of a few. A control that counts in round trips or
//! packets has the least to go by there.

use super::host::App;
use super::transfer::{config, start, transfer};
use phoebus_proto::udt::Config;
use phoebus_proto::udt::control::{Fixed, Model, Native};
use phoebus_proto::units::ByteSize;
use phoebus_wan::model::LinkConfig;
use std::time::Duration;

/// One way, in microseconds; bits per second; the queue in packets; bytes that take a quarter of a minute.
struct Path {
    delay_us: u64,
    rate: u64,
    queue: u64,
}

const PATHS: [Path; 6] = [
    // Of 8 and of 12 bytes: a packet is on the link for far longer than it is under way.
    Path { delay_us: 500, rate: 64_000, queue: 3 },
    Path { delay_us: 50, rate: 1_000_000, queue: 4 },
    // Of one, two and four packets.
    Path { delay_us: 600, rate: 10_000_000, queue: 2 },
    Path { delay_us: 1200, rate: 10_000_000, queue: 4 },
    Path { delay_us: 2400, rate: 10_000_000, queue: 4 },
    // The same of a modem's days.
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

    fn bytes(&self) -> u64 {
        self.rate / 8 * 15
    }

    /// The share of the link that a transfer has had.
    fn share(&self, took: Duration) -> f64 {
        (self.bytes() * Self::PACKET / 1456) as f64 * 8.0 / self.rate as f64 / took.as_secs_f64()
    }
}

/// How long a transfer takes at most where all goes well, in multiples of what the link needs: the start is in it.
fn moves(path: &Path, name: &str, config: Config, loss: &str, least: f64) {
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
fn every_control_fills_a_path_of_a_packet_or_a_few() {
    for path in &PATHS {
        let fixed = Fixed { bits_per_second: path.rate * 9 / 10 };
        moves(path, "model", config(Model), "0%", 0.5);
        moves(path, "fixed", config(fixed), "0%", 0.5);
        moves(path, "native", config(Native), "0%", 0.1);
    }
}

#[test]
fn and_one_that_loses_packets() {
    for path in &PATHS {
        moves(path, "model", config(Model), "2%", 0.3);
        moves(path, "native", config(Native), "2%", 0.02);
    }
}

#[test]
fn and_both_ways_at_the_same_time() {
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
fn the_least_that_is_said_arrives() {
    // One byte, and a connection that was never written to.
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
