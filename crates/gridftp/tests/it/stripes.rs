//! Data nodes (S11; GFD.20, sections 3.3 and 5): several servers move the bytes of a front end, with the toolkit's
//! client and block by block.

use crate::support;
use phoebus_gridftp::server::Config;
use phoebus_gridftp::server::config::Gsi;
use phoebus_proto::units::Span;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;
use support::gct::Gct;
use support::lab::Lab;
use support::{Serve, bytes, ok, python, run};
use tempfile::TempDir;

/// A front end, two data nodes, and what they serve.
struct Site {
    front: Serve,
    nodes: Vec<Serve>,
    dir: TempDir,
}

impl Site {
    fn new(change: impl Fn(&mut Config)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("shared")).unwrap();
        let secret = secret(dir.path(), &"s".repeat(64));
        let common = |config: &mut Config| {
            config.anonymous.as_mut().unwrap().root = dir.path().join("shared");
            config.stripes.secret = Some(secret.clone());
            config.data.markers = Span(Duration::from_millis(100));
            change(config);
        };
        let node = || {
            Serve::with(|config| {
                common(config);
                config.data_node = true;
            })
        };
        let nodes: Vec<_> = (0..2).map(|_| node()).collect();
        let front = Serve::with(|config| {
            common(config);
            config.stripes.nodes = nodes.iter().map(|node| format!("127.0.0.1:{}", node.port())).collect();
        });
        Self { front, nodes, dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join("shared").join(name)
    }

    fn hidden(&self) -> Vec<String> {
        support::hidden(&self.path(""))
    }
}

fn secret(dir: &Path, text: &str) -> PathBuf {
    let file = dir.join(format!("secret{}", text.len()));
    fs::write(&file, text).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    file
}

fn copy(command: &mut Command, arguments: &[&str]) -> Output {
    run(command.env("HOME", "/nonexistent").args(arguments))
}

#[test]
fn gct_client_uses_several_data_nodes() {
    let (here, there, gct) = (Site::new(|_| {}), Site::new(|_| {}), Gct::anonymous());
    let content = bytes(20_000_001);
    let (source, target) = (here.dir.path().join("source"), here.dir.path().join("target"));
    fs::write(&source, &content).unwrap();
    let local = |path: &Path| format!("file://{}", path.display());
    let guc = |arguments: &[&str]| ok(&copy(&mut Command::new("globus-url-copy"), arguments));
    for mode in [&["-stripe"][..], &["-stripe", "-p", "3"], &["-stripe", "-sbs", "1000000"], &["-p", "2"], &[]] {
        guc(&[mode, &[&local(&source), &here.front.url("x")]].concat());
        assert!(fs::read(here.path("x")).unwrap() == content, "put {mode:?}");
        guc(&[mode, &[&here.front.url("x"), &local(&target)]].concat());
        assert!(fs::read(&target).unwrap() == content, "get {mode:?}");
        let y = there.path("y");
        for (from, to) in [
            (here.front.url("x"), there.front.url("y")),
            (here.front.url("x"), gct.url(&y)),
            (gct.url(&here.path("x")), there.front.url("y")),
        ] {
            guc(&[mode, &[&from, &to]].concat());
            assert!(fs::read(&y).unwrap() == content, "{from} {to} {mode:?}");
            fs::remove_file(&y).unwrap();
        }
        fs::remove_file(&target).unwrap();
        fs::remove_file(here.path("x")).unwrap();
    }
    // One control connection for many files, and trees.
    fs::create_dir_all(here.path("tree/deep")).unwrap();
    for (name, len) in [("a", 0), ("b b", 1), ("deep/c", 3_000_000), ("deep/d", 100)] {
        fs::write(here.path("tree").join(name), bytes(len)).unwrap();
    }
    guc(&["-r", "-cd", "-stripe", "-fast", &here.front.url("tree/"), &there.front.url("tree/")]);
    ok(&run(Command::new("diff").arg("-r").args([here.path("tree"), there.path("tree")])));
    assert_eq!((here.hidden(), there.hidden()), (Vec::new(), Vec::new()));
}

#[test]
fn data_nodes_authenticate_with_the_delegated_credential() {
    let lab = Lab::new();
    let grid = |config: &mut Config| {
        let anonymous = config.anonymous.take().unwrap();
        let user = format!("name = \"jane\"\nroot = \"{}\"\n", anonymous.root.display());
        config.users = vec![toml::from_str(&user).unwrap()];
        config.gsi = Some(Gsi {
            certificate: lab.path("host.pem"),
            key: lab.path("host.key"),
            authorities: lab.path("certs"),
            gridmap: lab.path("grid-mapfile"),
        });
    };
    let (here, there) = (Site::new(grid), Site::new(grid));
    let content = bytes(9_000_001);
    fs::write(here.path("x"), &content).unwrap();
    let url = |site: &Site, path: &str| format!("gsiftp://localhost:{}/{path}", site.front.port());
    for mode in [
        &["-stripe", "-p", "2"][..],
        &["-stripe", "-p", "2", "-dcpriv"],
        &["-stripe", "-dcsafe"],
        &["-stripe", "-nodcau"],
    ] {
        let mut command = Command::new("globus-url-copy");
        let moved =
            copy(lab.with_proxy(&mut command, "proxy"), &[mode, &[&url(&here, "x"), &url(&there, "y")]].concat());
        ok(&moved);
        assert!(fs::read(there.path("y")).unwrap() == content, "{mode:?}");
        fs::remove_file(there.path("y")).unwrap();
    }
}

/// Runs a script that has blocks at hand.
fn extended(site: &Site, script: &str) -> Output {
    let before = r#"
import threading
EOF, EOD = 64, 8
def block(s, flags, offset, data=b''): s.sendall(struct.pack('>BQQ', flags, len(data), offset) + data)
def end(s, flags, count): s.sendall(struct.pack('>BQQ', flags, 0, count))
def exactly(s, n):
    got = b''
    while len(got) < n:
        more = s.recv(n - len(got)); assert more, 'cut'; got += more
    return got
def session(): f = login(); f.voidcmd('TYPE I'); f.voidcmd('MODE E'); return f
def passive(f):
    lines = f.sendcmd('SPAS').split('\n')[1:-1]
    return [('127.0.0.1', int(p) * 256 + int(q)) for p, q in (line.strip().split(',')[4:] for line in lines)]
def begin(f, line): f.putcmd(line); r = answer(f); assert r[:3] in ('150', '125'), r; return r
def final(f, seen=None):
    while True:
        r = answer(f)
        if r[0] != '1': return r
        if seen is not None: seen.append(r)
"#;
    python(&site.front, &[before, script].concat())
}

#[test]
fn each_data_node_moves_its_own_blocks() {
    let site = Site::new(|_| {});
    let content = bytes(9_000_001);
    fs::write(site.path("data"), &content).unwrap();
    fs::write(site.front.local().join("data"), &content).unwrap();
    let script = r#"
data = open(os.path.join(dir, 'data'), 'rb').read()
f = session(); at = passive(f); assert len(set(at)) == 2, at
f.voidcmd('ALLO %d' % len(data)); begin(f, 'STOR x'); s = [socket.create_connection(a) for a in at]; seen = []
for i, o in enumerate(range(0, len(data), 100000)): block(s[i % 2], 0, o, data[o:o + 100000])
for one in s: end(one, EOF | EOD, 1)
r = final(f, seen); assert r.startswith('226'), r
text = '\n'.join(seen); assert all(t in text for t in ('Stripe Index: 0', 'Stripe Index: 1', 'Total Stripe Count: 2', '111 Range Marker')), text
# The same connections again.
begin(f, 'STOR y'); block(s[1], 0, 3, b'def'); end(s[1], EOF | EOD, 1); block(s[0], 0, 0, b'abc'); end(s[0], EOF | EOD, 1)
r = final(f); assert r.startswith('226'), r
# Each address receives from a node of its own, every second block.
l = [socket.create_server(('127.0.0.1', 0)) for _ in range(2)]; [x.settimeout(30) for x in l]
f.voidcmd('OPTS RETR Parallelism=2,2,2;markers=1;')
f.voidcmd('SPOR ' + ' '.join('127,0,0,1,%d,%d' % divmod(x.getsockname()[1], 256) for x in l))
def receive(l):
    got, ends, lock = [{}, {}], [[], []], threading.Lock()
    def one(i, s):
        while True:
            flags, count, offset = struct.unpack('>BQQ', exactly(s, 17))
            b = b'' if flags & EOF else exactly(s, count)
            with lock:
                if b: got[i][offset] = b
                if flags & EOD: ends[i].append((flags, offset)); return
    threads = [threading.Thread(target=one, args=(i, s)) for i, x in enumerate(l) for s in x]
    [t.start() for t in threads]; [t.join() for t in threads]
    assert all(sorted(e) == [(8, 0), (72, 2)] for e in ends), ends
    return got
begin(f, 'RETR data'); taken = [[x.accept()[0] for _ in range(2)] for x in l]
got = receive(taken); assert [len({o >> 20 for o in g}) for g in got] == [5, 4], [sorted(g) for g in got]
assert all(o // (1 << 20) % 2 == i for i, g in enumerate(got) for o in g), [sorted(g) for g in got]
whole = {**got[0], **got[1]}; assert b''.join(whole[o] for o in sorted(whole)) == data
r = final(f); assert r.startswith('226'), r
# Parts and restarts, over the same connections.
f.sendcmd('REST 0-100,2000000-9000000'); begin(f, 'RETR data'); got = receive(taken); whole = {**got[0], **got[1]}
assert sum(map(len, whole.values())) == 1999900 + 1 and all(data[o:o + len(b)] == b for o, b in whole.items()); assert final(f).startswith('226')
begin(f, 'ERET P 1000000 5000000 data'); got = receive(taken); whole = {**got[0], **got[1]}
assert b''.join(whole[o] for o in sorted(whole)) == data[1000000:6000000]; assert final(f).startswith('226')
# A single address: both nodes still send their own blocks, and one of them counts the ends of all.
def one_address(taken, count):
    got, ends, stripes, lock = {}, [], [], threading.Lock()
    def all(s):
        own = set()
        while True:
            flags, count, offset = struct.unpack('>BQQ', exactly(s, 17))
            b = b'' if flags & EOF else exactly(s, count)
            with lock:
                if b: got[offset] = b; own.add(offset // (1 << 20) % 2)
                if flags & EOD: ends.append((flags, offset)); stripes.append(own); return
    threads = [threading.Thread(target=all, args=(s,)) for s in taken]
    [t.start() for t in threads]; [t.join() for t in threads]
    assert b''.join(got[o] for o in sorted(got)) == data
    assert sorted(ends) == [(8, 0)] * (count - 1) + [(72, count)], ends
    assert not [own for own in stripes if len(own) > 1] and set().union(*stripes) == {0, 1}, stripes
f.voidcmd('SPOR 127,0,0,1,%d,%d' % divmod(l[0].getsockname()[1], 256)); begin(f, 'RETR data')
taken = [l[0].accept()[0] for _ in range(4)]; one_address(taken, 4); assert final(f).startswith('226')
# Over the existing connections, and over fewer of them, so that two stay unused.
begin(f, 'RETR data'); one_address(taken, 4); assert final(f).startswith('226')
f.voidcmd('OPTS RETR Parallelism=1,1,1;'); begin(f, 'RETR data'); import select
ready = set()
while len(ready) < 2: ready |= set(select.select(taken, [], [], 30)[0])
one_address(ready, 2); assert final(f).startswith('226')
# The sender connects.
refused(f, 'STOR x', '425'); passive(f); refused(f, 'RETR data', '425')
"#;
    ok(&extended(&site, script));
    assert!(fs::read(site.path("x")).unwrap() == content);
    assert_eq!(fs::read(site.path("y")).unwrap(), b"abcdef");
    assert_eq!(site.hidden(), Vec::<String>::new());
}

#[test]
fn cut_transfer_resumes_at_its_markers() {
    let site = Site::new(|_| {});
    let content = bytes(20 << 20);
    fs::write(site.front.local().join("data"), &content).unwrap();
    let script = r#"
data = open(os.path.join(dir, 'data'), 'rb').read(); half = len(data) // 2
f = session(); at = passive(f); f.voidcmd('ALLO %d' % len(data)); begin(f, 'STOR x'); s = [socket.create_connection(a) for a in at]
for i, o in enumerate(range(0, half, 65536)): block(s[i % 2], 0, o, data[o:o + 65536])
there, markers = 0, []
while there < half:
    r = answer(f)
    if r.startswith('111'):
        for one in r.split()[-1].split(','): a, b = map(int, one.split('-')); there += b - a; markers.append(one)
    assert r[0] == '1', r
reset(s[0]); r = final(f); assert r.startswith('426') and 'data node 127.0.0.1' in r, r
f.voidcmd('TYPE I'); refused(f, 'SIZE x', '550')
f = session(); at = passive(f); f.voidcmd('ALLO %d' % len(data)); f.sendcmd('REST ' + ','.join(markers)); begin(f, 'STOR x')
s = [socket.create_connection(a) for a in at]; middle = half + 1000000
block(s[1], 0, half, data[half:middle]); block(s[0], 0, middle, data[middle:]); [end(one, EOF | EOD, 1) for one in s]
r = final(f); assert r.startswith('226'), r
"#;
    ok(&extended(&site, script));
    assert!(fs::read(site.path("x")).unwrap() == content);
    assert_eq!(site.hidden(), Vec::<String>::new());
}

#[test]
fn dead_data_node_ends_the_transfer_and_is_named() {
    let mut site = Site::new(|_| {});
    fs::write(site.path("data"), bytes(50 << 20)).unwrap();
    let dead = format!("data node 127.0.0.1:{}", site.nodes[1].port());
    let go = site.front.local().join("go");
    let kill = site.nodes.pop().unwrap();
    let script = r#"
go, dead = os.path.join(dir, 'go'), os.path.join(dir, 'dead')
f = session(); at = passive(f); begin(f, 'STOR x'); s = [socket.create_connection(a) for a in at]; block(s[0], 0, 0, b'abc')
open(go, 'w').close(); r = final(f); assert r.startswith('426') and DEAD in r, r
f.voidcmd('TYPE I'); refused(f, 'SIZE x', '550')
# From here on, the node does not exist.
r = refused(f, 'SPAS', '425'); assert DEAD in r, r
f.voidcmd('SPOR 127,0,0,1,200,0'); r = refused(f, 'RETR data', '425'); assert DEAD in r, r
"#
    .replace("DEAD", &format!("'{dead}'"));
    std::thread::scope(|scope| {
        scope.spawn(move || {
            while !go.exists() {
                std::thread::sleep(Duration::from_millis(10));
            }
            drop(kill);
        });
        let output = extended(&site, &script);
        // Let the waiting script continue.
        fs::write(site.front.local().join("go"), "").unwrap();
        ok(&output);
    });
    assert!(!site.path("x").exists());
    assert_eq!(site.hidden(), Vec::<String>::new());
}

#[test]
fn data_node_refuses_strangers() {
    let site = Site::new(|_| {});
    let script = r#"
f = ftplib.FTP(timeout=30); f.connect(host, port)
for line in 'USER anonymous', 'XSEND 0 1 1 0 1 1 /x', 'XRECV 0 1 /x', 'XLEND 00', 'RETR x': refused(f, line, '530')
refused(f, 'XNODE zz 127.0.0.1 00', '501')
r = f.sendcmd('XNODE %s 127.0.0.1 %s sha256-%s' % (b'anonymous'.hex(), '00' * 32, '00' * 32)); assert r.startswith('334'), r
refused(f, 'XPROVE ' + r.split()[-1], '530')
try: f.sendcmd('NOOP'); raise SystemExit('it goes on')
except (EOFError, OSError): pass
"#;
    ok(&python(&site.nodes[0], script));
    // A front end also verifies the node.
    let dir = tempfile::tempdir().unwrap();
    let other = secret(dir.path(), &"o".repeat(63));
    let front = |nodes: Vec<String>, secret: PathBuf| {
        Serve::with(|config| {
            config.stripes.nodes = nodes;
            config.stripes.secret = Some(secret);
        })
    };
    let node = format!("127.0.0.1:{}", site.nodes[0].port());
    let stranger = front(vec![node.clone()], other);
    let script = "f = login(); f.voidcmd('TYPE I'); f.voidcmd('MODE E'); r = refused(f, 'SPAS', '425', '426'); assert 'does not have the secret' in r, r\n";
    ok(&python(&stranger, script));
    // The same secret, but another disk.
    let elsewhere = front(vec![node], secret(dir.path(), &"s".repeat(64)));
    let script = "f = login(); f.voidcmd('TYPE I'); f.voidcmd('MODE E'); f.voidcmd('SPAS'); r = refused(f, 'STOR x', '550', '451'); assert 'data node' in r, r\n";
    ok(&python(&elsewhere, script));
    assert_eq!(elsewhere.hidden(), Vec::<String>::new());
}

/// A proxy between a front end and its node. `alter` replaces the front end's first line.
fn eavesdrop(node: u16, alter: bool) -> (u16, std::sync::Arc<std::sync::Mutex<Vec<u8>>>) {
    use std::io::{Read, Write};
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let heard = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let all = heard.clone();
    std::thread::spawn(move || {
        for front in listener.incoming() {
            let (front, node) = (front.unwrap(), std::net::TcpStream::connect(("127.0.0.1", node)).unwrap());
            for (mut from, mut to) in [(front.try_clone().unwrap(), node.try_clone().unwrap()), (node, front)] {
                let all = all.clone();
                std::thread::spawn(move || {
                    let mut room = [0; 65536];
                    while let Ok(len @ 1..) = from.read(&mut room) {
                        all.lock().unwrap().extend_from_slice(&room[..len]);
                        let text = String::from_utf8_lossy(&room[..len]).into_owned();
                        let own = format!("sha256-{}", "0".repeat(64));
                        let said = match text.find("sha256-").filter(|_| alter) {
                            Some(at) => text.replace(&text[at..at + 71], &own).into_bytes(),
                            None => room[..len].to_vec(),
                        };
                        if to.write_all(&said).is_err() {
                            break;
                        }
                    }
                    let _ = to.shutdown(std::net::Shutdown::Both);
                });
            }
        }
    });
    (port, heard)
}

#[test]
fn link_between_front_end_and_node_is_protected() {
    let site = Site::new(|_| {});
    fs::write(site.path("data"), bytes(100_000)).unwrap();
    let front = |node: u16| {
        Serve::with(|config| {
            config.anonymous.as_mut().unwrap().root = site.path("");
            config.stripes.nodes = vec![format!("127.0.0.1:{node}")];
            config.stripes.secret = Some(secret(site.dir.path(), &"s".repeat(64)));
        })
    };
    let (port, heard) = eavesdrop(site.nodes[0].port(), false);
    let script = "f = login(); f.voidcmd('TYPE I'); f.voidcmd('MODE E'); f.voidcmd('SPAS')\n";
    ok(&python(&front(port), script));
    let heard = String::from_utf8_lossy(&heard.lock().unwrap()).into_owned();
    assert!(heard.contains("XNODE") && heard.contains("XPROVE"), "{heard}");
    assert!(!heard.contains("XBEGIN") && !heard.contains("MODE E") && !heard.contains("PASV"), "{heard}");
    let (port, _) = eavesdrop(site.nodes[0].port(), true);
    let script = "f = login(); f.voidcmd('TYPE I'); f.voidcmd('MODE E'); refused(f, 'SPAS', '425', '426', '530')\n";
    ok(&python(&front(port), script));
}

#[test]
fn data_nodes_use_tls_on_request() {
    let dir = tempfile::tempdir().unwrap();
    let certificate = "openssl req -x509 -newkey rsa:2048 -nodes -sha256 -days 30 -subj /CN=localhost -keyout key -out cert 2>&1; chmod 600 key";
    ok(&run(Command::new("sh").args(["-eu", "-c", certificate]).current_dir(dir.path())));
    let site = Site::new(|config| {
        let (certificate, key) = (dir.path().join("cert"), dir.path().join("key"));
        config.tls =
            Some(phoebus_gridftp::server::config::Tls { certificate, key, required: false, data_must_resume: true });
    });
    let content = bytes(3_000_001);
    fs::write(site.front.local().join("data"), &content).unwrap();
    let script = r#"
import ssl
data = open(os.path.join(dir, 'data'), 'rb').read()
context = ssl.create_default_context(); context.check_hostname = False; context.verify_mode = ssl.CERT_NONE
f = ftplib.FTP_TLS(context=context, timeout=30); f.connect(host, port); f.login(); f.prot_p(); f.voidcmd('TYPE I'); f.voidcmd('MODE E')
at = passive(f); assert len(set(at)) == 2, at
f.voidcmd('ALLO %d' % len(data)); begin(f, 'STOR x'); s = [context.wrap_socket(socket.create_connection(a)) for a in at]
for i, o in enumerate(range(0, len(data), 100000)): block(s[i % 2], 0, o, data[o:o + 100000])
for one in s: end(one, EOF | EOD, 1)
r = final(f); assert r.startswith('226'), r
# Lines in the clear are not accepted.
f.voidcmd('MODE S'); f.voidcmd('MODE E'); at = passive(f); begin(f, 'STOR y'); s = [socket.create_connection(a) for a in at]
try:
    for one in s: block(one, 0, 0, b'abc'); end(one, EOF | EOD, 1)
except OSError: pass
r = final(f); assert r.startswith('426'), r
"#;
    ok(&extended(&site, script));
    assert!(fs::read(site.path("x")).unwrap() == content && !site.path("y").exists());
}
