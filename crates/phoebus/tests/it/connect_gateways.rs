//! `phoebus connect` through real gateways: both directions to their ends, refusals as sentences, cuts as errors.

#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

use crate::support;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener};
use std::process::{Command, Output, Stdio};
use support::{Gateway, address, pair, phoebus, wait_until};

fn connect(gateways: &[&Gateway], destination: SocketAddr) -> Command {
    let path: Vec<_> = gateways.iter().map(|gateway| gateway.addr.to_string()).collect();
    let mut command = phoebus();
    command.args(["connect", "--path", &path.join(",")]).arg(destination.to_string());
    // The settings of the user who runs the tests do not apply.
    command.env("HOME", "/nonexistent").env_remove("XDG_CONFIG_HOME");
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn each_direction_ends_on_its_own() {
    let (pg1, pg2) = pair("", "");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    let answer: Vec<u8> = (0..5_000_000u32).map(|i| (i / 7) as u8).collect();
    let expected = answer.clone();
    // Answers only when the request has ended, so that a half-close must have passed.
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut request = Vec::new();
        stream.read_to_end(&mut request).unwrap();
        stream.write_all(&answer).unwrap();
        request
    });
    let mut child = connect(&[&pg1, &pg2], addr).arg("--json").stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let request: Vec<u8> = (0..3_000_000u32).map(|i| (i / 3) as u8).collect();
    let copy = request.clone();
    let writer = std::thread::spawn(move || stdin.write_all(&copy).unwrap());
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    assert!(output.stdout == expected, "{} bytes came back", output.stdout.len());
    assert!(server.join().unwrap() == request);

    let report: serde_json::Value = serde_json::from_str(&said(&output)).unwrap();
    let hops: Vec<_> = report["hops"].as_array().unwrap().iter().map(|hop| hop["to"].as_str().unwrap()).collect();
    assert_eq!(hops, ["pg1", "pg2", &addr.to_string()]);
}

#[test]
fn init_permits_the_gateway_s_own_host_on_request() {
    let dir = tempfile::tempdir().unwrap();
    let at = [(); 2].map(|()| format!("127.0.0.1/{}", support::port::free()));
    let [pg1, pg2] = [format!("pg1={}", at[0]), format!("pg2={}", at[1])];
    let init = ["gateway", "init", "--dir", ".", &pg1, "--peer", &pg2, "--from", "127.0.0.0/8", "--to", "127.0.0.0/8"];
    let output = phoebus().args(init).current_dir(dir.path()).output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    let mut running: Vec<_> = ["pg1.toml", "pg2.toml"]
        .map(|file| {
            let mut command = phoebus();
            command.args(["gateway", "--config", file]).current_dir(dir.path());
            command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
        })
        .into();
    for at in &at {
        let at: SocketAddr = at.replace('/', ":").parse().unwrap();
        wait_until(|| std::net::TcpStream::connect(at).is_ok(), || format!("nobody listens at {at}"));
    }
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let destination = listener.local_addr().unwrap().to_string();
    let server = std::thread::spawn(move || listener.accept().unwrap().0.write_all(b"hello").unwrap());
    let mut command = phoebus();
    command.args(["connect", "--gateway", &at[0], &destination]).stdin(Stdio::null());
    let output = command.env("HOME", "/nonexistent").env_remove("XDG_CONFIG_HOME").output().unwrap();
    for child in &mut running {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    assert_eq!((&output.stdout[..], said(&output)), (&b"hello"[..], String::new()));
    server.join().unwrap();
}

#[test]
fn report_tells_connections_and_rate_of_a_hop() {
    let from_pg1 = "[[peer]]\nname = \"pg1\"\naddress = \"127.0.0.1:1\"\nsecurity = \"none\"\nfrom = [\"127.0.0.0/8\"]\n\
                    pool = { min = 0 }\n";
    let (pg1, pg2) = pair("[profile.default]\nstreams = 3\nrate = \"1gbit\"\n", from_pg1);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    let server = std::thread::spawn(move || (0..2).for_each(|_| drop(listener.accept().unwrap())));
    let report_with =
        |option: &str| said(&connect(&[&pg1, &pg2], addr).arg(option).stdin(Stdio::null()).output().unwrap());
    let told = report_with("-v");
    assert!(told.contains("ms tcp*3/"), "{told}");
    let told = report_with("--json");
    let report: serde_json::Value = serde_json::from_str(told.lines().next().unwrap()).unwrap();
    let of = |key: &str| report["hops"].as_array().unwrap().iter().map(|hop| hop[key].clone()).collect::<Vec<_>>();
    assert_eq!(of("streams"), [1, 3, 1]);
    assert_eq!(of("rate")[1], 1_000_000_000);
    server.join().unwrap();
}

#[test]
fn server_that_ends_first_is_no_error() {
    let (pg1, pg2) = pair("", "");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(b"bye").unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut rest = String::new();
        stream.read_to_string(&mut rest).unwrap();
        rest
    });
    let mut child = connect(&[&pg1, &pg2], addr).stdin(Stdio::piped()).spawn().unwrap();
    let mut got = [0; 3];
    child.stdout.as_mut().unwrap().read_exact(&mut got).unwrap();
    child.stdin.take().unwrap().write_all(b"still here").unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    assert_eq!(server.join().unwrap(), "still here");
}

/// How the sessions of `gateway` have ended, and how many of them failed.
fn over(gateway: &Gateway) -> (u64, u64) {
    let totals = &gateway.status()["totals"];
    (totals["sessions_clean"].as_u64().unwrap(), totals["sessions_failed"].as_u64().unwrap())
}

/// ssh ends its proxy command by a signal.
#[test]
fn signal_ends_the_input_and_both_ends_in_order() {
    for (signal, code) in [("HUP", 129), ("TERM", 143)] {
        let (pg1, pg2) = pair("", "");
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let mut child = connect(&[&pg1, &pg2], addr).stdin(Stdio::piped()).spawn().unwrap();
        let (mut stream, _) = listener.accept().unwrap();
        // After the session is open, it handles signals.
        stream.write_all(b"hello").unwrap();
        let mut got = [0; 5];
        child.stdout.as_mut().unwrap().read_exact(&mut got).unwrap();
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(b"last words").unwrap();
        let pid = child.id().to_string();
        assert!(Command::new("kill").args(["-s", signal, &pid]).status().unwrap().success());
        let mut rest = String::new();
        stream.read_to_string(&mut rest).unwrap();
        drop(stream);
        let output = child.wait_with_output().unwrap();
        drop(stdin);
        assert_eq!((rest.as_str(), output.status.code(), &said(&output)[..]), ("last words", Some(code), ""));
        for pg in [&pg1, &pg2] {
            wait_until(|| over(pg) == (1, 0), || format!("{signal}: {:?}", over(pg)));
        }
    }
}

#[test]
fn unread_output_ends_both_ends_in_order() {
    let (pg1, pg2) = pair("", "");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    let mut child = connect(&[&pg1, &pg2], addr).stdin(Stdio::piped()).spawn().unwrap();
    let (mut stream, _) = listener.accept().unwrap();
    drop(child.stdout.take());
    stream.write_all(b"hello").unwrap();
    let mut rest = String::new();
    stream.read_to_string(&mut rest).unwrap();
    stream.write_all(b"more").unwrap();
    drop(stream);
    let stdin = child.stdin.take();
    let output = child.wait_with_output().unwrap();
    drop(stdin);
    assert_eq!((rest.as_str(), output.status.code(), &said(&output)[..]), ("", Some(141), ""));
    for pg in [&pg1, &pg2] {
        wait_until(|| over(pg) == (1, 0), || format!("{:?}", over(pg)));
    }
}

/// The command does not wait for an end that never comes. A signal that is ignored has no effect.
#[test]
fn second_signal_ends_it_unless_ignored() {
    let (pg1, pg2) = pair("", "");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    let plain = connect(&[&pg1, &pg2], addr);
    let mut command = Command::new("nohup");
    command.arg(plain.get_program()).args(plain.get_args()).env("HOME", "/nonexistent").env_remove("XDG_CONFIG_HOME");
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (mut stream, _) = listener.accept().unwrap();
    let (pid, mut got) = (child.id().to_string(), [0; 5]);
    let stdout = child.stdout.as_mut().unwrap();
    for signal in ["HUP", "TERM"] {
        stream.write_all(b"hello").unwrap();
        stdout.read_exact(&mut got).unwrap();
        assert!(Command::new("kill").args(["-s", signal, &pid]).status().unwrap().success());
    }
    let stdin = child.stdin.take();
    let output = child.wait_with_output().unwrap();
    drop(stdin);
    assert_eq!(output.status.code(), Some(143), "{}", said(&output));
}

#[test]
fn refusal_is_a_sentence_and_code_3() {
    let (pg1, pg2) = pair("", "");
    let closed = SocketAddr::from((address(), 9));
    let stranger: SocketAddr = "127.0.0.1:9".parse().unwrap();
    let cases = [
        (connect(&[&pg1, &pg2], closed), format!("cannot connect to {closed}: connection refused")),
        (connect(&[&pg1], "192.0.2.1:7".parse().unwrap()), "not allowed".to_owned()),
        (
            {
                let mut command = phoebus();
                command.args(["connect", "--path", &format!("{},{stranger}", pg1.addr), "127.0.0.1:7"]);
                command
            },
            format!("{stranger}, the next gateway of the path, is no peer of this gateway"),
        ),
    ];
    for (mut command, expected) in cases {
        let output = command.stdin(Stdio::null()).output().unwrap();
        assert_eq!(output.status.code(), Some(3), "{}", said(&output));
        assert!(said(&output).contains(&expected), "{}", said(&output));
        assert_eq!(said(&output).lines().count(), 1, "{}", said(&output));
    }
}

#[test]
fn bandwidth_is_reserved_or_refused_with_the_rest() {
    let rate = |rate| format!("[profile.default]\nrate = \"{rate}\"\n");
    // On loopback, pg1 and the destination are the same neighbour of pg2.
    let (pg1, pg2) = pair(&rate("80mbit"), &rate("200mbit"));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    let ask = |bandwidth: &str| {
        let mut command = connect(&[&pg1, &pg2], addr);
        command.args(["--bandwidth", bandwidth]).stdin(Stdio::piped());
        command
    };
    let refused = |bandwidth: &str, expected: &str| {
        let output = ask(bandwidth).output().unwrap();
        assert_eq!(output.status.code(), Some(3), "{}", said(&output));
        assert!(said(&output).contains(expected) && said(&output).lines().count() == 1, "{}", said(&output));
    };
    refused("90mbit", "pg1: 90mbit was asked for, but the hop to pg2 carries 80mbit");
    let child = ask("60mbit").spawn().unwrap();
    let (server, _) = listener.accept().unwrap();
    // The bandwidth is reserved once both gateways have their next hop. The destination sees the last one.
    let open = |pg: &Gateway| pg.status()["sessions"].as_array().unwrap().len() == 1;
    wait_until(|| open(&pg1) && open(&pg2), || format!("no session is open: {:#}", pg1.status()));
    refused("30mbit", "pg1: 30mbit was requested, but only 20mbit is not reserved yet");

    // A program under the shim gets the errno of a requirement that cannot be met. A bandwidth that fits is granted.
    let script = "import socket; print(socket.socket().connect_ex(('127.0.0.1', PORT)))";
    let run = |bandwidth: &str| {
        let path = format!("{},{}", pg1.addr, pg2.addr);
        let mut run = phoebus();
        run.args(["run", "--path", &path, "--only", "127.0.0.0/8", "--bandwidth", bandwidth, "--", "python3", "-c"]);
        run.arg(script.replace("PORT", &addr.port().to_string())).env("HOME", "/nonexistent");
        let output = run.env_remove("XDG_CONFIG_HOME").output().unwrap();
        assert!(output.status.success(), "{}", said(&output));
        String::from_utf8(output.stdout).unwrap().trim().parse::<i32>().unwrap()
    };
    assert_eq!((run("30mbit"), run("20mbit")), (libc::EPROTO, 0));

    drop(server);
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
}

#[test]
fn dead_gateway_is_code_1_and_never_a_clean_end() {
    for victim in 0..2 {
        let (pg1, pg2) = pair("", "");
        let mut gateways = [pg1, pg2];
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let mut child = connect(&[&gateways[0], &gateways[1]], addr).stdin(Stdio::piped()).spawn().unwrap();
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(b"hello").unwrap();
        let mut got = [0; 5];
        child.stdout.as_mut().unwrap().read_exact(&mut got).unwrap();
        gateways[victim].kill();
        // Standard input stays open and silent, so the session itself must notice.
        let stdin = child.stdin.take();
        let output = child.wait_with_output().unwrap();
        drop(stdin);
        assert_eq!(output.status.code(), Some(1), "{}", said(&output));
        assert!(said(&output).starts_with("phoebus: the session broke: "), "{}", said(&output));
    }
}
