//! Tests with suspended processes, clocks that jump, and replayed or forged packets. An incomplete stream is never
//! taken for a complete one.

use super::host::{App, Net};
use super::link;
use super::transfer::{config, start};
use phoebus_proto::control::{Model, Native};
use phoebus_proto::udt::packet::{AckReport, Body, MessagePosition, Packet};
use phoebus_proto::udt::{Arrival, CloseReason, Config, Connection, LossList, LossWriter, MessageNumber, Seq};
use phoebus_wan::sim::NodeId;
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);
const BYTES: u64 = 20_000_000;

/// A transfer from a to b that takes some 8 s, after its first 2 s.
fn running_transfer(config: Config) -> Net {
    let mut net = start(3, &link(3, "20ms", "20mbit", "0.1%"), config, App::writer(BYTES));
    let _ = net.sim.run(2 * SECOND, |_| false);
    net
}

fn suspend(net: &mut Net, id: NodeId, time: Duration) {
    net.sim.node_mut(id).runs_at = net.sim.now() + time;
}

fn read(net: &Net) -> u64 {
    net.sim.node(net.b).only().app.read
}

fn closed(net: &Net, id: NodeId) -> Option<CloseReason> {
    net.sim.node(id).only().connection.closed()
}

#[test]
fn transfer_survives_a_suspension_shorter_than_the_timeout() {
    for config in [config(Model), config(Native)] {
        for (suspends_sender, time) in
            [(true, 10 * SECOND), (false, 10 * SECOND), (true, 25 * SECOND), (false, 25 * SECOND)]
        {
            let mut net = running_transfer(config.clone());
            let id = if suspends_sender { net.a } else { net.b };
            suspend(&mut net, id, time);
            let _ = net.sim.run(200 * SECOND, |_| false);
            assert_eq!((read(&net), closed(&net, net.a)), (BYTES, Some(CloseReason::Local)), "{time:?}");
        }
    }
}

#[test]
fn suspension_longer_than_the_timeout_is_an_error_at_both_ends() {
    for time in [40 * SECOND, 600 * SECOND, 100_000 * SECOND] {
        for suspends_sender in [true, false] {
            let mut net = running_transfer(config(Model));
            let id = if suspends_sender { net.a } else { net.b };
            suspend(&mut net, id, time);
            let _ = net.sim.run(time + 300 * SECOND, |_| false);
            for id in [net.a, net.b] {
                let reason = closed(&net, id);
                assert!(matches!(reason, Some(CloseReason::Silence(_) | CloseReason::Peer)), "{reason:?}");
            }
            assert!(read(&net) < BYTES);
        }
    }
}

#[test]
fn clock_jump_at_both_ends_completes_or_fails_at_both_ends() {
    // The whole machine was suspended: for its processes, only the clock has advanced.
    for time in [20 * SECOND, 3600 * SECOND] {
        let mut net = running_transfer(config(Model));
        for id in [net.a, net.b] {
            suspend(&mut net, id, time);
        }
        let _ = net.sim.run(time + 300 * SECOND, |_| false);
        let done = read(&net) == BYTES && closed(&net, net.a) == Some(CloseReason::Local);
        let failed = [net.a, net.b].iter().all(|id| closed(&net, *id).is_some()) && read(&net) < BYTES;
        assert!(done || failed && time > 30 * SECOND, "{:?} {:?}", closed(&net, net.a), closed(&net, net.b));
    }
}

/// Both ends of a connection over which some bytes were sent each way, and the initial sequence number.
fn established() -> (Connection, Connection, Seq) {
    let (mut client, mut server, first) = super::hostile::pair(phoebus_proto::udt::Kind::Stream);
    exchange(&mut client, &mut server, SECOND);
    client.write(b"begins well, ");
    server.write(b"yes, ");
    exchange(&mut client, &mut server, 2 * SECOND);
    (client, server, first)
}

/// Exchanges packets for 500 ms, and returns those of the client.
fn exchange(client: &mut Connection, server: &mut Connection, from: Duration) -> Vec<Vec<u8>> {
    let (mut sent, mut buf) = (vec![], [0; 1500]);
    for n in 0..100 {
        let now = from + n * Duration::from_millis(5);
        while let Some(transmit) = client.poll_transmit(now, &mut buf) {
            sent.push(buf[..transmit.len].to_vec());
            server.handle(now, &buf[..transmit.len], Arrival::Alone);
        }
        while let Some(transmit) = server.poll_transmit(now, &mut buf) {
            client.handle(now, &buf[..transmit.len], Arrival::Alone);
        }
    }
    sent
}

#[test]
fn idle_peer_answers_a_probe() {
    let (mut client, mut server, _) = established();
    // The peer's next keep-alive is due a second after its last packet, later than the answers to these probes.
    let start = Duration::from_millis(2600);
    let before = client.stats().last_heard;
    for n in 1..=3 {
        client.probe();
        let now = start + n * Duration::from_millis(60);
        let mut buf = [0; 1500];
        let probe = client.poll_transmit(now, &mut buf).expect("the probe");
        assert_eq!(client.poll_transmit(now, &mut [0; 1500]), None, "one packet is enough");
        server.handle(now, &buf[..probe.len], Arrival::Alone);
        let answer = server.poll_transmit(now, &mut buf).expect("the answer");
        client.handle(now, &buf[..answer.len], Arrival::Alone);
        assert_eq!(client.stats().last_heard, now);
    }
    assert!(before < start + Duration::from_millis(60));
}

fn packet(destination: u32, body: Body<'_>) -> Vec<u8> {
    let mut out = vec![0; 1500];
    let len = Packet { timestamp: 1, destination, body }.encode(&mut out).unwrap();
    out.truncate(len);
    out
}

#[test]
fn replayed_packets_change_nothing() {
    let (mut client, mut server, _) = established();
    client.write(&[7; 20_000]);
    let sent = exchange(&mut client, &mut server, 3 * SECOND);
    client.write(b"and ends well");
    // Replay all packets several times, in both orders.
    let now = 4 * SECOND;
    for _ in 0..3 {
        sent.iter().chain(sent.iter().rev()).for_each(|bytes| server.handle(now, bytes, Arrival::Alone));
    }
    exchange(&mut client, &mut server, 4 * SECOND);
    let mut out = vec![0; 30_000];
    let len = server.read(&mut out);
    let expected = [&b"begins well, "[..], &[7; 20_000], b"and ends well"].concat();
    assert!(out[..len] == expected, "{len} bytes");
    assert!(client.is_flushed() && client.is_open() && server.is_open());
    assert!(server.stats().packets_duplicate > 0);
}

#[test]
fn packets_forged_without_knowledge_of_the_connection_change_nothing() {
    let (mut client, mut server, first) = established();
    let (now, mut list) = (3 * SECOND, [0; 8]);
    let far = |n| first.plus(n);
    let mut writer = LossWriter::new(&mut list);
    writer.push(far(1 << 20), far((1 << 20) + 5));
    let forged = [
        Body::Data {
            seq: far(1 << 20),
            place: MessagePosition::new(MessageNumber::FIRST, true, true, false),
            payload: b"evil",
        },
        Body::Data {
            seq: first,
            place: MessagePosition::new(MessageNumber::FIRST, true, true, false),
            payload: b"evil",
        },
        Body::Ack {
            number: 7,
            report: AckReport { next: far(1 << 20), path: None, rates: None, end: Some(far(1 << 21)) },
        },
        Body::Nak(LossList::new(&list).unwrap()),
        Body::Ack2 { number: 12_345 },
        Body::Drop { message: MessageNumber::FIRST, first: far(1), last: far(5) },
    ];
    for body in forged {
        // Numbers outside the windows are ignored even with the right socket id.
        server.handle(now, &packet(server.socket(), body), Arrival::Alone);
        client.handle(now, &packet(client.socket(), body), Arrival::Alone);
    }
    for body in forged.into_iter().chain([Body::Shutdown]) {
        // All packets for another socket id are ignored, including a shutdown.
        server.handle(now, &packet(server.socket() ^ 1, body), Arrival::Alone);
        client.handle(now, &packet(client.socket() ^ 1, body), Arrival::Alone);
    }
    client.write(b"and ends well");
    server.write(b"so it does");
    exchange(&mut client, &mut server, 4 * SECOND);
    let mut out = [0; 100];
    let len = server.read(&mut out);
    assert_eq!(&out[..len], b"begins well, and ends well");
    let len = client.read(&mut out);
    assert_eq!(&out[..len], b"yes, so it does");
    assert!(client.is_flushed() && server.is_flushed() && client.is_open() && server.is_open());
    assert!(server.stats().ignored > 0 && client.stats().ignored > 0);
}
