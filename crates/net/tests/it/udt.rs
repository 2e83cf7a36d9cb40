//! UDT over real sockets: how connections end, how a shared port behaves, and what settings do.
#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

use phoebus_net::transport::{Change, ReadThreshold, Target, Transport};
use phoebus_net::udt::{Listener, Port, Udt};
use phoebus_net::{Buffer, CongestionControl, Error, Profile, Stream};
use phoebus_proto::units::{BitRate, ByteSize};
use std::cell::Cell;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::task::Poll;
use std::time::Duration;

/// Guards against hanging only.
const PATIENCE: Duration = Duration::from_secs(60);
const LIMIT: Duration = Duration::from_secs(50);

fn loopback() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, 0).into()
}

async fn in_time<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, work).await.expect("it hangs")
}

fn listen() -> Listener {
    Port::bind(loopback()).unwrap().listen(&Profile::default()).unwrap()
}

/// Both ends of a connection from a new port to `listener`.
async fn pair(listener: &Listener) -> (Stream, Stream) {
    let client = Port::bind(loopback()).unwrap();
    pair_from(&client, listener).await
}

async fn pair_from(client: &Port, listener: &Listener) -> (Stream, Stream) {
    let profile = Profile::default();
    let connect = client.connect(listener.port().local_addr(), &profile, LIMIT);
    let (connected, accepted) = in_time(async { tokio::join!(connect, listener.accept()) }).await;
    (connected.unwrap(), accepted.unwrap().0.into_stream())
}

async fn write(stream: &Stream, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        in_time(stream.writable()).await.unwrap();
        match stream.try_write(bytes, false) {
            Ok(n) => bytes = &bytes[n..],
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
    }
}

async fn read(stream: &Stream, len: usize) -> Vec<u8> {
    let (mut bytes, mut at) = (vec![0; len], 0);
    while at < len {
        in_time(stream.readable()).await.unwrap();
        match stream.try_read(&mut bytes[at..]) {
            Ok(n) => at += n,
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
    }
    bytes
}

fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|n| (n * 31 % 251) as u8).collect()
}

#[tokio::test]
async fn connection_becomes_readable_at_its_threshold() {
    let listener = listen();
    let (client, server) = pair(&listener).await;
    let is_readable = || std::future::poll_fn(|cx| Poll::Ready(server.poll_read_ready(cx).is_ready()));
    let arrived = async |all: u64| {
        while server.stats().unwrap().bytes_received < all {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let expected = ReadThreshold { bytes: 100_000, within: Duration::from_millis(2) };
    server.set(Change::ReadThreshold(expected)).unwrap();
    write(&client, &bytes(30_000)).await;
    in_time(arrived(30_000)).await;
    assert!(!is_readable().await);
    // It may be readable with less than what is expected. Who reads at once then waits for the rest below the threshold.
    write(&client, &bytes(70_000)).await;
    in_time(server.readable()).await.unwrap();
    in_time(arrived(100_000)).await;
    assert_eq!(read(&server, 100_000).await[30_000..], bytes(70_000));
    write(&client, &bytes(3)).await;
    in_time(arrived(100_003)).await;
    assert!(!is_readable().await);
    let (waited, ()) = tokio::join!(in_time(server.readable()), async {
        server.set(Change::ReadThreshold(ReadThreshold::NONE)).unwrap();
    });
    waited.unwrap();
    assert_eq!(read(&server, 3).await, bytes(3));
    // A failure counts at any threshold.
    server.set(Change::ReadThreshold(expected)).unwrap();
    drop(client);
    in_time(server.readable()).await.unwrap();
    assert_eq!(server.try_read(&mut [0; 8]).unwrap_err().kind(), ErrorKind::ConnectionReset);
}

#[tokio::test]
async fn busy_task_yields_to_others() {
    const LEN: usize = 100_000;
    let listener = listen();
    let (client, server) = pair(&listener).await;
    write(&client, &bytes(LEN)).await;
    in_time(async {
        while server.stats().unwrap().bytes_received < LEN as u64 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
    let turns = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let counted = turns.clone();
    let other = tokio::spawn(async move {
        loop {
            counted.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            tokio::task::yield_now().await;
        }
    });
    let reader = tokio::spawn(async move {
        for _ in 0..LEN {
            server.readable().await.unwrap();
            assert_eq!(server.try_read(&mut [0]).unwrap(), 1);
        }
    });
    in_time(reader).await.unwrap();
    let turns = turns.load(std::sync::atomic::Ordering::Relaxed);
    other.abort();
    assert!(turns > 100, "the other task had {turns} turns");
}

#[tokio::test]
async fn bytes_cross_both_ways_over_ipv4_and_ipv6() {
    for ip in [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()] {
        let transport = Udt::default();
        let listener = transport.listen(SocketAddr::new(ip, 0), &Profile::default()).unwrap();
        let target = Target { addr: listener.local_addr().unwrap(), name: "localhost".into(), early: false };
        let profile = Profile::default();
        let (client, pending) =
            in_time(async { tokio::join!(transport.connect(&target, &profile, LIMIT), listener.accept()) }).await;
        let (client, (pending, from)) = (client.unwrap(), pending.unwrap());
        let server = pending.handshake().await.unwrap();
        assert_eq!(server.peer_addr().unwrap(), from);
        assert_eq!(client.peer_addr().unwrap(), target.addr);
        let sent = bytes(20_000_000);
        let (_, _, there, back) = tokio::join!(
            write(&client, &sent),
            write(&server, &sent),
            read(&server, sent.len()),
            read(&client, sent.len())
        );
        assert!(there == sent && back == sent);
        in_time(client.delivered(Duration::MAX)).await.unwrap();
        assert_eq!(client.unacknowledged().unwrap(), 0);
        let stats = client.stats().unwrap();
        assert_eq!((stats.bytes_acked, stats.bytes_received), (20_000_000, 20_000_000));
        assert_eq!(stats.bytes_sent - stats.bytes_retransmitted, 20_000_000);
        assert!(stats.rtt_us > 0 && stats.congestion_control == "model" && !stats.closed);
        assert!(client.is_quiet().unwrap() && !client.has_authenticated_close());
        assert_eq!(client.local_addr().unwrap(), from);
    }
}

#[tokio::test]
async fn statistics_describe_the_path() {
    let listener = listen();
    let (client, server) = pair(&listener).await;
    // Acknowledgements come every 10 ms: written data is in flight until then, though a busy machine may look
    // too late.
    let sent = bytes(3_000_000);
    let mut most = 0;
    for _ in 0..100 {
        let written = Cell::new(false);
        let writing = async {
            write(&client, &sent).await;
            written.set(true);
        };
        let looking = async {
            let mut most = 0;
            while !written.get() || client.unacknowledged().unwrap() > 0 {
                most = most.max(client.stats().unwrap().in_flight);
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            most
        };
        let ((), got, seen) = in_time(async { tokio::join!(writing, read(&server, sent.len()), looking) }).await;
        assert!(got == sent);
        most = seen;
        if most > 0 {
            break;
        }
    }
    assert!(most > 0);
    let stats = client.stats().unwrap();
    assert!(stats.rtt_var_us > 0 && stats.min_rtt_us > 0 && stats.min_rtt_us <= stats.rtt_us, "{stats:?}");
    assert!(stats.delivery_rate > 10_000 && stats.congestion_window > 0 && stats.sending_period_ns > 0, "{stats:?}");
    assert_eq!((stats.in_flight, stats.unsent, stats.lost), (0, 0, 0));
    for change in [Change::SendBuffer(1), Change::ReceiveBuffer(1), Change::Unsent(None)] {
        assert_eq!(client.set(change).unwrap_err().kind(), ErrorKind::Unsupported);
    }
}

#[tokio::test]
async fn dropped_stream_is_an_error_after_the_earlier_bytes() {
    let listener = listen();
    let (client, server) = pair(&listener).await;
    write(&client, b"last words").await;
    in_time(client.delivered(Duration::MAX)).await.unwrap();
    drop(client);
    assert_eq!(in_time(server.failed()).await.kind(), ErrorKind::ConnectionReset);
    assert_eq!(read(&server, 10).await, b"last words");
    assert_eq!(server.try_read(&mut [0; 9]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    assert_eq!(server.try_write(b"x", false).unwrap_err().kind(), ErrorKind::ConnectionReset);
    assert_eq!(server.is_quiet().unwrap_err().kind(), ErrorKind::ConnectionReset);
    assert!(server.stats().unwrap().closed);
}

#[tokio::test]
async fn disarmed_stream_delivers_what_was_written() {
    let listener = listen();
    let port = Port::bind(loopback()).unwrap();
    let (client, server) = pair_from(&port, &listener).await;
    let sent = bytes(1_000_000);
    write(&client, &sent).await;
    assert_eq!(client.shutdown_write().unwrap_err().kind(), ErrorKind::Unsupported);
    client.close();
    assert_eq!(read(&server, sent.len()).await, sent);
    assert_eq!(in_time(server.failed()).await.kind(), ErrorKind::ConnectionReset);
    in_time(port.settled()).await;
}

#[tokio::test]
async fn idle_port_is_free_after_it_was_dropped() {
    for _ in 0..20 {
        let port = Port::bind(loopback()).unwrap();
        let addr = port.local_addr();
        // Its thread goes to sleep meanwhile.
        tokio::time::sleep(Duration::from_millis(5)).await;
        drop(port);
        in_time(async {
            while std::net::UdpSocket::bind(addr).is_err() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        })
        .await;
    }
}

#[tokio::test]
async fn unaccepted_connection_is_closed() {
    let listener = listen();
    let client = Port::bind(loopback()).unwrap();
    let stream = client.connect(listener.port().local_addr(), &Profile::default(), LIMIT).await.unwrap();
    drop(listener);
    assert_eq!(in_time(stream.failed()).await.kind(), ErrorKind::ConnectionReset);
}

#[tokio::test]
async fn connections_share_sockets_and_end_independently() {
    let listener = listen();
    let port = Port::bind(loopback()).unwrap();
    let mut streams = Vec::new();
    for _ in 0..100 {
        streams.push(pair_from(&port, &listener).await);
    }
    for (n, (client, server)) in streams.iter().enumerate() {
        write(client, &[n as u8; 30_000]).await;
        write(server, &[!(n as u8); 30_000]).await;
    }
    for (n, (client, server)) in streams.iter().enumerate() {
        assert_eq!(read(server, 30_000).await, [n as u8; 30_000]);
        assert_eq!(read(client, 30_000).await, [!(n as u8); 30_000]);
    }
    assert_eq!((port.connections(), listener.port().connections()), (100, 100));
    let (_, kept) = streams.swap_remove(50);
    assert_eq!(in_time(kept.failed()).await.kind(), ErrorKind::ConnectionReset);
    assert!(streams.iter().all(|(client, server)| client.is_quiet().unwrap() && server.is_quiet().unwrap()));
    drop((streams, kept));
    in_time(port.settled()).await;
    // Each connection stays in the table for some seconds to answer late packets.
    in_time(async {
        while port.connections() + listener.port().connections() > 0 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn absent_peer_is_a_timeout_and_harms_no_other_connection() {
    let listener = listen();
    let port = Port::bind(loopback()).unwrap();
    let (client, server) = pair_from(&port, &listener).await;
    // The kernel answers each request with an ICMP error.
    let nobody = UdpSocket::bind(loopback()).unwrap().local_addr().unwrap();
    let failed = port.connect(nobody, &Profile::default(), Duration::from_millis(600)).await.unwrap_err();
    assert!(matches!(failed, Error::Timeout { .. }), "{failed}");
    let v6 = port.connect((Ipv6Addr::LOCALHOST, 9).into(), &Profile::default(), LIMIT).await.unwrap_err();
    assert!(matches!(v6, Error::Connect { .. }), "{v6}");
    let (sent, _) = (bytes(100_000), write(&client, &bytes(100_000)).await);
    assert_eq!(read(&server, sent.len()).await, sent);
}

#[tokio::test]
async fn garbage_and_forged_requests_leave_no_state() {
    let listener = listen();
    let (client, server) = pair(&listener).await;
    let to = listener.port().local_addr();
    let attacker = UdpSocket::bind(loopback()).unwrap();
    attacker.set_nonblocking(true).unwrap();
    let mut x = 1u64;
    for round in 0..5000u32 {
        let mut datagram: Vec<u8> = (0..round % 200)
            .map(|_| {
                x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (x >> 56) as u8
            })
            .collect();
        if round % 2 == 0 && datagram.len() >= 64 {
            // A handshake request with a guessed cookie, or without one.
            datagram[..16].copy_from_slice(&[0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
            datagram[16..24].copy_from_slice(&[0, 0, 0, 4, 0, 0, 0, 1]);
            datagram[36..40].copy_from_slice(if round % 4 == 0 { &[0, 0, 0, 1] } else { &[0xff; 4] });
        }
        let _ = attacker.send_to(&datagram, to);
    }
    let sent = bytes(100_000);
    write(&client, &sent).await;
    assert_eq!(read(&server, sent.len()).await, sent);
    assert_eq!(listener.port().connections(), 1);
    let (mut answers, mut answer) = (0, [0; 100]);
    while let Ok((len, _)) = attacker.recv_from(&mut answer) {
        assert_eq!(len, 64, "an answer is no longer than its request");
        answers += 1;
    }
    assert!(answers > 0, "requests without a cookie are answered with one");
}

#[tokio::test]
async fn rendezvous_needs_no_listener() {
    let (one, other) = (Port::bind(loopback()).unwrap(), Port::bind(loopback()).unwrap());
    let profile = Profile::default();
    let (here, there) = in_time(async {
        tokio::join!(one.meet(other.local_addr(), &profile, LIMIT), other.meet(one.local_addr(), &profile, LIMIT))
    })
    .await;
    let (here, there) = (here.unwrap(), there.unwrap());
    write(&here, b"we have met").await;
    assert_eq!(read(&there, 11).await, b"we have met");
}

#[tokio::test]
async fn paused_reader_blocks_the_writer_and_rate_can_change() {
    let listener = listen();
    let (client, server) = pair(&listener).await;
    let piece = vec![7u8; 1 << 20];
    let mut written = 0u64;
    // Both buffers together hold less than this.
    while tokio::time::timeout(Duration::from_secs(2), client.writable()).await.is_ok() {
        written += client.try_write(&piece, false).unwrap_or(0) as u64;
        assert!(written < 200_000_000, "nothing stops the writer");
    }
    let mut read_bytes = 0;
    let mut buffer = vec![0; 1 << 20];
    while read_bytes < written {
        in_time(server.readable()).await.unwrap();
        read_bytes += server.try_read(&mut buffer).unwrap_or(0) as u64;
    }
    in_time(client.delivered(Duration::MAX)).await.unwrap();

    client.set(Change::Rate(Some(BitRate(80_000_000)))).unwrap();
    assert!(client.stats().unwrap().pacing_rate <= 10_000_000);
    client.set(Change::CongestionControl(CongestionControl::Native)).unwrap();
    assert_eq!(client.stats().unwrap().congestion_control, "native");
    assert_eq!(client.set(Change::SendBuffer(1)).unwrap_err().kind(), ErrorKind::Unsupported);
    assert_eq!(
        client.set(Change::CongestionControl(CongestionControl::Cubic)).unwrap_err().kind(),
        ErrorKind::InvalidInput
    );
}

/// Writes `block` to `client` over and over, starting at offset `at`, while nobody reads at `server`, until
/// nothing more arrives for half a second. Returns the number of bytes that `server` has received.
async fn taken(client: &Stream, server: &Stream, block: &[u8], at: &mut usize) -> u64 {
    let (mut most, mut quiet) = (0, 0);
    while quiet < 50 && most < 64 << 20 {
        while let Ok(n) = client.try_write(&block[*at..], false) {
            *at = (*at + n) % block.len();
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
        let received = server.stats().unwrap().bytes_received;
        quiet = if received > most { 0 } else { quiet + 1 };
        most = received;
    }
    most
}

#[tokio::test]
async fn unwidened_stream_limits_the_peer_and_loses_nothing() {
    let transport = Udt::default();
    let listener = transport.listen(loopback(), &Profile::default()).unwrap();
    let target = Target { addr: listener.local_addr().unwrap(), name: "localhost".into(), early: false };
    let profile = Profile { send_buffer: Buffer::Bytes(ByteSize(1 << 20)), ..Profile::default() };
    let (client, pending) =
        in_time(async { tokio::join!(transport.connect(&target, &profile, LIMIT), listener.accept()) }).await;
    let (client, server) = (client.unwrap(), pending.unwrap().0.handshake().await.unwrap());
    let (block, mut at) = (bytes(64 << 10), 0);
    let before = in_time(taken(&client, &server, &block, &mut at)).await;
    assert!(before > 0 && before <= profile.handshake_buffer.0, "{before} bytes were taken of a stranger");
    server.widen();
    let after = in_time(taken(&client, &server, &block, &mut at)).await;
    assert!(after >= 64 << 20, "{after} bytes were taken of a peer that is trusted");
    // Packets that did not fit were retransmitted: the bytes are those that were written.
    let all = read(&server, 16 << 20).await;
    assert!(all.chunks(block.len()).all(|part| part == block));
}

#[tokio::test]
async fn live_peer_answers_a_probe() {
    let listener = listen();
    let (client, server) = pair(&listener).await;
    write(&client, b"hello").await;
    assert_eq!(read(&server, 5).await, b"hello");
    let ends = [&client, &server].map(|end| end.pulse().unwrap());
    for end in &ends {
        let before = end.heard().unwrap();
        in_time(async {
            while end.heard().unwrap() == before {
                assert!(end.ask().is_some());
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        })
        .await;
    }
    // A connection that has ended says nothing about its peer.
    drop((client, server));
    in_time(async {
        while ends.iter().any(|end| end.heard().is_some() || end.ask().is_some()) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
}
