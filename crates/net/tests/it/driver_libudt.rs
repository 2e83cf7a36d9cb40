//! libudt as a loadable driver (U7, U9–U11): its peers are an ordinary libudt program and our own UDT. Tests
//! a slow receiver, options and statistics. `examples/drivercat` tests it between processes.
#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

use crate::support;
use phoebus_net::transport::{Change, Transport};
use phoebus_net::udt::Udt;
use phoebus_net::wrapblock::{Limits, WrapBlock};
use phoebus_net::{Profile, Stream};
use phoebus_proto::units::BitRate;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, ErrorKind};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use support::{PATIENCE, Workshop, load, loopback, pattern, receive, send, target};

fn libudt(workshop: &Workshop, options: &[(&str, &str)]) -> WrapBlock {
    let options: BTreeMap<_, _> = options.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
    load(&workshop.libudt()).transport("libudt", &options, Limits::default()).unwrap()
}

/// Connects `client` to a listener of `server` over loopback, and returns both ends.
async fn pair(client: &dyn Transport, server: &dyn Transport, profile: &Profile) -> (Stream, Stream) {
    let listener = server.listen(loopback(), &Profile::default()).unwrap();
    let to = target(listener.local_addr().unwrap());
    let (made, accepted) = tokio::join!(client.connect(&to, profile, PATIENCE), listener.accept());
    (made.unwrap(), accepted.unwrap().0.handshake().await.unwrap())
}

/// A child process that is killed on drop.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test]
async fn driver_interoperates_with_a_libudt_program() {
    const LEN: u64 = 32 << 20;
    let workshop = Workshop::new();
    let program = workshop.libudt_peer();
    let transport = libudt(&workshop, &[]);
    let start = |what: &str, role: &str, port: u16| {
        let mut command = Command::new(&program);
        command.args([what, role, "127.0.0.1", &port.to_string(), &LEN.to_string()]).stdout(Stdio::piped());
        Process(command.spawn().unwrap())
    };
    for (what, program_listens) in [("send", true), ("receive", true), ("send", false), ("receive", false)] {
        let (stream, mut process) = if program_listens {
            let mut process = start(what, "listen", 0);
            let mut port = String::new();
            BufReader::new(process.0.stdout.as_mut().unwrap()).read_line(&mut port).unwrap();
            let addr = SocketAddr::new(loopback().ip(), port.trim().parse().unwrap());
            (transport.connect(&target(addr), &Profile::default(), PATIENCE).await.unwrap(), process)
        } else {
            let listener = transport.listen(loopback(), &Profile::default()).unwrap();
            let process = start(what, "connect", listener.local_addr().unwrap().port());
            let accepted = tokio::time::timeout(PATIENCE, listener.accept()).await.unwrap();
            (accepted.unwrap().0.handshake().await.unwrap(), process)
        };
        if what == "send" {
            assert_eq!(receive(&stream, 0, LEN).await.unwrap(), LEN);
        } else {
            send(&stream, LEN).await.unwrap();
            stream.delivered(PATIENCE).await.unwrap();
        }
        stream.close();
        let status = tokio::task::spawn_blocking(move || process.0.wait()).await.unwrap().unwrap();
        assert!(status.success(), "{what}: the program received something else than was sent, or could not send it");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn driver_interoperates_with_our_udt() {
    const LEN: u64 = 32 << 20;
    let workshop = Workshop::new();
    let (driver, own) = (libudt(&workshop, &[]), Udt::default());
    for (client, server) in [(&driver as &dyn Transport, &own as &dyn Transport), (&own, &driver)] {
        let (made, accepted) = pair(client, server, &Profile::default()).await;
        let (there, back, sent, answered) = tokio::join!(
            receive(&accepted, 0, LEN),
            receive(&made, 0, LEN),
            async { send(&made, LEN).await.and(made.delivered(PATIENCE).await) },
            async { send(&accepted, LEN).await.and(accepted.delivered(PATIENCE).await) },
        );
        assert_eq!((there.unwrap(), back.unwrap()), (LEN, LEN));
        sent.and(answered).unwrap();
        made.close();
        let end = tokio::time::timeout(PATIENCE, receive(&accepted, 0, 1)).await.unwrap();
        assert_eq!(end.unwrap_err().kind(), ErrorKind::ConnectionReset, "UDT has no end that can be trusted");
    }
}

#[tokio::test]
async fn slow_receiver_blocks_the_sender_within_the_buffers() {
    let workshop = Workshop::new();
    let transport = libudt(&workshop, &[("send_buffer", "1MiB"), ("receive_buffer", "1MiB")]);
    let (from, to) = pair(&transport, &transport, &Profile::default()).await;
    // The buffers of both libraries and of both transports, and some space for the receiver's UDP socket.
    let most = 2 * (1 << 20) + 2 * Limits::default().buffer.0 + (1 << 20);
    let mut taken = 0;
    while tokio::time::timeout(Duration::from_millis(500), from.writable()).await.is_ok() {
        let bytes = pattern(taken, 65536);
        taken += from.try_write(&bytes, false).unwrap_or(0) as u64;
        assert!(taken <= most, "{taken} bytes are more than the buffers");
    }
    assert_eq!(receive(&to, 0, taken).await.unwrap(), taken);
    from.delivered(PATIENCE).await.unwrap();
}

#[tokio::test]
async fn options_take_effect_and_show_in_statistics() {
    let workshop = Workshop::new();
    let transport = libudt(&workshop, &[("mss", "1000"), ("rate", "100mbit")]);
    let (from, to) = pair(&transport, &transport, &Profile::default()).await;
    let (sent, got) = tokio::join!(send(&from, 1 << 20), receive(&to, 0, 1 << 20));
    sent.unwrap();
    assert_eq!(got.unwrap(), 1 << 20);
    from.delivered(PATIENCE).await.unwrap();
    let (stats, peers) = (from.stats().unwrap(), to.stats().unwrap());
    assert_eq!(stats.segment_size, 956);
    assert_eq!(stats.sending_period_ns, 80_000, "1000 bytes at 100 Mbit/s");
    assert!(stats.bytes_sent >= 1 << 20 && stats.segments_sent >= (1 << 20) / 956 && stats.rtt_us > 0, "{stats:?}");
    assert_eq!(peers.bytes_received, 1 << 20);
    // libudt's own call for it would block until a read returns.
    assert_eq!(from.set(Change::Rate(None)).unwrap_err().kind(), ErrorKind::Unsupported);

    // The profile's rate replaces the one configured for all connections.
    let profile = Profile { rate: Some(BitRate(50_000_000)), ..Profile::default() };
    let (from, to) = pair(&transport, &transport, &profile).await;
    let (sent, got) = tokio::join!(send(&from, 1 << 20), receive(&to, 0, 1 << 20));
    sent.unwrap();
    got.unwrap();
    assert_eq!(from.stats().unwrap().sending_period_ns, 160_000, "1000 bytes at 50 Mbit/s");

    let error = transport.connect(&target("127.0.0.1:9".parse().unwrap()), &Profile::default(), PATIENCE).await;
    let error = error.unwrap_err().to_string();
    assert!(error.starts_with("cannot connect to 127.0.0.1:9: ") && error.contains("time out"), "{error}");
}
