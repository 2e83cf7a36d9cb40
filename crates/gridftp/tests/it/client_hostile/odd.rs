//! Servers that alter names, have no MLSD, or cannot resume.

use super::fake::Fake;
use super::fake::tools::{Here, bytes, get, key, on, options, put, remote, within};
use phoebus_files::key::Key;
use phoebus_files::store::{Attributes, Spec, Store, Time};
use phoebus_files::{Error, ErrorKind, TransferOptions, transfer};
use phoebus_gridftp::client::Remote;
use std::io::Write;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The names of a directory.
async fn names(remote: &Remote, dir: &Key) -> Result<Vec<String>, Error> {
    let (mut listing, mut names) = (remote.list(dir).await?, Vec::new());
    loop {
        let page = listing.more().await?;
        if page.is_empty() {
            return Ok(names);
        }
        names.extend(page.into_iter().map(|entry| String::from_utf8(entry.name).unwrap()));
    }
}

/// A server without MLSD that answers `LIST` and `LIST -a` with these listings.
fn lists(plain: &'static str, all: Option<&'static str>) -> Fake {
    let there = Mutex::new(String::new());
    Fake::with(move |client, verb, argument| {
        match (verb, argument) {
            ("FEAT", _) => client.say("211-\r\n SIZE\r\n211 End"),
            ("MLSD" | "MLST", _) => client.say("500 what?"),
            ("CWD", dir) => {
                dir.clone_into(&mut there.lock().unwrap());
                client.say("250 there");
            }
            ("LIST", "-a") if *there.lock().unwrap() != "/" && all.is_none() => client.say("550 no such path"),
            ("LIST", how) => {
                let root = *there.lock().unwrap() == "/";
                client.say("150 coming");
                let lines = match how {
                    "-a" if root => "drwxr-xr-x 2 u g 5 Nov 21 2025 .\r\n",
                    "-a" => all.unwrap_or_default(),
                    _ => plain,
                };
                client.data().write_all(lines.as_bytes()).unwrap();
                client.say("226 done");
            }
            _ => return false,
        }
        true
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_directory_is_called_empty_that_was_not_read() {
    const ONE: &str = "-rw-r--r-- 1 u g 5 Nov 21 10:00 f\r\n";
    const ALL: &str = "drwxr-xr-x 2 u g 5 Nov 21 2025 .\r\n-rw-r--r-- 1 u g 5 Nov 21 10:00 .h\r\n-rw-r--r-- 1 u g 5 Nov 21 10:00 f\r\n";
    const HIDDEN: &str = "-rw-r--r-- 1 u g 5 Nov 21 10:00 .h\r\n-rw-r--r-- 1 u g 5 Nov 21 10:00 f\r\n";
    const OTHER: &str = "-rw-r--r-- 1 u g 5 Nov 21 10:00 other\r\n";
    for (plain, all, expected) in [
        // The server takes the argument of LIST for a path: a missing one, an empty one, or one with other contents.
        (ONE, None, &["f"][..]),
        (ONE, Some(""), &["f"]),
        (ONE, Some(OTHER), &["f"]),
        // The server understands the argument.
        (ONE, Some(ALL), &[".h", "f"]),
        (ONE, Some(HIDDEN), &[".h", "f"]),
    ] {
        let fake = lists(plain, all);
        let remote = remote(&fake).await;
        for _ in 0..2 {
            assert_eq!(names(&remote, &key("d")).await.unwrap(), expected, "{all:?}");
        }
    }
    // An unreadable directory has an empty listing, where readable ones list themselves.
    let fake = lists("", Some(""));
    let error = names(&remote(&fake).await, &key("d")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_directory_is_no_file_because_it_has_a_size() {
    let fake = Fake::with(|client, verb, argument| {
        match (verb, argument) {
            ("FEAT", _) => client.say("211-\r\n SIZE\r\n211 End"),
            ("MLST", _) => client.say("502 what?"),
            ("SIZE", "/" | "/d" | "/home") => client.say("213 4096"),
            ("CWD", "/x") => client.say("550 not a directory"),
            ("MKD", _) => client.say("550 it is there"),
            _ => return false,
        }
        true
    });
    fake.put("/x", b"12345");
    let remote = remote(&fake).await;
    let kind = async |path: &str| remote.stat(&key(path)).await.unwrap().kind.described();
    assert_eq!((kind("d").await, kind("x").await), ("a directory", "a file"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_of_an_unknown_time_is_not_gone_on_with() {
    let fake = Fake::good();
    let spec = |modified| Spec { size: Some(20 << 20), source: Some(("s".to_owned(), modified)), ..Spec::default() };
    let remote = remote(&fake).await;
    for (modified, resumable) in [(None, false), (Some(Time { seconds: 1, nanos: 0 }), true)] {
        let begun = remote.create(&key("x"), spec(modified)).await.unwrap();
        let phoebus_files::store::Begun::Draft(draft) = begun else { panic!("nothing is there") };
        assert_eq!(draft.capabilities().resumable, resumable);
        draft.abandon(false).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_get_that_was_cut_ends_where_nothing_is_gone_on_with() {
    let content = bytes(24 << 20);
    let cut = AtomicBool::new(true);
    let fake = Fake::with(move |client, verb, path| {
        match verb {
            "REST" => client.say("502 not here"),
            "RETR" if cut.swap(false, Ordering::Relaxed) => {
                let some = client.files.lock().unwrap()[path][..20 << 20].to_vec();
                client.say("150 coming");
                let mut data = client.data();
                data.write_all(&some).unwrap();
                // After the draft has arrived and is recorded.
                std::thread::sleep(std::time::Duration::from_millis(300));
                client.hang_up();
            }
            _ => return false,
        }
        true
    });
    fake.put("/x", &content);
    let here = Here::new();
    let how = TransferOptions { checkpoint_bytes: 1 << 20, ..TransferOptions::default() };
    let remote = Remote::connect(options(&fake)).await.unwrap();
    let get = async || transfer(&remote, &key("x"), &here.1, &key("x"), &how).await;
    get().await.unwrap_err();
    let done = get().await.unwrap();
    assert!(here.content() == Some(content) && done.verified.is_some(), "{done:?}");
}

/// A server that puts `_` for tabs and for blanks at the end, as pure-ftpd does.
fn altering() -> Fake {
    let dirs = Mutex::new(Vec::<String>::new());
    Fake::with(move |client, verb, argument| {
        let mut named = argument.replace('\t', "_");
        if named.ends_with(' ') {
            named = format!("{}_", named.trim_end());
        }
        let mut dirs = dirs.lock().unwrap();
        match verb {
            "MKD" => {
                dirs.push(named);
                client.say("257 made");
            }
            "RMD" => {
                dirs.retain(|dir| *dir != named);
                client.say("250 gone");
            }
            "MLSD" => {
                let inside = format!("{}/", named.trim_end_matches('/'));
                let lines: String = dirs
                    .iter()
                    .filter_map(|dir| dir.strip_prefix(&inside))
                    .map(|name| format!("type=dir; {name}\r\n"))
                    .collect();
                client.say("150 coming");
                client.data().write_all(lines.as_bytes()).unwrap();
                client.say("226 done");
            }
            _ if named == argument => return false,
            _ => client.answer(verb, &named),
        }
        true
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_that_a_server_alters_are_refused() {
    let fake = altering();
    fake.put("/a_b", b"another");
    fake.put("/tail_", b"another");
    let remote = remote(&fake).await;
    for name in ["a\tb", "tail "] {
        let key = key(name);
        let sent = transfer(&Here::with(b"new").1, &self::key("x"), &remote, &key, &TransferOptions::default()).await;
        let errors = [
            sent.map(drop),
            remote.stat(&key).await.map(drop),
            remote.open(&key).await.map(drop),
            remote.remove(&key).await,
            remote.make_dir(&key).await,
            remote.rename(&key, &self::key("z"), true).await,
            remote.rename(&self::key("a_b"), &key, true).await,
            remote.set(&key, Attributes { mode: Some(0o600), modified: None }).await,
        ];
        for error in errors {
            let error = error.unwrap_err();
            assert!(error.to_string().contains("the server alters such names"), "{error}");
        }
    }
    assert_eq!(fake.names(), ["/a_b", "/tail_"]);
    assert_eq!(fake.get("/a_b").unwrap(), b"another");
    // A name that the server does not alter is accepted, and the trial file is gone.
    put(&fake, &Here::with(b"new")).await.unwrap();
    remote.make_dir(&key("\u{e9}")).await.unwrap();
    assert!(remote.list(&Key::ROOT).await.unwrap().more().await.unwrap().len() == 1, "{:?}", fake.log());
    let made = fake.log().iter().filter(|line| line.starts_with("MKD /.names")).count();
    let gone = fake.log().iter().filter(|line| line.starts_with("RMD /.names")).count();
    // A trial directory that the server has renamed is removed under its new name.
    assert!(made > 0 && gone >= made, "{:?}", fake.log());
}

/// A server without REST. A command between PASV and the data connection invalidates that port, and is answered only
/// after the next command, as by Twisted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_get_that_was_cut_begins_anew_where_nothing_else_can_be_had() {
    let content = bytes(24 << 20);
    for features in ["CKSM ADLER32:10;\r\n SIZE\r\n MDTM", "CKSM ADLER32:10;\r\n SIZE\r\n MDTM\r\n REST STREAM"] {
        let (cut, late) = (AtomicBool::new(true), AtomicBool::new(false));
        let fake = Fake::with(move |client, verb, path| {
            match verb {
                // Each control connection starts anew.
                "USER" => {
                    late.store(false, Ordering::Relaxed);
                    return false;
                }
                "FEAT" => client.say(&format!("211-\r\n {features}\r\n211 End")),
                "MLST" => client.say("502 not here"),
                "REST" => {
                    late.store(true, Ordering::Relaxed);
                    client.listener = None;
                    client.say("425 nobody came");
                }
                "RETR" if late.swap(false, Ordering::Relaxed) => client.say("502 Command 'REST' not implemented"),
                "RETR" if cut.swap(false, Ordering::Relaxed) => {
                    let some = client.files.lock().unwrap()[path][..20 << 20].to_vec();
                    client.say("150 coming");
                    client.data().write_all(&some).unwrap();
                    std::thread::sleep(std::time::Duration::from_millis(300));
                    client.hang_up();
                }
                _ => return false,
            }
            true
        });
        fake.put("/x", &content);
        let (here, how) = (Here::new(), TransferOptions { checkpoint_bytes: 1 << 20, ..TransferOptions::default() });
        let remote = Remote::connect(options(&fake)).await.unwrap();
        let get = async || transfer(&remote, &key("x"), &here.1, &key("x"), &how).await;
        get().await.unwrap_err();
        get().await.unwrap();
        assert!(here.content() == Some(content.clone()), "{features}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn times_of_directories_that_a_server_refuses_are_counted() {
    let fake = Fake::with(|client, verb, argument| {
        match (verb, argument) {
            ("MFMT", _) => client.say("550 it is not retrievable"),
            ("MLST", "/d") => client.say("250-Listing\r\n type=dir; /d\r\n250 End"),
            _ => return false,
        }
        true
    });
    fake.put("/x", b"x");
    let remote = remote(&fake).await;
    let time = Attributes { mode: None, modified: Some(Time { seconds: 1_500_000_000, nanos: 0 }) };
    remote.set(&key("d"), time).await.unwrap();
    assert_eq!(remote.without_times(), (1, vec!["ftp://fake/d".to_owned()]));
    remote.set(&key("x"), time).await.unwrap_err();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_kept_of_a_file_that_is_gone() {
    let content = bytes(20 << 20);
    let fake = on("RETR", |client, path| {
        client.answer("RETR", path);
        client.files.lock().unwrap().remove(path);
    });
    fake.put("/x", &content);
    let here = Here::new();
    let error = get(&fake, &here, None).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    let left: Vec<_> = std::fs::read_dir(here.0.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_always_says_that_it_answers_soon_is_not_waited_for() {
    const LIMIT: Duration = Duration::from_secs(1);
    let soon = |mine: &'static str| {
        Fake::with(move |client, verb, _| {
            if verb != mine {
                return false;
            }
            for _ in 0..200 {
                client.say("120 soon");
                std::thread::sleep(LIMIT / 20);
            }
            false
        })
    };
    for verb in ["", "USER", "PWD"] {
        let error = Remote::connect(within(&soon(verb), LIMIT)).await.map(drop).unwrap_err();
        assert!(error.may_pass(), "{verb}: {error}");
    }
    // This is not a command that keeps servers busy for long.
    let fake = soon("MLST");
    fake.put("/x", b"bytes");
    let remote = Remote::connect(within(&fake, LIMIT)).await.unwrap();
    assert!(remote.stat(&key("x")).await.is_err_and(|error| error.may_pass()));
}
