//! The sending half: packets out of bytes, repairs, time-outs, messages that are given up.

use super::*;
use crate::udt::rtt::Rtt;

const FIRST: Seq = Seq::MAX;

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// 10 ms, overdue after 10 + 4·5 ms, a time-out after 50 ms.
fn rtt() -> Rtt {
    let mut rtt = Rtt::new();
    rtt.measured(ms(10));
    rtt
}

fn sender(kind: Kind) -> Sender {
    Sender::new(kind, FIRST, 4, 64, 32)
}

/// Sends whatever may go, as offsets from the first packet.
fn send(sender: &mut Sender, now: Duration, window: u32) -> Vec<i32> {
    let mut sent = vec![];
    while let Some(next) = sender.peek(now, window) {
        match next {
            Next::Packet { index, .. } => sent.push(sender.take(now, index).0.since(FIRST)),
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
fn small_writes_fill_packets_until_they_go() {
    let mut sender = sender(Kind::Stream);
    assert_eq!((sender.write(b"ab", 64), sender.write(b"cde", 64), sender.room(64)), (2, 3, 62 * 4 + 3));
    let Some(Next::Packet { index: 0, len: 4 }) = sender.peek(ms(0), 9) else { panic!("a full packet") };
    assert_eq!(sender.take(ms(0), 0).2, b"abcd");
    sender.write(b"f", 64);
    assert_eq!(sender.take(ms(0), 1).2, b"ef");
    assert_eq!(sender.write(b"g", 64), 1, "what has gone is not added to");
    assert_eq!(sender.write(&[0; 1000], 64), 3 + 61 * 4);
    assert_eq!(sender.room(64), 0);
}

#[test]
fn windows_hold_new_packets_back_and_not_repairs() {
    let mut sender = sender(Kind::Stream);
    sender.write(&[0; 64 * 4], 64);
    assert_eq!(send(&mut sender, ms(0), 8), (0..8).collect::<Vec<_>>());
    assert!(!sender.has_next(8));
    // Of packets up to 4 it is now known that 0, 1 and 4 have arrived.
    assert_eq!(lost(&mut sender, ms(10), 2, 3), 2);
    assert_eq!(sender.under_way(), 3);
    assert_eq!(send(&mut sender, ms(10), 8), [2, 3, 8, 9, 10, 11, 12]);
    assert_eq!(send(&mut sender, ms(10), 1000).last(), Some(&31), "the peer has room for 32");
    let heard = sender.acknowledged(ms(20), &acked(FIRST.plus(8), Some(100))).unwrap();
    assert_eq!(heard.arrived, 5, "of the eight, three were known to have arrived");
    assert_eq!(send(&mut sender, ms(20), 1000), (32..64).collect::<Vec<_>>());
    assert!(sender.acknowledged(ms(30), &acked(FIRST.plus(64), None)).is_some());
    assert!(sender.is_empty());
}

#[test]
fn what_has_arrived_behind_a_missing_packet_is_not_under_way() {
    let mut sender = sender(Kind::Stream);
    sender.write(&[0; 40], 64);
    send(&mut sender, ms(0), 64);
    let ack = |next, end| AckReport { end: Some(FIRST.plus(end)), ..acked(FIRST.plus(next), None) };
    assert_eq!(sender.acknowledged(ms(10), &ack(2, 6)).unwrap().arrived, 6);
    assert_eq!((sender.under_way(), sender.is_empty()), (4, false));
    assert_eq!(sender.acknowledged(ms(11), &ack(2, 8)).unwrap().arrived, 2);
    assert_eq!(sender.acknowledged(ms(12), &ack(2, 8)), None, "nothing new");
    assert_eq!(sender.acknowledged(ms(13), &ack(2, 11)), None, "never sent");
    assert_eq!(lost(&mut sender, ms(14), 2, 2), 1);
    assert_eq!(send(&mut sender, ms(14), 64), [2]);
    assert_eq!(sender.acknowledged(ms(24), &ack(10, 10)).unwrap().arrived, 2);
    assert!(sender.is_empty());
}

#[test]
fn reports_that_cannot_be_true_change_nothing() {
    let mut sender = sender(Kind::Stream);
    sender.write(&[0; 40], 64);
    send(&mut sender, ms(0), 5);
    assert_eq!(lost(&mut sender, ms(10), 4, 5), 0, "never sent");
    assert_eq!(lost(&mut sender, ms(10), 3, 1), 0, "backwards");
    assert_eq!(sender.acknowledged(ms(10), &acked(FIRST.plus(6), None)), None);
    assert_eq!(sender.counters.bogus, 3);
    assert_eq!(lost(&mut sender, ms(10), 1, 1), 1);
    assert_eq!(lost(&mut sender, ms(10), 1, 1), 0, "known");
    assert_eq!(send(&mut sender, ms(11), 0), [1]);
    assert_eq!(lost(&mut sender, ms(12), 1, 1), 0, "not missed yet");
    assert_eq!(lost(&mut sender, ms(22), 1, 1), 1);
    // What is acknowledged before it goes again does not.
    sender.acknowledged(ms(23), &acked(FIRST.plus(3), None));
    assert_eq!((send(&mut sender, ms(24), 0), sender.lost()), (vec![], 0));
}

#[test]
fn a_timeout_shows_the_ends_and_then_more_of_what_may_be_missing() {
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
    // Of a peer that is silent nothing is learned by sending more.
    now = sender.timeout_at(&rtt()).unwrap();
    sender.on_timeout(now, &rtt(), false);
    assert_eq!(send(&mut sender, now, 32), [0, 9]);
    for _ in 0..9 {
        sender.on_timeout(now, &rtt(), false);
    }
    assert_eq!(sender.timeout_at(&rtt()), Some(now + Sender::TIMEOUT_MAX));
}

#[test]
fn messages_are_given_up_whole() {
    let mut sender = sender(Kind::Message);
    let options = |ttl| MessageOptions { in_order: true, time_to_live: ttl };
    assert_eq!(sender.send(ms(0), b"", options(None)), Err(SendError::Empty));
    let long = SendError::TooLong { len: 257, max: 256 };
    assert_eq!(sender.send(ms(0), &[0; 257], options(None)), Err(long));
    sender.send(ms(0), b"first message", options(Some(ms(30)))).unwrap();
    sender.send(ms(0), b"brief", options(Some(ms(30)))).unwrap();
    sender.send(ms(0), b"last", options(None)).unwrap();
    assert_eq!(send(&mut sender, ms(0), 3), [0, 1, 2]);
    // Of the first message one packet has not gone, of the second none: it takes no numbers.
    assert_eq!(lost(&mut sender, ms(40), 1, 1), 1);
    assert_eq!(send(&mut sender, ms(40), 3), [-1, 0, 3, 4]);
    assert_eq!(sender.counters.dropped_messages, 2);
    // The word of it was lost.
    assert_eq!(lost(&mut sender, ms(60), 0, 3), 4);
    assert_eq!(send(&mut sender, ms(60), 9), [-1, 0, 3]);
    assert!(sender.acknowledged(ms(70), &acked(FIRST.plus(5), None)).is_some());
    assert!(sender.is_empty());
}
