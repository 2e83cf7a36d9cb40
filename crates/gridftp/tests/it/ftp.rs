//! The FTP server (R7, U2, U5, U6) with the programs that people use: curl, lftp, Python's ftplib.

use crate::support;
use phoebus_proto::units::{ByteSize, Span};
use std::fs;
use std::process::{Command, Output};
use std::time::Duration;
use support::works::works;
use support::{Serve, bytes, ok, python, run};

fn curl(arguments: &[&str]) -> Output {
    run(Command::new("curl").args(["--silent", "--show-error", "--max-time", "60"]).args(arguments))
}

#[test]
fn curl_gets_and_puts_files() {
    let serve = Serve::writable();
    let content = bytes(3 << 20);
    fs::write(serve.path("a file"), &content).unwrap();
    let [got, part, sent] = ["got", "part", "sent"].map(|name| serve.local().join(name));
    let url = serve.url("a%20file");
    for active in
        [&[][..], &["--ftp-port", "127.0.0.1"], &["--disable-epsv"], &["--ftp-port", "127.0.0.1", "--disable-eprt"]]
    {
        ok(&curl(&[active, &["-o", got.to_str().unwrap(), &url]].concat()));
        assert!(fs::read(&got).unwrap() == content, "{active:?}");
        fs::remove_file(&got).unwrap();
        let to = serve.url("new/dir/");
        ok(&curl(&[active, &["--ftp-create-dirs", "-T", serve.path("a file").to_str().unwrap(), &to]].concat()));
        assert!(fs::read(serve.path("new/dir/a file")).unwrap() == content, "{active:?}");
        fs::remove_dir_all(serve.path("new")).unwrap();
    }
    ok(&curl(&["-r", "1000000-1999999", "-o", part.to_str().unwrap(), &url]));
    assert!(fs::read(&part).unwrap() == content[1_000_000..2_000_000]);
    // A download that was cut is resumed.
    fs::write(&got, &content[..700_001]).unwrap();
    ok(&curl(&["-C", "-", "-o", got.to_str().unwrap(), &url]));
    assert!(fs::read(&got).unwrap() == content);
    // Appending to a file, and resuming an upload.
    fs::write(&sent, &content[..1 << 20]).unwrap();
    ok(&curl(&["-T", sent.to_str().unwrap(), &serve.url("grows")]));
    fs::write(&sent, &content).unwrap();
    ok(&curl(&["-C", "-", "-T", sent.to_str().unwrap(), &serve.url("grows")]));
    assert!(fs::read(serve.path("grows")).unwrap() == content);
    let head = ok(&curl(&["-I", &url]));
    assert!(head.contains(&format!("Content-Length: {}", content.len())), "{head}");
    assert_eq!(serve.hidden(), Vec::<String>::new());
    works("curl", "phoebus serve", "anonymous", "get put part resume");
}

#[test]
fn curl_lists_directories() {
    let serve = Serve::writable();
    fs::create_dir(serve.path("sub")).unwrap();
    fs::write(serve.path("sub/one"), "1").unwrap();
    fs::write(serve.path("sub/two"), "22").unwrap();
    fs::write(serve.path("sub/.two.phoebus-part"), "2").unwrap();
    fs::create_dir_all(serve.path("deep/er/est")).unwrap();
    fs::write(serve.path("deep/er/est/file"), "").unwrap();
    std::os::unix::fs::symlink("..", serve.path("deep/up")).unwrap();
    let mut names: Vec<String> = ok(&curl(&["--list-only", &serve.url("sub/")])).lines().map(str::to_owned).collect();
    names.sort();
    assert_eq!(names, ["one", "two"]);
    let long = ok(&curl(&[&serve.url("sub/")]));
    assert!(long.lines().any(|line| line.starts_with("-rw") && line.ends_with(" two")), "{long}");
    let facts = ok(&curl(&["-X", "MLSD", &serve.url("sub/")]));
    assert!(facts.contains("Type=cdir;") && facts.contains("Type=file;Size=2;Modify="), "{facts}");
    let deep = ok(&curl(&["-X", "MLSR", &serve.url("deep/")]));
    let mut names: Vec<&str> = deep.lines().filter_map(|line| line.split_once(' ')).map(|(_, name)| name).collect();
    names.sort_unstable();
    assert_eq!(names, [".", "er", "er/est", "er/est/file", "up"]);
    works("curl", "phoebus serve", "anonymous", "list");
}

#[test]
fn lftp_mirrors_both_ways() {
    let serve = Serve::writable();
    let tree = serve.local().join("tree");
    fs::create_dir_all(tree.join("deep/er")).unwrap();
    for (name, len) in [("a", 0), ("b b", 1), ("deep/c", 100_000), ("deep/er/d", 3 << 20)] {
        fs::write(tree.join(name), bytes(len)).unwrap();
    }
    let script = format!(
        "set net:timeout 30; set net:max-retries 1; set cmd:fail-exit yes; open ftp://127.0.0.1:{}; \
         mirror -R --parallel=3 {tree} up; mirror --parallel=3 up {down}; pget -n 4 up/deep/er/d -o {down}/d4; \
         mv up/a up/moved; rm up/moved; du up; quit",
        serve.port(),
        tree = tree.display(),
        down = serve.local().join("down").display()
    );
    ok(&run(Command::new("lftp").args(["--norc", "-c", &script])));
    fs::remove_file(tree.join("a")).unwrap();
    same(&tree, &serve.path("up"));
    assert!(fs::read(serve.local().join("down/d4")).unwrap() == bytes(3 << 20));
    fs::remove_file(serve.local().join("down/d4")).unwrap();
    fs::remove_file(serve.local().join("down/a")).unwrap();
    same(&tree, &serve.local().join("down"));
    assert_eq!(serve.hidden(), Vec::<String>::new());
    works("lftp", "phoebus serve", "anonymous", "get put list manage tree part");
}

fn same(a: &std::path::Path, b: &std::path::Path) {
    ok(&run(Command::new("diff").arg("-r").args([a, b])));
}

/// Two uploads that append to one file would write over each other.
#[test]
fn one_upload_at_a_time_appends_to_a_file() {
    let serve = Serve::writable();
    let script = r#"
f, g = login(), login()
for s in f, g: s.voidcmd('TYPE I')
f.storbinary('STOR log', io.BytesIO(b'begin '))
first = f.transfercmd('APPE log'); first.sendall(b'first ')
g.makepasv(); said = refused(g, 'APPE log', '450'); assert 'log' in said, said
first.close(); assert f.voidresp().startswith('226')
g.storbinary('APPE log', io.BytesIO(b'second '))
f.storbinary('APPE log', io.BytesIO(b'third'))
taken = f.transfercmd('APPE taken'); taken.sendall(b'bytes'); g.delete('taken'); taken.close()
try: f.voidresp(); assert False, 'the bytes have no name'
except ftplib.error_perm as e: assert 'removed or replaced' in str(e), e
except ftplib.error_temp as e: assert 'removed or replaced' in str(e), e
out = io.BytesIO(); f.retrbinary('RETR log', out.write); assert out.getvalue() == b'begin first second third', out.getvalue()
"#;
    ok(&python(&serve, script));
}

#[test]
fn ftplib_finds_every_command_that_it_uses() {
    let serve = Serve::writable();
    let content = bytes(300_000);
    fs::write(serve.path("data"), &content).unwrap();
    fs::write(serve.local().join("data"), &content).unwrap();
    let script = r#"
data = open(os.path.join(dir, 'data'), 'rb').read()
f = login()
assert f.getwelcome().startswith('220 ')
assert f.mkd('d"q') == '/d"q', f.mkd
f.cwd('d"q'); assert f.pwd() == '/d"q'
f.storbinary('STOR x', io.BytesIO(data))
assert f.size('x') == len(data)
out = io.BytesIO(); f.retrbinary('RETR x', out.write, rest=1000); assert out.getvalue() == data[1000:]
out = io.BytesIO(); f.retrbinary('RETR x', out.write); assert out.getvalue() == data
f.storbinary('APPE x', io.BytesIO(b'tail')); assert f.size('x') == len(data) + 4
f.storbinary('STOR x', io.BytesIO(b'mid'), rest=10)
out = io.BytesIO(); f.retrbinary('RETR x', out.write); assert out.getvalue() == data[:10] + b'mid' + data[13:] + b'tail'
f.storlines('STOR text', io.BytesIO(b'one\ntwo\n'))
lines = []; f.retrlines('RETR text', lines.append); assert lines == ['one', 'two'], lines
assert f.voidcmd('TYPE I').startswith('200'); assert f.size('text') == 8
assert sorted(f.nlst()) == ['text', 'x'], f.nlst()
assert f.nlst('x') == ['x'] and f.nlst('./x') == ['./x'], f.nlst('x')
f.voidcmd('TYPE I'); f.sendcmd('REST 18446744073709551615'); f.makepasv(); refused(f, 'APPE x', '554')
assert f.nlst('/d"q') and all(n.startswith('/d"q/') for n in f.nlst('/d"q'))
facts = dict(f.mlsd(facts=['type', 'size'])); assert facts['text'] == {'type': 'file', 'size': '8'}, facts
assert f.sendcmd('MFMT 20260102030405 text') == '213 Modify=20260102030405; text'
assert f.sendcmd('MDTM text') == '213 20260102030405'
assert f.sendcmd('CKSM MD5 0 -1 text') == '213 ' + __import__('hashlib').md5(b'one\ntwo\n').hexdigest()
assert f.sendcmd('CKSM CRC32C 4 3 text').startswith('213 ')
assert 'Type=file' in f.sendcmd('MLST text'); assert 'Type=file' in f.sendcmd('MLSC')
f.sendcmd('OPTS MLST Type;UNIX.mode;'); assert f.sendcmd('SITE CHMOD 600 text').startswith('250'); assert 'UNIX.mode=0600' in f.sendcmd('MLST text')
assert f.storbinary('STOU', io.BytesIO(b'unique')).startswith('226')
c = socket.create_connection(f.makepasv()); told = f.sendcmd('STOU'); assert told.startswith('150 FILE: stou-'), told
c.sendall(b'told'); c.close(); assert f.voidresp().startswith('226')
out = io.BytesIO(); f.retrbinary('RETR ' + told[10:], out.write); assert out.getvalue() == b'told'
c = socket.create_connection(f.makepasv()); more = f.sendcmd('STOU mine'); assert more.startswith('150 FILE: stou-'), more
c.close(); assert f.voidresp().startswith('226'); f.delete(more[10:]); assert 'mine' not in f.nlst()
names = [n for n in f.nlst() if n.startswith('stou-')]; assert len(names) == 2 and told[10:] in names, names
for name in names: f.delete(name)
f.sendcmd('REST 3'); f.makepasv(); refused(f, 'STOU', '504')
refused(f, 'RMD ../d"q', '550')
f.rename('text', 'y'); f.delete('y'); f.delete('x'); f.cwd('..'); f.rmd('d"q')
for line, code in [('SIZE gone', '550'), ('RETR ../x', '553'), ('CWD data', '550'), ('MKD data', '550'), ('DELE gone', '550'),
                   ('RNTO x', '503'), ('MODE B', '504'), ('TYPE E', '504'), ('ALLO x', '501'), ('NOPE', '500')]:
    try: f.sendcmd(line); raise SystemExit(line + ' succeeded')
    except ftplib.Error as e: assert str(e).startswith(code), (line, e)
f.set_pasv(False); f.voidcmd('TYPE I')
out = io.BytesIO(); f.retrbinary('RETR data', out.write); assert out.getvalue() == data
assert f.quit().startswith('221')
"#;
    ok(&python(&serve, script));
    assert_eq!(serve.hidden(), Vec::<String>::new());
    works("ftplib", "phoebus serve", "anonymous", "get put list manage part resume sum");
}

#[test]
fn cut_upload_is_never_visible() {
    let serve = Serve::writable();
    fs::write(serve.path("old"), "old").unwrap();
    fs::write(serve.path("big"), bytes(64 << 20)).unwrap();
    let script = r#"
f = login(); f.voidcmd('TYPE I')
# A connection that is reset.
s = f.transfercmd('STOR old'); s.sendall(b'x' * 100000); time.sleep(0.3); reset(s)
assert answer(f).startswith('426'), 'reset'
# A stream that ends before what ALLO announced.
f.voidcmd('ALLO 100000'); s = f.transfercmd('STOR old'); s.sendall(b'x' * 99999); s.close()
a = answer(f); assert a.startswith('426') and '99999 of 100000' in a, a
f.voidcmd('ALLO 10'); s = f.transfercmd('STOR old'); s.sendall(b'x' * 11); s.close()
assert answer(f).startswith('426'), 'more than announced'
# ABOR during an upload and during a download.
s = f.transfercmd('STOR old'); s.sendall(b'x' * 100000); f.putcmd('ABOR')
assert answer(f).startswith('426'); assert f.getresp().startswith('226'); s.close()
s = f.transfercmd('RETR big'); s.recv(1000); f.putcmd('STAT'); assert f.getresp().startswith('211'); f.putcmd('ABOR')
assert answer(f).startswith('426'); assert f.getresp().startswith('226'); s.close()
assert f.size('old') == 3
# A client that has gone, and whose data connection ends regularly.
s = f.transfercmd('STOR old'); s.sendall(b'x' * 100000); time.sleep(0.3); f.sock.close(); f.file.close(); s.close()
# A client that has sent QUIT, and waits for the reply. If it has shut down its side, it may have been killed. If the
# length is announced, the upload still counts.
def goodbye(announced):
    q = login(); q.voidcmd('TYPE I')
    if announced: q.sendcmd('ALLO 3')
    s = q.transfercmd('STOR bye'); s.sendall(b'bye'); q.putcmd('QUIT'); return q, s
q, s = goodbye(False); s.close(); assert answer(q).startswith('226'); assert q.getresp().startswith('221')
g = login(); g.voidcmd('TYPE I'); assert g.size('bye') == 3; g.delete('bye')
for announced, code in (False, '426'), (True, '226'):
    q, s = goodbye(announced); q.sock.shutdown(socket.SHUT_WR); time.sleep(0.3); s.close(); assert answer(q).startswith(code), code
g.delete('bye')
for _ in range(20): assert g.size('old') == 3; time.sleep(0.05)
s = g.transfercmd('STOR new'); s.sendall(b'x' * 100000); reset(s); answer(g)
try: g.size('new'); raise SystemExit('new is there')
except ftplib.Error as e: assert str(e).startswith('550')
# Nobody connects to the port of PASV, and the address of another host is refused.
for line, code in [('PORT 127,0,0,2,200,0', '504'), ('PORT 127,0,0,1,0,25', '504'), ('EPRT |2|::1|5000|', '504'), ('RETR old', '425')]:
    try: g.sendcmd(line); raise SystemExit(line + ' succeeded')
    except ftplib.Error as e: assert str(e).startswith(code), (line, e)
"#;
    ok(&python(&serve, script));
    assert_eq!(fs::read(serve.path("old")).unwrap(), b"old");
    assert_eq!(serve.hidden(), Vec::<String>::new());
}

#[test]
fn urgent_abort_stops_a_transfer() {
    let serve = Serve::writable();
    fs::write(serve.path("big"), bytes(64 << 20)).unwrap();
    let script = r#"
f = login(); f.voidcmd('TYPE I')
# ABOR as urgent data (ftplib), after Telnet's Synch (Net::FTP and others), and without a transfer.
def by_ftplib(): f.sock.sendall(b'ABOR\r\n', socket.MSG_OOB)
def by_synch(): f.sock.send(b'\xff\xf4\xff', socket.MSG_OOB); f.sock.sendall(b'\xf2ABOR\r\n')
for abort in by_ftplib, by_synch:
    s = f.transfercmd('RETR big'); s.recv(1000); abort()
    assert answer(f).startswith('426'); assert f.getresp().startswith('226'); s.close()
    abort(); assert answer(f).startswith('226')
assert f.pwd() == '/'
"#;
    ok(&python(&serve, script));
}

#[test]
fn idle_transfer_is_given_up() {
    let serve = Serve::with(|config| {
        (config.data.stall_timeout, config.data.reply_timeout) =
            (Span(Duration::from_secs(2)), Span(Duration::from_secs(2)));
    });
    fs::write(serve.path("big"), bytes(64 << 20)).unwrap();
    let script = r#"
f = login(); f.voidcmd('TYPE I')
s = f.transfercmd('STOR x')
try: s.sendall(b'x' * 1000)
except OSError: pass
a = answer(f); assert a.startswith('426'), a
s = f.transfercmd('RETR big'); a = answer(f); assert a.startswith('426'), a
f.makepasv(); f.putcmd('STOR x'); assert f.getresp().startswith('150'); a = answer(f); assert a[:3] in ('425', '426'), a
refused(f, 'SIZE x', '550')
"#;
    ok(&python(&serve, script));
    assert_eq!(serve.hidden(), Vec::<String>::new());
}

#[test]
fn data_connections_of_other_hosts_are_refused() {
    let serve = Serve::with(|config| config.data.reply_timeout = Span(Duration::from_secs(1)));
    fs::write(serve.path("secret"), "secret").unwrap();
    let script = r#"
f = login(); f.voidcmd('TYPE I')
_, p = f.makepasv()
thief = socket.create_connection((host, p), source_address=('127.0.0.9', 0))
f.putcmd('RETR secret'); assert f.getresp().startswith('150')
try: f.getresp(); raise SystemExit('it was sent')
except ftplib.Error as e: assert str(e).startswith('425') and '127.0.0.9' in str(e), e
try: got = thief.recv(100)
except OSError: got = b''
assert got == b'', got
"#;
    ok(&python(&serve, script));
}

#[test]
fn paths_never_leave_the_root() {
    let serve = Serve::writable();
    let outside = serve.local().join("outside");
    fs::write(&outside, "outside").unwrap();
    std::os::unix::fs::symlink(&outside, serve.path("link")).unwrap();
    std::os::unix::fs::symlink(serve.local(), serve.path("dir")).unwrap();
    std::os::unix::fs::symlink("/", serve.path("slash")).unwrap();
    let script = r#"
f = login(); f.voidcmd('TYPE I')
for line in ['SIZE link', 'CWD dir', 'SIZE dir/outside', 'RETR /../../etc/passwd', 'SIZE slash/etc/passwd', 'MKD dir/x', 'DELE dir/outside', 'CKSM MD5 0 -1 link',
             'SITE CHMOD 777 link', 'MFMT 20260102030405 link', 'MLST slash/etc', 'MLSC slash']:
    try: print(line, f.sendcmd(line)); raise SystemExit(line + ' succeeded')
    except ftplib.Error as e: assert str(e)[0] in '45' and dir not in str(e), (line, e)
for line in ['RETR link', 'STOR dir/x', 'APPE link', 'LIST slash', 'MLSD dir']:
    try: f.transfercmd(line); raise SystemExit(line + ' succeeded')
    except ftplib.Error as e: assert str(e)[0] in '45', (line, e)
"#;
    ok(&python(&serve, script));
    assert_eq!(fs::read(&outside).unwrap(), b"outside");
    assert!(!serve.local().join("x").exists());
}

#[test]
fn links_of_others_in_shared_directories_are_not_followed() {
    use std::os::unix::fs::{PermissionsExt, lchown, symlink};
    let serve = Serve::writable();
    for dir in ["group", "victim"] {
        fs::create_dir(serve.path(dir)).unwrap();
    }
    fs::set_permissions(serve.path("group"), fs::Permissions::from_mode(0o777)).unwrap();
    fs::write(serve.path("victim/f"), "untouched").unwrap();
    fs::set_permissions(serve.path("victim/f"), fs::Permissions::from_mode(0o600)).unwrap();
    for (link, target) in [("group/log", "../victim/f"), ("group/dir", "../victim")] {
        symlink(target, serve.path(link)).unwrap();
        lchown(serve.path(link), Some(5), None).unwrap();
    }
    let script = r#"
f = login(); f.voidcmd('TYPE I')
for name in ['group/log', 'group/dir/f']:
    for line in ['SITE CHMOD 666', 'MFMT 20260102030405']:
        try: raise SystemExit(line + ' ' + f.sendcmd(f'{line} {name}'))
        except ftplib.Error as e: assert str(e).startswith('550') and 'symbolic link' in str(e), (line, e)
    for line, at in [('STOR', None), ('STOR', 3), ('APPE', None), ('ESTO A 0', None), ('ESTO A 3', None)]:
        try: f.storbinary(f'{line} {name}', io.BytesIO(b'other'), rest=at); raise SystemExit(line + ' succeeded')
        except ftplib.Error as e: assert str(e).startswith('55') and 'symbolic link' in str(e), (line, e)
for line in ['MKD group/dir/x', 'DELE group/dir/f']:
    try: raise SystemExit(line + ' ' + f.sendcmd(line))
    except ftplib.Error as e: assert str(e).startswith('550') and 'symbolic link' in str(e), (line, e)
"#;
    ok(&python(&serve, script));
    assert_eq!(fs::read(serve.path("victim/f")).unwrap(), b"untouched");
    assert_eq!(fs::metadata(serve.path("victim/f")).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(fs::read_dir(serve.path("victim")).unwrap().count(), 1);
}

#[test]
fn read_only_server_refuses_changes() {
    let serve = Serve::reading();
    fs::write(serve.path("f"), "f").unwrap();
    let script = r#"
f = login()
for line in ['STOR x', 'APPE f', 'DELE f', 'MKD d', 'RNFR f', 'RMD d', 'SITE CHMOD 777 f', 'MFMT 20260102030405 f', 'ESTO A 0 f']:
    try: f.sendcmd(line); raise SystemExit(line + ' succeeded')
    except ftplib.Error as e: assert str(e).startswith('550'), (line, e)
assert f.nlst() == ['f']
"#;
    ok(&python(&serve, script));
}

#[test]
fn connections_are_limited() {
    let serve = Serve::with(|config| {
        config.limits.per_address = 2;
        config.limits.line = ByteSize(1024);
    });
    let script = r#"
a, b = login(), login()
try: login(); raise SystemExit('a third connection')
except ftplib.error_temp as e: assert str(e).startswith('421'), e
b.quit()
for _ in range(600):
    try: c = login(); break
    except ftplib.error_temp: time.sleep(0.05)
s = c.sock; s.sendall(b'CWD ' + b'x' * 3000)
rest = b''
while True:
    got = s.recv(1000)
    if not got: break
    rest += got
assert rest.startswith(b'500 '), rest
"#;
    ok(&python(&serve, script));
    // A client that does not log in is disconnected.
    let serve = Serve::with(|config| config.limits.login = Span(Duration::from_secs(1)));
    let script = r#"
s = socket.create_connection((host, port), 30); said = b''
while True:
    got = s.recv(1000)
    if not got: break
    said += got
first, rest = said.split(b'\r\n', 1); assert first.startswith(b'220') and rest.startswith(b'421 '), said
"#;
    ok(&python(&serve, script));
}

#[test]
fn every_command_that_sets_times_works() {
    let serve = Serve::writable();
    let file = serve.local().join("old");
    fs::write(&file, "x").unwrap();
    ok(&run(Command::new("touch").args(["-d", "2020-01-02 03:04:05 UTC"]).arg(&file)));
    let modified = |name: &str| {
        let time = fs::metadata(serve.path(name)).unwrap().modified().unwrap();
        time.duration_since(std::time::UNIX_EPOCH).unwrap().as_secs()
    };
    // By MFMT, and by SITE UTIME in both of its forms.
    for (i, how) in [
        "",
        "set ftp:use-feat no; set ftp:use-site-utime2 yes; set ftp:use-site-utime no;",
        "set ftp:use-feat no; set ftp:use-site-utime2 no; set ftp:use-site-utime yes;",
    ]
    .into_iter()
    .enumerate()
    {
        let script = format!(
            "set net:timeout 30; set net:max-retries 1; set cmd:fail-exit yes; {how} open {}; \
             put {} -o \"to {i}\"; quit",
            serve.url(""),
            file.display()
        );
        ok(&run(Command::new("lftp").args(["--norc", "-c", &script])));
        assert_eq!(modified(&format!("to {i}")), 1_577_934_245, "{how}");
    }
    let quote = format!("SITE UTIME 20010203040506 to {}", 0);
    ok(&curl(&["--list-only", "-Q", &quote, &serve.url("")]));
    assert_eq!(modified("to 0"), 981_173_106);
    let refused = curl(&["--list-only", "-Q", "SITE UTIME yesterday x", &serve.url("")]);
    assert!(!refused.status.success(), "{refused:?}");
}

/// A draft has the bytes of another client. A file that a client put under such a name would be taken for a draft.
#[test]
fn draft_names_are_refused_as_targets() {
    let serve = Serve::writable();
    fs::write(serve.path("f"), "f").unwrap();
    let script = r#"
f = login(); f.voidcmd('TYPE I')
for end in 'draft', 'journal', 'journal-next':
    name = '.f.phoebus-' + end
    for line in ['MKD ', 'RMD ', 'SITE CHMOD 666 ', 'MFMT 20200101000000 ', 'CKSM MD5 0 -1 ']:
        try: f.sendcmd(line + name); raise SystemExit(line + name)
        except ftplib.error_perm as e: assert str(e).startswith('553'), (line, e)
    try: f.rename('f', name); raise SystemExit('rename to ' + name)
    except ftplib.error_perm as e: assert str(e).startswith('553'), e
    for line in ['STOR ', 'APPE ', 'RETR ']:
        try: f.storbinary(line + name, io.BytesIO(b'x')); raise SystemExit(line + name)
        except ftplib.error_perm as e: assert str(e).startswith('553'), (line, e)
open(os.path.join(dir, '../root/.f.phoebus-draft'), 'w').close()
assert f.size('.f.phoebus-draft') == 0
try: f.rename('.f.phoebus-draft', 'g'); raise SystemExit('rename of a draft')
except ftplib.error_perm as e: assert str(e).startswith('553'), e
import fcntl
with open(os.path.join(dir, '../root/.f.phoebus-draft')) as used:
    fcntl.flock(used, fcntl.LOCK_EX)
    for end in ['draft', 'journal']:
        open(os.path.join(dir, '../root/.f.phoebus-' + end), 'a').close()
        refused(f, 'DELE .f.phoebus-' + end, '450')
# Listings hide them, but show one that is named.
assert f.nlst() == ['f'], f.nlst()
named = [line.split(' ')[-1] for line in f.sendcmd('SITE DRAFTS').split('\n')]
assert sorted(named[1:-1]) == ['.f.phoebus-draft', '.f.phoebus-journal'], named
f.delete('.f.phoebus-journal'); f.delete('.f.phoebus-draft')
# Clients may use the names that they give to incomplete files.
f.storbinary('STOR .g.0123.phoebus-part', io.BytesIO(b'x')); f.rename('.g.0123.phoebus-part', 'g')
"#;
    ok(&python(&serve, script));
    assert_eq!(fs::read(serve.path("g")).unwrap(), b"x");
}

#[test]
fn abandoned_drafts_are_removed() {
    let keep = |config: &mut phoebus_gridftp::server::Config| {
        config.drafts.keep = Span(Duration::from_secs(1));
        config.anonymous.as_mut().unwrap().quota.bytes = Some(ByteSize(100));
    };
    let serve = Serve::with(keep);
    let reading = Serve::with(|config| {
        keep(config);
        config.anonymous.as_mut().unwrap().read_only = true;
    });
    for root in [serve.path(""), reading.path("")] {
        fs::create_dir(root.join("sub")).unwrap();
        for name in [".a.phoebus-draft", ".b.phoebus-draft", ".b.phoebus-journal", ".c.phoebus-part", ".d"] {
            fs::write(root.join("sub").join(name), [0; 30]).unwrap();
        }
    }
    let used = fs::File::open(serve.path("sub/.a.phoebus-draft")).unwrap();
    used.lock().unwrap();
    // They count against the quota until they are gone.
    let put = "f = login(); f.voidcmd('TYPE I')\n";
    ok(&python(&serve, &format!("{put}refused(f, 'ALLO 50', '552')")));
    let begun = std::time::Instant::now();
    while serve.path("sub/.b.phoebus-journal").exists() || serve.path("sub/.b.phoebus-draft").exists() {
        assert!(begun.elapsed() < Duration::from_secs(60), "drafts stay");
        std::thread::sleep(Duration::from_millis(50));
    }
    let left = |serve: &Serve| fs::read_dir(serve.path("sub")).unwrap().count();
    assert_eq!((left(&serve), left(&reading)), (3, 5));
    ok(&python(&serve, &format!("{put}assert f.sendcmd('ALLO 5').startswith('200')")));
}

#[test]
fn draft_in_a_shared_directory_is_not_published() {
    use std::os::unix::fs::PermissionsExt;
    let serve = Serve::writable();
    let part = ".x.0123456789abcdef.phoebus-part";
    for (dir, mode) in [("open", 0o777), ("own", 0o700)] {
        fs::create_dir(serve.path(dir)).unwrap();
        fs::set_permissions(serve.path(dir), fs::Permissions::from_mode(mode)).unwrap();
        fs::write(serve.path(dir).join(part), dir).unwrap();
    }
    let script = format!(
        "f = login(); f.sendcmd('RNFR open/{part}'); refused(f, 'RNTO x', '550')\n\
         f.rename('open/{part}', 'open/x'); f.rename('own/{part}', 'x')\n"
    );
    ok(&python(&serve, &script));
    assert_eq!(
        (fs::read(serve.path("x")).unwrap(), fs::read(serve.path("open/x")).unwrap()),
        (b"own".into(), b"open".into())
    );
}
