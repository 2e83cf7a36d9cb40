//! Beacons: their protection, and what they prove (`docs/protocol/session.md` §6.6, invariant 1).

use crate::support;
use phoebus_gateway::Status;
use phoebus_proto::session::initiator::{Initiator, State};
use phoebus_proto::session::message::Hello;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use support::{ALLOW_ALL, Certificates, PATIENCE, Pg, address, exchange, pattern, reset, session};

/// How pg1 reaches pg2 (the configuration requires no protection), and how pg2 listens for that.
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
fn beacon_is_protected_where_hop_is() {
    for hop in HOPS {
        let (certificates, to) = (Certificates::new(), address());
        let listener = TcpListener::bind(to).unwrap();
        // Nothing but the beacon connects here over TCP.
        let _first = Pg::start("pg1", &first(hop, &certificates.issue("pg1"), to));
        let (mut beacon, _) = listener.accept().unwrap();
        beacon.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut begin = [0];
        beacon.read_exact(&mut begin).unwrap();
        assert_eq!(begin[0] == 0x16, hop.is_protected, "{}: it begins with {:#04x}", hop.peer, begin[0]);
    }
}

/// Opens an unencrypted beacon that claims to be pg1's, and waits for the answer.
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
fn unencrypted_beacon_proves_nothing_about_protected_hop() {
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
        let (client, server, _) = session(&gateway, |ask| ask);
        reset(forged(addrs[1]));
        if hop.is_protected {
            // An answer to the next beacon shows that the last reset was read. Repeat it, in case another thread served
            // that one.
            for _ in 0..3 {
                reset(forged(addrs[1]));
            }
            std::thread::sleep(Duration::from_millis(300));
            exchange(client, server, &pattern(300_000, 1), &pattern(200_000, 2));
            assert_eq!((gateway.quiet(), second.quiet()), ((1, 0), (1, 0)), "{}", hop.peer);
        } else {
            // UDT without TLS could be reset as easily itself, but a beacon's reset does not end it.
            exchange(client, server, &pattern(300_000, 1), &pattern(200_000, 2));
        }
    }
}

/// An attacker between two hosts who can see and send TCP packets. It forwards connections to `to`, and can reset them.
struct Observer {
    at: SocketAddr,
    /// The observer refuses connections.
    dead: Arc<AtomicBool>,
    /// The number of connections so far, and the number below which all are reset.
    seen: Arc<AtomicU32>,
    reset_before: Arc<AtomicU32>,
    /// The near ends do not learn that a far end has closed, before they are reset.
    swallows: Arc<AtomicBool>,
}

impl Observer {
    fn before(to: Arc<Mutex<SocketAddr>>) -> Self {
        let listener = TcpListener::bind((to.lock().unwrap().ip(), 0)).unwrap();
        let (seen, reset_before) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
        let (at, dead) = (listener.local_addr().unwrap(), Arc::new(AtomicBool::new(false)));
        let swallows = Arc::new(AtomicBool::new(false));
        let observer = Self {
            at,
            dead: dead.clone(),
            seen: seen.clone(),
            reset_before: reset_before.clone(),
            swallows: swallows.clone(),
        };
        std::thread::spawn(move || {
            for near in listener.incoming() {
                if dead.load(Ordering::SeqCst) {
                    break;
                }
                let (near, number) = (near.unwrap(), seen.fetch_add(1, Ordering::SeqCst));
                let to = *to.lock().unwrap();
                let Ok(far) = TcpStream::connect(to) else { continue };
                let (reset_before, swallows) = (reset_before.clone(), swallows.clone());
                std::thread::spawn(move || {
                    let is_reset = || reset_before.load(Ordering::SeqCst) > number;
                    pass_on([near, far], is_reset, || swallows.load(Ordering::SeqCst));
                });
            }
        });
        observer
    }

    /// Resets all connections, and refuses new ones.
    fn dies(&self) {
        self.dead.store(true, Ordering::SeqCst);
        // The listener accepts one more before it checks `dead`.
        while TcpStream::connect(self.at).is_ok() {}
        self.reset_before.store(u32::MAX, Ordering::SeqCst);
    }

    /// Resets all connections at both ends, and waits for a new one.
    fn reset_all(&self) {
        let seen = self.seen.load(Ordering::SeqCst);
        self.reset_before.store(seen, Ordering::SeqCst);
        let start = Instant::now();
        while self.seen.load(Ordering::SeqCst) == seen {
            assert!(start.elapsed() < PATIENCE, "no other beacon is lit");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Forwards bytes until an end closes (unless `swallows`), or until `is_reset`; then resets both ends.
fn pass_on(ends: [TcpStream; 2], is_reset: impl Fn() -> bool, swallows: impl Fn() -> bool) {
    ends.iter().for_each(|end| end.set_nonblocking(true).unwrap());
    let mut piece = [0; 4096];
    while !is_reset() {
        for (mut from, mut to) in [(&ends[0], &ends[1]), (&ends[1], &ends[0])] {
            match from.read(&mut piece) {
                // Handshakes always fit the socket's buffer.
                Ok(n) if n > 0 => to.write_all(&piece[..n]).unwrap(),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                _ if swallows() => {}
                _ => return,
            }
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    ends.into_iter().for_each(reset);
}

/// The properties of a path for datagrams.
#[derive(Debug, Default)]
struct Path {
    drops: AtomicBool,
    /// One-way delay, in milliseconds.
    takes: AtomicU32,
}

/// Forwards datagrams between one host and `to`, with the properties of the path.
fn datagrams(to: Arc<Mutex<SocketAddr>>) -> (SocketAddr, Arc<Path>) {
    let socket = UdpSocket::bind((to.lock().unwrap().ip(), 0)).unwrap();
    let (here, path) = (socket.local_addr().unwrap(), Arc::new(Path::default()));
    let (on_its_way, arriving) = std::sync::mpsc::channel::<(Instant, Vec<u8>, SocketAddr)>();
    let (sender, its_path) = (socket.try_clone().unwrap(), path.clone());
    std::thread::spawn(move || {
        for (due, datagram, next) in arriving {
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            if !its_path.drops.load(Ordering::SeqCst) {
                // The transport retransmits lost datagrams.
                let _ = sender.send_to(&datagram, next);
            }
        }
    });
    let its_path = path.clone();
    std::thread::spawn(move || {
        let (mut piece, mut near) = (vec![0; 65536], None);
        while let Ok((n, from)) = socket.recv_from(&mut piece) {
            let to = *to.lock().unwrap();
            let next = if from == to { near } else { Some(to) };
            if from != to {
                near = Some(from);
            }
            let takes = Duration::from_millis(its_path.takes.load(Ordering::SeqCst).into());
            if let Some(next) = next {
                on_its_way.send((Instant::now() + takes, piece[..n].to_vec(), next)).unwrap();
            }
        }
    });
    (here, path)
}

/// pg1 and pg2 with a hop over QUIC or UDT, a beacon beside it, and an observer on the path.
struct Watched {
    first: Pg,
    second: Option<Pg>,
    /// The current address of the second gateway, its first address, and its configuration.
    to: Arc<Mutex<SocketAddr>>,
    at: SocketAddr,
    text: String,
    observer: Observer,
    path: Arc<Path>,
    _certificates: Certificates,
}

impl Watched {
    /// Starts both; pg1 keeps `ready` connections ready.
    fn by(transport: &str, ready: u32, limits: &str) -> Self {
        Self::over_path_of(0, transport, ready, limits)
    }

    /// The same over a path that delays each datagram by so many milliseconds, so that the gateways measure it.
    fn over_path_of(delay: u32, transport: &str, ready: u32, limits: &str) -> Self {
        let (certificates, addrs) = (Certificates::new(), [address(), address()]);
        let to = Arc::new(Mutex::new(addrs[1]));
        let (observer, limits) = (Observer::before(to.clone()), format!("[limits]\n{limits}"));
        let (by, path) = datagrams(to.clone());
        path.takes.store(delay, Ordering::SeqCst);
        let text = format!(
            "{}[[listen]]\naddress = \"{}\"\ntransport = \"{transport}\"\nsecurity = \"encrypt\"\n[[peer]]\nname = \"pg1\"\n\
             address = \"{}\"\nfrom = [\"127.0.0.0/8\"]\npool = {{ min = 0 }}\n{ALLOW_ALL}{limits}",
            certificates.issue("pg2"),
            addrs[1],
            addrs[0]
        );
        let second = Some(Pg::start_at(addrs[1], "pg2", &text));
        let first = format!(
            "{}[[peer]]\nname = \"pg2\"\naddress = \"{}\"\ntransport = \"auto\"\nallowed = [\"{transport}/{}\"]\n\
             pool = {{ min = {ready} }}\n[[route]]\nto = \"*\"\nvia = \"pg2\"\n{ALLOW_ALL}{limits}",
            certificates.issue("pg1"),
            observer.at,
            by.port()
        );
        let first = Pg::start_at(addrs[0], "pg1", &first);
        let at = addrs[1];
        let watched = Self { first, second, to, at, text, observer, path, _certificates: certificates };
        watched.until_beacon(true);
        watched
    }

    /// Kills the second gateway and restarts it on another host. Every packet that would show its death is lost.
    fn restarts_elsewhere(&mut self) {
        self.observer.swallows.store(true, Ordering::SeqCst);
        self.path.drops.store(true, Ordering::SeqCst);
        drop(self.second.take());
        let at = address();
        self.second = Some(Pg::start_at(at, "pg2", &self.text.replace(&self.at.to_string(), &at.to_string())));
        *self.to.lock().unwrap() = at;
        self.path.drops.store(false, Ordering::SeqCst);
    }

    /// Opens sessions until a report says that there is a beacon, or that there is none.
    fn until_beacon(&self, is_lit: bool) {
        let start = Instant::now();
        while session(&self.first, |ask| ask).2.notes.iter().any(|note| note.contains("no TCP connection beside it"))
            == is_lit
        {
            assert!(start.elapsed() < PATIENCE, "the beacon is lit: {}", !is_lit);
        }
    }
}

/// Longer than any silence that counts, which `SILENCE` limits.
const LONG: Duration = Duration::from_secs(3);
const SILENCE: &str = "silence_timeout = \"2s\"\n";

#[test]
fn forged_reset_ends_no_session() {
    let hop = |transport: &str, refuses: bool| {
        let pair = Watched::by(transport, 1, SILENCE);
        let (client, server, _) = session(&pair.first, |ask| ask);
        // An attacker who can reset a connection can also refuse the next one.
        if refuses {
            pair.observer.dies()
        } else {
            pair.observer.reset_all()
        }
        // The session is idle for long enough to count as dead.
        std::thread::sleep(LONG);
        exchange(client, server, &pattern(300_000, 1), &pattern(200_000, 2));
    };
    std::thread::scope(|scope| {
        for refuses in [false, true] {
            for transport in ["quic", "udt"] {
                // The thread's name shows which case failed.
                let name = format!("{transport}, {}", if refuses { "refused" } else { "reset" });
                std::thread::Builder::new().name(name).spawn_scoped(scope, move || hop(transport, refuses)).unwrap();
            }
        }
    });
}

#[test]
fn sessions_that_end_do_not_count_as_silence() {
    for transport in ["quic", "udt"] {
        let pair = Watched::by(transport, 0, SILENCE);
        let (client, server, _) = session(&pair.first, |ask| ask);
        pair.observer.dies();
        pair.until_beacon(false);
        let (newer, its_server, _) = session(&pair.first, |ask| ask);
        exchange(client, server, &pattern(300_000, 1), &pattern(200_000, 2));
        std::thread::sleep(LONG);
        exchange(newer, its_server, &pattern(300_000, 3), &pattern(200_000, 4));
    }
}

/// Checks that the session continues although the beacon is reset and no datagram arrives for long.
fn assert_survives_silent_path(pair: &Watched, client: TcpStream, server: TcpStream) {
    pair.path.drops.store(true, Ordering::SeqCst);
    pair.observer.reset_all();
    std::thread::sleep(LONG);
    pair.path.drops.store(false, Ordering::SeqCst);
    exchange(client, server, &pattern(300_000, 1), &pattern(200_000, 2));
}

#[test]
fn peer_that_opens_new_beacon_survives_silent_path() {
    for transport in ["quic", "udt"] {
        let pair = Watched::by(transport, 1, SILENCE);
        let (client, server, _) = session(&pair.first, |ask| ask);
        assert_survives_silent_path(&pair, client, server);
    }
}

#[test]
fn peer_that_opens_new_beacon_survives_silent_path_after_reload() {
    for transport in ["quic", "udt"] {
        let pair = Watched::by(transport, 1, SILENCE);
        let (client, server, _) = session(&pair.first, |ask| ask);
        let (second, text) = (pair.second.as_ref().unwrap(), pair.text.replace("min = 0", "min = 0, max = 7"));
        assert_ne!(text, pair.text);
        second.reload("pg2", &text);
        assert_survives_silent_path(&pair, client, server);
    }
}

#[test]
fn refusing_port_ends_no_opening_while_peer_answers() {
    for transport in ["quic", "udt"] {
        let pair = Watched::by(transport, 1, "silence_timeout = \"2s\"\nconnect_timeout = \"3s\"\n");
        let deaf = support::Deaf::new();
        pair.observer.dies();
        pair.until_beacon(false);
        let no = support::Ask::to(deaf.addr).ask(pair.first.addr).unwrap_err();
        // This is pg2's own report about the destination.
        assert_eq!(no.code, phoebus_proto::session::Code::TimedOut, "{no:?}");
        assert!(!no.reason.contains("refuses connections"), "{no:?}");
    }
}

#[test]
fn session_to_dead_peer_is_refused_when_port_refuses() {
    for transport in ["quic", "udt"] {
        // Time-outs longer than the test's.
        let long = "handshake_timeout = \"600s\"\nconnect_timeout = \"600s\"\nsilence_timeout = \"600s\"\n";
        let pair = Watched::by(transport, 1, long);
        pair.path.drops.store(true, Ordering::SeqCst);
        pair.observer.dies();
        let (_listener, to) = support::destination();
        for _ in 0..2 {
            let no = support::Ask::to(to).ask(pair.first.addr).unwrap_err();
            assert_eq!((no.code, no.hop.as_str()), (phoebus_proto::session::Code::Refused, "pg2"), "{no:?}");
            assert!(no.reason.contains("its TCP port refuses connections"), "{no:?}");
        }
    }
}

#[test]
fn late_reset_ends_no_session_with_new_process() {
    let hop = |transport: &str| {
        let mut pair = Watched::by(transport, 0, SILENCE);
        let (mut client, _server, _) = session(&pair.first, |ask| ask);
        pair.restarts_elsewhere();
        let (listener, to) = support::destination();
        let start = Instant::now();
        let newer = loop {
            match support::Ask::to(to).ask(pair.first.addr) {
                Ok((newer, _)) => break newer,
                Err(no) => assert!(start.elapsed() < PATIENCE, "{no:?}"),
            }
        };
        let (its_server, _) = listener.accept().unwrap();
        its_server.set_read_timeout(Some(PATIENCE)).unwrap();
        pair.observer.reset_all();
        // The session with the dead process ends.
        let error = client.read(&mut [0; 1]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        std::thread::sleep(LONG);
        exchange(newer, its_server, &pattern(300_000, 1), &pattern(200_000, 2));
    };
    std::thread::scope(|scope| {
        for transport in ["quic", "udt"] {
            scope.spawn(move || hop(transport));
        }
    });
}

#[test]
fn opening_restarts_when_dead_process_is_replaced() {
    let hop = |transport: &str| {
        // Less than the silence after which UDT closes a connection.
        let mut pair = Watched::by(transport, 1, "handshake_timeout = \"5s\"\nconnect_timeout = \"5s\"\n");
        pair.first.until(|status| status.pools[0].idle > 0, "a connection is ready");
        pair.restarts_elsewhere();
        let ready = |status: &Status| (status.pools[0].idle, status.pools[0].dialled);
        let (before, (listener, to)) = (ready(&pair.first.status()), support::destination());
        let (asked, ask) = (pair.first.addr, support::Ask::to(to));
        let opening = std::thread::spawn(move || ask.ask(asked).unwrap_or_else(|no| panic!("{no:?}")));
        if transport == "udt" {
            // The opening has taken a ready connection, or had one made.
            pair.first.until(|status| ready(status) != before, "a connection is taken");
        }
        pair.observer.reset_all();
        let (client, _) = opening.join().unwrap();
        let (server, _) = listener.accept().unwrap();
        exchange(client, server, &pattern(300_000, 1), &pattern(200_000, 2));
    };
    std::thread::scope(|scope| {
        for transport in ["quic", "udt"] {
            scope.spawn(move || hop(transport));
        }
    });
}

#[test]
fn fast_refusal_ends_no_opening_over_long_path() {
    for transport in ["quic", "udt"] {
        let pair = Watched::over_path_of(100, transport, 0, SILENCE);
        pair.observer.dies();
        pair.until_beacon(false);
        // Some of these need new connections.
        for _ in 0..3 {
            let (client, server, _) = session(&pair.first, |ask| ask);
            exchange(client, server, b"up", b"down");
        }
    }
}
