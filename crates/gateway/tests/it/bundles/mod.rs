//! Hops of several connections: bytes in order, ends and failures as on one connection, and protection against
//! unauthorized connections (S1, S21, S22, P22, invariant 1).

mod losses;

use crate::support;
use losses::pair_through_forwarder;
use phoebus_gateway::Status;
use phoebus_proto::endpoint::Endpoint;
use phoebus_proto::session::bundle::Scatter;
use phoebus_proto::session::frame::{FrameState, Role};
use phoebus_proto::session::initiator::{Initiator, State};
use phoebus_proto::session::message::{Attach, Hello, Open, Requirements};
use phoebus_proto::session::{Code, Mode, SessionId};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use support::{
    ALLOW_ALL, Ask, Certificates, PATIENCE, Pg, address, assert_reset, destination, exchange, expect, pattern, peer,
    reset, session,
};

/// Transport and security of a hop.
const HOPS: [(&str, &str); 6] =
    [("tcp", "none"), ("udt", "none"), ("tcp", "encrypt"), ("udt", "encrypt"), ("tcp", "auth"), ("quic", "encrypt")];

/// Two gateways with a hop of `streams` connections, with `more` in the second's configuration.
fn pair_with((transport, security): (&str, &str), streams: u16, more: &str) -> (Pg, Pg) {
    let (first, second) = (address(), address());
    let certificates = Certificates::new();
    let tls = |name: &str| if security == "none" { String::new() } else { certificates.issue(name) };
    let peer = |name: &str, addr: SocketAddr, min: u32| {
        format!(
            "[[peer]]\nname = \"{name}\"\naddress = \"{addr}\"\ntransport = \"{transport}\"\nsecurity = \"{security}\"\n\
             from = [\"127.0.0.0/8\"]\npool = {{ min = {min} }}\n"
        )
    };
    let listener = match transport {
        "tcp" => String::new(),
        other => format!("[[listen]]\naddress = \"{second}\"\ntransport = \"{other}\"\nsecurity = \"{security}\"\n"),
    };
    let text = format!("{listener}{}{}{ALLOW_ALL}{more}", tls("pg2"), peer("pg1", first, 0));
    let pg2 = Pg::start_at(second, "pg2", &text);
    let text = format!(
        "{}{}streams = {streams}\n[[route]]\nto = \"*\"\nvia = \"pg2\"\n{ALLOW_ALL}",
        tls("pg1"),
        peer("pg2", second, 1)
    );
    let pg1 = Pg::start_at(first, "pg1", &text);
    let ready = if transport == "quic" { 1 } else { usize::from(streams) };
    pg1.until(|status| status.pools[0].idle >= ready, "connections are ready");
    (pg1, pg2)
}

fn pair(by: (&str, &str), streams: u16) -> (Pg, Pg) {
    pair_with(by, streams, "")
}

/// Waits until the open session has this many connections between the two gateways.
fn until_joined(pg1: &Pg, pg2: &Pg, streams: usize) {
    let on = |pg: &Pg, hop: usize| {
        let all = |status: &Status| status.sessions.iter().any(|session| session.hops[hop].streams == streams);
        pg.until(all, "all connections have joined");
    };
    on(pg1, 1);
    on(pg2, 0);
}

#[test]
fn bundle_delivers_all_bytes_over_any_number_of_connections() {
    for (turn, by) in HOPS.into_iter().enumerate() {
        for streams in [2u16, 4, 8] {
            println!("{by:?}, {streams} connections");
            let (pg1, pg2) = pair(by, streams);
            let sizes = [(0, 0), (1, 0), (0, 70_001), (3_000_017, 15), (1_234_567, 2_345_679)];
            for (n, (up, down)) in sizes.into_iter().enumerate() {
                let (client, server, report) = session(&pg1, |ask| ask);
                assert_eq!(report.streams.iter().map(|(streams, _)| *streams).collect::<Vec<_>>(), [streams, 1]);
                assert!(!report.streams[0].1.contains("connections"), "{report:?}");
                if n + 1 == sizes.len() {
                    until_joined(&pg1, &pg2, streams.into());
                }
                exchange(client, server, &pattern(up, 7 + turn as u64), &pattern(down, 90 + turn as u64));
                for pg in [&pg1, &pg2] {
                    assert_eq!(pg.quiet(), (n as u64 + 1, 0));
                }
            }
        }
    }
}

#[test]
fn half_closed_bundle_session_stays_open() {
    for by in HOPS {
        let (pg1, pg2) = pair(by, 3);
        let (mut client, mut server, _) = session(&pg1, |ask| ask);
        client.write_all(b"request").unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        let mut request = Vec::new();
        server.read_to_end(&mut request).unwrap();
        assert_eq!(request, b"request", "{by:?}");
        until_joined(&pg1, &pg2, 3);
        for part in [&pattern(200_000, 5)[..], b"second"] {
            server.write_all(part).unwrap();
            expect(&mut client, part);
        }
        drop(server);
        assert_eq!(client.read(&mut [0; 1]).unwrap(), 0);
        assert_eq!((pg1.quiet(), pg2.quiet()), ((1, 0), (1, 0)), "{by:?}");
    }
}

#[test]
fn connections_are_reused_together() {
    let (pg1, pg2) = pair(("tcp", "none"), 4);
    for _ in 0..3 {
        let (client, server, _) = session(&pg1, |ask| ask);
        until_joined(&pg1, &pg2, 4);
        exchange(client, server, &pattern(900_001, 3), &pattern(800_001, 4));
        pg1.quiet();
        pg2.quiet();
        // While four were in use, the pool made four others ready.
        pg1.until(|status| status.pools[0].idle == 8, "all have come back");
    }
    let pool = &pg1.status().pools[0];
    assert_eq!((pool.dialled, pool.reused, pool.stale), (8, 12, 0));
    assert_eq!(pg2.status().totals.connections, 8);
}

#[test]
fn connections_of_a_hop_share_its_rate() {
    let (pg1, pg2) = pair_with(("tcp", "none"), 4, "[profile.default]\nrate = \"80mbit\"\n");
    let (client, server, _) = session(&pg1, |ask| ask);
    until_joined(&pg1, &pg2, 4);
    let paced = || pg2.status().sessions[0].hops[0].stats.as_ref().unwrap().pacing_rate * 8;
    // Loopback has long segments, so nearly all of a rate is payload.
    assert!((70_000_000..=80_000_000).contains(&paced()), "{}", paced());
    exchange(client, server, &[], &pattern(3_000_000, 9));
    assert_eq!((pg1.quiet(), pg2.quiet()), ((1, 0), (1, 0)));
}

#[test]
fn bundle_forwards_reset_in_both_directions() {
    for by in HOPS {
        for from_client in [true, false] {
            println!("{by:?}, from the client: {from_client}");
            let (pg1, pg2) = pair(by, 4);
            let (mut client, mut server, _) = session(&pg1, |ask| ask);
            until_joined(&pg1, &pg2, 4);
            client.write_all(b"up").unwrap();
            expect(&mut server, b"up");
            let (gone, mut left) = if from_client { (client, server) } else { (server, client) };
            reset(gone);
            assert_reset(&mut left);
            assert_eq!((pg1.quiet(), pg2.quiet()), ((0, 1), (0, 1)), "{by:?}");
            let (client, server, _) = session(&pg1, |ask| ask);
            exchange(client, server, &pattern(500_001, 1), &pattern(400_001, 2));
            assert_eq!((pg1.quiet(), pg2.quiet()), ((1, 1), (1, 1)), "{by:?}");
        }
    }
}

/// Waits until the session stalls because the receiver does not read. Returns the bytes passed by then.
fn until_full(pg: &Pg) -> u64 {
    let mut before = u64::MAX;
    loop {
        let now = pg.status().sessions[0].bytes_up;
        if now == before {
            return now;
        }
        before = now;
        std::thread::sleep(std::time::Duration::from_millis(300));
    }
}

#[test]
fn stalled_receiver_stalls_bundle_sender_without_loss() {
    let (pg1, pg2) = pair(("tcp", "none"), 4);
    let (client, server, _) = session(&pg1, |ask| ask);
    until_joined(&pg1, &pg2, 4);
    let bytes = pattern(40_000_000, 9);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            (&client).write_all(&bytes).unwrap();
            client.shutdown(Shutdown::Write).unwrap();
        });
        let before = until_full(&pg2);
        assert!(before < bytes.len() as u64, "memory is not bounded");
        let mut got = Vec::new();
        (&server).read_to_end(&mut got).unwrap();
        assert!(got == bytes, "the stream was changed");
    });
    drop((client, server));
    assert_eq!((pg1.quiet(), pg2.quiet()), ((1, 0), (1, 0)));
}

#[test]
fn report_notes_fewer_connections_than_requested() {
    let (pg1, pg2) = pair_with(("tcp", "none"), 8, "[limits]\nstreams = 2\n");
    let (client, server, report) = session(&pg1, |ask| ask);
    assert_eq!(report.streams[0], (2, "8 connections were asked for, and pg2 grants 2".to_owned()));
    until_joined(&pg1, &pg2, 2);
    exchange(client, server, &pattern(500_001, 1), &pattern(400_001, 2));

    // A client that requires that many is refused.
    let with = |streams| Requirements { streams: Some(streams), ..Requirements::default() };
    let (_listener, addr) = destination();
    let no = Ask { requirements: with(3), ..Ask::to(addr) }.ask(pg1.addr).unwrap_err();
    assert_eq!((no.code, no.hop.as_str(), no.limits.streams), (Code::Requirement, "pg2", Some(2)));
    assert!(Ask { requirements: with(2), ..Ask::to(addr) }.ask(pg1.addr).is_ok());
}

/// Reads `len` bytes of DATA frames from `stream`.
fn data(stream: &mut TcpStream, len: usize) -> Vec<u8> {
    let mut all = Vec::new();
    while all.len() < len {
        let mut header = [0; 16];
        stream.read_exact(&mut header).unwrap();
        if header[0] == 1 {
            let start = all.len();
            all.resize(start + u32::from_be_bytes(header[4..8].try_into().unwrap()) as usize, 0);
            stream.read_exact(&mut all[start..]).unwrap();
        }
    }
    all
}

#[test]
fn connection_unknown_to_initiator_carries_nothing() {
    let pg = Pg::start("pg2", &format!("{}{ALLOW_ALL}", peer("pg1", address(), 0)));
    let (mut first, mut server, session, token) = open(pg.addr, "pg1", 3);
    // The initiator may never have received the answer.
    let lane = attach(pg.addr, "pg1", (session, &token, 1)).unwrap();
    pg.until(|status| status.sessions[0].hops[0].streams == 2, "it has joined");
    let bytes = pattern(300_000, 6);
    server.write_all(&bytes).unwrap();
    assert!(data(&mut first, bytes.len()) == bytes, "something went where nobody looks");
    reset(lane);
    let mut one = FrameState::striped(Role::Initiator);
    first.write_all(&[&one.data(2).unwrap()[..], b"up"].concat()).unwrap();
    expect(&mut server, b"up");
    server.write_all(b"down").unwrap();
    assert_eq!(data(&mut first, 4), b"down");
    // After a frame from the initiator, the connection is used.
    let mut lane = attach(pg.addr, "pg1", (session, &token, 2)).unwrap();
    lane.write_all(&FrameState::striped(Role::Initiator).ping(1)).unwrap();
    let mut pong = [0; 16];
    lane.read_exact(&mut pong).unwrap();
    assert_eq!(pong[0], 6);
}

#[test]
fn bytes_flow_before_other_connections_join() {
    let (pg1, pg2, way) = pair_through_forwarder(1);
    let (client, server, report) = session(&pg1, |ask| ask);
    assert_eq!(report.streams[0].0, 4);
    let (mut up, mut down) = (client.try_clone().unwrap(), server.try_clone().unwrap());
    up.write_all(b"early").unwrap();
    expect(&mut down, b"early");
    assert_eq!(pg2.status().sessions[0].hops[0].streams, 1);
    *way.most.lock().unwrap() = usize::MAX;
    until_joined(&pg1, &pg2, 4);
    exchange(client, server, &pattern(2_000_003, 1), &pattern(1_000_003, 2));
    assert_eq!((pg1.quiet(), pg2.quiet()), ((1, 0), (1, 0)));
}

/// Performs the handshake `asking` with a gateway.
fn answer(gateway: SocketAddr, mut asking: Initiator<Vec<u8>, Vec<u8>>) -> (TcpStream, Initiator<Vec<u8>, Vec<u8>>) {
    let mut stream = TcpStream::connect(gateway).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(asking.outgoing()).unwrap();
    asking.sent(usize::MAX);
    while asking.want() > 0 {
        let n = stream.read(asking.space().unwrap()).unwrap();
        assert!(n > 0, "the gateway closed the connection without an answer");
        asking.received(n).unwrap();
    }
    (stream, asking)
}

/// Opens a session by hand under `name`, with as many connections as the gateway grants of `streams`.
fn open(gateway: SocketAddr, name: &str, streams: u16) -> (TcpStream, TcpStream, SessionId, Vec<u8>) {
    let (listener, addr) = destination();
    let (session, to) = (Ask::to(addr).session, Endpoint::from(addr));
    let open = Open { mode: Mode::Framed, streams, ..Open::new(session, to.as_ref()) };
    let asking = Initiator::connect(vec![0; 4096], Vec::new(), &Hello::of(name), None, &open).unwrap();
    let (stream, asking) = answer(gateway, asking);
    let opened = asking.opened().unwrap();
    assert_eq!(opened.streams, streams.min(16));
    let server = listener.accept().unwrap().0;
    server.set_read_timeout(Some(PATIENCE)).unwrap();
    (stream, server, session, opened.token.to_vec())
}

fn attach(
    gateway: SocketAddr,
    name: &str,
    (session, token, index): (SessionId, &[u8], u16),
) -> Result<TcpStream, Code> {
    let attach = Attach { session, token, index, padding: 0 };
    let asking = Initiator::join(vec![0; 4096], Vec::new(), &Hello::of(name), None, &attach).unwrap();
    let (stream, asking) = answer(gateway, asking);
    match asking.state() {
        State::Opened => Ok(stream),
        _ => Err(asking.refused().unwrap().code),
    }
}

#[test]
fn unauthorized_connection_cannot_join() {
    let peers: String = ["pg1", "pg3"].map(|name| peer(name, address(), 0)).concat();
    let pg = Pg::start("pg2", &format!("{peers}{ALLOW_ALL}"));
    let refused = Err(Code::NoSession);
    let try_attach = |name, session, token: &[u8], index| attach(pg.addr, name, (session, token, index)).map(drop);
    let (first, mut server, session, token) = open(pg.addr, "pg1", 3);
    let mut wrong = token.clone();
    wrong[15] ^= 1;
    assert_eq!(try_attach("pg1", session, &wrong, 1), refused, "another token");
    assert_eq!(try_attach("pg1", session, &[], 1), refused, "no token");
    assert_eq!(try_attach("pg1", session, &token, 0), refused, "the first place");
    assert_eq!(try_attach("pg1", session, &token, 3), refused, "a place that was not granted");
    assert_eq!(try_attach("pg1", SessionId([9; 16]), &token, 1), refused, "another session");
    assert_eq!(try_attach("pg3", session, &token, 1), refused, "another peer's session");
    assert_eq!(try_attach("", session, &token, 1), refused, "a client");
    // Only the wrong requests failed, and the session continues.
    let lane = attach(pg.addr, "pg1", (session, &token, 1)).unwrap();
    assert_eq!(try_attach("pg1", session, &token, 1), refused, "a place that is taken");

    // Bytes arrive in order, whichever connection delivers first.
    let (mut one, mut two, mut scatter) =
        (FrameState::striped(Role::Initiator), FrameState::striped(Role::Initiator), Scatter::default());
    let (early, late) = (scatter.data(&mut one, 5).unwrap(), scatter.data(&mut two, 6).unwrap());
    (&lane).write_all(&[&late[..], b" later"].concat()).unwrap();
    (&first).write_all(&[&early[..], b"first"].concat()).unwrap();
    expect(&mut server, b"first later");

    // A client may join its own session, and nobody else may.
    let (_own, _server, own, its) = open(pg.addr, "", 2);
    assert_eq!(try_attach("pg1", own, &its, 1), refused, "a client's session");
    assert!(try_attach("", own, &its, 1).is_ok());

    // Too late: the session is over.
    reset(first);
    reset(lane);
    assert_reset(&mut server);
    pg.until(|status| status.sessions.iter().all(|open| open.session != session.to_string()), "it has ended");
    assert_eq!(try_attach("pg1", session, &token, 2), refused, "a session that is over");
}

#[test]
fn inconsistent_frames_fail_session() {
    let pg = Pg::start("pg2", &format!("{}{ALLOW_ALL}", peer("pg1", address(), 0)));
    let [mut one, mut two] = [0, 1].map(|_| FrameState::striped(Role::Initiator));
    let frame = |header: [u8; 16]| [&header[..], &[7; 5]].concat();
    let (again, ahead) = (frame(two.data_at(3, 5).unwrap()), frame(two.data_at(20, 5).unwrap()));
    let first_five = frame(one.data_at(0, 5).unwrap());
    let other_end = FrameState::striped(Role::Initiator).shutdown_at(4).unwrap().to_vec();
    for (on_first, on_second, why) in [
        (first_five.clone(), again, "bytes that come twice"),
        (frame(one.data_at(10, 5).unwrap()), ahead, "bytes that never come"),
        (first_five, other_end, "an end before bytes that have come"),
    ] {
        let (first, mut server, session, token) = open(pg.addr, "", 2);
        let lane = attach(pg.addr, "", (session, &token, 1)).unwrap();
        (&first).write_all(&on_first).unwrap();
        (&lane).write_all(&on_second).unwrap();
        assert!(server.read_to_end(&mut Vec::new()).is_err(), "{why}");
        pg.quiet();
    }
    assert_eq!(pg.quiet(), (0, 3));
}
