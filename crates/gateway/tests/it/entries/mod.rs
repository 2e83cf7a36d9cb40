//! Programs that come by SOCKS5 and HTTP CONNECT: sessions, refusals, passwords.

mod attacks;
mod passwords;

use super::support::{
    ALLOW_ALL, Ask, Deaf, PATIENCE, Pg, address, assert_reset, destination, exchange, expect, pattern, reset,
};
use phoebus_gateway::config::Config;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::Path;

pub(crate) const ALL: &str = "entry = [\"session\", \"socks\", \"http\"]\n";

const BY: [By; 2] = [By::Socks, By::Http];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum By {
    Socks,
    Http,
}

/// What a program reads in place of a tunnel.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum No {
    /// The reply code of SOCKS.
    Socks(u8),
    /// The status of HTTP, and the sentence.
    Http(u16, String),
}

pub(crate) fn connect(pg: &Pg) -> TcpStream {
    let stream = TcpStream::connect(pg.addr).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

impl By {
    /// Asks for a session to `host` and `port`.
    pub(crate) fn ask(self, pg: &Pg, host: &str, port: u16) -> Result<TcpStream, No> {
        let mut stream = connect(pg);
        match self {
            Self::Socks => {
                stream.write_all(&[5, 1, 0]).unwrap();
                expect(&mut stream, &[5, 0]);
                stream.write_all(&socks_request(host, port)).unwrap();
                socks_answer(stream)
            }
            Self::Http => {
                stream.write_all(http_request(host, port, "").as_bytes()).unwrap();
                http_answer(stream)
            }
        }
    }

    fn to(self, pg: &Pg, addr: SocketAddr) -> Result<TcpStream, No> {
        self.ask(pg, &addr.ip().to_string(), addr.port())
    }
}

pub(crate) fn socks_request(host: &str, port: u16) -> Vec<u8> {
    let address = match host.parse() {
        Ok(IpAddr::V4(four)) => [&[1][..], &four.octets()].concat(),
        Ok(IpAddr::V6(six)) => [&[4][..], &six.octets()].concat(),
        Err(_) => [&[3, host.len() as u8][..], host.as_bytes()].concat(),
    };
    [&[5, 1, 0][..], &address, &port.to_be_bytes()].concat()
}

pub(crate) fn http_request(host: &str, port: u16, more: &str) -> String {
    let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
    format!("CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n{more}\r\n")
}

pub(crate) fn socks_answer(mut stream: TcpStream) -> Result<TcpStream, No> {
    let mut reply = [0; 10];
    stream.read_exact(&mut reply).unwrap();
    if reply[..2] == [5, 0] {
        return Ok(stream);
    }
    assert_eq!(stream.read(&mut [0]).unwrap(), 0, "the connection ends in order");
    Err(No::Socks(reply[1]))
}

pub(crate) fn http_answer(mut stream: TcpStream) -> Result<TcpStream, No> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    if status == 200 {
        assert_eq!(head, "HTTP/1.1 200 Connection established\r\n\r\n");
        return Ok(stream);
    }
    let mut rest = String::new();
    stream.read_to_string(&mut rest).unwrap();
    assert!(head.contains(&format!("Content-Length: {}\r\n", rest.len())) && head.contains("Connection: close\r\n"));
    Err(No::Http(status, rest.trim_end().to_owned()))
}

/// A session by this entry, and its other end.
fn session(by: By, pg: &Pg) -> (TcpStream, TcpStream) {
    let (listener, addr) = destination();
    let client = by.to(pg, addr).unwrap_or_else(|no| panic!("{no:?}"));
    let (server, _) = listener.accept().unwrap();
    server.set_read_timeout(Some(PATIENCE)).unwrap();
    (client, server)
}

#[test]
fn programs_get_sessions_through_two_gateways() {
    let second_rules = ALLOW_ALL;
    let (first, second) = (address(), address());
    let second = Pg::start_at(second, "pg2", &format!("{}{second_rules}", super::support::peer("pg1", first, 0)));
    let route = "[[route]]\nto = \"*\"\nvia = \"pg2\"\n";
    let peer = super::support::peer("pg2", second.addr, 1);
    let first = Pg::start_at(first, "pg1", &format!("{ALL}{peer}{route}{ALLOW_ALL}"));
    for by in BY {
        let (client, server) = session(by, &first);
        let status = first.status();
        assert_eq!(status.sessions[0].entry, format!("{by:?}").to_lowercase());
        assert_eq!(status.sessions[0].origin, client.local_addr().unwrap().to_string());
        exchange(client, server, &pattern(3_000_001, 3), &pattern(2_000_003, 5));
        first.quiet();
    }
    // The session protocol is spoken on the same port.
    let (listener, addr) = destination();
    let (client, _) = Ask::to(addr).ask(first.addr).unwrap();
    exchange(client, listener.accept().unwrap().0, b"up", b"down");
    assert_eq!((first.quiet(), second.quiet()), ((3, 0), (3, 0)));
    // Bytes are spliced: the relay has made pipes.
    assert!(first.status().pipes.0 > 0, "{:?}", first.status().pipes);
}

#[test]
fn names_are_resolved_at_the_far_end() {
    let pg = Pg::start("pg1", &format!("{ALL}{ALLOW_ALL}"));
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    for by in BY {
        let client = by.ask(&pg, "LocalHost", port).unwrap();
        assert_eq!(pg.status().sessions[0].destination, format!("localhost:{port}"));
        exchange(client, listener.accept().unwrap().0, b"up", b"down");
        pg.quiet();
    }
}

#[test]
fn half_close_and_resets_pass_both_ways() {
    let pg = Pg::start("pg1", &format!("{ALL}{ALLOW_ALL}"));
    for by in BY {
        let (mut client, mut server) = session(by, &pg);
        client.write_all(b"request").unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        let mut request = Vec::new();
        server.read_to_end(&mut request).unwrap();
        assert_eq!(request, b"request");
        server.write_all(b"answer").unwrap();
        expect(&mut client, b"answer");
        drop(server);
        assert_eq!(client.read(&mut [0]).unwrap(), 0);

        let (mut client, server) = session(by, &pg);
        reset(server);
        assert_reset(&mut client);
        let (client, mut server) = session(by, &pg);
        reset(client);
        assert_reset(&mut server);
    }
    assert_eq!(pg.quiet(), (2, 4));
    // A gateway that dies resets them as well.
    let ends = BY.map(|by| session(by, &pg));
    drop(pg);
    for (mut client, mut server) in ends {
        assert_reset(&mut client);
        assert_reset(&mut server);
    }
}

#[test]
fn refusals_are_those_of_direct_connections() {
    let limits = "[limits]\nconnect_timeout = \"200ms\"\n";
    let allow = "[[allow]]\nfrom = [\"127.0.0.0/8\"]\nto = [\"127.0.0.0/8\"]\n";
    let pg = Pg::start("pg1", &format!("{ALL}{limits}{allow}"));
    let closed = address();
    let deaf = Deaf::new();
    for (to, socks, http, words) in [
        (closed, 5, 502, "refused"),
        (deaf.addr, 6, 504, "within 200ms"),
        ("192.0.2.1:80".parse().unwrap(), 2, 403, "192.0.2.1:80 is not allowed to 127.0.0.1"),
    ] {
        assert_eq!(By::Socks.to(&pg, to).unwrap_err(), No::Socks(socks), "{to}");
        match By::Http.to(&pg, to).unwrap_err() {
            No::Http(status, said) => assert!(status == http && said.contains(words), "{to}: {status} {said}"),
            no => panic!("{no:?}"),
        }
    }
}

#[test]
fn addresses_of_the_gateways_own_host_need_a_rule_that_names_them() {
    let pg = Pg::start("pg1", &format!("{ALL}[[allow]]\nfrom = [\"127.0.0.0/8\"]\nto = [\"*\"]\n"));
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    for host in [
        "127.0.0.1",
        "::1",
        "::ffff:127.0.0.1",
        "::",
        "0.0.0.0",
        "169.254.169.254",
        "::ffff:169.254.169.254",
        "localhost",
    ] {
        assert_eq!(By::Socks.ask(&pg, host, port).unwrap_err(), No::Socks(2), "{host}");
        assert!(matches!(By::Http.ask(&pg, host, port).unwrap_err(), No::Http(403, _)), "{host}");
    }
    // An address as a name, and what C libraries take for an address.
    for (host, code) in
        [("127.0.0.1", 2), ("::1", 2), ("::ffff:127.0.0.1", 2), ("127.1", 1), ("0x7f.1", 1), ("2130706433", 1)]
    {
        let mut stream = connect(&pg);
        stream.write_all(&[&[5, 1, 0, 5, 1, 0, 3, host.len() as u8][..], host.as_bytes(), &[0, 80]].concat()).unwrap();
        expect(&mut stream, &[5, 0]);
        assert_eq!(socks_answer(stream).unwrap_err(), No::Socks(code), "{host}");
    }
    listener.set_nonblocking(true).unwrap();
    assert!(listener.accept().is_err(), "nothing has reached it");
}

#[test]
fn listener_takes_what_its_entries_say() {
    for (entries, takes) in [("entry = \"socks\"", [true, false, false]), ("entry = [\"http\"]", [false, true, false])]
    {
        let pg = Pg::start("pg1", &format!("{entries}\n{ALLOW_ALL}"));
        let (_listener, addr) = destination();
        let begun: [&[u8]; 3] = [b"\x05\x01\x00", b"CONNECT a:1 HTTP/2\r\n\r\n", b"\x89PHB\r\n\x1a\n"];
        let answers = begun.map(|bytes| {
            let mut stream = connect(&pg);
            stream.write_all(bytes).unwrap();
            // What is not taken may be reset before.
            let _ = stream.shutdown(Shutdown::Write);
            let mut answer = Vec::new();
            let _ = stream.read_to_end(&mut answer);
            !answer.is_empty()
        });
        assert_eq!(answers, takes, "{entries}");
        let by = if takes[0] { By::Socks } else { By::Http };
        by.to(&pg, addr).unwrap();
    }
    // By default, none of the two.
    let pg = Pg::start("pg1", ALLOW_ALL);
    let mut stream = connect(&pg);
    stream.write_all(&[5, 1, 0]).unwrap();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    assert!(answer != [5, 0], "{answer:?}");
}

#[test]
fn wrong_entries_are_named_with_what_was_expected() {
    let error = |more: &str| {
        let text = format!("name = \"pg\"\n[[listen]]\naddress = \"0.0.0.0:5006\"\n{more}");
        Config::parse(&text, Path::new("pg.toml")).unwrap_err().to_string()
    };
    for (more, words) in [
        ("entry = \"sox\"", "pg.toml:4:9: there is no entry \"sox\"; expected session, socks, http"),
        ("entry = []", "entry is empty"),
        ("entry = [\"http\", \"http\"]", "entry has \"http\" twice"),
        ("entry = \"http\"\ntransport = \"udt\"", "expected transport = \"tcp\""),
        ("entry = \"socks\"\nauth = \"anonymous\"", "programs cannot authenticate by entry \"socks\""),
    ] {
        let error = error(more);
        assert!(error.contains(words), "{error}");
    }
}
