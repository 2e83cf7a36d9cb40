//! The client at the destination: PROXY headers to HAProxy, nginx and listeners of the test, and connections from the client's
//! address. `relays`: headers from HAProxy and from attackers, in front of a gateway.

mod addresses;
mod relays;

use super::passwords::{AUTH, keys, users};
use super::support::{ALLOW_ALL, Ask, Certificates, PATIENCE, Pg, address, destination, exchange, pattern, peer};
use phoebus_gateway::config::Config;
use std::fs;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const PROXY: &str = "[[route]]\nto = \"*\"\nvia = \"direct\"\nproxy = \"v2\"\n";

/// The type and the bytes of a further value.
type Value = (u8, Vec<u8>);

/// A header as a destination reads it: family, addresses with ports, and further values.
fn header(mut stream: &TcpStream) -> (u8, Vec<u8>, Vec<Value>) {
    let mut fixed = [0; 16];
    stream.read_exact(&mut fixed).unwrap();
    assert_eq!(fixed[..13], *b"\r\n\r\n\0\r\nQUIT\n\x21");
    let mut body = vec![0; usize::from(u16::from_be_bytes([fixed[14], fixed[15]]))];
    stream.read_exact(&mut body).unwrap();
    let len = [0, 12, 36][usize::from(fixed[13] >> 4)];
    let (addresses, mut rest) = body.split_at(len);
    let mut values = Vec::new();
    while let [kind, high, low, after @ ..] = rest {
        let (value, after) = after.split_at(usize::from(u16::from_be_bytes([*high, *low])));
        values.push((*kind, value.to_vec()));
        rest = after;
    }
    (fixed[13], addresses.to_vec(), values)
}

/// The addresses of a header about these ends, which are both of IPv4.
fn ends(client: SocketAddr, to: SocketAddr) -> Vec<u8> {
    let octets = |addr: SocketAddr| match addr.ip() {
        IpAddr::V4(v4) => v4.octets(),
        IpAddr::V6(v6) => panic!("{v6}"),
    };
    [&octets(client)[..], &octets(to), &client.port().to_be_bytes(), &to.port().to_be_bytes()].concat()
}

/// A connection from an address of its own.
fn connect_from(from: impl Into<IpAddr>, to: SocketAddr) -> TcpStream {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::new(from.into(), 0).into()).unwrap();
    socket.connect(&to.into()).unwrap();
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

/// A program in the foreground that is ended with the test.
struct Program(Child, #[expect(dead_code, reason = "its files live as long as it does")] TempDir);

impl Program {
    fn wait_for(command: &mut Command, dir: TempDir, at: SocketAddr) -> Self {
        let program = Self(command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap(), dir);
        let start = Instant::now();
        while TcpStream::connect(at).is_err() {
            assert!(start.elapsed() < PATIENCE, "{command:?} does not listen at {at}");
            std::thread::sleep(Duration::from_millis(10));
        }
        program
    }

    fn haproxy(mode: &str, sections: &str, at: SocketAddr) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("haproxy.cfg");
        let times = "timeout connect 60s\ntimeout client 60s\ntimeout server 60s\n";
        fs::write(&file, format!("defaults\nmode {mode}\n{times}{sections}")).unwrap();
        Self::wait_for(Command::new("/usr/sbin/haproxy").args(["-db", "-q", "-f"]).arg(file), dir, at)
    }

    fn nginx(server: &str, at: SocketAddr) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let room = dir.path().display();
        let text = format!(
            "daemon off; master_process off; pid {room}/nginx.pid; error_log stderr crit;\nevents {{}}\n\
             http {{ access_log off; client_body_temp_path {room}/b; proxy_temp_path {room}/p; fastcgi_temp_path {room}/f;\n\
             uwsgi_temp_path {room}/u; scgi_temp_path {room}/s; server {{ {server} }} }}\n"
        );
        let file = dir.path().join("nginx.conf");
        fs::write(&file, text).unwrap();
        let mut nginx = Command::new("/usr/sbin/nginx");
        nginx.args(["-e", "stderr", "-p"]).arg(dir.path()).arg("-c").arg(file);
        Self::wait_for(&mut nginx, dir, at)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What a web server answers to a request on this session.
fn get(mut session: &TcpStream) -> String {
    session.write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
    let mut answer = String::new();
    session.read_to_string(&mut answer).unwrap();
    answer.split_once("\r\n\r\n").map(|(_, body)| body.trim().to_owned()).unwrap_or(answer)
}

#[test]
fn header_precedes_the_session() {
    let pg = Pg::start("pg1", &format!("{PROXY}{ALLOW_ALL}"));
    let (listener, to) = destination();
    let ask = Ask { early: b"early".to_vec(), ..Ask::to(to) };
    let client = connect_from(address().ip(), pg.addr);
    let own = client.local_addr().unwrap();
    let (client, _) = ask.ask_on(client).unwrap();
    let (mut server, _) = listener.accept().unwrap();
    assert_eq!(header(&server), (0x11, ends(own, to), vec![(5, ask.session.0.to_vec())]));
    let mut early = [0; 5];
    server.read_exact(&mut early).unwrap();
    assert_eq!(&early, b"early");
    exchange(client, server, &pattern(3_000_000, 1), &pattern(2_000_000, 2));
    assert_eq!(pg.quiet(), (1, 0));
}

#[test]
fn last_gateway_names_the_client_of_the_first() {
    let (first, second) = (address(), address());
    let rules = format!("{}{PROXY}{ALLOW_ALL}", peer("pg1", first, 0));
    let _second = Pg::start_at(second, "pg2", &rules);
    let via = "[[route]]\nto = \"*\"\nvia = \"pg2\"\n";
    let first = Pg::start_at(first, "pg1", &format!("{}{via}{ALLOW_ALL}", peer("pg2", second, 0)));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = listener.local_addr().unwrap();
    // A name goes to the destination as the client has written it.
    let ask = Ask::to(format!("localhost:{}", to.port()));
    let client = connect_from(address().ip(), first.addr);
    let own = client.local_addr().unwrap();
    let (client, _) = ask.ask_on(client).unwrap();
    let (server, _) = listener.accept().unwrap();
    let values = vec![(5, ask.session.0.to_vec()), (2, b"localhost".to_vec())];
    assert_eq!(header(&server), (0x11, ends(own, to), values));
    exchange(client, server, b"up", b"down");
}

#[test]
fn ends_of_different_families_are_written_as_ipv6() {
    let allow = "[[allow]]\nfrom = [\"127.0.0.0/8\"]\nto = [\"::1/128\"]\n";
    let pg = Pg::start("pg1", &format!("{PROXY}{allow}"));
    let listener = TcpListener::bind("[::1]:0").unwrap();
    let to = listener.local_addr().unwrap();
    let client = connect_from(Ipv4Addr::LOCALHOST, pg.addr);
    let own = client.local_addr().unwrap();
    let _session = Ask::to(to).ask_on(client).unwrap();
    let (family, ends, _) = header(&listener.accept().unwrap().0);
    let mapped = [&[0; 10][..], &[0xff, 0xff, 127, 0, 0, 1], &[0; 15], &[1]].concat();
    let ports = [own.port().to_be_bytes(), to.port().to_be_bytes()].concat();
    assert_eq!((family, ends), (0x21, [mapped, ports].concat()));
}

/// A user who has logged in is named. What a peer says about a user is passed on only if the peer may speak for the user.
#[test]
fn user_is_named_only_if_believed() {
    let dir = tempfile::tempdir().unwrap();
    let (own, certificates) = (users(dir.path(), &[("ada", 1, "")]), Certificates::new());
    let (first, second) = (address(), address());
    let (listener, to) = destination();
    let named = |pg: &Pg| {
        let ask = Ask { login: Some(("ada".to_owned(), keys(1))), ..Ask::to(to) };
        let _session = ask.ask(pg.addr).unwrap_or_else(|no| panic!("{no:?}"));
        let (_, _, values) = header(&listener.accept().unwrap().0);
        values.into_iter().find(|(kind, _)| *kind == 0xe0).map(|(_, value)| value)
    };
    let direct = Pg::start("pg0", &format!("{AUTH}{own}{PROXY}{ALLOW_ALL}"));
    assert_eq!(named(&direct).as_deref(), Some(&b"ada"[..]));
    let tls = certificates.issue_for("pg1", &[]);
    let to_second = format!("[[peer]]\nname = \"pg2\"\naddress = \"{second}\"\npool = {{ min = 0 }}\n");
    let via = "[[route]]\nto = \"*\"\nvia = \"pg2\"\n";
    let first_pg = Pg::start_at(first, "pg1", &format!("{AUTH}{own}{tls}{to_second}{via}{ALLOW_ALL}"));
    for (speaks_for, user) in [("", None), ("speaks_for = [\"user:ada\"]\n", Some(&b"ada"[..]))] {
        let tls = certificates.issue_for("pg2", &[]);
        let from = format!("[[peer]]\nname = \"pg1\"\naddress = \"{first}\"\npool = {{ min = 0 }}\n{speaks_for}");
        let allow = "[[allow]]\nfrom = [\"pg1\"]\nto = [\"127.0.0.0/8\"]\n";
        let _second = Pg::start_at(second, "pg2", &format!("{tls}{from}{PROXY}{allow}"));
        assert_eq!(named(&first_pg).as_deref(), user, "{speaks_for}");
    }
}

#[test]
fn haproxy_and_nginx_know_the_client() {
    let pg = Pg::start("pg1", &format!("{PROXY}{ALLOW_ALL}"));
    let [haproxy, nginx] = [8080, 8081].map(|port| SocketAddr::new(address().ip(), port));
    let said = "%[src] %[src_port] %[dst] %[fc_pp_authority] %[fc_pp_unique_id,hex]";
    let answer = format!("http-request return status 200 content-type text/plain lf-string \"{said}\"");
    let local = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let frontend = format!("frontend f\nbind {haproxy} accept-proxy\nbind {local} accept-proxy\n{answer}\n");
    let _haproxy = Program::haproxy("http", &frontend, haproxy);
    let server = format!(
        "listen {nginx} proxy_protocol; location / {{ return 200 \"$proxy_protocol_addr $proxy_protocol_port\"; }}"
    );
    let _nginx = Program::nginx(&server, nginx);
    let session = |to: String| {
        let (ask, client) = (Ask::to(to), connect_from(address().ip(), pg.addr));
        let own = client.local_addr().unwrap();
        let id: String = ask.session.0.iter().map(|byte| format!("{byte:02X}")).collect();
        (id, own, ask.ask_on(client).unwrap().0)
    };
    let (id, own, client) = session(haproxy.to_string());
    assert_eq!(get(&client), format!("{} {} {}  {id}", own.ip(), own.port(), haproxy.ip()));
    let (id, own, client) = session(format!("localhost:{}", local.port()));
    assert_eq!(get(&client), format!("{} {} {} localhost {id}", own.ip(), own.port(), local.ip()));
    let (_, own, client) = session(nginx.to_string());
    assert_eq!(get(&client), format!("{} {}", own.ip(), own.port()));
    // Without the header, neither answers.
    let plain = Pg::start("pg1", ALLOW_ALL);
    let (mut client, _) = Ask::to(haproxy).ask(plain.addr).unwrap();
    client.write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    let _ = client.read_to_end(&mut answer);
    assert!(answer.is_empty(), "{}", String::from_utf8_lossy(&answer));
}

/// Whoever was refused by the destination learns that, and a header changes nothing.
#[test]
fn refusal_of_the_destination_is_told_as_without_a_header() {
    let pg = Pg::start("pg1", &format!("{PROXY}{ALLOW_ALL}"));
    let (listener, closed) = destination();
    drop(listener);
    let no = Ask::to(closed).ask(pg.addr).unwrap_err();
    assert_eq!(no.code, phoebus_proto::session::Code::Refused, "{no:?}");
}

#[test]
fn errors_say_where_and_what_was_expected() {
    let listen = "[[listen]]\naddress = \"127.0.0.1:5006\"\n";
    let peer = "[[peer]]\nname = \"pg2\"\naddress = \"127.0.0.1:5007\"\nsecurity = \"none\"\n";
    let route = |more: &str| format!("{listen}{peer}[[route]]\nto = \"*\"\n{more}\n");
    for (text, expected) in [
        (route("via = \"direct\"\nproxy = \"v1\""), "pg.toml:11:9: proxy is \"v1\"; expected \"v2\", or no proxy"),
        (
            route("via = \"direct\"\nsource = \"me\""),
            "pg.toml:11:10: source is \"me\"; expected \"client\", or no source",
        ),
        (
            route("via = \"pg2\"\nproxy = \"v2\""),
            "pg.toml:11:9: proxy is for the gateway that connects to the destination; expected via = \"direct\"",
        ),
        (
            format!("{listen}proxy_from = []\n"),
            "pg.toml:4:14: proxy_from is empty; expected ranges such as \"10.0.0.0/24\"",
        ),
        (
            format!("{listen}proxy_from = [\"0.0.0.0/0\"]\n"),
            "pg.toml:4:15: proxy_from = \"0.0.0.0/0\" would let anybody name any client; expected your proxies",
        ),
        (
            format!("{listen}transport = \"udt\"\npublic = true\nunprotected = true\nproxy_from = [\"10.0.0.1\"]\n"),
            "proxy_from is for connections by TCP, not udt; expected transport = \"tcp\"",
        ),
    ] {
        let text = format!("name = \"pg\"\n{text}");
        let error = Config::parse(&text, Path::new("pg.toml")).map(drop).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}\n{text}");
    }
}
