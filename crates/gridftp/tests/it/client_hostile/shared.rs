//! Servers on which other users may access drafts, because of the permissions of files or of the directory for drafts.

use super::fake::tools::{Here, key, options};
use super::fake::{Client, Fake};
use phoebus_files::store::{Attributes, Kind, Store};
use phoebus_files::{Done, Error, ErrorKind, TransferOptions, transfer};
use phoebus_gridftp::client::{Options, Remote};
use std::fs::{Permissions, set_permissions};
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// Sends a file of this mode, with drafts in a directory of their own, without preserving modes.
async fn send(fake: &Fake, mode: u32) -> Result<Done, Error> {
    send_all(fake, b"bytes", mode).await
}

async fn send_all(fake: &Fake, content: &[u8], mode: u32) -> Result<Done, Error> {
    let here = Here::with(content);
    set_permissions(here.0.path().join("x"), Permissions::from_mode(mode)).unwrap();
    let mut options = options(fake);
    options.partial_dir = Some(key(".partial"));
    let remote = Remote::connect(options).await.unwrap();
    transfer(&here.1, &key("x"), &remote, &key("x"), &TransferOptions { modes: false, ..TransferOptions::default() })
        .await
}

/// The position of the first command that begins with `begin`.
fn first(log: &[String], begin: &str) -> Option<usize> {
    log.iter().position(|line| line.starts_with(begin))
}

/// A server that already has the directory for drafts, with these facts. `twist` may answer a command itself.
fn with_dir(facts: &'static str, twist: fn(&mut Client, &str) -> bool) -> Fake {
    Fake::with(move |client, verb, argument| {
        match (verb, argument) {
            ("MKD", _) => client.say("550 exists"),
            ("MLST", "/.partial") => client.say(&format!("250-Listing\r\n {facts} /.partial\r\n250 End")),
            _ => return twist(client, verb),
        }
        true
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_private_is_private_there() {
    for (mode, closed) in [(0o600, true), (0o640, true), (0o644, false)] {
        let fake = Fake::with(|client, verb, _| {
            let made = verb == "MKD";
            if made {
                client.say("257 made");
            }
            made
        });
        send(&fake, mode).await.unwrap();
        let log = fake.log();
        assert!(log.contains(&"SITE CHMOD 700 /.partial".to_owned()), "{log:?}");
        let set = log.iter().any(|line| line.starts_with(&format!("SITE CHMOD {mode:03o} /.partial/.x.")));
        assert_eq!(set, closed, "{mode:o} {log:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_private_is_so_before_anything_else_is_done_to_it() {
    // A checksum of a long file takes time, during which the client may be killed.
    for len in [5, 2 << 20] {
        for refuses in [false, true] {
            let fake = Fake::with(move |client, verb, argument| {
                let refused = refuses && verb == "SITE" && argument.starts_with("CHMOD");
                match verb {
                    "MKD" => client.say("257 made"),
                    _ if refused => client.say("502 not here"),
                    _ => return false,
                }
                true
            });
            send_all(&fake, &vec![7; len], 0o600).await.unwrap();
            let log = fake.log();
            let next = |command| first(&log, command).unwrap_or_else(|| panic!("no {command}: {log:?}"));
            let stored = next("STOR /.partial/.x.");
            let sum = next("CKSM");
            assert!(stored < sum && sum < next("MFMT") && sum < next("RNFR"), "{log:?}");
            let set = next("SITE CHMOD 600 /.partial/.x.");
            assert!(stored < set && set < sum, "{log:?}");
            assert_eq!(fake.names(), ["/x"]);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_nobody_may_read_is_its_owners_until_it_has_its_checksum() {
    for (mode, meanwhile) in [("000", "400"), ("111", "511")] {
        let fake = Fake::with(|_, _, _| false);
        let here = Here::with(b"bytes");
        let bits = u32::from_str_radix(mode, 8).unwrap();
        set_permissions(here.0.path().join("x"), Permissions::from_mode(bits)).unwrap();
        let is_read = std::fs::read(here.0.path().join("x")).is_ok();
        let remote = Remote::connect(options(&fake)).await.unwrap();
        let done = transfer(&here.1, &key("x"), &remote, &key("x"), &TransferOptions::default()).await;
        // Only root can read it.
        if !is_read {
            assert!(done.is_err() && fake.names().is_empty(), "{:?}", fake.names());
            continue;
        }
        done.unwrap();
        let log = fake.log();
        let next = |command: &str| first(&log, command).unwrap_or_else(|| panic!("no {command}: {log:?}"));
        let (sum, set) = (next("CKSM"), next(&format!("SITE CHMOD {mode} /.x.")));
        assert!(next(&format!("SITE CHMOD {meanwhile} /.x.")) < sum && sum < set && set < next("RNFR"), "{log:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_written_in_place_is_private_before_its_first_byte() {
    // Our own server is asked for an empty file first; others as soon as they reply that they begin.
    for ours in [true, false] {
        for modes in [false, true] {
            let seen = Arc::new(Mutex::new(Vec::new()));
            let noted = seen.clone();
            let fake = Fake::with(move |client, verb, argument| {
                match verb {
                    "FEAT" if ours => {
                        client.say("211-Features\r\n XDRAFTS\r\n CKSM ADLER32:10;\r\n MLST type*;size*;modify*;\r\n SIZE\r\n MFMT\r\n211 End")
                    }
                    "SITE" => {
                        let len = client.files.lock().unwrap().get("/x").map_or(0, Vec::len);
                        noted.lock().unwrap().push((argument.to_owned(), len));
                        client.say("200 done");
                    }
                    _ => return false,
                }
                true
            });
            let here = Here::with(b"bytes");
            set_permissions(here.0.path().join("x"), Permissions::from_mode(0o640)).unwrap();
            let remote = Remote::connect(Options { in_place: true, ..options(&fake) }).await.unwrap();
            transfer(&here.1, &key("x"), &remote, &key("x"), &TransferOptions { modes, ..TransferOptions::default() })
                .await
                .unwrap();
            let seen = seen.lock().unwrap();
            let expected = [("CHMOD 600 /x".to_owned(), 0), ("CHMOD 640 /x".to_owned(), 5)];
            assert_eq!(*seen, expected, "{ours} {modes} {:?}", fake.log());
        }
    }
}

/// The permissions that were set, and the size of the file at that time.
pub(super) type Noted = Arc<Mutex<Vec<(String, usize)>>>;

/// A server that notes each `SITE CHMOD` and the size of the file at that time. It reports these facts of files, and
/// may refuse to send them elsewhere.
pub(super) fn noting_modes(facts: &'static str, refuses: bool) -> (Fake, Noted) {
    let seen = Noted::default();
    let noted = seen.clone();
    let fake = Fake::with(move |client, verb, argument| {
        let len = |name: &str| client.files.lock().unwrap().get(name).map(Vec::len);
        match verb {
            "SITE" => {
                let (set, name) = argument.rsplit_once(' ').unwrap();
                noted.lock().unwrap().push((set.to_owned(), len(name).unwrap_or(0)));
                client.say("200 done");
            }
            "PORT" if refuses => client.say("500 to nobody else"),
            "MLST" if len(argument).is_some() => {
                client.say(&format!(
                    "250-Listing\r\n type=file;size={};{facts} {argument}\r\n250 End",
                    len(argument).unwrap()
                ));
            }
            _ => return false,
        }
        true
    });
    (fake, seen)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn drafts_are_private_before_their_first_byte() {
    for (mode, expected) in [(0o640, &[("CHMOD 600", 0), ("CHMOD 640", 5)][..]), (0o644, &[("CHMOD 644", 5)])] {
        let (fake, seen) = noting_modes("", false);
        let here = Here::with(b"bytes");
        set_permissions(here.0.path().join("x"), Permissions::from_mode(mode)).unwrap();
        let remote = Remote::connect(options(&fake)).await.unwrap();
        transfer(&here.1, &key("x"), &remote, &key("x"), &TransferOptions::default()).await.unwrap();
        let seen: Vec<_> = seen.lock().unwrap().iter().map(|(set, len)| (set.clone(), *len)).collect();
        assert!(seen.iter().map(|(set, len)| (&**set, *len)).eq(expected.iter().copied()), "{seen:?} {:?}", fake.log());
    }
}

/// Sets only the mode of `name`.
async fn set_mode(remote: &Remote, name: &str, mode: u32) -> Result<(), Error> {
    remote.set(&key(name), Attributes { mode: Some(mode), modified: None }).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_whose_mode_is_refused_leaves_the_others_private() {
    // The directory and the file `other` belong to another user.
    for refusal in
        ["550 Operation not permitted", "500 Command failed. : System error in chmod: Operation not permitted"]
    {
        let seen = Noted::default();
        let noted = seen.clone();
        let fake = Fake::with(move |client, verb, argument| {
            match (verb, argument) {
                ("MLST", "/d") => client.say("250-Listing\r\n type=dir; /d\r\n250 End"),
                ("SITE", _) => {
                    let (set, name) = argument.rsplit_once(' ').unwrap();
                    if matches!(name, "/d" | "/other") {
                        client.say(refusal);
                        return true;
                    }
                    let len = client.files.lock().unwrap().get(name).map_or(0, Vec::len);
                    noted.lock().unwrap().push((set.to_owned(), len));
                    client.say("200 done");
                }
                _ => return false,
            }
            true
        });
        fake.put("/other", b"else");
        let here = Here::with(b"bytes");
        set_permissions(here.0.path().join("x"), Permissions::from_mode(0o640)).unwrap();
        let remote = Remote::connect(options(&fake)).await.unwrap();
        // The mode of a directory is set twice: before anything is copied into it, and at the end.
        for _ in 0..2 {
            set_mode(&remote, "d", 0o700).await.unwrap();
        }
        let error = set_mode(&remote, "other", 0o600).await.unwrap_err();
        assert!(error.kind() == ErrorKind::Denied && error.to_string().contains("the mode of"), "{error}");
        transfer(&here.1, &key("x"), &remote, &key("d/x"), &TransferOptions::default()).await.unwrap();
        let expected = [("CHMOD 600".to_owned(), 0), ("CHMOD 640".to_owned(), 5)];
        assert_eq!(*seen.lock().unwrap(), expected, "{:?}", fake.log());
        assert!(remote.sets_modes());
        assert_eq!(remote.without_modes(), (1, vec!["ftp://fake/d".to_owned()]));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mode_that_is_refused_for_now_is_asked_for_once_more() {
    for (refusals, fails) in [(1, false), (2, true)] {
        let asked = Arc::new(AtomicUsize::new(0));
        let count = asked.clone();
        let fake = Fake::with(move |client, verb, argument| {
            // The final mode.
            let refuses =
                verb == "SITE" && argument.starts_with("CHMOD 640") && count.fetch_add(1, Ordering::Relaxed) < refusals;
            if refuses {
                client.say("450 busy");
            }
            refuses
        });
        let here = Here::with(b"bytes");
        set_permissions(here.0.path().join("x"), Permissions::from_mode(0o640)).unwrap();
        let remote = Remote::connect(options(&fake)).await.unwrap();
        let done = transfer(&here.1, &key("x"), &remote, &key("x"), &TransferOptions::default()).await;
        assert_eq!(done.as_ref().is_err_and(|error| error.kind() == ErrorKind::Passing), fails, "{done:?}");
        assert_eq!((fake.get("/x").is_some(), remote.sets_modes()), (!fails, true), "{:?}", fake.log());
        assert_eq!((asked.load(Ordering::Relaxed), remote.without_modes().0), (2, 0));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_another_server_sends_is_private_before_its_first_byte() {
    for (in_place, refuses) in [(true, false), (false, false), (true, true), (false, true)] {
        let (from, _) = noting_modes("UNIX.mode=0600;", refuses);
        let (to, seen) = noting_modes("", false);
        from.put("/x", b"bytes");
        let source = Remote::connect(options(&from)).await.unwrap();
        let dest = Remote::connect(Options { in_place, ..options(&to) }).await.unwrap();
        transfer(&source, &key("x"), &dest, &key("x"), &TransferOptions::default()).await.unwrap();
        assert!(from.log().iter().any(|line| line.starts_with("PORT ")), "{:?}", from.log());
        // A file that cannot be sent directly is copied through this end, as a new file.
        let first = ("CHMOD 600".to_owned(), 0);
        let expected = [first.clone(), first, ("CHMOD 600".to_owned(), 5)];
        assert_eq!(seen.lock().unwrap()[..], expected[usize::from(!refuses)..], "{in_place} {:?}", to.log());
        assert_eq!((to.names(), to.get("/x")), (vec!["/x".to_owned()], Some(b"bytes".to_vec())));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_was_there_keeps_its_mode() {
    // With the mode from MLST, or from STAT.
    for facts in [true, false] {
        for (there, source, set) in [(0o600, 0o644, "600"), (0o640, 0o600, "600"), (0o755, 0o644, "755")] {
            let letters = match there {
                0o600 => "-rw-------",
                0o640 => "-rw-r-----",
                _ => "-rwxr-xr-x",
            };
            let fake = Fake::with(move |client, verb, argument| {
                match (verb, argument) {
                    ("MKD", _) => client.say("257 made"),
                    ("FEAT", _) if !facts => {
                        client.say("211-Features\r\n CKSM ADLER32:10;\r\n SIZE\r\n MFMT\r\n211 End")
                    }
                    ("MLST", "/x") => {
                        client.say(&format!("250-Listing\r\n type=file;size=1;UNIX.mode=0{there:o}; /x\r\n250 End"));
                    }
                    ("STAT", "/x") => {
                        client.say(&format!("213-Status\r\n{letters}    1 0        0     1 Nov 21 10:00 x\r\n213 End"));
                    }
                    _ => return false,
                }
                true
            });
            fake.put("/x", b"a");
            send(&fake, source).await.unwrap();
            let log = fake.log();
            assert!(first(&log, &format!("SITE CHMOD {set} /.partial/.x.")).is_some(), "{there:o} {source:o} {log:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn drafts_are_in_no_directory_where_others_may_write() {
    for facts in ["type=dir;UNIX.mode=0777;", "type=dir;UNIX.mode=0775;", "type=file;size=1;"] {
        let fake = with_dir(facts, |_, _| false);
        let error = send(&fake, 0o644).await.unwrap_err();
        assert!(error.kind() == ErrorKind::Denied && error.to_string().contains("drafts cannot be there"), "{error}");
        assert!(!fake.log().iter().any(|line| line.starts_with("STOR")));
    }
    let fake = with_dir("type=dir;UNIX.mode=0700;", |_, _| false);
    send(&fake, 0o644).await.unwrap();
    assert_eq!(Remote::connect(options(&fake)).await.unwrap().stat(&key("x")).await.unwrap().kind, Kind::File);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_exchanged_before_it_got_its_name_is_no_success() {
    let fake = with_dir("type=dir;", |client, verb| {
        if verb == "RNFR" {
            client.files.lock().unwrap().values_mut().for_each(|bytes| *bytes = b"ATTACK".to_vec());
        }
        false
    });
    let error = send(&fake, 0o644).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Verification, "{error}");
}
