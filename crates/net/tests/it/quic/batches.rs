//! What the kernel is spared: it gets many datagrams at a time and gives many at a time, by its own counters; and nothing spins
//! while a rate holds a stream back.

use super::place::{Pair, pattern, read_exactly, write_all};
use crate::support::namespace::{alone, datagrams, processor_time};
use phoebus_net::transport::Change;
use phoebus_proto::units::BitRate;
use std::time::{Duration, Instant};

#[test]
fn the_kernel_cuts_and_joins_datagrams() {
    alone("quic::batches::moves_a_lot");
}

/// Not a test: what [`the_kernel_cuts_and_joins_datagrams`] starts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "is started by another test"]
async fn moves_a_lot() {
    let pair = Pair::new();
    let (near, far) = pair.streams().await;
    // The start, in which little may be under way.
    let bytes = pattern(20_000_000, 3);
    let (_, got) = tokio::join!(write_all(&near, &bytes), read_exactly(&far, bytes.len()));
    assert!(got.unwrap() == bytes);
    let (counted, before) = (datagrams(), near.stats().unwrap());
    let (_, got) = tokio::join!(write_all(&near, &bytes), read_exactly(&far, bytes.len()));
    assert!(got.unwrap() == bytes);
    let sent = near.stats().unwrap().since(&before).segments_sent;
    let [out, in_] = datagrams();
    let [out, in_] = [out - counted[0], in_ - counted[1]];
    // Acknowledgements, which go one by one, are among these.
    println!("{sent} packets with data; handed to the kernel {out} times, and by it {in_} times");
    assert!(out < sent / 2, "{sent} packets were handed to the kernel {out} times");
    assert!(in_ < sent / 2, "{sent} packets were handed over {in_} times");
}

#[test]
fn a_rate_is_waited_for_and_not_spun_for() {
    alone("quic::batches::keeps_to_a_rate");
}

/// Not a test: what [`a_rate_is_waited_for_and_not_spun_for`] starts.
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
