//! Feeds any headers to the framed mode, and lets this side shut down and confirm at any point.
#![no_main]

use libfuzzer_sys::fuzz_target;
use phoebus_proto::session::frame::{Exchange, HEADER_LEN, Role};

fuzz_target!(|data: &[u8]| {
    let mut exchange = Exchange::new(Role::Acceptor);
    for chunk in data.chunks_exact(HEADER_LEN + 1) {
        match chunk[0] % 4 {
            0 => drop(exchange.data(u32::from(chunk[1]))),
            1 => drop(exchange.shutdown()),
            2 => drop(exchange.ack()),
            _ => {}
        }
        let header = chunk[1..].try_into().expect("the chunk has this length");
        let (_, before) = exchange.bytes();
        if exchange.receive(header).is_err() {
            return;
        }
        assert!(exchange.bytes().1 >= before);
        if exchange.reusable() {
            assert!(exchange.shutdown_sent() && exchange.shutdown_received());
        }
    }
});
