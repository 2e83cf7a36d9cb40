//! Upper bounds of rates on TCP and UDT, by the bytes sent: however the machine behaves, no more than a rate
//! permits may have been sent at any time. Simulations test the lower bound for UDT; for TCP it is the
//! kernel's.
#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

use crate::support;
use phoebus_net::tcp::Tcp;
use phoebus_net::transport::{Change, Transport};
use phoebus_net::udt::Udt;
use phoebus_net::{Profile, Stream};
use phoebus_proto::units::BitRate;
use std::time::{Duration, Instant};
use support::{PATIENCE, loopback, target};

/// Connects under `profile`, reads everything at the accepting end, and returns the connecting end.
async fn sender(transport: &dyn Transport, profile: &Profile) -> Stream {
    let listener = transport.listen(loopback(), profile).unwrap();
    let to = target(listener.local_addr().unwrap());
    let accept = async { listener.accept().await.unwrap().0.handshake().await.unwrap() };
    let (near, far) = tokio::join!(transport.connect(&to, profile, PATIENCE), accept);
    tokio::spawn(async move {
        let mut buffer = vec![0; 1 << 16];
        while far.readable().await.is_ok() {
            match far.try_read(&mut buffer) {
                Ok(0) => break,
                Err(error) if error.kind() != std::io::ErrorKind::WouldBlock => break,
                _ => {}
            }
        }
    });
    near.unwrap()
}

/// Writes for `time`; returns the number of payload bits sent and the time this took.
async fn write_for(stream: &Stream, time: Duration) -> (f64, f64) {
    let (start, before) = (Instant::now(), stream.stats().unwrap().bytes_sent);
    while start.elapsed() < time {
        let _ = tokio::time::timeout(Duration::from_millis(100), stream.writable()).await;
        let _ = stream.try_write(&[7; 1 << 16], false);
    }
    let bits = (stream.stats().unwrap().bytes_sent - before) * 8;
    (bits as f64, start.elapsed().as_secs_f64())
}

fn transports() -> [Box<dyn Transport>; 2] {
    [Box::new(Tcp), Box::new(Udt::default())]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connection_stays_within_its_rate() {
    let rate = 40e6;
    for transport in transports() {
        let profile = Profile { rate: Some(BitRate(rate as u64)), ..Profile::default() };
        let near = sender(&*transport, &profile).await;
        // The kernel sends ten of loopback's 64 KB segments before it starts pacing.
        let (first, _) = write_for(&near, Duration::from_secs(1)).await;
        assert!(first > 0.0);
        let (bits, seconds) = write_for(&near, Duration::from_secs(5)).await;
        println!("{}: {:.2} of {:.2} Mbit/s", transport.name(), bits / seconds / 1e6, rate / 1e6);
        // Additional allowance: the burst after a pause, which is 20 ms at the rate, or one segment.
        let once = 0.02 * rate + 64e3 * 8.0;
        assert!(bits < 1.03 * rate * seconds + once, "{}: {bits} bits in {seconds} s", transport.name());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rate_takes_effect_at_once() {
    for transport in transports() {
        let near = sender(&*transport, &Profile::default()).await;
        let (bits, seconds) = write_for(&near, Duration::from_secs(1)).await;
        println!("{} freely: {:.0} Mbit/s", transport.name(), bits / seconds / 1e6);
        for rate in [40e6, 20e6, 80e6, 10e6] {
            near.set(Change::Rate(Some(BitRate(rate as u64)))).unwrap();
            let (bits, seconds) = write_for(&near, Duration::from_secs(1)).await;
            println!("{}: {:.2} of {:.2} Mbit/s", transport.name(), bits / seconds / 1e6, rate / 1e6);
            // Additional allowance: the burst after a pause, and what was being sent, at most two segments in
            // the kernel.
            let once = 0.02 * rate + 2.0 * 64e3 * 8.0;
            assert!(bits < 1.03 * rate * seconds + once, "{}: {bits} bits in {seconds} s", transport.name());
        }
    }
}
