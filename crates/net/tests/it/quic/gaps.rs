//! Streams with more gaps than quinn reorders.

use super::path::Path;
use super::place::{PATIENCE, Pair, Random, pattern, read_exactly, read_to_end, target, write_all};
use phoebus_net::Profile;
use phoebus_net::transport::Transport;
use std::time::Duration;

/// Sends `len` bytes over a path of 200 ms round-trip time on which `fate` decides about each datagram, and
/// verifies them. Returns the number of lost datagrams.
async fn send(len: usize, fate: impl FnMut(u64) -> Option<Duration> + Send + 'static) -> u64 {
    let pair = Pair::new();
    let path = Path::new(pair.target().addr, Duration::from_millis(100), fate);
    let near = pair.client.connect(&target(path.addr, "pg2.test"), &Profile::default(), PATIENCE).await.unwrap();
    write_all(&near, b"!").await.unwrap();
    let far = pair.accept().await;
    read_exactly(&far, 1).await.unwrap();
    let bytes = pattern(len, 11);
    let sending = async {
        write_all(&near, &bytes).await.unwrap();
        near.shutdown_write().unwrap();
    };
    let ((), got) = tokio::join!(sending, read_to_end(&far));
    assert!(got.unwrap() == bytes, "the stream was changed");
    path.lost()
}

#[tokio::test]
async fn connection_survives_thousands_of_gaps() {
    // After the window has grown, every second of 6000 datagrams is lost. quinn accepts 1024 gaps.
    let fate = |number| (!(4000..10_000).contains(&number) || number % 2 == 0).then_some(Duration::ZERO);
    let lost = send(30_000_000, fate).await;
    assert!(lost >= 3000, "{lost} lost");
}

#[tokio::test]
async fn connection_survives_loss_and_reordering() {
    let mut random = Random(5);
    let fate = move |number| {
        let dice = random.next() % 1000;
        // The handshake passes unharmed, since the test is about streams.
        let late = Duration::from_millis(if dice >= 950 { 20 } else { 0 });
        (number < 20 || dice >= 50).then_some(late)
    };
    let lost = send(20_000_000, fate).await;
    assert!(lost > 500, "{lost} lost");
}
