//! Robustness: ICMP errors, changed addresses, killed peers, garbage.

use super::path::Path as UdpPath;
use super::place::{
    PATIENCE, Pair, Place, Random, accept, loopback, pattern, read_exactly, read_to_end, soon, target, write_all,
};
use phoebus_net::credentials::{CredentialFiles, Credentials};
use phoebus_net::quic::{Options, Quic, ResetKey};
use phoebus_net::transport::Transport;
use phoebus_net::{Error, Profile, Stream};
use phoebus_proto::session::Code;
use phoebus_proto::units::Span;
use std::io::{BufRead, BufReader, ErrorKind};
use std::net::UdpSocket;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

#[tokio::test]
async fn closed_port_only_causes_a_timeout() {
    let pair = Pair::new();
    let (near, far) = pair.streams().await;
    let closed = UdpSocket::bind(loopback()).unwrap().local_addr().unwrap();
    let limit = Duration::from_millis(1500);
    let error = pair.client.connect(&target(closed, "pg2.test"), &Profile::default(), limit).await.unwrap_err();
    assert!(matches!(error, Error::Timeout { .. }), "{error}");
    // The same socket received the ICMP errors, and still serves other connections.
    write_all(&near, b"still here").await.unwrap();
    assert_eq!(read_exactly(&far, 10).await.unwrap(), b"still here");
    pair.streams().await;
}

#[tokio::test]
async fn listener_survives_peers_with_closed_ports() {
    let pair = Pair::new();
    let (near, far) = pair.streams().await;
    // A peer sends a packet, and is gone when the answer comes.
    for _ in 0..10 {
        let gone = UdpSocket::bind(loopback()).unwrap();
        gone.send_to(&unknown_version(), pair.target().addr).unwrap();
    }
    write_all(&near, b"still here").await.unwrap();
    assert_eq!(read_exactly(&far, 10).await.unwrap(), b"still here");
    pair.streams().await;
}

/// A packet that is answered with Version Negotiation (RFC 9000, section 6).
fn unknown_version() -> Vec<u8> {
    let mut packet = vec![0; 1200];
    packet[..6].copy_from_slice(&[0xc0, 0x1a, 0x2a, 0x3a, 0x4a, 8]);
    packet[14] = 8;
    packet
}

#[tokio::test]
async fn sessions_survive_rebind() {
    let pair = Pair::new();
    let (near, far) = pair.streams().await;
    let before = far.peer_addr().unwrap();
    pair.client.rebind().unwrap();
    let bytes = pattern(1_000_000, 5);
    let (sent, got) = tokio::join!(write_all(&near, &bytes), read_exactly(&far, bytes.len()));
    sent.unwrap();
    assert!(got.unwrap() == bytes, "the stream was changed");
    assert_ne!(far.peer_addr().unwrap(), before);
    write_all(&far, b"and back").await.unwrap();
    assert_eq!(read_exactly(&near, 8).await.unwrap(), b"and back");
}

/// The path stands for an address translator that loses its table.
#[tokio::test]
async fn sessions_survive_a_changed_nat_address() {
    let pair = Pair::new();
    let path = UdpPath::new(pair.target().addr, Duration::from_millis(10), |_| Some(Duration::ZERO));
    let to = target(path.addr, "pg2.test");
    let near = pair.client.connect(&to, &Profile::default(), PATIENCE).await.unwrap();
    write_all(&near, b"!").await.unwrap();
    let far = pair.accept().await;
    assert_eq!(read_exactly(&far, 1).await.unwrap(), b"!");
    let before = far.peer_addr().unwrap();
    let bytes = pattern(2_000_000, 5);
    let sending = async {
        write_all(&near, &bytes[..1_000_000]).await.unwrap();
        path.change_address();
        write_all(&near, &bytes[1_000_000..]).await.unwrap();
    };
    let ((), got) = tokio::join!(sending, read_exactly(&far, bytes.len()));
    assert!(got.unwrap() == bytes, "the stream was changed");
    assert_ne!(far.peer_addr().unwrap(), before);
    write_all(&far, b"and back").await.unwrap();
    assert_eq!(read_exactly(&near, 8).await.unwrap(), b"and back");
}

#[tokio::test]
async fn blocked_path_is_an_error_at_both_ends() {
    let profile = Profile { idle_timeout: Span(Duration::from_secs(6)), ..Profile::default() };
    let pair = Pair::with(profile.clone());
    let path = UdpPath::new(pair.target().addr, Duration::from_millis(1), |_| Some(Duration::ZERO));
    let near = pair.client.connect(&target(path.addr, "pg2.test"), &profile, PATIENCE).await.unwrap();
    write_all(&near, b"some of it").await.unwrap();
    let far = pair.accept().await;
    assert_eq!(read_exactly(&far, 10).await.unwrap(), b"some of it");
    path.cut(true);
    write_all(&near, b"lost").await.unwrap();
    near.shutdown_write().unwrap();
    for end in [&near, &far] {
        let error = soon(end.failed()).await;
        assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
        assert!(read_to_end(end).await.is_err(), "a lost connection is no end of a stream");
    }
    // Once the path works again, a new connection is made.
    path.cut(false);
    let near = pair.client.connect(&target(path.addr, "pg2.test"), &profile, PATIENCE).await.unwrap();
    write_all(&near, b"again").await.unwrap();
    assert_eq!(read_exactly(&pair.accept().await, 5).await.unwrap(), b"again");
}

#[tokio::test]
async fn garbage_is_ignored() {
    let pair = Pair::new();
    let (near, far) = pair.streams().await;
    let noise = UdpSocket::bind(loopback()).unwrap();
    let mut random = Random(99);
    for round in 0..3000 {
        let len = random.next() as usize % 1500 + 1;
        let mut packet = pattern(len, round + 1);
        if round % 2 == 0 {
            // A packet that starts like an Initial of version 1.
            packet.resize(1200, 0);
            packet[..6].copy_from_slice(&[0xc0 | (random.next() as u8 & 0x3f), 0, 0, 0, 1, 8]);
        }
        noise.send_to(&packet, pair.target().addr).unwrap();
        if round % 100 == 0 {
            // Paced, so that the listener's socket buffer is not what protects it.
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    write_all(&near, b"still here").await.unwrap();
    assert_eq!(read_exactly(&far, 10).await.unwrap(), b"still here");
    pair.streams().await;
}

#[tokio::test]
async fn answer_to_a_stranger_is_not_amplified() {
    let place = Place::new();
    let server = place.quic("pg2.test");
    let listener = server.listen(loopback(), &Profile::default()).unwrap();
    // Captures a genuine Initial on its way to a socket that never answers.
    let trap = UdpSocket::bind(loopback()).unwrap();
    trap.set_read_timeout(Some(PATIENCE)).unwrap();
    let client = place.quic("pg1.test");
    let to = target(trap.local_addr().unwrap(), "pg2.test");
    let limit = Duration::from_secs(2);
    assert!(client.connect(&to, &Profile::default(), limit).await.is_err());
    let mut initial = [0; 2000];
    let (len, _) = trap.recv_from(&mut initial).unwrap();

    let stranger = UdpSocket::bind(loopback()).unwrap();
    stranger.set_read_timeout(Some(PATIENCE)).unwrap();
    stranger.send_to(&initial[..len], listener.local_addr().unwrap()).unwrap();
    let mut back = 0;
    let mut answer = [0; 2000];
    while let Ok((len, _)) = stranger.recv_from(&mut answer) {
        assert_eq!(answer[0] & 0xf0, 0xf0, "only a Retry answers a stranger");
        back += len;
        // A further answer would follow soon.
        stranger.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
    }
    assert!(back > 0 && back < len, "{back} bytes for {len}");
}

/// A gateway in a process of its own, which runs this program again.
struct Gateway {
    child: Child,
    addr: std::net::SocketAddr,
}

impl Gateway {
    fn start(dir: &Path, addr: std::net::SocketAddr) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "quic::survival::gateway_process", "--ignored", "--nocapture", "--test-threads=1"])
            .env("QUIC_TEST_DIR", dir)
            .env("QUIC_TEST_ADDR", addr.to_string())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut said = lines
            .map_while(Result::ok)
            .filter_map(|line| line.split_once("listening on ").and_then(|(_, addr)| addr.trim().parse().ok()));
        Self { addr: said.next().expect("the gateway says where it listens"), child }
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Started by [`Gateway`].
#[tokio::test]
#[ignore = "is started by other tests"]
async fn gateway_process() {
    let Ok(dir) = std::env::var("QUIC_TEST_DIR") else { return };
    let dir = Path::new(&dir);
    let key = ResetKey::load_or_create(&dir.join("reset.key")).unwrap();
    let files = CredentialFiles {
        certificate: dir.join("pg2.test.pem"),
        key: dir.join("pg2.test-key.pem"),
        authorities: dir.join("ca.pem"),
    };
    let options = Options { reset_key: Some(key), ..Options::default() };
    let quic = Quic::new(Credentials::load(files).unwrap(), options).unwrap();
    let addr = std::env::var("QUIC_TEST_ADDR").unwrap().parse().unwrap();
    let listener = quic.listen(addr, &Profile::default()).unwrap();
    println!("listening on {}", listener.local_addr().unwrap());
    let mut kept = Vec::new();
    loop {
        let stream = accept(&*listener).await.unwrap();
        write_all(&stream, b"some of it").await.unwrap();
        kept.push(stream);
    }
}

#[tokio::test]
async fn restarted_gateway_resets_old_connections() {
    let place = Place::new();
    place.credentials("pg2.test");
    let client = place.quic("pg1.test");
    let mut gateway = Gateway::start(place.dir.path(), loopback());
    let to = target(gateway.addr, "pg2.test");
    let stream = client.connect(&to, &Profile::default(), PATIENCE).await.unwrap();
    write_all(&stream, b"!").await.unwrap();
    assert_eq!(read_exactly(&stream, 10).await.unwrap(), b"some of it");
    gateway.kill();
    assert!(stream.is_quiet().unwrap(), "a silence is no end");
    let gateway = Gateway::start(place.dir.path(), gateway.addr);
    // The next packet is answered with a stateless reset. It may be a late acknowledgement, after which a write fails.
    if let Err(error) = write_all(&stream, &[0; 500]).await {
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    }
    let error = soon(stream.failed()).await;
    assert!(error.to_string().contains("the peer was restarted"), "{error}");
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    assert!(read_to_end(&stream).await.is_err());
    // A new stream gets a new connection.
    let stream = client.connect(&to, &Profile::default(), PATIENCE).await.unwrap();
    write_all(&stream, b"!").await.unwrap();
    assert_eq!(read_exactly(&stream, 10).await.unwrap(), b"some of it");
    drop(gateway);
}

#[tokio::test]
async fn killed_gateway_is_an_error_after_the_idle_timeout() {
    let place = Place::new();
    place.credentials("pg2.test");
    let client = Quic::new(place.credentials("pg1.test"), Options::default()).unwrap();
    let profile = Profile { idle_timeout: Span(Duration::from_secs(6)), ..Profile::default() };
    let mut gateway = Gateway::start(place.dir.path(), loopback());
    let to = target(gateway.addr, "pg2.test");
    let stream = client.connect(&to, &profile, PATIENCE).await.unwrap();
    write_all(&stream, b"!").await.unwrap();
    assert_eq!(read_exactly(&stream, 10).await.unwrap(), b"some of it");
    // Keep-alives bridge a silence longer than the time-out.
    tokio::time::sleep(Duration::from_secs(9)).await;
    assert!(stream.is_quiet().unwrap());
    gateway.kill();
    let error = soon(stream.failed()).await;
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
    assert!(read_to_end(&stream).await.is_err(), "a lost connection is no end of a stream");
}

#[tokio::test]
async fn connections_to_a_dead_peer_can_be_abandoned() {
    let pair = Pair::new();
    let (near, far) = pair.streams().await;
    let abandon = |quic: &Quic, name: &str| {
        let pulses = quic.pulses(name);
        pulses.iter().for_each(|pulse| pulse.abandon(Instant::now(), Code::Reset, "its process has died"));
        pulses.len()
    };
    assert_eq!(abandon(&pair.client, "pg3.test"), 0);
    assert_eq!(abandon(&pair.client, "pg2.test"), 1);
    assert!(soon(near.failed()).await.to_string().contains("this end closed"));
    let error = soon(far.failed()).await;
    assert!(error.to_string().contains("its process has died"), "{error}");
    // The accepting side may learn of the death first, too.
    let (near, far) = pair.streams().await;
    assert_eq!(abandon(&pair.server, "PG1.test"), 1, "the one that has ended counts no more");
    assert!(soon(far.failed()).await.to_string().contains("this end closed"));
    assert!(soon(near.failed()).await.to_string().contains("its process has died"));
    pair.streams().await;
}

#[tokio::test]
async fn live_peer_answers_a_probe() {
    let (begin, pair) = (Instant::now(), Pair::new());
    let (near, far) = pair.streams().await;
    let pulse = |end: &Stream| end.pulse().unwrap();
    for end in [&near, &far].map(pulse) {
        // Waits for packets that still belong to the handshake.
        let mut before = end.heard().unwrap();
        soon(async {
            for _ in 0..20 {
                while end.heard().unwrap() == before {
                    assert!(end.ask().is_some());
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                before = end.heard().unwrap();
            }
        })
        .await;
    }
    // Nobody reads the questions, and a full buffer does no harm.
    for _ in 0..10_000 {
        assert!(pulse(&near).ask().is_some());
    }
    write_all(&near, b"still here").await.unwrap();
    assert_eq!(read_exactly(&far, 10).await.unwrap(), b"still here");
    // The connection outlives its streams, and streams of one connection share one pulse.
    let ends = [pulse(&near), pulse(&far)];
    assert_eq!(pair.client.pulses("pg2.test").iter().map(|all| all.id()).collect::<Vec<_>>(), [ends[0].id()]);
    drop((near, far));
    assert!(ends.iter().all(|end| end.heard().is_some() && end.ask().is_some()));
    ends[0].abandon(begin, Code::Reset, "it began later");
    assert!(ends[0].heard().is_some());
    ends[0].abandon(Instant::now(), Code::Reset, "its process has died");
    assert!(ends[0].heard().is_none() && ends[0].ask().is_none());
}
