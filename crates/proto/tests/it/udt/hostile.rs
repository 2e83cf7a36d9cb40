//! Tests with hostile peers: whatever a peer or an observer of its packets sends, the connection does not panic, hang,
//! or deliver bytes that were not sent.

use phoebus_proto::udt::packet::{AckReport, Body, HEADER_LEN, MessagePosition, Packet, PathReport};
use phoebus_proto::udt::{
    Arrival, Config, Connection, Endpoint, Kind, LossList, LossWriter, MessageNumber, MessageOptions, Route, Seq,
};
use proptest::prelude::*;
use std::sync::Arc;
use std::time::Duration;

/// Both ends of a connection that was opened at time zero, and the initial sequence number of both.
pub(crate) fn pair(kind: Kind) -> (Connection, Connection, Seq) {
    let config = Arc::new(Config { kind, ..Config::default() });
    let (mut near, mut far) = (Endpoint::new([1; 32]), Endpoint::new([2; 32]));
    far.listen(Some(config.clone())).unwrap();
    let (here, there) = ("127.0.0.1:1".parse().unwrap(), "127.0.0.1:2".parse().unwrap());
    let mut client = near.connect(Duration::ZERO, there, config).unwrap();
    let (mut buf, mut answer) = ([0; 1500], [0; 64]);
    loop {
        let len = client.poll_transmit(Duration::ZERO, &mut buf).unwrap().len;
        match far.route(Duration::ZERO, here, &buf[..len], &mut answer) {
            Route::Answer(len) => client.handle(Duration::ZERO, &answer[..len], Arrival::Alone),
            Route::Incoming(incoming) => {
                let mut server = far.accept(Duration::ZERO, &incoming).unwrap();
                let len = server.poll_transmit(Duration::ZERO, &mut buf).unwrap().len;
                client.handle(Duration::ZERO, &buf[..len], Arrival::Alone);
                assert!(client.is_open() && server.is_open());
                let Ok(Packet { body: Body::Handshake(agreed), .. }) = Packet::decode(&buf[..len]) else {
                    panic!("no handshake")
                };
                return (client, server, agreed.initial_seq);
            }
            other => panic!("{other:?}"),
        }
    }
}

/// A packet of the hostile peer. Numbers are relative to the initial sequence number.
#[derive(Debug, Clone)]
enum Forged {
    Ack { ahead: i32, room: u32, rtt: u32 },
    Nak(Vec<(i32, i32)>),
    Data { ahead: i32, len: usize },
    Drop { message: u32, first: i32, last: i32 },
    Bytes(Vec<u8>),
    Nothing,
}

fn forged() -> impl Strategy<Value = Forged> {
    let near = || prop_oneof![-3i32..40, any::<i32>()];
    prop_oneof![
        (near(), any::<u32>(), any::<u32>()).prop_map(|(ahead, room, rtt)| Forged::Ack { ahead, room, rtt }),
        prop::collection::vec((near(), near()), 1..8).prop_map(Forged::Nak),
        (near(), 0usize..1456).prop_map(|(ahead, len)| Forged::Data { ahead, len }),
        (0u32..4, near(), near()).prop_map(|(message, first, last)| Forged::Drop { message, first, last }),
        prop::collection::vec(any::<u8>(), 0..64).prop_map(Forged::Bytes),
        Just(Forged::Nothing),
    ]
}

fn at(base: Seq, ahead: i32) -> Seq {
    base.plus(ahead as u32)
}

fn encode(forged: &Forged, base: Seq, destination: u32, out: &mut [u8]) -> usize {
    let mut list = [0; 64];
    let body = match forged {
        Forged::Ack { ahead, room, rtt } => {
            let path = Some(PathReport { rtt: *rtt, rtt_var: *rtt, room: *room });
            Body::Ack { number: 3, report: AckReport { next: at(base, *ahead), path, rates: None, end: None } }
        }
        Forged::Nak(ranges) => {
            let mut writer = LossWriter::new(&mut list);
            let fitting =
                ranges.iter().take_while(|(first, last)| writer.push(at(base, *first), at(base, *last))).count();
            assert_eq!(fitting, ranges.len());
            let len = writer.len();
            Body::Nak(LossList::new(&list[..len]).unwrap())
        }
        Forged::Data { ahead, len } => {
            let place =
                MessagePosition::new(MessageNumber::new(*ahead as u32 % 4), ahead % 2 == 0, ahead % 3 == 0, false);
            Body::Data { seq: at(base, *ahead), place, payload: &[0; 1456][..*len] }
        }
        Forged::Drop { message, first, last } => {
            let message = MessageNumber::new(*message);
            Body::Drop { message, first: at(base, *first), last: at(base, *last) }
        }
        Forged::Bytes(bytes) => {
            out[..bytes.len()].copy_from_slice(bytes);
            if bytes.len() >= HEADER_LEN {
                out[12..16].copy_from_slice(&destination.to_be_bytes());
            }
            return bytes.len();
        }
        Forged::Nothing => Body::KeepAlive,
    };
    Packet { timestamp: 0, destination, body }.encode(out).unwrap()
}

proptest! {
    #[test]
    fn forged_packets_cause_no_panic_no_hang_and_no_wrong_bytes(
        messages: bool,
        packets in prop::collection::vec((0u64..50_000, forged(), any::<bool>()), 1..200),
    ) {
        let (mut honest, _, base) = pair(if messages { Kind::Message } else { Kind::Stream });
        let (mut now, mut buf, mut packet) = (Duration::ZERO, vec![0; 10_000], [0; 1500]);
        let mut written = 0;
        for (micros, forged, write) in packets {
            now += Duration::from_micros(micros);
            if write {
                written += honest.write(&[7; 5000]);
                let options = MessageOptions { in_order: false, time_to_live: Some(Duration::from_millis(30)) };
                let _ = honest.send_message(now, &[8; 5000], options);
            }
            let len = encode(&forged, base, honest.socket(), &mut packet);
            honest.handle(now, &packet[..len], Arrival::Alone);
            honest.handle_timeout(now);
            let mut sent = 0;
            while let Some(transmit) = honest.poll_transmit(now, &mut buf) {
                prop_assert!(transmit.len <= buf.len() && transmit.segment <= 1472);
                sent += 1;
                prop_assert!(sent < 1000, "sends for ever");
            }
            prop_assert!(honest.poll_timeout().is_none_or(|at| at > now), "{:?} at {now:?}", honest.poll_timeout());
            let n = honest.chunk().len();
            prop_assert!(honest.chunk().iter().all(|byte| *byte == 0));
            honest.consume(n);
            if let Some(len) = honest.message_len() {
                honest.read_message(&mut vec![1; len]).unwrap();
            }
        }
        prop_assert!(honest.stats().bytes_acknowledged <= written as u64 + 5000 * 200);
    }
}

#[test]
fn acknowledgement_of_unsent_packets_is_ignored() {
    let (mut honest, _, seq) = pair(Kind::Stream);
    honest.write(b"x");
    assert!(honest.poll_transmit(Duration::ZERO, &mut [0; 1500]).is_some());
    let socket = honest.socket();
    let mut packet = [0; 64];
    let report = AckReport { next: seq.plus(2), path: None, rates: None, end: None };
    let len = Packet { timestamp: 0, destination: socket, body: Body::Ack { number: 0, report } }.encode(&mut packet);
    honest.handle(Duration::ZERO, &packet[..len.unwrap()], Arrival::Alone);
    assert!(honest.is_open() && !honest.is_flushed());
    assert_eq!(honest.stats().ignored, 1);
}

#[test]
fn packets_without_payload_hold_up_nothing() {
    let (mut honest, _, base) = pair(Kind::Stream);
    let send = |honest: &mut Connection, ahead, len| {
        let mut packet = [0; 1500];
        let len = encode(&Forged::Data { ahead, len }, base, honest.socket(), &mut packet);
        honest.handle(Duration::ZERO, &packet[..len], Arrival::Alone);
    };
    send(&mut honest, 0, 0);
    send(&mut honest, 1, 0);
    assert_eq!((honest.readable_packets(), honest.chunk().len()), (0, 0));
    // Behind a gap, they come to the front when it is filled.
    send(&mut honest, 3, 0);
    send(&mut honest, 4, 9);
    send(&mut honest, 2, 5);
    assert_eq!(honest.chunk().len(), 5);
    let mut read = [1; 100];
    assert_eq!((honest.read(&mut read), honest.readable_packets()), (14, 0));
}
