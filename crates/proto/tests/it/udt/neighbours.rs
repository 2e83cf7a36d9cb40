//! UDT flows that share a bottleneck with TCP flows.

use super::bbr::Bbr;
use super::cubic::Cubic;
use super::host::{App, Host};
use super::link;
use super::tcp::{Control, Machine, Sender};
use super::transfer::config;
use phoebus_proto::control::Model;
use phoebus_proto::udt::Config;
use phoebus_wan::sim::{NodeId, Simulator};
use std::sync::Arc;
use std::time::Duration;

/// A shared bottleneck and its flows.
pub(crate) struct Shared {
    pub(crate) rate: &'static str,
    /// One-way delay.
    pub(crate) delay: &'static str,
    pub(crate) queue: &'static str,
    /// Number of UDT flows.
    pub(crate) udt: usize,
    /// Number of TCP flows.
    pub(crate) tcp: usize,
    /// Congestion control of the TCP flows.
    pub(crate) control: fn() -> Control,
    pub(crate) seed: u64,
}

pub(crate) fn cubic() -> Control {
    Control::Cubic(Cubic::new())
}

pub(crate) fn bbr() -> Control {
    Control::Bbr(Bbr::new())
}

impl Shared {
    /// Goodput of each UDT flow and of each TCP flow between two times, in Mbit/s.
    pub(crate) fn rates(&self, config: Config, from: Duration, to: Duration) -> [Vec<f64>; 2] {
        let (mut sim, _, b) = self.begin(config);
        let _ = sim.run(from, |_| false);
        let before = self.read(&sim, b);
        let _ = sim.run(to, |_| false);
        let mut rates = self.read(&sim, b);
        for (rate, before) in rates.iter_mut().flatten().zip(before.iter().flatten()) {
            *rate = (*rate - before) * 8.0 / (to - from).as_secs_f64() / 1e6;
        }
        rates
    }

    /// Durations of `count` short flows, which begin at intervals of `every` after the long flows have run for a while.
    pub(crate) fn short_flows(&self, config: Config, packets: u64, count: usize, every: Duration) -> Vec<Duration> {
        let (mut sim, a, _) = self.begin(config);
        let from = Duration::from_secs(5);
        for n in 0..count as u32 {
            let at = from + every * n;
            let _ = sim.run(at, |_| false);
            sim.node_mut(a).senders.push(Sender::short(cubic(), at, packets));
        }
        let short = |sim: &Simulator<Machine>| {
            let senders = sim.node(a).senders[self.tcp..].iter();
            senders.map(|sender| Some(sender.ended_at? - sender.starts_at)).collect::<Option<Vec<_>>>()
        };
        let _ = sim.run(from + every * count as u32 + Duration::from_secs(60), |sim| short(sim).is_some());
        short(&sim).unwrap()
    }

    /// The two machines. UDT and TCP flows begin in turn, 200 ms apart.
    fn begin(&self, config: Config) -> (Simulator<Machine>, NodeId, NodeId) {
        let mut link = link(self.seed, self.delay, self.rate, "0%");
        link.forward.queue = self.queue.parse().unwrap();
        let mut sim = Simulator::new();
        let a = sim.add(Machine::new(Host::new(2 * self.seed, "192.0.2.2:9000".parse().unwrap())));
        let b = sim.add(Machine::new(Host::new(2 * self.seed + 1, "192.0.2.1:9000".parse().unwrap())));
        sim.join(a, b, &link);
        let config = Arc::new(config);
        sim.node_mut(b).host.endpoint.listen(Some(config.clone())).unwrap();
        for n in 0..self.udt.max(self.tcp) {
            let at = Duration::from_millis(400) * n as u32;
            let _ = sim.run(at, |_| false);
            let machine = sim.node_mut(a);
            if n < self.udt {
                let peer = machine.host.peer;
                let connection = machine.host.endpoint.connect(at, peer, config.clone()).unwrap();
                machine.host.add(connection, App { to_write: u64::MAX, ..App::default() });
            }
            if n < self.tcp {
                machine.senders.push(Sender::new((self.control)(), at + Duration::from_millis(200)));
            }
        }
        (sim, a, b)
    }

    /// Number of bytes that each flow has delivered.
    fn read(&self, sim: &Simulator<Machine>, to: NodeId) -> [Vec<f64>; 2] {
        let machine = sim.node(to);
        let udt = machine.host.connections.values().map(|slot| slot.app.read as f64).collect();
        [udt, (0..self.tcp).map(|flow| machine.received(flow) as f64).collect()]
    }
}

/// Jain's index of fairness.
pub(crate) fn jain(rates: &[f64]) -> f64 {
    let (sum, squares) = (rates.iter().sum::<f64>(), rates.iter().map(|rate| rate * rate).sum::<f64>());
    sum * sum / (rates.len() as f64 * squares)
}

#[test]
fn simulated_cubic_and_bbr_fill_a_path_and_share_it_fairly() {
    for control in [cubic, bbr] {
        let (rate, delay, queue) = ("50mbit", "10ms", "125kB");
        let shared = Shared { rate, delay, queue, udt: 0, tcp: 2, control, seed: 12 };
        let [_, rates] = shared.rates(config(Model), Duration::from_secs(20), Duration::from_secs(120));
        let sum = rates.iter().sum::<f64>();
        assert!(sum > 44.0 && jain(&rates) > 0.9, "{rates:?}");
    }
}
