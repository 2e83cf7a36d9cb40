//! `phoebus serve` and clients whose control connection comes from them, and whose data connections come from gateways.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::fs;
use std::process::{Command, Output};
use support::Gateway;
use support::serve::{Serve, bytes, run};

/// Runs a script whose client is 127.0.0.2, and whose data goes through `gateway`, from where the server sees 127.0.0.1.
fn python(serve: &Serve, gateway: &Gateway, script: &str) -> Output {
    let before = r#"
import ftplib, os, signal, subprocess, sys
port, gateway, phoebus, dir, pid = int(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4], int(sys.argv[5])
def login():
    f = ftplib.FTP(timeout=30); f.connect('127.0.0.1', port, source_address=('127.0.0.2', 0)); f.login(); f.voidcmd('TYPE I')
    return f
def data(f):
    at = ftplib.parse227(f.sendcmd('PASV'))
    return subprocess.Popen([phoebus, 'connect', '--gateway', gateway, '%s:%d' % at], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
def begin(f, line): r = f.sendcmd(line); assert r.startswith('150'), r
def end(f):
    try: return f.getresp()
    except ftplib.Error as e: return str(e)
"#;
    let mut command = Command::new("python3");
    command.args([
        "-c",
        &[before, script].concat(),
        &serve.port().to_string(),
        &gateway.addr.to_string().replace(':', "/"),
    ]);
    run(command.arg(env!("CARGO_BIN_EXE_phoebus")).arg(serve.local()).arg(gateway.pid().to_string()))
}

fn ok(output: &Output) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}\n{}", text(&output.stdout), text(&output.stderr));
}

const OPEN: &str = "[anonymous]\nroot = \"ROOT\"\nread_only = false\n";

#[test]
fn data_connections_are_taken_from_gateways_that_are_configured() {
    let gateway = Gateway::start("pg1", "");
    let serve = Serve::configured(&format!("{OPEN}[data]\ngateways = [\"127.0.0.1\"]\n"));
    let content = bytes(5_000_001);
    fs::write(serve.local().join("source"), &content).unwrap();
    let script = r#"
content = open(os.path.join(dir, 'source'), 'rb').read()
f = login(); s = data(f); begin(f, 'STOR x'); s.stdin.write(content); s.stdin.close()
r = end(f); assert r.startswith('226'), r
assert s.wait() == 0
s = data(f); begin(f, 'RETR x'); s.stdin.close(); got = s.stdout.read()
r = end(f); assert r.startswith('226') and got == content, (r, len(got))
# What a gateway carried when it was killed is not there.
s = data(f); begin(f, 'STOR y'); s.stdin.write(content); s.stdin.flush()
os.kill(pid, signal.SIGKILL); r = end(f); assert r.startswith('426'), r
"#;
    ok(&python(&serve, &gateway, script));
    assert!(fs::read(serve.path("x")).unwrap() == content && !serve.path("y").exists());
    assert_eq!(serve.hidden(), Vec::<String>::new());
}

#[test]
fn those_of_other_gateways_are_not() {
    let gateway = Gateway::start("pg1", "");
    let serve = Serve::configured(&format!("{OPEN}[data]\ngateways = [\"127.0.0.3\"]\npatience = \"1s\"\n"));
    let script = r#"
f = login(); s = data(f); begin(f, 'STOR x')
r = end(f); assert r.startswith('425') and '127.0.0.1' in r, r
# Nor does the server connect to any of them: it would say there what a client tells it to.
try: r = f.sendcmd('PORT 127,0,0,3,19,142')
except ftplib.Error as e: r = str(e)
assert r.startswith('504'), r
"#;
    ok(&python(&serve, &gateway, script));
    assert!(!serve.path("x").exists());
}
