//! A client that repeats one message for ever, valid or not, and never reads is closed in time, costs little, and
//! delays nobody else (invariant 7). The tests cover every state of the accepting side.
//!
//! The tests run one at a time, because they measure the memory and processor time of the whole process.

mod counts;

use crate::support;
use phoebus_config::agent::Secret;
use phoebus_gateway::Gateway;
use phoebus_gateway::config::{Agent, Allowed, Config};
use phoebus_net::credentials::Credentials;
use phoebus_net::quic::{Options as QuicOptions, Quic};
use phoebus_net::tls::Tls;
use phoebus_net::transport::{Target, Transport};
use phoebus_net::udt::Udt;
use phoebus_net::{Buffer, CongestionControl, Profile};
use phoebus_proto::endpoint::Endpoint;
use phoebus_proto::session::auth;
use phoebus_proto::session::frame::{FrameState, Role};
use phoebus_proto::session::initiator::{Initiator, State};
use phoebus_proto::session::message::{Attach, Auth, Challenge, Hello, Message, Open, Opened, Refused, Requirements};
use phoebus_proto::session::{Code, List, Mode, PREFACE, SessionId};
use phoebus_proto::units::{ByteSize, Span};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use support::flood::{Bounds, Flood, Sender, each, flood};
use support::{ALLOW_ALL, Ask, Certificates, Deaf, PATIENCE, Pg, address, destination, exchange, peer, session};

const MIB: u64 = 1 << 20;
const SECRET: [u8; 32] = [5; 32];
/// One thread, so that any delay of others shows; short time-outs, so that the tests reach all of them.
const LIMITS: &str = "[limits]\nthreads = 1\nhandshake_timeout = \"1s\"\npeer_idle_timeout = \"2s\"\n";
const BOUNDS: Bounds = Bounds { time: PATIENCE, taken: 24 * MIB, memory: 64 * MIB, processor: true };

/// How many bytes one client, and all clients together, may send ahead of a session that waits for its destination: the
/// kernel's buffers, and the memory of both ends, which are this process.
const WAITING_MAX: u64 = 16 * MIB;

/// A lock that the running test holds.
fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An encoded message with its length prefix.
fn message(message: Message<'_>) -> Vec<u8> {
    let mut bytes = vec![0; 4096];
    let n = message.encode(&mut bytes).unwrap();
    bytes.truncate(n);
    bytes
}

/// Every message of the handshake, in valid and invalid forms.
fn messages() -> Vec<(&'static str, Vec<u8>)> {
    let closed = destination().1;
    let (to, far) = (Endpoint::from(closed), "192.0.2.1:9".parse::<Endpoint>().unwrap());
    let open = Open::new(SessionId([3; 16]), to.as_ref());
    let auth = |mechanism, data| message(Message::Auth(Auth { mechanism, data }));
    let refused = Refused { code: Code::Limit, reason: "", hop: "", limits: Requirements::default(), redirect: None };
    vec![
        ("nothing but zeros", vec![0; 64]),
        ("the preface", PREFACE.to_vec()),
        ("empty messages", vec![0; 4]),
        ("a message of an unknown type", b"\0\0\0\x03\xa1\x00\x17".to_vec()),
        ("HELLO", message(Message::Hello(Hello::of("")))),
        ("CHALLENGE", message(Message::Challenge(Challenge { mechanisms: List::new(&["x"]), data: &[] }))),
        ("an AUTH that is accepted", auth(auth::anonymous::NAME, b"user@example.org")),
        ("an AUTH that is not", auth(auth::agent::NAME, b"guess")),
        ("an AUTH of an unknown mechanism", auth("none", b"")),
        ("an OPEN that is refused", message(Message::Open(Open::new(SessionId([4; 16]), far.as_ref())))),
        ("an OPEN to nobody", message(Message::Open(open))),
        ("an OPEN with unknown features", message(Message::Open(Open { required: 1 << 40, ..open }))),
        (
            "an ATTACH",
            message(Message::Attach(Attach { session: SessionId([5; 16]), token: &[1; 16], index: 1, padding: 0 })),
        ),
        ("OPENED", message(Message::Opened(Opened::new(SessionId([3; 16]), Mode::Raw, List::default())))),
        ("REFUSED", message(Message::Refused(refused))),
    ]
}

/// A connection on which `first` was sent.
fn tcp(to: SocketAddr, first: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(to).unwrap();
    stream.write_all(first).unwrap();
    stream
}

/// The bytes that bring a peer into the state after its greeting.
fn greeting(hello: Hello<'_>) -> Vec<u8> {
    [&PREFACE[..], &message(Message::Hello(hello))].concat()
}

/// The bytes that request a session with a destination that never answers.
fn asking(deaf: &Deaf) -> Vec<u8> {
    let to = Endpoint::from(deaf.addr);
    let open = message(Message::Open(Open::new(Ask::to(deaf.addr).session, to.as_ref())));
    [greeting(Hello::of("")), open].concat()
}

/// A session through `pg`, from its opening to its end.
fn serve(pg: &Pg) {
    let (client, server, _) = session(pg, |ask| ask);
    exchange(client, server, b"up", b"down");
}

#[test]
fn flooding_client_is_closed_during_handshake() {
    let _turn = alone();
    let pg = Pg::start("pg1", &format!("{}{ALLOW_ALL}{LIMITS}", peer("pg2", address(), 0)));
    let hello = Hello::of("");
    let mut floods = each("before the greeting", messages(), || tcp(pg.addr, b""));
    floods.extend(each("after the greeting", messages(), || tcp(pg.addr, &greeting(hello))));
    floods.extend(each("as a peer", messages(), || tcp(pg.addr, &greeting(Hello::of("pg2")))));
    let beacon = Hello { beacon: true, instance: 7, ..hello };
    floods.extend(each("as a beacon", messages(), || tcp(pg.addr, &greeting(beacon))));
    let beacon = Hello { beacon: true, ..Hello::of("pg2") };
    floods.extend(each("as a peer's beacon", messages(), || tcp(pg.addr, &greeting(beacon))));
    flood(floods, BOUNDS, || serve(&pg));
    pg.until(|status| status.handshakes == 0, "all have gone");
}

#[test]
fn flooding_client_is_closed_after_challenge() {
    let _turn = alone();
    let pg = Pg::start("pg1", &format!("auth = \"anonymous\"\n{ALLOW_ALL}{LIMITS}"));
    let challenged = [greeting(Hello::of("")), message(Message::Auth(Auth { mechanism: "x", data: b"" }))].concat();
    flood(each("after a challenge", messages(), || tcp(pg.addr, &challenged)), BOUNDS, || {
        let email = Some("user@example.org".to_owned());
        let (client, server, _) = session(&pg, |ask| Ask { email, ..ask });
        exchange(client, server, b"up", b"down");
    });
    pg.until(|status| status.handshakes == 0, "all have gone");
}

#[test]
fn flooding_program_does_not_delay_agent() {
    let _turn = alone();
    let certificates = Certificates::new();
    let addr = address();
    let tls = certificates.issue_for("pg1", &[addr.ip().to_string()]);
    let rest = format!("security = \"encrypt\"\nclient_certificate = \"optional\"\n{tls}{ALLOW_ALL}");
    let gateway = Pg::start_at(addr, "pg1", &rest);
    let file = tls.lines().find_map(|line| line.strip_prefix("authorities = ")).unwrap().trim_matches('"').to_owned();
    let mut config = Config::agent(Agent {
        logins: None,
        bearer: None,
        gateway: addr.into(),
        port: addr.port(),
        allowed: vec![Allowed { transport: "tcp".to_owned(), port: None }],
        congestion_control: CongestionControl::Auto,
        credentials: Some(Credentials::trusting(file.as_ref()).unwrap()),
        contact: None,
        secret: Secret(SECRET),
        ipv6: false,
        admin: None,
    });
    config.limits.handshake_timeout = Span(Duration::from_secs(1));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let guard = runtime.enter();
    let agent = Gateway::start(config).unwrap();
    drop(guard);
    let agent = Pg { addr: agent.addresses()[0], gateway: Some(agent), runtime };
    let known = [greeting(Hello::of("")), message(Message::Auth(Auth { mechanism: auth::agent::NAME, data: &SECRET }))]
        .concat();
    let mut floods = each("before the greeting", messages(), || tcp(agent.addr, b""));
    floods.extend(each("after the greeting", messages(), || tcp(agent.addr, &greeting(Hello::of("")))));
    floods.extend(each("of one who knows the secret", messages(), || tcp(agent.addr, &known)));
    flood(floods, BOUNDS, || {
        let (listener, to) = destination();
        let ask = Ask { secret: Some(SECRET.to_vec()), ..Ask::to(to).path(&gateway.addr.to_string()) };
        let (client, _) = ask.ask(agent.addr).unwrap();
        let (server, _) = listener.accept().unwrap();
        server.set_read_timeout(Some(PATIENCE)).unwrap();
        exchange(client, server, b"up", b"down");
    });
}

/// A framed session of a client through `pg`, and its destination.
fn framed(pg: &Pg) -> (TcpStream, TcpStream) {
    let (listener, addr) = destination();
    let to = Endpoint::from(addr);
    let open = Open { mode: Mode::Framed, ..Open::new(Ask::to(addr).session, to.as_ref()) };
    let mut asking = Initiator::connect(vec![0; 4096], Vec::new(), &Hello::of(""), None, &open).unwrap();
    let mut stream = tcp(pg.addr, asking.outgoing());
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    asking.sent(usize::MAX);
    while asking.want() > 0 {
        let n = stream.read(asking.space().unwrap()).unwrap();
        asking.received(n).unwrap();
    }
    assert_eq!(asking.state(), State::Opened);
    let (server, _) = listener.accept().unwrap();
    (stream, server)
}

/// Every frame without payload, and some invalid ones.
fn frames() -> Vec<(&'static str, Vec<u8>)> {
    let exchange = || FrameState::new(Role::Initiator);
    let kind = |kind: u8| [&[kind][..], &[0; 15]].concat();
    vec![
        ("PING", exchange().ping(7).to_vec()),
        ("PONG", exchange().pong(7).to_vec()),
        ("ACK", exchange().ack().to_vec()),
        ("SHUTDOWN", exchange().shutdown().unwrap().to_vec()),
        ("RESET", exchange().reset(0).unwrap().to_vec()),
        ("an unknown frame", kind(9)),
        ("an empty DATA", kind(1)),
    ]
}

#[test]
fn flood_of_control_frames_ends_session() {
    let _turn = alone();
    let pg = Pg::start("pg1", &format!("{ALLOW_ALL}{LIMITS}"));
    // Keep the destinations open; otherwise the gateway would end the sessions.
    let held = std::cell::RefCell::new(Vec::new());
    let connect = || {
        let (client, server) = framed(&pg);
        held.borrow_mut().push(server);
        client
    };
    let mut floods = each("in a session", frames(), connect);
    floods.extend(each("after the end of a stream", frames(), || {
        let mut client = connect();
        client.write_all(&FrameState::new(Role::Initiator).shutdown().unwrap()).unwrap();
        client
    }));
    flood(floods, BOUNDS, || serve(&pg));
    pg.quiet();
    // After a failure further on, the gateway discards what still arrives, but not for ever.
    let failed = || {
        let (client, server) = framed(&pg);
        support::reset(server);
        client
    };
    let data = [&FrameState::new(Role::Initiator).data(1 << 20).unwrap()[..], &vec![1; 1 << 20]].concat();
    let mut floods = each("after a failure", frames(), failed);
    floods.extend(each("after a failure", vec![("DATA", data)], failed));
    flood(floods, Bounds { taken: u64::MAX, ..BOUNDS }, || serve(&pg));
    pg.quiet();
}

#[test]
fn administration_socket_survives_flood_of_requests() {
    let _turn = alone();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("admin");
    let pg = Pg::start("pg1", &format!("{ALLOW_ALL}{LIMITS}[admin]\nsocket = {path:?}\n"));
    let requests = || {
        vec![
            ("a status", b"{\"command\":\"status\"}\n".to_vec()),
            ("an unknown command", b"{\"command\":\"x\"}\n".to_vec()),
            ("empty lines", b"\n".to_vec()),
            ("a line without end", vec![b'x'; 1000]),
        ]
    };
    flood(each("asked of the gateway", requests(), || UnixStream::connect(&path).unwrap()), BOUNDS, || serve(&pg));
}

#[test]
fn udt_serves_others_during_floods() {
    let _turn = alone();
    let limits = format!("{LIMITS}connect_timeout = \"2s\"\n");
    let pg = Pg::start("pg1", &format!("{ALLOW_ALL}{limits}"));
    let at = address();
    let udt_listener = format!("[[listen]]\naddress = \"{at}\"\ntransport = \"udt\"\n");
    pg.reload("pg1", &format!("{udt_listener}{ALLOW_ALL}{limits}"));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let udt = Udt::default();
    let profile = Profile { send_buffer: Buffer::Bytes(ByteSize(256 << 10)), ..Profile::default() };
    let connect = |first: &[u8]| {
        let target = Target { addr: at, name: "".into(), early: false };
        let stream = runtime.block_on(udt.connect(&target, &profile, PATIENCE)).unwrap();
        assert_eq!(stream.try_write(first, false).unwrap_or(0), first.len());
        stream
    };
    in_each_state(&pg, &connect);
    // While a session is being opened, nothing reads bytes sent ahead, and the transport accepts only a bounded number.
    let deaf = Deaf::new();
    let floods = each("while its session is opened", messages(), || connect(&asking(&deaf)));
    flood(floods, Bounds { taken: MIB, ..BOUNDS }, || serve(&pg));
    // Datagrams of all types, for connections that do not exist.
    let mut floods = Vec::new();
    for kind in 0..=8u8 {
        let socket = UdpSocket::bind((at.ip(), 0)).unwrap();
        socket.connect(at).unwrap();
        let datagram = [&[0x80, kind, 0, 0][..], &[kind; 60]].concat();
        floods.push(Flood {
            what: format!("datagrams of type {kind}"),
            connection: Box::new(Datagrams { socket, until: Instant::now() + Duration::from_secs(1) }),
            message: datagram,
        });
    }
    flood(floods, Bounds { taken: u64::MAX, ..BOUNDS }, || serve(&pg));
    drop(connect(b""));
}

/// Floods `pg` in each state, on connections made by `connect`, which sends some bytes first.
fn in_each_state(pg: &Pg, connect: &impl Fn(&[u8]) -> phoebus_net::Stream) {
    let mut floods = each("before the greeting", messages(), || connect(b""));
    floods.extend(each("after the greeting", messages(), || connect(&greeting(Hello::of("")))));
    flood(floods, BOUNDS, || serve(pg));
}

/// The same over encrypted transports: TLS, and QUIC, whose streams share a connection.
#[test]
fn encrypted_transports_serve_others_during_floods() {
    let _turn = alone();
    let certificates = Certificates::new();
    let at = address();
    let tls = certificates.issue_for("pg1", &[at.ip().to_string()]);
    let file = tls.lines().find_map(|line| line.strip_prefix("authorities = ")).unwrap().trim_matches('"').to_owned();
    let credentials = Credentials::trusting(file.as_ref()).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let quic = Quic::new(credentials.clone(), QuicOptions::default()).unwrap();
    let transports: [(&str, Arc<dyn Transport>); 2] =
        [("tcp", Arc::new(Tls::encrypt(credentials))), ("quic", Arc::new(quic))];
    for (name, transport) in transports {
        let pg = Pg::start("pg1", &format!("{ALLOW_ALL}{LIMITS}"));
        let listener = format!(
            "[[listen]]\naddress = \"{at}\"\ntransport = \"{name}\"\nsecurity = \"encrypt\"\nclient_certificate = \"optional\"\n"
        );
        let limits = format!("{LIMITS}connect_timeout = \"2s\"\n");
        pg.reload("pg1", &format!("{listener}{tls}{ALLOW_ALL}{limits}"));
        let connect = |first: &[u8]| {
            let target = Target { addr: at, name: at.ip().to_string().into(), early: false };
            let stream = runtime.block_on(transport.connect(&target, &Profile::default(), PATIENCE)).unwrap();
            assert_eq!(stream.try_write(first, false).unwrap_or(0), first.len());
            stream
        };
        in_each_state(&pg, &connect);
        let deaf = Deaf::new();
        let floods = each("while its session is opened", messages(), || connect(&asking(&deaf)));
        flood(floods, Bounds { taken: WAITING_MAX, memory: WAITING_MAX, ..BOUNDS }, || serve(&pg));
    }
}

/// One client requests as many sessions as it may with destinations that never answer, on as many connections.
#[test]
fn silent_destinations_delay_nobody_else() {
    let _turn = alone();
    let pg = Pg::start("pg1", &format!("{ALLOW_ALL}[limits]\nthreads = 1\nconnect_timeout = \"2s\"\n"));
    let deaf = Deaf::new();
    let to = Endpoint::from(deaf.addr);
    let waiting: Vec<TcpStream> = (0..32)
        .map(|n| {
            let open = message(Message::Open(Open::new(SessionId([100 + n; 16]), to.as_ref())));
            tcp(pg.addr, &[greeting(Hello::of("")), open].concat())
        })
        .collect();
    for _ in 0..4 {
        serve(&pg);
    }
    // Each request is answered in the end.
    for mut stream in waiting {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        assert!(stream.read(&mut [0; 4096]).unwrap() > 0);
    }
    pg.until(|status| status.handshakes == 0, "all have gone");
}

/// A sender of datagrams. Nothing closes it, so it stops by itself.
struct Datagrams {
    socket: UdpSocket,
    until: Instant,
}

impl Sender for Datagrams {
    fn send(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if Instant::now() > self.until {
            return Err(std::io::ErrorKind::TimedOut.into());
        }
        // A datagram without room is lost, as on a network.
        let _ = self.socket.send(&bytes[..64]);
        Ok(64)
    }
}
