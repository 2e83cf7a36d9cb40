//! TCP streams between real sockets: how they end, what a relay may rely on, and what a profile sets.
#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

use phoebus_net::transport::{Change, ReadThreshold};
use phoebus_net::{Buffer, CongestionControl, PipePool, Profile, Stream, tcp};
use phoebus_proto::units::{BitRate, ByteSize, Span};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::task::Poll;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);

fn loopback() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

/// An accepted stream, and the ordinary socket at its other end.
async fn accepted(profile: &Profile) -> (Stream, TcpStream) {
    let listener = tcp::listen(loopback(), profile).unwrap();
    let peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    peer.set_read_timeout(Some(PATIENCE)).unwrap();
    (listener.accept().await.unwrap().0.into_stream().unwrap(), peer)
}

/// A connected stream, and the ordinary socket at its other end.
async fn connected(profile: &Profile) -> (Stream, TcpStream) {
    let listener = std::net::TcpListener::bind(loopback()).unwrap();
    let stream = tcp::connect(listener.local_addr().unwrap(), profile, PATIENCE).await.unwrap();
    let peer = listener.accept().unwrap().0;
    peer.set_read_timeout(Some(PATIENCE)).unwrap();
    (stream, peer)
}

fn read_end(peer: &mut TcpStream) -> io::Result<usize> {
    peer.read(&mut [0; 64])
}

#[tokio::test]
async fn dropped_stream_is_reset_and_never_ends_cleanly() {
    let (stream, mut peer) = accepted(&Profile::default()).await;
    drop(stream);
    assert_eq!(read_end(&mut peer).unwrap_err().kind(), ErrorKind::ConnectionReset);

    let (stream, mut peer) = connected(&Profile::default()).await;
    drop(stream);
    assert_eq!(read_end(&mut peer).unwrap_err().kind(), ErrorKind::ConnectionReset);
}

#[tokio::test]
async fn unaccepted_connection_is_reset() {
    let listener = tcp::listen(loopback(), &Profile::default()).unwrap();
    let mut peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    drop(listener);
    assert_eq!(read_end(&mut peer).unwrap_err().kind(), ErrorKind::ConnectionReset);
}

#[tokio::test]
async fn closed_stream_ends_cleanly_with_all_its_bytes() {
    let (stream, mut peer) = connected(&Profile::default()).await;
    let sent = vec![7u8; 100_000];
    let mut left = &sent[..];
    while !left.is_empty() {
        stream.writable().await.unwrap();
        match stream.try_write(left, false) {
            Ok(n) => left = &left[n..],
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
    }
    stream.shutdown_write().unwrap();
    peer.shutdown(Shutdown::Write).unwrap();
    stream.close();
    let mut got = Vec::new();
    peer.read_to_end(&mut got).unwrap();
    assert_eq!(got, sent);
}

#[tokio::test]
async fn delivered_waits_for_acknowledgement_of_the_end() {
    let (stream, mut peer) = connected(&Profile::default()).await;
    assert_eq!(stream.try_write(b"last words", false).unwrap(), 10);
    stream.shutdown_write().unwrap();
    stream.delivered(PATIENCE).await.unwrap();
    let mut got = Vec::new();
    peer.read_to_end(&mut got).unwrap();
    assert_eq!(got, b"last words");
}

#[tokio::test]
async fn delivered_times_out_when_the_peer_never_reads() {
    let (stream, peer) = connected(&Profile::default()).await;
    let block = vec![0u8; 1 << 20];
    while !matches!(stream.try_write(&block, false), Err(error) if error.kind() == ErrorKind::WouldBlock) {
        tokio::task::yield_now().await;
    }
    stream.shutdown_write().unwrap();
    let error = stream.delivered(Duration::from_millis(300)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    drop(peer);
    assert_eq!(stream.delivered(PATIENCE).await.unwrap_err().kind(), ErrorKind::ConnectionReset);
}

#[tokio::test]
async fn reset_is_noticed_without_reading() {
    let (stream, mut peer) = accepted(&Profile::default()).await;
    peer.write_all(&[1; 4096]).unwrap();
    stream.readable().await.unwrap();
    // Unread data, and even the end of the stream, are not failures.
    assert!(tokio::time::timeout(Duration::from_millis(50), stream.failed()).await.is_err());
    socket2::SockRef::from(&peer).set_linger(Some(Duration::ZERO)).unwrap();
    drop(peer);
    let error = tokio::time::timeout(PATIENCE, stream.failed()).await.unwrap();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
}

#[tokio::test]
async fn end_of_both_directions_is_no_failure() {
    let (stream, peer) = accepted(&Profile::default()).await;
    peer.shutdown(Shutdown::Write).unwrap();
    stream.readable().await.unwrap();
    stream.shutdown_write().unwrap();
    stream.delivered(PATIENCE).await.unwrap();
    assert!(tokio::time::timeout(Duration::from_millis(50), stream.failed()).await.is_err());
}

#[tokio::test]
async fn idle_connection_reports_end_and_reset() {
    let (stream, mut peer) = connected(&Profile::default()).await;
    assert!(stream.is_quiet().unwrap());
    peer.write_all(b"?").unwrap();
    stream.readable().await.unwrap();
    assert!(!stream.is_quiet().unwrap());

    let (stream, peer) = connected(&Profile::default()).await;
    drop(peer);
    stream.readable().await.unwrap();
    assert!(!stream.is_quiet().unwrap());
}

/// Relays all of `from` to `to` through carriers of `pool`.
async fn pump(from: &Stream, to: &Stream, pool: &std::sync::Arc<PipePool>) {
    loop {
        from.readable().await.unwrap();
        let mut carrier = pool.carrier(from, to);
        match carrier.fill(from, 1 << 20) {
            Ok(0) => return to.shutdown_write().unwrap(),
            Ok(n) => assert_eq!(carrier.len(), n),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock);
                continue;
            }
        }
        while !carrier.is_empty() {
            to.writable().await.unwrap();
            if let Err(error) = carrier.drain(to) {
                assert_eq!(error.kind(), ErrorKind::WouldBlock);
            }
        }
    }
}

#[tokio::test]
async fn carriers_deliver_every_byte_with_and_without_pipes() {
    for pipes in [4, 0] {
        let pool = PipePool::new(pipes, 256 << 10);
        let (from, mut source) = accepted(&Profile::default()).await;
        let (to, mut sink) = connected(&Profile::default()).await;
        let data: Vec<u8> = (0..5_000_000u32).map(|i| i.wrapping_mul(2_654_435_761).to_be_bytes()[0]).collect();
        let expected = data.clone();
        let writer = std::thread::spawn(move || {
            let (small, large) = data.split_at(2000);
            small.chunks(1).for_each(|byte| source.write_all(byte).unwrap());
            large.chunks(77_777).for_each(|chunk| source.write_all(chunk).unwrap());
        });
        let reader = std::thread::spawn(move || {
            let mut got = Vec::new();
            sink.read_to_end(&mut got).unwrap();
            got
        });
        pump(&from, &to, &pool).await;
        writer.join().unwrap();
        assert!(reader.join().unwrap() == expected, "with {pipes} pipes");
        let (existing, idle) = pool.usage();
        assert_eq!((existing, idle), (pipes.min(1), pipes.min(1)));
    }
}

#[tokio::test]
async fn nonempty_pipe_is_not_reused() {
    let pool = PipePool::new(1, 64 << 10);
    let (from, mut source) = accepted(&Profile::default()).await;
    source.write_all(b"secret").unwrap();
    from.readable().await.unwrap();
    let mut carrier = pool.carrier(&from, &from);
    assert_eq!(carrier.fill(&from, 64).unwrap(), 6);
    drop(carrier);
    assert_eq!(pool.usage(), (0, 0));
}

#[tokio::test]
async fn profile_applies_to_accepted_and_connected_streams() {
    let profile = Profile {
        send_buffer: Buffer::Bytes(ByteSize(64 << 10)),
        receive_buffer: Buffer::Bytes(ByteSize(128 << 10)),
        congestion_control: CongestionControl::Reno,
        keepalive_idle: Span(Duration::from_secs(33)),
        ..Profile::default()
    };
    for (stream, _peer) in [accepted(&profile).await, connected(&profile).await] {
        let stats = stream.stats().unwrap();
        assert_eq!((stats.send_buffer, stats.receive_buffer), (128 << 10, 256 << 10), "twice what was asked for");
        assert_eq!(stats.congestion_control, "reno");
        assert_eq!(stream.note(), None);
    }
}

fn threshold(bytes: u64) -> Change {
    Change::ReadThreshold(ReadThreshold { bytes, within: Duration::from_millis(2) })
}

#[tokio::test]
async fn stream_becomes_readable_at_its_threshold() {
    for (stream, mut peer) in [accepted(&Profile::default()).await, connected(&Profile::default()).await] {
        let is_readable = || std::future::poll_fn(|cx| Poll::Ready(stream.poll_read_ready(cx).is_ready()));
        let mut buffer = [0; 64];
        // A read finds nothing, and clears the readiness that every new connection is assumed to have.
        assert_eq!(stream.try_read(&mut buffer).unwrap_err().kind(), ErrorKind::WouldBlock);
        stream.set(threshold(10)).unwrap();
        for (bytes, waits) in [(9, true), (1, false)] {
            peer.write_all(&vec![3; bytes]).unwrap();
            while stream.is_quiet().unwrap() {
                tokio::task::yield_now().await;
            }
            if waits {
                assert!(!is_readable().await, "fewer bytes than the threshold");
            } else {
                stream.readable().await.unwrap();
            }
        }
        assert_eq!(stream.try_read(&mut buffer).unwrap(), 10);
        // The read was short: another would find nothing.
        assert_eq!(stream.try_read(&mut buffer).unwrap_err().kind(), ErrorKind::WouldBlock);
        peer.write_all(&[4; 3]).unwrap();
        while stream.is_quiet().unwrap() {
            tokio::task::yield_now().await;
        }
        assert!(!is_readable().await);
        stream.set(threshold(1)).unwrap();
        stream.readable().await.unwrap();
        assert_eq!(stream.try_read(&mut buffer).unwrap(), 3);
        // What lies behind an urgent byte waits until the threshold is lowered.
        stream.set(threshold(2)).unwrap();
        peer.write_all(b"abc").unwrap();
        rustix::net::send(&peer, b"!", rustix::net::SendFlags::OOB).unwrap();
        peer.write_all(b"de").unwrap();
        stream.readable().await.unwrap();
        assert_eq!(stream.try_read(&mut buffer).unwrap(), 3);
        stream.set(threshold(1)).unwrap();
        stream.readable().await.unwrap();
        assert_eq!(stream.try_read(&mut buffer).unwrap(), 2);
        // An end of stream counts at any threshold.
        stream.set(threshold(1000)).unwrap();
        peer.shutdown(Shutdown::Write).unwrap();
        stream.readable().await.unwrap();
        assert_eq!(stream.try_read(&mut buffer).unwrap(), 0);
    }
}

#[tokio::test]
async fn settings_change_while_a_stream_is_open() {
    let profile = Profile { congestion_control: CongestionControl::Cubic, ..Profile::default() };
    for (stream, mut peer) in [accepted(&profile).await, connected(&profile).await] {
        assert_eq!(stream.stats().unwrap().congestion_control, "cubic");
        stream.set(Change::CongestionControl(CongestionControl::Reno)).unwrap();
        stream.set(Change::SendBuffer(64 << 10)).unwrap();
        stream.set(Change::ReceiveBuffer(128 << 10)).unwrap();
        stream.set(Change::Rate(Some(BitRate(80_000_000)))).unwrap();
        let stats = stream.stats().unwrap();
        assert_eq!((stats.send_buffer, stats.receive_buffer), (128 << 10, 256 << 10), "twice what was asked for");
        assert_eq!(stats.congestion_control, "reno");
        assert!((1..=10_000_000).contains(&stats.pacing_rate), "{stats:?}");
        // The changes leave the data intact, and an impossible change is an error.
        let unheard_of = stream.set(Change::CongestionControl(CongestionControl::Native)).unwrap_err();
        assert_eq!(unheard_of.kind(), ErrorKind::Unsupported);
        assert_eq!(stream.try_write(&[5; 1000], false).unwrap(), 1000);
        peer.read_exact(&mut [0; 1000]).unwrap();
        // Statistics are complete once everything is acknowledged.
        stream.delivered(PATIENCE).await.unwrap();
        let stats = stream.stats().unwrap();
        // The deviation is 0 if all round trips take the same time.
        assert!(stats.rtt_var_us < 1_000_000 && stats.min_rtt_us > 0 && stats.delivery_rate > 0, "{stats:?}");
    }
}

#[tokio::test]
async fn buffer_above_the_host_s_limit_is_reported() {
    let profile = Profile { receive_buffer: Buffer::Bytes(ByteSize(1 << 30)), ..Profile::default() };
    let (stream, _peer) = connected(&profile).await;
    let note = stream.note().unwrap();
    assert!(note.contains("asked for a receive buffer of 1073741824 bytes"), "{note}");
    assert!(note.contains("net.core.rmem_max"), "{note}");
}

#[tokio::test]
async fn multipath_streams_carry_data_or_note_the_fallback() {
    let profile = Profile { multipath: true, ..Profile::default() };
    let (stream, mut peer) = accepted(&profile).await;
    peer.write_all(b"hello").unwrap();
    stream.readable().await.unwrap();
    let mut got = [0; 8];
    assert_eq!(stream.try_read(&mut got).unwrap(), 5);
    assert!(stream.note().is_none_or(|note| note.contains("MPTCP")));
    drop(stream);
    assert_eq!(read_end(&mut peer).unwrap_err().kind(), ErrorKind::ConnectionReset);
}

#[tokio::test]
async fn statistics_count_bytes_and_time() {
    let (stream, mut peer) = connected(&Profile::default()).await;
    assert_eq!(stream.try_write(&[5; 1000], false).unwrap(), 1000);
    peer.read_exact(&mut [0; 1000]).unwrap();
    peer.write_all(&[6; 300]).unwrap();
    stream.readable().await.unwrap();
    let stats = stream.stats().unwrap();
    assert_eq!((stats.bytes_sent, stats.bytes_received), (1000, 300));
    assert!(stats.rtt_us > 0 && stats.congestion_window > 0 && !stats.congestion_control.is_empty());
    assert_eq!((stats.unheard(), stats.closed), (Duration::ZERO, false));
}

#[tokio::test]
async fn statistics_contain_times_and_rates() {
    let (stream, mut peer) = connected(&Profile::default()).await;
    let reader = std::thread::spawn(move || io::copy(&mut peer, &mut io::sink()).unwrap());
    let mut sent = 0;
    while sent < 20_000_000 {
        stream.writable().await.unwrap();
        sent += stream.try_write(&[7; 100_000], false).unwrap_or(0);
    }
    let stats = stream.stats().unwrap();
    // The deviation is 0 if all round trips take the same time.
    assert!(
        stats.rtt_var_us < 1_000_000 && stats.min_rtt_us > 0 && stats.min_rtt_us <= stats.rtt_us.max(1000),
        "{stats:?}"
    );
    assert!(stats.delivery_rate > 100_000 && stats.segment_size > 500, "{stats:?}");
    stream.shutdown_write().unwrap();
    assert_eq!(reader.join().unwrap() as usize, sent);
    stream.delivered(PATIENCE).await.unwrap();
    let stats = stream.stats().unwrap();
    assert_eq!((stats.in_flight, stats.unsent), (0, 0));
    assert_eq!(stats.bytes_sent - stats.bytes_retransmitted, sent as u64);

    // The peer does not read, so that written bytes fill the send buffer.
    let (stream, _peer) = connected(&Profile::default()).await;
    while stream.try_write(&[7; 100_000], false).is_ok() {}
    let stats = stream.stats().unwrap();
    assert!(stats.unsent > 0 && u64::from(stats.unsent) + stats.bytes_sent <= 2 * stats.send_buffer + (64 << 20));
}

#[tokio::test]
async fn settings_change_while_bytes_are_under_way() {
    let (stream, mut peer) = connected(&Profile::default()).await;
    let reader = std::thread::spawn(move || io::copy(&mut peer, &mut io::sink()).unwrap());
    let mut sent = 0;
    for control in [CongestionControl::Reno, CongestionControl::Cubic] {
        for size in [100_000, 50_000] {
            stream.set(Change::CongestionControl(control)).unwrap();
            stream.set(Change::SendBuffer(size)).unwrap();
            stream.set(Change::ReceiveBuffer(size / 2)).unwrap();
            stream.set(Change::Unsent(Some(size / 4))).unwrap();
            let stats = stream.stats().unwrap();
            assert_eq!(stats.congestion_control, control.to_string());
            // The kernel doubles the requested size.
            assert_eq!((stats.send_buffer, stats.receive_buffer), (2 * size, size));
            for _ in 0..20 {
                stream.writable().await.unwrap();
                sent += stream.try_write(&[7; 100_000], false).unwrap_or(0);
            }
        }
    }
    let error = stream.set(Change::CongestionControl(CongestionControl::Model)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert_eq!(stream.set(Change::SendBuffer(1 << 40)).unwrap_err().kind(), ErrorKind::InvalidInput);
    assert_eq!(stream.stats().unwrap().congestion_control, "cubic", "what is refused changes nothing");
    stream.shutdown_write().unwrap();
    assert_eq!(reader.join().unwrap() as usize, sent);
    stream.delivered(PATIENCE).await.unwrap();
}

/// At a bit per second, a segment takes hours. Nothing waits for it under a higher rate, which may come in the first
/// segments or later.
#[tokio::test]
async fn higher_rate_ends_the_wait_of_a_lower_one() {
    for before in [0, 3_000_000] {
        let (stream, mut peer) = connected(&Profile::default()).await;
        let reader = std::thread::spawn(move || io::copy(&mut peer, &mut io::sink()).unwrap());
        let mut sent = 0;
        while sent < before {
            stream.writable().await.unwrap();
            sent += stream.try_write(&[7; 10_000], false).unwrap_or(0);
        }
        stream.set(Change::Rate(Some(BitRate(1)))).unwrap();
        let written = async {
            loop {
                stream.writable().await.unwrap();
                sent += stream.try_write(&[7; 10_000], false).unwrap_or(0);
            }
        };
        let stalled = tokio::time::timeout(Duration::from_secs(1), written).await;
        stalled.unwrap_err();
        let stats = stream.stats().unwrap();
        assert!(stats.held_back > 0 || stats.unsent > 0, "{stats:?}");
        // Nothing moves meanwhile.
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert_eq!(stream.stats().unwrap().bytes_sent, stats.bytes_sent);
        stream.set(Change::Rate(Some(BitRate(100_000_000)))).unwrap();
        let all = sent + 200_000;
        while sent < all {
            tokio::time::timeout(PATIENCE, stream.writable()).await.unwrap().unwrap();
            sent += stream.try_write(&[7; 10_000], false).unwrap_or(0);
        }
        stream.shutdown_write().unwrap();
        stream.delivered(PATIENCE).await.unwrap();
        assert_eq!(reader.join().unwrap() as usize, sent);
    }
}

/// What the kernel sends at once it waits for afterwards, by the rate of that moment.
#[tokio::test]
async fn little_waits_unsent_at_a_low_rate() {
    const MOST: u32 = 1448;
    let (stream, peer) = connected(&Profile::default()).await;
    let (source, mut feeder) = connected(&Profile::default()).await;
    stream.set(Change::Rate(Some(BitRate(1_000_000)))).unwrap();
    // By copying, and by splicing.
    loop {
        match stream.try_write(&[7; 100_000], false) {
            Ok(n) => assert!(n > 0 && stream.stats().unwrap().unsent <= MOST, "{:?}", stream.stats()),
            Err(error) => break assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
    }
    feeder.write_all(&[8; 60_000]).unwrap();
    source.readable().await.unwrap();
    let mut carrier = PipePool::new(1, 64 << 10).carrier(&source, &stream);
    carrier.fill(&source, 60_000).unwrap();
    let mut spliced = 0;
    while spliced < 10_000 {
        stream.writable().await.unwrap();
        spliced += carrier.drain(&stream).unwrap();
        assert!(stream.stats().unwrap().unsent <= MOST, "{:?}", stream.stats());
    }
    // Without the rate, all goes at once, when the kernel's own rate has risen.
    stream.set(Change::Rate(None)).unwrap();
    let rose = async {
        loop {
            stream.writable().await.unwrap();
            let pacing_rate = stream.stats().unwrap().pacing_rate;
            match stream.try_write(&[7; 50_000], false) {
                Ok(50_000) => return,
                Ok(_) => assert!(pacing_rate < 6_553_600, "{pacing_rate}"),
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
            }
        }
    };
    tokio::time::timeout(PATIENCE, rose).await.unwrap();
    // A writer that waits learns of a reset.
    stream.set(Change::Rate(Some(BitRate(10_000)))).unwrap();
    while stream.try_write(&[7; 1000], false).is_ok() {}
    // Closing resets what was not read.
    drop(peer);
    tokio::time::timeout(PATIENCE, stream.writable()).await.unwrap().unwrap();
    assert_eq!(stream.try_write(&[7; 1000], false).unwrap_err().kind(), ErrorKind::ConnectionReset);
}

#[tokio::test]
async fn listen_error_names_the_address() {
    let first = tcp::listen(loopback(), &Profile::default()).unwrap();
    let addr = first.local_addr().unwrap();
    let error = tcp::listen(addr, &Profile::default()).unwrap_err().to_string();
    assert_eq!(error, format!("cannot listen on {addr}: address already in use"));
}
