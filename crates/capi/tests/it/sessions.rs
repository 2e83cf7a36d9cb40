//! Sessions of C programs: blocking, polled, with callbacks, in threads and in children, through real gateways.

use crate::support;
use serde_json::Value;
use std::net::{SocketAddr, TcpListener};
use std::process::Command;
use support::{Ended, Gateways, Program, greeter, run};

struct Place {
    gateways: Gateways,
    destination: SocketAddr,
}

impl Place {
    fn new() -> Self {
        Self { gateways: Gateways::start(), destination: greeter() }
    }

    fn run(&self, command: Command, case: &str, number: u32, more: &[&str]) -> Ended {
        self.run_to(self.destination, command, case, number, more)
    }

    fn run_to(&self, to: SocketAddr, mut command: Command, case: &str, number: u32, more: &[&str]) -> Ended {
        command.args([case, &to.ip().to_string(), &to.port().to_string(), &number.to_string()]);
        run(command.arg(format!("path={}", self.gateways.path)).args(more))
    }
}

#[test]
fn sessions_echo_bytes_and_end_in_order() {
    let (place, program) = (Place::new(), Program::compile("session", &[]));
    let out = place.run(program.command(), "blocking", 20_000_000, &[]).ok();
    let mut lines = out.lines();
    let report: Value = serde_json::from_str(lines.next().unwrap()).unwrap();
    let from: Vec<_> = report["hops"].as_array().unwrap().iter().map(|hop| hop["from"].clone()).collect();
    assert_eq!(from, ["client", "pg1", "pg2"]);
    assert_eq!(lines.next().unwrap(), place.destination.to_string());
    for (case, number) in
        [("descriptor", 0), ("threads", 8), ("polled", 32), ("callbacks", 32), ("forked", 0), ("nothing", 0)]
    {
        place.run(program.command(), case, number, &[]).ok();
    }
    let early = place.run(program.command(), "early", 0, &[]).ok();
    let why = "the session was finished before the other end's stream had been read to its end";
    assert_eq!(early, format!("65537 114 [] {why}\n"));
}

#[test]
fn failed_session_reports_the_reason() {
    let (place, program) = (Place::new(), Program::compile("session", &[]));
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let expected = format!("32 111 [{closed}] pg2 cannot connect to {closed}: connection refused\n");
    let ended = place.run_to(closed, program.command(), "blocking", 0, &[]);
    assert_eq!((ended.status.code(), ended.out.as_str()), (Some(3), expected.as_str()));
    let ended = place.run_to(closed, program.command(), "callbacks", 3, &[]).ok();
    assert_eq!(ended, expected.repeat(3));
    let ended = place.run(program.command(), "blocking", 0, &["gateway=[", "fallback=1"]);
    assert!(ended.out.starts_with("65536 22 [] option gateway: \"[\" is not "), "{}", ended.out);
    let ended = place.run(program.command(), "blocking", 0, &["rate=1gbit"]);
    assert!(ended.out.starts_with("11 71 [pg1] "), "{}", ended.out);
    let nobody = format!("path={closed}");
    let ended = place.run(program.command(), "blocking", 0, &[&nobody]);
    assert!(ended.out.starts_with(&format!("32 111 [{closed}] gateway {closed}: cannot connect")), "{}", ended.out);
    let out = place.run(program.command(), "blocking", 10, &[&nobody, "fallback=direct"]).ok();
    let report: Value = serde_json::from_str(out.lines().next().unwrap()).unwrap();
    assert!(report["note"].as_str().unwrap().starts_with("direct: gateway "), "{report}");
}

/// Valgrind and the sanitizers report nothing in the program, nor in the library's use of the program's memory.
#[test]
fn sessions_are_clean_under_valgrind_and_sanitizers() {
    let place = Place::new();
    let program = Program::compile("session", &[]);
    for (case, number) in [
        ("blocking", 300_000),
        ("threads", 1),
        ("polled", 4),
        ("callbacks", 4),
        ("forked", 0),
        ("early", 0),
        ("nothing", 0),
    ] {
        let command = if case == "forked" { program.checked_but_for_leaks() } else { program.checked() };
        let ended = place.run(command, case, number, &[]);
        assert!(ended.status.success(), "{case}: {ended:?}");
    }
    for sanitizer in ["-fsanitize=address,undefined", "-fsanitize=thread"] {
        let program = Program::compile("session", &[sanitizer]);
        for (case, number) in [("blocking", 300_000), ("threads", 2), ("polled", 16), ("callbacks", 16), ("nothing", 0)]
        {
            let mut command = program.command();
            // The library is not instrumented: judging it by its visible accesses alone gives false positives.
            command.env("TSAN_OPTIONS", "halt_on_error=1 ignore_noninstrumented_modules=1");
            let ended = place.run(command, case, number, &[]);
            assert!(ended.status.success(), "{sanitizer} {case}: {ended:?}");
        }
    }
}
