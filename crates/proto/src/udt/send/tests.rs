//! Tests of the sending half: packetization, retransmission, time-outs, dropped messages.

use super::*;
use crate::udt::rtt::Rtt;

const FIRST: Seq = Seq::MAX;

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// A round-trip time of 10 ms: answers are overdue after 10 + 4·5 ms, the time-out is 50 ms.
fn rtt() -> Rtt {
    let mut rtt = Rtt::new();
    rtt.measured(ms(10));
    rtt
}

fn sender(kind: Kind) -> Sender {
    Sender::new(kind, FIRST, 4, 64, 32)
}

/// Sends everything that the windows allow. Returns the packets as offsets from the first one.
fn send(sender: &mut Sender, now: Duration, window: u32) -> Vec<i32> {
    let mut sent = vec![];
    while let Some(next) = sender.peek(now, window) {
        match next {
            Next::Packet { index, .. } => sent.push(sender.transmit(now, index).0.since(FIRST)),
            Next::Drop { first, last, .. } => sent.extend([-1, first.since(FIRST), last.since(FIRST)]),
        }
    }
    sent
}

fn acked(next: Seq, room: Option<u32>) -> AckReport {
    let path = room.map(|room| PathReport { rtt: 10_000, rtt_var: 5000, room });
    AckReport { next, path, rates: None, end: None }
}

fn lost(sender: &mut Sender, now: Duration, first: u32, last: u32) -> u32 {
    sender.reported_lost(now, &rtt(), std::iter::once((FIRST.plus(first), FIRST.plus(last)))).lost
}

#[test]
fn small_writes_fill_packets_until_they_are_sent() {
    let mut sender = sender(Kind::Stream);
    assert_eq!((sender.write(b"ab", 64), sender.write(b"cde", 64), sender.room(64)), (2, 3, 62 * 4 + 3));
    let Some(Next::Packet { index: 0, len: 4 }) = sender.peek(ms(0), 9) else { panic!("a full packet") };
    assert_eq!(sender.transmit(ms(0), 0).2, b"abcd");
    sender.write(b"f", 64);
    assert_eq!(sender.transmit(ms(0), 1).2, b"ef");
    assert_eq!(sender.write(b"g", 64), 1, "a sent packet does not grow");
    assert_eq!(sender.write(&[0; 1000], 64), 3 + 61 * 4);
    assert_eq!(sender.room(64), 0);
}

#[test]
fn windows_limit_new_packets_and_not_retransmissions() {
    let mut sender = sender(Kind::Stream);
    sender.write(&[0; 64 * 4], 64);
    assert_eq!(send(&mut sender, ms(0), 8), (0..8).collect::<Vec<_>>());
    assert!(!sender.has_next(8));
    // The report of 2 and 3 implies that 0, 1 and 4 have arrived.
    assert_eq!(lost(&mut sender, ms(10), 2, 3), 2);
    assert_eq!(sender.in_flight(), 3);
    assert_eq!(send(&mut sender, ms(10), 8), [2, 3, 8, 9, 10, 11, 12]);
    assert_eq!(send(&mut sender, ms(10), 1000).last(), Some(&31), "the peer has room for 32");
    let outcome = sender.acknowledged(ms(20), &acked(FIRST.plus(8), Some(100))).unwrap();
    assert_eq!(outcome.arrived, 5, "of the eight, three were known to have arrived");
    assert_eq!(send(&mut sender, ms(20), 1000), (32..64).collect::<Vec<_>>());
    assert!(sender.acknowledged(ms(30), &acked(FIRST.plus(64), None)).is_some());
    assert!(sender.is_empty());
}

#[test]
fn packets_that_arrived_after_a_gap_are_not_in_flight() {
    let mut sender = sender(Kind::Stream);
    sender.write(&[0; 40], 64);
    send(&mut sender, ms(0), 64);
    let ack = |next, end| AckReport { end: Some(FIRST.plus(end)), ..acked(FIRST.plus(next), None) };
    assert_eq!(sender.acknowledged(ms(10), &ack(2, 6)).unwrap().arrived, 6);
    assert_eq!((sender.in_flight(), sender.is_empty()), (4, false));
    assert_eq!(sender.acknowledged(ms(11), &ack(2, 8)).unwrap().arrived, 2);
    assert_eq!(sender.acknowledged(ms(12), &ack(2, 8)), None, "nothing new");
    assert_eq!(sender.acknowledged(ms(13), &ack(2, 11)), None, "never sent");
    assert_eq!(lost(&mut sender, ms(14), 2, 2), 1);
    assert_eq!(send(&mut sender, ms(14), 64), [2]);
    assert_eq!(sender.acknowledged(ms(24), &ack(10, 10)).unwrap().arrived, 2);
    assert!(sender.is_empty());
}

#[test]
fn impossible_reports_change_nothing() {
    let mut sender = sender(Kind::Stream);
    sender.write(&[0; 40], 64);
    send(&mut sender, ms(0), 5);
    assert_eq!(lost(&mut sender, ms(10), 4, 5), 0, "never sent");
    assert_eq!(lost(&mut sender, ms(10), 3, 1), 0, "reversed range");
    assert_eq!(sender.acknowledged(ms(10), &acked(FIRST.plus(6), None)), None);
    assert_eq!(sender.counters.bogus, 3);
    assert_eq!(lost(&mut sender, ms(10), 1, 1), 1);
    assert_eq!(lost(&mut sender, ms(10), 1, 1), 0, "marked already");
    assert_eq!(send(&mut sender, ms(11), 0), [1]);
    assert_eq!(lost(&mut sender, ms(12), 1, 1), 0, "retransmitted too recently");
    assert_eq!(lost(&mut sender, ms(22), 1, 1), 1);
    // A packet that is acknowledged before its retransmission is not sent again.
    sender.acknowledged(ms(23), &acked(FIRST.plus(3), None));
    assert_eq!((send(&mut sender, ms(24), 0), sender.lost()), (vec![], 0));
}

#[test]
fn consecutive_timeouts_retransmit_twice_as_many_packets_each() {
    let mut sender = sender(Kind::Stream);
    sender.write(&[0; 40], 64);
    send(&mut sender, ms(0), 32);
    assert_eq!(sender.timeout_at(&rtt()), Some(ms(50)));
    let mut resent = vec![];
    let mut now = ms(0);
    for _ in 0..4 {
        now = sender.timeout_at(&rtt()).unwrap();
        sender.on_timeout(now, &rtt(), true);
        resent.push(send(&mut sender, now, 32));
    }
    assert_eq!(now, ms(50 + 100 + 200 + 400));
    assert_eq!(resent, [vec![0, 9], vec![0, 1, 9], vec![0, 1, 2, 3, 9], vec![0, 1, 2, 3, 4, 5, 6, 7, 9]]);
    // If the peer is silent, only the first and the last packet are retransmitted.
    now = sender.timeout_at(&rtt()).unwrap();
    sender.on_timeout(now, &rtt(), false);
    assert_eq!(send(&mut sender, now, 32), [0, 9]);
    for _ in 0..9 {
        sender.on_timeout(now, &rtt(), false);
    }
    assert_eq!(sender.timeout_at(&rtt()), Some(now + Sender::TIMEOUT_MAX));
}

#[test]
fn expired_messages_are_dropped_as_a_whole() {
    let mut sender = sender(Kind::Message);
    let options = |ttl| MessageOptions { in_order: true, time_to_live: ttl };
    assert_eq!(sender.send(ms(0), b"", options(None)), Err(SendError::Empty));
    let long = SendError::TooLong { len: 257, max: 256 };
    assert_eq!(sender.send(ms(0), &[0; 257], options(None)), Err(long));
    sender.send(ms(0), b"first message", options(Some(ms(30)))).unwrap();
    sender.send(ms(0), b"brief", options(Some(ms(30)))).unwrap();
    sender.send(ms(0), b"last", options(None)).unwrap();
    assert_eq!(send(&mut sender, ms(0), 3), [0, 1, 2]);
    // The first message was sent but for one packet. The second was not sent at all and uses no sequence numbers.
    assert_eq!(lost(&mut sender, ms(40), 1, 1), 1);
    assert_eq!(send(&mut sender, ms(40), 3), [-1, 0, 3, 4]);
    assert_eq!(sender.counters.dropped_messages, 2);
    // The drop notice was lost and is sent again.
    assert_eq!(lost(&mut sender, ms(60), 0, 3), 4);
    assert_eq!(send(&mut sender, ms(60), 9), [-1, 0, 3]);
    assert!(sender.acknowledged(ms(70), &acked(FIRST.plus(5), None)).is_some());
    assert!(sender.is_empty());
}
