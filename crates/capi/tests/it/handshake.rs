//! The handshake state machine in C programs, against real gateways.

use crate::support;
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use support::{Ended, Gateways, OneGateway, Program, certificates, greeter, run};

fn ask(mut command: Command, to: impl ToString, sizes: [&str; 2], options: &[&str]) -> Ended {
    let to = to.to_string();
    let (host, port) = to.rsplit_once(':').unwrap();
    run(command.args([host, port]).args(sizes).args(options))
}

/// The report, after a check that greeting and echo arrived unchanged.
#[track_caller]
fn spoke(ended: Ended) -> Value {
    let out = ended.ok();
    let (report, said) = out.split_once('\n').unwrap();
    assert_eq!(said, "hello\nand back\n");
    serde_json::from_str(report).unwrap()
}

#[test]
fn session_opens_with_any_sizes_of_reads_and_writes() {
    let program = Program::compile("handshake", &[]);
    let gateways = Gateways::start();
    let destination = greeter();
    let path = format!("path={}", gateways.path);
    for sizes in [["65536", "65536"], ["1", "1"], ["7", "3"], ["0", "4096"]] {
        let report = spoke(ask(program.command(), destination, sizes, &[&path, "user=ada@example.org"]));
        let from: Vec<_> = report["hops"].as_array().unwrap().iter().map(|hop| hop["from"].clone()).collect();
        assert_eq!(from, ["client", "pg1", "pg2"]);
        assert_eq!(report["hops"][0]["congestion_control"], "mine");
        assert_eq!(report["hops"][0]["note"], "described");
    }
}

#[test]
fn handshake_is_clean_under_valgrind_and_sanitizers() {
    let program = Program::compile("handshake", &[]);
    let gateways = Gateways::start();
    let destination = greeter();
    let path = format!("path={}", gateways.path);
    spoke(ask(program.checked(), destination, ["1", "1"], &[&path]));
    spoke(ask(program.checked(), destination, ["0", "4096"], &[&path]));
    let refused = ask(program.checked(), "nowhere.invalid:7", ["65536", "4096"], &[&path]);
    assert_eq!(refused.status.code(), Some(3), "{refused:?}");
    for flags in ["-fsanitize=address,undefined", "-fsanitize=thread"] {
        let program = Program::compile("handshake", &[flags]);
        spoke(ask(program.command(), destination, ["7", "3"], &[&path]));
    }
}

#[test]
fn gateway_is_authenticated_and_the_stream_follows_in_the_clear() {
    let program = Program::compile("handshake", &[]);
    let gateway = OneGateway::start(|room, address| {
        let name = address.ip().to_string();
        certificates(room, &[&name, "ada.users.example"]);
        certificates(&room.join("others"), &["eve.users.example"]);
        let tls = format!("[tls]\ncertificate = \"{name}.pem\"\nkey = \"{name}-key.pem\"\nauthorities = \"ca.pem\"\n");
        format!("{tls}[[allow]]\nfrom = [\"certificate:ada.users.example\"]\nto = [\"127.0.0.0/8\"]\n")
    });
    let destination = greeter();
    let ask = |command: Command, sizes, authorities: &str, own: Option<&str>| {
        let file = |name: &str| gateway.room.path().join(name).display().to_string();
        let mut options = vec![
            format!("gateway={}", gateway.address),
            "security=auth".to_owned(),
            format!("authorities={}", file(authorities)),
        ];
        if let Some(own) = own {
            options.push(format!("certificate={}", file(&format!("{own}.pem"))));
            options.push(format!("key={}", file(&format!("{own}-key.pem"))));
        }
        let options: Vec<_> = options.iter().map(String::as_str).collect();
        ask(command, destination, sizes, &options)
    };
    let ada = Some("ada.users.example");
    for sizes in [["65536", "65536"], ["1", "1"], ["7", "3"], ["0", "4096"]] {
        let report = spoke(ask(program.command(), sizes, "ca.pem", ada));
        assert_eq!(report["hops"][0]["security"], "auth");
        assert_eq!(report["hops"][1]["from"], "pg1");
    }
    spoke(ask(program.checked_but_for_values(), ["0", "4096"], "ca.pem", ada));

    let sizes = ["65536", "65536"];
    let stranger = ask(program.command(), sizes, "others/ca.pem", ada);
    assert_eq!(stranger.status.code(), Some(3));
    let why = "cannot trust it: its certificate is not signed by an authority that is trusted here\n";
    assert!(stranger.out.starts_with("5 13 [") && stranger.out.ends_with(why), "{}", stranger.out);
    let nobody = ask(program.checked_but_for_values(), sizes, "ca.pem", None);
    assert_eq!(nobody.status.code(), Some(3), "{nobody:?}");
    assert!(nobody.out.ends_with("it wants to see a certificate of this end\n"), "{}", nobody.out);
    let eve = ask(program.command(), sizes, "ca.pem", Some("others/eve.users.example"));
    assert!(eve.out.contains("it does not accept this end's certificate"), "{}", eve.out);
    // The rules refuse a peer without authentication.
    let options = [format!("gateway={}", gateway.address)];
    let plain = self::ask(program.command(), destination, sizes, &[&options[0]]);
    assert!(plain.out.starts_with("6 13 [pg1]"), "{}", plain.out);
}

#[test]
fn refusal_names_the_hop_and_the_reason() {
    let program = Program::compile("handshake", &[]);
    let gateways = Gateways::start();
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let path = format!("path={}", gateways.path);
    let sizes = ["65536", "65536"];
    let ended = ask(program.command(), closed, sizes, &[&path]);
    assert_eq!(ended.status.code(), Some(3));
    let expected = format!("32 111 [{closed}] pg2 cannot connect to {closed}: connection refused\n");
    assert_eq!(ended.out, expected);
    // No gateway at all; with the fallback, the connection is then direct.
    let nobody = format!("gateway={closed}");
    let ended = ask(program.command(), greeter(), sizes, &[&nobody]);
    assert!(ended.out.starts_with("32 111 ["), "{}", ended.out);
    let report = spoke(ask(program.command(), greeter(), sizes, &[&nobody, "fallback=direct"]));
    assert_eq!(report["session"], "");
    assert!(report["note"].as_str().unwrap().starts_with("direct: gateway "), "{report}");
    // A session that does not meet a demand fails.
    let ended = ask(program.command(), greeter(), sizes, &[&path, "transport=udt"]);
    assert!(
        ended.out.starts_with("11 71 [pg1] transport udt was asked for between gateways, but the hop"),
        "{}",
        ended.out
    );
}

/// An aware destination, its output, and its address.
struct Aware(std::process::Child, BufReader<std::process::ChildStdout>, String);

impl Aware {
    fn start(mut command: Command, sizes: [&str; 2], options: &[&str]) -> Self {
        let mut child = command.args(sizes).args(options).stdout(Stdio::piped()).spawn().unwrap();
        let (mut out, mut port) = (BufReader::new(child.stdout.take().unwrap()), String::new());
        out.read_line(&mut port).unwrap();
        Self(child, out, format!("127.0.0.1:{}", port.trim()))
    }

    fn end(mut self) -> (Option<i32>, String) {
        let mut said = String::new();
        self.1.read_to_string(&mut said).unwrap();
        (self.0.wait().unwrap().code(), said)
    }
}

#[test]
fn aware_destination_works_with_any_sizes_of_reads_and_writes() {
    let (program, accept) = (Program::compile("handshake", &[]), Program::compile("accept", &[]));
    let gateways = Gateways::start();
    let path = format!("path={}", gateways.path);
    let plain = |program: &Program| program.command();
    let checked = |program: &Program| program.checked();
    type Way<'a> = &'a dyn Fn(&Program) -> Command;
    let cases: [(Way, [&str; 2]); 5] = [
        (&plain, ["65536", "65536"]),
        (&plain, ["1", "1"]),
        (&plain, ["7", "3"]),
        (&plain, ["0", "4096"]),
        (&checked, ["0", "4096"]),
    ];
    for (way, sizes) in cases {
        let aware = Aware::start(way(&accept), sizes, &["name=dst.example", "from=127.0.0.0/8"]);
        let asked = [path.as_str(), "aware=1", "user=ada@example.org"];
        let report = spoke(ask(way(&program), &aware.2, sizes, &asked));
        let (code, said) = aware.end();
        assert_eq!(code, Some(0), "{said}");
        let (own, client) = said.split_once('\n').unwrap();
        let own: Value = serde_json::from_str(own).unwrap();
        assert_eq!((&own["session"], &own["destination"]), (&report["session"], &report["destination"]));
        let last = &own["hops"][0];
        assert_eq!((&last["from"], &last["to"]), (&"pg2".into(), &"dst.example".into()));
        assert_eq!((&last["congestion_control"], &last["rtt_us"]), (&"mine".into(), &17.into()));
        assert!(client.trim().starts_with("127.0.0.1:"), "{client}");
    }
}

#[test]
fn aware_and_other_destinations_are_not_confused() {
    let (program, accept) = (Program::compile("handshake", &[]), Program::compile("accept", &[]));
    let gateways = Gateways::start();
    let path = format!("path={}", gateways.path);
    let sizes = ["65536", "4096"];
    // A destination that greets every connection is not aware.
    let ended = ask(program.command(), greeter(), sizes, &[&path, "aware=1"]);
    assert!(ended.out.starts_with("1 71 [127.0.0.1:"), "{}", ended.out);
    assert!(ended.out.contains(" does not take part in sessions (aware): "), "{}", ended.out);
    // An aware destination that does not allow gateways to open sessions reports this to both ends.
    let aware = Aware::start(accept.checked(), sizes, &["name=dst.example", "from=10.0.0.0/8"]);
    let ended = ask(program.command(), &aware.2, sizes, &[&path, "aware=1"]);
    assert!(ended.out.starts_with("6 13 [dst.example] "), "{}", ended.out);
    let (code, said) = aware.end();
    assert_eq!(code, Some(3));
    assert!(
        said.starts_with("6 13 [127.0.0.1:") && said.contains("requested a session that this end cannot provide: "),
        "{said}"
    );
    // An aware destination does not accept other protocols as a session.
    let aware = Aware::start(accept.checked(), sizes, &[]);
    let mut stranger = TcpStream::connect(&aware.2).unwrap();
    stranger.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    let (code, said) = aware.end();
    assert_eq!(code, Some(3));
    assert!(said.starts_with("1 71 [127.0.0.1:") && said.contains(" did not ask for a session: "), "{said}");
    // A direct connection is never taken for an aware session.
    let ended = ask(program.command(), greeter(), sizes, &[&path, "aware=1", "except=*"]);
    assert!(
        ended.out.starts_with("11 71 [127.0.0.1:") && ended.out.contains("the connection is direct"),
        "{}",
        ended.out
    );
    let wrong = Aware::start(accept.command(), sizes, &["security=auth"]);
    assert!(ask(program.command(), &wrong.2, sizes, &[&path]).status.code() != Some(0));
    let (_, said) = wrong.end();
    assert!(said.starts_with("65536 22 [] option security: "), "{said}");
}
