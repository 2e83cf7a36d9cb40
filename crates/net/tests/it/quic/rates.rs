//! Rates, by what arrives on the path: whatever the machine does, no more than a rate allows may have gone by any time. (That it
//! is not less either is tested with a clock of its own, in `quic::rate`.)

use super::path::Path as UdpPath;
use super::place::{PATIENCE, Pair, pattern, read, target, write_all};
use phoebus_net::transport::{Change, Transport};
use phoebus_net::{Profile, Stream};
use phoebus_proto::units::BitRate;
use std::time::{Duration, Instant};

/// What the link carries for each datagram besides what is in it: Ethernet's framing, and the headers of IPv4 and UDP.
const OUTSIDE: u64 = 66;

/// Bits that all datagrams have taken on the link, on their way to the server.
fn on_link(path: &UdpPath) -> f64 {
    let [datagrams, bytes] = path.carried();
    ((bytes + OUTSIDE * datagrams) * 8) as f64
}

/// Bits that were sent and not acknowledged, wherever they are.
fn under_way(stream: &Stream) -> f64 {
    let stats = stream.stats().unwrap();
    (u64::from(stats.in_flight) * (u64::from(stats.segment_size) + OUTSIDE) * 8) as f64
}

/// Reads to the end.
async fn drain(stream: &Stream) {
    let mut buffer = vec![0; 1 << 16];
    while read(stream, &mut buffer).await.is_ok_and(|n| n > 0) {}
}

/// Writes for so long, and gives how many bits went and how long it took, as seen from before and after.
async fn write_for(stream: &Stream, path: &UdpPath, time: Duration) -> (f64, f64) {
    let bytes = pattern(100_000, 3);
    let (start, before) = (Instant::now(), on_link(path));
    while start.elapsed() < time {
        let _ = tokio::time::timeout(Duration::from_millis(100), stream.writable()).await;
        let _ = stream.try_write(&bytes, false);
    }
    let bits = on_link(path) - before;
    (bits, start.elapsed().as_secs_f64())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_more_goes_than_a_rate_allows() {
    let rate = 40e6;
    let pair = Pair::with(Profile { rate: Some(BitRate(rate as u64)), ..Profile::default() });
    let path = UdpPath::new(pair.target().addr, Duration::from_millis(10), |_| Some(Duration::ZERO));
    let near = pair.client.connect(&target(path.addr, "pg2.test"), &pair.profile, PATIENCE).await.unwrap();
    write_all(&near, b"!").await.unwrap();
    let far = pair.accept().await;
    let reader = tokio::spawn(async move { drain(&far).await });
    let (bits, seconds) = write_for(&near, &path, Duration::from_secs(5)).await;
    println!("{:.2} Mbit/s of {:.2} in {seconds:.2} s", bits / seconds / 1e6, rate / 1e6);
    // Besides: what may go at once after a pause, which is 20 ms of the rate.
    assert!(bits < 1.03 * rate * seconds + 0.02 * rate, "{bits} bits in {seconds} s");
    drop(near);
    reader.await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rate_takes_effect_at_once_on_a_stream_that_had_none() {
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
        let under_way = under_way(&near);
        let (bits, seconds) = write_for(&near, &path, Duration::from_millis(1500)).await;
        println!("{:.2} Mbit/s of {:.2} in {seconds:.2} s", bits / seconds / 1e6, rate / 1e6);
        rates.push((rate, bits, seconds, under_way));
    }
    for (rate, bits, seconds, under_way) in rates {
        // Besides: what may go at once, as much that was lost last and sent again, for which later bytes wait, what a thread was
        // sending when the rate was set, one batch of 64 KB, and what had gone and not been counted yet.
        let once = 2.0 * 0.02 * rate + 64e3 * 8.0 + under_way;
        assert!(bits < 1.03 * rate * seconds + once, "{bits} bits at {rate} bit/s in {seconds} s");
    }
    // And a rate that is lifted lets everything go.
    near.set(Change::Rate(None)).unwrap();
    write_all(&near, &pattern(4_000_000, 5)).await.unwrap();
    drop(near);
    reader.await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_without_a_rate_are_not_held_by_one_that_has() {
    let pair = Pair::new();
    let (slow, slow_end) = pair.streams().await;
    let (free, free_end) = pair.streams().await;
    let bytes = pattern(20_000_000, 7);
    let _ = slow.try_write(&bytes[..100_000], false);
    slow.set(Change::Rate(Some(BitRate(1_000)))).unwrap();
    let reading = tokio::spawn(async move { super::place::read_exactly(&free_end, 20_000_000).await.unwrap() });
    write_all(&free, &bytes).await.unwrap();
    assert!(reading.await.unwrap() == bytes);
    // At 1 kbit/s these bytes would have taken days.
    drop((slow, slow_end));
}
