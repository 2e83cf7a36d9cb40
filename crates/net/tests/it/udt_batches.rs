//! UDT hands many packets to the kernel in one call, and receives many in one, by the kernel's own counters;
//! and no thread spins while packets are paced.
#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

use crate::support;
use crate::support::namespace::{alone, datagrams, processor_time};
use phoebus_net::transport::Transport;
use phoebus_net::udt::Udt;
use phoebus_net::{Profile, Stream};
use phoebus_proto::units::BitRate;
use std::time::{Duration, Instant};
use support::{PATIENCE, loopback, receive, send, target};

/// Both ends of a connection with packets of Ethernet's MTU.
async fn pair(rate: Option<BitRate>) -> (Stream, Stream) {
    let (transport, profile) = (Udt::default(), Profile { rate, mss: Some(1500), ..Profile::default() });
    let listener = transport.listen(loopback(), &profile).unwrap();
    let to = target(listener.local_addr().unwrap());
    let accept = async { listener.accept().await.unwrap().0.handshake().await.unwrap() };
    let (near, far) = tokio::join!(transport.connect(&to, &profile, PATIENCE), accept);
    (near.unwrap(), far)
}

#[test]
fn packets_are_segmented_and_coalesced_by_the_kernel() {
    alone("udt_batches::moves_a_lot");
}

/// Started by [`packets_are_segmented_and_coalesced_by_the_kernel`].
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "is started by another test"]
async fn moves_a_lot() {
    let (near, far) = pair(None).await;
    let len = 40_000_000;
    let counted = datagrams();
    let (sent, got) = tokio::join!(send(&near, len), receive(&far, 0, len));
    sent.unwrap();
    assert_eq!(got.unwrap(), len);
    near.delivered(PATIENCE).await.unwrap();
    let sent = near.stats().unwrap().segments_sent;
    let [out, in_] = datagrams();
    let [out, in_] = [out - counted[0], in_ - counted[1]];
    println!("{sent} packets with data; handed to the kernel {out} times, and by it {in_} times");
    assert!(sent > len / 1500 && out < sent / 4, "{sent} packets were handed to the kernel {out} times");
    assert!(in_ < sent / 4, "{sent} packets were handed over {in_} times");
}

#[test]
fn paced_sender_sleeps() {
    alone("udt_batches::keeps_to_a_rate");
}

/// Started by [`paced_sender_sleeps`].
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "is started by another test"]
async fn keeps_to_a_rate() {
    let (near, far) = pair(Some(BitRate(2_000_000))).await;
    let (start, before, len) = (Instant::now(), processor_time(), 500_000);
    let (sent, got) = tokio::join!(send(&near, len), receive(&far, 0, len));
    sent.unwrap();
    assert_eq!(got.unwrap(), len);
    let (took, used) = (start.elapsed(), processor_time() - before);
    println!("{used:?} of processor time in {took:?}");
    assert!(took > Duration::from_secs(1) && used < took / 4, "{used:?} of processor time in {took:?}");
}
