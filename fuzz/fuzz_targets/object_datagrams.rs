//! Feeds any bytes to both ends of an object transfer, as datagrams whose seals were intact. Neither end panics, keeps more
//! than its buffers, or counts as complete what never came.
#![no_main]

use libfuzzer_sys::fuzz_target;
use phoebus_proto::control::Fixed;
use phoebus_proto::object::packet::Header;
use phoebus_proto::object::{Ack, Receiver, SendConfig, Sender, Shape};
use std::time::Duration;

const SHAPE: Shape =
    Shape { transfer: 0, packet_len: 64, chunk_len: 640, ack_packets: 4, ack_interval: Duration::from_millis(10) };

fuzz_target!(|data: &[u8]| {
    let mut receiver = Receiver::new(SHAPE);
    (0..3).for_each(|_| receiver.grant(Duration::ZERO));
    let mut sender =
        Sender::new(Duration::ZERO, SHAPE, SendConfig::default(), &Fixed { bits_per_second: 1_000_000_000 });
    let (mut sent, mut complete) = (0, 0);
    // The first byte of a piece says how long it is, and moves the clock.
    let (mut rest, mut now) = (data, Duration::ZERO);
    while let [len, after @ ..] = rest {
        let piece = &after[..usize::from(*len).min(after.len())];
        rest = &after[piece.len()..];
        now += Duration::from_millis(u64::from(*len));
        match len % 5 {
            0 => _ = sender.push(u32::from(*len) + 1),
            1 => sender.raise_credit(u64::from(*len)),
            2 => _ = receiver.announce(receiver.announced(), u32::from(*len) * 3),
            _ => {}
        }
        if let Some((header, body)) = Header::decode(piece)
            && receiver.place(&header, body.len()).is_ok()
        {
            complete += u64::from(receiver.arrived(now, &header, body.len()).is_some());
        }
        if let Some((header, body)) = Header::decode(piece)
            && let Ok(Some((chunk, _))) = receiver.place_parity(&header, body.len())
        {
            receiver.parity_arrived(now, &header, body.len());
            let count = receiver.missing_count(chunk).filter(|count| *count > 0);
            assert_eq!(receiver.missing(chunk).map(|missing| missing.len() as u32), count);
        }
        if let Some(ack) = Ack::decode(piece) {
            let _ = sender.handle_ack(now, &ack);
        }
        sender.handle_timeout(now);
        while sender.poll_transmit(now).is_some() {
            sent += 1;
        }
        while sender.poll_arrived().is_some() {}
        while receiver.poll_transmit(now, 1200, &mut Vec::new()).is_some() {}
    }
    let counters = sender.counters();
    assert!(counters.arrived <= counters.needed && counters.sent == sent);
    assert!(receiver.complete() <= receiver.announced() && complete <= receiver.counters().packets);
});
