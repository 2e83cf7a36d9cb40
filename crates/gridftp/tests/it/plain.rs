//! Plain connections, whose bytes go between the socket and the file without a copy in user space (Invariant 9).
//! Transfers by sendfile and splice have the same results and the same failures.

use crate::support;
use phoebus_files::key::Key;
use phoebus_files::local::Local;
use phoebus_files::store::Store;
use phoebus_files::sum::Algorithm;
use phoebus_files::{Links, Throttle, TransferOptions, Verify, transfer};
use phoebus_gridftp::client::{Options, Remote};
use phoebus_proto::endpoint::Endpoint;
use phoebus_proto::units::Span;
use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;
use support::credentials::Watch;
use support::{Serve, bytes, ok, python, run};

/// An odd number, larger than pipes and blocks, and long enough for all streams.
const LONG: usize = 7_345_679;

/// Runs a script with helpers for blocks.
fn script(serve: &Serve, script: &str) -> Output {
    let before = r#"
def block(s, flags, offset, data=b''): s.sendall(struct.pack('>BQQ', flags, len(data), offset) + data)
def session(mode='E'):
    f = login(); f.voidcmd('TYPE I'); f.voidcmd('MODE ' + mode); return f
def passive(f): return socket.create_connection(('127.0.0.1', ftplib.parse227(f.sendcmd('PASV'))[1]), 30)
def begin(f, line):
    f.putcmd(line); r = f.getresp(); assert r[:3] in ('150', '125'), r
def final(f):
    while True:
        try: r = f.getresp()
        except ftplib.Error as e: return str(e)
        if r[0] != '1': return r
"#;
    python(serve, &[before, script].concat())
}

#[test]
fn repeated_and_reordered_blocks_land_at_their_offsets() {
    let serve = Serve::with(|config| config.data.markers = Span(Duration::from_millis(100)));
    let content = bytes(LONG);
    fs::write(serve.local().join("data"), &content).unwrap();
    fs::write(serve.path("old"), vec![b'.'; LONG]).unwrap();
    ok(&script(
        &serve,
        r#"
import random
data = open(os.path.join(dir, 'data'), 'rb').read(); n = len(data)
def send(f, line, cuts, twice=()):
    at = ftplib.parse227(f.sendcmd('PASV'))[1]
    begin(f, line); s = [socket.create_connection(('127.0.0.1', at), 30) for _ in range(3)]
    for i, (a, b) in enumerate(cuts): block(s[i % 3], 0, a, data[a:b])
    # Bytes that arrive a second time do not replace the first ones: the file has the bytes that were counted.
    while twice and 'Transferred: %d' % n not in f.getresp(): pass
    for a, b in twice: block(s[0], 0, a, b'!' * (b - a))
    for c in s: c.sendall(struct.pack('>BQQ', 72 if c is s[0] else 8, 0, 3 if c is s[0] else 0))
    r = final(f); assert r.startswith('226'), r
edges = sorted(random.Random(1).sample(range(1, n), 60)); cuts = list(zip([0] + edges, edges + [n])); random.Random(2).shuffle(cuts)
send(session(), 'STOR shuffled', cuts, [(0, 600000), (n - 400000, n)])
send(session(), 'STOR whole', [(0, n)])
# At another offset than the sender counts, and without the ranges that exist.
f = session(); send(f, 'ESTO A 0 old', [(1000, 2000000)])
f = session(); f.sendcmd('REST 0-3000000'); send(f, 'STOR old', [(3000000, n)])
"#,
    ));
    assert!(fs::read(serve.path("shuffled")).unwrap() == content);
    assert!(fs::read(serve.path("whole")).unwrap() == content);
    let old = fs::read(serve.path("old")).unwrap();
    assert!(old[1000..2_000_000] == content[1000..2_000_000] && old[3_000_000..] == content[3_000_000..]);
    assert!(old[..1000].iter().chain(&old[2_000_000..3_000_000]).all(|&byte| byte == b'.'));
    assert_eq!(serve.hidden(), Vec::<String>::new());
}

#[test]
fn streams_of_any_length_are_carried_whole_and_in_part() {
    let serve = Serve::writable();
    for len in [0, 1, 17, 262_143, 262_144, 1 << 20, LONG] {
        let content = bytes(len);
        fs::write(serve.local().join("data"), &content).unwrap();
        ok(&script(
            &serve,
            r#"
data = open(os.path.join(dir, 'data'), 'rb').read(); n = len(data)
f = session('S'); f.storbinary('STOR x', io.BytesIO(data), 65536)
def take(line, rest=None):
    got = []; f.retrbinary(line, got.append, rest=rest); return b''.join(got)
assert take('RETR x') == data
assert take('RETR x', n // 3) == data[n // 3:]
assert take('ERET P %d %d x' % (n // 4, n // 2)) == data[n // 4:n // 4 + n // 2]
# The rest of the file.
f.storbinary('STOR x', io.BytesIO(data[n // 2:]), 65536, rest=n // 2)
f.storbinary('APPE x', io.BytesIO(b'more'), 65536)
# More or less than was announced.
for allo, code in ((n + 1, '426'), (n - 1, '426')):
    if allo > 0:
        f.voidcmd('ALLO %d' % allo); c = passive(f); begin(f, 'STOR y')
        try: c.sendall(data); c.close()
        except OSError: pass
        r = final(f); assert r[:3] == code, r
"#,
        ));
        assert!(fs::read(serve.path("x")).unwrap() == [&content[..], b"more"].concat(), "{len}");
        assert!(!serve.path("y").exists());
    }
}

#[test]
fn file_truncated_during_a_send_fails() {
    let serve = Serve::writable();
    for mode in ["S", "E"] {
        fs::write(serve.path("x"), vec![7; 64 << 20]).unwrap();
        let path = serve.path("x");
        let body = r#"
f = session(MODE); listener = socket.create_server(('127.0.0.1', 0)); listener.settimeout(30); p = listener.getsockname()[1]
f.voidcmd('PORT 127,0,0,1,%d,%d' % (p >> 8, p & 255)); begin(f, 'RETR x'); s = listener.accept()[0]; s.settimeout(30)
s.recv(100000); os.truncate(PATH, 1 << 20)
n = 0
try:
    while True:
        more = len(s.recv(1 << 20)); n += more
        if not more: raise SystemExit('a clean end after %d bytes' % n)
except ConnectionResetError: pass
assert n < 64 << 20, n
r = final(f); assert r[:3] in ('426', '451', '550'), r
"#;
        let body = body.replace("MODE", &format!("{mode:?}")).replace("PATH", &format!("{path:?}"));
        ok(&script(&serve, &body));
    }
}

#[test]
fn full_destination_is_reported() {
    // A file system of a few megabytes, and a device that is always full and reads nothing from pipes.
    let serve = Serve::writable();
    let small = serve.path("small");
    fs::create_dir(&small).unwrap();
    ok(&run(Command::new("mount").args(["-t", "tmpfs", "-o", "size=3m", "none"]).arg(&small)));
    ok(&run(Command::new("mknod").arg(serve.path("full")).args(["c", "1", "7"])));
    let output = script(
        &serve,
        r#"
def attempt(mode, line):
    f = session(mode); c = passive(f) if mode == 'S' else ftplib.parse227(f.sendcmd('PASV'))[1]
    begin(f, line); s = c if mode == 'S' else socket.create_connection(('127.0.0.1', c), 30)
    try:
        if mode == 'E': s.sendall(struct.pack('>BQQ', 0, 8 << 20, 0))
        for _ in range(128): s.sendall(b'x' * 65536)
        s.shutdown(socket.SHUT_WR)
    except OSError: pass
    return final(f)
for mode in 'SE':
    for line in ('STOR small/x', 'STOR full', 'ESTO A 0 full'):
        r = attempt(mode, line); assert r[:3] in ('452', '552'), (mode, line, r)
f = session()
try: f.voidcmd('SIZE small/x'); raise SystemExit('it is there')
except ftplib.Error: pass
"#,
    );
    ok(&run(Command::new("umount").arg("-l").arg(&small)));
    ok(&output);
}

#[test]
fn devices_are_sources_and_destinations() {
    let serve = Serve::writable();
    ok(&run(Command::new("mknod").arg(serve.path("zero")).args(["c", "1", "5"])));
    ok(&run(Command::new("mknod").arg(serve.path("null")).args(["c", "1", "3"])));
    ok(&script(
        &serve,
        r#"
f = session('S'); got = []; f.retrbinary('ERET P 0 5000001 zero', got.append); assert b''.join(got) == bytes(5000001)
f.storbinary('STOR null', io.BytesIO(bytes(5000001)))
f = session(); at = ftplib.parse227(f.sendcmd('PASV'))[1]; begin(f, 'STOR null'); s = socket.create_connection(('127.0.0.1', at), 30)
block(s, 0, 0, bytes(5000001)); s.sendall(struct.pack('>BQQ', 72, 0, 1)); r = final(f); assert r.startswith('226'), r
"#,
    ));
}

/// The client, with each way of moving bytes: unchanged, hashed on the way, rate-limited.
#[test]
fn every_client_and_mode_carries_the_same_bytes() {
    let serve = Serve::writable();
    let content = bytes(LONG);
    fs::write(serve.path("far"), &content).unwrap();
    fs::write(serve.local().join("near"), &content).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let local = Local::new(serve.local(), Links::Anywhere).unwrap();
    let sums = [Verify::None, Verify::Flight(Some(Algorithm::Crc32c)), Verify::Flight(Some(Algorithm::Adler32))];
    let same = |path: &Path| fs::read(path).unwrap() == content;
    for (i, verify) in sums.into_iter().enumerate() {
        for streams in [None, Some(1), Some(8)] {
            for held in [false, true] {
                let name = format!("{i}-{streams:?}-{held}").replace(['(', ')'], "");
                let remote = options(&serve, streams);
                let how = TransferOptions {
                    verify,
                    throttle: held.then(|| Throttle::new(1 << 30)),
                    ..TransferOptions::default()
                };
                runtime.block_on(async {
                    let remote = Remote::connect(remote).await.unwrap();
                    let home = remote.home().clone();
                    let far = |name: &str| home.join(name.as_bytes()).unwrap();
                    let near = |name: &str| Key::parse(name).unwrap();
                    let put = transfer(&local, &near("near"), &remote, &far(&name), &how).await.unwrap();
                    let get = transfer(&remote, &far("far"), &local, &near(&name), &how).await.unwrap();
                    assert_eq!((put.size, get.size), (LONG as u64, LONG as u64));
                    assert_eq!((put.verified.is_some(), get.verified.is_some()), (i > 0, i > 0));
                    remote.settle().await.unwrap();
                });
                assert!(same(&serve.path(&name)) && same(&serve.local().join(&name)), "{name}");
            }
        }
    }
}

/// A client that moves a file removes its own copy next.
#[test]
fn renames_are_synced_on_request() {
    let serve = Serve::writable();
    fs::write(serve.path("a"), "x").unwrap();
    let log = serve.local().join("calls");
    let watch = Watch::begin(&log);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let remote = runtime.block_on(async {
        let remote = Remote::connect(options(&serve, None)).await.unwrap();
        let [from, to] = ["a", "b"].map(|name| remote.home().join(name.as_bytes()).unwrap());
        remote.rename(&from, &to, true).await.unwrap();
        remote.settle().await.unwrap();
        remote
    });
    let calls = watch.calls(&serve.path(""));
    assert!(calls.keys().any(|(name, _)| name == "fsync"), "{calls:?}");
    drop(remote);
}

#[test]
fn short_files_are_announced_by_size() {
    // The wait for a doubtful client is longer than the test.
    let serve = Serve::with(|config| config.data.quiet = Span(Duration::from_secs(3600)));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let local = Local::new(serve.local(), Links::Anywhere).unwrap();
    runtime.block_on(async {
        let remote = Remote::connect(options(&serve, None)).await.unwrap();
        for (name, len) in [("empty", 0), ("first", 3), ("next", 70_000), ("last", 1)] {
            fs::write(serve.local().join(name), bytes(len)).unwrap();
            let (near, far) = (Key::parse(name).unwrap(), remote.home().join(name.as_bytes()).unwrap());
            transfer(&local, &near, &remote, &far, &TransferOptions::default()).await.unwrap();
            assert!(fs::read(serve.path(name)).unwrap() == bytes(len), "{name}");
        }
    });
    assert_eq!(serve.hidden(), Vec::<String>::new());
}

#[test]
fn client_keeps_to_the_server_s_connections_per_file() {
    let serve = Serve::with(|config| config.data.streams = 3);
    let content = bytes(LONG);
    fs::write(serve.local().join("near"), &content).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let local = Local::new(serve.local(), Links::Anywhere).unwrap();
    runtime.block_on(async {
        let remote = Remote::connect(Options { choose: Some(|_| 8), ..options(&serve, None) }).await.unwrap();
        for name in ["one", "two"] {
            let (near, far) = (Key::parse("near").unwrap(), remote.home().join(name.as_bytes()).unwrap());
            transfer(&local, &near, &remote, &far, &TransferOptions::default()).await.unwrap();
            assert!(fs::read(serve.path(name)).unwrap() == content);
        }
        assert_eq!(remote.most_streams(), 2);
    });
    assert_eq!(serve.hidden(), Vec::<String>::new());
}

#[test]
fn requested_part_of_a_device_is_copied() {
    let serve = Serve::writable();
    for dir in [serve.path(""), serve.local()] {
        for (name, minor) in [("zero", "5"), ("null", "3")] {
            ok(&run(Command::new("mknod").arg(dir.join(name)).args(["c", "1", minor])));
        }
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let local = Local::new(serve.local(), Links::Anywhere).unwrap();
    let how = TransferOptions { verify: Verify::None, length: Some(LONG as u64), ..TransferOptions::default() };
    for streams in [None, Some(3)] {
        runtime.block_on(async {
            let remote = Remote::connect(options(&serve, streams)).await.unwrap();
            let home = remote.home().clone();
            let far = |name: &str| home.join(name.as_bytes()).unwrap();
            let near = |name: &str| Key::parse(name).unwrap();
            let put = transfer(&local, &near("zero"), &remote, &far("null"), &how).await.unwrap();
            let get = transfer(&remote, &far("zero"), &local, &near("null"), &how).await.unwrap();
            assert_eq!((put.moved, get.moved), (LONG as u64, LONG as u64));
            transfer(&local, &near("zero"), &remote, &far("put"), &how).await.unwrap();
            transfer(&remote, &far("zero"), &local, &near("got"), &how).await.unwrap();
            let error =
                transfer(&remote, &far("zero"), &local, &near("got"), &TransferOptions::default()).await.unwrap_err();
            assert!(error.to_string().contains("unknown size"), "{error}");
        });
        for path in [serve.path("put"), serve.local().join("got")] {
            assert!(fs::read(path).unwrap() == vec![0; LONG]);
        }
    }
    // The device was neither replaced nor removed.
    for path in [serve.path("null"), serve.local().join("null")] {
        assert!(fs::metadata(path).unwrap().file_type().is_char_device());
    }
}

fn options(serve: &Serve, streams: Option<u32>) -> Options {
    let server = Endpoint::parse(&format!("127.0.0.1:{}", serve.port()), None).unwrap();
    Options { streams, ..Options::new("ftp://test", server) }
}
