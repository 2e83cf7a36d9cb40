//! Hundreds of connections of a loadable driver, a thousand in a soak, leak no descriptor and no thread. The
//! test runs alone in its process, because it counts the process's descriptors and threads.
#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

use crate::support;
use phoebus_net::transport::{Target, Transport};
use phoebus_net::wrapblock::{Limits, WrapBlock};
use phoebus_net::{Profile, Stream};
use phoebus_proto::session::Code;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use support::{PATIENCE, Workshop, load, loopback, receive, send, target};

fn connections() -> u64 {
    if std::env::var_os("PHOEBUS_SOAK").is_some() { 1000 } else { 200 }
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
}

/// A connection, and its local port. libudt gives up after three seconds, whatever the limit, and may return
/// a connection that is already broken and has no address; so a busy machine gets further attempts.
async fn connected(transport: &WrapBlock, to: &Target, profile: &Profile) -> (Stream, u16) {
    let began = Instant::now();
    loop {
        match transport.connect(to, profile, PATIENCE).await {
            Ok(made) => {
                if let Ok(addr) = made.local_addr() {
                    return (made, addr.port());
                }
            }
            Err(error) => assert!(error.code() == Code::TimedOut, "{error}"),
        }
        assert!(began.elapsed() < PATIENCE, "no connection is made");
    }
}

/// Opens and closes connections: every third in order, the others by dropping one end or both.
async fn exercise(transport: &WrapBlock) {
    let listener = transport.listen(loopback(), &Profile::default()).unwrap();
    let (to, profile) = (target(listener.local_addr().unwrap()), Profile::default());
    for i in 0..connections() {
        let (made, port) = connected(transport, &to, &profile).await;
        let accepted = loop {
            let (accepted, from) = tokio::time::timeout(PATIENCE, listener.accept()).await.unwrap().unwrap();
            // libudt takes a late duplicate of a handshake, whose connection is already closed, for another
            // connection.
            if from.port() == port {
                break accepted;
            }
        };
        match i % 3 {
            0 => {
                let accepted = accepted.handshake().await.unwrap();
                send(&made, 100).await.unwrap();
                assert_eq!(receive(&accepted, 0, 100).await.unwrap(), 100);
                made.close();
                accepted.close();
            }
            1 => drop(made),
            _ => drop((accepted, made)),
        }
        while transport.connections() > 16 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

#[tokio::test]
async fn closed_connections_leak_nothing() {
    let workshop = Workshop::new();
    for (file, own_threads) in [(workshop.tcp(), 0), (workshop.libudt(), 1)] {
        // libudt keeps one thread for the life of the process, which frees closed connections seconds later.
        let before = (descriptors(), threads() + own_threads);
        let transport = load(&file).transport("leak", &BTreeMap::new(), Limits::default()).unwrap();
        exercise(&transport).await;
        let began = Instant::now();
        while (descriptors(), threads()) != before {
            let now = (descriptors(), threads());
            assert!(began.elapsed() < PATIENCE, "{}: {now:?} and not {before:?}", file.display());
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        assert_eq!(transport.connections(), 0);
    }
}
