//! Relays in front of a gateway: HAProxy, and attackers with headers.

use super::super::support::Certificates;
use super::{Ask, Command, PATIENCE, Pg, Program, address, connect_from, destination, exchange, get};
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};

/// A gateway that lets only one client in, and the address of the relay that it believes.
struct Site {
    pg: Pg,
    relay: IpAddr,
    client: IpAddr,
}

impl Site {
    fn new(more: &str) -> Self {
        let (relay, client) = (address().ip(), address().ip());
        let allow = format!("[[allow]]\nfrom = [\"{client}\"]\nto = [\"127.0.0.0/8\"]\n");
        let pg = Pg::start("pg1", &format!("proxy_from = [\"{relay}\"]\n{allow}{more}"));
        Self { pg, relay, client }
    }

    /// A connection from `from` that begins with these bytes.
    fn send(&self, from: IpAddr, bytes: &[u8]) -> TcpStream {
        let mut stream = connect_from(from, self.pg.addr);
        stream.write_all(bytes).unwrap();
        stream
    }

    /// Waits until as many handshakes have failed.
    fn failed(&self, n: u64) {
        self.pg.until(|status| status.totals.handshakes_failed == n, "the connection was refused");
        assert_eq!(self.pg.status().totals.sessions_opened, 0);
    }

    fn header(&self, client: IpAddr) -> Vec<u8> {
        let IpAddr::V4(client) = client else { panic!("{client}") };
        header(0x21, 0x11, &[&client.octets()[..], &[127, 0, 0, 1, 0x12, 0x34, 0, 80]].concat())
    }
}

fn header(command: u8, family: u8, body: &[u8]) -> Vec<u8> {
    let len = u16::try_from(body.len()).unwrap().to_be_bytes();
    [b"\r\n\r\n\0\r\nQUIT\n", &[command, family][..], &len, body].concat()
}

/// Reads to the end of a connection that was refused: nothing comes.
fn is_closed(mut stream: TcpStream) {
    let mut got = Vec::new();
    let _ = stream.read_to_end(&mut got);
    assert!(got.is_empty(), "{got:?}");
}

#[test]
fn haproxy_names_the_client() {
    let site = Site::new("");
    for version in ["send-proxy-v2", "send-proxy-v2 proxy-v2-options crc32c,unique-id", "send-proxy"] {
        let at = SocketAddr::new(address().ip(), 7000);
        let (to, relay) = (site.pg.addr, site.relay);
        let id = "unique-id-format %ci:%cp\n";
        let sections = format!("listen l\nbind {at}\n{id}server s {to} source {relay} {version}\n");
        let _haproxy = Program::haproxy("tcp", &sections, at);
        let (listener, to) = destination();
        let (client, _) = Ask::to(to).ask_on(connect_from(site.client, at)).unwrap();
        exchange(client, listener.accept().unwrap().0, b"up", b"down");
        // The relay's other clients are none of the gateway's.
        let no = Ask::to(to).ask_on(connect_from(address().ip(), at)).unwrap_err();
        assert!(no.reason.contains("not allowed"), "{no:?}");
    }
    assert_eq!(site.pg.quiet(), (3, 0));
}

/// The header comes before TLS, and before an entry for programs.
#[test]
fn curl_comes_by_tls_through_haproxy() {
    let certificates = Certificates::new();
    let (relay, client, pg) = (address().ip(), address().ip(), address());
    let tls = certificates.issue_for("pg1", &[]);
    let entries = "entry = [\"http\", \"socks\"]\nclient_certificate = \"optional\"\n";
    let allow = format!("[[allow]]\nfrom = [\"{client}\"]\nto = [\"127.0.0.0/8\"]\n");
    let _pg = Pg::start_at(pg, "pg1", &format!("{entries}proxy_from = [\"{relay}\"]\n{tls}{allow}"));
    let (at, web) = (SocketAddr::new(address().ip(), 7000), SocketAddr::new(address().ip(), 8080));
    let sections = format!("listen l\nbind {at}\nserver s {pg} source {relay} send-proxy-v2\n");
    let _haproxy = Program::haproxy("tcp", &sections, at);
    let _nginx = Program::nginx(&format!("listen {web}; location / {{ return 200 \"it works\"; }}"), web);
    for proxy in [format!("https://{at}"), format!("socks5h://{at}")] {
        let mut curl = Command::new("curl");
        curl.args(["-sS", "--fail", "--max-time", "60", "--noproxy", "", "--proxy-insecure", "-p", "-x", &proxy]);
        let output = curl.args(["--interface", &client.to_string(), &format!("http://{web}/")]).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "it works", "{proxy}: {output:?}");
    }
}

#[test]
fn mapped_addresses_are_those_of_ipv4() {
    let site = Site::new("");
    let IpAddr::V4(client) = site.client else { panic!() };
    let mapped = client.to_ipv6_mapped().octets();
    let bytes = header(0x21, 0x21, &[&mapped[..], &[0; 15], &[1, 0x12, 0x34, 0, 80]].concat());
    let (listener, to) = destination();
    let (client, _) = Ask::to(to).ask_on(site.send(site.relay, &bytes)).unwrap();
    exchange(client, listener.accept().unwrap().0, b"up", b"down");
}

#[test]
fn headers_of_strangers_do_not_count() {
    let site = Site::new("");
    let stranger = address().ip();
    let (_, to) = destination();
    // Nobody looks for a header there: its bytes are none of a session.
    let claimed = Ask::to(to).try_ask_on(site.send(stranger, &site.header(site.client)));
    assert!(!matches!(claimed, Ok(Ok(_))), "{claimed:?}");
    let claimed = Ask::to(to).try_ask_on(site.send(stranger, b"PROXY TCP4 127.0.0.1 127.0.0.1 1 1\r\n"));
    assert!(!matches!(claimed, Ok(Ok(_))), "{claimed:?}");
    assert_eq!(site.pg.status().totals.sessions_opened, 0);
}

#[test]
fn relays_must_send_a_header() {
    let site = Site::new("");
    let (_, to) = destination();
    assert!(Ask::to(to).try_ask_on(connect_from(site.relay, site.pg.addr)).is_err());
    site.failed(1);
}

#[test]
fn bad_headers_are_refused() {
    let site = Site::new("");
    let v4 = [127, 0, 0, 1, 127, 0, 0, 1, 0, 1, 0, 2];
    let bad = [
        header(0x21, 0x11, &[&v4[..], &[4, 0xff, 0xec], &[0; 0xffec]].concat()),
        header(0x21, 0x11, &[&v4[..], &[5, 0, 9]].concat()),
        header(0x21, 0x21, &v4),
        header(0x21, 0x00, &[]),
        header(0x21, 0x11, &[0; 12]),
        header(0x21, 0x11, &[&[224, 0, 0, 1], &v4[4..]].concat()),
        b"PROXY UNKNOWN\r\n".to_vec(),
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        [&b"PROXY "[..], &[b' '; 200]].concat(),
    ];
    for (bytes, n) in bad.iter().zip(1..) {
        let mut stream = connect_from(site.relay, site.pg.addr);
        // It may be refused while it is sent.
        let _ = stream.write_all(bytes);
        is_closed(stream);
        site.failed(n);
    }
}

#[test]
fn second_header_is_none() {
    let site = Site::new("");
    let (_, to) = destination();
    let twice = [site.header(address().ip()), site.header(site.client)].concat();
    let claimed = Ask::to(to).try_ask_on(site.send(site.relay, &twice));
    assert!(!matches!(claimed, Ok(Ok(_))), "{claimed:?}");
    assert_eq!(site.pg.status().totals.sessions_opened, 0);
}

#[test]
fn relay_may_speak_for_itself() {
    let relay = address().ip();
    let allow = format!("[[allow]]\nfrom = [\"{relay}\"]\nto = [\"127.0.0.0/8\"]\n");
    let pg = Pg::start("pg1", &format!("proxy_from = [\"{relay}\"]\n{allow}"));
    let (listener, to) = destination();
    let mut stream = connect_from(relay, pg.addr);
    stream.write_all(&header(0x20, 0x11, &[9; 12])).unwrap();
    let (client, _) = Ask::to(to).ask_on(stream).unwrap();
    exchange(client, listener.accept().unwrap().0, b"up", b"down");
}

/// A header has as much time as a handshake, also while its bytes keep coming.
#[test]
fn slow_header_is_cut_off() {
    let site = Site::new("[limits]\nhandshake_timeout = \"500ms\"\n");
    let _silent = connect_from(site.relay, site.pg.addr);
    site.failed(1);
    let mut slow = site.send(site.relay, &header(0x21, 0x11, &[0; 8000])[..16]);
    let start = std::time::Instant::now();
    while slow.write_all(&[0]).is_ok() {
        assert!(start.elapsed() < PATIENCE, "it was never cut off");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    site.failed(2);
}

/// The relay's address is no client's, and each client has its own share.
#[test]
fn clients_of_a_relay_count_one_by_one() {
    let site = Site::new("[limits]\nhandshakes_per_source = 2\n");
    let clients: Vec<IpAddr> = (0..4).map(|_| address().ip()).collect();
    let held: Vec<_> = clients.iter().map(|client| site.send(site.relay, &site.header(*client))).collect();
    let (listener, to) = destination();
    let (client, _) = Ask::to(to).ask_on(site.send(site.relay, &site.header(site.client))).unwrap();
    exchange(client, listener.accept().unwrap().0, b"up", b"down");
    assert_eq!(site.pg.status().totals.handshakes_shed, 0);
    let _further = [(); 2].map(|()| site.send(site.relay, &site.header(clients[0])));
    site.pg.until(|status| status.totals.handshakes_shed == 1, "a client's third connection is shed");
    drop(held);
}

/// A request over a session that HAProxy has passed on reaches a web server, whole.
#[test]
fn header_is_passed_on_from_relay_to_destination() {
    let (relay, client, web) = (address().ip(), address().ip(), SocketAddr::new(address().ip(), 8080));
    let rules = format!("{}[[allow]]\nfrom = [\"{client}\"]\nto = [\"127.0.0.0/8\"]\n", super::PROXY);
    let pg = Pg::start("pg1", &format!("proxy_from = [\"{relay}\"]\n{rules}"));
    let _nginx = Program::nginx(
        &format!(
            "listen {web} proxy_protocol; location / {{ return 200 \"$proxy_protocol_addr $proxy_protocol_port\"; }}"
        ),
        web,
    );
    let mut stream = connect_from(relay, pg.addr);
    stream.write_all(format!("PROXY TCP4 {client} 127.0.0.1 4660 80\r\n").as_bytes()).unwrap();
    let (client_stream, _) = Ask::to(web).ask_on(stream).unwrap();
    assert_eq!(get(&client_stream), format!("{client} 4660"));
}
