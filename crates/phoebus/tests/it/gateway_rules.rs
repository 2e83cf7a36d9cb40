//! Rules from the command line (P8, P10): what `--explain` says before and while a gateway runs, clients that follow redirects, and
//! reloads.

use crate::support;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::process::{Command, Output, Stdio};
use support::serve::run;
use support::{Gateway, address, phoebus};

fn rule(action: &str, more: &str) -> String {
    format!("[[rule]]\naction = \"{action}\"\n{more}\n")
}

/// No `[[allow]]` of the support's own: this one fits nobody.
const NONE: &str = "[[allow]]\nfrom = [\"192.0.2.1\"]\nto = [\"192.0.2.1\"]\n";

/// Answers each connection with all that it has sent.
fn echo() -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let addr = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut all = Vec::new();
            let _ = stream.read_to_end(&mut all).and_then(|_| stream.write_all(&all));
        }
    });
    addr
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// `phoebus connect` by this gateway.
fn connect(gateway: &Gateway, to: SocketAddr) -> Command {
    let mut command = phoebus();
    command.args(["connect", "--json", "--path", &gateway.addr.to_string(), &to.to_string()]);
    command.env("HOME", "/nonexistent").env_remove("XDG_CONFIG_HOME");
    command
}

/// The output of a command that reads `input`.
fn feed(command: &mut Command, input: &[u8]) -> Output {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    child.wait_with_output().unwrap()
}

#[test]
fn explanation_is_the_same_before_and_while_a_gateway_runs() {
    let rules = rule("deny", "to = [\"10.0.0.0/8\"]\nreason = \"the archive is closed\"")
        + &rule(
            "allow",
            "from = \"192.0.2.0/24\"\nto = [\"10.0.0.0/8\", \"192.0.2.0/24\", \"localhost\", \"127.0.0.1\"]",
        )
        + "[[limit]]\neach = \"source\"\nsessions = 7\n";
    let gateway = Gateway::start("pg1", &format!("{NONE}{rules}"));
    let ask = |session: &str| {
        let file = gateway.file("gateway.toml");
        let before = run(phoebus().args(["gateway", "--json", "--explain", session, "--config"]).arg(&file));
        let socket = gateway.file("admin.sock");
        let running = run(phoebus().args(["status", "--json", "--explain", session, "--gateway"]).arg(&socket));
        assert!(
            before.status.success() && running.status.success(),
            "{} {}",
            text(&before.stderr),
            text(&running.stderr)
        );
        let [before, running] =
            [before, running].map(|output| serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap());
        assert_eq!(before, running);
        before
    };
    let denied = ask("from=192.0.2.7 to=10.1.2.3:22");
    assert_eq!(
        (&denied["decision"], &denied["rule"]["number"], &denied["reason"]),
        (&"deny".into(), &1.into(), &"the archive is closed".into())
    );
    let allowed = ask("from=192.0.2.7 to=localhost:22");
    assert_eq!((&allowed["decision"], &allowed["addresses"][0]["address"]), (&"allow".into(), &"127.0.0.1".into()));
    assert!(
        allowed["limits"][2].as_str().unwrap().starts_with("source 192.0.2.7: 7 sessions at a time"),
        "{allowed:#}"
    );

    let file = gateway.file("gateway.toml");
    let line = std::fs::read_to_string(&file).unwrap().lines().position(|line| line == "[[rule]]").unwrap() + 1;
    let people = run(phoebus().args(["gateway", "--explain", "from=192.0.2.7 to=10.1.2.3:22", "--config"]).arg(&file));
    let people = text(&people.stdout);
    let first = format!("denied by [[rule]] 1 ({}:{line})\n  reason: the archive is closed\n", file.display());
    assert!(people.starts_with(&first), "{people}");
    // Nothing was opened or counted for that.
    assert_eq!(gateway.status()["totals"]["refusals"], serde_json::json!({}));
    let wrong = run(phoebus().args(["gateway", "--explain", "form=x", "--config"]).arg(&file));
    assert_eq!(wrong.status.code(), Some(2));
    assert!(
        text(&wrong.stderr).contains("--explain: there is no key \"form\"; expected some of: user, group"),
        "{}",
        text(&wrong.stderr)
    );
    let wrong = run(phoebus().args(["status", "--explain", "form=x", "--gateway"]).arg(gateway.file("admin.sock")));
    assert_eq!(wrong.status.code(), Some(1));
    assert!(text(&wrong.stderr).contains("it says: there is no key \"form\""), "{}", text(&wrong.stderr));
}

#[test]
fn clients_follow_redirects_and_leave_circles() {
    let to = echo();
    let second = Gateway::start("pg2", "");
    let there = format!("to = \"127.0.0.0/8\"\ngateway = \"{}\"", second.addr);
    let first = Gateway::start("pg1", &format!("{NONE}{}", rule("redirect", &there)));
    let output = feed(&mut connect(&first, to), b"by another way");
    assert_eq!(text(&output.stdout), "by another way", "{}", text(&output.stderr));
    let report: serde_json::Value = serde_json::from_slice(&output.stderr).unwrap();
    assert_eq!(report["note"], format!("redirected from {} to {}", first.addr, second.addr), "{report:#}");
    assert_eq!(
        (&second.status()["totals"]["sessions_opened"], &first.status()["totals"]["sessions_opened"]),
        (&1.into(), &0.into())
    );

    // Programs with the shim follow too.
    let mut program = phoebus();
    program.args(["run", "--gateway", &first.addr.to_string(), "--only", "127.0.0.1", "--", "python3", "-c"]);
    program.arg("import socket, sys\ns = socket.create_connection((sys.argv[1], int(sys.argv[2])))\ns.sendall(b'shim')\ns.shutdown(1)\nprint(s.recv(9).decode())");
    program
        .args([to.ip().to_string(), to.port().to_string()])
        .env("HOME", "/nonexistent")
        .env_remove("XDG_CONFIG_HOME");
    let output = run(&mut program);
    assert_eq!(text(&output.stdout), "shim\n", "{}", text(&output.stderr));
    assert_eq!(second.status()["totals"]["sessions_opened"], 2);

    let here = SocketAddr::from((address(), 5006));
    let to_each = |addr: SocketAddr| format!("{NONE}{}", rule("redirect", &format!("gateway = \"{addr}\"")));
    let third = Gateway::start("pg3", &to_each(here));
    let _fourth = Gateway::start_at(here, "pg4", &to_each(third.addr));
    let output = run(&mut connect(&third, to));
    assert!(!output.status.success());
    assert!(text(&output.stderr).contains("the redirects lead in a circle"), "{}", text(&output.stderr));
}

#[test]
fn reload_with_a_wrong_rule_changes_nothing() {
    let to = echo();
    let gateway =
        Gateway::start("pg1", &format!("{NONE}{}[audit]\nfile = \"audit\"\n", rule("allow", "to = \"127.0.0.0/8\"")));
    let works = || {
        let output = feed(&mut connect(&gateway, to), b"it works");
        assert_eq!(text(&output.stdout), "it works", "{}", text(&output.stderr));
    };
    works();
    gateway.reload("pg1", &format!("{NONE}{}", rule("deny", "prots = [22]")));
    gateway.wait_for_log("the new configuration cannot be used, the old one stays in force");
    gateway.wait_for_log("unknown field `prots`, expected one of `action`");
    works();
    let lines = || std::fs::read_to_string(gateway.file("audit")).unwrap().lines().count();
    support::wait_until(|| lines() == 2, || format!("{} lines", lines()));
    gateway.reload("pg1", &format!("{NONE}{}", rule("deny", "")));
    gateway.wait_for_log("the configuration was reloaded");
    let output = run(&mut connect(&gateway, to));
    assert!(text(&output.stderr).contains(&format!("{to} is denied to 127.0.0.1")), "{}", text(&output.stderr));
}
