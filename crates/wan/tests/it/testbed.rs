//! Real testbeds: names, addresses, links, and what remains after their end. Needs root.
#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

use phoebus_wan::model::{Direction, DirectionUpdate, LinkCounters};
use phoebus_wan::testbed::{HostSpec, LinkSpec, Sc09, Scenario, Testbed};
use std::fs;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs, UdpSocket};
use std::os::unix::fs::MetadataExt;
use std::process::Stdio;
use std::time::{Duration, Instant};

/// Guards against hanging; no test waits that long unless something is wrong.
const PATIENCE: Duration = Duration::from_secs(60);

/// The SC09 path with short delays and without loss.
fn short_path() -> Scenario {
    let span = |text: &str| text.parse().unwrap();
    let loss = "0".parse().unwrap();
    Sc09 { wan_rtt: span("10ms"), lan_rtt: span("2ms"), lan_loss: loss, ..Sc09::default() }.scenario()
}

fn up(scenario: &Scenario) -> Testbed {
    Testbed::up(scenario).unwrap()
}

fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn names_resolve_in_every_host_in_both_families() {
    let testbed = up(&short_path());
    let names = ["src", "pg1", "pg2", "dst"];
    for host in names {
        for name in names {
            let look_up = || (name, 1).to_socket_addrs().map(|found| found.map(|address| address.ip()).collect());
            let mut found: Vec<IpAddr> = testbed.run_in(host, look_up).unwrap().unwrap();
            found.sort();
            found.dedup();
            assert_eq!(found, testbed.addresses(name).unwrap(), "{name} in {host}");
        }
        let unknown = testbed.exec(host, "getent").unwrap().args(["hosts", "nosuch.example"]).status().unwrap();
        assert_eq!(unknown.code(), Some(2), "getent's code for a name that is not found");
    }
}

#[test]
fn streams_and_datagrams_cross_the_path_in_both_families() {
    let testbed = up(&short_path());
    for ip in testbed.addresses("dst").unwrap().to_owned() {
        let any = SocketAddr::new(ip, 0);
        let listener = testbed.run_in("dst", || TcpListener::bind(any)).unwrap().unwrap();
        let address = listener.local_addr().unwrap();
        let start = Instant::now();
        let mut client = testbed.run_in("src", || TcpStream::connect_timeout(&address, PATIENCE)).unwrap().unwrap();
        // The path's round trip of 14 ms is a lower bound, less the precision of releases.
        assert!(start.elapsed() > Duration::from_millis(10), "connected to {address} in {:?}", start.elapsed());
        let (mut server, peer) = listener.accept().unwrap();
        assert_eq!(peer.ip(), testbed.addresses("src").unwrap()[usize::from(ip.is_ipv6())]);
        client.write_all(b"over three links").unwrap();
        client.shutdown(std::net::Shutdown::Write).unwrap();
        let mut received = String::new();
        server.set_read_timeout(Some(PATIENCE)).unwrap();
        server.read_to_string(&mut received).unwrap();
        assert_eq!(received, "over three links");

        let [sender, receiver] = ["src", "dst"].map(|host| datagrams(&testbed, host, ip.is_ipv6()));
        sender.send_to(b"datagram", receiver.local_addr().unwrap()).unwrap();
        let mut buffer = [0; 16];
        let (length, _) = receiver.recv_from(&mut buffer).unwrap();
        assert_eq!(&buffer[..length], b"datagram");
    }
}

#[test]
fn concurrent_testbeds_are_isolated() {
    let [one, other] = [up(&short_path()), up(&short_path())];
    assert_ne!(one.name(), other.name());
    let listener = one.run_in("dst", || TcpListener::bind("10.9.0.4:7000")).unwrap().unwrap();
    let connect =
        || TcpStream::connect_timeout(&listener.local_addr().unwrap(), PATIENCE).map_err(|error| error.kind());
    assert!(one.run_in("src", connect).unwrap().is_ok());
    assert_eq!(other.run_in("src", connect).unwrap().unwrap_err(), std::io::ErrorKind::ConnectionRefused);
    let taken = Testbed::up_as(one.name(), &short_path()).unwrap_err().to_string();
    assert!(taken.starts_with(&format!("a testbed named {} is running; ", one.name())), "{taken}");
}

#[test]
fn link_can_be_cut_healed_and_changed() {
    let testbed = up(&short_path());
    let wan = testbed.link("wan").unwrap();
    let [sender, receiver] = ["src", "dst"].map(|host| datagrams(&testbed, host, false));
    let target = receiver.local_addr().unwrap();
    let send_ten = || (0..10).for_each(|_| assert_eq!(sender.send_to(&[0; 100], target).unwrap(), 100));
    let arrive_ten = || (0..10).for_each(|_| assert_eq!(receiver.recv_from(&mut [0; 200]).unwrap().0, 100));
    let forward = |pick: fn(&LinkCounters) -> u64| pick(&wan.counters());

    send_ten();
    arrive_ten();
    assert!(forward(|c| c.forward.delivered.segments) >= 10);
    assert_eq!(forward(|c| c.forward.cut_drops.segments), 0);

    wan.cut();
    assert!(wan.counters().cut);
    send_ten();
    wait_until("ten datagrams lost in the cut", || forward(|c| c.forward.cut_drops.segments) >= 10);
    wan.heal();
    assert!(!wan.counters().cut);
    send_ten();
    arrive_ten();

    let all_lost = DirectionUpdate { loss: Some("100%".parse().unwrap()), ..DirectionUpdate::default() };
    wan.update(Direction::Forward, &all_lost);
    assert_eq!(wan.config().forward.loss, "100%".parse().unwrap());
    assert_eq!(wan.config().backward, short_path().links[1].config.backward);
    send_ten();
    wait_until("ten datagrams lost at random", || forward(|c| c.forward.random_drops.segments) >= 10);
    // The other direction still works.
    receiver.send_to(b"back", sender.local_addr().unwrap()).unwrap();
    assert_eq!(sender.recv_from(&mut [0; 16]).unwrap().0, 4);

    let unknown = testbed.link("lan3").unwrap_err().to_string();
    assert_eq!(unknown, format!("testbed {} has no link \"lan3\"; it has lan1, wan and lan2", testbed.name()));
}

#[test]
fn command_runs_as_the_program_itself_in_its_host() {
    let testbed = up(&short_path());
    let here = std::env::current_dir().unwrap();
    let script =
        "echo $$; hostname; pwd; echo $PHOEBUS_TESTBED $PHOEBUS_TESTBED_HOST; ls /sys/class/net | sort | xargs";
    let child = testbed.exec("pg1", "sh").unwrap().args(["-c", script]).stdout(Stdio::piped()).spawn().unwrap();
    let pid = child.id();
    let output = String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap();
    let expected = format!("{pid}\npg1\n{}\n{} pg1\nlan1 lo wan\n", here.display(), testbed.name());
    assert_eq!(output, expected);
    let unknown = testbed.exec("pg3", "true").unwrap_err().to_string();
    assert_eq!(unknown, format!("testbed {} has no host \"pg3\"; it has src, pg1, pg2 and dst", testbed.name()));
}

#[test]
fn conditions_are_fixed_unless_stock() {
    let machine = |key: &str| fs::read_to_string(format!("/proc/sys/net/ipv4/{key}")).unwrap();
    let watched =
        ["tcp_rmem", "tcp_wmem", "tcp_no_metrics_save", "tcp_fastopen", "tcp_congestion_control", "ip_forward"];
    let before = watched.map(machine);
    let mut scenario = short_path();
    let tuned = up(&scenario).report();
    scenario.stock = true;
    let stock = up(&scenario).report();
    for host in &tuned.hosts {
        let conditions = &host.conditions;
        for memory in [&conditions.tcp_rmem, &conditions.tcp_wmem] {
            assert!(memory.ends_with(" 134217728"), "{memory}");
        }
        assert_eq!((&*conditions.tcp_no_metrics_save, &*conditions.tcp_fastopen), ("1", "3"));
        if ["src", "dst"].contains(&&*host.name) {
            // The requested congestion control, or a reason why not.
            assert!(conditions.congestion_control == "cubic" || conditions.congestion_control_refused.is_some());
        }
    }
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    for host in &stock.hosts {
        assert_eq!(
            [&host.conditions.tcp_rmem, &host.conditions.tcp_wmem],
            [0, 1].map(|at| words(&before[at])).each_ref()
        );
        assert_eq!(host.conditions.congestion_control_refused, None);
    }
    assert_eq!(watched.map(machine), before, "the machine's own settings");
}

#[test]
fn host_gets_the_settings_of_its_scenario() {
    let mut scenario = short_path();
    scenario.hosts[3].sysctl.insert("net.ipv4.tcp_sack".into(), "0".into());
    let testbed = up(&scenario);
    let sack = |host| {
        let output = testbed.exec(host, "cat").unwrap().arg("/proc/sys/net/ipv4/tcp_sack").output().unwrap();
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    assert_eq!((sack("src").as_str(), sack("dst").as_str()), ("1", "0"));
    scenario.hosts[3].sysctl.insert("net.ipv4.no_such_setting".into(), "0".into());
    let error = Testbed::up(&scenario).unwrap_err().to_string();
    assert!(error.starts_with("host \"dst\": cannot set net.ipv4.no_such_setting: "), "{error}");
}

#[test]
fn triangle_uses_the_least_delay() {
    let host = HostSpec::new;
    let link = |name: &str, a: &str, b: &str, delay: &str| {
        let mut link = LinkSpec { name: name.into(), ends: [a.into(), b.into()], config: Default::default() };
        for direction in [&mut link.config.forward, &mut link.config.backward] {
            direction.delay = delay.parse().unwrap();
        }
        link
    };
    let testbed = up(&Scenario {
        hosts: vec![host("a"), host("b"), host("c")],
        links: vec![link("long", "a", "c", "50ms"), link("ab", "a", "b", "1ms"), link("bc", "b", "c", "1ms")],
        stock: false,
    });
    let [sender, receiver] = ["a", "c"].map(|host| datagrams(&testbed, host, false));
    sender.send_to(&[0; 1000], receiver.local_addr().unwrap()).unwrap();
    receiver.recv_from(&mut [0; 1000]).unwrap();
    let counters = testbed.counters();
    // Routers send MLD messages of their own, so the long link may have carried something, but no such
    // datagram.
    let delivered = |link: &str| counters[link].forward.delivered.bytes;
    assert!(delivered("ab") > 1000 && delivered("bc") > 1000 && delivered("long") < 1000, "{counters:?}");
}

#[test]
fn testbed_leaves_nothing_behind() {
    let testbed = up(&short_path());
    let directory = testbed.directory().to_owned();
    assert!(directory.join("lock").exists());
    // One program ends on SIGTERM, one must be killed, and one is not a child of this process.
    let spawn =
        |script: &str| testbed.exec("dst", "sh").unwrap().args(["-c", script]).stdout(Stdio::null()).spawn().unwrap();
    let mut children =
        [spawn("exec sleep 1000"), spawn("trap '' TERM; while :; do sleep 1; done"), spawn("sleep 1000 & wait")];
    let namespace = fs::metadata(format!("/proc/{}/ns/net", children[0].id())).unwrap().ino();
    wait_until("the programs are in the host", || processes_in(namespace) >= 4);

    testbed.down();
    for child in &mut children {
        assert!(!child.wait().unwrap().success());
    }
    assert_eq!(processes_in(namespace), 0);
    assert!(!directory.exists(), "{} is left", directory.display());
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounts.contains(&*directory.to_string_lossy()), "{mounts}");
}

#[test]
fn failed_start_leaves_nothing_behind() {
    let mut scenario = short_path();
    scenario.hosts[3].sysctl.insert("net.no.such".into(), "1".into());
    let name = format!("broken-{}", std::process::id());
    Testbed::up_as(&name, &scenario).unwrap_err();
    // The name is free again at once.
    scenario.hosts[3].sysctl.clear();
    drop(Testbed::up_as(&name, &scenario).unwrap());
    for bad in ["", "a/b", "..", "-x", "waytoolongwaytoolongwaytoolongwaytoolong"] {
        let error = Testbed::up_as(bad, &scenario).unwrap_err().to_string();
        assert_eq!(error, format!("\"{bad}\" cannot name a testbed: expected up to 32 letters, digits and dashes"));
    }
}

/// A socket in `host`, on its address of the family, with a read time-out.
fn datagrams(testbed: &Testbed, host: &str, ipv6: bool) -> UdpSocket {
    let address = SocketAddr::new(testbed.addresses(host).unwrap()[usize::from(ipv6)], 0);
    let socket = testbed.run_in(host, || UdpSocket::bind(address)).unwrap().unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket
}

/// The number of processes in a network namespace.
fn processes_in(namespace: u64) -> usize {
    let processes = fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let inside = |pid: &String| fs::metadata(format!("/proc/{pid}/ns/net")).is_ok_and(|found| found.ino() == namespace);
    processes.filter(|name| name.bytes().all(|b| b.is_ascii_digit())).filter(inside).count()
}
