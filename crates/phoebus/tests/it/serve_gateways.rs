//! `phoebus serve` with clients whose data connections come from gateways, and whose control connection does not.

use crate::support;
use std::fs;
use std::process::{Command, Output};
use support::Gateway;
use support::grid::lab::Lab;
use support::serve::{Serve, bytes, run};
use support::wait_until;

/// Runs a script with a client at 127.0.0.2. Its data goes through `gateway`, so the server sees it from 127.0.0.1.
fn python(serve: &Serve, gateway: &Gateway, script: &str) -> Output {
    let before = r#"
import ftplib, os, signal, subprocess, sys
port, gateway, phoebus, dir, pid = int(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4], int(sys.argv[5])
def login():
    f = ftplib.FTP(timeout=30); f.connect('127.0.0.1', port, source_address=('127.0.0.2', 0)); f.login(); f.voidcmd('TYPE I')
    return f
def data(f):
    at, pipe = ftplib.parse227(f.sendcmd('PASV')), subprocess.PIPE
    s = subprocess.Popen([phoebus, 'connect', '--json', '--gateway', gateway, '%s:%d' % at], stdin=pipe, stdout=pipe, stderr=pipe)
    # It reports once it is connected.
    report = s.stderr.readline(); assert report.startswith(b'{'), report
    return s
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
    assert!(output.status.success(), "{}\n{}\n{}", output.status, text(&output.stdout), text(&output.stderr));
}

const OPEN: &str = "[anonymous]\nroot = \"ROOT\"\nread_only = false\n";

#[test]
fn configured_gateways_may_make_data_connections() {
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
# A file that a gateway was carrying when it was killed does not exist.
s = data(f); begin(f, 'STOR y'); s.stdin.write(content); s.stdin.flush()
os.kill(pid, signal.SIGKILL); r = end(f); assert r.startswith('426'), r
"#;
    ok(&python(&serve, &gateway, script));
    assert!(fs::read(serve.path("x")).unwrap() == content && !serve.path("y").exists());
    wait_until(|| serve.hidden().is_empty(), || format!("{:?} is left", serve.hidden()));
}

#[test]
fn other_gateways_may_make_no_data_connections() {
    let gateway = Gateway::start("pg1", "");
    let serve = Serve::configured(&format!("{OPEN}[data]\ngateways = [\"127.0.0.3\"]\npatience = \"1s\"\n"));
    let script = r#"
f = login(); s = data(f); begin(f, 'STOR x')
r = end(f); assert r[:3] in ('425', '426') and '127.0.0.1' in r, r
# The server does not connect to any of them either: a client could use it to send data to them.
try: r = f.sendcmd('PORT 127,0,0,3,19,142')
except ftplib.Error as e: r = str(e)
assert r.startswith('504'), r
"#;
    ok(&python(&serve, &gateway, script));
    assert!(!serve.path("x").exists());
}

/// Data connections of `serve` go through `gateway` when a client asks for it.
fn through(gateway: &Gateway) -> String {
    let at = gateway.addr.to_string().replace(':', "/");
    format!("[data]\ndrivers = [\"tcp\", \"udt\", \"phoebus\", \"rate\"]\nsessions = {{ path = [\"{at}\"] }}\n")
}

#[test]
fn server_connects_through_gateways_on_request() {
    let gateway = Gateway::start("pg1", "");
    let serve = Serve::configured(&format!("{OPEN}{}", through(&gateway)));
    let content = bytes(5_000_001);
    fs::write(serve.path("x"), &content).unwrap();
    fs::write(serve.local().join("source"), &content).unwrap();
    let script = r#"
import socket, struct
content = open(os.path.join(dir, 'source'), 'rb').read()
f = ftplib.FTP(timeout=30); f.connect('127.0.0.1', port); f.login(); f.voidcmd('TYPE I')
listener = socket.create_server(('127.0.0.1', 0)); listener.settimeout(30)
def aim(): p = listener.getsockname()[1]; f.voidcmd('PORT 127,0,0,1,%d,%d' % (p >> 8, p & 255))
def whole(s):
    got = b''
    while len(got) < len(content):
        more = s.recv(1 << 20); assert more; got += more
    assert s.recv(1) == b''; return got
for stack in 'phoebus', 'tcp,phoebus:gw=' + gateway, 'phoebus:path=' + gateway.replace('/', '%2F') + ',rate:rate=10gbit':
    r = f.sendcmd('SITE SETNETSTACK ' + stack); assert r.startswith('250'), r
    aim(); begin(f, 'RETR x'); s = listener.accept()[0]; assert whole(s) == content; s.close(); r = end(f); assert r.startswith('226'), r
    aim(); begin(f, 'STOR y'); s = listener.accept()[0]; s.sendall(content); s.close(); r = end(f); assert r.startswith('226'), r
# The server accepts the client's data connections directly.
a = ftplib.parse227(f.sendcmd('PASV')); begin(f, 'RETR x'); assert whole(socket.create_connection(a)) == content; r = end(f); assert r.startswith('226'), r
# The gateway dies during a file.
aim(); begin(f, 'STOR z'); s = listener.accept()[0]; s.sendall(content[:1000000]); os.kill(pid, signal.SIGKILL); r = end(f); assert r.startswith('426'), r
# The error names a gateway that is down, and no data goes around it.
aim(); begin(f, 'RETR x'); r = end(f); assert r.startswith('425') and gateway.split('/')[0] in r, r
for stack, words in ('phoebus:gw=127.0.0.9/22', 'gateway 127.0.0.9:22 not whitelisted'), ('udt,phoebus', 'phoebus is above udt'):
    try: f.sendcmd('SITE SETNETSTACK ' + stack); raise SystemExit(stack)
    except ftplib.Error as e: assert str(e).startswith('500') and words in str(e), e
r = f.sendcmd('SITE SETNETSTACK default'); assert r.startswith('250'), r
aim(); begin(f, 'RETR x'); s = listener.accept()[0]; assert whole(s) == content; r = end(f); assert r.startswith('226'), r
"#;
    ok(&python(&serve, &gateway, script));
    assert!(fs::read(serve.path("y")).unwrap() == content && !serve.path("z").exists());
    // The connection whose gateway dies may not be in the log by then.
    let through = serve.log().matches("a data connection goes through gateways").count();
    assert!((6..=7).contains(&through), "{}", serve.log());
    wait_until(|| serve.hidden().is_empty(), || format!("{:?} is left", serve.hidden()));
}

#[test]
fn gct_client_has_servers_send_through_gateways() {
    let (lab, gateway) = (Lab::new(), Gateway::start("pg1", ""));
    let shown = |name: &str| lab.path(name).display().to_string();
    let config = format!(
        "[gsi]\ncertificate = \"{}\"\nkey = \"{}\"\nauthorities = \"{}\"\ngridmap = \"{}\"\n[[user]]\nname = \"jane\"\nroot = \"ROOT\"\n{}",
        shown("host.pem"),
        shown("host.key"),
        shown("certs"),
        shown("grid-mapfile"),
        through(&gateway)
    );
    let (here, there) = (Serve::configured(&config), Serve::configured(&config));
    let content = bytes(20_000_001);
    fs::write(here.path("x"), &content).unwrap();
    let url = |serve: &Serve, path: &str| format!("gsiftp://localhost:{}/{path}", serve.port());
    let stack = format!("tcp,phoebus:gw={}", gateway.addr.to_string().replace(':', "/"));
    for mode in [&["-p", "4"][..], &["-p", "2", "-dcpriv"], &["-p", "1", "-dcsafe"]] {
        let mut command = Command::new("globus-url-copy");
        lab.with_proxy(&mut command, "proxy").args(mode).args(["-src-dcstack", &stack]);
        ok(&run(command.args([url(&here, "x"), url(&there, "y")])));
        assert!(fs::read(there.path("y")).unwrap() == content, "{mode:?}");
        fs::remove_file(there.path("y")).unwrap();
    }
    assert_eq!(here.log().matches("a data connection goes through gateways").count(), 4 + 2 + 1, "{}", here.log());
}
