//! Clients that have disconnected, and their commands that are still to be carried out, also if the end of the
//! connection is behind lines that the server no longer reads.

use crate::support;
use phoebus_gridftp::server::config::Tls;
use phoebus_proto::units::{ByteSize, Span};
use std::fs;
use std::process::Command;
use std::time::Duration;
use support::{Serve, ok, python, run};

/// `is_open(n)` waits until the server has `n` descriptors of the file `endless`. The server runs in the process that
/// started the script.
const OPEN: &str = r#"
def is_open(wanted):
    fds, until = '/proc/%d/fd' % os.getppid(), time.monotonic() + 50
    def read(fd):
        try: return os.readlink(fds + '/' + fd)
        except OSError: return ''
    while (n := sum(read(fd).endswith('/endless') for fd in os.listdir(fds))) != wanted:
        assert time.monotonic() < until, (n, wanted)
        time.sleep(0.05)
"#;

#[test]
fn killed_client_has_stored_nothing() {
    // Far longer than any delay of the client between the two ends.
    let serve = Serve::with(|config| config.data.quiet = Span(Duration::from_secs(3)));
    let script = r#"
# The control connection ends later than the data connection, as it may if they take different paths.
for ahead in '', 'QUIT':
    for i, pause in enumerate((0.001, 0.005, 0.01, 0.02, 0.03)):
        f = login(); f.voidcmd('TYPE I'); s = f.transfercmd(f'STOR cut{ahead}{i}'); s.sendall(b'x' * 1000)
        if ahead: f.putcmd(ahead)
        s.close(); time.sleep(pause); f.sock.close(); f.file.close()
"#;
    ok(&python(&serve, script));
    // Once all drafts are gone, the server has decided about each.
    assert_eq!(serve.hidden(), Vec::<String>::new());
    let script = "g = login(); g.storbinary('STOR whole', io.BytesIO(b'abc')); assert g.nlst() == ['whole'], g.nlst()";
    ok(&python(&serve, script));
}

#[test]
fn vanished_client_is_noticed_behind_queued_commands() {
    let dir = tempfile::tempdir().unwrap();
    let certificate = "openssl req -x509 -newkey rsa:2048 -nodes -sha256 -days 30 -subj /CN=localhost -keyout key -out cert 2>&1; chmod 600 key";
    ok(&run(Command::new("sh").args(["-eu", "-c", certificate]).current_dir(dir.path())));
    let serve = Serve::with(|config| {
        let (certificate, key) = (dir.path().join("cert"), dir.path().join("key"));
        config.tls = Some(Tls { certificate, key, required: false, data_must_resume: true });
    });
    fs::File::create(serve.path("endless")).unwrap().set_len(1 << 42).unwrap();
    let script = r#"
import ssl
context = ssl._create_unverified_context()
def under_tls(): f = Resuming(context=context, timeout=60); f.connect(host, port); f.login(); return f
def closes(f): raw = socket.socket(fileno=f.sock.detach()); f.file.close(); raw.close()
def resets(f): raw = socket.socket(fileno=f.sock.detach()); f.file.close(); reset(raw)
# The client may have shut down only its own side.
kept = []
def ends(f): raw = socket.socket(fileno=f.sock.detach()); raw.shutdown(socket.SHUT_WR); kept.append((raw, f.file))
ask = b'CKSM SHA512 0 -1 endless\r\n'
for begin in login, under_tls:
    for leave in closes, resets, ends:
        for ahead in ask + b'NOOP\r\n' * 3000, ask * 3000:
            f = begin(); f.sock.sendall(ahead); is_open(1); leave(f); is_open(0)
# A client that has sent QUIT gets no reply either, once its connection is reset.
f = login(); f.sock.sendall(ask + b'QUIT\r\n'); is_open(1); resets(f); is_open(0)
"#;
    ok(&python(&serve, &[OPEN, script].concat()));
}

#[test]
fn checksum_of_a_vanished_client_ends_behind_a_full_queue() {
    let serve = Serve::with(|config| config.limits.idle = Span(Duration::from_secs(1)));
    fs::File::create(serve.path("endless")).unwrap().set_len(1 << 42).unwrap();
    let script = r#"
import select
def fill(f):
    f.sock.sendall(b'CKSM SHA512 0 -1 endless\r\n'); is_open(1)
    # Lines that the server does not take stay at the client, and so does its end.
    while select.select([], [f.sock], [], 0.2)[1]: f.sock.send(b'NOOP\r\n' * 1000, socket.MSG_DONTWAIT)
f = login(); fill(f); f.close(); is_open(0)
# A client that is still connected is told why.
f = login(); fill(f); assert answer(f).startswith('421 more commands were sent ahead than are read'); is_open(0)
"#;
    ok(&python(&serve, &[OPEN, script].concat()));
}

#[test]
fn memory_used_up_by_others_ends_no_checksum() {
    let serve = Serve::with(|config| {
        config.limits.idle = Span(Duration::from_secs(1));
        (config.limits.memory, config.limits.memory_per_address) = (ByteSize(16 << 10), ByteSize(16 << 10));
    });
    fs::File::create(serve.path("endless")).unwrap().set_len(1 << 42).unwrap();
    let script = r#"
ask = b'CKSM SHA512 0 -1 endless\r\n'
other = login(); other.sock.sendall(ask + b'NOOP\r\n' * 300); is_open(1)
f = login(); f.sock.sendall(ask + b'NOOP\r\n' * 200); is_open(2)
# Two clients that stay silent for too long, one after the other. If the server could not read the first client for that
# time, it would give it up.
for _ in range(2): assert answer(login()).startswith('421')
other.close(); is_open(1); f.sock.sendall(b'ABOR\r\n')
assert answer(f).startswith('426') and answer(f).startswith('226')
"#;
    ok(&python(&serve, &[OPEN, script].concat()));
}

#[test]
fn cut_upload_behind_a_full_queue_is_not_stored() {
    let serve = Serve::writable();
    let script = r#"
for i, lines in enumerate((100, 1500, 2500, 20000)):
    for held in False, True:
        f = login(); f.voidcmd('TYPE I'); s = socket.create_connection((host, f.makepasv()[1]))
        f.sock.sendall(f'STOR cut{i}{held}\r\n'.encode() + b'NOOP\r\n' * lines); s.sendall(b'x' * 1000)
        # If the client is still connected, the bytes up to the end of the data connection are not the whole file.
        s.close()
        if held: f.sock.shutdown(socket.SHUT_WR); answers = f.file.read(); assert not lines < 1000 or '426' in answers, answers[:200]
        f.sock.close(); f.file.close()
"#;
    ok(&python(&serve, script));
    assert_eq!(serve.hidden(), Vec::<String>::new());
    let script = r#"
# A file of announced length is complete, however many commands follow.
f = login(); f.voidcmd('TYPE I'); s = socket.create_connection((host, f.makepasv()[1]))
f.sock.sendall(b'ALLO 3\r\nSTOR whole\r\n' + b'NOOP\r\n' * 2500); s.sendall(b'abc'); s.close()
for code in '200', '150', '226': assert answer(f).startswith(code), code
g = login(); assert g.nlst() == ['whole'], g.nlst()
"#;
    ok(&python(&serve, script));
}

#[test]
fn abor_is_obeyed_behind_a_full_queue() {
    let serve = Serve::writable();
    fs::File::create(serve.path("endless")).unwrap().set_len(1 << 42).unwrap();
    let script = r#"
f = login(); f.sock.sendall(b'CKSM SHA512 0 -1 endless\r\n' + b'NOOP\r\n' * 1500); is_open(1); f.sock.sendall(b'ABOR\r\n')
assert answer(f).startswith('426') and answer(f).startswith('226')
for _ in range(1500): assert f.getresp().startswith('200')
is_open(0)
"#;
    ok(&python(&serve, &[OPEN, script].concat()));
}
