//! `udtcat` on paths that lose packets, reorder them or carry only small ones, and as a suspended process. The
//! emulated paths need root.

use crate::support;
use phoebus_proto::units::{Probability, Span};
use phoebus_wan::model::{Loss, Rate};
use phoebus_wan::testbed::{Sc09, Testbed};
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU64;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;
use support::{Peer, address, drain, drain_seen, feed, udtcat, until_moving};

const TOTAL: u64 = 48 << 20;

/// 24 ms at 200 Mbit/s, with `loss` on either side of the WAN. With `reorders`, WAN packets overtake each other by up
/// to 8 ms.
fn path(loss: f64, reorders: bool, wan_mtu: u16) -> Testbed {
    let settings = Sc09 {
        wan_rtt: Span(Duration::from_millis(20)),
        lan_rtt: Span(Duration::from_millis(2)),
        lan_loss: Loss::Bernoulli(Probability::new(loss).unwrap()),
        rate: Rate::Limited(NonZeroU64::new(200_000_000).unwrap()),
        cc: None,
        ..Sc09::default()
    };
    let mut scenario = settings.scenario();
    let wan = scenario.links.iter_mut().find(|link| link.name == "wan").unwrap();
    wan.config.mtu = wan_mtu;
    if reorders {
        for direction in [&mut wan.config.forward, &mut wan.config.backward] {
            direction.jitter = Span(Duration::from_millis(4));
            direction.reorder = true;
        }
    }
    Testbed::up(&scenario).unwrap()
}

fn peer(testbed: &Testbed, host: &str, arguments: &[&str]) -> Peer {
    let mut command: Command = testbed.exec(host, udtcat()).unwrap();
    command.args(arguments);
    Peer::start(command)
}

/// Moves bytes from `src` to `dst` and back, checks them, and returns the standard error of the ends.
fn moves_both_ways(testbed: &Testbed, ip: IpAddr, bytes: u64) -> String {
    let (any, total) = (SocketAddr::new(ip, 0).to_string(), bytes.to_string());
    let mut server = peer(testbed, "dst", &[&any, "--listen", "--length", &total, "--report"]);
    let addr = server.udtcat_addr().to_string();
    let mut client = peer(testbed, "src", &[&addr, "--length", &total, "--report"]);
    let inputs = [client.stdin(), server.stdin()];
    let feeders = inputs.map(|input| std::thread::spawn(move || feed(input, bytes)));
    let outputs = [client.stdout(), server.stdout()];
    let drainers = outputs.map(|output| std::thread::spawn(move || drain(output)));
    for feeder in feeders {
        feeder.join().unwrap();
    }
    for drainer in drainers {
        assert_eq!(drainer.join().unwrap(), bytes);
    }
    let [(there, said), (back, replied)] = [client.finish(), server.finish()];
    assert!(there.success() && back.success(), "{there} {said}\n{back} {replied}");
    said + &replied
}

#[test]
fn udtcat_survives_five_percent_loss_with_reordering() {
    let testbed = path(0.05, true, 1500);
    let ip = testbed.addresses("dst").unwrap()[0];
    moves_both_ways(&testbed, ip, TOTAL / 2);
    let counters = testbed.link("lan1").unwrap().counters();
    assert!(counters.forward.random_drops.segments > 500, "{counters:?}");
}

#[test]
fn udtcat_finds_the_path_mtu_without_icmp() {
    let testbed = path(0.0, false, 1420);
    let silence = "add table inet silence; \
                   add chain inet silence out { type filter hook output priority 0; }; \
                   add rule inet silence out icmp type destination-unreachable drop; \
                   add rule inet silence out icmpv6 type packet-too-big drop";
    for host in ["pg1", "pg2"] {
        let status = testbed.exec(host, "nft").unwrap().arg(silence).status().unwrap();
        assert!(status.success(), "nft is needed; scripts/setup installs it");
    }
    for ip in testbed.addresses("dst").unwrap() {
        // Of the probed sizes, 1400 fits, less the headers of UDT, UDP and IP.
        let said = moves_both_ways(&testbed, *ip, 4 << 20);
        let payload = if ip.is_ipv6() { 1380 - 44 } else { 1400 - 44 };
        assert_eq!(said.matches(&format!("sent again, {payload} bytes each")).count(), 2, "{said}");
    }
}

/// A transfer over loopback between two `udtcat`, of which one is suspended for `time`.
fn suspended(sender_is: bool, time: Duration) -> [(Option<i32>, String); 2] {
    let mut server = Peer::start({
        let mut command = Command::new(udtcat());
        command.args([&SocketAddr::new(address().into(), 0).to_string(), "-l", "-r", "--length", &TOTAL.to_string()]);
        command
    });
    let addr = server.udtcat_addr();
    let mut client = Peer::start({
        let mut command = Command::new(udtcat());
        command.args([&addr.to_string(), "--send", "--rate=100mbit"]);
        command
    });
    let (input, output) = (client.stdin(), server.stdout());
    let feeder = std::thread::spawn(move || feed(input, TOTAL));
    let drained = Arc::<AtomicU64>::default();
    let drainer = std::thread::spawn({
        let drained = drained.clone();
        move || drain_seen(output, &drained)
    });
    until_moving(&drained);
    let suspended = if sender_is { &client } else { &server };
    suspended.signal("STOP");
    std::thread::sleep(time);
    suspended.signal("CONT");
    let ends = [client.finish(), server.finish()];
    feeder.join().unwrap();
    let received = drainer.join().unwrap();
    assert_eq!(received == TOTAL, ends[1].0.success(), "{received} bytes; {ends:?}");
    ends.map(|(status, said)| (status.code(), said))
}

#[test]
fn suspended_process_resumes_or_fails() {
    // All run concurrently, because they mostly wait.
    let brief = Duration::from_secs(15);
    let long = Duration::from_secs(40);
    let tests = [(true, brief), (false, brief), (true, long), (false, long)]
        .map(|(sender_is, time)| std::thread::spawn(move || (time, suspended(sender_is, time))));
    for test in tests {
        let (time, ends) = test.join().unwrap();
        let codes = ends.each_ref().map(|(code, _)| *code);
        assert_eq!(codes, [Some(if time == brief { 0 } else { 4 }); 2], "{time:?}: {ends:?}");
    }
}
