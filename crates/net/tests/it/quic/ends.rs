//! Abnormal ends of streams: resets in both directions, drops, panics (invariant 1).

use super::place::{PATIENCE, Pair, accept, read_exactly, read_to_end, soon, target, write_all};
use phoebus_net::transport::Transport;
use phoebus_net::{Stream, code_of};
use phoebus_proto::session::Code;
use std::io::ErrorKind;
use std::time::Duration;

/// Checks that reads, writes and [`Stream::failed`] all report the reset.
async fn assert_failed(stream: &Stream) {
    let error = soon(stream.failed()).await;
    assert_eq!((error.kind(), code_of(&error)), (ErrorKind::ConnectionReset, Code::Reset), "{error}");
    assert_eq!(read_to_end(stream).await.unwrap_err().kind(), ErrorKind::ConnectionReset);
    assert_eq!(write_all(stream, b"x").await.unwrap_err().kind(), ErrorKind::ConnectionReset);
    assert!(stream.is_quiet().is_err() && stream.unacknowledged().is_err());
}

#[tokio::test]
async fn dropped_stream_resets_the_peer() {
    let pair = Pair::new();
    let (near, far) = pair.streams().await;
    write_all(&near, b"half a word").await.unwrap();
    drop(near);
    assert_failed(&far).await;
    let (near, far) = pair.streams().await;
    drop(far);
    assert_failed(&near).await;
}

#[tokio::test]
async fn stream_is_reset_when_its_owner_panics() {
    let pair = Pair::new();
    let (near, far) = pair.streams().await;
    let owner = tokio::spawn(async move {
        write_all(&near, b"x").await.unwrap();
        assert!(near.is_quiet().is_err(), "this panic is part of the test");
    });
    assert!(owner.await.unwrap_err().is_panic());
    assert_failed(&far).await;
}

#[tokio::test]
async fn reset_reaches_a_side_that_has_ended() {
    let pair = Pair::new();
    for reads_first in [true, false] {
        // The near side has ended and everything was acknowledged; then the far side is dropped.
        let (near, far) = pair.streams().await;
        near.shutdown_write().unwrap();
        assert_eq!(read_to_end(&far).await.unwrap(), b"");
        soon(near.delivered(Duration::MAX)).await.unwrap();
        write_all(&far, b"half").await.unwrap();
        if reads_first {
            assert_eq!(read_exactly(&near, 4).await.unwrap(), b"half");
        }
        let (error, ()) = tokio::join!(soon(near.failed()), async {
            tokio::task::yield_now().await;
            drop(far);
        });
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        assert_eq!(read_to_end(&near).await.unwrap_err().kind(), ErrorKind::ConnectionReset);
    }
}

#[tokio::test]
async fn reset_passes_a_stopped_reader_and_a_full_stream() {
    let pair = Pair::new();
    let (near, far) = pair.streams().await;
    let bytes = vec![7; 1 << 20];
    write_all(&near, &bytes).await.unwrap();
    drop(near);
    // Bytes that were not read before the reset are lost, as with TCP.
    assert_failed(&far).await;
}

#[tokio::test]
async fn closed_stream_delivers_its_last_bytes() {
    let pair = Pair::new();
    for _ in 0..20 {
        let (near, far) = pair.streams().await;
        let bytes = vec![3; 100_000];
        write_all(&near, &bytes).await.unwrap();
        near.shutdown_write().unwrap();
        far.shutdown_write().unwrap();
        assert_eq!(read_to_end(&near).await.unwrap(), b"");
        near.close();
        assert_eq!(read_to_end(&far).await.unwrap(), bytes);
        far.close();
    }
}

#[tokio::test]
async fn completed_stream_does_not_fail_later() {
    let pair = Pair::new();
    let (near, far) = pair.streams().await;
    near.shutdown_write().unwrap();
    far.shutdown_write().unwrap();
    assert_eq!(read_to_end(&near).await.unwrap(), b"");
    assert_eq!(read_to_end(&far).await.unwrap(), b"");
    soon(near.delivered(Duration::MAX)).await.unwrap();
    far.close();
    let failed = tokio::time::timeout(Duration::from_millis(200), near.failed()).await;
    assert!(failed.is_err(), "{failed:?}");
    pair.client.close().await;
    let failed = tokio::time::timeout(Duration::from_millis(200), near.failed()).await;
    assert!(failed.is_err(), "{failed:?}");
}

#[tokio::test]
async fn unaccepted_stream_is_reset() {
    let pair = Pair::new();
    let near = pair.connect().await;
    write_all(&near, b"!").await.unwrap();
    let (pending, _) = soon(pair.listener.accept()).await.unwrap();
    drop(pending);
    assert_failed(&near).await;
}

#[tokio::test]
async fn streams_fail_with_their_connection() {
    let pair = Pair::new();
    let (near, far) = pair.streams().await;
    pair.client.close().await;
    assert!(soon(near.failed()).await.to_string().contains("this end closed the connection"));
    let error = soon(far.failed()).await;
    assert!(error.to_string().contains("the peer closed the connection"), "{error}");
    assert!(read_to_end(&far).await.is_err(), "a lost connection is no end of a stream");
}

#[tokio::test]
async fn dropped_listener_refuses_new_connections_and_keeps_old_ones() {
    let Pair { client, listener, profile, server, place } = Pair::new();
    let (to, other) = (target(listener.local_addr().unwrap(), "pg2.test"), place.quic("pg1.test"));
    let old = client.connect(&to, &profile, PATIENCE).await.unwrap();
    write_all(&old, b"!").await.unwrap();
    let far = soon(accept(&*listener)).await.unwrap();
    drop(listener);
    let error = other.connect(&to, &profile, PATIENCE).await.unwrap_err();
    assert!(error.to_string().ends_with("the peer accepts no new connections over QUIC"), "{error}");
    // A new listener on the address accepts connections again.
    let listener = server.listen(to.addr, &profile).unwrap();
    let new = other.connect(&to, &profile, PATIENCE).await.unwrap();
    write_all(&new, b"?").await.unwrap();
    let newer = soon(accept(&*listener)).await.unwrap();
    assert_eq!(read_exactly(&newer, 1).await.unwrap(), b"?");
    assert_eq!(read_exactly(&far, 1).await.unwrap(), b"!");
}
