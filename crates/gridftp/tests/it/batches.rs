//! Many short files in one exchange (XBATCH), with our own server, with hostile clients and with hostile servers.

use crate::fake::{Client, Fake, tools};
use crate::support;
use phoebus_files::job::{Event, Job, Report, Watcher};
use phoebus_files::key::Key;
use phoebus_files::local::Local;
use phoebus_files::{Links, Retry};
use phoebus_gridftp::client::{Options, Remote};
use phoebus_proto::endpoint::Endpoint;
use phoebus_proto::gridftp::batch::{Encoder, File};
use std::fs::{self, Permissions};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use support::{Serve, bytes, ok, python};
use tempfile::{TempDir, tempdir};
use tools::options;

/// The CRC-32C of one byte x.
const CRC_OF_X: u32 = 0xa93c_5f93;

/// More than one batch.
pub(crate) const FILES: usize = 600;

pub(crate) fn many() -> TempDir {
    let dir = tempdir().unwrap();
    fs::create_dir(dir.path().join("sub")).unwrap();
    for i in 0..FILES {
        let name = if i % 3 == 0 { format!("sub/f {i}") } else { format!("f\u{e9}{i}") };
        let path = dir.path().join(name);
        fs::write(&path, &bytes(6000)[..i * 7 % 5000]).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(if i % 2 == 0 { 0o640 } else { 0o444 })).unwrap();
    }
    // A file that is too long for a batch.
    fs::write(dir.path().join("long"), bytes(3 << 20)).unwrap();
    dir
}

/// Paths with content, time and permissions.
pub(crate) fn seen(root: &Path) -> Vec<(String, Vec<u8>, i64, u32)> {
    let (mut all, mut dirs) = (Vec::new(), vec![root.to_owned()]);
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            let meta = fs::symlink_metadata(&path).unwrap();
            if meta.is_dir() {
                dirs.push(path);
                continue;
            }
            let name = path.strip_prefix(root).unwrap().display().to_string();
            all.push((name, fs::read(&path).unwrap(), meta.mtime(), meta.mode() & 0o777));
        }
    }
    all.sort();
    all
}

/// The names of files as their transfers began, and the number of repeated attempts.
#[derive(Debug, Default)]
struct Log(Mutex<Vec<String>>);

impl Watcher for Log {
    fn saw(&self, event: &Event<'_>) {
        let text = match event {
            Event::Carry { to, .. } => format!("carry {to}"),
            Event::Again { to, error, .. } => format!("again {to}: {error}"),
            _ => return,
        };
        self.0.lock().unwrap().push(text);
    }
}

pub(crate) fn local(dir: &Path) -> Arc<Local> {
    Arc::new(Local::new(dir, Links::Beneath).unwrap())
}

pub(crate) async fn put(from: &Path, remote: &Remote, to: &str) -> (Report, Vec<String>) {
    let log = Arc::new(Log::default());
    let retry = Retry { attempts: 3, first: Duration::from_millis(1), most: Duration::from_millis(2) };
    let job = Job { watcher: log.clone(), parents: true, retry, ..Job::new(local(from), Arc::new(remote.clone())) };
    let report = job.run([(Key::ROOT, tools::key(to))]).await;
    let log = std::mem::take(&mut *log.0.lock().unwrap());
    (report, log)
}

pub(crate) async fn get(remote: &Remote, from: &str, to: &Path) -> Report {
    let retry = Retry { attempts: 3, first: Duration::from_millis(1), most: Duration::from_millis(2) };
    let job = Job { retry, ..Job::new(Arc::new(remote.clone()), local(to)) };
    job.run([(tools::key(from), Key::ROOT)]).await
}

pub(crate) fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

async fn connected(serve: &Serve) -> Remote {
    let options = Options::new("ftp://serve", Endpoint::parse(&serve.addr().to_string(), None).unwrap());
    Remote::connect(options).await.unwrap()
}

#[test]
fn files_go_there_and_back_with_all_that_they_have() {
    let (serve, from, back) = (Serve::writable(), many(), tempdir().unwrap());
    runtime().block_on(async {
        let remote = connected(&serve).await;
        let (report, log) = put(from.path(), &remote, "up").await;
        assert!(report.is_complete(), "{report:?}");
        assert_eq!((report.carried as usize, log.len()), (FILES + 1, FILES + 1), "each is carried once");
        assert_eq!(seen(&serve.path("up")), seen(from.path()));
        let report = get(&remote, "up", back.path()).await;
        assert!(report.is_complete() && report.carried as usize == FILES + 1, "{report:?}");
        assert_eq!(seen(back.path()), seen(from.path()));
        // What has changed is replaced.
        fs::write(from.path().join("fé1"), "something longer").unwrap();
        let (report, log) = put(from.path(), &remote, "up").await;
        assert_eq!((report.carried, report.skipped as usize, &log[..]), (1, FILES, &["carry up/fé1".to_owned()][..]));
        assert_eq!(fs::read(serve.path("up/fé1")).unwrap(), b"something longer");
        assert!(serve.hidden().is_empty());
    });
}

#[test]
fn files_that_are_named_one_by_one_go_alone() {
    let (serve, from) = (Serve::writable(), many());
    runtime().block_on(async {
        let remote = connected(&serve).await;
        let job = Job { parents: true, ..Job::new(local(from.path()), Arc::new(remote)) };
        let names = (0..200).filter(|i| i % 3 != 0).map(|i| format!("f\u{e9}{i}"));
        let items = names.map(|name| (tools::key(&name), tools::key(&format!("up/{name}"))));
        let report = job.run(items.collect::<Vec<_>>()).await;
        assert!(report.is_complete() && report.carried == 133, "{report:?}");
    });
    assert_eq!(fs::read(serve.path("up/f\u{e9}1")).unwrap(), fs::read(from.path().join("f\u{e9}1")).unwrap());
}

#[test]
fn file_that_cannot_be_stored_is_told_and_the_others_are_stored() {
    let (serve, from, back) = (Serve::writable(), many(), tempdir().unwrap());
    runtime().block_on(async {
        let remote = connected(&serve).await;
        // A name of the server's own drafts, and a directory in the place of a file.
        fs::write(from.path().join(".x.phoebus-journal"), "no").unwrap();
        fs::create_dir_all(serve.path("up/fé1")).unwrap();
        let (report, _) = put(from.path(), &remote, "up").await;
        assert_eq!(report.carried as usize + report.failed as usize, FILES + 1, "{report:?}");
        let failed: Vec<String> = report.failures.iter().map(|(key, _)| key.to_string()).collect();
        assert_eq!(failed, ["up/fé1"]);
        // A file that vanishes between the listing and the batch.
        let vanishing = serve.path("up/sub/f 3");
        let hook = move |key: &Key| {
            if *key == tools::key("sub/f 3") {
                let _ = fs::remove_file(&vanishing);
            }
        };
        let watcher = Arc::new(Hook(hook));
        let job = Job { watcher, ..Job::new(Arc::new(remote.clone()), local(back.path())) };
        let report = job.run([(tools::key("up"), Key::ROOT)]).await;
        assert_eq!((report.failed, report.carried as usize), (1, FILES - 1), "{report:?}");
    });
}

struct Hook<F>(F);

impl<F: Fn(&Key) + Send + Sync> Watcher for Hook<F> {
    fn saw(&self, event: &Event<'_>) {
        if let Event::Carry { to, .. } = event {
            self.0(to);
        }
    }
}

impl<F> std::fmt::Debug for Hook<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Hook").finish()
    }
}

#[test]
fn links_at_the_server_stay_whether_files_go_in_batches_or_alone() {
    let (serve, from) = (Serve::writable(), tempdir().unwrap());
    // Too long for a batch, and short.
    for (name, len) in [("long", 2 << 20), ("short", 10), ("other", 20)] {
        fs::write(from.path().join(name), bytes(len)).unwrap();
        fs::write(serve.path(&format!("target-{name}")), "old").unwrap();
        std::os::unix::fs::symlink(format!("target-{name}"), serve.path(name)).unwrap();
    }
    // These two are refused however they come.
    for name in ["dangling", "pipe"] {
        fs::write(from.path().join(name), "new").unwrap();
    }
    std::os::unix::fs::symlink("nowhere", serve.path("dangling")).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, serve.path("pipe"), rustix::fs::Mode::RUSR).unwrap();
    runtime().block_on(async {
        let (report, _) = put(from.path(), &connected(&serve).await, "").await;
        assert_eq!((report.carried, report.failed), (3, 2), "{report:?}");
    });
    for (name, len) in [("long", 2 << 20), ("short", 10), ("other", 20)] {
        assert!(fs::symlink_metadata(serve.path(name)).unwrap().is_symlink(), "{name}");
        assert_eq!(fs::read(serve.path(&format!("target-{name}"))).unwrap(), bytes(len), "{name}");
    }
    assert!(!serve.path("nowhere").exists() && fs::metadata(serve.path("pipe")).unwrap().len() == 0);
    assert!(serve.hidden().is_empty());
}

#[test]
fn what_is_no_batch_is_refused() {
    let serve = Serve::writable();
    fs::write(serve.path("there"), "old").unwrap();
    let script = r#"
import zlib
root = os.path.join(os.path.dirname(dir), 'root')
def crc32c(b):
    c = 0xffffffff
    for x in b:
        c ^= x
        for _ in range(8): c = (c >> 1) ^ (0x82f63b78 if c & 1 else 0)
    return c ^ 0xffffffff
def file(path, b, flags=b'\0', crc=None):
    return b'\1' + struct.pack('>H', len(path)) + path + struct.pack('>I', len(b)) + flags + b + struct.pack('>I', crc32c(b) if crc is None else crc)
end = lambda n: b'\0' + struct.pack('>I', n)
f = login(); f.voidcmd('TYPE I')
def mput(data, kill=False):
    s = f.transfercmd('SITE MPUT')
    try: s.sendall(data)
    except OSError: pass
    if kill: reset(s)
    else: s.close()
    return answer(f)
assert mput(b'PHB1' + end(0))[:3] == '226'
assert mput(b'PHB1' + file(b'/a', b'hello') + end(1)) == '226 transfer complete'
assert open(os.path.join(root, 'a'), 'rb').read() == b'hello'
# The last of two files with one name stays, and neither waits for the other.
assert mput(b'PHB1' + file(b'/a', b'one') + file(b'/a', b'hello') + end(2)) == '226 transfer complete'
assert open(os.path.join(root, 'a'), 'rb').read() == b'hello'
# Each file has its own reply. Refused: names of drafts, names that lead out of the root, wrong bytes.
names = [b'/.x.phoebus-draft', b'/../out', b'no/slash', b'/.x.0123456789abcdef.phoebus-part', b'/nowhere/x', b'/b']
a = mput(b'PHB1' + b''.join(file(n, b'x') for n in names) + file(b'/there', b'new', crc=1) + end(7))
assert a.split('\n')[1:-1] == [' 0 553', ' 1 553', ' 2 553', ' 3 553', ' 4 550', ' 6 451'], a
assert open(os.path.join(root, 'b')).read() == 'x' and open(os.path.join(root, 'there')).read() == 'old'
assert not os.path.exists(os.path.join(os.path.dirname(root), 'out'))
wrong = [(b'', '501'), (b'PHB', '501'), (b'PHB2' + end(0), '501'), (b'PHB1', '501'), (b'PHB1' + b'\7', '501'), (b'PHB1' + end(1), '501'),
    (b'PHB1' + b'\2\2\x26' + end(1), '501'), (b'PHB1' + end(0) + b'x', '501'), (b'PHB1\1\xff\xff', '501'), (b'PHB1\1\0\1a\xff\xff\xff\xff', '501'),
    (b'PHB1' + file(b'/c', b'x', b'\x80') + end(1), '501'), (b'PHB1' + file(b'/cut', b'x'), '501'), (b'PHB1' + file(b'/cut', b'xyz')[:-2], '501')]
for data, code in wrong:
    a = mput(data)
    assert a[:3] == code, (data, a)
a = mput(b'PHB1' + file(b'/cut', b'x'), kill=True); assert a[:3] in ('426', '501'), a
assert sorted(n for n in os.listdir(root)) == ['a', 'b', 'there'], os.listdir(root)
# Getting.
refused(f, 'SITE MGET', '503')
refused(f, 'SITE WANT', '501', '500'); refused(f, 'SITE WANT a//', '501'); refused(f, 'SITE WANT ../a', '550', '553')
for i in range(8): f.sendcmd('SITE WANT ' + '//'.join(['a'] * 128))
refused(f, 'SITE WANT a', '552')
def mget():
    s = f.transfercmd('SITE MGET'); b = b''
    while True:
        more = s.recv(65536)
        if not more: break
        b += more
    s.close(); return b, answer(f)
b, a = mget(); assert a[:3] == '226' and b[:4] == b'PHB1' and b[-5:] == end(1024) and b.count(b'hello') == 1024, (a, len(b))
open(os.path.join(root, 'big'), 'wb').truncate((1 << 20) + 1); os.mkdir(os.path.join(root, 'd'))
f.sendcmd('SITE WANT nothing//d//big//b//.x.phoebus-draft')
b, a = mget(); assert a[:3] == '226' and b[4:] .startswith(b'\2' + struct.pack('>H', 550) + b'\2' + struct.pack('>H', 550) + b'\2' + struct.pack('>H', 552) + b'\1'), b
# A client that disconnects within a batch.
f.sendcmd('SITE WANT ' + '//'.join(['b'] * 128)); s = f.transfercmd('SITE MGET'); reset(s); a = answer(f); assert a[:3] in ('226', '426', '425'), a
f.sendcmd('REST 5'); refused(f, 'SITE MPUT', '504'); refused(f, 'SITE MPUT', '425')
# A refusal does not clear the list of names.
f.voidcmd('TYPE A'); refused(f, 'SITE MPUT', '504')
f.sendcmd('SITE WANT a'); refused(f, 'SITE MGET', '504'); f.voidcmd('TYPE I')
b, a = mget(); assert a[:3] == '226' and b.count(b'hello') == 1, (a, b)
"#;
    ok(&python(&serve, script));
    let reading = Serve::reading();
    ok(&python(&reading, "f = login(); f.voidcmd('TYPE I'); refused(f, 'SITE MPUT', '550')\n"));
    ok(&python(
        &reading,
        "f = ftplib.FTP(timeout=30); f.connect(host, port)\nfor c in ('WANT a', 'MGET', 'MPUT'): refused(f, 'SITE ' + c, '530')\n",
    ));
}

/// The features of a server with batches.
fn with_batches(client: &mut Client) {
    client.say(
        "211-Features\r\n CKSM ADLER32:10;\r\n MLST type*;size*;modify*;\r\n SIZE\r\n MFMT\r\n XDRAFTS\r\n XBATCH\r\n211 End",
    );
}

/// A server that answers batches in this way, and everything else correctly.
fn answers(does: impl Fn(&mut Client, &str) + Send + Sync + 'static) -> Fake {
    Fake::with(move |client, verb, argument| {
        match (verb, argument.split(' ').next()) {
            ("FEAT", _) => with_batches(client),
            ("MKD", _) => client.say("257 made"),
            ("SITE", Some(command @ ("WANT" | "MGET" | "MPUT"))) => does(client, command),
            _ => return false,
        }
        true
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_that_a_server_does_not_confirm_are_stored_alone() {
    let all: [fn(&mut Client); 6] = [
        |client| client.say("500 no"),
        |client| {
            client.say("150 go on");
            client.take();
            client.say("451 the disk is broken");
        },
        |client| {
            client.say("150 go on");
            client.take();
            client.say("226-Not stored: 3 files\r\n 0 550\r\n 1 550\r\n 2 550\r\n226 End");
        },
        |client| {
            client.say("150 go on");
            client.take();
            client.say("226-Not stored: 3 files\r\n226 End");
        },
        |client| {
            client.say("150 go on");
            drop(client.data());
            client.say("426 cut");
        },
        |client| client.hang_up(),
    ];
    for (i, does) in all.into_iter().enumerate() {
        let fake = answers(move |client, _| does(client));
        let from = tempdir().unwrap();
        for name in ["a", "b", "c"] {
            fs::write(from.path().join(name), name).unwrap();
        }
        let remote = Remote::connect(options(&fake)).await.unwrap();
        let (report, _) = put(from.path(), &remote, "up").await;
        assert!(report.is_complete(), "{i}: {report:?}");
        assert_eq!(fake.names(), ["/up/a", "/up/b", "/up/c"], "{i}");
        assert!(fake.log().iter().any(|line| line == "SITE MPUT"), "{i}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_that_never_answers_a_batch_is_given_up_in_time() {
    let fake = answers(|client, command| match command {
        "WANT" => client.say("250 wanted"),
        _ => client.say("150 go on"),
    });
    let (from, to) = (tempdir().unwrap(), tempdir().unwrap());
    fs::write(from.path().join("a"), "a").unwrap();
    fake.put("/b", b"b");
    let within = tools::within(&fake, Duration::from_millis(300));
    let remote = Remote::connect(within).await.unwrap();
    let (report, _) = put(from.path(), &remote, "up").await;
    assert!(report.is_complete(), "{report:?}");
    assert_eq!(fake.names(), ["/b", "/up/a"]);
    let report = Job::new(Arc::new(remote), local(to.path())).run([(Key::ROOT, Key::ROOT)]).await;
    assert!(to.path().join("b").exists(), "{report:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_that_a_server_sends_wrongly_are_got_alone() {
    let batch = |records: &dyn Fn(&mut Encoder)| {
        let mut encoder = Encoder::default();
        records(&mut encoder);
        encoder.end();
        encoder.take()
    };
    let sends = |bytes: &[u8], sum| {
        let (bytes, file) = (bytes.to_vec(), File { sum, ..File::default() });
        batch(&|encoder| encoder.file(&file, &bytes).unwrap())
    };
    let wrong: Vec<Vec<u8>> = vec![
        Vec::new(),
        b"rubbish".to_vec(),
        batch(&|_| {}),
        batch(&|encoder| encoder.refused(550)),
        sends(b"other", 7),
        sends(b"x", 7)[..10].to_vec(),
        [sends(b"x", 7), b"more".to_vec()].concat(),
        // Either of the two could be the requested one.
        batch(&|encoder| (0..2).for_each(|_| encoder.file(&File { sum: CRC_OF_X, ..File::default() }, b"x").unwrap())),
    ];
    for (i, bytes) in wrong.into_iter().enumerate() {
        let fake = answers(move |client, command| match command {
            "MGET" => {
                client.say("150 coming");
                let _ = client.data().write_all(&bytes);
                client.say("226 done");
            }
            _ => client.say("250 wanted"),
        });
        fake.put("/x", b"right");
        let to = tempdir().unwrap();
        let remote = Remote::connect(options(&fake)).await.unwrap();
        let report = get(&remote, "", to.path()).await;
        assert!(report.is_complete(), "{i}: {report:?}");
        assert_eq!(fs::read(to.path().join("x")).unwrap(), b"right", "{i}");
        assert!(fake.log().iter().any(|line| line == "SITE MGET"), "{i}");
    }
}
