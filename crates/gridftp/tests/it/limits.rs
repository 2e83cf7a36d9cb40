//! Limits of users: quotas, accounts of the system on a server that runs as root, and `data.stall`.

use crate::support;
use phoebus_gridftp::server::config::{Tls, User};
use phoebus_gridftp::server::{Quota, hash_password};
use phoebus_proto::units::{ByteSize, Span};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use support::credentials::Watch;
use support::{Serve, bytes, ok, python, run};

#[test]
fn connection_after_rein_counts_for_no_user() {
    let serve = Serve::with(|config| config.limits.per_user = 1);
    let script = r#"
f = login()
for _ in range(2): assert f.sendcmd('REIN').startswith('220'); f.login('anonymous', 'me@')
assert f.sendcmd('REIN').startswith('220')
g = login()
try: f.login('anonymous', 'me@'); raise SystemExit('a second one')
except ftplib.Error as e: assert str(e)[0] in '45', e
g.quit()
"#;
    ok(&python(&serve, script));
}

#[test]
fn quota_is_enforced() {
    let quota = Quota { bytes: Some(ByteSize(1_000_000)), files: Some(5) };
    let serve = Serve::with(|config| config.anonymous.as_mut().unwrap().quota = quota);
    fs::write(serve.path("there"), bytes(300_000)).unwrap();
    let script = r#"
f = login(); f.voidcmd('TYPE I')
def put(line, n, announced=None):
    if announced is not None:
        r = f.sendcmd('ALLO %d' % announced); assert r.startswith('200'), r
    try: s = f.transfercmd(line)
    except ftplib.Error as e: return str(e)
    try: s.sendall(b'x' * n)
    except OSError: pass
    s.close(); return answer(f)
assert put('STOR a', 400000).startswith('226')
# Checked as bytes arrive, as they are announced, and when the client asks (ALLO).
r = put('STOR b', 300001); assert r.startswith('552') and 'quota' in r, r
refused(f, 'SIZE b', '550')
r = refused(f, 'ALLO 300001', '552'); f.sendcmd('ALLO 300000')
r = put('STOR b', 300000, 300000); assert r.startswith('226'), r
r = put('APPE b', 1); assert r.startswith('552'), r
# A file that is being replaced counts until then.
r = put('STOR a', 10); assert r.startswith('552'), r
f.delete('there'); r = put('STOR a', 10); assert r.startswith('226'), r
r = put('APPE a', 699990 - 300); assert r.startswith('226'), r
# Two files exist, and three more fit.
for name in 'c', 'd': f.mkd(name)
assert put('STOR d/e', 0).startswith('226'); r = put('STOR d/f', 0); assert r.startswith('552') and 'files' in r, r
refused(f, 'MKD g', '552'); f.rmd('c'); f.rename('a', 'd/e'); assert put('STOR g', 0).startswith('226'); f.mkd('h')
refused(f, 'MKD i', '552')
# Another connection of the user shares the quota.
g = login(); refused(g, 'MKD i', '552')
"#;
    ok(&python(&serve, script));
    assert_eq!(serve.hidden(), Vec::<String>::new());
    // A client that announces the size does not send a file that is too long.
    let long = serve.local().join("long");
    fs::write(&long, bytes(2_000_000)).unwrap();
    let url = format!("file://{}", long.display());
    let mut command = Command::new("globus-url-copy");
    let copied = run(command.env("HOME", "/nonexistent").args(["-p", "2", &url, &serve.url("long")]));
    assert!(!copied.status.success() && String::from_utf8_lossy(&copied.stderr).contains("552"), "{copied:?}");
}

#[test]
fn cut_upload_resumes_within_a_tight_quota() {
    let quota = Quota { bytes: Some(ByteSize(50 << 20)), files: None };
    let serve = Serve::with(|config| {
        config.anonymous.as_mut().unwrap().quota = quota;
        // All bytes before a cut may arrive in one turn, which then fails.
        config.data.turn = Span(Duration::from_secs(1));
    });
    let script = r#"
f = login(); f.voidcmd('TYPE I')
def put(name, body, at, end):
    r = f.sendcmd('ALLO %d' % len(body)); assert r.startswith('200'), r
    try: s = f.transfercmd('STOR ' + name, rest=at or None)
    except ftplib.Error as e: return str(e)
    s.sendall(body[at:end]); s.close(); return answer(f)
M = 1000000; long = b''.join(b'%9d\n' % i for i in range(4500000)); short = long[-20 * M:]
r = put('x', long, 0, 20 * M); assert r[0] in '45', r
refused(f, 'ALLO %d' % (45 * M - 1), '552')
# The name identifies another file.
r = put('y', long, 0, 1); assert r.startswith('552'), r
r = put('x', long, 10 * M, 45 * M); assert r.startswith('226'), r
out = io.BytesIO(); f.retrbinary('RETR x', out.write); assert out.getvalue() == long
# A file that is being replaced counts until then.
f.delete('x'); r = put('z', long[:20 * M], 0, 20 * M); assert r.startswith('226'), r
r = put('z', short, 0, 10 * M); assert r[0] in '45', r
r = put('y', short, 0, 1); assert r.startswith('552'), r
r = put('z', short, 5 * M, 20 * M); assert r.startswith('226'), r
out = io.BytesIO(); f.retrbinary('RETR z', out.write); assert out.getvalue() == short
# A client that starts again removes the remains of its earlier upload.
r = put('z', long[:20 * M], 0, 10 * M); assert r[0] in '45', r
r = put('z', short, 0, 20 * M); assert r.startswith('226'), r
"#;
    ok(&python(&serve, script));
    assert_eq!(serve.hidden(), Vec::<String>::new());
}

/// Needs root, and a user who is not root.
#[test]
fn files_belong_to_the_account() {
    let id = |what: &str| ok(&run(Command::new("id").args([what, "daemon"]))).trim().parse::<u32>().unwrap();
    let (uid, gid) = (id("-u"), id("-g"));
    let serve = Serve::with(|config| config.anonymous.as_mut().unwrap().account = Some("daemon".to_owned()));
    let content = bytes(17 << 20);
    fs::write(serve.local().join("data"), &content).unwrap();
    let owned = |name: &str, owner: (u32, u32), mode: u32| {
        if !serve.path(name).exists() {
            fs::write(serve.path(name), "x").unwrap();
        }
        chown(serve.path(name), Some(owner.0), Some(owner.1)).unwrap();
        fs::set_permissions(serve.path(name), fs::Permissions::from_mode(mode)).unwrap();
    };
    owned("", (uid, gid), 0o755);
    owned("his", (uid, 0), 0o400);
    owned("groups", (0, gid), 0o040);
    owned("roots", (0, 0), 0o600);
    fs::create_dir(serve.path("closed")).unwrap();
    owned("closed", (0, 0), 0o755);
    let script = r#"
data = open(os.path.join(dir, 'data'), 'rb').read()
f = login(); f.voidcmd('TYPE I')
for name in 'his', 'groups':
    out = io.BytesIO(); f.retrbinary('RETR ' + name, out.write); assert out.getvalue() == b'x', name
def fails(line, data=b'x'):
    try: f.storbinary(line, io.BytesIO(data)); raise SystemExit(line)
    except ftplib.Error as e: assert str(e)[:3] in ('550', '451'), (line, e)
try: f.retrbinary('RETR roots', print); raise SystemExit('roots')
except ftplib.Error as e: assert str(e).startswith('550') and 'ermission' in str(e), e
fails('APPE his'); fails('APPE roots'); fails('STOR closed/x'); refused(f, 'MKD closed/d', '550'); refused(f, 'CKSM MD5 0 -1 roots', '550')
refused(f, 'SITE CHMOD 777 roots', '550', '451')
f.mkd('d'); f.storbinary('STOR d/x', io.BytesIO(data)); f.sendcmd('SITE CHMOD 640 d/x'); f.sendcmd('MFMT 20200102030405 d/x')
out = io.BytesIO(); f.retrbinary('RETR d/x', out.write); assert out.getvalue() == data
"#;
    ok(&python(&serve, script));
    for name in ["d", "d/x"] {
        let meta = fs::metadata(serve.path(name)).unwrap();
        assert_eq!((meta.uid(), meta.gid()), (uid, gid), "{name}");
    }
    assert_eq!(fs::read(serve.path("roots")).unwrap(), b"x");
    assert_eq!(serve.hidden(), Vec::<String>::new());
}

/// A directory that a user may write to but not read: each upload syncs the directories whose names have changed.
#[test]
fn uploads_go_to_directories_that_cannot_be_read() {
    let serve = Serve::with(|config| config.anonymous.as_mut().unwrap().account = Some("daemon".to_owned()));
    fs::set_permissions(serve.path(""), fs::Permissions::from_mode(0o777)).unwrap();
    fs::create_dir(serve.path("incoming")).unwrap();
    fs::set_permissions(serve.path("incoming"), fs::Permissions::from_mode(0o1733)).unwrap();
    let script = r#"
f = login(); f.voidcmd('TYPE I')
for name in 'incoming/a', 'incoming/b', 'c':
    f.storbinary('STOR ' + name, io.BytesIO(name.encode()))
f.mkd('own'); f.sendcmd('SITE CHMOD 300 own'); f.storbinary('STOR own/d', io.BytesIO(b'own/d')); f.storbinary('STOR e', io.BytesIO(b'e'))
# The owner may still change what the owner cannot read.
for mode in '000', '755': f.sendcmd(f'SITE CHMOD {mode} own')
for mode in '000', '644': f.sendcmd(f'SITE CHMOD {mode} own/d'); f.sendcmd('MFMT 20200102030405 own/d')
"#;
    ok(&python(&serve, script));
    for name in ["incoming/a", "incoming/b", "c", "own/d", "e"] {
        assert_eq!(fs::read_to_string(serve.path(name)).unwrap(), name);
    }
    assert_eq!(serve.hidden(), Vec::<String>::new());
}

#[test]
fn password_guesser_is_delayed_and_delays_nobody_else() {
    let root = tempfile::tempdir().unwrap();
    let serve = Serve::with(|config| {
        let user = |name: &str| User {
            name: name.to_owned(),
            password: Some(hash_password(b"secret").unwrap()),
            root: root.path().to_owned(),
            read_only: false,
            quota: Quota::default(),
            account: None,
            third_party: false,
        };
        config.users = ["jane", "joe"].map(user).into();
        config.limits.connections = 2000;
        config.limits.failure_delay = Span(Duration::from_millis(200));
        config.limits.failure_delay_max = Some(Span(Duration::from_millis(1600)));
    });
    fs::write(serve.path("x"), "a few bytes").unwrap();
    let script = r#"
import resource, select
def attempt(name, password, at='127.0.0.1'):
    s = socket.create_connection((host, port), 60, (at, 0)); s.recv(999)
    s.sendall(f'USER {name}\r\nPASS {password}\r\n'.encode()); return s
def said(s):
    r = b''
    while r.count(b'\n') < 2: r += s.recv(999)
    return r.decode().split('\n')[1][:3]
# After each failure, the next password from that address waits longer, whether the user exists or not, and even if the
# password is right. So a client that does not wait for the reply learns nothing.
for wait, name in (0, 'jane'), (0.2, 'nobody'), (0.4, 'jane'), (0.8, 'jane'):
    begin = time.monotonic(); assert said(attempt(name, 'wrong')) == '530'; assert time.monotonic() - begin >= wait, name
begin = time.monotonic(); s = attempt('jane', 'secret'); s.close()
assert said(attempt('jane', 'secret')) == '230'; assert time.monotonic() - begin >= 1.5
# Far more guesses than the server has threads for files.
resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
guesses = [attempt('jane', 'wrong', f'127.0.1.{i % 10 + 1}') for i in range(700)]
f = login(); out = io.BytesIO(); f.retrbinary('RETR x', out.write); assert out.getvalue() == b'a few bytes'
assert said(attempt('jane', 'secret', '127.0.2.1')) == '230'
# Another user at one of those addresses does not wait for all of them either.
assert said(attempt('joe', 'secret', '127.0.1.1')) == '230'
p = select.poll(); [p.register(s, select.POLLIN) for s in guesses]
answers = [s.recv(999, socket.MSG_DONTWAIT) for s in guesses if s.fileno() in dict(p.poll(0))]
answered = sum(b'530' in a for a in answers); assert answered < 350, answered
"#;
    ok(&python(&serve, script));
}

#[test]
fn many_checksum_requests_delay_only_their_client() {
    let other = tempfile::tempdir().unwrap();
    let serve = Serve::with(|config| {
        let root = config.anonymous.take().unwrap().root;
        // That of "secret", with few rounds.
        let password = "pbkdf2-sha256:1000:000102030405060708090a0b0c0d0e0f:\
                        4efb2bbb6d2eb58ea8deaed54417ae2fd87fd50a8a8568709363da60d4560606";
        let user = |(name, root): (&str, &Path)| User {
            name: name.to_owned(),
            password: Some(password.to_owned()),
            root: root.to_owned(),
            read_only: false,
            quota: Quota::default(),
            account: None,
            third_party: false,
        };
        config.users = [("jane", &*root), ("joe", other.path())].map(user).into();
        // One long step at a time: a request that waited for one step of each other request would exceed its time
        // limit.
        (config.limits.checksums, config.limits.checksum_step) = (1, ByteSize(256 << 20));
    });
    let endless = serve.path("endless");
    fs::File::create(&endless).unwrap().set_len(1 << 42).unwrap();
    fs::write(other.path().join("x"), "a few bytes").unwrap();
    let script = r#"
crowd = [login('jane', 'secret') for _ in range(64)]
def ask():
    for f in crowd: f.putcmd('CKSM MD5 0 -1 endless')
def served():
    g = login('joe', 'secret'); g.voidcmd('TYPE I'); out = io.BytesIO(); g.retrbinary('RETR x', out.write)
    assert out.getvalue() == b'a few bytes'; assert g.sendcmd('CKSM MD5 0 -1 x') == '213 SUM'
ask(); served()
for f in crowd: f.putcmd('ABOR')
for f in crowd: assert answer(f).startswith('426') and answer(f).startswith('226')
served(); ask()
for f in crowd: f.close()
served()
"#;
    let sum = run(Command::new("md5sum").arg(other.path().join("x")));
    let sum = ok(&sum).split(' ').next().unwrap().to_owned();
    ok(&python(&serve, &script.replace("SUM", &sum)));
    // Nobody has the file open any more.
    let begin = std::time::Instant::now();
    let is_open = || {
        let files = fs::read_dir("/proc/self/fd").unwrap().flatten();
        files.filter_map(|file| fs::read_link(file.path()).ok()).any(|file| file == endless)
    };
    while is_open() {
        assert!(begin.elapsed() < support::PATIENCE, "the file is still read");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn memory_kept_for_a_client_is_bounded() {
    let serve = Serve::with(|config| config.limits.listing = ByteSize(20_000));
    for i in 0..300 {
        fs::write(serve.path(&format!("a file with a name of some length {i:03}")), "").unwrap();
    }
    let script = r#"
f = login(); f.voidcmd('TYPE I')
# A client that waits for the data connection of a transfer sends lines ahead. The server takes only as many as it has
# room for.
f.sendcmd('PASV'); f.putcmd('RETR a file with a name of some length 000'); f.sock.setblocking(False)
line = b'NOOP ' + b'x' * 60000 + b'\r\n'; sent, still = 0, 0
while sent < 40 << 20 and still < 20:
    try: sent += f.sock.send(line); still = 0
    except BlockingIOError: still += 1; time.sleep(0.05)
assert sent < 30 << 20, sent
# A listing is not longer than the limit either.
g = login(); said = refused(g, 'STAT /', '552'); assert 'MLSD' in said, said
assert len(g.nlst()) == 300
"#;
    ok(&python(&serve, script));
    let narrow = Serve::with(|config| config.limits.memory = ByteSize(2000));
    for i in 0..50 {
        fs::write(narrow.path(&format!("a file with a name of some length {i:03}")), "").unwrap();
    }
    let script = "f = login()\nfor _ in range(3): said = refused(f, 'MLSC /', '450')\nassert f.sendcmd('MLST /').startswith('250')\n";
    ok(&python(&narrow, script));
}

#[test]
fn slow_reader_gets_all_and_stalled_reader_is_given_up() {
    let dir = tempfile::tempdir().unwrap();
    let certificate = "openssl req -x509 -newkey rsa:2048 -nodes -sha256 -days 30 -subj /CN=localhost -keyout key -out cert 2>&1; chmod 600 key";
    ok(&run(Command::new("sh").args(["-eu", "-c", certificate]).current_dir(dir.path())));
    let serve = Serve::with(|config| {
        config.data.stall_timeout = Span(Duration::from_secs(10));
        config.tls = Some(Tls {
            certificate: dir.path().join("cert"),
            key: dir.path().join("key"),
            required: false,
            data_must_resume: true,
        });
    });
    let content = bytes(16 << 20);
    fs::write(serve.path("data"), &content).unwrap();
    fs::write(serve.local().join("data"), &content).unwrap();
    let script = r#"
import ssl, threading
data = open(os.path.join(dir, 'data'), 'rb').read()
context = ssl.create_default_context(); context.check_hostname = False; context.verify_mode = ssl.CERT_NONE
def under_tls(): f = Resuming(context=context, timeout=60); f.connect(host, port); f.login(); f.prot_p(); return f
def slow(s, what):
    # Far less than the kernel's buffers hold, and for longer than the time-out.
    got, until = bytearray(), time.monotonic() + 21
    while time.monotonic() < until: got += what(s, 16384); time.sleep(0.2)
    while True:
        more = what(s, 1 << 20)
        if not more: return got
        got += more
def narrow(f):
    # The receive buffer has to be set before the connection is made.
    at = ftplib.parse227(f.sendcmd('PASV')); s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32768); s.settimeout(60); s.connect(('127.0.0.1', at[1]))
    return s
def one(f, tls, dead):
    f.sendcmd('TYPE I'); s = narrow(f); f.putcmd('RETR data'); r = answer(f); assert r.startswith('150'), r
    if tls: s = context.wrap_socket(s, server_hostname=host, session=f.sock.session)
    if dead: r = answer(f); assert r.startswith('426'), r; return
    got = slow(s, lambda s, n: s.recv(n)); s.close(); r = answer(f); assert r.startswith('226') and got == data, (r, len(got))
def blocks(f):
    # In extended blocks, which are read as they arrive.
    f.sendcmd('TYPE I'); f.sendcmd('MODE E'); l = socket.socket(); l.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32768); l.bind(('127.0.0.1', 0)); l.listen(); l.settimeout(60)
    f.voidcmd('PORT 127,0,0,1,%d,%d' % divmod(l.getsockname()[1], 256)); f.putcmd('RETR data'); r = answer(f); assert r.startswith('150'), r
    s = l.accept()[0]; s.settimeout(60); got, left, ended = {}, [0, 0], [False]
    def what(s, n):
        if ended[0]: return b''
        if left[0] == 0:
            head = b''
            while len(head) < 17: more = s.recv(17 - len(head)); assert more, 'cut'; head += more
            flags, left[0], left[1] = struct.unpack('>BQQ', head); ended[0] = flags & 8 != 0; got[left[1]] = b''
            return head
        b = s.recv(min(n, left[0])); assert b, 'cut'; left[0] -= len(b); got[left[1]] += b; return b
    slow(s, what); r = answer(f); del got[1]; assert r.startswith('226') and b''.join(got[o] for o in sorted(got)) == data, (r, len(got))
failed = []
def guarded(act, *arguments):
    try: act(*arguments)
    except BaseException as e: failed.append((act, arguments, repr(e)))
all = [(one, login(), False, False), (one, login(), False, True), (one, under_tls(), True, False), (one, under_tls(), True, True), (blocks, login())]
threads = [threading.Thread(target=guarded, args=a) for a in all]; [t.start() for t in threads]; [t.join() for t in threads]; assert not failed, failed
"#;
    ok(&python(&serve, script));
}

/// Every thread accesses a user's files as that user. A thread that is root would leave a set-user-ID bit on files that
/// it writes.
#[test]
fn every_system_call_on_a_users_files_is_made_as_the_user() {
    let id = |what: &str| ok(&run(Command::new("id").args([what, "daemon"]))).trim().parse::<u32>().unwrap();
    let (daemon, group) = (id("-u"), id("-g"));
    let serve = Serve::with(|config| config.anonymous.as_mut().unwrap().account = Some("daemon".to_owned()));
    chown(serve.path(""), Some(daemon), None).unwrap();
    // It belongs to another user. The group may write to it, and would so get the owner's rights.
    fs::write(serve.path("setuid"), bytes(3 << 20)).unwrap();
    chown(serve.path("setuid"), Some(0), Some(group)).unwrap();
    fs::set_permissions(serve.path("setuid"), fs::Permissions::from_mode(0o4775)).unwrap();
    let watch = Watch::begin(&serve.local().join("calls"));
    let script = r#"
import socket, struct
f = login(); f.voidcmd('TYPE I')
long, short = os.urandom(17 << 20), os.urandom(5000)
for name, data in ('long', long), ('short', short):
    f.sendcmd('ALLO %d' % len(data)); f.storbinary('STOR ' + name, io.BytesIO(data))
    out = io.BytesIO(); f.retrbinary('RETR ' + name, out.write); assert out.getvalue() == data, name
f.storbinary('APPE short', io.BytesIO(b'more')); f.sendcmd('CKSM MD5 0 -1 long')
f.storbinary('ESTO A 0 setuid', io.BytesIO(long[:2 << 20]))
def block(data, at): return struct.pack('>BQQ', 0, len(data), at) + data
f.voidcmd('TYPE I'); f.sendcmd('MODE E'); host, port = f.makepasv(); f.putcmd('STOR blocks')
s = socket.create_connection((host, port)); s.sendall(block(long[:3000000], 0) + struct.pack('>BQQ', 4 | 8 | 64, 0, 1))
while not (line := f.getmultiline()).startswith('2'): assert line[0] == '1', line
s.close(); f.sendcmd('MODE S')
listing = []; f.retrlines('MLSD', listing.append); assert len(listing) == 5, listing
f.nlst(); f.voidcmd('TYPE I'); f.mkd('d'); f.rename('short', 'd/x'); f.sendcmd('SITE CHMOD 600 d/x'); f.sendcmd('MFMT 20200101000000 d/x')
f.sendcmd('SIZE long'); f.sendcmd('MDTM d/x'); f.delete('d/x'); f.rmd('d'); f.quit()
"#;
    ok(&python(&serve, script));
    let mode = fs::metadata(serve.path("setuid")).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o775, "what is written by others is no longer run as its owner");
    let calls = watch.calls(&serve.path(""));
    for name in ["openat2", "splice", "pwrite64", "sendfile", "ftruncate", "fsync", "renameat", "fchmod", "getdents64"]
    {
        assert!(calls.contains_key(&(name.to_owned(), daemon)), "{name} was not seen as the user: {calls:?}");
    }
    for ((name, user), (times, line)) in calls {
        // With debug assertions, the standard library checks that a descriptor is open before it closes it.
        assert!(user == daemon || line.contains("F_GETFD"), "{name} was made as {user} {times} times: {line}");
    }
}

#[test]
fn reloaded_settings_apply_to_new_connections() {
    let quota = Quota { bytes: Some(ByteSize(1000)), files: None };
    let serve = Serve::with(|config| config.anonymous.as_mut().unwrap().quota = quota);
    std::thread::scope(|scope| {
        // A user who is connected and in the middle of a transfer.
        let script = r#"
import time
f = login(); f.voidcmd('TYPE I'); s = f.transfercmd('STOR x'); s.sendall(b'x' * 300)
open(os.path.join(dir, 'begun'), 'w').close()
while not os.path.exists(os.path.join(dir, 'go')): time.sleep(0.01)
s.sendall(b'x' * 300); s.close(); assert f.voidresp().startswith('226')
"#;
        let transfer = scope.spawn(|| ok(&python(&serve, script)));
        let begin = std::time::Instant::now();
        while !serve.local().join("begun").exists() {
            assert!(begin.elapsed() < support::PATIENCE && !transfer.is_finished(), "no transfer has begun");
            std::thread::sleep(Duration::from_millis(10));
        }
        // An unusable configuration changes nothing.
        let error = serve.reload(|config| config.anonymous.as_mut().unwrap().root = "/gone".into()).unwrap_err();
        assert!(error.to_string().contains("/gone"), "{error}");
        ok(&python(&serve, "f = login(); f.mkd('d'); f.rmd('d')"));
        // Existing connections and bytes count against the new limits.
        serve.reload(|config| (config.limits.per_user, config.anonymous.as_mut().unwrap().quota) = (1, quota)).unwrap();
        let refused =
            "try: login(); raise SystemExit('a second one')\nexcept ftplib.Error as e: assert str(e)[0] in '45', e";
        ok(&python(&serve, refused));
        fs::write(serve.local().join("go"), "").unwrap();
        transfer.join().unwrap();
    });
    serve.reload(|_| {}).unwrap();
    let script = r#"
f = login(); f.voidcmd('TYPE I')
try: f.storbinary('STOR y', io.BytesIO(b'y' * 500)); raise SystemExit('more than the quota')
except ftplib.Error as e: assert str(e).startswith('552'), e
"#;
    ok(&python(&serve, script));
    serve.reload(|config| config.anonymous.as_mut().unwrap().read_only = true).unwrap();
    let denied = "f = login()\ntry: f.mkd('d'); raise SystemExit('made')\nexcept ftplib.error_perm: pass";
    ok(&python(&serve, denied));
}
