//! Many short files by pipelined commands over a kept data connection, with the toolkit's server and with servers that
//! misbehave.

use crate::batches::{FILES, get, local, many, put, runtime, seen};
use crate::fake::{Client, Fake, tools};
use crate::support::gct::Gct;
use phoebus_files::job::Job;
use phoebus_files::key::Key;
use phoebus_gridftp::client::{Options, Remote};
use phoebus_proto::endpoint::Endpoint;
use std::collections::{BTreeMap, HashMap};
use std::fs::{self, Permissions};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tempfile::tempdir;

async fn connected(gct: &Gct) -> Remote {
    let server = Endpoint::parse(&format!("127.0.0.1:{}", gct.port), None).unwrap();
    Remote::connect(Options::new("ftp://gct", server)).await.unwrap()
}

fn names_in(dir: &Path) -> Vec<String> {
    let names = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned());
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

/// Files without names that GCT alters.
fn many_plain() -> tempfile::TempDir {
    let from = many();
    for name in names_in(from.path()).iter().filter(|name| !name.is_ascii()) {
        fs::rename(from.path().join(name), from.path().join(name.replace('\u{e9}', "e"))).unwrap();
    }
    fs::set_permissions(from.path().join("fe1"), Permissions::from_mode(0o600)).unwrap();
    fs::set_permissions(from.path().join("fe2"), Permissions::from_mode(0o200)).unwrap();
    from
}

#[test]
fn gct_server_takes_and_sends_files_with_all_that_they_have() {
    let (gct, from, there, back) = (Gct::anonymous(), many_plain(), tempdir().unwrap(), tempdir().unwrap());
    let up = there.path().join("up");
    let to = up.display().to_string();
    let to = to.trim_start_matches('/');
    runtime().block_on(async {
        let remote = connected(&gct).await;
        let (report, log) = put(from.path(), &remote, to).await;
        assert!(report.is_complete(), "{report:?}");
        assert_eq!((report.carried as usize, log.len()), (FILES + 1, FILES + 1), "each is carried once");
        assert_eq!(seen(&up), seen(from.path()));
        let report = get(&remote, to, back.path()).await;
        assert!(report.is_complete() && report.carried as usize == FILES + 1, "{report:?}");
        assert_eq!(seen(back.path()), seen(from.path()));
        // A changed file is replaced. A failure is reported, and leaves nothing.
        fs::write(from.path().join("fe1"), "changed now").unwrap();
        fs::write(from.path().join("fe4"), "changed too").unwrap();
        fs::remove_file(up.join("fe4")).unwrap();
        fs::create_dir_all(up.join("fe4/full")).unwrap();
        let (report, _) = put(from.path(), &remote, to).await;
        assert_eq!((report.carried, report.failed), (1, 1), "{report:?}");
        assert_eq!(fs::read(up.join("fe1")).unwrap(), b"changed now");
        assert!(names_in(&up).iter().all(|name| !name.starts_with('.')), "{:?}", names_in(&up));
    });
}

/// Deviations of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Quirk {
    None,
    /// The second STOR is refused, and its bytes are the next file's.
    RefusesSecondStore,
    /// The data connection is closed after each file.
    ClosesAfterEach,
    /// The first checksum is another one.
    WrongSum,
    /// The control connection ends at the second RNTO, twice: fewer times than a file is tried.
    EndsAtSecondName,
    /// The second RNFR of a connection is refused, once, and RNTO then renames the file before.
    RefusesSecondRename,
    /// CHMOD is refused the first time.
    RefusesFirstMode,
    /// Nothing happens from the second STOR on.
    Stops,
    /// The second RETR is refused.
    RefusesSecondRetrieve,
    /// The second file comes first.
    SendsSecondFirst,
    /// The server cannot connect for RETR.
    NeverConnects,
    /// Nothing is answered from the first STOR or RETR on.
    Mute,
    /// Only preliminary replies follow the first STOR or RETR.
    Babbles,
    /// More data follow after the end of a file.
    SendsMore,
}

/// What a server knows of a client.
#[derive(Debug, Default)]
struct Channel {
    is_extended: bool,
    kept: Option<TcpStream>,
    stores: usize,
    retrievals: usize,
    sums: usize,
    names: usize,
    renames: usize,
    modes: usize,
    /// Whether a rename was refused: on this connection just now, and on any.
    refuses: bool,
    has_refused: bool,
    /// How many connections were ended.
    ended: usize,
}

const END: u8 = 8 | 64;

fn header(flags: u8, count: u64, offset: u64) -> Vec<u8> {
    [&[flags][..], &count.to_be_bytes(), &offset.to_be_bytes()].concat()
}

/// Reads a file. `None` if the connection ends first.
fn read_file(from: &mut TcpStream) -> Option<Vec<u8>> {
    let mut all = Vec::new();
    loop {
        let mut header = [0; 17];
        from.read_exact(&mut header).ok()?;
        let mut body = vec![0; u64::from_be_bytes(header[1..9].try_into().unwrap()) as usize];
        from.read_exact(&mut body).ok()?;
        all.extend(body);
        if header[0] & 8 != 0 {
            return Some(all);
        }
    }
}

fn sent(content: &[u8]) -> Vec<u8> {
    [header(0, content.len() as u64, 0), content.to_vec(), header(END, 0, 1)].concat()
}

/// A server that keeps data connections.
fn keeping(quirk: Quirk) -> Fake {
    let channels: Arc<Mutex<HashMap<usize, Channel>>> = Arc::default();
    let (has_refused, ended) = (AtomicBool::new(false), AtomicUsize::new(0));
    Fake::with(move |client, verb, argument| {
        let id = std::ptr::from_ref::<Client>(client).addr();
        let mut channel = channels.lock().unwrap().remove(&id).unwrap_or_default();
        channel.has_refused = has_refused.load(Ordering::Relaxed);
        channel.ended = ended.load(Ordering::Relaxed);
        let is_done = answer(quirk, &mut channel, client, verb, argument);
        ended.fetch_max(channel.ended, Ordering::Relaxed);
        has_refused.fetch_or(channel.refuses, Ordering::Relaxed);
        // A client may connect in place of an earlier one.
        if verb != "QUIT" {
            channels.lock().unwrap().insert(id, channel);
        }
        is_done
    })
}

fn answer(quirk: Quirk, channel: &mut Channel, client: &mut Client, verb: &str, argument: &str) -> bool {
    let is_first = channel.stores + channel.retrievals == 0;
    match verb {
        "" => {
            *channel = Channel::default();
            return false;
        }
        "FEAT" => client.say(
            "211-Features\r\n CKSM ADLER32:10;\r\n MLST type*;size*;modify*;\r\n SIZE\r\n MFMT\r\n PARALLEL\r\n SPAS\r\n211 End",
        ),
        "MODE" => {
            (channel.is_extended, channel.kept) = (argument == "E", None);
            client.say("200 ok");
        }
        "EPSV" | "PASV" | "PORT" => {
            channel.kept = None;
            return false;
        }
        "MKD" => client.say("257 made"),
        "STOR" | "RETR" if channel.is_extended && is_first && quirk == Quirk::Mute => client.mute = true,
        "STOR" | "RETR" if channel.is_extended && is_first && quirk == Quirk::Babbles => {
            for _ in 0..200 {
                client.say("112-Perf Marker\r\n Timestamp: 1\r\n112 End");
                std::thread::sleep(Duration::from_millis(10));
            }
            client.mute = true;
        }
        "STOR" if channel.is_extended => {
            channel.stores += 1;
            if channel.stores == 2 && quirk == Quirk::Stops {
                client.say("150 go on");
                while !client.has_gone(Duration::from_secs(20)) {}
                client.hang_up();
                return true;
            }
            if channel.stores == 2 && quirk == Quirk::RefusesSecondStore {
                client.say("550 not this one");
                return true;
            }
            client.say("150 go on");
            let mut data = channel.kept.take().unwrap_or_else(|| client.data());
            match read_file(&mut data) {
                Some(content) => {
                    client.store(argument, &content);
                    client.say("226 done");
                }
                None => client.say("426 cut"),
            }
            channel.kept = Some(data).filter(|_| quirk != Quirk::ClosesAfterEach);
            if channel.kept.is_none() {
                // The port of PASV is closed.
                client.listener = Some(std::net::TcpListener::bind("127.0.0.1:0").unwrap());
            }
        }
        "RETR" if channel.is_extended => {
            channel.retrievals += 1;
            let mut content = client.files.lock().unwrap().get(argument).cloned().unwrap_or_default();
            if channel.retrievals == 2 && quirk == Quirk::RefusesSecondRetrieve {
                client.say("550 not this one");
                return true;
            }
            client.say("150 coming");
            if quirk == Quirk::NeverConnects {
                client.say("425 cannot connect");
                return true;
            }
            if quirk == Quirk::SendsSecondFirst && channel.retrievals == 1 {
                content = client.files.lock().unwrap().values().nth(1).cloned().unwrap_or_default();
            }
            let mut data = channel.kept.take().unwrap_or_else(|| client.data());
            let _ = data.write_all(&sent(&content));
            if quirk == Quirk::SendsMore {
                let _ = data.write_all(b"rubbish that is no header of a block");
            }
            client.say("226 done");
            channel.kept = Some(data).filter(|_| quirk != Quirk::ClosesAfterEach);
        }
        "CKSM" => {
            channel.sums += 1;
            if channel.sums == 1 && quirk == Quirk::WrongSum {
                client.say("213 00000001");
                return true;
            }
            return false;
        }
        "RNFR" => {
            channel.renames += 1;
            if channel.renames == 2 && quirk == Quirk::RefusesSecondRename && !channel.has_refused {
                channel.refuses = true;
                client.say("550 not this one");
                return true;
            }
            return false;
        }
        "SITE" if argument.starts_with("CHMOD") => {
            channel.modes += 1;
            client.say(if channel.modes == 1 && quirk == Quirk::RefusesFirstMode { "550 no" } else { "200 ok" });
        }
        "RNTO" if std::mem::take(&mut channel.refuses) => {
            let content = client.files.lock().unwrap().values().next().cloned().unwrap_or_default();
            client.store(argument, &content);
            client.say("250 done");
        }
        "RNTO" => {
            channel.names += 1;
            if channel.names == 2 && quirk == Quirk::EndsAtSecondName && channel.ended < 2 {
                channel.ended += 1;
                client.hang_up();
                return true;
            }
            return false;
        }
        _ => return false,
    }
    true
}

fn contents() -> BTreeMap<String, Vec<u8>> {
    (0..5).map(|i| (format!("f{i}"), tools::bytes(i * 700))).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_are_stored_right_whatever_the_server_does() {
    for quirk in [
        Quirk::None,
        Quirk::RefusesSecondStore,
        Quirk::ClosesAfterEach,
        Quirk::WrongSum,
        Quirk::EndsAtSecondName,
        Quirk::RefusesSecondRename,
        Quirk::Mute,
        Quirk::Babbles,
    ] {
        let (fake, from) = (keeping(quirk), tempdir().unwrap());
        for (name, content) in contents() {
            fs::write(from.path().join(name), content).unwrap();
        }
        let limit = match quirk {
            Quirk::Mute | Quirk::Babbles => 200,
            Quirk::ClosesAfterEach => 1000,
            _ => 20_000,
        };
        let remote = Remote::connect(tools::within(&fake, Duration::from_millis(limit))).await.unwrap();
        let (report, _) = put(from.path(), &remote, "up").await;
        assert!(report.is_complete(), "{quirk:?}: {report:?}");
        let there: BTreeMap<String, Vec<u8>> = fake.files.lock().unwrap().clone();
        let expected: BTreeMap<_, _> =
            contents().into_iter().map(|(name, content)| (format!("/up/{name}"), content)).collect();
        assert_eq!(there, expected, "{quirk:?}");
        let log = fake.log();
        let count = |verb: &str| log.iter().filter(|line| line.starts_with(verb)).count();
        if quirk == Quirk::None {
            // One further connection is for the next listing.
            assert!(count("STOR") == 5 && count("EPSV") <= 3, "one connection for many: {log:?}");
            // STOR over the draft of a killed run would leave that draft's permissions.
            let modes = log.iter().filter(|line| line.starts_with("SITE CHMOD") && line.ends_with("phoebus-part"));
            assert_eq!(modes.count(), 5, "{log:?}");
        }
        assert!(log.iter().any(|line| line == "MODE E"), "{quirk:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn private_files_are_private_before_their_first_byte() {
    for quirk in [Quirk::None, Quirk::RefusesFirstMode] {
        let (fake, from) = (keeping(quirk), tempdir().unwrap());
        for (name, content) in contents() {
            let path = from.path().join(name);
            fs::write(&path, content).unwrap();
            fs::set_permissions(path, Permissions::from_mode(0o600)).unwrap();
        }
        let remote = Remote::connect(tools::options(&fake)).await.unwrap();
        let (report, _) = put(from.path(), &remote, "up").await;
        assert!(report.is_complete(), "{report:?}");
        let log = fake.log();
        for part in log.iter().filter_map(|line| line.strip_prefix("SITE CHMOD 600 ")) {
            let of_it: Vec<&str> =
                log.iter().filter(|line| line.ends_with(part)).filter_map(|line| line.split(' ').next()).collect();
            // Empty, private, and with its content unless that was refused.
            let refused = of_it.iter().filter(|verb| **verb == "STOR").count() == 1;
            assert!(of_it.starts_with(&["STOR"]) && (!refused || quirk == Quirk::RefusesFirstMode), "{of_it:?}");
            let first = log.iter().position(|line| *line == format!("SITE CHMOD 600 {part}")).unwrap();
            let stores = log.iter().enumerate().filter(|(_, line)| **line == format!("STOR {part}"));
            assert!(stores.map(|(at, _)| at).nth(1).is_none_or(|second| second > first), "{log:?}");
        }
        assert!(fake.names().iter().all(|name| !name.ends_with("phoebus-part")), "{:?}", fake.names());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stopped_batch_leaves_no_drafts() {
    let (fake, from) = (keeping(Quirk::Stops), tempdir().unwrap());
    for (name, content) in contents() {
        fs::write(from.path().join(name), content).unwrap();
    }
    let remote = Remote::connect(tools::options(&fake)).await.unwrap();
    let job = Job { parents: true, ..Job::new(local(from.path()), Arc::new(remote)) };
    let stop = job.how.stop.clone();
    let stores = || fake.log().iter().filter(|line| line.starts_with("STOR")).count();
    let asked = async {
        while stores() < 2 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        stop.ask();
    };
    let (report, ()) = tokio::join!(job.run([(Key::ROOT, tools::key("up"))]), asked);
    assert!(!report.is_complete(), "{report:?}");
    let left: Vec<String> = fake.names().into_iter().filter(|name| name.ends_with("phoebus-part")).collect();
    assert_eq!(left, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_are_retrieved_right_whatever_the_server_does() {
    for quirk in [
        Quirk::None,
        Quirk::RefusesSecondRetrieve,
        Quirk::ClosesAfterEach,
        Quirk::WrongSum,
        Quirk::SendsSecondFirst,
        Quirk::Mute,
        Quirk::Babbles,
        Quirk::SendsMore,
    ] {
        let (fake, to) = (keeping(quirk), tempdir().unwrap());
        for (name, content) in contents() {
            fake.put(&format!("/{name}"), &content);
        }
        let limit = match quirk {
            Quirk::Mute | Quirk::Babbles => 200,
            Quirk::ClosesAfterEach => 1000,
            _ => 20_000,
        };
        let remote = Remote::connect(tools::within(&fake, Duration::from_millis(limit))).await.unwrap();
        let report = get(&remote, "", to.path()).await;
        assert!(report.is_complete(), "{quirk:?}: {report:?}");
        for (name, content) in contents() {
            assert_eq!(fs::read(to.path().join(&name)).unwrap(), content, "{quirk:?} {name}");
        }
        let log = fake.log();
        assert!(log.iter().any(|line| line == "MODE E"), "{quirk:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_data_connection_carries_many_files() {
    const FILES: usize = 60;
    let (fake, to) = (keeping(Quirk::None), tempdir().unwrap());
    for i in 0..FILES {
        fake.put(&format!("/f{i}"), b"x");
    }
    let remote = Remote::connect(tools::options(&fake)).await.unwrap();
    let report = get(&remote, "", to.path()).await;
    assert!(report.is_complete() && names_in(to.path()).len() == FILES, "{report:?}");
    let log = fake.log();
    let count = |verb: &str| log.iter().filter(|line| line.starts_with(verb)).count();
    // Files are requested as they are found, so a connection may run out of them. On a busy machine that happens more often.
    eprintln!("{} connections for {FILES} files", count("PORT"));
    assert!(count("RETR") == FILES && count("PORT") <= FILES / 2, "{log:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_that_does_not_reach_this_end_is_asked_once() {
    let (fake, to) = (keeping(Quirk::NeverConnects), tempdir().unwrap());
    for i in 0..5 {
        fake.put(&format!("/f{i}"), b"x");
    }
    let remote = Remote::connect(tools::options(&fake)).await.unwrap();
    let attempts = || fake.log().iter().filter(|line| line.starts_with("PORT")).count();
    let mut first = 0;
    for run in 0..2 {
        let job = Job::new(Arc::new(remote.clone()), local(to.path()));
        let report = job.run([(Key::ROOT, Key::ROOT)]).await;
        assert!(report.is_complete() && report.carried == 5, "{report:?}");
        for name in names_in(to.path()) {
            fs::remove_file(to.path().join(name)).unwrap();
        }
        if run == 0 {
            first = attempts();
        }
    }
    assert!(first > 0 && attempts() == first, "{first} and then {}", attempts());
}
