//! Feeds any bytes to the packet decoder; what decodes must encode to what decodes the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use phoebus_proto::udt::packet::{Body, Packet};

fuzz_target!(|data: &[u8]| {
    let Ok(packet) = Packet::decode(data) else { return };
    let mut out = vec![0; data.len() + 8];
    let len = packet.encode(&mut out).expect("what was decoded fits");
    assert_eq!(Packet::decode(&out[..len]).expect("what was encoded decodes"), packet);
    if let Body::Nak(list) = packet.body {
        assert!(list.ranges().count() <= data.len() / 4);
    }
});
