//! `udtcat` and libudt over an emulated path that loses packets, and over one that is cut. They need root.

use crate::support;
use phoebus_proto::units::{Probability, Span};
use phoebus_wan::model::{Loss, Rate};
use phoebus_wan::testbed::{Sc09, Testbed};
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU64;
use std::process::Command;
use std::time::Duration;
use support::{Peer, drain, feed, libudt, udtcat};

/// libudt's congestion control backs off at every loss, so a small amount is enough.
const FROM_LIBUDT: u64 = 4 << 20;
const FROM_UDTCAT: u64 = 32 << 20;

/// Bytes each way, in a soak and otherwise, and the loss rate. libudt, which backs off at every loss, finishes within
/// a minute. Packets cross two LANs; about forty are lost each way.
fn much() -> (u64, f64) {
    if std::env::var_os("PHOEBUS_SOAK").is_some() { (1 << 30, 0.00003) } else { (128 << 20, 0.0002) }
}

/// 24 ms and 1 % of loss on either side of the WAN, at 200 Mbit/s.
fn lossy_path() -> Testbed {
    path(Duration::from_millis(20), 0.01, 200_000_000)
}

fn path(wan_rtt: Duration, lan_loss: f64, rate: u64) -> Testbed {
    let settings = Sc09 {
        wan_rtt: Span(wan_rtt),
        lan_rtt: Span(wan_rtt / 10),
        lan_loss: Loss::Bernoulli(Probability::new(lan_loss).unwrap()),
        rate: Rate::Limited(NonZeroU64::new(rate).unwrap()),
        cc: None,
        ..Sc09::default()
    };
    Testbed::up(&settings.scenario()).unwrap()
}

fn peer(testbed: &Testbed, host: &str, program: &std::path::Path, arguments: &[&str]) -> Peer {
    let mut command: Command = testbed.exec(host, program).unwrap();
    command.args(arguments);
    Peer::start(command)
}

fn addresses(testbed: &Testbed) -> Vec<IpAddr> {
    testbed.addresses("dst").unwrap().to_vec()
}

#[test]
fn libudt_and_udtcat_exchange_streams_under_loss() {
    let testbed = lossy_path();
    for ip in addresses(&testbed) {
        let any = SocketAddr::new(ip, 0).to_string();
        let (few, many) = (FROM_LIBUDT.to_string(), FROM_UDTCAT.to_string());

        // libudt sends, to a server and to a client.
        let mut server = peer(&testbed, "dst", udtcat(), &[&any, "--listen", "--receive", "--length", &few]);
        let port = server.udtcat_addr().port().to_string();
        let mut client = peer(&testbed, "src", libudt(), &["send", "connect", &ip.to_string(), &port, &few]);
        let got = drain(server.stdout());
        client.succeeds();
        server.succeeds();
        assert_eq!(got, FROM_LIBUDT);

        let mut server = peer(&testbed, "dst", libudt(), &["send", "listen", &ip.to_string(), "0", &few]);
        let addr = SocketAddr::new(ip, server.libudt_port()).to_string();
        let mut client = peer(&testbed, "src", udtcat(), &[&addr, "--receive", "--length", &few]);
        let got = drain(client.stdout());
        server.succeeds();
        client.succeeds();
        assert_eq!(got, FROM_LIBUDT);

        // libudt receives, as a server and as a client.
        let mut server = peer(&testbed, "dst", libudt(), &["receive", "listen", &ip.to_string(), "0", &many]);
        let addr = SocketAddr::new(ip, server.libudt_port()).to_string();
        let mut client = peer(&testbed, "src", udtcat(), &[&addr, "--send"]);
        feed(client.stdin(), FROM_UDTCAT);
        client.succeeds();
        server.succeeds();

        let mut server = peer(&testbed, "dst", udtcat(), &[&any, "--listen", "--send"]);
        let port = server.udtcat_addr().port().to_string();
        let mut client = peer(&testbed, "src", libudt(), &["receive", "connect", &ip.to_string(), &port, &many]);
        feed(server.stdin(), FROM_UDTCAT);
        client.succeeds();
        server.succeeds();
    }
}

#[test]
fn long_streams_with_libudt_survive_loss() {
    let (len, loss) = much();
    let testbed = path(Duration::from_millis(2), loss, 500_000_000);
    let (ip, total) = (addresses(&testbed)[0], len.to_string());
    let any = SocketAddr::new(ip, 0).to_string();
    let drops = || {
        let counters = ["lan1", "lan2"].map(|lan| testbed.link(lan).unwrap().counters().forward.random_drops.segments);
        counters.iter().sum::<u64>()
    };

    let start = std::time::Instant::now();
    let mut server = peer(&testbed, "dst", udtcat(), &[&any, "--listen", "--receive", "--length", &total]);
    let port = server.udtcat_addr().port().to_string();
    let mut client = peer(&testbed, "src", libudt(), &["send", "connect", &ip.to_string(), &port, &total]);
    assert_eq!(drain(server.stdout()), len);
    server.succeeds();
    client.succeeds();
    let (first, took) = (drops(), start.elapsed());
    println!("libudt sent it in {took:?}, {first} packets lost at random");

    let mut server = peer(&testbed, "dst", libudt(), &["receive", "listen", &ip.to_string(), "0", &total]);
    let addr = SocketAddr::new(ip, server.libudt_port()).to_string();
    let mut client = peer(&testbed, "src", udtcat(), &[&addr, "--send"]);
    feed(client.stdin(), len);
    client.succeeds();
    server.succeeds();
    let second = drops() - first;
    println!("libudt received it in {:?}, {second} packets lost at random", start.elapsed() - took);
    assert!(first > 8 && second > 8, "{first} and {second} packets lost at random");
}

#[test]
fn transfer_survives_an_outage_of_ten_seconds() {
    let testbed = lossy_path();
    let ip = addresses(&testbed)[0];
    let many = FROM_UDTCAT.to_string();
    let mut server = peer(
        &testbed,
        "dst",
        udtcat(),
        &[&SocketAddr::new(ip, 0).to_string(), "--listen", "--receive", "--length", &many],
    );
    let addr = server.udtcat_addr().to_string();
    let mut client = peer(&testbed, "src", udtcat(), &[&addr, "--send", "--rate=50mbit"]);
    let input = client.stdin();
    let feeder = std::thread::spawn(move || feed(input, FROM_UDTCAT));
    let output = server.stdout();
    let drainer = std::thread::spawn(move || drain(output));
    std::thread::sleep(Duration::from_secs(1));
    let wan = testbed.link("wan").unwrap();
    wan.cut();
    std::thread::sleep(Duration::from_secs(10));
    wan.heal();
    feeder.join().unwrap();
    assert_eq!(drainer.join().unwrap(), FROM_UDTCAT);
    server.succeeds();
    client.succeeds();
}
