//! Stream mode over a transport without an end of file (U9, U12): over bare UDT, a sender that has finished and one
//! that has died look the same.

use bytes::Bytes;
use phoebus_files::block::{Block, Pool};
use phoebus_files::store::{Fallible, Flow};
use phoebus_gridftp::data::{Channel, Intake, Mode, Settings};
use phoebus_net::udt::Udt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const LEN: u64 = 3_000_000;

/// Sends so many bytes, and then an end, or none.
#[derive(Debug)]
struct Bits {
    at: AtomicU64,
    ends: bool,
}

impl Flow for Bits {
    fn next(&self) -> Fallible<'_, Option<Block>> {
        Box::pin(async {
            let at = self.at.fetch_add(500_000, Ordering::Relaxed);
            match (at < LEN, self.ends) {
                (true, _) => Ok(Some(Block::new(at, Bytes::from(vec![7; 500_000])))),
                (false, true) => Ok(None),
                (false, false) => std::future::pending().await,
            }
        })
    }
}

/// Returns how many bytes arrive from a sender that ends or dies, or the error.
async fn received(expected: Option<u64>, ends: bool) -> Result<u64, String> {
    let settings = || Settings { transport: Arc::new(Udt::default()), ..Settings::default() };
    let listening = Channel::listening("127.0.0.1".parse().unwrap(), settings()).unwrap();
    let connecting = Channel::connecting(vec![listening.local_addr().unwrap()], settings());
    let moved = Arc::<AtomicU64>::default();
    let (flow, counted) = (Arc::new(Bits { at: AtomicU64::new(0), ends }), moved.clone());
    let sender = tokio::spawn(async move { connecting.send(Mode::Stream, 1, flow, &counted).await });
    let incoming =
        listening.receive(Mode::Stream, Intake { pool: Pool::new(1 << 20, 8), from: 0, expected, into: None });
    let mut came = 0;
    loop {
        match incoming.next().await {
            Ok(Some(block)) => came += block.len(),
            Ok(None) => {
                assert!(sender.await.is_ok_and(|sent| sent.is_ok_and(|sent| sent == LEN)));
                return Ok(came);
            }
            Err(error) => return Err(error.to_string()),
        }
        if !ends && came > LEN / 2 {
            sender.abort();
        }
    }
}

#[tokio::test]
async fn stream_without_end_is_complete_at_its_announced_size() {
    assert_eq!(received(Some(LEN), true).await, Ok(LEN));
    for (expected, ends, says) in [
        (None, true, "ALLO"),
        (Some(LEN + 1), true, "after 3000000 of 3000001"),
        (Some(LEN - 1), true, "more than the 2999999"),
        (Some(2 * LEN), false, "of 6000000"),
        (None, false, "ALLO"),
    ] {
        let error = received(expected, ends).await.unwrap_err();
        assert!(error.contains(says), "{expected:?} {ends}: {error}");
    }
}
