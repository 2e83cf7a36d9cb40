//! Connections from the client's address, in a network of three hosts: client, gateway, destination.

use super::super::refusals::in_own_network;
use super::{Ask, Command, Config, Pg, Stdio, address};
use phoebus_gateway::Gateway;
use phoebus_proto::session::Code;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Child;
use std::time::Instant;

const CLIENT: &str = "[[route]]\nto = \"*\"\nvia = \"direct\"\nsource = \"client\"\n";

fn ip(arguments: &str) {
    let output = Command::new("ip").args(arguments.split(' ')).output().unwrap();
    assert!(output.status.success(), "ip {arguments}: {output:?}");
}

/// The commands of the guide by which the gateway's host takes the answers.
fn guide() -> &'static str {
    let guide = include_str!("../../../../../docs/guide/gateway/clients.md");
    let (_, commands) = guide.split_once("```sh\n").unwrap();
    commands.split_once("```").unwrap().0
}

/// A host beside the gateway's: its process, which holds the network namespace.
struct Host(Child);

impl Host {
    /// One whose addresses end in 2, on links on which the gateway's end in 1.
    fn new(name: &str, net: u8) -> Self {
        let mut unshare = Command::new("unshare");
        let host = Self(unshare.args(["-n", "sleep", "600"]).stdin(Stdio::null()).spawn().unwrap());
        let own = std::fs::read_link("/proc/self/ns/net").unwrap();
        let file = format!("/proc/{}/ns/net", host.0.id());
        let start = Instant::now();
        while std::fs::read_link(&file).is_ok_and(|theirs| theirs == own) {
            assert!(start.elapsed() < super::PATIENCE, "unshare made no namespace");
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        ip(&format!("link add {name} type veth peer name eth0 netns {}", host.0.id()));
        ip(&format!("link set {name} up"));
        ip(&format!("address add 10.0.{net}.1/24 dev {name}"));
        ip(&format!("-6 address add fd00:{net}::1/64 dev {name} nodad"));
        for set_up in [
            "ip link set lo up".to_owned(),
            "ip link set eth0 up".to_owned(),
            format!("ip address add 10.0.{net}.2/24 dev eth0"),
            format!("ip -6 address add fd00:{net}::2/64 dev eth0 nodad"),
            format!("ip route add default via 10.0.{net}.1"),
            format!("ip -6 route add default via fd00:{net}::1"),
        ] {
            let output = host.command("sh").args(["-c", &set_up]).output().unwrap();
            assert!(output.status.success(), "{set_up}: {output:?}");
        }
        host
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/proc/{}/ns/net", self.0.id())).arg(program).stdin(Stdio::null());
        command
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

struct Socat(Child);

impl Drop for Socat {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn destination_sees_the_clients_address() {
    in_own_network("origin::addresses::clients_address_in_isolated_namespace", "192.0.2.7");
}

#[test]
#[ignore = "changes routes of the host; destination_sees_the_clients_address runs it in a namespace"]
fn clients_address_in_isolated_namespace() {
    let (client, server) = (Host::new("c0", 1), Host::new("d0", 2));
    let output = Command::new("sh").args(["-ec", guide()]).stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let destination = |family: &str, at: &str| {
        let mut socat = server.command("socat");
        let listen = format!("{family},fork,reuseaddr");
        let socat = Socat(socat.args([&listen, "SYSTEM:echo $SOCAT_PEERADDR"]).spawn().unwrap());
        let start = Instant::now();
        let probe = || client_of(&server, &format!("TCP:{at}:7000"));
        while probe().is_empty() {
            assert!(start.elapsed() < super::PATIENCE, "socat does not listen");
        }
        socat
    };
    let _servers =
        [destination("TCP4-LISTEN:7000", "10.0.2.2"), destination("TCP6-LISTEN:7000,ipv6only", "[fd00:2::2]")];
    let entry = "entry = [\"session\", \"http\"]\n";
    let listen6 = format!("[[listen]]\naddress = \"[::]:5006\"\n{entry}");
    let allow = "[[allow]]\nfrom = [\"10.0.1.0/24\", \"fd00:1::/64\"]\nto = [\"10.0.2.2\", \"fd00:2::/64\"]\n";
    let at = SocketAddr::from(([0, 0, 0, 0], 5006));
    let pg = Pg::start_at(at, "pg1", &format!("{entry}{listen6}{CLIENT}{allow}"));
    let through = |gateway: &str, to: &str| client_of(&client, &format!("PROXY:{gateway}:{to}:7000,proxyport=5006"));
    assert_eq!(through("10.0.1.1", "10.0.2.2").trim(), "10.0.1.2");
    assert!(through("[fd00:1::1]", "[fd00:2::2]").contains("fd00:0001:0000:0000:0000:0000:0000:0002"));
    // An address of the other family cannot be shown, and none is put in its place.
    assert!(!through("10.0.1.1", "[fd00:2::2]").contains(':'));
    assert!(!through("[fd00:1::1]", "10.0.2.2").contains("10.0"));
    pg.until(|status| status.totals.refusals.get(&Code::NoRoute.number()) == Some(&2), "two were refused");
    drop(pg);
    // A relay on another host does not name this one's loopback.
    let rules = "[[allow]]\nfrom = [\"127.0.0.0/8\", \"10.0.1.0/24\"]\nto = [\"10.0.2.2\"]\n";
    let pg = Pg::start_at(at, "pg1", &format!("{entry}proxy_from = [\"10.0.1.2\"]\n{rules}"));
    let claim = |client_ip: &str| {
        let mut sh = client.command("sh");
        let said = format!(
            "PROXY TCP4 {client_ip} 10.0.1.1 1 5006\\r\\nCONNECT 10.0.2.2:7000 HTTP/1.1\\r\\nHost: 10.0.2.2:7000\\r\\n\\r\\n"
        );
        let output = sh.args(["-c", &format!("printf '{said}' | socat -t 60 - TCP:10.0.1.1:5006")]).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    assert!(claim("10.0.1.9").starts_with("HTTP/1.1 200"), "{}", claim("10.0.1.9"));
    assert_eq!(claim("127.0.0.1"), "");
    pg.until(|status| status.totals.handshakes_failed == 1, "the claim was refused");
}

/// What socat reads on this host from this address.
fn client_of(host: &Host, address: &str) -> String {
    let output = host.command("socat").args(["-u", address, "STDOUT"]).output().unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A client on another host that a peer names is no client on the peer's loopback.
#[test]
fn loopback_of_a_peer_is_no_source() {
    let (first, second) = (address(), address());
    let rules = format!("{}{CLIENT}{}", super::peer("pg1", first, 0), super::ALLOW_ALL);
    let _second = Pg::start_at(second, "pg2", &rules);
    let via = "[[route]]\nto = \"*\"\nvia = \"pg2\"\n";
    let peer = super::peer("pg2", second, 0);
    let first = Pg::start_at(first, "pg1", &format!("{peer}{via}{}", super::ALLOW_ALL));
    let (_listener, to) = super::destination();
    let no = Ask::to(to).ask(first.addr).unwrap_err();
    assert_eq!((no.code, no.hop.as_str()), (Code::NoRoute, "pg2"), "{no:?}");
    // A client of its own is one.
    let pg = Pg::start("pg3", &format!("{CLIENT}{}", super::ALLOW_ALL));
    let (listener, to) = super::destination();
    let client = super::connect_from(address().ip(), pg.addr);
    let own = client.local_addr().unwrap();
    let (client, _) = Ask::to(to).ask_on(client).unwrap();
    let (server, from): (TcpStream, _) = listener.accept().unwrap();
    assert_eq!(from.ip(), own.ip());
    super::exchange(client, server, &super::pattern(100_000, 1), b"down");
}

#[test]
fn lack_of_the_capability_is_told_at_start() {
    let mut setpriv = Command::new("setpriv");
    setpriv
        .args(["--bounding-set=-net_admin,-net_raw", "--inh-caps=-net_admin,-net_raw"])
        .arg(std::env::current_exe().unwrap());
    let name = "origin::addresses::start_without_capability";
    let output = setpriv.args(["--exact", name, "--ignored", "--nocapture"]).output().unwrap();
    assert!(output.status.success() && String::from_utf8_lossy(&output.stdout).contains("1 passed"), "{output:?}");
}

#[test]
#[ignore = "needs to lack a capability; lack_of_the_capability_is_told_at_start runs it so"]
fn start_without_capability() {
    let text = format!("name = \"pg\"\n[[listen]]\naddress = \"{}\"\n{CLIENT}", address());
    let config = Config::parse(&text, Path::new("pg.toml")).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let _guard = runtime.enter();
    let error = Gateway::start(config).map(drop).unwrap_err().to_string();
    assert!(error.starts_with("pg.toml:7:10: ") && error.ends_with("expected CAP_NET_RAW or CAP_NET_ADMIN"), "{error}");
}
