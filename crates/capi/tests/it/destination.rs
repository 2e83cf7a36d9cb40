//! A C program as a session-aware destination: sessions from gateways over warm connections, and from clients
//! directly.

use crate::support;
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use support::{OneGateway, Program, address, certificates, run, until_listening};

/// A running destination.
struct Destination {
    process: Child,
    out: BufReader<ChildStdout>,
}

impl Destination {
    fn start(mut command: Command, how: &str, at: SocketAddr, sessions: u32, options: &[String]) -> Self {
        command.env("ADDRESS", at.ip().to_string());
        command.args([how, &at.port().to_string(), &sessions.to_string(), "name=dst"]).args(options);
        let mut process = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut out = BufReader::new(process.stdout.take().unwrap());
        let mut port = String::new();
        out.read_line(&mut port).unwrap();
        assert_eq!(port, format!("{}\n", at.port()));
        until_listening(at);
        Self { process, out }
    }

    /// The lines that it printed about its sessions; waits for its end.
    fn end(mut self) -> Vec<String> {
        let mut said = String::new();
        self.out.read_to_string(&mut said).unwrap();
        assert!(self.process.wait().unwrap().success());
        said.lines().map(str::to_owned).collect()
    }
}

impl Drop for Destination {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A gateway that passes sessions for `dst.example` to a destination at `to`.
fn before(to: SocketAddr, carriage: &str, secure: bool) -> OneGateway {
    OneGateway::start(|room, _| {
        let mut text = String::new();
        if secure {
            certificates(room, &["pg1", "dst"]);
            text.push_str("[tls]\ncertificate = \"pg1.pem\"\nkey = \"pg1-key.pem\"\nauthorities = \"ca.pem\"\n");
        }
        text.push_str(&format!("[[peer]]\nname = \"dst\"\naddress = \"{to}\"\n{carriage}\n"));
        text.push_str("[[route]]\nto = \"dst.example\"\nvia = \"dst\"\n");
        text.push_str("[[allow]]\nfrom = [\"127.0.0.0/8\"]\nto = [\"dst.example\"]\n");
        text
    })
}

fn client(program: &Program, case: &str, number: u32, path: &str) {
    run(program.command().args([case, "dst.example", "7", &number.to_string(), &format!("path={path}")])).ok();
}

fn own(room: &Path) -> Vec<String> {
    let file = |name: &str| room.join(name).display().to_string();
    let options = [("authorities", "ca.pem"), ("certificate", "dst.pem"), ("key", "dst-key.pem")];
    options.map(|(name, value)| format!("{name}={}", file(value))).into()
}

#[test]
fn destination_accepts_sessions_over_warm_and_direct_connections() {
    let (listen, session) = (Program::compile("listen", &[]), Program::compile("session", &[]));
    for how in ["wait", "poll", "call", "call-all", "wait-fork", "call-fork"] {
        let at = address();
        let gateway = before(at, "security = \"none\"", false);
        let destination = Destination::start(listen.command(), how, at, 20, &[]);
        client(&session, "blocking", 3_000_000, &gateway.address.to_string());
        client(&session, "threads", 2, &gateway.address.to_string());
        client(&session, "polled", 2, &gateway.address.to_string());
        client(&session, "blocking", 3_000_000, &at.to_string());
        let said = destination.end();
        assert_eq!(said.len(), 20);
        let by_gateway = |line: &&String| line.contains(" for dst.example:7 by pg1 to dst ");
        assert_eq!(said.iter().filter(by_gateway).count(), 19, "{said:#?}");
        assert!(said.iter().all(|line| line.starts_with("127.0.0.1:")), "{said:#?}");
    }
}

#[test]
fn last_hop_uses_every_transport_and_protection() {
    let (listen, session) = (Program::compile("listen", &[]), Program::compile("session", &[]));
    let cases = [
        ("transport = \"tcp\"", "security=encrypt", "transport=tcp"),
        ("transport = \"quic\"", "security=encrypt", "transport=quic"),
        ("transport = \"udt\"", "security=encrypt", "transport=udt"),
        ("security = \"auth\"", "security=auth", "transport=tcp"),
    ];
    for (carriage, security, transport) in cases {
        let at = address();
        let gateway = before(at, carriage, true);
        let mut options = own(gateway.room.path());
        options.extend([security, transport, "from=certificate:pg1"].map(str::to_owned));
        let destination = Destination::start(listen.command(), "wait", at, 2, &options);
        client(&session, "blocking", 1_000_000, &gateway.address.to_string());
        client(&session, "blocking", 1_000_000, &gateway.address.to_string());
        let said = destination.end();
        let expected = " for dst.example:7 by pg1 to dst brought by a holder of a certificate for pg1";
        assert!(said.iter().all(|line| line.ends_with(expected)), "{said:#?}");
    }
}

#[test]
fn destination_refuses_sessions_from_other_sources() {
    let (listen, session) = (Program::compile("listen", &[]), Program::compile("session", &[]));
    let at = address();
    let destination = Destination::start(listen.command(), "wait", at, 1, &["from=10.0.0.0/8,127.0.0.2".to_owned()]);
    let mut command = session.command();
    let ended = run(command.args(["blocking", "dst.example", "7", "1", &format!("path={at}")]));
    assert!(ended.out.starts_with("6 13 [dst] dst.example:7 is not allowed to 127."), "{}", ended.out);
    drop(destination);
    // An address of another host, and an address in use.
    let mut command = listen.command();
    let ended = run(command.env("ADDRESS", "dst.example").args(["wait", "0", "1"]));
    assert!(ended.out.starts_with("65536 \"dst.example\" is not an address of this host"), "{}", ended.out);
    let taken = std::net::TcpListener::bind((at.ip(), 0)).unwrap().local_addr().unwrap();
    let holder = std::net::TcpListener::bind(taken).unwrap();
    let mut command = listen.command();
    let ended = run(command.env("ADDRESS", taken.ip().to_string()).args(["wait", &taken.port().to_string(), "1"]));
    assert!(ended.out.contains("cannot listen on"), "{}", ended.out);
    drop(holder);
}

#[test]
fn destination_is_clean_under_valgrind_and_sanitizers() {
    let session = Program::compile("session", &[]);
    let checked = Program::compile("listen", &[]);
    let address_checked = Program::compile("listen", &["-fsanitize=address,undefined"]);
    let threads_checked = Program::compile("listen", &["-fsanitize=thread"]);
    let mut tsan = threads_checked.command();
    tsan.env("TSAN_OPTIONS", "halt_on_error=1 ignore_noninstrumented_modules=1");
    for command in [checked.checked(), address_checked.command(), tsan] {
        let at = address();
        let gateway = before(at, "security = \"none\"", false);
        let destination = Destination::start(command, "call", at, 6, &[]);
        client(&session, "polled", 4, &gateway.address.to_string());
        client(&session, "blocking", 100_000, &gateway.address.to_string());
        client(&session, "descriptor", 0, &at.to_string());
        assert_eq!(destination.end().len(), 6);
    }
}
