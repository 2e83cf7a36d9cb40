//! Datagrams beside sessions (`docs/protocol/session.md` §6.8): which are relayed, where to, and what others can do.

use super::support::{ALLOW_ALL, Ask, PATIENCE, Pg, Report, address, assert_reset, destination, peer};
use super::transports::{HOPS, line};
use phoebus_gateway::Status;
use phoebus_proto::session::Code;
use phoebus_proto::session::datagrams::{COVERED, DatagramGrant, KEY_LEN, NO_DATAGRAMS, PREFIX_LEN, Towards};
use phoebus_proto::session::message::{Requirements, feature};
use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

const RELAY: &str = "[datagrams]\naddresses = [\"0.0.0.0:0\"]\n";

/// A session with datagrams beside it, and both of its ends.
struct Beside {
    gateways: Vec<Pg>,
    client: TcpStream,
    report: Report,
    grant: DatagramGrant,
    /// Where the client sends datagrams.
    gateway: SocketAddr,
    here: UdpSocket,
    listener: TcpListener,
    there: UdpSocket,
}

impl Beside {
    fn through(gateways: impl Into<Vec<Pg>>) -> Self {
        let gateways: Vec<Pg> = gateways.into();
        let (listener, addr) = destination();
        let there = UdpSocket::bind(addr).unwrap();
        let here = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        for socket in [&here, &there] {
            socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        }
        let ask = Ask { datagrams: true, ..Ask::to(addr) };
        let (client, report) = ask.ask(gateways[0].addr).unwrap_or_else(|no| panic!("{no:?}"));
        let grant = report.datagrams.unwrap_or_else(|| panic!("{report:?}"));
        let gateway = (gateways[0].addr.ip(), grant.port).into();
        Self { gateways, client, report, grant, gateway, here, listener, there }
    }

    fn pair() -> Self {
        let (first, second) = Pg::chain(RELAY);
        Self::through([first, second])
    }

    fn alone() -> Self {
        Self::through([Pg::start("pg", &format!("{ALLOW_ALL}{RELAY}"))])
    }

    fn sealed(&self, datagram: &[u8]) -> Vec<u8> {
        [&self.grant.prefix(Towards::Destination, datagram)[..], datagram].concat()
    }

    /// Sends a datagram to the destination, which must get it. Returns the gateway's address there.
    #[track_caller]
    fn goes_up(&self, datagram: &[u8]) -> SocketAddr {
        self.here.send_to(&self.sealed(datagram), self.gateway).unwrap();
        let mut buffer = [0; 65_536];
        let (len, from) = self.there.recv_from(&mut buffer).unwrap();
        assert!(&buffer[..len] == datagram, "another datagram came");
        from
    }

    /// Sends a datagram from the destination to the gateway, and expects it here.
    #[track_caller]
    fn comes_down(&self, gateway: SocketAddr, datagram: &[u8], here: &UdpSocket) {
        self.there.send_to(datagram, gateway).unwrap();
        let mut buffer = [0; 65_536];
        let (len, from) = here.recv_from(&mut buffer).unwrap();
        assert_eq!(from, self.gateway);
        assert!(self.grant.open(Towards::Client, &buffer[..len]) == Some(datagram), "another datagram came");
    }
}

#[test]
fn datagrams_pass_gateways_both_ways() {
    for beside in [Beside::pair(), Beside::alone()] {
        assert!(beside.report.notes.iter().all(String::is_empty), "{:?}", beside.report);
        // Loopback carries packets of 64 KiB.
        assert_eq!(beside.grant.longest, 65_535 - 28 - PREFIX_LEN as u16);
        for len in [1, 17, 32, 33, 1400, 9000, 60_000] {
            let datagram: Vec<u8> = (0..len).map(|i| (i * 7 + len) as u8).collect();
            let gateway = beside.goes_up(&datagram);
            beside.comes_down(gateway, &datagram, &beside.here);
        }
        // Many at once, of the same and of different lengths, stay what they were.
        let lengths = (0..60).map(|i| if i % 3 == 0 { 1000 } else { 1200 - i });
        for len in lengths.clone() {
            beside.here.send_to(&beside.sealed(&vec![len as u8; len]), beside.gateway).unwrap();
        }
        let mut buffer = [0; 2048];
        for len in lengths {
            let came = beside.there.recv(&mut buffer).unwrap();
            assert!(buffer[..came] == vec![len as u8; len]);
        }
        // They count in the session's status, soon after they were sent.
        let counts =
            |status: &Status| status.sessions[0].datagrams.map(|ways| ways.map(|way| (way.relayed, way.dropped)));
        let status =
            beside.gateways[0].until(|status| counts(status) == Some([(67, 0), (7, 0)]), "all datagrams are counted");
        let session = &status.sessions[0];
        assert!(session.bytes_up > 130_000 && session.bytes_down > 70_000, "{session:?}");
    }
}

#[test]
fn datagrams_pass_beside_hops_of_every_transport() {
    for hop in HOPS {
        let beside = Beside::through(line(&[hop]));
        let gateway = beside.goes_up(b"there");
        beside.comes_down(gateway, b"and back", &beside.here);
    }
}

#[test]
fn answers_follow_a_client_whose_port_changes() {
    let beside = Beside::pair();
    let gateway = beside.goes_up(b"from the first port");
    beside.comes_down(gateway, b"to the first port", &beside.here);
    let other = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    other.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    other.send_to(&beside.sealed(b"from another"), beside.gateway).unwrap();
    beside.there.recv(&mut [0; 64]).unwrap();
    beside.comes_down(gateway, b"to the other", &other);
}

#[test]
fn forged_datagrams_go_nowhere() {
    for beside in [Beside::pair(), Beside::alone()] {
        let datagram = [9; 100];
        let right = beside.sealed(&datagram);
        let mut all: Vec<Vec<u8>> = Vec::new();
        // Every bit of the prefix and of what the tag covers counts, and so does the length.
        for at in 0..PREFIX_LEN + COVERED {
            let mut forged = right.clone();
            forged[at] ^= 1 << (at % 8);
            all.push(forged);
        }
        all.extend([0, 1, PREFIX_LEN - 1, PREFIX_LEN, right.len() - 1].map(|len| right[..len].to_vec()));
        all.push([&right[..], &[0]].concat());
        // What goes down cannot be sent up.
        all.push([&beside.grant.prefix(Towards::Client, &datagram)[..], &datagram].concat());
        let other = DatagramGrant { key: [0; KEY_LEN], ..beside.grant };
        all.push([&other.prefix(Towards::Destination, &datagram)[..], &datagram].concat());
        for forged in &all {
            beside.here.send_to(forged, beside.gateway).unwrap();
        }
        // The right one from another host.
        let elsewhere = UdpSocket::bind((address().ip(), 0)).unwrap();
        elsewhere.send_to(&right, beside.gateway).unwrap();
        // Only what follows arrives, and answers go to the client.
        let gateway = beside.goes_up(b"the first that is right");
        // Nobody but the destination's port can answer.
        let port = UdpSocket::bind((beside.there.local_addr().unwrap().ip(), 0)).unwrap();
        for stranger in [&elsewhere, &port] {
            stranger.send_to(b"from a stranger", gateway).unwrap();
        }
        beside.comes_down(gateway, b"from the destination", &beside.here);
    }
}

#[test]
fn datagrams_end_with_their_session() {
    let beside = Beside::pair();
    beside.goes_up(b"while it is open");
    let right = beside.sealed(b"afterwards");
    drop((beside.client, beside.listener));
    beside.gateways.iter().for_each(|gateway| drop(gateway.until(|status| status.sessions.is_empty(), "it is over")));
    beside.here.send_to(&right, beside.gateway).unwrap();
    // What arrives at the gateway after that datagram is relayed by the same thread, so that one has had its turn.
    let (listener, addr) = destination();
    let there = UdpSocket::bind(addr).unwrap();
    there.set_read_timeout(Some(PATIENCE)).unwrap();
    let ask = Ask { datagrams: true, ..Ask::to(addr) };
    let (_client, report) = ask.ask(beside.gateways[0].addr).unwrap();
    let grant = report.datagrams.unwrap();
    let next = [&grant.prefix(Towards::Destination, b"next")[..], b"next"].concat();
    beside.here.send_to(&next, (beside.gateways[0].addr.ip(), grant.port)).unwrap();
    there.recv(&mut [0; 64]).unwrap();
    beside.there.set_nonblocking(true).unwrap();
    assert_eq!(beside.there.recv(&mut [0; 64]).unwrap_err().kind(), ErrorKind::WouldBlock);
    drop(listener);
}

#[test]
fn rate_that_is_configured_later_ends_sessions_with_datagrams() {
    let mut beside = Beside::alone();
    beside.goes_up(b"without a rate");
    let (mut server, _) = beside.listener.accept().unwrap();
    beside.gateways[0].reload("pg", &format!("{ALLOW_ALL}{RELAY}[profile.default]\nrate = \"100mbit\"\n"));
    assert_reset(&mut beside.client);
    assert_reset(&mut server);
    beside.gateways[0].until(|status| status.sessions.is_empty(), "it is over");
}

#[test]
fn destination_in_mapped_form_gets_datagrams() {
    let gateway = Pg::start("pg", &format!("{ALLOW_ALL}{RELAY}"));
    let (_listener, addr) = destination();
    let there = UdpSocket::bind(addr).unwrap();
    there.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let SocketAddr::V4(four) = addr else { unreachable!("destinations have IPv4 addresses") };
    let mapped = SocketAddr::from((four.ip().to_ipv6_mapped(), four.port()));
    let ask = Ask { datagrams: true, ..Ask::to(mapped) };
    let (_client, report) = ask.ask(gateway.addr).unwrap_or_else(|no| panic!("{no:?}"));
    let grant = report.datagrams.unwrap_or_else(|| panic!("{report:?}"));
    let here = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let sealed = [&grant.prefix(Towards::Destination, b"mapped")[..], b"mapped"].concat();
    here.send_to(&sealed, (gateway.addr.ip(), grant.port)).unwrap();
    let mut buffer = [0; 64];
    let len = there.recv(&mut buffer).unwrap();
    assert_eq!(&buffer[..len], b"mapped");
}

/// Whoever floods the port costs other sessions datagrams, as on any network, and no longer than the flood lasts.
#[test]
fn flood_at_the_port_stops_no_session() {
    let beside = Beside::alone();
    let (gateway, flow) = (beside.gateway, beside.grant.flow);
    let floods: Vec<_> = (0..2)
        .map(|n: u8| {
            std::thread::spawn(move || {
                let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
                let begun = Instant::now();
                let mut datagram = [n; 1200];
                // One of them knows the flow.
                datagram[..8].copy_from_slice(&(flow ^ u64::from(n)).to_be_bytes());
                while begun.elapsed() < Duration::from_secs(2) {
                    let _ = socket.send_to(&datagram, gateway);
                }
            })
        })
        .collect();
    floods.into_iter().for_each(|flood| flood.join().unwrap());
    // The flood may still fill the gateway's socket for a moment.
    let begun = Instant::now();
    let mut buffer = [0; 64];
    beside.there.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    let mut next = || beside.there.recv(&mut buffer).is_ok_and(|len| buffer[..len] == *b"afterwards");
    while !next() {
        assert!(begun.elapsed() < PATIENCE, "nothing gets through after the flood");
        beside.here.send_to(&beside.sealed(b"afterwards"), beside.gateway).unwrap();
    }
    assert_eq!(beside.gateways[0].status().sessions.len(), 1);
}

#[test]
fn sessions_without_datagrams_say_why() {
    let (_listener, addr) = destination();
    let noted = |gateway: &Pg, ask: Ask| {
        let (_, report) = ask.ask(gateway.addr).unwrap_or_else(|no| panic!("{no:?}"));
        assert!(report.datagrams.is_none(), "{report:?}");
        report.notes
    };
    let wanted = || Ask { datagrams: true, ..Ask::to(addr) };
    let says = |note: &str, why: &str| assert_eq!(note, format!("{NO_DATAGRAMS}{why}"));

    let none = Pg::start("pg2", ALLOW_ALL);
    says(&noted(&none, wanted())[0], "pg2 relays none (datagrams.addresses)");
    let required = Ask { required: feature::DATAGRAMS, ..Ask::to(addr) };
    let no = required.ask(none.addr).unwrap_err();
    assert_eq!((no.code, no.hop.as_str()), (Code::NoDatagrams, "pg2"), "{no:?}");

    let before = Pg::start(
        "pg1",
        &format!("{ALLOW_ALL}{RELAY}{}[[route]]\nto = \"*\"\nvia = \"pg2\"\n", peer("pg2", none.addr, 0)),
    );
    let notes = noted(&before, wanted());
    says(&notes[0], "pg2 grants none");
    says(&notes[1], "pg2 relays none (datagrams.addresses)");
    // Nobody asks, so nobody says anything.
    assert!(noted(&before, Ask::to(addr)).iter().all(String::is_empty));

    let limited = Pg::start("pg", &format!("{ALLOW_ALL}{RELAY}[profile.default]\nrate = \"100mbit\"\n"));
    says(&noted(&limited, wanted())[0], "pg holds the session to a rate");
    let promised = Requirements { rate: Some(1_000_000), ..Requirements::default() };
    says(&noted(&limited, Ask { requirements: promised, ..wanted() })[0], "pg holds the session to a rate");

    let elsewhere = Pg::start("pg", &format!("{ALLOW_ALL}[datagrams]\naddresses = [\"127.0.0.2:0\"]\n"));
    says(&noted(&elsewhere, wanted())[0], &format!("pg relays none at {} (datagrams.addresses)", elsewhere.addr.ip()));
}
