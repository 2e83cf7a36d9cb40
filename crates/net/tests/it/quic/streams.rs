//! Data transfer: both directions, many streams, back-pressure, statistics, rates.

use super::path::Path;
use super::place::{PATIENCE, Pair, Random, pattern, read, read_exactly, read_to_end, soon, target, write_all};
use phoebus_net::transport::{Change, Security, Transport};
use phoebus_net::{Buffer, Profile, Stream};
use phoebus_proto::units::{BitRate, ByteSize};
use std::io::ErrorKind;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Sends `bytes` in parts of random size, and ends the stream.
async fn send(stream: &Stream, bytes: &[u8], seed: u64) {
    let (mut random, mut left) = (Random(seed | 1), bytes);
    while !left.is_empty() {
        let n = (random.next() as usize % 50_000 + 1).min(left.len());
        write_all(stream, &left[..n]).await.unwrap();
        left = &left[n..];
    }
    stream.shutdown_write().unwrap();
}

/// Reads in parts of random size until the end.
async fn receive(stream: &Stream, seed: u64) -> Vec<u8> {
    let (mut random, mut all) = (Random(seed | 1), Vec::new());
    loop {
        let mut part = vec![0; random.next() as usize % 20_000 + 1];
        match read(stream, &mut part).await.unwrap() {
            0 => return all,
            n => all.extend_from_slice(&part[..n]),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_arrive_complete_and_end() {
    let pair = Pair::new();
    for seed in 1..6 {
        let (near, far) = pair.streams().await;
        let (up, down) = (pattern(300_000 * seed as usize, seed), pattern(1_000_003 / seed as usize, seed + 100));
        let (_, _, got_up, got_down) = tokio::join!(
            send(&near, &up, seed),
            send(&far, &down, seed + 7),
            receive(&far, seed + 8),
            receive(&near, seed + 9),
        );
        assert!(got_up == up && got_down == down, "a stream was changed");
        soon(near.delivered(Duration::MAX)).await.unwrap();
        soon(far.delivered(Duration::MAX)).await.unwrap();
        near.close();
        far.close();
    }
}

#[tokio::test]
async fn half_close_leaves_the_other_direction_open() {
    let pair = Pair::new();
    let (near, far) = pair.streams().await;
    write_all(&near, b"request").await.unwrap();
    near.shutdown_write().unwrap();
    assert_eq!(near.try_write(b"more", false).unwrap_err().kind(), ErrorKind::BrokenPipe);
    assert_eq!(read_to_end(&far).await.unwrap(), b"request");
    for part in [&b"first"[..], b"second"] {
        write_all(&far, part).await.unwrap();
        assert_eq!(read_exactly(&near, part.len()).await.unwrap(), part);
    }
    far.shutdown_write().unwrap();
    assert_eq!(read_to_end(&near).await.unwrap(), b"");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_streams_share_one_connection() {
    let pair = Arc::new(Pair::new());
    let echo = pair.clone();
    let echo = tokio::spawn(async move {
        let mut all = Vec::new();
        for _ in 0..200 {
            let far = echo.accept().await;
            all.push(tokio::spawn(async move {
                let bytes = read_to_end(&far).await.unwrap();
                write_all(&far, &bytes).await.unwrap();
                far.shutdown_write().unwrap();
                soon(far.delivered(Duration::MAX)).await.unwrap();
                far.close();
            }));
        }
        for one in all {
            one.await.unwrap();
        }
    });
    let mut all = Vec::new();
    for seed in 1..=200 {
        let pair = pair.clone();
        all.push(tokio::spawn(async move {
            let near = pair.connect().await;
            let bytes = pattern(20_000, seed);
            send(&near, &bytes, seed).await;
            assert!(read_to_end(&near).await.unwrap() == bytes, "stream {seed} was changed");
            near.local_addr().unwrap()
        }));
    }
    let mut locals = Vec::new();
    for one in all {
        locals.push(one.await.unwrap());
    }
    echo.await.unwrap();
    locals.dedup();
    assert_eq!(locals.len(), 1, "all went over one connection");
}

#[tokio::test]
async fn stopped_receiver_blocks_only_its_own_sender() {
    let window = 256 << 10;
    let buffer = Buffer::Bytes(ByteSize(window));
    let pair = Pair::with(Profile { receive_buffer: buffer, ..Profile::default() });
    let (near, far) = pair.streams().await;
    let bytes = pattern(4 << 20, 5);
    let mut sent = 0;
    while let Ok(ready) = tokio::time::timeout(Duration::from_secs(3), near.writable()).await {
        ready.unwrap();
        match near.try_write(&bytes[sent..], false) {
            Ok(n) => sent += n,
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
    }
    // The rest of the buffer is for data past a gap.
    let room = window / 4;
    assert_eq!(sent as u64 + 1, room, "as much as the receiver has room for, after the first byte");

    let (other, reader) = pair.streams().await;
    write_all(&other, b"goes on").await.unwrap();
    assert_eq!(read_exactly(&reader, 7).await.unwrap(), b"goes on");

    let (_, got) = tokio::join!(
        async {
            write_all(&near, &bytes[sent..]).await.unwrap();
            near.shutdown_write().unwrap();
        },
        read_to_end(&far)
    );
    assert!(got.unwrap() == bytes, "the stream was changed");
}

#[tokio::test]
async fn is_quiet_distinguishes_idle_from_readable() {
    let pair = Pair::new();
    let (near, far) = pair.streams().await;
    assert!(far.is_quiet().unwrap());
    write_all(&near, b"hello").await.unwrap();
    soon(far.readable()).await.unwrap();
    while far.is_quiet().unwrap() {
        soon(far.readable()).await.unwrap();
    }
    assert!(!far.is_quiet().unwrap(), "to look takes nothing away");
    assert_eq!(read_exactly(&far, 5).await.unwrap(), b"hello");
    assert!(far.is_quiet().unwrap());
    near.shutdown_write().unwrap();
    while far.is_quiet().unwrap() {
        soon(far.readable()).await.unwrap();
    }
    assert_eq!(read_to_end(&far).await.unwrap(), b"");
}

#[tokio::test]
async fn reader_is_woken_although_another_task_polls() {
    let pair = Pair::new();
    let (near, far) = pair.streams().await;
    let far = Arc::new(far);
    for round in 0..100u8 {
        let reader = far.clone();
        let reading = tokio::spawn(async move { read_exactly(&reader, 1).await.unwrap() });
        tokio::task::yield_now().await;
        let _ = (far.is_quiet(), far.stats(), far.unacknowledged());
        write_all(&near, &[round]).await.unwrap();
        assert_eq!(soon(reading).await.unwrap(), [round]);
    }
}

#[tokio::test]
async fn stream_reports_statistics_and_identities() {
    let pair = Pair::new();
    let (near, far) = pair.streams().await;
    let bytes = pattern(2_000_000, 3);
    let (_, got) = tokio::join!(send(&near, &bytes, 1), read_to_end(&far));
    assert_eq!(got.unwrap().len(), bytes.len());
    soon(near.delivered(Duration::MAX)).await.unwrap();
    let (sent, received) = (near.stats().unwrap(), far.stats().unwrap());
    assert_eq!(sent.bytes_acked, 2_000_001);
    assert!(sent.bytes_sent >= 2_000_001 && sent.rtt_us > 0 && sent.segments_sent > 100, "{sent:?}");
    assert!(sent.congestion_window > 0 && sent.segment_size >= 1200 && !sent.closed, "{sent:?}");
    assert_eq!((received.bytes_received, sent.congestion_control.as_str()), (2_000_001, "model"));
    assert_eq!((near.security(), near.has_authenticated_close()), (Security::Encrypt, true));
    assert_eq!(near.identity().unwrap().names, ["pg2.test"]);
    assert_eq!(far.identity().unwrap().names, ["pg1.test"]);
    assert_eq!(far.peer_addr().unwrap().port(), near.local_addr().unwrap().port());
    assert_eq!(near.set(Change::ReceiveBuffer(1)).unwrap_err().kind(), ErrorKind::Unsupported);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn statistics_describe_the_path_and_send_buffer_can_change() {
    let pair = Pair::new();
    let path = Path::new(pair.target().addr, Duration::from_millis(10), |_| Some(Duration::ZERO));
    let near = pair.client.connect(&target(path.addr, "pg2.test"), &pair.profile, PATIENCE).await.unwrap();
    write_all(&near, b"!").await.unwrap();
    let far = pair.accept().await;
    let bytes = pattern(2_000_000, 3);
    let (sent, got) = tokio::join!(write_all(&near, &bytes), read_exactly(&far, 1 + bytes.len()));
    sent.unwrap();
    assert!(got.unwrap()[1..] == bytes);
    let stats = near.stats().unwrap();
    // quinn takes the time of arrival before it receives a batch of packets, which on a busy machine can take a while.
    assert!(stats.min_rtt_us >= 15_000 && stats.rtt_us >= stats.min_rtt_us, "{stats:?}");
    assert!(stats.rtt_var_us > 0 && stats.delivery_rate > 10_000, "{stats:?}");

    // Nothing is acknowledged any more, so what the stream accepts fills the buffer and stays in flight.
    while near.stats().unwrap().in_flight > 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    path.cut(true);
    let room = 100_000;
    near.set(Change::SendBuffer(room)).unwrap();
    assert_eq!(near.stats().unwrap().send_buffer, room);
    let mut taken = 0;
    while let Ok(n) = near.try_write(&bytes[taken..], false) {
        taken += n;
    }
    assert_eq!(taken as u64, room, "all before it was acknowledged");
    while near.stats().unwrap().in_flight == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    near.set(Change::SendBuffer(2 * room)).unwrap();
    while let Ok(n) = near.try_write(&bytes[taken..], false) {
        taken += n;
    }
    assert_eq!(taken as u64, 2 * room);
    path.cut(false);
    let (sent, got) = tokio::join!(write_all(&near, &bytes[taken..]), read_exactly(&far, bytes.len()));
    sent.unwrap();
    assert!(got.unwrap() == bytes);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rate_limits_a_stream_and_can_be_removed() {
    let pair = Pair::with(Profile { rate: Some(BitRate(20_000_000)), ..Profile::default() });
    let (near, far) = pair.streams().await;
    let begin = Instant::now();
    let bytes = pattern(500_000, 3);
    let (sent, got) = tokio::join!(write_all(&near, &bytes), read_exactly(&far, bytes.len()));
    sent.unwrap();
    assert!(got.unwrap() == bytes);
    // 0.2 s at 20 Mbit/s, less the burst. An upper bound is not asserted.
    assert!(begin.elapsed() > Duration::from_millis(180), "{:?}", begin.elapsed());
    near.set(Change::Rate(Some(BitRate(8)))).unwrap();
    near.set(Change::Rate(None)).unwrap();
    let (sent, got) = tokio::join!(write_all(&near, &bytes), read_exactly(&far, bytes.len()));
    sent.unwrap();
    assert!(got.unwrap() == bytes);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn woken_writer_finds_ample_room() {
    const TOTAL: usize = 30_000_000;
    let pair = Pair::new();
    let path = Path::new(pair.target().addr, Duration::from_millis(5), |_| Some(Duration::ZERO));
    let near = pair.client.connect(&target(path.addr, "pg2.test"), &pair.profile, PATIENCE).await.unwrap();
    let bytes = pattern(TOTAL, 5);
    let send = async {
        let (mut sent, mut rooms) = (0, Vec::new());
        while sent < TOTAL {
            let mut room = 0;
            while let Ok(n) = near.try_write(&bytes[sent + room..], false) {
                room += n;
                if sent + room == TOTAL {
                    break;
                }
            }
            // The last room is meaningless, and anything may have caused that wake-up.
            if room > 0 && sent + room < TOTAL {
                let stats = near.stats().unwrap();
                rooms.push((room, u64::from(stats.congestion_window) * u64::from(stats.segment_size)));
            }
            sent += room;
            near.writable().await.unwrap();
        }
        rooms
    };
    let receive = async {
        let far = pair.accept().await;
        read_exactly(&far, TOTAL).await.unwrap() == bytes
    };
    let (rooms, is_whole) = soon(async { tokio::join!(send, receive) }).await;
    assert!(is_whole);
    // The send window is at least 2 MiB, and an acknowledgement covers only some packets. It is twice the congestion
    // window: if that falls after packets were lost, as on a busy machine, it leaves little room.
    let is_ample = |pair: &[(usize, u64)]| pair[1].0 >= 256 << 10 || pair[1].1 * 10 < pair[0].1 * 9;
    assert!(rooms.len() > 1 && rooms.windows(2).all(is_ample), "(room, congestion window): {rooms:?}");
}
