//! The life of a gateway and its answers: refusals with the right code and hop, duplicates, loops, draining, reloading,
//! bounded memory behind a receiver that has stopped reading (P10, P14, P18, P22).

use crate::support;
use phoebus_proto::endpoint::Endpoint;
use phoebus_proto::session::Code;
use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener};
use std::thread;
use std::time::Duration;
use support::{
    Gateway, PATIENCE, Refusal, address, connect, connect_as, pair, phoebus, session, session_over, try_connect,
    wait_until,
};

fn refusal(gateways: &[SocketAddr], destination: impl Into<Endpoint>) -> Refusal {
    connect(gateways, destination).expect_err("the session was opened")
}

#[test]
fn error_of_the_last_connection_names_the_hop() {
    let (first, second) = pair("", "");
    let nobody = SocketAddr::from((address(), 9));
    let refused = refusal(&[first.addr, second.addr], nobody);
    assert_eq!((refused.code, refused.hop), (Code::Refused, nobody.to_string()));
    assert!(refused.reason.contains("connection refused"), "{}", refused.reason);

    let unknown: Endpoint = "no-such-host.invalid:80".parse().unwrap();
    let more = "[[allow]]\nfrom = [\"127.0.0.0/8\"]\nto = [\"*\"]\n";
    let open = Gateway::start("open", more);
    let refused = refusal(&[open.addr], unknown);
    assert_eq!(refused.code, Code::NameNotFound, "{}", refused.reason);
    assert!(refused.reason.contains("no-such-host.invalid"), "{}", refused.reason);
    assert_eq!(refused.hop, "open", "the gateway that tried");
}

#[test]
fn every_gateway_on_the_path_logs_a_refusal() {
    let (first, second) = pair("[[allow]]\nfrom = [\"127.0.0.0/8\"]\nto = [\"192.0.2.0/24\"]\n", "");
    let asked = refusal(&[first.addr, second.addr], SocketAddr::from(([192, 0, 2, 7], 22)));
    assert_eq!((asked.code, asked.hop.as_str()), (Code::NotAllowed, "pg2"));
    for gateway in [&first, &second] {
        gateway.wait_for_log("phoebus::refused: session refused ");
        let log = gateway.log();
        let line = log.lines().find(|line| line.contains("session refused ")).unwrap();
        for part in ["from=127.", "destination=192.0.2.7:22 code=6 hop=\"pg2\" reason=", &asked.reason] {
            assert!(line.contains(part), "{part}: {line}");
        }
    }
}

#[test]
fn names_resolve_at_the_last_hop() {
    let (first, second) = pair("", "");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let named: Endpoint = format!("localhost:{port}").parse().unwrap();
    let mut client = connect(&[first.addr, second.addr], named).unwrap();
    let mut destination = listener.accept().unwrap().0;
    client.write_all(b"hello").unwrap();
    destination.read_exact(&mut [0; 5]).unwrap();
}

#[test]
fn nothing_is_allowed_by_default() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let destination = listener.local_addr().unwrap();
    for rules in [
        "[[allow]]\nfrom = []\nto = []\n",
        "[[allow]]\nfrom = [\"10.0.0.0/8\"]\nto = [\"127.0.0.0/8\"]\n",
        "[[allow]]\nfrom = [\"127.0.0.0/8\"]\nto = [\"10.0.0.0/8\"]\n",
        "[[allow]]\nfrom = [\"127.0.0.0/8\"]\nto = [\"127.0.0.0/8\"]\nports = [1]\n",
    ] {
        let gateway = Gateway::start("pg1", rules);
        let refused = refusal(&[gateway.addr], destination);
        assert_eq!((refused.code, refused.hop.as_str()), (Code::NotAllowed, "pg1"), "{rules}");
    }
}

#[test]
fn paths_need_known_peers_without_repetition() {
    let (first, second) = pair("", "");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let destination = listener.local_addr().unwrap();
    let stranger = SocketAddr::from((address(), 5006));
    let refused = refusal(&[first.addr, stranger], destination);
    assert_eq!((refused.code, refused.hop.as_str()), (Code::NoRoute, "pg1"));
    assert!(refused.reason.contains(&stranger.to_string()), "{}", refused.reason);

    // pg3 and pg4 are peers.
    let (a, b) = (SocketAddr::from((address(), 5006)), SocketAddr::from((address(), 5006)));
    let peer = |name: &str, addr| format!("[[peer]]\nname = \"{name}\"\naddress = \"{addr}\"\nsecurity = \"none\"\n");
    let third = Gateway::start_at(a, "pg3", &peer("pg4", b));
    let fourth = Gateway::start_at(b, "pg4", &peer("pg3", a));
    let refused = refusal(&[third.addr, fourth.addr, third.addr], destination);
    assert_eq!(refused.code, Code::Loop, "{}", refused.reason);
    drop((second, fourth));
}

#[test]
fn circular_routes_are_refused() {
    let (a, b) = (SocketAddr::from((address(), 5006)), SocketAddr::from((address(), 5006)));
    let more = |name: &str, addr| {
        format!(
            "[[peer]]\nname = \"{name}\"\naddress = \"{addr}\"\nsecurity = \"none\"\n[[route]]\nto = \"127.0.0.0/8\"\nvia = \"{name}\"\n"
        )
    };
    let first = Gateway::start_at(a, "pg1", &more("pg2", b));
    let _second = Gateway::start_at(b, "pg2", &more("pg1", a));
    let refused = refusal(&[first.addr], SocketAddr::from((address(), 80)));
    assert_eq!(refused.code, Code::Loop, "{}", refused.reason);
}

#[test]
fn session_is_not_opened_twice() {
    let gateway = Gateway::start("pg1", "");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let destination = Endpoint::from(listener.local_addr().unwrap());
    let id = session();
    let _first = connect_as(id, &[gateway.addr], &destination).unwrap();
    assert_eq!(connect_as(id, &[gateway.addr], &destination).unwrap_err().code, Code::Duplicate);
}

#[test]
fn sessions_are_limited_in_all_and_by_source() {
    for limit in ["sessions = 3\nsessions_per_source = 3", "sessions = 10\nsessions_per_source = 3"] {
        let gateway = Gateway::start("pg1", &format!("[limits]\n{limit}\n"));
        let held: Vec<_> = (0..3).map(|_| session_over(&[gateway.addr])).collect();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let destination = listener.local_addr().unwrap();
        assert_eq!(refusal(&[gateway.addr], destination).code, Code::Limit, "{limit}");
        drop(held);
        wait_until(|| connect(&[gateway.addr], destination).is_ok(), || "ended sessions still count".into());
    }
}

#[test]
fn draining_lets_sessions_finish_and_accepts_none() {
    let mut gateway = Gateway::start("pg1", "");
    let (mut client, mut destination) = session_over(&[gateway.addr]);
    gateway.signal(libc::SIGTERM);
    wait_until(|| !accepts(gateway.addr), || "new sessions are still taken".into());
    for _ in 0..3 {
        client.write_all(b"work").unwrap();
        destination.read_exact(&mut [0; 4]).unwrap();
    }
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(destination.read(&mut [0; 1]).unwrap(), 0);
    destination.shutdown(Shutdown::Write).unwrap();
    assert_eq!(client.read(&mut [0; 1]).unwrap(), 0);
    assert!(gateway.wait().success(), "{}", gateway.log());
}

/// Whether a session can be opened there.
fn accepts(addr: SocketAddr) -> bool {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let destination = listener.local_addr().unwrap().into();
    matches!(try_connect(session(), &[addr], &destination), Ok(Ok(_)))
}

#[test]
fn unfinished_sessions_are_reset_after_the_drain_time() {
    let mut gateway = Gateway::start("pg1", "[limits]\ndrain_timeout = \"200ms\"\n");
    let (mut client, mut destination) = session_over(&[gateway.addr]);
    gateway.signal(libc::SIGTERM);
    support::assert_reset(&mut client, "client");
    support::assert_reset(&mut destination, "destination");
    gateway.wait();
}

#[test]
fn reload_changes_rules_and_keeps_sessions() {
    let gateway = Gateway::start("pg1", "");
    let (mut client, mut destination) = session_over(&[gateway.addr]);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let elsewhere = listener.local_addr().unwrap();

    gateway.reload("pg1", "[limits]\nno_such_key = 1\n");
    gateway.wait_for_log("no_such_key");
    connect(&[gateway.addr], elsewhere).expect("a broken configuration changes nothing");

    gateway.reload("pg1", "[[allow]]\nfrom = [\"127.0.0.0/8\"]\nto = [\"10.0.0.0/8\"]\n");
    wait_until(
        || matches!(connect(&[gateway.addr], elsewhere), Err(refused) if refused.code == Code::NotAllowed),
        || "the new rules are not in force".into(),
    );
    client.write_all(b"old session").unwrap();
    destination.read_exact(&mut [0; 11]).unwrap();
}

#[test]
fn stalled_receiver_costs_bounded_memory_and_resumes() {
    let more = "[limits]\nbuffer = \"256KiB\"\n";
    let (first, second) = pair(more, more);
    let (client, mut destination) = session_over(&[first.addr, second.addr]);
    let before = [first.memory(), second.memory()];

    const TOTAL: usize = 64 << 20;
    let sender = thread::spawn(move || {
        let mut client = client;
        let block: Vec<u8> = (0..1 << 16).map(|i| (i % 251) as u8).collect();
        for _ in 0..TOTAL / block.len() {
            client.write_all(&block).unwrap();
        }
        client.shutdown(Shutdown::Write).unwrap();
        client
    });
    thread::sleep(Duration::from_secs(2));
    assert!(!sender.is_finished(), "64 MiB went into a receiver that reads nothing");
    let status = first.status();
    let stalled = &status["sessions"][0];
    let moved = stalled["bytes_up"].as_u64().unwrap_or_else(|| panic!("no bytes_up in {status}"));
    // Two gateways with 256 KiB for each direction. The end hosts' own buffers add a few MiB.
    assert!(moved < 16 << 20, "{moved} bytes went into the path");
    for (gateway, before) in [(&first, before[0]), (&second, before[1])] {
        assert!(gateway.memory() < before + (4 << 20), "{} bytes resident, {before} before", gateway.memory());
    }

    destination.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut all = Vec::with_capacity(TOTAL);
    destination.read_to_end(&mut all).unwrap();
    assert_eq!(all.len(), TOTAL);
    assert!(all.chunks(1 << 16).all(|block| block.iter().enumerate().all(|(i, byte)| *byte == (i % 251) as u8)));
    drop(sender.join().unwrap());
}

#[test]
fn connection_between_gateways_is_reused() {
    let (first, second) = pair("", "");
    let mut ports = Vec::new();
    for _ in 0..5 {
        let (client, destination) = session_over(&[first.addr, second.addr]);
        ports.push(hop_ports(second.addr));
        client.shutdown(Shutdown::Write).unwrap();
        destination.shutdown(Shutdown::Write).unwrap();
        drop((client, destination));
        wait_until(
            || first.status()["sessions"].as_array().is_some_and(Vec::is_empty),
            || "the session does not end".into(),
        );
    }
    let (earlier, latest) = ports.split_at(4);
    assert!(latest[0].iter().any(|port| earlier.iter().all(|ports| ports.contains(port))), "{ports:?}");
}

/// Local ports of established connections to `addr`, as `ss` shows them.
fn hop_ports(addr: SocketAddr) -> Vec<String> {
    let output = std::process::Command::new("ss")
        .args([
            "-Htn",
            "state",
            "established",
            "dst",
            &addr.ip().to_string(),
            "dport",
            "=",
            &format!(":{}", addr.port()),
        ])
        .output()
        .expect("ss of iproute2");
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().filter_map(|line| line.split_whitespace().nth(2)).map(str::to_owned).collect()
}

#[test]
fn check_warns_as_the_start_does() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("pg.toml");
    let listen = "name = \"pg1\"\n[[listen]]\naddress = \"127.0.0.1:0\"\n";
    let rule = "[[allow]]\nfrom = [\"127.0.0.0/8\"]\nto = [\"*\"]\n";
    let warning = |text: &str| format!("phoebus: {}: {text}\n", file.display());
    let no_rules = warning("there is no [[allow]] and no [[rule]] that allows: every session will be refused");
    let unused =
        warning("nothing uses profile \"slow\"; expected profile = \"slow\" in a [[listen]], [[peer]] or [[route]]");
    let (slow, named) =
        ("[profile.slow]\nrate = \"10kbit\"\n", listen.replace("[[listen]]", "[[listen]]\nprofile = \"slow\""));
    for (text, expected) in [
        (listen.to_owned(), &no_rules[..]),
        (format!("{listen}{rule}"), ""),
        (format!("{listen}{rule}{slow}"), &unused),
        (format!("{named}{rule}{slow}"), ""),
    ] {
        fs::write(&file, text).unwrap();
        let output = phoebus().args(["gateway", "--check", "--config"]).arg(&file).output().unwrap();
        let said = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
        assert!(output.status.success() && said[0].ends_with(" is a valid configuration\n"), "{said:?}");
        assert_eq!(said[1], expected);
    }
}

#[test]
fn gateway_that_cannot_start_says_why_in_one_sentence() {
    let occupier = TcpListener::bind((address(), 5006)).unwrap();
    let occupied = occupier.local_addr().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let listen = |address: &str| format!("name = \"pg1\"\n[[listen]]\naddress = \"{address}\"\n");
    let local = listen("127.0.0.1:0");
    let admin = |path: &str| format!("{local}[admin]\nsocket = \"{path}\"\n");
    let here = dir.path().display().to_string();
    let cases: [(Vec<u8>, i32, &str); 19] = [
        (
            format!("{local}[[allow]]\nfrom = \"10.1.0.0/16\"\nto = [\"*\"]\n").into(),
            2,
            ":5:8: invalid type: string \"10.1.0.0/16\", expected a list such as [\"10.1.0.0/16\"]",
        ),
        (
            format!("{local}[limits]\ndrain_timeout = 5\n").into(),
            2,
            ":5:17: invalid type: integer `5`, expected text in quotes such as \"5s\"",
        ),
        (
            format!("{local}[[datagrams]]\naddresses = [\"127.0.0.1:0\"]\n").into(),
            2,
            ":4:1: [[datagrams]] begins one of several tables; expected [datagrams], which stands once",
        ),
        ("name = \"pg1\"\nlisten_on = 1\n".into(), 2, ":2:1: unknown field `listen_on`, expected one of"),
        (format!("{local}[limits]\nhandshake_timeout = \"5 parsecs\"\n").into(), 2, ":5:21: \"5 parsecs\" is not a"),
        (
            format!("{local}[limits]\nthreads = 1000000\n").into(),
            2,
            ":5:11: limits.threads is 1000000; expected at most 1024",
        ),
        (format!("{local}[[route]]\nto = \"10.0.0.0/8\"\nvia = \"pg9\"\n").into(), 2, ":6:7: there is no peer \"pg9\""),
        (listen("not-an-address").into(), 2, ":3:11: \"not-an-address\" is not an address and port"),
        (listen("[::ffff:127.0.0.1]:1").into(), 2, ":3:11: [::ffff:127.0.0.1]:1 is an IPv4 address in IPv6's form;"),
        (Vec::new(), 2, ": there is no [[listen]]; expected at least one"),
        (b"name = \"pg1\"\n# \xff\xfe".into(), 2, ":2:3: this is no text in UTF-8; expected a configuration in TOML"),
        (b"\x7fELF\x02\x01\x01".into(), 2, ":1:"),
        (vec![b'#'; 17 << 20], 2, ": this is longer than 16777216 bytes; expected a configuration in TOML"),
        (
            admin(&"x".repeat(200)).into(),
            2,
            ":5:10: admin.socket is a name of 200 bytes; the system takes from 1 to 107",
        ),
        (listen("192.0.2.1:5006").into(), 1, ":3:11: cannot listen on 192.0.2.1:5006: "),
        (
            listen(&occupied.to_string()).into(),
            1,
            &format!(":3:11: cannot listen on {occupied}: address already in use; "),
        ),
        (
            admin(&here).into(),
            1,
            &format!(":5:10: cannot listen on the administration socket {here}: something that is"),
        ),
        (
            admin("/no/such/x").into(),
            1,
            ":5:10: cannot listen on the administration socket /no/such/x: there is no such",
        ),
        (
            format!("{local}[limits]\nsessions = 1000000000\n").into(),
            2,
            ":5:12: limits.sessions is 1000000000, which with",
        ),
    ];
    for (text, code, expected) in cases {
        let file = dir.path().join("gateway.toml");
        std::fs::write(&file, &text).unwrap();
        refuses(
            &["gateway", "--config", file.to_str().unwrap()],
            code,
            &format!("phoebus: {}{expected}", file.display()),
        );
    }
    refuses(
        &["gateway", "--config", "/no/such.toml"],
        2,
        "phoebus: /no/such.toml: cannot read the configuration: no such",
    );
    refuses(&["gateway", "--config", "/dev/zero"], 2, "phoebus: /dev/zero: this is longer than ");
    refuses(&["gateway", "--config", "/"], 2, "phoebus: /: cannot read the configuration: is a directory");
}

/// Fails with this code and one line on standard error that begins so.
fn refuses(arguments: &[&str], code: i32, expected: &str) {
    let output = phoebus().args(arguments).env("RUST_BACKTRACE", "1").output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
    assert!(said.starts_with(expected), "expected {expected} in: {said}");
    assert_eq!(said.trim().lines().count(), 1, "{said}");
}

#[test]
fn status_reports_an_unreachable_gateway() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, "").unwrap();
    let long = "x".repeat(200);
    let asks = |socket: &str, expected: &str| {
        refuses(
            &["status", "--gateway", socket],
            1,
            &format!("phoebus: cannot ask the gateway at {socket}: {expected}"),
        );
    };
    asks("/no/such/socket", "there is no such file; expected a gateway that runs and has this as `socket`");
    asks(file.to_str().unwrap(), "nobody listens there; expected a gateway that runs and has this as `socket`");
    asks(&long, "the name is too long for a socket; expected at most 107 bytes");
    let socket = dir.path().join("socket");
    let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let answers: [(&[u8], &str); 5] = [
        (b"", "it closed the connection"),
        (b"{}\n", "it does not answer as a gateway does: missing field"),
        (b"\xff\n", "it does not answer as a gateway does: "),
        (b"{\"error\":\"unknown variant\"}\n", "it says: unknown variant"),
        (b"HTTP/1.1 400 Bad Request\n", "it does not answer as a gateway does: "),
    ];
    for (answer, expected) in answers {
        let listener = listener.try_clone().unwrap();
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.read_exact(&mut [0; 21]).unwrap();
            stream.write_all(answer).unwrap();
        });
        asks(socket.to_str().unwrap(), expected);
        server.join().unwrap();
    }
}
