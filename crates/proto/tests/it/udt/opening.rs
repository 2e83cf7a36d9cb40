//! Tests of the handshake: with a listener, in a rendezvous, refused, lost, forged.

use super::host::{App, Net, net};
use super::link;
use phoebus_proto::udt::packet::{Body, CONTROL_LEN_MAX, Packet};
use phoebus_proto::udt::{Arrival, CloseReason, Config, Endpoint, Handshake, Kind, Request, Route, Seq};
use phoebus_wan::sim::End;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

fn config() -> Arc<Config> {
    Arc::new(Config::default())
}

fn connect(net: &mut Net, config: Arc<Config>, app: App) {
    let (now, peer) = (net.sim.now(), net.sim.node(net.a).peer);
    let host = net.sim.node_mut(net.a);
    let connection = host.endpoint.connect(now, peer, config).unwrap();
    host.add(connection, app);
}

fn is_open(net: &Net) -> bool {
    let open = |id| net.sim.node(id).connections.values().any(|slot| slot.connection.is_open());
    open(net.a) && open(net.b)
}

#[test]
fn handshake_takes_two_round_trips_and_negotiates_the_smaller_mss() {
    let mut net = net(1, &link(1, "50ms", "unlimited", "0%"));
    net.sim.node_mut(net.b).endpoint.listen(Some(Arc::new(Config { mss: 1400, ..Config::default() }))).unwrap();
    connect(&mut net, config(), App::default());
    assert_eq!(net.sim.run(SECOND, |sim| sim.node(net.a).only().connection.is_open()), End::Met);
    assert_eq!(net.sim.now(), 4 * Duration::from_millis(50));
    for id in [net.a, net.b] {
        assert_eq!(net.sim.node(id).only().connection.stats().mss, 1400);
    }
    assert_eq!(net.sim.node(net.a).only().connection.stats().rtt, Duration::from_millis(100));
}

#[test]
fn handshakes_survive_loss_and_duplication() {
    for seed in 0..20 {
        let mut net = net(seed, &link(seed, "50ms", "unlimited", "30%"));
        for id in [net.a, net.b] {
            net.sim.node_mut(id).faults.duplicate = 0.5;
        }
        net.sim.node_mut(net.b).endpoint.listen(Some(config())).unwrap();
        let patient = Arc::new(Config { connect_timeout: 20 * SECOND, ..Config::default() });
        connect(&mut net, patient, App::writer(100));
        let done = |net: &Net| net.sim.node(net.b).connections.values().any(|slot| slot.app.read == 100);
        let mut ended = false;
        for _ in 0..600 {
            let until = net.sim.now() + SECOND / 10;
            let _ = net.sim.run(until, |_| false);
            ended = ended || done(&net);
        }
        assert!(ended, "seed {seed}");
        assert_eq!(net.sim.node(net.b).connections.len(), 1, "a retransmitted request belongs to the same connection");
    }
}

#[test]
fn rendezvous_connects_both_peers() {
    for (seed, loss) in [(1, "0%"), (2, "20%"), (3, "20%"), (4, "20%"), (5, "20%")] {
        let mut net = net(seed, &link(seed, "30ms", "unlimited", loss));
        for id in [net.a, net.b] {
            let peer = net.sim.node(id).peer;
            let host = net.sim.node_mut(id);
            let connection = host.endpoint.rendezvous(Duration::ZERO, peer, config()).unwrap();
            host.add(connection, App { to_write: 5000, ..App::default() });
        }
        let read = |net: &Net, id| net.sim.node(id).only().app.read;
        for _ in 0..100 {
            let until = net.sim.now() + SECOND / 10;
            let _ = net.sim.run(until, |_| false);
        }
        assert_eq!((read(&net, net.a), read(&net, net.b)), (5000, 5000), "seed {seed}");
        assert!(is_open(&net));
    }
}

#[test]
fn connecting_without_a_listener_times_out() {
    let mut net = net(1, &link(1, "5ms", "unlimited", "0%"));
    connect(&mut net, config(), App::default());
    let _ = net.sim.run(10 * SECOND, |sim| sim.node(net.a).only().connection.closed().is_some());
    assert_eq!(net.sim.node(net.a).only().connection.closed(), Some(CloseReason::ConnectTimeout(3 * SECOND)));
    assert_eq!(net.sim.now(), 3 * SECOND);
    assert_eq!(net.sim.counters(net.link).forward.packets_in, 12 * 6, "a request every 250 ms, of six sizes");
}

/// Opens a connection from a to b over a path that drops IP packets longer than `mtu` bytes without an error.
fn over_mtu(mtu: u16, settings: Config) -> Net {
    let mut link = link(u64::from(mtu), "20ms", "100mbit", "0%");
    link.mtu = mtu;
    let mut net = net(1, &link);
    let settings = Arc::new(settings);
    net.sim.node_mut(net.b).endpoint.listen(Some(settings.clone())).unwrap();
    net.sim.node_mut(net.b).on_accept = App { to_write: 100_000, ..App::default() };
    connect(&mut net, settings, App { to_write: 100_000, ..App::default() });
    net
}

#[test]
fn mss_is_reduced_to_the_path_mtu() {
    let cases = [(1500, 1500, 1500), (1500, 9000, 1500), (9000, 9000, 9000), (1499, 1500, 1450), (1420, 1500, 1400)];
    for (mtu, mss, found) in cases.into_iter().chain([(1300, 1500, 1280), (1300, 1000, 1000), (700, 9000, 576)]) {
        let mut net = over_mtu(mtu, Config { mss, ..Config::default() });
        let read = |net: &Net, id| net.sim.node(id).only().app.read;
        let _ = net.sim.run(5 * SECOND, |_| false);
        assert_eq!((read(&net, net.a), read(&net, net.b)), (100_000, 100_000), "{mtu}");
        for id in [net.a, net.b] {
            assert_eq!(net.sim.node(id).only().connection.stats().mss, found, "{mtu}");
        }
        // Discovery takes no additional round trip.
        assert!(net.sim.node(net.b).only().app.read_at < SECOND);
    }
}

#[test]
fn path_that_drops_all_full_packets_is_an_error() {
    let mut net = over_mtu(1400, Config { discover_mss: false, idle_timeout: 4 * SECOND, ..Config::default() });
    let _ = net.sim.run(20 * SECOND, |_| false);
    let [a, b] = [net.a, net.b].map(|id| net.sim.node(id).only());
    let stuck = Some(CloseReason::Stuck { mss: 1500, timeout: 4 * SECOND });
    assert!([a, b].iter().any(|slot| slot.connection.closed() == stuck), "{:?}", a.connection.closed());
    assert!([a, b].iter().all(|slot| slot.connection.closed().is_some() && slot.app.read < 100_000));
}

#[test]
fn listener_for_messages_refuses_streams() {
    let mut net = net(1, &link(1, "5ms", "unlimited", "0%"));
    let messages = Config { kind: Kind::Message, ..Config::default() };
    net.sim.node_mut(net.b).endpoint.listen(Some(Arc::new(messages))).unwrap();
    connect(&mut net, config(), App::default());
    let _ = net.sim.run(SECOND, |sim| sim.node(net.a).only().connection.closed().is_some());
    assert_eq!(net.sim.node(net.a).only().connection.closed(), Some(CloseReason::Refused(1002)));
    assert!(net.sim.node(net.b).connections.is_empty());
}

fn request(request: Request, socket: u32, cookie: u32) -> [u8; CONTROL_LEN_MAX] {
    let handshake = Handshake {
        version: 4,
        kind: 1,
        initial_seq: Seq::new(77),
        mss: 1500,
        flow_window: 8192,
        request,
        socket,
        cookie,
        peer_ip: [0; 16],
    };
    let mut out = [0; CONTROL_LEN_MAX];
    let packet = Packet { timestamp: 0, destination: 0, body: Body::Handshake(handshake) };
    assert_eq!(packet.encode(&mut out), Some(CONTROL_LEN_MAX));
    out
}

#[test]
fn flood_of_forged_requests_is_not_amplified_and_leaves_no_state() {
    let mut endpoint = Endpoint::new([5; 32]);
    endpoint.listen(Some(config())).unwrap();
    let (mut bytes_in, mut bytes_out) = (0, 0);
    let mut answer = [0; CONTROL_LEN_MAX];
    for n in 0..200_000u32 {
        let from = SocketAddr::from(([10, (n >> 16) as u8, (n >> 8) as u8, n as u8], 1000));
        let kind = if n % 2 == 0 { Request::Induction } else { Request::Conclusion };
        let datagram = request(kind, n | 1, n);
        bytes_in += datagram.len();
        match endpoint.route(Duration::from_micros(n.into()), from, &datagram, &mut answer) {
            Route::Answer(len) => {
                assert!(len <= datagram.len(), "no answer is longer than its request");
                bytes_out += len;
            }
            Route::Ignore => {}
            other => panic!("{other:?}"),
        }
    }
    assert!(bytes_out * 20 < bytes_in, "{bytes_out} bytes out for {bytes_in} in");
    assert!(endpoint.is_empty());
}

#[test]
fn cookie_opens_one_connection_for_its_address_and_expires() {
    let mut endpoint = Endpoint::new([6; 32]);
    endpoint.listen(Some(config())).unwrap();
    let (from, other) = (SocketAddr::from(([10, 0, 0, 1], 1000)), SocketAddr::from(([10, 0, 0, 2], 1000)));
    let mut answer = [0; CONTROL_LEN_MAX];
    let induction = request(Request::Induction, 9, 0);
    assert_eq!(endpoint.route(SECOND, from, &induction, &mut answer), Route::Answer(CONTROL_LEN_MAX));
    let Ok(Packet { body: Body::Handshake(given), .. }) = Packet::decode(&answer) else { panic!("no handshake") };
    let conclusion = request(Request::Conclusion, 9, given.cookie);
    let (mut scratch, mut buf) = ([0; CONTROL_LEN_MAX], [0; 1500]);
    assert_eq!(endpoint.route(SECOND, other, &conclusion, &mut scratch), Route::Ignore);
    assert_eq!(endpoint.route(121 * SECOND, from, &conclusion, &mut scratch), Route::Ignore);
    let Route::Incoming(incoming) = endpoint.route(SECOND, from, &conclusion, &mut scratch) else { panic!("ignored") };
    let mut connection = endpoint.accept(SECOND, &incoming).unwrap();
    endpoint.listen(None).unwrap();
    let route = endpoint.route(SECOND, from, &conclusion, &mut scratch);
    assert_eq!(
        route,
        Route::Connection(connection.socket()),
        "a replay is routed to the connection, even without a listener"
    );
    endpoint.listen(Some(config())).unwrap();
    // A libudt client takes data that arrives before the answer for an invalid answer, so the answer is sent three
    // times.
    connection.write(&[7; 5000]);
    for _ in 0..2 {
        let mut next = || {
            let sent = connection.poll_transmit(SECOND, &mut buf).unwrap();
            matches!(Packet::decode(&buf[..sent.len]), Ok(Packet { body: Body::Handshake(_), .. }))
        };
        assert_eq!([next(), next(), next(), next()], [true, true, true, false], "three answers, then data");
        connection.handle(SECOND, &conclusion, Arrival::Alone);
    }
    assert_eq!(endpoint.len(), 1);
    endpoint.remove(connection.socket());
    assert!(endpoint.is_empty());
    // A replay after the end of the connection opens no new one. A new request of the same client and socket does.
    for replayed_at in [SECOND, 59 * SECOND, 60 * SECOND, 119 * SECOND, 120 * SECOND, 1000 * SECOND] {
        assert_eq!(endpoint.route(replayed_at, from, &conclusion, &mut scratch), Route::Ignore, "at {replayed_at:?}");
    }
    let later = 1000 * SECOND;
    assert_eq!(endpoint.route(later, from, &induction, &mut answer), Route::Answer(CONTROL_LEN_MAX));
    let Ok(Packet { body: Body::Handshake(given), .. }) = Packet::decode(&answer) else { panic!("no handshake") };
    let conclusion = request(Request::Conclusion, 9, given.cookie);
    assert!(matches!(endpoint.route(later, from, &conclusion, &mut scratch), Route::Incoming(_)));
}
