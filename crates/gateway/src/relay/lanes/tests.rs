//! Lanes that fail unnoticed: before they are chosen, and behind the acknowledgement that completes the session.

use super::*;
use phoebus_net::{Profile, tcp};
use phoebus_proto::session::frame::{FrameState, HEADER_LEN};
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

/// Two lanes. The second is new, and was reset before anything used it. Also returns the far end of the first lane, to
/// keep it open.
async fn lanes_with_second_reset() -> (Lanes, Stream) {
    let (first, far) = hop().await;
    let (second, gone) = hop().await;
    // Dropping a connection without `disarm` resets it.
    drop(gone);
    second.failed().await;
    let mut lanes = Lanes::new(Arc::new(first), Role::Initiator, BundleMembers::new(1), 64);
    let mut framing = Framing::striped(Role::Initiator, 64);
    framing.begin_ping();
    lanes.gather.join();
    lanes.lanes.push(Lane::new(Arc::new(second), framing, None));
    (lanes, far)
}

#[tokio::test]
async fn bundle_drops_new_lane_that_fails_during_choice() {
    let (mut lanes, _far) = lanes_with_second_reset().await;
    let chosen = std::future::poll_fn(|cx| lanes.poll_choose(cx, None)).await;
    assert_eq!(chosen.map_err(|failure| failure.to_string()), Ok(0));
    assert!(lanes.lanes[1].lost);

    let (mut lanes, _far) = lanes_with_second_reset().await;
    let free = std::future::poll_fn(|cx| Poll::Ready(lanes.is_free(1, cx))).await;
    assert!(!free.unwrap() && lanes.lanes[1].lost);
}

/// Over UDT, the close that follows a peer's last acknowledgement is noticed before that acknowledgement is read.
#[tokio::test]
async fn peer_that_closes_after_its_acknowledgement_completes_the_session() {
    let (near, far) = hop().await;
    let near = Arc::new(near);
    let mut lanes = Lanes::new(near.clone(), Role::Initiator, BundleMembers::new(1), 64);
    let mut peer = FrameState::striped(Role::Acceptor);
    let send = async |header: [u8; HEADER_LEN]| {
        std::future::poll_fn(|cx| far.poll_write_ready(cx)).await.unwrap();
        assert_eq!(far.try_write(&header, false).unwrap(), HEADER_LEN);
    };
    send(peer.shutdown_at(0).unwrap()).await;
    std::future::poll_fn(|cx| lanes.poll_headers(cx)).await.unwrap();
    std::future::poll_fn(|cx| lanes.poll_shutdown(cx, &mut |_| {})).await.unwrap();
    lanes.acknowledge();
    std::future::poll_fn(|cx| lanes.poll_control_frames(cx)).await.unwrap();
    for _ in 0..2 {
        let mut header = [0; HEADER_LEN];
        let mut have = 0;
        while have < HEADER_LEN {
            std::future::poll_fn(|cx| far.poll_read_ready(cx)).await.unwrap();
            have += far.try_read(&mut header[have..]).unwrap_or(0);
        }
        peer.receive(&header).unwrap();
    }
    send(peer.ack()).await;
    drop(far);
    near.failed().await;

    let watched = std::future::poll_fn(|cx| Poll::Ready(lanes.poll_members(cx, |_| {}))).await;
    watched.map_err(|failure| failure.to_string()).unwrap();
    assert!(lanes.is_over());
}
