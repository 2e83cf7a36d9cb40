//! The settings of users and administrators, and the messages about them (`tests/c/client.c`).

use crate::common;
use common::peer::{self, CHALLENGE, ECHO, GARBAGE, HANG_UP, NOT_ALLOWED, Peer, REFUSED};
use common::{compile, plain, preloaded, program, run};
use serde_json::Value;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

const FAR: &str = "192.0.2.1";
const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

fn client() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| compile("client", &[]))
}

/// The client's report of a connection to each.
fn says(command: &mut Command, destinations: &[(&str, u16)]) -> Vec<String> {
    for (host, port) in destinations {
        command.args([host, &port.to_string()[..]]);
    }
    let ended = run(command);
    assert_eq!(ended.err, "", "silent unless asked");
    ended.ok().lines().map(str::to_owned).collect()
}

/// A command for which these lines are /etc/hosts.
fn with_hosts(room: &Path, lines: &str) -> Command {
    let hosts = room.join("hosts");
    fs::write(&hosts, lines).unwrap();
    let mut command = plain(program("unshare"));
    let script = format!("mount --bind {} /etc/hosts && exec \"$@\"", hosts.display());
    command.args(["-m", "sh", "-c", &script, "sh"]);
    command
}

/// Preloads the shim into `command` by env(1), not into the programs before it.
fn shim(command: &mut Command, variables: &[(&str, &str)]) {
    command.arg("env").arg(format!("LD_PRELOAD={}", common::library().display()));
    command.args(variables.iter().map(|(name, value)| format!("{name}={value}")));
    command.arg(client());
}

fn reports(file: &Path) -> Vec<Value> {
    fs::read_to_string(file).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// A closed port on loopback. The kernel never assigns it to a test.
const NOBODY: SocketAddr = SocketAddr::new(LOOPBACK, 1);

#[test]
fn only_selected_destinations_use_the_gateway() {
    let peer = Peer::start("127.0.0.1");
    let direct = peer::echo(LOOPBACK);
    let with = |only: &str, except: &str| {
        let mut command = preloaded(client(), peer.address);
        command.env("PHOEBUS_ONLY", only).env("PHOEBUS_EXCEPT", except);
        says(&mut command, &[("127.0.0.1", direct.port())]);
        peer.asked().len()
    };
    assert_eq!(with("", ""), 0, "this host is not asked for by accident");
    assert_eq!(with("*", ""), 0);
    assert_eq!(with("127.0.0.0/8", ""), 1);
    assert_eq!(with("127.0.0.0/8", "*:1-65535"), 1);
    assert_eq!(with("127.0.0.0/8:1", ""), 1);
    let asked = &peer.asked()[0];
    assert_eq!(asked.destination.to_string(), direct.to_string());
    assert_eq!((asked.path.len(), asked.user.clone()), (0, None));
}

#[test]
fn destinations_are_selected_by_the_names_they_were_looked_up_by() {
    let room = tempfile::tempdir().unwrap();
    let peer = Peer::start("127.0.0.1");
    let direct = peer::echo(LOOPBACK).port();
    let hosts = "192.0.2.1 far.example\n192.0.2.2 other.example\n127.0.0.1 gw.example\n";
    let mut command = with_hosts(room.path(), hosts);
    let gateway = format!("gw.example/{}", peer.address.port());
    shim(&mut command, &[("PHOEBUS_GW", &gateway), ("PHOEBUS_ONLY", "far.example:7,.nowhere.example")]);
    // The gateway itself is set by name, too.
    assert_eq!(says(&mut command, &[("far.example", ECHO), ("127.0.0.1", direct)]), ["connected", "connected"]);
    assert_eq!(peer.asked().len(), 1);
    assert_eq!(peer.asked()[0].destination.to_string(), "192.0.2.1:7");
}

#[test]
fn all_addresses_of_a_gateway_are_tried() {
    let room = tempfile::tempdir().unwrap();
    let peer = Peer::start("127.0.0.1");
    // The first two addresses are closed on this port.
    let hosts = "127.0.0.77 gw.example\n::1 gw.example\n127.0.0.1 gw.example\n";
    let mut command = with_hosts(room.path(), hosts);
    shim(&mut command, &[("PHOEBUS_GW", &format!("gw.example/{}", peer.address.port()))]);
    assert_eq!(says(&mut command, &[(FAR, ECHO), ("2001:db8::1", ECHO)]), ["connected", "connected"]);
    assert_eq!(peer.asked().len(), 2);
}

#[test]
fn direct_connection_is_reported() {
    let peer = Peer::start("127.0.0.1");
    let direct = peer::echo(LOOPBACK);
    let said = |only: &str, except: &str, why: &str| {
        let mut command = preloaded(client(), peer.address);
        command.env("PHOEBUS_ONLY", only).env("PHOEBUS_EXCEPT", except).env("PHOEBUS_VERBOSE", "1");
        let ended = run(command.args(["127.0.0.1", &direct.port().to_string()]));
        assert_eq!(ended.err, format!("phoebus: {direct}: direct: {why}\n"));
    };
    said("192.0.2.0/24", "", "it is this host itself, and PHOEBUS_ONLY (--only) has no range with it");
    said("", "", "it is this host itself");
    said("127.0.0.0/8", "127.0.0.1", "PHOEBUS_ONLY (--only) does not name it, or PHOEBUS_EXCEPT (--except) does");
    assert_eq!(peer.asked().len(), 0);
}

#[test]
fn every_address_of_a_gateway_is_spoken_of_and_the_telling_one_first() {
    let room = tempfile::tempdir().unwrap();
    // In a network namespace of its own. Nobody listens at one address, and the other, which a socket of its family
    // tries first, has no route.
    let hosts = room.path().join("hosts");
    fs::write(&hosts, "127.0.0.77 gw.example\n2001:db8:dead::1 gw.example\n").unwrap();
    let script = format!("ip link set lo up && mount --bind {} /etc/hosts && exec \"$@\"", hosts.display());
    let mut command = plain(program("unshare"));
    command.args(["-mn", "sh", "-c", &script, "sh"]);
    shim(&mut command, &[("PHOEBUS_GW", "gw.example/1"), ("PHOEBUS_VERBOSE", "1")]);
    let ended = run(command.args(["2001:db8::1", "7"]));
    assert_eq!(ended.out, "Connection refused\n", "{}", ended.err);
    let said = "gateway gw.example:1 (127.0.0.77:1): cannot connect: connection refused; [2001:db8:dead::1]:1: ";
    assert!(ended.err.contains(said), "{}", ended.err);
}

#[test]
fn unresolvable_gateway_is_written_once_to_standard_error() {
    let room = tempfile::tempdir().unwrap();
    let mut command = with_hosts(room.path(), "");
    shim(&mut command, &[("PHOEBUS_GW", "gw.invalid")]);
    let ended = run(command.args([FAR, "7", FAR, "8"]));
    assert_eq!(ended.out, "No route to host\nNo route to host\n");
    assert!(ended.err.starts_with("phoebus: gateway gw.invalid:5006: the name does not resolve: "), "{}", ended.err);
    assert!(ended.err.ends_with("; connections fail\n") && ended.err.lines().count() == 1, "{}", ended.err);
}

#[test]
fn gateway_failure_is_written_once_to_standard_error() {
    let peer = Peer::start("127.0.0.1");
    let [not_allowed, garbage, challenge, hang_up, refused] =
        [NOT_ALLOWED, GARBAGE, CHALLENGE, HANG_UP, REFUSED].map(|port| port.to_string());
    let command = || preloaded(client(), peer.address);
    for (port, out, begins, ends) in [
        (&not_allowed, "Permission denied", "", "; the program gets EACCES\n"),
        (&garbage, "Protocol error", "gateway 127.0.0.1:", "; the program gets EPROTO\n"),
        (&challenge, "Permission denied", "gateway 127.0.0.1:", "; the program gets EACCES\n"),
        (&hang_up, "Software caused connection abort", "gateway 127.0.0.1:", "; the program gets ECONNABORTED\n"),
    ] {
        let ended = run(command().args([FAR, port, FAR, port]));
        assert_eq!(ended.out, format!("{out}\n{out}\n"), "{}", ended.err);
        let begins = format!("phoebus: {FAR}:{port}: {begins}");
        assert!(ended.err.starts_with(&begins) && ended.err.ends_with(ends), "{}", ended.err);
        assert_eq!(ended.err.lines().count(), 1, "{}", ended.err);
    }
    let ended = run(command().args([FAR, &refused]));
    assert_eq!((ended.out.as_str(), ended.err.as_str()), ("Connection refused\n", ""), "as without a gateway");
}

#[test]
fn unresolvable_gateway_is_an_error() {
    let room = tempfile::tempdir().unwrap();
    let mut command = with_hosts(room.path(), "");
    shim(&mut command, &[("PHOEBUS_GW", "gw.invalid"), ("PHOEBUS_VERBOSE", "1")]);
    let ended = run(command.args([FAR, "7"]));
    assert_eq!(ended.out, "No route to host\n");
    assert!(
        ended.err.starts_with("phoebus: 192.0.2.1:7: gateway gw.invalid:5006: the name does not "),
        "{}",
        ended.err
    );
}

#[test]
fn path_and_user_are_passed_on() {
    let peer = Peer::start("127.0.0.1");
    let mut command = preloaded(client(), "nowhere.invalid");
    let path = format!("{},pg2.example,[2001:db8::1]/7", peer.address);
    command.env("PHOEBUS_PATH", path).env("PHOEBUS_USER", "ada@example.org");
    assert_eq!(says(&mut command, &[(FAR, ECHO)]), ["connected"]);
    let asked = &peer.asked()[0];
    let path: Vec<_> = asked.path.iter().map(ToString::to_string).collect();
    assert_eq!(path, ["pg2.example:5006", "[2001:db8::1]:7"]);
    assert_eq!(asked.user.as_deref(), Some("ada@example.org"));
}

#[test]
fn files_stand_behind_variables_and_a_switch_before_both() {
    let peer = Peer::start("127.0.0.1");
    let direct = peer::echo(LOOPBACK);
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("phoebus/client.conf");
    fs::create_dir(file.parent().unwrap()).unwrap();
    fs::write(&file, format!("# a comment\nPHOEBUS_GW={}\nPHOEBUS_ONLY=127.0.0.0/8\n", peer.address)).unwrap();
    let command = || {
        let mut command = preloaded(client(), "");
        command.env("XDG_CONFIG_HOME", home.path());
        command
    };
    says(&mut command(), &[("127.0.0.1", direct.port())]);
    assert_eq!(peer.asked().len(), 1);
    says(command().env("PHOEBUS_ONLY", "10.0.0.0/8"), &[("127.0.0.1", direct.port())]);
    says(command().env("PHOEBUS_DISABLE", "1"), &[("127.0.0.1", direct.port())]);
    assert_eq!(peer.asked().len(), 1);
}

#[test]
fn settings_that_cannot_be_used_stop_connections_and_say_why() {
    let direct = peer::echo(LOOPBACK);
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("phoebus/client.conf");
    fs::create_dir(file.parent().unwrap()).unwrap();
    let (own, file_of) = ("127.0.0.0/8", home.path().to_str().unwrap());
    let no_setting = "client.conf, line 2: \"PHOEBUS_GATEWAY\" is no setting";
    let no_path = "phoebus: environment: PHOEBUS_PATH: \"pg1/x\" is not an endpoint with a port";
    // Whether this host itself may be concerned, by the environment or by the file.
    type Case<'a> = (&'a [(&'a str, &'a str)], &'a str, &'a str, bool);
    let cases: [Case<'_>; 7] = [
        (&[("PHOEBUS_PATH", "pg1/x")], "", no_path, false),
        (&[("PHOEBUS_PATH", "pg1/x"), ("PHOEBUS_ONLY", " ")], "", no_path, false),
        (&[("PHOEBUS_PATH", "pg1/x"), ("PHOEBUS_ONLY", own)], "", no_path, true),
        (
            &[("PHOEBUS_ONLY", "127.0.0/8")],
            "",
            "phoebus: environment: PHOEBUS_ONLY: \"127.0.0/8\" is not a destination such as",
            true,
        ),
        (&[("XDG_CONFIG_HOME", file_of)], "", no_setting, false),
        (&[("XDG_CONFIG_HOME", file_of), ("PHOEBUS_ONLY", own)], "", no_setting, true),
        (&[("XDG_CONFIG_HOME", file_of)], " PHOEBUS_ONLY = 127.0.0.0/8\n", no_setting, true),
    ];
    for (variables, more, expected, is_own_concerned) in cases {
        fs::write(&file, format!("\nPHOEBUS_GATEWAY=pg1\n{more}")).unwrap();
        let mut command = preloaded(client(), "127.0.0.1:1");
        command.envs(variables.iter().copied());
        let ended = run(command.args([FAR, "7", FAR, "7", "127.0.0.1", &direct.port().to_string()]));
        // Connections that are certainly not meant for a gateway still work.
        let last = if is_own_concerned { "Invalid argument" } else { "connected" };
        assert_eq!(ended.out, format!("Invalid argument\nInvalid argument\n{last}\n"), "{variables:?} {more}");
        assert!(ended.err.contains(expected), "{}", ended.err);
        assert_eq!(ended.err.matches('\n').count(), 1, "one sentence, once: {}", ended.err);
    }
    // The shim neither waits, nor reads without end, to find out.
    let files: [(&[u8], &str); 2] = [
        (b"PHOEBUS_GW=pg1\n\xff", "client.conf, line 2: is no text in UTF-8; expected a few lines of NAME=value"),
        (b"", "client.conf: cannot be read: it is a pipe; expected a few lines of NAME=value"),
    ];
    for (contents, expected) in files {
        fs::remove_file(&file).unwrap();
        if contents.is_empty() {
            assert!(std::process::Command::new("mkfifo").arg(&file).status().unwrap().success());
        } else {
            fs::write(&file, contents).unwrap();
        }
        let mut command = preloaded(client(), "127.0.0.1:1");
        let own = ["127.0.0.1", &direct.port().to_string()];
        let ended = run(command.env("XDG_CONFIG_HOME", home.path()).args([FAR, "7"]).args(own));
        assert_eq!(ended.out, "Invalid argument\nInvalid argument\n");
        assert!(ended.err.contains(expected), "{}", ended.err);
    }
    // A program that does not connect gets no message.
    let mut command = preloaded(program("true"), "127.0.0.1:1");
    let ended = run(command.env("PHOEBUS_PATH", "pg1/x"));
    assert_eq!((ended.status.code(), &ended.err[..]), (Some(0), ""));
}

#[test]
fn direct_connection_needs_permission() {
    let direct = peer::echo(LOOPBACK);
    let room = tempfile::tempdir().unwrap();
    let report = room.path().join("report");
    let command = || {
        let mut command = preloaded(client(), NOBODY);
        command.env("PHOEBUS_ONLY", "127.0.0.0/8").env("PHOEBUS_REPORT", &report);
        command
    };
    let destination = [("127.0.0.1", direct.port())];
    // Reported to every program, once.
    let port = direct.port().to_string();
    let ended = run(command().args(["127.0.0.1", &port, "127.0.0.1", &port]));
    assert_eq!(ended.out, "Connection refused\nConnection refused\n");
    let said = format!("phoebus: gateway {NOBODY} ({NOBODY}): cannot connect: connection refused; connections fail\n");
    assert_eq!(ended.err, said);
    assert_eq!(reports(&report).len(), 2);
    fs::remove_file(&report).unwrap();
    assert_eq!(run(command().env("PHOEBUS_VERBOSE", "1").args(["127.0.0.1", &port])).err.lines().count(), 1);
    assert_eq!(says(command().env("PHOEBUS_FALLBACK", "1"), &destination), ["connected"]);
    let reports = reports(&report);
    assert_eq!((&reports[0]["event"], &reports[0]["errno"]), (&"failed".into(), &libc::ECONNREFUSED.into()));
    assert_eq!((&reports[1]["event"], &reports[1]["errno"]), (&"direct".into(), &0.into()));
    for (report, start) in reports.iter().zip(["gateway ", "direct: gateway "]) {
        let note = report["note"].as_str().unwrap();
        assert!(note.starts_with(start) && note.ends_with(": cannot connect: connection refused"), "{note}");
        assert_eq!(report["destination"], direct.to_string());
    }
    // The refusal of a gateway that answers is final.
    let peer = Peer::start("127.0.0.1");
    let mut command = preloaded(client(), peer.address);
    assert_eq!(says(command.env("PHOEBUS_FALLBACK", "1"), &[(FAR, REFUSED)]), ["Connection refused"]);
}

/// Needs root.
#[test]
fn reports_do_not_go_where_a_link_of_somebody_else_leads() {
    let room = tempfile::tempdir().unwrap();
    let [report, link] = ["report", "link"].map(|name| room.path().join(name));
    std::os::unix::fs::symlink(&report, &link).unwrap();
    for (owner, count) in [(65534, 0), (0, 1)] {
        std::os::unix::fs::lchown(&link, Some(owner), None).unwrap();
        let mut command = preloaded(client(), NOBODY);
        command.env("PHOEBUS_ONLY", "127.0.0.0/8").env("PHOEBUS_REPORT", &link);
        assert_eq!(run(command.args(["127.0.0.1", "9"])).out, "Connection refused\n");
        assert_eq!(if count == 0 { usize::from(report.exists()) } else { reports(&report).len() }, count);
    }
}

#[test]
fn reports_say_what_a_session_got() {
    let peer = Peer::start("127.0.0.1");
    let room = tempfile::tempdir().unwrap();
    let report = room.path().join("report");
    let mut command = preloaded(client(), peer.address);
    command.env("PHOEBUS_REPORT", &report).env("PHOEBUS_VERBOSE", "1").env("PHOEBUS_CC", "reno");
    for port in [ECHO, REFUSED, NOT_ALLOWED, CHALLENGE] {
        command.args([FAR, &port.to_string()]);
    }
    let ended = run(&mut command);
    assert_eq!(ended.out, "connected\nConnection refused\nPermission denied\nPermission denied\n");
    let reports = reports(&report);
    assert_eq!(reports.len(), 4);
    let opened = &reports[0];
    assert_eq!((&opened["event"], &opened["destination"]), (&"opened".into(), &"192.0.2.1:7".into()));
    assert_eq!(opened["session"], peer.asked()[0].session.to_string());
    let hops = opened["hops"].as_array().unwrap();
    let name = |hop: &Value, key: &str| hop[key].as_str().unwrap().to_owned();
    assert_eq!(hops.iter().map(|hop| name(hop, "from")).collect::<Vec<_>>(), ["client", "peer"]);
    assert_eq!(hops.iter().map(|hop| name(hop, "to")).collect::<Vec<_>>(), ["peer", "echo"]);
    assert_eq!((name(&hops[0], "congestion_control"), name(&hops[0], "transport")), ("reno".into(), "tcp".into()));
    let rtt = |hop: &Value| hop["rtt_us"].as_u64().unwrap();
    assert!(rtt(&hops[0]) > 0 && rtt(opened) == rtt(&hops[0]) + 250, "{opened:#}");
    let errors: Vec<_> = reports[1..].iter().map(|report| report["errno"].as_i64().unwrap() as i32).collect();
    assert_eq!(errors, [libc::ECONNREFUSED, libc::EACCES, libc::EACCES]);
    assert_eq!(reports[1]["note"], "peer: it is \"closed\"");
    let lines: Vec<_> = ended.err.lines().collect();
    assert!(lines[0].starts_with("phoebus: client –") && lines[0].ends_with("→ 192.0.2.1:7"), "{}", lines[0]);
    assert_eq!(lines[1], "phoebus: 192.0.2.1:11: peer: it is \"closed\"");
    assert!(lines[3].contains("PHOEBUS_USER"), "{}", lines[3]);
}

#[test]
fn congestion_control_of_the_program_stays() {
    let peer = Peer::start("127.0.0.1");
    let room = tempfile::tempdir().unwrap();
    // A session each: with the requested congestion control, with the system's, and with the program's own.
    let cases = [("reno", "0"), ("system", "0"), ("reno", "1")];
    let source = "import socket, sys\nfd = socket.socket()\n\
                  if sys.argv[1] == '1': fd.setsockopt(6, 13, fd.getsockopt(6, 13, 16))\n\
                  fd.connect(('192.0.2.1', 7))\nprint(fd.getsockopt(6, 13, 16).split(b'\\0')[0].decode())\n";
    let file = room.path().join("cc.py");
    fs::write(&file, source).unwrap();
    let got = cases.map(|(wanted, chosen)| {
        let mut command = preloaded(program("python3"), peer.address);
        run(command.env("PHOEBUS_CC", wanted).arg(&file).arg(chosen)).ok().trim().to_owned()
    });
    let system = fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control").unwrap();
    assert_eq!(got, ["reno", system.trim(), system.trim()]);
}

#[test]
fn short_path_is_bypassed() {
    let peer = Peer::start("127.0.0.1");
    let direct = peer::echo(LOOPBACK);
    let room = tempfile::tempdir().unwrap();
    let (report, cache) = (room.path().join("report"), room.path().join("not/yet/there/bypass"));
    let command = |limit: &str| {
        let mut command = preloaded(client(), peer.address);
        command.env("PHOEBUS_ONLY", "127.0.0.0/8").env("PHOEBUS_BYPASS_RTT", limit);
        command.env("PHOEBUS_CACHE", &cache).env("PHOEBUS_REPORT", &report);
        says(&mut command, &[("127.0.0.1", direct.port())]);
        peer.asked().len()
    };
    assert_eq!(command("0"), 1);
    assert!(!cache.exists());
    assert_eq!(command("10s"), 2);
    assert_eq!(command("10s"), 2);
    // The peer says 250 µs by itself, so this path is never that short.
    assert_eq!(command("0.1ms"), 3);
    let reports = reports(&report);
    let events: Vec<_> = reports.iter().map(|report| report["event"].as_str().unwrap()).collect();
    assert_eq!(events, ["opened", "opened", "direct", "opened"]);
    assert!(reports[2]["note"].as_str().unwrap().ends_with(", below 10s"), "{}", reports[2]);
}

/// The handshake rides in the SYN once the kernel has a cookie for the gateway. In a network namespace of its own, since
/// servers take fast open only where that is switched on.
#[test]
fn handshake_is_sent_in_the_syn() {
    let room = tempfile::tempdir().unwrap();
    let gateway = room.path().join("gateway.toml");
    fs::write(
        &gateway,
        "name = \"pg\"\n[[listen]]\naddress = \"127.0.0.1:5006\"\n[[allow]]\nfrom = [\"127.0.0.0/8\"]\nto = [\"127.0.0.0/8\"]\n",
    )
    .unwrap();
    let script = room.path().join("script");
    let text = "set -e\nip link set lo up\nsysctl -qw net.ipv4.tcp_fastopen=3\n\
                \"$1\" gateway --config \"$2\" 2>/dev/null & gateway=$!\n\
                socat TCP-LISTEN:7777,bind=127.0.0.1,fork EXEC:cat & echo=$!\n\
                trap 'kill $gateway $echo' EXIT\n\
                for port in 5006 7777; do\n\
                  until (exec 3<>/dev/tcp/127.0.0.1/$port) 2>/dev/null; do sleep 0.05; done\n\
                done\n\
                LD_PRELOAD=$4 PHOEBUS_GW=127.0.0.1 PHOEBUS_ONLY=127.0.0.0/8:7777 \"$3\" \
                  127.0.0.1 7777 127.0.0.1 7777 127.0.0.1 7777\n\
                grep TcpExt: /proc/net/netstat\n";
    fs::write(&script, text).unwrap();
    let mut command = plain(program("unshare"));
    command.args(["-n", "bash"]).arg(&script).arg(common::phoebus()).arg(&gateway).arg(client()).arg(common::library());
    let out = run(&mut command).ok();
    let lines: Vec<_> = out.lines().collect();
    assert_eq!(lines[..3], ["connected"; 3]);
    let column = lines[3].split(' ').position(|name| name == "TCPFastOpenActive").unwrap();
    let active: u32 = lines[4].split(' ').nth(column).unwrap().parse().unwrap();
    assert_eq!(active, 2, "the first connect fetched the cookie, the others used it");
}

/// A gateway that does not answer at all, in an empty network namespace.
#[test]
fn silent_gateway_is_given_up() {
    let script = "ip link set lo up; ip link add nowhere type veth peer name else; ip link set else up; ip addr add 198.51.100.1/24 dev nowhere; \
                  ip link set nowhere up; ip neigh add 198.51.100.2 lladdr 02:00:00:00:00:02 dev nowhere; \
                  ip route add default dev nowhere; exec \"$@\"";
    let mut command = plain(program("unshare"));
    command.args(["-n", "sh", "-c", script, "sh"]);
    shim(&mut command, &[("PHOEBUS_GW", "198.51.100.2")]);
    let ended = run(command.args([FAR, &ECHO.to_string()]));
    assert_eq!(ended.out, "Connection timed out\n");
    assert!(ended.err.ends_with("(198.51.100.2:5006): cannot connect: timed out; connections fail\n"), "{}", ended.err);
}
