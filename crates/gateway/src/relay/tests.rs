//! Sessions through one relay, and through two relays with a framed hop between them, over loopback.

use super::recorded::{Recorded, Thresholds};
use super::*;
use crate::refusal::Refusal;
use crate::sessions::SessionInfo;
use phoebus_net::{Profile, Stream, tcp};
use phoebus_proto::session::Code;
use phoebus_proto::session::frame::Role;
use std::io;
use std::net::SocketAddr;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinHandle;

const PATIENCE: Duration = Duration::from_secs(30);
const ANY: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);

/// A program's plain connection, and the gateway's side of it.
async fn program() -> (TcpStream, Stream) {
    let listener = tcp::listen(ANY, &Profile::default()).unwrap();
    let program = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    (program, listener.accept().await.unwrap().0.into_stream().unwrap())
}

/// A connection between two gateways.
async fn hop() -> (Stream, Stream) {
    let listener = tcp::listen(ANY, &Profile::default()).unwrap();
    let to = listener.local_addr().unwrap();
    let profile = Profile::default();
    let (dialled, accepted) = tokio::join!(tcp::connect(to, &profile, PATIENCE), listener.accept());
    (dialled.unwrap(), accepted.unwrap().0.into_stream().unwrap())
}

/// The outcome of a relay.
struct Went {
    ended: Result<(), Broken>,
    up: u64,
    down: u64,
    /// The connections that are free for another session.
    first: Option<Stream>,
    second: Option<Stream>,
}

fn start(first: End, second: End) -> JoinHandle<Went> {
    tokio::spawn(async move {
        let streams = [first.stream.clone(), second.stream.clone()];
        let live = ActiveSession::new(
            SessionInfo::default(),
            [&streams[0], &streams[1]],
            [crate::reserve::Segment::none().into(), crate::reserve::Segment::none().into()],
            [PATIENCE; 2],
        );
        let pool = PipePool::new(4, 256 << 10);
        let means = Means { pool, hold: 256 << 10, receive_coalescing: Duration::from_millis(1) };
        let mut relay = Relay::new(first, second, means);
        let ended = relay.run(&live).await;
        let (up, down) = live.bytes();
        if let Err(broken) = &ended {
            drop(streams);
            let reason = broken.failure.to_string();
            let refusal = Refusal::at("pg", broken.failure.code(), reason);
            let free = relay.pass_reset_on(&refusal.message("pg"), broken, &Arc::new(())).await;
            let [first, second] = free.map(|stream| stream.and_then(Arc::into_inner));
            return Went { ended, up, down, first, second };
        }
        let framed = [relay.first.is_framed(), relay.second.is_framed()];
        drop(relay);
        let mut free = streams.into_iter().zip(framed).map(|(stream, framed)| {
            stream.disarm();
            framed.then(|| Arc::into_inner(stream).expect("the relay has let go"))
        });
        Went { ended, up, down, first: free.next().flatten(), second: free.next().flatten() }
    })
}

fn raw(stream: Stream) -> End {
    End::raw(Arc::new(stream))
}

fn framed(stream: Stream, role: Role) -> End {
    End::framed(Arc::new(stream), role, 64)
}

/// client ─raw─ relay ─raw─ destination.
async fn single() -> (TcpStream, TcpStream, JoinHandle<Went>) {
    let (client, a) = program().await;
    let (destination, b) = program().await;
    (client, destination, start(raw(a), raw(b)))
}

/// client ─raw─ relay ═framed═ relay ─raw─ destination.
async fn chain() -> (TcpStream, TcpStream, [JoinHandle<Went>; 2]) {
    let (up, down) = hop().await;
    chain_over(up, down).await
}

async fn chain_over(up: Stream, down: Stream) -> (TcpStream, TcpStream, [JoinHandle<Went>; 2]) {
    let (client, a) = program().await;
    let (destination, b) = program().await;
    let first = start(raw(a), framed(up, Role::Initiator));
    let second = start(framed(down, Role::Acceptor), raw(b));
    (client, destination, [first, second])
}

/// Pseudo-random bytes, so that a shifted or repeated part is detected.
fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut x = seed | 1;
    (0..len)
        .map(|_| {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            (x >> 32) as u8
        })
        .collect()
}

/// Sends `up` and `down` concurrently, closes both streams, and checks what arrives.
async fn exchange(client: &mut TcpStream, destination: &mut TcpStream, up: &[u8], down: &[u8]) {
    let (mut cr, mut cw) = client.split();
    let (mut dr, mut dw) = destination.split();
    let send_up = async {
        cw.write_all(up).await.unwrap();
        cw.shutdown().await.unwrap();
    };
    let send_down = async {
        dw.write_all(down).await.unwrap();
        dw.shutdown().await.unwrap();
    };
    let (mut got_up, mut got_down) = (Vec::new(), Vec::new());
    let (_, _, a, b) = tokio::join!(send_up, send_down, dr.read_to_end(&mut got_up), cr.read_to_end(&mut got_down));
    a.unwrap();
    b.unwrap();
    assert!(got_up == up, "the upward stream was changed");
    assert!(got_down == down, "the downward stream was changed");
}

fn whole(went: &Went, up: &[u8], down: &[u8]) {
    assert!(went.ended.is_ok(), "{:?}", went.ended);
    assert_eq!((went.up, went.down), (up.len() as u64, down.len() as u64));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn relay_delivers_both_streams_and_their_ends() {
    let (up, down) = (pattern(3_000_001, 3), pattern(2_000_003, 5));
    let (mut client, mut destination, task) = single().await;
    exchange(&mut client, &mut destination, &up, &down).await;
    whole(&task.await.unwrap(), &up, &down);

    let (mut client, mut destination, tasks) = chain().await;
    exchange(&mut client, &mut destination, &up, &down).await;
    for task in tasks {
        whole(&task.await.unwrap(), &up, &down);
    }
}

#[tokio::test]
async fn half_close_leaves_other_direction_open() {
    let (mut client, mut destination, tasks) = chain().await;
    client.write_all(b"request").await.unwrap();
    client.shutdown().await.unwrap();
    let mut request = Vec::new();
    destination.read_to_end(&mut request).await.unwrap();
    assert_eq!(request, b"request");
    for part in [&b"first"[..], b"second"] {
        destination.write_all(part).await.unwrap();
        let mut got = vec![0; part.len()];
        client.read_exact(&mut got).await.unwrap();
        assert_eq!(got, part);
    }
    assert!(tasks.iter().all(|task| !task.is_finished()));
    drop(destination);
    assert_eq!(client.read(&mut [0; 1]).await.unwrap(), 0);
    for task in tasks {
        task.await.unwrap().ended.unwrap();
    }
}

#[tokio::test]
async fn framed_connection_carries_successive_sessions() {
    let (mut up, mut down) = hop().await;
    let port = up.local_addr().unwrap();
    for round in 0..20 {
        let (mut client, mut destination, [first, second]) = chain_over(up, down).await;
        let (a, b) = (pattern(round * 1000, round as u64 + 1), pattern((20 - round) * 777, round as u64 + 7));
        exchange(&mut client, &mut destination, &a, &b).await;
        let (first, second) = (first.await.unwrap(), second.await.unwrap());
        assert!(first.ended.is_ok() && second.ended.is_ok(), "{:?} {:?}", first.ended, second.ended);
        up = first.second.expect("the connection is handed back");
        down = second.first.expect("the connection is handed back");
        assert_eq!(up.local_addr().unwrap(), port);
        assert!(up.is_quiet().unwrap() && down.is_quiet().unwrap(), "nothing of the session is left behind");
    }
}

/// Sends `bytes` in one direction, in parts of changing length, and waits for an answer to each part before it sends
/// the next. A relay that keeps the last bytes of a part would never end this.
async fn converse(from: &mut TcpStream, to: &mut TcpStream, parts: &[usize]) {
    for (number, len) in parts.iter().enumerate() {
        let bytes = pattern(*len, number as u64 + 1);
        let mut got = vec![0; *len];
        let (sent, received) = tokio::join!(from.write_all(&bytes), to.read_exact(&mut got));
        sent.unwrap();
        received.unwrap();
        assert!(got == bytes, "part {number} was changed");
        to.write_all(&[7]).await.unwrap();
        assert_eq!(from.read_u8().await.unwrap(), 7);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bulk_flow_that_pauses_is_delivered() {
    let parts: Vec<_> = (0..24).map(|n| if n % 3 == 0 { 24_000_000 } else { 1 + n * n * 997 }).collect();
    for (mut client, mut destination, tasks) in [
        {
            let (client, destination, task) = single().await;
            (client, destination, vec![task])
        },
        {
            let (client, destination, tasks) = chain().await;
            (client, destination, tasks.into())
        },
    ] {
        converse(&mut client, &mut destination, &parts).await;
        converse(&mut destination, &mut client, &parts[..4]).await;
        exchange(&mut client, &mut destination, b"", b"").await;
        for task in tasks {
            task.await.unwrap().ended.unwrap();
        }
    }
}

/// A relay whose first connection records its thresholds, in which a bulk flow has reached one.
async fn coalescing() -> (TcpStream, TcpStream, JoinHandle<Went>, Thresholds) {
    let ((mut client, a), (mut destination, b)) = (program().await, program().await);
    let (recorded, thresholds) = Recorded::new(a);
    let task = start(raw(recorded.into()), raw(b));
    let piece = pattern(64 << 10, 3);
    let begun = Instant::now();
    while thresholds.lock().unwrap().last().is_none_or(|threshold| *threshold == 1) {
        assert!(begun.elapsed() < PATIENCE, "the flow is not coalesced");
        let mut got = vec![0; piece.len()];
        let (sent, received) = tokio::join!(client.write_all(&piece), destination.read_exact(&mut got));
        sent.unwrap();
        received.unwrap();
    }
    (client, destination, task, thresholds)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn threshold_ends_with_the_session() {
    for how in ["end", "reset of the sender", "reset of the receiver"] {
        let (mut client, mut destination, task, thresholds) = coalescing().await;
        match how {
            "end" => exchange(&mut client, &mut destination, b"last", b"").await,
            "reset of the sender" => reset(client),
            _ => reset(destination),
        }
        assert_eq!(task.await.unwrap().ended.is_ok(), how == "end");
        assert_eq!(thresholds.lock().unwrap().last(), Some(&1), "{how}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn threshold_ends_while_receiver_takes_nothing() {
    let (mut client, destination, task, thresholds) = coalescing().await;
    // Everything that the sockets hold.
    fill(&mut client, &pattern(65_536, 9)).await;
    let begun = Instant::now();
    while thresholds.lock().unwrap().last() != Some(&1) {
        assert!(begun.elapsed() < PATIENCE, "the threshold stays");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    drop((client, destination, task));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connection_that_carried_a_bulk_flow_carries_a_byte() {
    let (up, down) = hop().await;
    let (mut client, mut destination, [first, second]) = chain_over(up, down).await;
    let bulk = pattern(80_000_000, 5);
    exchange(&mut client, &mut destination, &bulk, &bulk).await;
    let (first, second) = (first.await.unwrap(), second.await.unwrap());
    let (up, down) = (first.second.expect("it is handed back"), second.first.expect("it is handed back"));
    let (mut client, mut destination, tasks) = chain_over(up, down).await;
    converse(&mut client, &mut destination, &[1, 2]).await;
    converse(&mut destination, &mut client, &[1, 2]).await;
    drop((client, destination, tasks));
}

fn reset(stream: TcpStream) {
    stream.set_zero_linger().unwrap();
    drop(stream);
}

async fn assert_reset(stream: &mut TcpStream) {
    let mut rest = Vec::new();
    let error = stream.read_to_end(&mut rest).await.expect_err("a cut session must not end cleanly");
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
}

#[tokio::test]
async fn relay_forwards_reset_in_both_directions() {
    for from_client in [true, false] {
        let (mut client, mut destination, [first, second]) = chain().await;
        client.write_all(b"x").await.unwrap();
        destination.read_exact(&mut [0; 1]).await.unwrap();
        let survivor = if from_client {
            reset(client);
            &mut destination
        } else {
            reset(destination);
            &mut client
        };
        assert_reset(survivor).await;
        let near = if from_client { first.await.unwrap() } else { second.await.unwrap() };
        assert_eq!(near.ended.unwrap_err().failure.code(), Code::Reset);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn framed_connection_survives_session_resets() {
    // Over loopback, with segments of up to 64 KiB, the kernel sometimes advertises a window of less than one segment,
    // and nothing moves for seconds. Both sides give up such a connection.
    const ROUNDS: usize = 24;
    let mut kept = 0;
    let (mut up, mut down) = hop().await;
    for round in 0..ROUNDS {
        let (client, destination, [first, second]) = chain_over(up, down).await;
        let (goes, stays) = if round & 1 == 0 { (client, destination) } else { (destination, client) };
        // Reset an idle session, or one with full-speed streams in one or both directions.
        let (sends, receives) = (round & 2 != 0, round & 4 != 0);
        let stays = tokio::spawn(run_until_reset(stays, receives));
        transfer_then_reset(goes, sends, receives).await;
        assert_eq!(stays.await.unwrap(), io::ErrorKind::ConnectionReset);
        let (first, second) = (first.await.unwrap(), second.await.unwrap());
        assert!(first.ended.is_err() && second.ended.is_err());
        (up, down) = match (first.second, second.first) {
            (Some(up), Some(down)) => {
                assert!(up.is_quiet().unwrap() && down.is_quiet().unwrap(), "nothing of the session is left behind");
                kept += 1;
                (up, down)
            }
            _ => hop().await,
        };
    }
    assert!(kept > ROUNDS / 2, "of {ROUNDS} connections {kept} were kept");
    let (mut client, mut destination, tasks) = chain_over(up, down).await;
    let bytes = pattern(1_000_001, 11);
    exchange(&mut client, &mut destination, &bytes, &bytes).await;
    for task in tasks {
        whole(&task.await.unwrap(), &bytes, &bytes);
    }
}

/// Reads, and writes if it `sends`, until the session fails. Returns the error. The kernel reports it only to the first
/// caller.
async fn run_until_reset(stream: TcpStream, sends: bool) -> io::ErrorKind {
    let (mut read, mut write) = stream.into_split();
    let writer = tokio::spawn(async move {
        let bytes = pattern(65_536, 13);
        if !sends {
            return Ok(write);
        }
        loop {
            if let Err(error) = write.write_all(&bytes).await {
                return Err(error.kind());
            }
        }
    });
    let mut buffer = vec![0; 65_536];
    let reader = loop {
        match read.read(&mut buffer).await {
            Ok(0) => break None,
            Ok(_) => {}
            Err(error) => break Some(error.kind()),
        }
    };
    let writer = writer.await.unwrap().err();
    reader.or(writer).expect("a cut session must not end cleanly")
}

/// Moves some megabytes, then resets the connection with more in flight.
async fn transfer_then_reset(mut stream: TcpStream, sends: bool, receives: bool) {
    let bytes = pattern(3_000_000, 17);
    let (mut read, mut write) = stream.split();
    let send = async {
        if sends {
            write.write_all(&bytes).await.unwrap();
        }
    };
    let receive = async {
        if receives {
            read.read_exact(&mut vec![0; 3_000_000]).await.unwrap();
        }
    };
    tokio::join!(send, receive);
    reset(stream);
}

#[tokio::test]
async fn reset_crosses_framed_hop_whose_receiver_stalls() {
    for from_client in [true, false] {
        let (up, down) = hop().await;
        let (client, a) = small_program().await;
        let (destination, b) = small_program().await;
        let tasks = [start(raw(a), framed(up, Role::Initiator)), start(framed(down, Role::Acceptor), raw(b))];
        let (mut goes, mut stays) = if from_client { (client, destination) } else { (destination, client) };
        assert!(fill(&mut goes, &[1; 65_536]).await > 0);
        reset(goes);
        for task in tasks {
            let went = tokio::time::timeout(PATIENCE, task).await.unwrap().unwrap();
            assert_eq!(went.ended.unwrap_err().failure.code(), Code::Reset);
            assert!(went.first.is_none() && went.second.is_none(), "nobody knows what is still under way");
        }
        assert_reset(&mut stays).await;
    }
}

#[tokio::test]
async fn far_gateway_learns_why_session_failed() {
    let (client, mut destination, [first, second]) = chain().await;
    reset(client);
    assert_reset(&mut destination).await;
    let near = first.await.unwrap().ended.unwrap_err();
    assert_eq!((near.side, near.failure.to_string().as_str()), (Some(Side::First), "connection reset by peer"));
    let far = second.await.unwrap().ended.unwrap_err();
    assert_eq!(far.side, Some(Side::First));
    match far.failure {
        Failure::Reported { code, hop, reason } => {
            assert_eq!((code, hop.as_str(), reason.as_str()), (Code::Reset, "pg", "connection reset by peer"));
        }
        other => panic!("the reason was lost: {other:?}"),
    }
}

/// A connection with a small receive buffer, so that a sender soon stalls.
async fn small_program() -> (TcpStream, Stream) {
    let listener = tcp::listen(ANY, &Profile::default()).unwrap();
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let program = socket.connect(listener.local_addr().unwrap()).await.unwrap();
    (program, listener.accept().await.unwrap().0.into_stream().unwrap())
}

/// Writes until the stream stalls. Returns the number of bytes written.
async fn fill(stream: &mut TcpStream, piece: &[u8]) -> usize {
    let mut total = 0;
    while let Ok(n) = tokio::time::timeout(Duration::from_millis(300), stream.write(piece)).await {
        total += n.unwrap();
        if piece.len() == 1 && total >= 5000 {
            break;
        }
    }
    total
}

#[tokio::test]
async fn stalled_receiver_stalls_sender_without_loss() {
    let (mut client, a) = program().await;
    let (mut destination, b) = small_program().await;
    let task = start(raw(a), raw(b));
    let sent = fill(&mut client, &pattern(65_536, 9)).await;
    client.shutdown().await.unwrap();
    let mut got = Vec::new();
    let answer = async {
        destination.read_to_end(&mut got).await.unwrap();
        destination.shutdown().await.unwrap();
    };
    tokio::join!(answer, async { client.read(&mut [0; 1]).await.unwrap() });
    assert_eq!(got.len(), sent);
    task.await.unwrap().ended.unwrap();
}

#[tokio::test]
async fn reset_reaches_stalled_receiver() {
    for piece in [&[1u8][..], &[1u8; 65_536]] {
        let (mut client, a) = program().await;
        client.set_nodelay(true).unwrap();
        let (mut destination, b) = small_program().await;
        let task = start(raw(a), raw(b));
        assert!(fill(&mut client, piece).await > 0);
        reset(client);
        // The relay is blocked in a write and must still notice; the destination reads nothing until it has.
        let failure = tokio::time::timeout(PATIENCE, task).await.unwrap().unwrap().ended.unwrap_err();
        assert_eq!((failure.side, failure.failure.code()), (Some(Side::First), Code::Reset));
        assert_reset(&mut destination).await;
    }
}

#[tokio::test]
async fn failure_after_session_end_leaves_next_session_intact() {
    for at_destination in [true, false] {
        let (up, down) = hop().await;
        let ((client, a), (destination, b)) = (small_program().await, small_program().await);
        let tasks = [start(raw(a), framed(up, Role::Initiator)), start(framed(down, Role::Acceptor), raw(b))];
        let (mut reads, mut stops) = if at_destination { (client, destination) } else { (destination, client) };
        // More than the stalled receiver has room for, less than a gateway can hold for it.
        reads.write_all(&pattern(200_000, 3)).await.unwrap();
        reads.shutdown().await.unwrap();
        stops.shutdown().await.unwrap();
        assert_eq!(reads.read(&mut [0; 1]).await.unwrap(), 0);
        let [first, second] = tasks;
        let (ends, fails) = if at_destination { (first, second) } else { (second, first) };
        let ends = ends.await.unwrap();
        ends.ended.unwrap();
        // The session is over between the gateways.
        reset(stops);
        let fails = fails.await.unwrap();
        assert_eq!(fails.ended.unwrap_err().failure.code(), Code::Reset);
        let [one, other] = if at_destination { [ends.second, fails.first] } else { [ends.first, fails.second] };
        let (one, other) = (one.expect("it is handed back"), other.expect("it is handed back"));
        assert!(one.is_quiet().unwrap() && other.is_quiet().unwrap(), "nothing of the session is left behind");
    }
}

#[tokio::test]
async fn relay_rejects_framed_connection_without_shutdown() {
    let (up, down) = hop().await;
    let (mut client, a) = program().await;
    let task = start(raw(a), framed(up, Role::Initiator));
    down.shutdown_write().unwrap();
    let broken = task.await.unwrap().ended.unwrap_err();
    let said = broken.failure.to_string();
    assert_eq!((broken.side, said.as_str()), (Some(Side::Second), "the connection ended in the middle of a session"));
    assert_reset(&mut client).await;
}

#[tokio::test]
async fn relay_rejects_garbage_instead_of_frames() {
    let (up, down) = hop().await;
    let (mut client, a) = program().await;
    let task = start(raw(a), framed(up, Role::Initiator));
    down.try_write(&[0xff; 64], false).unwrap();
    let broken = task.await.unwrap().ended.unwrap_err();
    assert_eq!((broken.side, broken.failure.code()), (Some(Side::Second), Code::Protocol));
    assert_reset(&mut client).await;
}

#[tokio::test]
async fn dropped_session_resets_both_ends() {
    let (mut client, mut destination, task) = single().await;
    client.write_all(b"x").await.unwrap();
    destination.read_exact(&mut [0; 1]).await.unwrap();
    // As a panic inside the session's task would.
    task.abort();
    assert_reset(&mut client).await;
    assert_reset(&mut destination).await;
}
