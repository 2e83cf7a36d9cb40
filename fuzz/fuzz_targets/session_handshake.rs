//! Feeds any bytes to both ends of the handshake; whatever they decide must hold together.
#![no_main]

use libfuzzer_sys::fuzz_target;
use phoebus_proto::endpoint::EndpointRef;
use phoebus_proto::session::acceptor::{Acceptor, Request, State};
use phoebus_proto::session::initiator::Initiator;
use phoebus_proto::session::message::{Hello, Message, Open};
use phoebus_proto::session::{PREFACE, SessionId};

fuzz_target!(|data: &[u8]| {
    let Some((&split, data)) = data.split_first() else { return };
    if let Ok(message) = Message::decode(data) {
        let mut out = vec![0; 70_000];
        let n = message.encode(&mut out).expect("what was decoded fits");
        assert_eq!(Message::decode(&out[4..n]).expect("what was encoded decodes"), message);
    }
    // The interesting states lie behind the preface.
    let stream = [&PREFACE[..], data].concat();
    accept(&stream, usize::from(split).max(1));
    initiate(&stream, usize::from(split).max(1));
});

fn accept(mut stream: &[u8], step: usize) {
    let mut acceptor = Acceptor::new("pg");
    loop {
        if acceptor.state() == State::Asked {
            match acceptor.request().expect("a request is readable while it waits") {
                Request::Auth(_) => acceptor.accept_auth(None).expect("AUTH is pending"),
                Request::Open(open) => {
                    assert_eq!(open.path.iter().count(), open.path.len());
                    return;
                }
                Request::Unsupported(unknown) => {
                    assert_ne!(unknown, 0, "some feature is unknown");
                    return;
                }
                Request::Attach(_) => return,
            }
        }
        let Ok(space) = acceptor.space() else { return };
        let n = space.len().min(step).min(stream.len());
        if n == 0 {
            return;
        }
        space[..n].copy_from_slice(&stream[..n]);
        stream = &stream[n..];
        if acceptor.received(n).is_err() {
            assert!(!acceptor.outgoing().is_empty(), "a peer is told why");
            return;
        }
    }
}

fn initiate(mut stream: &[u8], step: usize) {
    let destination = EndpointRef::from(std::net::SocketAddr::from(([10, 0, 0, 1], 80)));
    let open = Open::new(SessionId([0; 16]), destination);
    let mut client = Initiator::connect(vec![0; 1024], vec![], &Hello::of(""), None, &open).expect("it fits");
    loop {
        let Ok(space) = client.space() else { return };
        let n = space.len().min(step).min(stream.len());
        if n == 0 {
            break;
        }
        space[..n].copy_from_slice(&stream[..n]);
        stream = &stream[n..];
        if client.received(n).is_err() {
            return;
        }
    }
    let _ = (client.opened().map(|o| o.rtt_us()), client.refused(), client.challenge());
}
