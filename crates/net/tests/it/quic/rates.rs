//! Upper bounds of rates, by what arrives on the path: however the machine behaves, no more than a rate
//! permits may have been sent at any time. `quic::rate` tests the lower bound with a simulated clock.

use super::path::Path as UdpPath;
use super::place::{PATIENCE, Pair, pattern, read, target, write_all};
use phoebus_net::transport::{Change, Transport};
use phoebus_net::{Profile, Stream};
use phoebus_proto::units::BitRate;
use std::time::{Duration, Instant};

/// Bytes on the link besides each datagram: Ethernet framing, and the headers of IPv4 and UDP.
const OUTSIDE: u64 = 66;

/// Number of bits that all datagrams towards the server have taken on the link.
fn on_link(path: &UdpPath) -> f64 {
    let [datagrams, bytes] = path.carried();
    ((bytes + OUTSIDE * datagrams) * 8) as f64
}

/// Number of bits that were sent and not acknowledged.
fn under_way(stream: &Stream) -> f64 {
    let stats = stream.stats().unwrap();
    (u64::from(stats.in_flight) * (u64::from(stats.segment_size) + OUTSIDE) * 8) as f64
}

/// Number of bits that were sent again so far. A busy machine acknowledges late, so that packets which arrived
/// count as lost; what this sends again is charged to the rate only afterwards.
fn sent_again(stream: &Stream) -> f64 {
    let stats = stream.stats().unwrap();
    ((stats.bytes_retransmitted + OUTSIDE * stats.retransmits) * 8) as f64
}

/// Reads to the end.
async fn drain(stream: &Stream) {
    let mut buffer = vec![0; 1 << 16];
    while read(stream, &mut buffer).await.is_ok_and(|n| n > 0) {}
}

/// Writes for `time`; returns the number of bits sent for the first time, and the time this took.
async fn write_for(stream: &Stream, path: &UdpPath, time: Duration) -> (f64, f64) {
    let bytes = pattern(100_000, 3);
    let (start, before) = (Instant::now(), on_link(path) - sent_again(stream));
    while start.elapsed() < time {
        let _ = tokio::time::timeout(Duration::from_millis(100), stream.writable()).await;
        let _ = stream.try_write(&bytes, false);
    }
    let bits = on_link(path) - sent_again(stream) - before;
    (bits, start.elapsed().as_secs_f64())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stream_stays_within_its_rate() {
    let rate = 40e6;
    let pair = Pair::with(Profile { rate: Some(BitRate(rate as u64)), ..Profile::default() });
    let path = UdpPath::new(pair.target().addr, Duration::from_millis(10), |_| Some(Duration::ZERO));
    let near = pair.client.connect(&target(path.addr, "pg2.test"), &pair.profile, PATIENCE).await.unwrap();
    write_all(&near, b"!").await.unwrap();
    let far = pair.accept().await;
    let reader = tokio::spawn(async move { drain(&far).await });
    let (bits, seconds) = write_for(&near, &path, Duration::from_secs(5)).await;
    println!("{:.2} Mbit/s of {:.2} in {seconds:.2} s", bits / seconds / 1e6, rate / 1e6);
    // Additional allowance: the burst after a pause, which is 20 ms at the rate.
    assert!(bits < 1.03 * rate * seconds + 0.02 * rate, "{bits} bits in {seconds} s");
    drop(near);
    reader.await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rate_takes_effect_at_once() {
    let pair = Pair::new();
    let delay = Duration::from_millis(10);
    let path = UdpPath::new(pair.target().addr, delay, |_| Some(Duration::ZERO));
    let near = pair.client.connect(&target(path.addr, "pg2.test"), &pair.profile, PATIENCE).await.unwrap();
    write_all(&near, b"!").await.unwrap();
    let far = pair.accept().await;
    let reader = tokio::spawn(async move { drain(&far).await });
    let (bits, seconds) = write_for(&near, &path, Duration::from_secs(2)).await;
    println!("freely: {:.1} Mbit/s", bits / seconds / 1e6);
    let mut rates = vec![];
    for rate in [8e6, 4e6, 80e6, 8e6] {
        near.set(Change::Rate(Some(BitRate(rate as u64)))).unwrap();
        if rate == 80e6 {
            // What was written under a higher rate is sent by an estimate of the round trip, and then this may write.
            write_all(&near, b"!").await.unwrap();
        }
        let under_way = under_way(&near);
        let (bits, seconds) = write_for(&near, &path, Duration::from_millis(1500)).await;
        println!("{:.2} Mbit/s of {:.2} in {seconds:.2} s", bits / seconds / 1e6, rate / 1e6);
        rates.push((rate, bits, seconds, under_way));
    }
    for (rate, bits, seconds, under_way) in rates {
        // Additional allowance: the burst; the batch of 64 KB that a thread was sending when the rate was set;
        // and what was sent but not yet counted.
        let once = 0.02 * rate + 64e3 * 8.0 + under_way;
        assert!(bits < 1.03 * rate * seconds + once, "{bits} bits at {rate} bit/s in {seconds} s");
    }
    // Removing the rate removes the limit.
    near.set(Change::Rate(None)).unwrap();
    write_all(&near, &pattern(4_000_000, 5)).await.unwrap();
    drop(near);
    reader.await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_without_rate_are_not_limited_by_others() {
    let pair = Pair::new();
    let (slow, slow_end) = pair.streams().await;
    let (free, free_end) = pair.streams().await;
    let bytes = pattern(20_000_000, 7);
    let _ = slow.try_write(&bytes[..100_000], false);
    slow.set(Change::Rate(Some(BitRate(1_000)))).unwrap();
    let reading = tokio::spawn(async move { super::place::read_exactly(&free_end, 20_000_000).await.unwrap() });
    write_all(&free, &bytes).await.unwrap();
    assert!(reading.await.unwrap() == bytes);
    // At 1 kbit/s these bytes would take days.
    drop((slow, slow_end));
}

/// At a bit per second, a datagram takes hours. A writer that waits for it is woken by a higher rate.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn higher_rate_ends_the_wait_of_a_lower_one() {
    let pair = Pair::new();
    let (near, far) = pair.streams().await;
    let bytes = pattern(200_000, 7);
    let reading = tokio::spawn(async move { super::place::read_exactly(&far, 200_000).await.unwrap() });
    near.set(Change::Rate(Some(BitRate(1)))).unwrap();
    let near = std::sync::Arc::new(near);
    let (writer, all) = (near.clone(), bytes.clone());
    let writing = tokio::spawn(async move { write_all(&writer, &all).await });
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(!writing.is_finished());
    near.set(Change::Rate(Some(BitRate(100_000_000)))).unwrap();
    tokio::time::timeout(PATIENCE, writing).await.unwrap().unwrap().unwrap();
    assert!(reading.await.unwrap() == bytes);
}
