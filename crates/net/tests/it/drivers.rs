//! Loadable drivers as transports (U9–U11): the examples' blocking TCP against ordinary sockets. Tests data,
//! ends, resets, back-pressure and settings; `driver_files.rs` tests which libraries are loaded.
#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

use crate::support;
use phoebus_net::transport::{Change, Transport};
use phoebus_net::wrapblock::{Limits, WrapBlock};
use phoebus_net::{Buffer, Error, Profile, Stream};
use phoebus_proto::session::Code;
use phoebus_proto::units::{BitRate, ByteSize};
use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::time::Duration;
use support::{PATIENCE, Workshop, load, loopback, pattern, receive, send, target};

fn tcp(workshop: &Workshop) -> WrapBlock {
    load(&workshop.tcp()).transport("blocking", &BTreeMap::new(), Limits::default()).unwrap()
}

/// A stream of the driver, and the ordinary socket at its other end.
async fn connected(transport: &WrapBlock, profile: &Profile) -> (Stream, TcpStream) {
    let listener = TcpListener::bind(loopback()).unwrap();
    let to = target(listener.local_addr().unwrap());
    let stream = transport.connect(&to, profile, PATIENCE).await.unwrap();
    let peer = listener.accept().unwrap().0;
    peer.set_read_timeout(Some(PATIENCE)).unwrap();
    (stream, peer)
}

/// As [`connected`], with the driver as the accepting side.
async fn accepted(transport: &WrapBlock) -> (Stream, TcpStream) {
    let listener = transport.listen(loopback(), &Profile::default()).unwrap();
    let peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    peer.set_read_timeout(Some(PATIENCE)).unwrap();
    let (pending, from) = listener.accept().await.unwrap();
    assert_eq!(from, peer.local_addr().unwrap());
    (pending.handshake().await.unwrap(), peer)
}

/// Waits until the transport has closed all dropped connections.
async fn closed(transport: &WrapBlock) {
    let all_closed = async {
        while transport.connections() > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, all_closed).await.expect("connections that nobody holds are closed");
}

#[tokio::test]
async fn bytes_pass_both_ways_and_each_side_ends_independently() {
    const LEN: usize = 20 << 20;
    let workshop = Workshop::new();
    let transport = tcp(&workshop);
    for is_acceptor in [false, true] {
        let (stream, mut peer) =
            if is_acceptor { accepted(&transport).await } else { connected(&transport, &Profile::default()).await };
        assert!(stream.has_authenticated_close());
        assert_eq!(stream.peer_addr().unwrap(), peer.local_addr().unwrap());
        assert_eq!(stream.local_addr().unwrap(), peer.peer_addr().unwrap());
        let mut writer = peer.try_clone().unwrap();
        let sender = std::thread::spawn(move || {
            writer.write_all(&pattern(0, LEN)).unwrap();
            writer.shutdown(Shutdown::Write).unwrap();
        });
        let receiver = std::thread::spawn(move || {
            let mut got = Vec::new();
            peer.read_to_end(&mut got).map(|_| got)
        });
        assert_eq!(receive(&stream, 0, u64::MAX).await.unwrap(), LEN as u64);
        // The peer's stream has ended; this one still works.
        send(&stream, LEN as u64).await.unwrap();
        stream.shutdown_write().unwrap();
        stream.delivered(PATIENCE).await.unwrap();
        sender.join().unwrap();
        stream.close();
        assert_eq!(receiver.join().unwrap().unwrap(), pattern(0, LEN));
    }
    closed(&transport).await;
}

#[tokio::test]
async fn dropped_stream_fails_at_the_peer_and_closed_stream_delivers_everything() {
    let workshop = Workshop::new();
    let transport = tcp(&workshop);
    let (stream, mut peer) = connected(&transport, &Profile::default()).await;
    send(&stream, 100).await.unwrap();
    peer.read_exact(&mut [0; 100]).unwrap();
    drop(stream);
    assert_eq!(peer.read(&mut [0; 1]).unwrap_err().kind(), ErrorKind::ConnectionReset);

    // Far more than the socket's buffer: a thread of the transport keeps writing.
    let (stream, mut peer) = connected(&transport, &Profile::default()).await;
    let len = stream.stats().unwrap().send_buffer;
    send(&stream, len).await.unwrap();
    stream.close();
    let mut got = Vec::new();
    peer.read_to_end(&mut got).unwrap();
    assert!(got == pattern(0, len as usize), "{} of {len} bytes", got.len());

    let listener = transport.listen(loopback(), &Profile::default()).unwrap();
    let mut peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    drop(listener.accept().await.unwrap());
    assert_eq!(peer.read(&mut [0; 1]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    closed(&transport).await;
}

#[tokio::test]
async fn undeliverable_connection_is_closed_after_its_time_limit() {
    let workshop = Workshop::new();
    let transport = tcp(&workshop);
    let mut profile = Profile::default();
    profile.user_timeout.0 = Duration::from_millis(300);
    let (stream, peer) = connected(&transport, &profile).await;
    while tokio::time::timeout(Duration::from_millis(300), send(&stream, 1 << 20)).await.is_ok() {}
    stream.close();
    closed(&transport).await;
    drop(peer);
}

#[tokio::test]
async fn reset_is_noticed_without_reading() {
    let workshop = Workshop::new();
    let transport = tcp(&workshop);
    let (stream, peer) = connected(&transport, &Profile::default()).await;
    assert!(stream.is_quiet().unwrap());
    // Fills the buffers, so that the transport itself stops reading.
    peer.set_nonblocking(true).unwrap();
    let mut pause = 0;
    while pause < 20 {
        if (&peer).write(&pattern(0, 65536)).is_err() {
            std::thread::sleep(Duration::from_millis(10));
            pause += 1;
        } else {
            pause = 0;
        }
    }
    socket2::SockRef::from(&peer).set_linger(Some(Duration::ZERO)).unwrap();
    drop(peer);
    let failure = tokio::time::timeout(PATIENCE, stream.failed()).await.unwrap();
    assert!(is_reset(&failure), "{failure}");
    assert!(stream.is_quiet().is_err() && stream.unacknowledged().is_err());
    // More than its buffers hold: what takes bytes from them may learn of the reset later.
    let error = send(&stream, 1 << 24).await.unwrap_err();
    assert!(is_reset(&error), "{error}");
}

/// Whether the peer has reset the connection. The kernel reports the reset to the library's first call after
/// it, and EPIPE to later ones.
fn is_reset(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe)
}

#[tokio::test]
async fn end_of_both_directions_is_no_failure() {
    let workshop = Workshop::new();
    let transport = tcp(&workshop);
    let (stream, mut peer) = connected(&transport, &Profile::default()).await;
    stream.shutdown_write().unwrap();
    assert_eq!(peer.read(&mut [0; 1]).unwrap(), 0);
    peer.shutdown(Shutdown::Write).unwrap();
    assert_eq!(receive(&stream, 0, 1).await.unwrap(), 0);
    stream.delivered(PATIENCE).await.unwrap();
    let failed = tokio::time::timeout(Duration::from_millis(1500), stream.failed()).await;
    assert!(failed.is_err(), "{failed:?}");
}

#[tokio::test]
async fn slow_reader_blocks_the_sender_within_the_buffers() {
    let workshop = Workshop::new();
    let transport = tcp(&workshop);
    let small = Buffer::Bytes(ByteSize(256 << 10));
    let profile = Profile { send_buffer: small, receive_buffer: small, ..Profile::default() };
    let (stream, mut peer) = connected(&transport, &profile).await;
    // The peer's kernel buffers some megabytes; the test only requires that this ends.
    let (mut taken, most) = (0u64, 64 << 20);
    while taken < most {
        let bytes = pattern(taken, 65536);
        if tokio::time::timeout(Duration::from_millis(500), stream.writable()).await.is_err() {
            break;
        }
        taken += stream.try_write(&bytes, false).unwrap_or(0) as u64;
    }
    assert!(taken < most, "a sender must not be able to fill memory");
    assert!(stream.unacknowledged().unwrap() > 0);
    stream.shutdown_write().unwrap();
    let reader = std::thread::spawn(move || {
        let mut got = Vec::new();
        peer.read_to_end(&mut got).map(|_| got)
    });
    stream.delivered(PATIENCE).await.unwrap();
    let got = reader.join().unwrap().unwrap();
    assert!(got == pattern(0, taken as usize), "{} of {taken} bytes", got.len());
}

#[tokio::test]
async fn profile_settings_are_applied_noted_or_refused() {
    let workshop = Workshop::new();
    let library = load(&workshop.tcp());
    let options = BTreeMap::from([("send_buffer".to_owned(), "64KiB".to_owned())]);
    let transport = library.transport("blocking", &options, Limits::default()).unwrap();
    let buffer = Buffer::Bytes(ByteSize(1 << 20));
    let profile = Profile { receive_buffer: buffer, ..Profile::default() };
    let (stream, _peer) = connected(&transport, &profile).await;
    assert_eq!(
        stream.note(),
        Some("the profile sets receive_buffer, and the driver blocking has no such option"),
        "this driver has send_buffer alone"
    );
    let error = stream.set(Change::Rate(Some(BitRate(1_000_000)))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("blocking has no option rate"), "{error}");

    let profile = Profile { rate: Some(BitRate(1_000_000)), ..Profile::default() };
    let error = transport.connect(&target(loopback()), &profile, PATIENCE).await.unwrap_err();
    assert!(
        error.to_string().ends_with("the profile sets a rate, and the driver blocking has no such option"),
        "{error}"
    );
    assert!(transport.listen(loopback(), &profile).is_err());
}

#[tokio::test]
async fn connect_and_listen_report_the_system_s_errors() {
    let workshop = Workshop::new();
    let transport = tcp(&workshop);
    let unused = TcpListener::bind(loopback()).unwrap().local_addr().unwrap();
    let error = transport.connect(&target(unused), &Profile::default(), PATIENCE).await.unwrap_err();
    assert_eq!(error.code(), Code::Refused, "{error}");

    let used = TcpListener::bind(loopback()).unwrap();
    let addr = used.local_addr().unwrap();
    let error = transport.listen(addr, &Profile::default()).unwrap_err();
    assert_eq!(error.to_string(), format!("cannot listen on {addr}: address already in use"));
    closed(&transport).await;
}

#[tokio::test]
async fn unanswered_connect_times_out_and_leaks_nothing() {
    let workshop = Workshop::new();
    let transport = tcp(&workshop);
    // A full accept queue drops SYNs, so that the library's call blocks.
    let full = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    full.bind(&loopback().into()).unwrap();
    full.listen(0).unwrap();
    let addr = full.local_addr().unwrap().as_socket().unwrap();
    let _first = TcpStream::connect(addr).unwrap();
    let limit = Duration::from_millis(200);
    let error = transport.connect(&target(addr), &Profile::default(), limit).await.unwrap_err();
    assert!(matches!(error, Error::Timeout { .. }), "{error}");
    closed(&transport).await;
}

#[tokio::test]
async fn connections_are_limited() {
    let workshop = Workshop::new();
    let limits = Limits { connections: 2, ..Limits::default() };
    let transport = load(&workshop.tcp()).transport("blocking", &BTreeMap::new(), limits).unwrap();
    let (first, _one) = connected(&transport, &Profile::default()).await;
    let listener = transport.listen(loopback(), &Profile::default()).unwrap();
    let addr = listener.local_addr().unwrap();
    let _peers = [TcpStream::connect(addr).unwrap(), TcpStream::connect(addr).unwrap()];
    let _second = listener.accept().await.unwrap();
    let error = transport.connect(&target(addr), &Profile::default(), PATIENCE).await.unwrap_err();
    assert!(error.to_string().ends_with("blocking already has 2 connections, the configured maximum"), "{error}");
    // The next connection waits in the library until a place is free.
    let waits = tokio::time::timeout(Duration::from_millis(300), listener.accept()).await;
    assert!(waits.is_err(), "{waits:?}");
    drop(first);
    tokio::time::timeout(PATIENCE, listener.accept()).await.unwrap().unwrap();
}
