//! Several transfers over one bottleneck: all complete, and share it.

use super::host::{Faults, Host};
use super::{SHAPE, link};
use phoebus_proto::control::{Model, SharedControl};
use phoebus_proto::object::{SendConfig, Shape};
use phoebus_wan::model::{DirectionConfig, LinkConfig};
use phoebus_wan::sim::{Datagram, End, Node, NodeId, Port, Simulator};
use std::time::Duration;

/// The ends of several transfers at one place. The first byte of what they send says which one it was.
struct Crowd {
    hosts: Vec<Host>,
    /// Whose turn it is to send.
    turn: usize,
    /// Who hears nothing.
    silent: Option<usize>,
}

impl Node for Crowd {
    type Packet = Datagram;

    fn receive(&mut self, now: Duration, from: Port, Datagram(mut bytes): Datagram) {
        let which = usize::from(bytes.remove(0));
        if self.silent == Some(which) {
            return;
        }
        self.hosts[which].receive(now, from, Datagram(bytes));
    }

    fn poll(&mut self, now: Duration) -> Option<(Port, Datagram)> {
        for _ in 0..self.hosts.len() {
            let which = self.turn;
            self.turn = (self.turn + 1) % self.hosts.len();
            if let Some((port, Datagram(bytes))) = self.hosts[which].poll(now) {
                return Some((port, Datagram([&[which as u8], &bytes[..]].concat())));
            }
        }
        None
    }

    fn next_wakeup(&self) -> Option<Duration> {
        self.hosts.iter().filter_map(Node::next_wakeup).min()
    }
}

/// So many transfers of `bytes` each over `link`, which has room for the control streams besides.
fn crowd(count: u32, bytes: u64, link: &LinkConfig) -> (Simulator<Crowd>, [NodeId; 2]) {
    crowd_with(|_| SharedControl::default(), count, bytes, link)
}

/// The same with these controls, by number of the transfer.
fn crowd_with(
    control: impl Fn(u32) -> SharedControl,
    count: u32,
    bytes: u64,
    link: &LinkConfig,
) -> (Simulator<Crowd>, [NodeId; 2]) {
    let faults = Faults { duplicate: 0.001, corrupt: 0.001 };
    let ends = |end: &dyn Fn(u32) -> Host| Crowd { hosts: (0..count).map(end).collect(), turn: 0, silent: None };
    // The MTU has to hold the byte as well.
    let shape = |nth| Shape { transfer: nth, packet_len: SHAPE.packet_len - 2, ..SHAPE };
    let sends = |nth| {
        let config = SendConfig { seed: u64::from(nth) + 1, ..SendConfig::default() };
        Host::sends_sharing(shape(nth), config, &Model, (bytes, 8), &control(nth)).with(faults)
    };
    let receives = |nth| Host::receives(shape(nth), 8, Duration::from_millis(1)).with(faults);
    let mut sim = Simulator::new();
    let nodes = [sim.add(ends(&sends)), sim.add(ends(&receives))];
    sim.join(nodes[0], nodes[1], link);
    let mut control = link.clone();
    for direction in [&mut control.forward, &mut control.backward] {
        *direction = DirectionConfig { delay: direction.delay, rate: direction.rate, ..DirectionConfig::default() };
    }
    sim.join(nodes[0], nodes[1], &control);
    (sim, nodes)
}

/// Runs until all transfers are done, within `limit`, and checks that they waste little.
fn complete(sim: &mut Simulator<Crowd>, [sender, receiver]: [NodeId; 2], limit: Duration) {
    let end = sim.run(Duration::from_secs(60), |sim| {
        sim.node(sender).hosts.iter().chain(&sim.node(receiver).hosts).all(Host::has_ended)
    });
    let hosts = &sim.node(sender).hosts;
    let count = hosts.len();
    assert_eq!(end, End::Met, "{count} transfers");
    let counters = hosts.iter().map(|host| host.sending().sender.counters());
    let (needed, sent) = counters.fold((0, 0), |all, one| (all.0 + one.needed, all.1 + one.sent));
    assert!((sent - needed) * 20 < needed, "{count} transfers: {sent} packets sent, {needed} needed");
    assert!(sim.now() < limit, "{count} transfers took {:?}", sim.now());
}

#[test]
fn all_of_several_transfers_complete_and_waste_little() {
    for count in [1, 2, 4, 16] {
        let all: u64 = 60_000_000;
        let (mut sim, nodes) = crowd(count, all / u64::from(count), &link(5, "40ms", "100mbit", "0.5%"));
        complete(&mut sim, nodes, Duration::from_secs(12));
    }
}

#[test]
fn several_transfers_share_a_bottleneck() {
    for count in [2, 4, 16] {
        let (mut sim, [_, receiver]) = crowd(count, 1 << 30, &link(7, "40ms", "100mbit", "0%"));
        let fresh = |sim: &Simulator<Crowd>| -> Vec<f64> {
            sim.node(receiver).hosts.iter().map(|host| host.receiving().fresh as f64).collect()
        };
        let _ = sim.run(Duration::from_secs(5), |_| false);
        let before = fresh(&sim);
        let _ = sim.run(Duration::from_secs(25), |_| false);
        let rates: Vec<f64> = fresh(&sim).iter().zip(&before).map(|(after, before)| after - before).collect();
        let (sum, squares) = (rates.iter().sum::<f64>(), rates.iter().map(|rate| rate * rate).sum::<f64>());
        let jain = sum * sum / squares / rates.len() as f64;
        assert!(jain > 0.9 && sum * 8.0 / 20.0 > 85e6, "{count} transfers: {jain}, {rates:?}");
    }
}

/// With one control, transfers of a job are one flow beside another's.
#[test]
fn transfers_of_a_job_are_one_flow_beside_others() {
    let job = SharedControl::default();
    let control = |nth| if nth < 4 { job.clone() } else { SharedControl::default() };
    let (mut sim, [_, receiver]) = crowd_with(control, 5, 1 << 30, &link(9, "40ms", "100mbit", "0.1%"));
    let fresh = |sim: &Simulator<Crowd>| -> Vec<f64> {
        sim.node(receiver).hosts.iter().map(|host| host.receiving().fresh as f64).collect()
    };
    let _ = sim.run(Duration::from_secs(10), |_| false);
    let before = fresh(&sim);
    let _ = sim.run(Duration::from_secs(40), |_| false);
    let rates: Vec<f64> =
        fresh(&sim).iter().zip(&before).map(|(after, before)| (after - before) * 8.0 / 30e6).collect();
    let (together, other) = (rates[..4].iter().sum::<f64>(), rates[4]);
    assert!(together + other > 85.0 && together > 0.6 * other && other > 0.6 * together, "{rates:?}");
    let mean = together / 4.0;
    assert!(rates[..4].iter().all(|rate| (rate / mean - 1.0).abs() < 0.2), "{rates:?}");
}

/// A transfer that joins others has its part at once, and what they leave is taken at once.
#[test]
fn transfers_with_one_control_complete_and_waste_little() {
    for count in [2, 4, 16] {
        let (job, all): (_, u64) = (SharedControl::default(), 60_000_000);
        let each = all / u64::from(count);
        let (mut sim, nodes) = crowd_with(|_| job.clone(), count, each, &link(5, "40ms", "100mbit", "0.5%"));
        complete(&mut sim, nodes, Duration::from_secs(8));
    }
}

/// A transfer whose receiver is gone does not slow the others down.
#[test]
fn silent_receiver_costs_the_others_nothing_for_long() {
    let (job, all) = (SharedControl::default(), 30_000_000);
    let (mut sim, [sender, receiver]) = crowd_with(|_| job.clone(), 3, all, &link(5, "40ms", "100mbit", "0%"));
    sim.node_mut(receiver).silent = Some(0);
    let end = sim.run(Duration::from_secs(60), |sim| {
        let of = |node| sim.node(node).hosts[1..].iter().all(Host::has_ended);
        of(sender) && of(receiver)
    });
    assert_eq!(end, End::Met);
    // 60 MB take 5 s.
    assert!(sim.now() < Duration::from_secs(9), "they took {:?}", sim.now());
}
