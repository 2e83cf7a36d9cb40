//! Refused sessions: each code, the hop that it names, and that other sessions are not affected.

use crate::support;
use phoebus_proto::session::Code;
use phoebus_proto::session::message::{Requirements, Security};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use support::*;

/// Sends the request, and expects this refusal from this hop. Returns the refusal.
fn refused(pg: &Pg, ask: &Ask, code: Code, hop: &str) -> No {
    let no = ask.ask(pg.addr).err().unwrap_or_else(|| panic!("not refused; expected {code:?}"));
    assert_eq!((no.code, no.hop.as_str()), (code, hop), "{no:?}");
    no
}

/// Checks how many refusals are counted under the code.
fn counted(pg: &Pg, code: Code, times: u64) {
    pg.until(
        |status| status.totals.refusals.get(&code.number()) == Some(&times),
        &format!("{code:?} counted {times} times"),
    );
}

#[test]
fn default_configuration_allows_nothing_to_anyone() {
    let pg = Pg::start("pg1", "");
    let (_listener, addr) = destination();
    let no = refused(&pg, &Ask::to(addr), Code::NotAllowed, "pg1");
    assert!(no.reason.contains(&addr.to_string()) && no.reason.contains("127.0.0.1"), "{no:?}");
    counted(&pg, Code::NotAllowed, 1);
}

#[test]
fn rules_check_source_destination_and_port() {
    let (_listener, addr) = destination();
    let rule = |from: &str, to: &str, port: u16| {
        format!("[[allow]]\nfrom = [\"{from}\"]\nto = [\"{to}\"]\nports = [{port}]\n")
    };
    let host = addr.ip().to_string();
    let allowed = Pg::start("pg1", &rule("127.0.0.1", &host, addr.port()));
    assert!(Ask::to(addr).ask(allowed.addr).is_ok());
    for (wrong, for_own) in [
        (String::new(), false),
        (rule("10.0.0.0/8", &host, addr.port()), false),
        (rule("10.0.0.0/8", "*", addr.port()), false),
        (rule("127.0.0.1", "10.0.0.0/8", addr.port()), false),
        (rule("127.0.0.1", &host, addr.port() ^ 1), false),
        // All addresses, except the gateway's own.
        (rule("127.0.0.1", "0.0.0.0/0", addr.port()), true),
        (rule("127.0.0.1", "*", addr.port()), true),
    ] {
        let no = refused(&Pg::start("pg1", &wrong), &Ask::to(addr), Code::NotAllowed, "pg1");
        // The hint applies only to a rule that would otherwise admit the request.
        assert_eq!(no.reason.contains("own host"), for_own, "{wrong}: {no:?}");
    }
}

#[test]
fn name_does_not_bypass_address_rules() {
    let rule = |to: &str| format!("[[allow]]\nfrom = [\"127.0.0.1\"]\nto = [{to}]\n");
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let ask = || Ask::to(format!("localhost:{}", listener.local_addr().unwrap().port()));
    for to in ["\"localhost\"", "\".localhost\"", "\"*\"", "\"0.0.0.0/0\"", "\"10.0.0.0/8\", \"localhost\""] {
        let no = refused(&Pg::start("pg1", &rule(to)), &ask(), Code::NotAllowed, "pg1");
        assert!(no.reason.contains("localhost"), "{no:?}");
    }
    for to in ["\"127.0.0.0/8\"", "\"localhost\", \"127.0.0.1\""] {
        assert!(ask().ask(Pg::start("pg1", &rule(to)).addr).is_ok(), "{to}");
    }
}

/// Runs the ignored test `name` of this program in a network namespace of its own, whose addresses it may change, and
/// where `here.example` is `address`. Needs root.
pub(crate) fn in_own_network(name: &str, address: &str) {
    let own = std::env::current_exe().unwrap();
    let hosts = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(hosts.path(), format!("127.0.0.1 localhost\n{address} here.example\n")).unwrap();
    let script =
        "ip link set lo up && mount --bind \"$2\" /etc/hosts && exec \"$0\" --exact \"$1\" --ignored --nocapture";
    let mut command = std::process::Command::new("unshare");
    let output = command.args(["-n", "-m", "sh", "-c", script]).arg(own).arg(name).arg(hosts.path()).output().unwrap();
    let said = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
}

#[test]
fn rule_must_name_own_host_services() {
    in_own_network("refusals::own_addresses_in_isolated_namespace", "192.0.2.7");
}

#[test]
#[ignore = "changes addresses of the host; rule_must_name_own_host_services runs it in a namespace"]
fn own_addresses_in_isolated_namespace() {
    let ip = |arguments: &str| {
        let output = std::process::Command::new("ip").args(arguments.split(' ')).output().unwrap();
        assert!(output.status.success(), "ip {arguments}: {output:?}");
    };
    let rule = |to: &str| format!("[[allow]]\nfrom = [\"127.0.0.0/8\"]\nto = [{to}]\n");
    ip("address add 192.0.2.7/24 brd 192.0.2.255 dev lo");
    ip("-6 address add 2001:db8::7/64 dev lo nodad");
    ip("route add local 203.0.113.0/24 dev lo");
    let v4 = std::net::TcpListener::bind("0.0.0.0:0").unwrap().local_addr().unwrap().port();
    let services = [
        std::net::TcpListener::bind(("0.0.0.0", v4)).unwrap(),
        std::net::TcpListener::bind(("2001:db8::7", v4)).unwrap(),
    ];
    let generous =
        Pg::start("pg1", &rule("\"*\", \"0.0.0.0/0\", \"::/0\", \"192.0.2.0/24\", \"here.example\", \".example\""));
    let hosts =
        ["192.0.2.7", "203.0.113.9", "[::ffff:192.0.2.7]", "[64:ff9b::192.0.2.7]", "[2001:db8::7]", "here.example"];
    for host in hosts.into_iter().chain(["192.0.2.255", "0.0.0.0", "[::]"]) {
        let no = refused(&generous, &Ask::to(format!("{host}:{v4}")), Code::NotAllowed, "pg1");
        assert!(no.reason.contains("own host"), "{host}: {no:?}");
    }
    let named = Pg::start("pg1", &rule("\"192.0.2.7\", \"2001:db8::7/128\""));
    for host in ["192.0.2.7", "[2001:db8::7]", "here.example"] {
        assert!(Ask::to(format!("{host}:{v4}")).ask(named.addr).is_ok(), "{host}");
    }
    // Addresses change while the gateway runs.
    ip("address add 198.51.100.1/32 dev lo");
    refused(&generous, &Ask::to(format!("198.51.100.1:{v4}")), Code::NotAllowed, "pg1");
    ip("address del 198.51.100.1/32 dev lo");
    assert_eq!(Ask::to(format!("198.51.100.1:{v4}")).ask(generous.addr).unwrap_err().code, Code::NetworkUnreachable);
    drop(services);
}

#[test]
fn refusal_names_the_dead_gateway_and_who_could_not_reach_it() {
    let (listener, closed) = destination();
    drop(listener);
    let route = "[[route]]\nto = \"*\"\nvia = \"pg2\"\n";
    let first = Pg::start("pg1", &format!("{}{route}{ALLOW_ALL}", peer("pg2", closed, 0)));
    let no = refused(&first, &Ask::to("192.0.2.7:80"), Code::Refused, "pg2");
    assert_eq!(no.reason, format!("pg1 cannot connect to {closed}: connection refused"));
}

#[test]
fn refusal_of_destination_reaches_client_through_both_gateways() {
    let (first, second) = Pg::chain("[limits]\nconnect_timeout = \"500ms\"\n");
    let (listener, closed) = destination();
    drop(listener);
    let no = refused(&first, &Ask::to(closed), Code::Refused, &closed.to_string());
    assert_eq!(no.reason, format!("pg2 cannot connect to {closed}: connection refused"));
    let deaf = Deaf::new();
    refused(&first, &Ask::to(deaf.addr), Code::TimedOut, &deaf.addr.to_string());
    counted(&first, Code::Refused, 1);
    counted(&second, Code::TimedOut, 1);
    // The connection between the gateways has survived both refusals.
    let (client, server, _) = session(&first, |ask| ask);
    exchange(client, server, b"up", b"down");
}

#[test]
fn next_hop_must_be_a_known_peer() {
    let pg = Pg::start("pg1", ALLOW_ALL);
    let (_listener, addr) = destination();
    let no = refused(&pg, &Ask::to(addr).path("10.9.9.9/5006"), Code::NoRoute, "pg1");
    assert!(no.reason.starts_with("10.9.9.9:5006, the next gateway of the path, is no peer"), "{no:?}");
}

#[test]
fn unreachable_peer_is_named_as_refusing_hop() {
    let (listener, gone) = destination();
    drop(listener);
    let pg = Pg::start("pg1", &format!("{}{ALLOW_ALL}", peer("pg2", gone, 0)));
    let (_listener, addr) = destination();
    let no = refused(&pg, &Ask::to(addr).path("pg2/5006"), Code::Refused, "pg2");
    assert!(no.reason.contains(&gone.to_string()), "{no:?}");
}

#[test]
fn gateway_refuses_loops() {
    let (first, second) = (address(), address());
    let all = "[[route]]\nto = \"*\"\n";
    let text = |other: &str, addr| format!("{}{all}via = \"{other}\"\n{ALLOW_ALL}", peer(other, addr, 0));
    let pg1 = Pg::start_at(first, "pg1", &text("pg2", second));
    let pg2 = Pg::start_at(second, "pg2", &text("pg1", first));
    let (_listener, addr) = destination();
    // Each routes everything to the other. The second notices that the session would return.
    refused(&pg1, &Ask::to(addr), Code::Loop, "pg2");
    refused(&pg1, &Ask::to(addr).path("pg1/5006"), Code::Loop, "pg1");
    refused(&pg1, &Ask { visited: vec!["pg1".to_owned()], ..Ask::to(addr) }, Code::Loop, "pg1");
    refused(&pg1, &Ask { visited: vec!["pg2".to_owned()], ..Ask::to(addr) }, Code::Loop, "pg1");
    counted(&pg2, Code::Loop, 1);
}

#[test]
fn gateway_refuses_duplicate_session_identifier() {
    let pg = Pg::start("pg1", ALLOW_ALL);
    let (_listener, addr) = destination();
    let ask = Ask::to(addr);
    let _open = ask.ask(pg.addr).unwrap();
    refused(&pg, &ask, Code::Duplicate, "pg1");
}

#[test]
fn sessions_are_limited_in_total_and_per_source() {
    for (limit, named) in [
        ("sessions = 2\nsessions_per_source = 2", "limits.sessions)"),
        ("sessions_per_source = 2", "limits.sessions_per_source)"),
    ] {
        let pg = Pg::start("pg1", &format!("{ALLOW_ALL}[limits]\n{limit}\n"));
        let (_listener, addr) = destination();
        let one = Ask::to(addr).ask(pg.addr).unwrap();
        let _two = Ask::to(addr).ask(pg.addr).unwrap();
        let no = refused(&pg, &Ask::to(addr), Code::Limit, "pg1");
        assert!(no.reason.ends_with(named), "{no:?}");
        reset(one.0);
        // Its slot is freed when its connections have closed, which is after the session.
        let start = std::time::Instant::now();
        while Ask::to(addr).try_ask(pg.addr).is_some() {
            assert!(start.elapsed() < PATIENCE, "its place is never free");
        }
    }
}

#[test]
fn refusal_of_requirements_states_limits() {
    let pg = Pg::start("pg1", &format!("{ALLOW_ALL}[limits]\nbuffer = \"16MiB\"\n"));
    let (_listener, addr) = destination();
    let with = |requirements| Ask { requirements, ..Ask::to(addr) };
    let none = Requirements::default();
    let no = refused(&pg, &with(Requirements { buffer: Some(32 << 20), ..none }), Code::Requirement, "pg1");
    assert_eq!(no.limits.buffer, Some(16 << 20));
    assert!(with(Requirements { buffer: Some(16 << 20), ..none }).ask(pg.addr).is_ok());
    for wish in [
        Requirements { rate: Some(1), ..none },
        Requirements { duration: Some(1), ..none },
        Requirements { streams: Some(17), ..none },
        Requirements { security: Some(Security::Encrypt), ..none },
    ] {
        let no = refused(&pg, &with(wish), Code::Requirement, "pg1");
        assert_eq!((no.limits.streams, no.limits.security, no.limits.rate), (Some(16), Some(Security::None), None));
    }
    refused(&pg, &Ask { resumable: true, ..Ask::to(addr) }, Code::Requirement, "pg1");
}

#[test]
fn listener_may_require_email_address() {
    let addr = address();
    let text = |more: &str| format!("auth = \"anonymous\"\n{more}{ALLOW_ALL}");
    let pg2 = Pg::start_at(addr, "pg2", &text(&peer("pg1", address(), 0)));
    let (_listener, to) = destination();
    let email = |email: &str| Ask { email: Some(email.to_owned()), ..Ask::to(to) };
    assert_eq!(refused(&pg2, &Ask::to(to), Code::AuthRequired, "").reason, "anonymous");
    refused(&pg2, &email("nobody"), Code::AuthFailed, "pg2");
    let open = email("user@example.org").ask(pg2.addr).unwrap();
    assert_eq!(pg2.status().sessions[0].principal.text, "user@example.org (anonymous)");
    drop(open);

    // A gateway sends its contact address, if it has one.
    let route = "[[route]]\nto = \"*\"\nvia = \"pg2\"\n";
    let without = Pg::start("pg1", &format!("{}{route}{ALLOW_ALL}", peer("pg2", addr, 0)));
    refused(&without, &Ask::to(to), Code::AuthRequired, "pg2");
    let start = "name = \"pg1\"\ncontact = \"noc@example.org\"\n[[listen]]\naddress = \"127.0.0.1:0\"\n";
    let config = format!("{start}{}{route}{ALLOW_ALL}", peer("pg2", addr, 1));
    let config = phoebus_gateway::Config::parse(&config, std::path::Path::new("pg1")).unwrap();
    let guard = without.runtime.enter();
    let with = phoebus_gateway::Gateway::start(config).unwrap();
    assert!(Ask::to(to).ask(with.addresses()[0]).is_ok());
    drop((with, guard));
}

#[test]
fn refused_client_may_send_another_request() {
    let pg = Pg::start("pg1", ALLOW_ALL);
    let (listener, closed) = destination();
    drop(listener);
    for _ in 0..3 {
        refused(&pg, &Ask::to(closed), Code::Refused, &closed.to_string());
    }
    counted(&pg, Code::Refused, 3);
    let (client, server, _) = session(&pg, |ask| ask);
    exchange(client, server, b"up", b"down");
}

#[test]
fn stranger_is_refused_at_first_wrong_byte() {
    let pg = Pg::start("pg1", &format!("{ALLOW_ALL}[limits]\nhandshake_timeout = \"300ms\"\n"));
    let preface = [0x89, b'P', b'H', b'B', b'\r', b'\n', 0x1a, b'\n'];
    let long = [&preface[..], &[0, 0x98, 0x96, 0x80]].concat();
    let cut = [&preface[..], &[0, 0, 0, 9, 0xa7]].concat();
    for (bytes, said) in [
        (&b"GET / HTTP/1.1\r\n\r\n"[..], "does not speak the Phoebus session protocol"),
        (&long[..], "a message of 10000000 bytes was announced"),
        (&cut[..], "no request arrived in time"),
        (&b""[..], "no request arrived in time"),
    ] {
        let mut stranger = TcpStream::connect(pg.addr).unwrap();
        stranger.set_read_timeout(Some(PATIENCE)).unwrap();
        stranger.write_all(bytes).unwrap();
        let mut answer = Vec::new();
        let _ = stranger.read_to_end(&mut answer);
        assert!(answer.starts_with(&preface), "{answer:?}");
        assert!(String::from_utf8_lossy(&answer).contains(said), "{said}: {}", String::from_utf8_lossy(&answer));
    }
    pg.until(|status| status.totals.handshakes_failed == 4 && status.handshakes == 0, "four were counted");
    let (client, server, _) = session(&pg, |ask| ask);
    exchange(client, server, b"up", b"down");
}

/// Whoever opens connections and says nothing does not keep others out.
#[test]
fn silent_connections_give_way_to_new_ones() {
    let limits = "[limits]\nhandshakes = 40\nhandshakes_per_source = 30\n";
    let pg = Pg::start("pg1", &format!("{ALLOW_ALL}{limits}"));
    let from = |n: u8| {
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        socket.bind(&SocketAddr::from(([127, 77, 0, n], 0)).into()).unwrap();
        socket.connect(&pg.addr.into()).unwrap();
        socket
    };
    let mut quiet: Vec<_> = (0..20).map(|_| from(1)).collect();
    quiet.extend((0..20).map(|_| from(2)));
    pg.until(|status| status.handshakes == 40, "all places are taken");
    let (client, server, _) = session(&pg, |ask| ask);
    exchange(client, server, b"up", b"down");
    pg.until(|status| status.totals.handshakes_shed == 1 && status.handshakes == 39, "one has given way");
}

#[test]
fn single_source_cannot_take_all_handshakes() {
    let pg = Pg::start("pg1", &format!("{ALLOW_ALL}[limits]\nhandshakes_per_source = 10\n"));
    let quiet: Vec<_> = (0..10).map(|_| TcpStream::connect(pg.addr).unwrap()).collect();
    pg.until(|status| status.handshakes == 10, "ten are waiting");
    // The reset may arrive before `connect` returns.
    match TcpStream::connect(pg.addr) {
        Ok(mut more) => assert_reset(&mut more),
        Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset),
    }
    assert_eq!(pg.status().totals.handshakes_shed, 1);
    drop(quiet);
    pg.until(|status| status.handshakes == 0, "they have gone");
    let (client, server, _) = session(&pg, |ask| ask);
    exchange(client, server, b"up", b"down");
}
