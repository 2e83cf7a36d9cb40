//! Lanes that fail while nobody looks.

use super::*;
use phoebus_net::{Profile, tcp};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(30);

/// A connection between two gateways.
async fn hop() -> (Stream, Stream) {
    let profile = Profile::default();
    let listener = tcp::listen(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), &profile).unwrap();
    let to = listener.local_addr().unwrap();
    let (dialled, accepted) = tokio::join!(tcp::connect(to, &profile, PATIENCE), listener.accept());
    (dialled.unwrap(), accepted.unwrap().0.into_stream().unwrap())
}

/// Two lanes, of which the second is new, and has been reset before it was looked at. What the far end keeps open comes with them.
async fn lanes_of_which_one_is_reset() -> (Lanes, Stream) {
    let (first, far) = hop().await;
    let (second, gone) = hop().await;
    // Dropped as it is, a connection is reset.
    drop(gone);
    second.failed().await;
    let mut lanes = Lanes::new(Arc::new(first), Role::Initiator, Roster::new(1), 64);
    let mut framing = Framing::striped(Role::Initiator, 64);
    framing.begin_ping();
    lanes.gather.join();
    lanes.lanes.push(Lane::new(Arc::new(second), framing, None));
    (lanes, far)
}

#[tokio::test]
async fn a_new_lane_that_fails_while_it_is_chosen_is_left() {
    let (mut lanes, _far) = lanes_of_which_one_is_reset().await;
    let chosen = std::future::poll_fn(|cx| lanes.poll_choose(cx, None)).await;
    assert_eq!(chosen.map_err(|failure| failure.to_string()), Ok(0));
    assert!(lanes.lanes[1].lost);

    let (mut lanes, _far) = lanes_of_which_one_is_reset().await;
    let free = std::future::poll_fn(|cx| Poll::Ready(lanes.is_free(1, cx))).await;
    assert!(!free.unwrap() && lanes.lanes[1].lost);
}
