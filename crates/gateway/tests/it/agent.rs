//! Clients with and without certificates, and their agents: who may connect, what is allowed to them, and which
//! connections are kept for them (S1, P9, P12).

use crate::support;
use phoebus_config::agent::Secret;
use phoebus_gateway::Gateway;
use phoebus_gateway::config::{Agent, Allowed, Config};
use phoebus_net::CongestionControl;
use phoebus_net::credentials::{CredentialFiles, Credentials};
use phoebus_proto::session::Code;
use phoebus_proto::session::message::Requirements;
use phoebus_proto::units::Span;
use std::io::{Read, Write};
use std::net::{SocketAddr, UdpSocket};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use support::{Ask, Certificates, No, Pg, address, destination, exchange, pattern};

const SECRET: [u8; 32] = [5; 32];

/// The files of a `[tls]` section.
fn files(tls: &str) -> CredentialFiles {
    let value = |key: &str| -> PathBuf {
        let line = tls.lines().find(|line| line.starts_with(key)).unwrap();
        line.split('"').nth(1).unwrap().into()
    };
    CredentialFiles { certificate: value("certificate"), key: value("key"), authorities: value("authorities") }
}

/// A gateway that listens with every transport, with `more` for each listener, a rule for `from`, and `limits`.
fn gateway(certificates: &Certificates, more: &str, from: &str, limits: &str) -> Pg {
    let addr = address();
    let tls = certificates.issue_for("pg1", &[addr.ip().to_string()]);
    let udt = SocketAddr::new(addr.ip(), addr.port() + 1000);
    let listeners = format!(
        "{tls}\n[[listen]]\naddress = \"{addr}\"\ntransport = \"quic\"\n{more}\n\
         [[listen]]\naddress = \"{udt}\"\ntransport = \"udt\"\nsecurity = \"encrypt\"\n{more}\n\
         [[listen]]\naddress = \"{udt}\"\nsecurity = \"encrypt\"\n{more}\n\
         [[allow]]\nfrom = [{from}]\nto = [\"127.0.0.0/8\"]\n[limits]\n{limits}"
    );
    Pg::start_at(addr, "pg1", &listeners)
}

/// Starts an agent for `gateway`.
fn agent(gateway: &Pg, transport: &str, credentials: Credentials) -> Pg {
    let port = if transport == "quic" { gateway.addr.port() } else { gateway.addr.port() + 1000 };
    start(config(gateway, port, vec![Allowed { transport: transport.to_owned(), port: None }], credentials))
}

/// The configuration of an agent for `gateway` with these transports.
fn config(gateway: &Pg, port: u16, ways: Vec<Allowed>, credentials: Credentials) -> Config {
    Config::agent(Agent {
        logins: None,
        bearer: None,
        gateway: gateway.addr.into(),
        port,
        allowed: ways,
        congestion_control: CongestionControl::Auto,
        credentials: Some(credentials),
        contact: None,
        secret: Secret(SECRET),
        ipv6: false,
        admin: None,
    })
}

fn start(config: Config) -> Pg {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let guard = runtime.enter();
    let agent = Gateway::start(config).unwrap();
    drop(guard);
    Pg { addr: agent.addresses()[0], gateway: Some(agent), runtime }
}

fn ask(agent: &Pg, gateway: &Pg, to: SocketAddr) -> Result<(std::net::TcpStream, support::Report), No> {
    Ask { secret: Some(SECRET.to_vec()), ..Ask::to(to).path(&gateway.addr.to_string()) }.ask(agent.addr)
}

#[test]
fn certificate_named_by_rule_is_enough() {
    let certificates = Certificates::new();
    let own = || Credentials::load(files(&certificates.issue("ada.users.example"))).unwrap();
    for (transport, from) in
        [("quic", "certificate:ada.users.example"), ("tcp", "certificate:.users.example"), ("udt", "certificate:*")]
    {
        let gateway = gateway(&certificates, "", &format!("{from:?}"), "");
        let agent = agent(&gateway, transport, own());
        let (listener, to) = destination();
        let (client, report) = ask(&agent, &gateway, to).unwrap_or_else(|no| panic!("{transport}: {no:?}"));
        let (server, _) = listener.accept().unwrap();
        let from: Vec<_> = report.hops.iter().map(|hop| hop.0.as_str()).collect();
        assert_eq!((from, &report.carried[0]), (vec!["agent", "pg1"], &(transport.into(), "encrypt".into())));
        assert_eq!(gateway.status().sessions[0].principal.text, "ada.users.example (certificate)");
        exchange(client, server, &pattern(100_000, 1), &pattern(100_000, 2));
        assert_eq!((gateway.quiet(), agent.quiet()), ((1, 0), (1, 0)));
    }
    let gateway = gateway(&certificates, "", "\"certificate:bob.users.example\"", "");
    let no = ask(&agent(&gateway, "quic", own()), &gateway, destination().1).unwrap_err();
    assert_eq!((no.code, no.hop.as_str()), (Code::NotAllowed, "pg1"), "{no:?}");
}

#[test]
fn client_needs_no_certificate_where_optional() {
    let certificates = Certificates::new();
    let trusting = || Credentials::trusting(&files(&certificates.issue("nobody")).authorities).unwrap();
    for transport in ["quic", "tcp", "udt"] {
        let closed = gateway(&certificates, "", "\"127.0.0.0/8\"", "");
        let no = ask(&agent(&closed, transport, trusting()), &closed, destination().1).unwrap_err();
        assert_eq!(no.code, Code::AuthFailed, "{transport}: {no:?}");
        assert!(no.reason.contains("certificate"), "{transport}: {no:?}");

        let open = gateway(&certificates, "client_certificate = \"optional\"", "\"127.0.0.0/8\"", "");
        let agent = agent(&open, transport, trusting());
        let (listener, to) = destination();
        let (client, report) = ask(&agent, &open, to).unwrap_or_else(|no| panic!("{transport}: {no:?}"));
        let (server, _) = listener.accept().unwrap();
        assert_eq!(report.carried[0], (transport.to_owned(), "encrypt".to_owned()));
        exchange(client, server, b"up", b"down");
    }
    // Without a certificate, rules about certificates do not apply.
    let gateway = gateway(&certificates, "client_certificate = \"optional\"", "\"certificate:*\"", "");
    let no = ask(&agent(&gateway, "quic", trusting()), &gateway, destination().1).unwrap_err();
    assert_eq!(no.code, Code::NotAllowed, "{no:?}");
}

#[test]
fn agent_serves_clients_that_know_its_secret() {
    let certificates = Certificates::new();
    let gateway = gateway(&certificates, "", "\"127.0.0.0/8\"", "");
    let agent = agent(&gateway, "quic", Credentials::load(files(&certificates.issue("ada"))).unwrap());
    let (_listener, to) = destination();
    let open = Ask::to(to).path(&gateway.addr.to_string());
    let refused = |ask: Ask| ask.ask(agent.addr).unwrap_err();
    let no = refused(open.clone());
    assert_eq!((no.code, no.reason.as_str()), (Code::AuthRequired, "agent"), "it says what it wants to hear");
    for wrong in [vec![], vec![5; 31], vec![6; 32], vec![5; 33]] {
        let no = refused(Ask { secret: Some(wrong), ..open.clone() });
        assert_eq!((no.code, no.hop.as_str()), (Code::AuthFailed, "agent"), "{no:?}");
    }
    let no = refused(Ask { email: Some("ada@example.org".into()), ..open.clone() });
    assert_eq!((no.code, no.reason.as_str()), (Code::AuthRequired, "agent"), "an address is no secret");
    // It connects only to its gateway.
    let no = refused(Ask { secret: Some(SECRET.into()), ..Ask::to(to).path("127.0.0.1:1") });
    assert_eq!(no.code, Code::NoRoute, "{no:?}");
    assert!(ask(&agent, &gateway, to).is_ok());
}

#[test]
fn agent_forwards_requirements_to_gateway() {
    let certificates = Certificates::new();
    let gateway = gateway(&certificates, "", "\"certificate:ada\"", "[profile.default]\nrate = \"80mbit\"\n");
    let (listener, to) = destination();
    for transport in ["quic", "tcp", "udt"] {
        let agent = agent(&gateway, transport, Credentials::load(files(&certificates.issue("ada"))).unwrap());
        let ask = |rate| {
            let requirements = Requirements { rate: Some(rate), ..Requirements::default() };
            let ask = Ask { secret: Some(SECRET.to_vec()), requirements, ..Ask::to(to) };
            ask.path(&gateway.addr.to_string()).ask(agent.addr)
        };
        let no = ask(90_000_000).unwrap_err();
        assert_eq!((no.code, no.hop.as_str()), (Code::Requirement, "pg1"), "{transport}: {no:?}");
        assert!(no.reason.contains("90mbit was asked for") && no.reason.contains("carries 80mbit"), "{no:?}");
        let (client, _) = ask(60_000_000).unwrap_or_else(|no| panic!("{transport}: {no:?}"));
        let (server, _) = listener.accept().unwrap();
        exchange(client, server, &pattern(300_000, 3), &pattern(200_000, 5));
        gateway.quiet();
    }
}

/// A forwarder between an agent and its gateway's UDP port that can drop datagrams.
struct Middle {
    addr: SocketAddr,
    drops: Arc<AtomicBool>,
}

impl Middle {
    fn before(addr: SocketAddr) -> Self {
        let own = SocketAddr::new(addr.ip(), addr.port() + 2000);
        let socket = UdpSocket::bind(own).unwrap();
        let drops = Arc::new(AtomicBool::new(false));
        let filter = drops.clone();
        // Runs until the process ends.
        std::thread::spawn(move || {
            let (mut bytes, mut client) = ([0; 1 << 16], None);
            while let Ok((n, from)) = socket.recv_from(&mut bytes) {
                let to = if from == addr { client } else { Some(addr) };
                if from != addr {
                    client = Some(from);
                }
                if let Some(to) = to.filter(|_| !filter.load(Ordering::Relaxed)) {
                    let _ = socket.send_to(&bytes[..n], to);
                }
            }
        });
        Self { addr: own, drops }
    }
}

#[test]
fn agent_uses_first_available_transport() {
    let certificates = Certificates::new();
    let gateway = gateway(&certificates, "", "\"certificate:ada\"", "");
    let middle = Middle::before(gateway.addr);
    let way = |transport: &str, port| Allowed { transport: transport.to_owned(), port };
    let udt = gateway.addr.port() + 1000;
    let ways = vec![way("quic", Some(middle.addr.port())), way("udt", Some(udt)), way("tcp", None)];
    let credentials = Credentials::load(files(&certificates.issue("ada"))).unwrap();
    let mut config = config(&gateway, udt, ways, credentials);
    // Short pauses, so that it retries soon even on a slow machine.
    config.limits.transport_timeout = Span(Duration::from_secs(5));
    config.limits.transport_retry = Span(Duration::from_secs(1));
    let agent = start(config);
    agent.runtime.block_on(agent.gateway().try_peer(&gateway.addr.ip().to_string())).unwrap();

    let (listener, to) = destination();
    let carried = || {
        let (client, report) = ask(&agent, &gateway, to).unwrap_or_else(|no| panic!("{no:?}"));
        let (server, _) = listener.accept().unwrap();
        exchange(client, server, &pattern(100_000, 1), &pattern(100_000, 2));
        (report.carried[0].clone(), report.notes[0].clone())
    };
    let encrypted = |transport: &str| (transport.to_owned(), "encrypt".to_owned());
    // A note says that there is no beacon until it is open.
    let preferred = |(by, note): ((String, String), String)| by == encrypted("quic") && !note.contains("auto has");
    assert!(preferred(carried()));
    middle.drops.store(true, Ordering::Relaxed);
    let (by, note) = carried();
    assert_eq!(by, encrypted("udt"), "{note}");
    assert!(
        note.contains("auto has udt, since quic was not available: ") && note.contains("answer within 5s"),
        "{note}"
    );

    middle.drops.store(false, Ordering::Relaxed);
    agent.until(|status| status.pools[0].transport == "quic", "it comes back");
    assert!(preferred(carried()));
    assert_eq!(agent.status().pools[0].choice.as_ref().unwrap().failed, []);
}

#[test]
fn agent_without_transport_reports_each_failure() {
    let certificates = Certificates::new();
    let addr = address();
    // Nothing accepts TLS, and nothing answers over UDP.
    let gateway = Pg::start_at(addr, "pg1", "[[allow]]\nfrom = [\"127.0.0.0/8\"]\nto = [\"*\"]\n");
    let ways = ["quic", "udt", "tcp"].map(|name| Allowed { transport: name.to_owned(), port: None }).to_vec();
    let credentials = Credentials::load(files(&certificates.issue("ada"))).unwrap();
    let mut config = config(&gateway, addr.port(), ways, credentials);
    config.limits.transport_timeout = Span(Duration::from_millis(500));
    let agent = start(config);
    let failed = agent.runtime.block_on(agent.gateway().try_peer(&addr.ip().to_string())).unwrap_err();
    let transports: Vec<_> = failed.iter().map(|(transport, _)| transport.as_str()).collect();
    assert_eq!(transports, ["quic", "udt", "tcp"], "{failed:?}");
    assert!(failed.iter().all(|(_, why)| why.contains(&addr.ip().to_string())), "{failed:?}");
    assert_eq!(agent.runtime.block_on(agent.gateway().try_peer("elsewhere")), Err(Vec::new()));
}

#[test]
fn client_connections_are_kept_between_sessions() {
    let certificates = Certificates::new();
    for (kept, more) in [(true, ""), (false, "clients = 0\n")] {
        let limits = format!("handshake_timeout = \"2s\"\n{more}");
        let gateway = gateway(&certificates, "", "\"certificate:ada\"", &limits);
        let agent = agent(&gateway, "tcp", Credentials::load(files(&certificates.issue("ada"))).unwrap());
        agent.until(|status| status.pools[0].idle == 2, "connections are ready");
        if kept {
            // More than twice as long as a stranger may stay idle.
            std::thread::sleep(Duration::from_secs(5));
            let pool = agent.status().pools.remove(0);
            assert_eq!((pool.dialled, pool.idle), (2, 2), "{pool:?}");
        } else {
            agent.until(|status| status.pools[0].dialled > 4, "it is turned away again and again");
        }
        let (listener, to) = destination();
        let (client, _) = ask(&agent, &gateway, to).unwrap();
        let (server, _) = listener.accept().unwrap();
        exchange(client, server, b"up", b"down");
    }
}

#[test]
fn listeners_and_rules_about_certificates_need_credentials() {
    let parse = |text: &str| Config::parse(text, std::path::Path::new("g.toml")).unwrap_err().to_string();
    let listen = "[[listen]]\naddress = \"127.0.0.1:1\"\n";
    for (text, expected) in [
        (format!("{listen}client_certificate = \"optional\"\n"), "this needs certificates; expected [tls]"),
        (format!("{listen}[[allow]]\nfrom = [\"certificate:ada\"]\nto = [\"*\"]\n"), "this needs certificates"),
        (format!("name = \"agent\"\n{listen}"), "\"agent\" is what agents call themselves; expected another name"),
    ] {
        let error = parse(&text);
        assert!(error.contains(expected), "{error}");
    }
    let certificates = Certificates::new();
    let tls = certificates.issue("pg1");
    let udt = "transport = \"udt\"\nclient_certificate = \"optional\"\n";
    let error = parse(&format!("{tls}{listen}{udt}"));
    assert!(error.contains("nobody shows a certificate over udt without security = \"encrypt\""), "{error}");
    let error = parse(&format!("{tls}{listen}[[allow]]\nfrom = [\"certificate:a b\"]\nto = [\"*\"]\n"));
    assert!(error.contains("\"certificate:a b\" names no certificates; expected one such as"), "{error}");
}

#[test]
fn programs_come_to_an_agent_by_socks_and_http() {
    let certificates = Certificates::new();
    let (last, addr) = (address(), address());
    let tls = certificates.issue_for("pg1", &[addr.ip().to_string()]);
    let allow = "[[allow]]\nfrom = [\"127.0.0.0/8\"]\nto = [\"127.0.0.0/8\"]\n";
    let last = Pg::start_at(last, "pg2", &format!("{}{allow}", support::peer("pg1", addr, 0)));
    let peer = support::peer("pg2", last.addr, 0);
    let listen = "security = \"encrypt\"\nclient_certificate = \"optional\"\n";
    let gateway = Pg::start_at(addr, "pg1", &format!("{listen}{tls}{peer}{allow}"));
    let trusting = Credentials::trusting(&files(&tls).authorities).unwrap();
    let ways = vec![Allowed { transport: "tcp".to_owned(), port: None }];
    let agent = start(config(&gateway, addr.port(), ways, trusting));
    let (listener, to) = destination();
    let secret = "05".repeat(32);
    // Only the path leads through the second gateway.
    let path = format!("{},{}", gateway.addr, last.addr);
    let socks = |path: &str, secret: &str| {
        let part = |text: &str| [&[text.len() as u8][..], text.as_bytes()].concat();
        let mut stream = std::net::TcpStream::connect(agent.addr).unwrap();
        stream.write_all(&[&[5, 1, 2, 1][..], &part(path), &part(secret)].concat()).unwrap();
        let mut answer = [0; 4];
        stream.read_exact(&mut answer).unwrap();
        (answer, stream)
    };
    let (answer, mut client) = socks(&path, &secret);
    assert_eq!(answer, [5, 2, 1, 0]);
    let SocketAddr::V4(four) = to else { panic!("{to}") };
    client.write_all(&[&[5, 1, 0, 1][..], &four.ip().octets(), &four.port().to_be_bytes()].concat()).unwrap();
    let mut reply = [0; 10];
    client.read_exact(&mut reply).unwrap();
    assert_eq!(reply[..2], [5, 0]);
    assert_eq!((agent.status().sessions.len(), &*agent.status().sessions[0].entry), (1, "socks"));
    assert_eq!(last.status().sessions[0].visited, "agent,pg1");
    exchange(client, listener.accept().unwrap().0, &pattern(100_000, 1), &pattern(100_000, 2));
    assert_eq!(agent.quiet(), (1, 0));
    assert_eq!(socks(&path, &"06".repeat(32)).0, [5, 2, 1, 1]);
    assert_eq!(socks("no path", &secret).0, [5, 2, 1, 1]);
    // Without the secret there is no method.
    let mut stream = std::net::TcpStream::connect(agent.addr).unwrap();
    stream.write_all(&[5, 1, 0]).unwrap();
    let mut answer = [0; 2];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(answer, [5, 0xff]);
}
