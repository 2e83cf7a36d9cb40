//! Feeds any headers to the framed mode, and lets this side shut down, confirm and give up at any point.
#![no_main]

use libfuzzer_sys::fuzz_target;
use phoebus_proto::session::frame::{FrameState, HEADER_LEN, Role};

fuzz_target!(|data: &[u8]| {
    let mut exchange = FrameState::new(Role::Acceptor);
    for chunk in data.chunks_exact(HEADER_LEN + 1) {
        match chunk[0] % 5 {
            0 => drop(exchange.data(u32::from(chunk[1]))),
            1 => drop(exchange.shutdown()),
            2 => drop(exchange.ack()),
            3 => drop(exchange.reset(u32::from(chunk[1]))),
            _ => {}
        }
        let header = chunk[1..].try_into().expect("the chunk has this length");
        let (_, before) = exchange.bytes();
        if exchange.receive(header).is_err() {
            return;
        }
        assert!(exchange.bytes().1 >= before);
        if exchange.reusable() {
            assert!(exchange.reset_received() || exchange.shutdown_sent() && exchange.shutdown_received());
        }
    }
});
