//! Tests with damaged packets. UDP's checksum detects nearly all of them, and the kernel drops these
//! ([`Faults::corrupt`]). Undetected damage reaches the connection ([`Faults::damage`]), which has no checksum of its
//! own: bytes may then be wrong, or a packet may become a shutdown by chance, but nothing else may happen.
//! (`phoebus_net::tls` tests that TLS detects it.)

use super::host::{App, Faults, Host};
use super::link;
use super::transfer::{config, start, transfer};
use phoebus_proto::control::{Factory, Fixed, Model, Native};
use phoebus_proto::udt::{CloseReason, Config};
use std::collections::BTreeMap;
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);
const BYTES: u64 = 300_000;
/// In packets. Small, so that a violation of the window is noticed.
const BUFFER: u32 = 64;

#[test]
fn packets_with_wrong_checksums_are_retransmitted() {
    let mut net = start(4, &link(4, "20ms", "20mbit", "0%"), config(Model), App::writer(4_000_000));
    for id in [net.a, net.b] {
        net.sim.node_mut(id).faults = Faults { corrupt: 0.05, ..Faults::default() };
    }
    transfer(&mut net, 4_000_000, 100 * SECOND);
    assert!(net.sim.node(net.a).only().connection.stats().packets_resent > 50);
}

/// Checks that buffers and tables stay within their bounds.
fn check(host: &Host) {
    assert!(host.connections.len() <= 3, "{} connections", host.connections.len());
    for slot in host.connections.values() {
        let stats = slot.connection.stats();
        assert!(stats.packets_in_flight <= BUFFER && stats.packets_to_resend <= BUFFER, "{stats:?}");
        assert!(stats.bytes_unsent <= u64::from(BUFFER) * 1456, "{stats:?}");
        assert!(slot.connection.chunk().len() <= 1456);
    }
}

/// Runs a transfer over a path that flips one bit in this share of packets. Returns the close reasons of both ends.
fn play(seed: u64, control: impl Factory + 'static, damage: f64) -> [Option<CloseReason>; 2] {
    let config = Config { send_buffer: BUFFER, receive_buffer: BUFFER, ..config(control) };
    let mut link = link(seed, "10ms", "20mbit", "1%");
    link.forward.jitter = "2ms".parse().unwrap();
    link.forward.reorder = true;
    let mut net = start(seed, &link, config, App { is_blind: true, ..App::writer(BYTES) });
    net.sim.node_mut(net.b).on_accept = App { is_blind: true, to_write: BYTES / 4, closes: true, ..App::default() };
    let (a, b) = (net.a, net.b);
    for id in [a, b] {
        net.sim.node_mut(id).faults = Faults { damage, duplicate: 0.01, ..Faults::default() };
    }
    // Whatever bit was flipped, both connections end.
    let is_over = |host: &Host| host.connections.values().all(|slot| slot.connection.closed().is_some());
    for second in 1..=600 {
        let _ = net.sim.run(second * SECOND, |_| false);
        [a, b].iter().for_each(|id| check(net.sim.node(*id)));
        if is_over(net.sim.node(a)) && is_over(net.sim.node(b)) {
            break;
        }
    }
    // An endless exchange of packets would count in millions.
    let packets = net.sim.counters(net.link);
    let all = packets.forward.packets_in + packets.backward.packets_in;
    assert!(all < 40_000, "{all} packets for {} full ones, seed {seed}", BYTES / 1456);
    [a, b].map(|id| {
        let slots = &net.sim.node(id).connections;
        for slot in slots.values() {
            let stats = slot.connection.stats();
            assert!(slot.connection.closed().is_some(), "seed {seed} hangs: {stats:?}");
        }
        slots.values().next().and_then(|slot| slot.connection.closed())
    })
}

#[test]
fn undetected_damage_causes_no_hang_and_no_unbounded_growth() {
    let mut ends: BTreeMap<String, u32> = BTreeMap::new();
    for seed in 1..=120 {
        let damage = [0.002, 0.02, 0.2][seed as usize % 3];
        let closed = match seed % 4 {
            0 => play(seed, Native, damage),
            1 => play(seed, Fixed { bits_per_second: 15_000_000 }, damage),
            _ => play(seed, Model, damage),
        };
        for reason in closed {
            let reason = reason.map_or_else(|| "never open".to_owned(), |reason| reason.to_string());
            *ends.entry(reason).or_default() += 1;
        }
    }
    println!("{ends:?}");
    assert!(ends.get("closed by this end").is_some_and(|count| *count > 20), "too few transfers completed: {ends:?}");
}
