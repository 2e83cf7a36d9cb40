//! Clients that prove who they are, or need not, and the agents that bring them: who may come, what they may have, and what is
//! kept for them (S1, P9, P12).

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use phoebus_gateway::Gateway;
use phoebus_gateway::config::{Agent, Config};
use phoebus_net::CongestionControl;
use phoebus_net::credentials::{CredentialFiles, Credentials};
use phoebus_proto::agent::Secret;
use phoebus_proto::session::Code;
use phoebus_proto::session::message::Requirements;
use std::net::SocketAddr;
use std::path::PathBuf;
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

/// A gateway that takes every transport, with `more` about each of its listeners, a rule for `from`, and `limits`.
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

/// An agent for `gateway`.
fn agent(gateway: &Pg, transport: &str, credentials: Credentials) -> Pg {
    let port = if transport == "quic" { gateway.addr.port() } else { gateway.addr.port() + 1000 };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let config = Config::agent(Agent {
        gateway: gateway.addr.into(),
        port,
        transport: transport.to_owned(),
        congestion_control: CongestionControl::Auto,
        credentials,
        contact: None,
        secret: Secret(SECRET),
        ipv6: false,
        admin: None,
    });
    let guard = runtime.enter();
    let agent = Gateway::start(config).unwrap();
    drop(guard);
    Pg { addr: agent.addresses()[0], gateway: Some(agent), runtime }
}

fn ask(agent: &Pg, gateway: &Pg, to: SocketAddr) -> Result<(std::net::TcpStream, support::Report), No> {
    Ask { secret: Some(SECRET.to_vec()), ..Ask::to(to).path(&gateway.addr.to_string()) }.ask(agent.addr)
}

#[test]
fn a_certificate_that_a_rule_names_is_enough() {
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
        assert_eq!(gateway.status().sessions[0].identity, "ada.users.example");
        exchange(client, server, &pattern(100_000, 1), &pattern(100_000, 2));
        assert_eq!((gateway.quiet(), agent.quiet()), ((1, 0), (1, 0)));
    }
    let gateway = gateway(&certificates, "", "\"certificate:bob.users.example\"", "");
    let no = ask(&agent(&gateway, "quic", own()), &gateway, destination().1).unwrap_err();
    assert_eq!((no.code, no.hop.as_str()), (Code::NotAllowed, "pg1"), "{no:?}");
}

#[test]
fn no_certificate_is_enough_where_the_listener_says_so() {
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
    // It proves nothing: rules about certificates are not for it.
    let gateway = gateway(&certificates, "client_certificate = \"optional\"", "\"certificate:*\"", "");
    let no = ask(&agent(&gateway, "quic", trusting()), &gateway, destination().1).unwrap_err();
    assert_eq!(no.code, Code::NotAllowed, "{no:?}");
}

#[test]
fn an_agent_serves_those_who_know_its_secret() {
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
    // And leads nowhere but to its gateway.
    let no = refused(Ask { secret: Some(SECRET.into()), ..Ask::to(to).path("127.0.0.1:1") });
    assert_eq!(no.code, Code::NoRoute, "{no:?}");
    assert!(ask(&agent, &gateway, to).is_ok());
}

#[test]
fn an_agent_passes_on_what_is_asked_of_gateways() {
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

#[test]
fn connections_of_a_client_are_kept_between_sessions() {
    let certificates = Certificates::new();
    for (kept, more) in [(true, ""), (false, "clients = 0\n")] {
        let limits = format!("handshake_timeout = \"200ms\"\n{more}");
        let gateway = gateway(&certificates, "", "\"certificate:ada\"", &limits);
        let agent = agent(&gateway, "tcp", Credentials::load(files(&certificates.issue("ada"))).unwrap());
        agent.until(|status| status.pools[0].idle == 2, "connections are ready");
        if kept {
            // Several times as long as a stranger may wait.
            std::thread::sleep(Duration::from_secs(2));
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
fn listeners_and_rules_about_certificates_need_some() {
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
