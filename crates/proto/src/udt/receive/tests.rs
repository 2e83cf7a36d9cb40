//! Tests of the receiving half: streams, messages, drops, advertised room.

use super::*;

const FIRST: Seq = Seq::MAX;
const NOW: Duration = Duration::from_secs(1);

fn receiver(kind: Kind, limit: u32) -> Receiver {
    Receiver::new(NOW, kind, FIRST, limit, 8, 8)
}

fn place(number: u32, first: bool, last: bool, in_order: bool) -> MessagePosition {
    MessagePosition::new(MessageNumber::new(number), first, last, in_order)
}

fn arrive(receiver: &mut Receiver, offset: u32, place: MessagePosition, payload: &[u8]) {
    receiver.data(NOW, &Rtt::new(), FIRST.plus(offset), place, payload, Arrival::Alone);
}

fn message(receiver: &mut Receiver) -> Option<Vec<u8>> {
    let mut out = vec![0; receiver.message_len()?];
    receiver.read_message(&mut out);
    Some(out)
}

#[test]
fn stream_is_read_in_pieces_across_packets() {
    let mut receiver = receiver(Kind::Stream, 8);
    arrive(&mut receiver, 2, MessagePosition::NONE, b"third");
    assert_eq!(receiver.chunk(), b"");
    arrive(&mut receiver, 0, MessagePosition::NONE, b"first");
    receiver.consume(2);
    assert_eq!(receiver.chunk(), b"rst");
    receiver.consume(3);
    assert_eq!(receiver.chunk(), b"");
    receiver.consume(1);
    arrive(&mut receiver, 1, MessagePosition::NONE, b"");
    receiver.consume(0);
    receiver.skip_empty();
    assert_eq!(receiver.chunk(), b"third");
}

#[test]
fn ordered_messages_wait_for_earlier_ones_and_unordered_do_not() {
    let mut receiver = receiver(Kind::Message, 16);
    arrive(&mut receiver, 1, place(2, true, false, true), b"ordered ");
    arrive(&mut receiver, 2, place(2, false, true, true), b"two");
    arrive(&mut receiver, 3, place(3, true, true, false), b"free");
    assert_eq!(message(&mut receiver).as_deref(), Some(&b"free"[..]));
    assert_eq!(message(&mut receiver), None);
    arrive(&mut receiver, 0, place(1, true, true, false), b"late");
    assert_eq!(message(&mut receiver).as_deref(), Some(&b"late"[..]));
    assert_eq!(message(&mut receiver).as_deref(), Some(&b"ordered two"[..]));
    assert_eq!(message(&mut receiver), None);
    assert_eq!(receiver.ring.room(), 16);
}

#[test]
fn dropped_message_unblocks_later_ones() {
    let mut receiver = receiver(Kind::Message, 16);
    arrive(&mut receiver, 1, place(1, false, false, true), b"part");
    arrive(&mut receiver, 3, place(2, true, true, true), b"next");
    assert_eq!(message(&mut receiver), None);
    // Drops beyond the buffer, with a reversed range, or of a complete message are ignored.
    receiver.drop_message(NOW, MessageNumber::new(1), FIRST, FIRST.plus(16));
    receiver.drop_message(NOW, MessageNumber::new(1), FIRST.plus(2), FIRST);
    receiver.drop_message(NOW, MessageNumber::new(2), FIRST.plus(3), FIRST.plus(3));
    assert_eq!(receiver.ring.next(), FIRST);
    receiver.drop_message(NOW, MessageNumber::new(1), FIRST, FIRST.plus(2));
    assert_eq!(receiver.ring.next(), FIRST.plus(4));
    assert_eq!(message(&mut receiver).as_deref(), Some(&b"next"[..]));
    assert_eq!(receiver.ring.room(), 16);
}

#[test]
fn drop_is_ignored_in_stream_mode() {
    let mut receiver = receiver(Kind::Stream, 16);
    arrive(&mut receiver, 1, MessagePosition::NONE, b"b");
    receiver.drop_message(NOW, MessageNumber::FIRST, FIRST, FIRST);
    assert_eq!(receiver.ring.next(), FIRST);
}

#[test]
fn misnumbered_messages_are_not_delivered() {
    let mut receiver = receiver(Kind::Message, 16);
    arrive(&mut receiver, 0, place(1, true, false, false), b"a");
    arrive(&mut receiver, 1, place(2, true, false, false), b"b");
    arrive(&mut receiver, 2, place(1, false, false, false), b"c");
    arrive(&mut receiver, 5, place(1, false, false, false), b"x");
    arrive(&mut receiver, 3, place(1, false, true, false), b"d");
    assert_eq!(message(&mut receiver), None);
}

#[test]
fn room_is_advertised_after_a_full_buffer_is_read() {
    let mut receiver = receiver(Kind::Stream, 8);
    let mut rtt = Rtt::new();
    rtt.measured(Duration::from_millis(10));
    let room = |body| match body {
        Some(Body::Ack { report: AckReport { path: Some(path), .. }, .. }) => Some(path.room),
        _ => None,
    };
    (0..8).for_each(|n| arrive(&mut receiver, n, MessagePosition::NONE, b"12345678"));
    arrive(&mut receiver, 8, MessagePosition::NONE, b"too much");
    assert_eq!(receiver.counters.no_room, 1);
    assert_eq!(room(receiver.acknowledgement(NOW + SYN, &rtt)), Some(2));
    (0..3).for_each(|_| receiver.consume(8));
    assert_eq!(room(receiver.acknowledgement(NOW + SYN, &rtt)), None);
    receiver.consume(8);
    assert_eq!(receiver.due(), Some(Duration::ZERO));
    assert_eq!(room(receiver.acknowledgement(NOW + SYN, &rtt)), Some(4));
}

#[test]
fn packets_that_had_no_room_are_reported_once_there_is_room() {
    let mut receiver = receiver(Kind::Stream, 8);
    receiver.offered(64);
    let report = |receiver: &mut Receiver| {
        let mut out = [0; 64];
        receiver.loss_report(NOW, &Rtt::new(), &mut out).map(|len| out[..len].to_vec())
    };
    for n in 0..20 {
        arrive(&mut receiver, n, MessagePosition::NONE, b"12345678");
    }
    assert!(receiver.due() > Some(NOW) && report(&mut receiver).is_none());
    (0..3).for_each(|_| receiver.consume(8));
    assert!(receiver.due() > Some(NOW), "three places are not worth a report");
    receiver.consume(8);
    assert_eq!(receiver.due(), Some(Duration::ZERO));
    let range = |first: u32, last: u32| {
        let mut out = [0; 64];
        let mut writer = LossWriter::new(&mut out);
        writer.push(FIRST.plus(first), FIRST.plus(last));
        let len = writer.len();
        out[..len].to_vec()
    };
    assert_eq!(report(&mut receiver), Some(range(8, 11)));
    receiver.widen(64);
    assert_eq!(report(&mut receiver), Some(range(12, 19)));
    for n in 8..20 {
        arrive(&mut receiver, n, MessagePosition::NONE, b"12345678");
    }
    assert_eq!((receiver.ring.next(), receiver.refused_end, report(&mut receiver)), (FIRST.plus(20), None, None));
}

#[test]
fn packet_that_is_too_long_is_not_waited_for() {
    let mut receiver = receiver(Kind::Stream, 8);
    arrive(&mut receiver, 5, MessagePosition::NONE, b"123456789");
    assert_eq!((receiver.counters.no_room, receiver.refused_end, receiver.ring.end()), (1, None, FIRST));
}

#[test]
fn packet_far_beyond_what_was_offered_is_not_waited_for() {
    let mut receiver = receiver(Kind::Stream, 8);
    receiver.offered(64);
    arrive(&mut receiver, 1 << 20, MessagePosition::NONE, b"12345678");
    assert_eq!((receiver.counters.no_room, receiver.refused_end), (1, None));
    arrive(&mut receiver, 63, MessagePosition::NONE, b"12345678");
    assert_eq!(receiver.refused_end, Some(FIRST.plus(64)));
}
