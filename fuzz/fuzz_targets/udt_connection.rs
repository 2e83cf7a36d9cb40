//! Lets a peer that knows the socket say anything at any time to an open connection that also writes and reads.
#![no_main]

use libfuzzer_sys::fuzz_target;
use phoebus_proto::udt::packet::{Body, Packet};
use phoebus_proto::udt::{Arrival, Config, Connection, Endpoint, Kind, Route};
use std::sync::Arc;
use std::time::Duration;

fuzz_target!(|data: &[u8]| {
    let Some((&mode, mut data)) = data.split_first() else { return };
    let kind = if mode & 1 == 0 { Kind::Stream } else { Kind::Message };
    let Some(mut connection) = open(kind) else { return };
    let (mut now, mut buf) = (Duration::from_millis(1), vec![0; 6000]);
    connection.write(&[7; 40_000]);
    while let Some((&[step, len], rest)) = data.split_first_chunk::<2>() {
        let (datagram, rest) = rest.split_at(rest.len().min(len.into()));
        data = rest;
        now += Duration::from_micros(u64::from(step) * 97);
        let mut datagram = datagram.to_vec();
        if let Some(destination) = datagram.get_mut(12..16) {
            destination.copy_from_slice(&connection.socket().to_be_bytes());
        }
        connection.handle(now, &datagram, if step & 1 == 0 { Arrival::Alone } else { Arrival::Batched });
        connection.handle_timeout(now);
        let mut sent = 0;
        while let Some(transmit) = connection.poll_transmit(now, &mut buf) {
            assert!(transmit.len <= buf.len() && transmit.segment <= 1472);
            sent += 1;
            assert!(sent < 10_000, "sends for ever");
        }
        assert!(connection.poll_timeout().is_none_or(|at| at > now), "wants to do what it does not do");
        let n = connection.chunk().len();
        connection.consume(n);
        if let Some(len) = connection.message_len() {
            connection.read_message(&mut vec![0; len]).expect("there is room");
        }
    }
});

/// A connection that an honest client has opened.
fn open(kind: Kind) -> Option<Connection> {
    let config = Arc::new(Config { kind, ..Config::default() });
    let (mut near, mut far) = (Endpoint::new([1; 32]), Endpoint::new([2; 32]));
    far.listen(Some(config.clone())).ok()?;
    let (here, there) = ("127.0.0.1:1".parse().ok()?, "127.0.0.1:2".parse().ok()?);
    let mut client = near.connect(Duration::ZERO, there, config).ok()?;
    let (mut buf, mut answer) = ([0; 1500], [0; 64]);
    loop {
        let transmit = client.poll_transmit(Duration::ZERO, &mut buf)?;
        match far.route(Duration::ZERO, here, &buf[..transmit.len], &mut answer) {
            Route::Answer(len) => client.handle(Duration::ZERO, &answer[..len], Arrival::Alone),
            Route::Incoming(incoming) => {
                let connection = far.accept(Duration::ZERO, &incoming)?;
                let packet = Packet::decode(&buf[..transmit.len]).ok()?;
                assert!(matches!(packet.body, Body::Handshake(_)));
                return Some(connection);
            }
            other => panic!("{other:?}"),
        }
    }
}
