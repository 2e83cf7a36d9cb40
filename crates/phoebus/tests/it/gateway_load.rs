//! Two thousand concurrent sessions over two gateways, with random sizes, half-closes and aborts. Every byte is right,
//! every session ends as planned, and no descriptor is leaked.

use crate::support;
use phoebus_proto::endpoint::{Endpoint, EndpointRef};
use phoebus_proto::session::initiator::{Initiator, State};
use phoebus_proto::session::message::Hello;
use phoebus_wan::model::Rng;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use support::{open, pair, session, wait_until};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Barrier;
use tokio::task::JoinSet;

const SESSIONS: u64 = 2000;
/// Changes every session's plan; printed when one fails.
const SEED: u64 = 0x5eed_0001;

/// The next `len` bytes. Both ends derive the same plan and the same bytes from a session's number.
fn bytes_of(rng: &mut Rng, len: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        bytes.extend_from_slice(&rng.next_u64().to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// Which end resets a session, and after how many bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cut {
    None,
    Client(usize),
    Destination(usize),
}

/// What happens in one session.
#[derive(Debug)]
struct Plan {
    up: Vec<u8>,
    down: Vec<u8>,
    /// Whether the destination answers only after the client's stream has ended, and the reverse.
    answer_after_request: bool,
    cut: Cut,
}

impl Plan {
    fn of(number: u64) -> Self {
        let mut rng = Rng::new(SEED ^ number.wrapping_mul(0x9e37_79b9));
        // Mostly small, sometimes large: 0 to 255 bytes, to 16 KiB, to 256 KiB.
        let mut size = || {
            let bits = [8, 14, 18][rng.below(3) as usize];
            rng.below(1 << bits) as usize
        };
        let (up, down) = (size(), size());
        let cut = match rng.below(8) {
            0 if up > 0 => Cut::Client(rng.below(up as u64) as usize),
            1 if down > 0 => Cut::Destination(rng.below(down as u64) as usize),
            _ => Cut::None,
        };
        let answer_after_request = cut == Cut::None && rng.next_u64().is_multiple_of(2);
        Self { up: bytes_of(&mut rng, up), down: bytes_of(&mut rng, down), answer_after_request, cut }
    }
}

/// Sends `out`, or only its first bytes and a reset. Expects `expected` from the other end, or a reset.
async fn play(stream: TcpStream, out: &[u8], expected: &[u8], cut: Option<usize>, cut_by_peer: bool, wait: bool) {
    let (mut reader, mut writer) = stream.into_split();
    if let Some(len) = cut {
        let _ = writer.write_all(&out[..len]).await;
        let stream = reader.reunite(writer).unwrap();
        stream.set_zero_linger().unwrap();
        return;
    }
    let mut got = Vec::new();
    let receive = async {
        let result = reader.read_to_end(&mut got).await;
        (result, got)
    };
    let send = async {
        writer.write_all(out).await?;
        writer.shutdown().await
    };
    let (sent, (received, got)) = if wait {
        let received = receive.await;
        (send.await, received)
    } else {
        tokio::join!(send, receive)
    };
    if cut_by_peer {
        // The kernel reports a reset once, to the call that comes first.
        let error = sent.and(received.map(|_| ())).expect_err("a session that was cut must not end cleanly");
        assert!(matches!(error.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe), "{error}");
        assert!(expected.starts_with(&got), "what came before the cut was changed");
    } else {
        sent.unwrap();
        received.unwrap();
        assert!(got == expected, "{} bytes came, {} were sent", got.len(), expected.len());
    }
}

async fn connect(gateways: [SocketAddr; 2], destination: SocketAddr) -> io::Result<TcpStream> {
    let (destination, path) = (Endpoint::from(destination), [EndpointRef::from(gateways[1])]);
    let request = open(session(), destination.as_ref(), &path);
    let mut client = Initiator::connect(vec![0; 1024], Vec::new(), &Hello::of(""), None, &request).unwrap();
    let mut stream = TcpStream::connect(gateways[0]).await?;
    stream.write_all(client.outgoing()).await?;
    client.sent(usize::MAX);
    while client.state() == State::Opening {
        let n = stream.read(client.space().unwrap()).await?;
        assert!(n > 0, "the gateway closed in mid-handshake");
        client.received(n).unwrap();
    }
    assert_eq!(client.state(), State::Opened, "{:?}", client.refused());
    Ok(stream)
}

async fn client(number: u64, gateways: [SocketAddr; 2], destination: SocketAddr, all_open: Arc<Barrier>) {
    let plan = Plan::of(number);
    let mut stream = connect(gateways, destination).await.unwrap();
    stream.write_all(&number.to_le_bytes()).await.unwrap();
    // The session is open at both ends before either end resets it.
    stream.read_exact(&mut [0; 1]).await.unwrap();
    all_open.wait().await;
    let cut = if let Cut::Client(len) = plan.cut { Some(len) } else { None };
    let by_peer = matches!(plan.cut, Cut::Destination(_));
    play(stream, &plan.up, &plan.down, cut, by_peer, false).await;
}

async fn destination(mut stream: TcpStream) {
    let mut number = [0; 8];
    stream.read_exact(&mut number).await.unwrap();
    stream.write_all(b"+").await.unwrap();
    let plan = Plan::of(u64::from_le_bytes(number));
    let cut = if let Cut::Destination(len) = plan.cut { Some(len) } else { None };
    let by_peer = matches!(plan.cut, Cut::Client(_));
    play(stream, &plan.down, &plan.up, cut, by_peer, plan.answer_after_request).await;
}

#[test]
fn two_thousand_sessions_at_once() {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let raised = rustix::process::Rlimit { current: limit.maximum, maximum: limit.maximum };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, raised).unwrap();

    // All clients may connect before the first is served, and the last is served after all others. So no limit may be
    // below their number, nor below that time.
    let more = "[limits]\nsessions = 3000\nsessions_per_source = 3000\nhandshakes = 3000\nhandshakes_per_source = 3000\n\
                handshake_timeout = \"4m\"\nconnect_timeout = \"4m\"\n";
    let (first, second) = pair(more, more);
    let gateways = [first.addr, second.addr];
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let all_open = Arc::new(Barrier::new(SESSIONS as usize));
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut sessions = JoinSet::new();
            for _ in 0..SESSIONS {
                sessions.spawn(destination(listener.accept().await.unwrap().0));
            }
            while let Some(result) = sessions.join_next().await {
                result.unwrap();
            }
        });
        for number in 0..SESSIONS {
            tasks.spawn(client(number, gateways, addr, all_open.clone()));
        }
        let all = async {
            while let Some(result) = tasks.join_next().await {
                result.unwrap_or_else(|error| panic!("seed {SEED:#x}: {error}"));
            }
        };
        tokio::time::timeout(Duration::from_secs(240), all).await.expect("sessions hang");
    });
    for gateway in [&first, &second] {
        wait_until(
            || gateway.status()["sessions"].as_array().is_some_and(Vec::is_empty),
            || format!("sessions are left: {}", gateway.status()["sessions"]),
        );
        // Listeners, the pool of pipes and idle connections remain, but not the two sockets of each session.
        wait_until(|| gateway.sockets() <= 40, || format!("{} sockets are left", gateway.sockets()));
        assert!(!gateway.log().contains("panicked"));
    }
}
