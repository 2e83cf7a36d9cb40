//! Transfers that survive what happens to paths: blackouts, reordering, bursts of loss, slow receivers, hostile peers.

use super::host::{Faults, Host, Pair};
use super::{SHAPE, link};
use phoebus_proto::control::{Fixed, Model};
use phoebus_proto::object::packet::{CHUNK_END, Header, Kind, PacketNumber};
use phoebus_proto::object::{Ack, Receiver, SendConfig, Sender, Shape, Unplaced};
use phoebus_wan::model::{DirectionConfig, GilbertElliott, LinkConfig, Loss};
use std::time::Duration;

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn over(link: &LinkConfig, bytes: u64, write_time: Duration) -> Pair {
    let sender = Host::sends(SHAPE, SendConfig { seed: link.seed, ..Default::default() }, &Model, (bytes, 16));
    let faults = Faults { duplicate: 0.01, corrupt: 0.01 };
    Pair::new(sender.with(faults), Host::receives(SHAPE, 16, write_time).with(faults), link)
}

#[test]
fn transfer_survives_a_minute_without_a_path() {
    for seed in 0..4 {
        let mut pair = over(&link(seed, "40ms", "100mbit", "1%"), 30_000_000, ms(1));
        let _ = pair.sim.run(ms(700), |_| false);
        let now = pair.sim.now();
        pair.sim.link_mut(pair.datagrams).cut(now);
        let before = pair.sending().sender.counters().sent;
        let _ = pair.sim.run(ms(60_700), |_| false);
        let meanwhile = pair.sending().sender.counters().sent - before;
        // What was in flight, and a few questions.
        assert!(meanwhile < 2000, "{meanwhile} packets were sent into nothing");
        pair.sim.link_mut(pair.datagrams).heal();
        pair.complete(Duration::from_secs(100));
    }
}

#[test]
fn reordered_packets_are_not_taken_for_lost_for_long() {
    let direction = DirectionConfig {
        delay: "40ms".parse().unwrap(),
        jitter: "20ms".parse().unwrap(),
        reorder: true,
        rate: "100mbit".parse().unwrap(),
        ..Default::default()
    };
    let mut pair = over(&LinkConfig::symmetric(3, direction), 50_000_000, ms(1));
    pair.complete(Duration::from_secs(60));
    let counters = pair.sending().sender.counters();
    assert!(counters.repairs * 20 < counters.needed, "{counters:?}");
}

#[test]
fn bursts_of_loss_cost_their_packets_and_little_more() {
    let bursts = GilbertElliott {
        to_bad: "0.05%".parse().unwrap(),
        to_good: "5%".parse().unwrap(),
        loss_good: "0%".parse().unwrap(),
        loss_bad: "100%".parse().unwrap(),
    };
    let direction = DirectionConfig {
        delay: "40ms".parse().unwrap(),
        rate: "100mbit".parse().unwrap(),
        loss: Loss::GilbertElliott(bursts),
        ..Default::default()
    };
    let mut pair = over(&LinkConfig::symmetric(5, direction), 50_000_000, ms(1));
    pair.complete(Duration::from_secs(60));
    let counters = pair.sending().sender.counters();
    assert!(counters.lost as f64 <= 0.03 * counters.needed as f64, "{counters:?}");
}

#[test]
fn slow_receiver_is_no_loss() {
    // A chunk of 1 MiB in 400 ms is a fifth of the link's rate.
    let mut pair = over(&link(1, "10ms", "100mbit", "0%"), 30_000_000, ms(400));
    pair.complete(Duration::from_secs(60));
    let counters = pair.sending().sender.counters();
    // A hundredth is damaged.
    assert!(counters.lost * 80 < counters.needed, "{counters:?}");
}

#[test]
fn sizes_around_a_packet_and_a_chunk_arrive() {
    for bytes in [1, 1437, 1438, 1439, 1 << 20, (1 << 20) + 1, 3 << 20] {
        let mut pair = over(&link(bytes, "5ms", "100mbit", "2%"), bytes, ms(1));
        pair.complete(Duration::from_secs(30));
        assert_eq!(pair.receiving().bytes, bytes);
    }
}

fn sender(now: Duration) -> Sender {
    Sender::new(now, SHAPE, SendConfig::default(), &Fixed { bits_per_second: 1_000_000_000 })
}

/// The encoded acknowledgement of a receiver that has all of the first `count` packets.
fn acknowledgement(packets: &[Header]) -> Vec<u8> {
    let mut receiver = Receiver::new(SHAPE);
    (0..9).for_each(|_| receiver.grant(Duration::ZERO));
    for header in packets {
        receiver.place(header, 1438).unwrap();
        receiver.arrived(Duration::ZERO, header, 1438);
    }
    let mut out = Vec::new();
    receiver.poll_transmit(ms(100), 1400, &mut out).unwrap();
    out
}

#[test]
fn acknowledgements_of_what_was_never_sent_are_refused() {
    let packet = |transmission, chunk, index| {
        let packet = PacketNumber { chunk, index };
        Header { kind: Kind::Data, transfer: SHAPE.transfer, transmission, packet }
    };
    for (headers, what) in [
        (vec![packet(7, 0, 0)], "a transmission"),
        (vec![packet(0, 0, 5)], "a packet"),
        (vec![packet(0, 3, 0)], "a packet"),
    ] {
        let mut sender = sender(Duration::ZERO);
        sender.push(1 << 20);
        sender.raise_credit(9);
        assert!(sender.poll_transmit(ms(1)).is_some());
        let bytes = acknowledgement(&headers);
        let error = sender.handle_ack(ms(50), &Ack::decode(&bytes).unwrap()).unwrap_err();
        assert_eq!(error.0, what, "{headers:?}");
    }
}

#[test]
fn packets_that_break_the_agreement_are_told_apart() {
    let mut receiver = Receiver::new(SHAPE);
    receiver.grant(Duration::ZERO);
    let header = |transmission, chunk, index| {
        let packet = PacketNumber { chunk, index };
        Header { kind: Kind::Data, transfer: SHAPE.transfer, transmission, packet }
    };
    let invalid =
        |receiver: &Receiver, header: &Header, len| matches!(receiver.place(header, len), Err(Unplaced::Invalid(_)));
    assert!(invalid(&receiver, &header(0, 1, 0), 1438), "no credit");
    assert!(invalid(&receiver, &header(0, CHUNK_END - 1, 0), 1438), "no credit at all");
    assert!(invalid(&receiver, &header(0, 0, SHAPE.chunk_packets()), 1438), "beyond the chunk");
    assert!(invalid(&receiver, &header(0, 0, 0), 1439), "too long");
    assert!(invalid(&receiver, &header(0, 0, 0), 0), "empty");
    let foreign = Header { transfer: 8, ..header(0, 0, 0) };
    assert_eq!(receiver.place(&foreign, 1438), Err(Unplaced::Foreign));
    // The last packet is shorter, and no other is.
    let last = header(0, 0, 3);
    receiver.place(&last, 100).unwrap();
    receiver.arrived(ms(1), &last, 100);
    assert!(invalid(&receiver, &header(1, 0, 4), 1438), "after the last");
    assert!(invalid(&receiver, &header(1, 0, 2), 100), "two last packets");
    assert_eq!(receiver.place(&last, 100), Err(Unplaced::Foreign), "replayed");
    assert!(receiver.announce(0, 3 * 1438).is_err(), "shorter than what has arrived");
    assert!(receiver.announce(0, 3 * 1438 + 99).is_err(), "another last packet");
    assert!(receiver.announce(0, SHAPE.chunk_len + 1).is_err() && receiver.announce(0, 0).is_err());
    assert!(receiver.announce(1, 5).is_err(), "out of order");
    assert_eq!(receiver.announce(0, 3 * 1438 + 100), Ok(None));
    for index in 0..3 {
        let header = header(1 + u64::from(index), 0, index);
        receiver.place(&header, 1438).unwrap();
        let complete = receiver.arrived(ms(2), &header, 1438);
        assert_eq!(complete, (index == 2).then_some(0));
    }
}

#[test]
fn sender_cannot_make_the_receiver_send_more_than_it_sends() {
    for (pause, chunks) in [(Duration::from_micros(20), 64), (ms(1), 2), (ms(10), 1)] {
        let (sent, answered) = longest_statements(pause, chunks);
        assert!(answered <= sent, "{pause:?}: {sent} bytes were sent, and {answered} answered");
        assert!(answered > sent / 10, "{pause:?}: hardly anything was acknowledged");
    }
}

/// Bytes of short packets of which every second one is missing, sent at intervals, and of the acknowledgements.
fn longest_statements(pause: Duration, chunks: u64) -> (usize, usize) {
    let shape = Shape { packet_len: 64, ack_interval: ms(1), ..SHAPE };
    let mut receiver = Receiver::new(shape);
    (0..chunks).for_each(|_| receiver.grant(Duration::ZERO));
    let (mut now, mut transmission, mut sent, mut answered) = (Duration::ZERO, 0, 0, 0);
    for chunk in 0..chunks {
        for index in (0..shape.chunk_packets()).step_by(2) {
            let packet = PacketNumber { chunk, index };
            let header = Header { kind: Kind::Data, transfer: shape.transfer, transmission, packet };
            receiver.place(&header, 64).unwrap();
            receiver.arrived(now, &header, 64);
            (now, transmission, sent) = (now + pause, transmission + 1, sent + 64);
            loop {
                let mut out = Vec::new();
                if receiver.poll_transmit(now, 1200, &mut out).is_none() {
                    break;
                }
                answered += out.len();
            }
        }
    }
    (sent, answered)
}

#[test]
fn peer_that_never_says_what_became_of_the_first_packet_costs_little_memory() {
    let mut sender = sender(Duration::ZERO);
    (0..1000).for_each(|_| assert!(sender.push(1 << 20) < 1000));
    sender.raise_credit(1000);
    // Every statement begins after the first packet, and says that every second packet of the rest is missing. Whatever is
    // sent again is then there.
    let mut receiver = Receiver::new(SHAPE);
    (0..1000).for_each(|_| receiver.grant(Duration::ZERO));
    let (mut now, mut sent) = (Duration::ZERO, 0u64);
    while sent < 300_000 && now < Duration::from_secs(60) {
        now += ms(1);
        sender.handle_timeout(now);
        while let Some(transmit) = sender.poll_transmit(now) {
            sent += 1;
            let header = transmit.header;
            if header.packet == PacketNumber::default() || header.transmission.is_multiple_of(2) {
                continue;
            }
            if receiver.place(&header, transmit.len).is_ok() {
                receiver.arrived(now, &header, transmit.len);
            }
        }
        let mut out = Vec::new();
        while receiver.poll_transmit(now, 1200, &mut out).is_some() {
            // Seven numbers stand before the index at which the statement begins.
            let mut numbers = (0..out.len()).filter(|at| out[*at] < 128);
            let last = numbers.nth(6).unwrap();
            if out[last + 1] == 0 {
                out[last + 1] = 1;
            }
            sender.handle_ack(now, &Ack::decode(&out).unwrap()).unwrap();
            out.clear();
        }
    }
    assert!(sent > 200_000, "{sent}");
    assert!(sender.remembered() < 1 << 18, "{} transmissions are remembered", sender.remembered());
}

#[test]
fn a_peer_that_holds_back_acknowledgements_for_a_round_trip_gets_no_infinite_rate() {
    let mut sender = Sender::new(Duration::ZERO, SHAPE, SendConfig::default(), &Model);
    (0..100).for_each(|_| assert!(sender.push(1 << 20) < 1000));
    sender.raise_credit(100);
    let mut receiver = Receiver::new(SHAPE);
    (0..100).for_each(|_| receiver.grant(Duration::ZERO));
    let (mut now, mut sent) = (Duration::ZERO, 0u64);
    while now < Duration::from_secs(1) {
        now += ms(50);
        let mut headers = Vec::new();
        while let Some(transmit) = sender.poll_transmit(now) {
            (sent, headers) = (sent + 1, [headers, vec![transmit]].concat());
        }
        // It claims that all of the round trip was its own delay.
        for transmit in headers {
            receiver.place(&transmit.header, transmit.len).unwrap();
            receiver.arrived(now, &transmit.header, transmit.len);
        }
        let mut out = Vec::new();
        while receiver.poll_transmit(now + ms(50), 1200, &mut out).is_some() {
            sender.handle_ack(now + ms(50), &Ack::decode(&out).unwrap()).unwrap();
            out.clear();
        }
    }
    assert!(sender.rate().is_finite() && sender.rate() < 100e9, "{}", sender.rate());
    assert!(sent < 70_000, "{sent} packets were sent in a second");
}

#[test]
fn impossible_shapes_are_refused_with_the_field() {
    for (shape, field) in [
        (Shape { packet_len: 1, ..SHAPE }, "packet"),
        (Shape { packet_len: 70_000, ..SHAPE }, "packet"),
        (Shape { chunk_len: 1000, ..SHAPE }, "chunk"),
        (Shape { chunk_len: u32::MAX, ..SHAPE }, "chunk"),
        (Shape { ack_packets: 0, ..SHAPE }, "ack"),
        (Shape { ack_interval: Duration::from_secs(3600), ..SHAPE }, "ack interval"),
        (Shape { ack_interval: Duration::ZERO, ..SHAPE }, "ack interval"),
    ] {
        assert_eq!(shape.check().unwrap_err().field, field);
    }
    assert_eq!(SHAPE.check(), Ok(()));
}
