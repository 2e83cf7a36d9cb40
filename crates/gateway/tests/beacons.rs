//! Beacons: what protects them, and what they are believed about (`docs/protocol/session.md` §6.6, invariant 1).

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use phoebus_proto::session::initiator::{Initiator, State};
use phoebus_proto::session::message::Hello;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;
use support::{ALLOW_ALL, Certificates, PATIENCE, Pg, address, assert_reset, exchange, pattern, reset, session};

/// How pg1 reaches pg2, whose connections need no protection on the part of the configuration, and how pg2 listens for that.
#[derive(Clone, Copy)]
struct Hop {
    peer: &'static str,
    listen: &'static str,
    is_protected: bool,
}

const HOPS: [Hop; 3] = [
    Hop { peer: "transport = \"auto\"\nallowed = [\"quic\"]", listen: "transport = \"quic\"", is_protected: true },
    Hop {
        peer: "transport = \"auto\"\nallowed = [\"udt\"]",
        listen: "transport = \"udt\"\nsecurity = \"encrypt\"",
        is_protected: true,
    },
    Hop { peer: "transport = \"udt\"", listen: "transport = \"udt\"", is_protected: false },
];

fn first(hop: Hop, tls: &str, to: SocketAddr) -> String {
    let Hop { peer, .. } = hop;
    format!(
        "{tls}[[peer]]\nname = \"pg2\"\naddress = \"{to}\"\n{peer}\nsecurity = \"none\"\npool = {{ min = 1 }}\n\
         [[route]]\nto = \"*\"\nvia = \"pg2\"\n{ALLOW_ALL}"
    )
}

#[test]
fn a_beacon_is_protected_wherever_the_hop_is() {
    for hop in HOPS {
        let (certificates, to) = (Certificates::new(), address());
        let listener = TcpListener::bind(to).unwrap();
        // There is nothing else that comes here by TCP.
        let _first = Pg::start("pg1", &first(hop, &certificates.issue("pg1"), to));
        let (mut beacon, _) = listener.accept().unwrap();
        beacon.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut begin = [0];
        beacon.read_exact(&mut begin).unwrap();
        assert_eq!(begin[0] == 0x16, hop.is_protected, "{}: it begins with {:#04x}", hop.peer, begin[0]);
    }
}

/// A beacon in the clear that says to be pg1's, and has been answered.
fn forged(to: SocketAddr) -> TcpStream {
    let mut stream = TcpStream::connect(to).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let hello = Hello { beacon: true, ..Hello::of("pg1") };
    let mut asking = Initiator::greet(vec![0; 4096], Vec::new(), &hello, None).unwrap();
    stream.write_all(asking.outgoing()).unwrap();
    asking.sent(usize::MAX);
    while asking.state() == State::Greeting {
        let n = stream.read(asking.space().unwrap()).unwrap();
        assert!(n > 0, "nobody answers");
        asking.received(n).unwrap();
    }
    stream
}

#[test]
fn a_beacon_in_the_clear_says_nothing_about_what_is_protected() {
    for hop in HOPS {
        let (certificates, addrs) = (Certificates::new(), [address(), address()]);
        let second = format!(
            "{}[[listen]]\naddress = \"{}\"\n{}\n[[peer]]\nname = \"pg1\"\naddress = \"{}\"\nsecurity = \"none\"\n\
             from = [\"127.0.0.0/8\"]\npool = {{ min = 0 }}\n{ALLOW_ALL}",
            certificates.issue("pg2"),
            addrs[1],
            hop.listen,
            addrs[0]
        );
        let second = Pg::start_at(addrs[1], "pg2", &second);
        let gateway = Pg::start_at(addrs[0], "pg1", &first(hop, &certificates.issue("pg1"), addrs[1]));
        gateway.until(|status| status.pools[0].idle > 0, "a connection is ready");
        let (mut client, server, _) = session(&gateway, |ask| ask);
        reset(forged(addrs[1]));
        if hop.is_protected {
            // By then it was read, or the next one would not have been answered; and once more, in case that was served elsewhere.
            for _ in 0..3 {
                reset(forged(addrs[1]));
            }
            std::thread::sleep(Duration::from_millis(300));
            exchange(client, server, &pattern(300_000, 1), &pattern(200_000, 2));
            assert_eq!((gateway.quiet(), second.quiet()), ((1, 0), (1, 0)), "{}", hop.peer);
        } else {
            // Bare UDT is as easily ended itself.
            assert_reset(&mut client);
        }
    }
}
