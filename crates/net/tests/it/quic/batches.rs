//! QUIC hands many datagrams to the kernel in one call, and receives many in one, by the kernel's own
//! counters; and no thread spins while a rate limits a stream.

use super::place::{Pair, pattern, read_exactly, write_all};
use crate::support::namespace::{alone, datagrams, processor_time};
use phoebus_net::transport::Change;
use phoebus_proto::units::BitRate;
use std::time::{Duration, Instant};

#[test]
fn datagrams_are_segmented_and_coalesced_by_the_kernel() {
    alone("quic::batches::moves_a_lot");
}

/// Started by [`datagrams_are_segmented_and_coalesced_by_the_kernel`].
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "is started by another test"]
async fn moves_a_lot() {
    let pair = Pair::new();
    let (near, far) = pair.streams().await;
    // Skips the start of the connection, when the congestion window is small.
    let bytes = pattern(20_000_000, 3);
    let (_, got) = tokio::join!(write_all(&near, &bytes), read_exactly(&far, bytes.len()));
    assert!(got.unwrap() == bytes);
    let (counted, before) = (datagrams(), near.stats().unwrap());
    let (_, got) = tokio::join!(write_all(&near, &bytes), read_exactly(&far, bytes.len()));
    assert!(got.unwrap() == bytes);
    let sent = near.stats().unwrap().since(&before).segments_sent;
    let [out, in_] = datagrams();
    let [out, in_] = [out - counted[0], in_ - counted[1]];
    // These include acknowledgements, which are sent one by one.
    println!("{sent} packets with data; handed to the kernel {out} times, and by it {in_} times");
    assert!(out < sent / 2, "{sent} packets were handed to the kernel {out} times");
    assert!(in_ < sent / 2, "{sent} packets were handed over {in_} times");
}

#[test]
fn rate_limited_writer_sleeps() {
    alone("quic::batches::keeps_to_a_rate");
}

/// Started by [`rate_limited_writer_sleeps`].
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "is started by another test"]
async fn keeps_to_a_rate() {
    let pair = Pair::new();
    let (near, far) = pair.streams().await;
    near.set(Change::Rate(Some(BitRate(2_000_000)))).unwrap();
    let (start, before) = (Instant::now(), processor_time());
    let bytes = pattern(500_000, 3);
    let (_, got) = tokio::join!(write_all(&near, &bytes), read_exactly(&far, bytes.len()));
    assert!(got.unwrap() == bytes);
    let (took, used) = (start.elapsed(), processor_time() - before);
    println!("{used:?} of processor time in {took:?}");
    assert!(took > Duration::from_secs(1) && used < took / 4, "{used:?} of processor time in {took:?}");
}
