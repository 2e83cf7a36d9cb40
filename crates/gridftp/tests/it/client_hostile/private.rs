//! Servers on which a file cannot be made private during its transfer, and copies between servers.

use super::fake::Fake;
use super::fake::tools::{Here, key, on, options, put};
use super::shared::{Noted, noting_modes};
use phoebus_files::block::Block;
use phoebus_files::range::{Extent, Ranges};
use phoebus_files::store::{Begun, Fallible, Flow, Spec, Store};
use phoebus_files::{Error, ErrorKind, TransferOptions, transfer};
use phoebus_gridftp::client::{Options, Remote};
use std::fs::{Permissions, set_permissions};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Short, because the tests wait for silence.
const SHORT: Duration = Duration::from_millis(100);

/// Prevents the client from setting permissions during a transfer.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Without {
    /// A second login is not answered.
    Login,
    /// A second login is refused.
    Place,
    /// The reply 150 comes only after the file's first byte.
    Begin,
    /// The reply 150 never comes.
    Word,
    /// The file appears only when it is complete.
    File,
}

/// The permissions that were set, and the size of the file at that time, if it existed.
type NotedIfThere = Arc<Mutex<Vec<(String, Option<usize>)>>>;

/// A server with this restriction. It notes each `SITE CHMOD`, and the size of the file at that time, if it exists.
fn without(what: Without, writes_over: bool) -> (Fake, NotedIfThere) {
    let (seen, logins) = (NotedIfThere::default(), AtomicUsize::new(0));
    let noted = seen.clone();
    let fake = Fake::with(move |client, verb, argument| {
        let len = |name: &str| client.files.lock().unwrap().get(name).map(Vec::len);
        match verb {
            "" if logins.fetch_add(1, Ordering::Relaxed) > 0 => match what {
                Without::Login => client.hold(),
                Without::Place => {
                    client.say("421 too many");
                    client.hang_up();
                }
                _ => return false,
            },
            "SITE" => {
                let (set, name) = argument.rsplit_once(' ').unwrap();
                let there = len(name);
                noted.lock().unwrap().push((set.to_owned(), there));
                client.say(if there.is_some() { "200 done" } else { "550 cannot" });
            }
            "STOR" if !writes_over && len(argument).is_some() => client.say("550 it is there"),
            "STOR" if matches!(what, Without::Begin | Without::Word) => {
                let bytes = client.take();
                if what == Without::Begin && !bytes.is_empty() {
                    client.say("150 it comes");
                }
                client.store(argument, &bytes);
                client.say("226 done");
            }
            _ => return false,
        }
        true
    });
    (fake, seen)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_private_is_so_before_its_first_byte_without_a_word_beside() {
    for what in [Without::Login, Without::Place, Without::Begin, Without::Word, Without::File] {
        let (fake, seen) = without(what, true);
        let here = Here::with(b"bytes");
        set_permissions(here.0.path().join("x"), Permissions::from_mode(0o640)).unwrap();
        let remote = Remote::connect(Options { beside: SHORT, ..options(&fake) }).await.unwrap();
        // For the second file, the client uses what it learnt with the first.
        for name in ["x", "y"] {
            transfer(&here.1, &key("x"), &remote, &key(name), &TransferOptions::default()).await.unwrap();
            assert_eq!(fake.get(&format!("/{name}")), Some(b"bytes".to_vec()));
            let seen: Vec<_> = seen.lock().unwrap().drain(..).filter(|(_, there)| there.is_some()).collect();
            let expected = [("CHMOD 600".to_owned(), Some(0)), ("CHMOD 640".to_owned(), Some(5))];
            assert_eq!(seen, expected, "{what:?} {:?}", fake.log());
        }
        assert_eq!(fake.log().iter().filter(|line| line.starts_with("STOR")).count(), 4, "{what:?} {:?}", fake.log());
        assert_eq!(remote.why_public(), [""; 0]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_made_empty_where_nobody_may_set_modes() {
    for refusal in ["502 not here", "550 Permission denied."] {
        let fake = on("SITE", move |client, _| client.say(refusal));
        let here = Here::with(b"bytes");
        set_permissions(here.0.path().join("x"), Permissions::from_mode(0o600)).unwrap();
        put(&fake, &here).await.unwrap();
        assert_eq!(fake.log().iter().filter(|line| line.starts_with("STOR")).count(), 1, "{:?}", fake.log());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_private_before_its_end_is_told() {
    let (fake, seen) = without(Without::Place, false);
    let here = Here::with(b"bytes");
    set_permissions(here.0.path().join("x"), Permissions::from_mode(0o640)).unwrap();
    let remote = Remote::connect(options(&fake)).await.unwrap();
    let send = || async { transfer(&here.1, &key("x"), &remote, &key("x"), &TransferOptions::default()).await };
    let error = send().await.unwrap_err();
    assert_eq!((error.kind(), fake.names()), (ErrorKind::Passing, Vec::new()), "{error}");
    seen.lock().unwrap().clear();
    send().await.unwrap();
    assert_eq!((*seen.lock().unwrap()).clone(), [("CHMOD 640".to_owned(), Some(5))]);
    assert_eq!(
        remote.why_public(),
        ["ftp://fake lets nobody write over a file, and accepts no second control connection during an upload"]
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_private_before_its_first_byte_is_told() {
    for refusal in ["450 busy", "550 Permission denied"] {
        // Permissions set during the transfer, on a file that was made empty first, and on a file that another server
        // is about to send.
        for (beside, from_another) in [(true, false), (false, false), (true, true)] {
            let logins = AtomicUsize::new(0);
            let fake = Fake::with(move |client, verb, argument| {
                match verb {
                    "" if !beside && logins.fetch_add(1, Ordering::Relaxed) > 0 => {
                        client.say("421 too many");
                        client.hang_up();
                    }
                    "SITE" if argument.starts_with("CHMOD 600") => client.say(refusal),
                    _ => return false,
                }
                true
            });
            let here = Here::with(b"bytes");
            set_permissions(here.0.path().join("x"), Permissions::from_mode(0o640)).unwrap();
            let (from, _) = noting_modes("UNIX.mode=0640;", false);
            from.put("/x", b"bytes");
            let source = Remote::connect(options(&from)).await.unwrap();
            let remote = Remote::connect(options(&fake)).await.unwrap();
            let source: &dyn Store = if from_another { &source } else { &here.1 };
            transfer(source, &key("x"), &remote, &key("x"), &TransferOptions::default()).await.unwrap();
            let why = format!("ftp://fake has answered SITE CHMOD with {} before the first byte", &refusal[..3]);
            assert_eq!(remote.why_public(), [why], "{beside} {from_another} {:?}", fake.log());
            assert_eq!(remote.without_modes().0, 0);
            // A passing refusal is followed by one more attempt.
            let asked = fake.log().iter().filter(|line| line.starts_with("SITE CHMOD 600")).count();
            assert!((asked > 1) == refusal.starts_with('4'), "{:?}", fake.log());
        }
    }
}

/// A source whose read fails.
#[derive(Debug)]
struct Unreadable;

impl Flow for Unreadable {
    fn next(&self) -> Fallible<'_, Option<Block>> {
        Box::pin(async {
            let source = std::io::Error::other("permission denied");
            Err(Error::Denied { name: "x".to_owned(), act: "read", source })
        })
    }
}

/// A server without a second control connection. It begins the second `STOR`, and then answers it with `answer`, if
/// any.
fn fails_amid(answer: Option<&'static str>) -> Fake {
    let (logins, stores) = (AtomicUsize::new(0), AtomicUsize::new(0));
    Fake::with(move |client, verb, argument| {
        match verb {
            "" if logins.fetch_add(1, Ordering::Relaxed) > 0 => {
                client.say("421 too many");
                client.hang_up();
            }
            "STOR" if stores.fetch_add(1, Ordering::Relaxed) == 1 => {
                client.say("150 go on");
                let bytes = client.take();
                client.store(argument, &bytes);
                match answer {
                    Some(answer) => client.say(answer),
                    None => client.hold(),
                }
            }
            _ => return false,
        }
        true
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_fails_while_a_file_is_written_over_is_no_refusal_of_that() {
    let fake = fails_amid(Some("550 Input/output error"));
    let here = Here::with(b"bytes");
    set_permissions(here.0.path().join("x"), Permissions::from_mode(0o640)).unwrap();
    let remote = Remote::connect(options(&fake)).await.unwrap();
    let sent = transfer(&here.1, &key("x"), &remote, &key("x"), &TransferOptions::default()).await;
    let error = sent.unwrap_err();
    assert!(error.to_string().contains("550 Input/output error"), "{error}");
    assert_eq!((error.kind(), remote.why_public()), (ErrorKind::Denied, Vec::<String>::new()), "{:?}", fake.log());
    // A source that cannot be read says nothing about the server, which is silent too.
    let fake = fails_amid(None);
    let remote = Remote::connect(options(&fake)).await.unwrap();
    let spec = Spec { size: Some(5), at_most: Some(0o640), replace: true, ..Spec::default() };
    let Begun::Draft(draft) = remote.create(&key("x"), spec).await.unwrap() else { panic!("it is done") };
    let flow: Arc<dyn Flow> = Arc::new(Unreadable);
    let drained = draft.capabilities().drain.unwrap().drain(&flow, &Arc::default()).await;
    let error = drained.and(draft.flush().await).unwrap_err();
    assert_eq!((error.kind(), remote.why_public()), (ErrorKind::Denied, Vec::<String>::new()), "{:?}", fake.log());
    assert!(!fake.log().iter().any(|line| line.starts_with("DELE")), "{:?}", fake.log());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_another_server_sends_comes_also_where_this_end_reaches_no_data_ports() {
    for in_place in [false, true] {
        let (from, _) = noting_modes("UNIX.mode=0600;", false);
        // The first two connections would be this end's.
        let asked = AtomicUsize::new(0);
        let seen = Noted::default();
        let noted = seen.clone();
        let to = Fake::with(move |client, verb, argument| {
            match verb {
                "EPSV" if asked.fetch_add(1, Ordering::Relaxed) < 2 => {
                    let port = client.listen();
                    client.listener = None;
                    client.say(&format!("229 Entering Extended Passive Mode (|||{port}|)"));
                }
                "STOR" if client.listener.is_none() => client.say("425 nobody connects"),
                "SITE" => {
                    let (set, name) = argument.rsplit_once(' ').unwrap();
                    let len = client.files.lock().unwrap().get(name).map_or(0, Vec::len);
                    noted.lock().unwrap().push((set.to_owned(), len));
                    client.say("200 done");
                }
                _ => return false,
            }
            true
        });
        from.put("/x", b"bytes");
        let source = Remote::connect(options(&from)).await.unwrap();
        let dest = Remote::connect(Options { in_place, ..options(&to) }).await.unwrap();
        for name in ["x", "y"] {
            transfer(&source, &key("x"), &dest, &key(name), &TransferOptions::default()).await.unwrap();
            assert_eq!(to.get(&format!("/{name}")), Some(b"bytes".to_vec()));
        }
        assert_eq!(seen.lock().unwrap()[..], [("CHMOD 600".to_owned(), 5), ("CHMOD 600".to_owned(), 5)]);
        // It is attempted twice, and reported once.
        let count = |verb: &str| to.log().iter().filter(|line| line.starts_with(verb)).count();
        assert_eq!((count("EPSV"), count("STOR")), (4, 4), "{:?}", to.log());
        assert_eq!(dest.why_public(), ["this end reaches no data port of ftp://fake"]);
        assert_eq!(dest.why_by_way(), [""; 0]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_data_port_that_was_not_reached_once_is_tried_once_more() {
    let (from, _) = noting_modes("UNIX.mode=0600;", false);
    let (asked, seen) = (AtomicUsize::new(0), Noted::default());
    let noted = seen.clone();
    let to = Fake::with(move |client, verb, argument| {
        match verb {
            "STOR" if asked.fetch_add(1, Ordering::Relaxed) == 0 => client.say("425 nobody connects"),
            "SITE" => {
                let (set, name) = argument.rsplit_once(' ').unwrap();
                let len = client.files.lock().unwrap().get(name).map_or(0, Vec::len);
                noted.lock().unwrap().push((set.to_owned(), len));
                client.say("200 done");
            }
            _ => return false,
        }
        true
    });
    from.put("/x", b"bytes");
    let source = Remote::connect(options(&from)).await.unwrap();
    let dest = Remote::connect(options(&to)).await.unwrap();
    transfer(&source, &key("x"), &dest, &key("x"), &TransferOptions::default()).await.unwrap();
    assert_eq!(seen.lock().unwrap()[..], [("CHMOD 600".to_owned(), 0), ("CHMOD 600".to_owned(), 5)], "{:?}", to.log());
    assert_eq!(dest.why_public(), [""; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_stays_of_what_another_server_did_not_send() {
    for in_place in [false, true] {
        let from = Fake::with(|client, verb, argument| {
            match verb {
                "MLST" if argument == "/x" => {
                    client.say("250-Listing\r\n type=file;size=5;UNIX.mode=0600; /x\r\n250 End")
                }
                "RETR" => {
                    client.say("150 coming");
                    let _ = client.data().write_all(b"by");
                    client.say("451 it broke");
                }
                _ => return false,
            }
            true
        });
        from.put("/x", b"bytes");
        let to = Fake::with(|client, verb, argument| {
            let is_sent = verb == "STOR" && client.files.lock().unwrap().contains_key(argument);
            if is_sent {
                client.say("112-Perf Marker\r\n Timestamp: 1.0\r\n Stripe Index: 0\r\n Stripe Bytes Transferred: 2\r\n Total Stripe Count: 1\r\n112 End");
                let bytes = client.take();
                client.store(argument, &bytes);
                client.say("226 done");
            }
            is_sent
        });
        let source = Remote::connect(options(&from)).await.unwrap();
        let dest = Remote::connect(Options { in_place, ..options(&to) }).await.unwrap();
        let error = transfer(&source, &key("x"), &dest, &key("x"), &TransferOptions::default()).await.unwrap_err();
        assert!(error.to_string().contains("451 it broke"), "{error}");
        assert_eq!(to.names(), [""; 0], "{:?}", to.log());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_stays_of_what_was_made_empty_and_then_not_sent() {
    let (from, to) = (on("PORT", |client, _| client.say("500 to nobody else")), ours(|_, _| false));
    from.put("/x", b"bytes");
    let source = Remote::connect(options(&from)).await.unwrap();
    let dest = Remote::connect(Options { in_place: true, ..options(&to) }).await.unwrap();
    let spec = Spec { size: Some(5), at_most: Some(0o600), replace: true, ..Spec::default() };
    let Begun::Draft(draft) = dest.create(&key("x"), spec).await.unwrap() else { panic!("it is done") };
    assert_eq!(to.get("/x"), Some(Vec::new()), "{:?}", to.log());
    let object = source.open(&key("x")).await.unwrap();
    let missing = Ranges::from(Extent::first(5));
    let fetched = draft.capabilities().fetch.unwrap().fetch(&*object, &missing, &|_| {}).await;
    assert!(!fetched.unwrap(), "{:?}", from.log());
    draft.abandon(true).await;
    assert_eq!(to.names(), [""; 0], "{:?}", to.log());
}

/// A server that claims to be `phoebus serve`.
fn ours(twist: fn(&mut super::Client, &str) -> bool) -> Fake {
    Fake::with(move |client, verb, _| match verb {
        "FEAT" => {
            client.say("211-Features\r\n XDRAFTS\r\n CKSM ADLER32:10;\r\n MLST type*;size*;\r\n SIZE\r\n211 End");
            true
        }
        _ => twist(client, verb),
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_stays_of_what_could_not_be_made_private() {
    let fake = ours(|client, verb| {
        if verb == "SITE" {
            client.hang_up();
        }
        verb == "SITE"
    });
    let here = Here::with(b"bytes");
    set_permissions(here.0.path().join("x"), Permissions::from_mode(0o600)).unwrap();
    let remote = Remote::connect(Options { in_place: true, ..options(&fake) }).await.unwrap();
    let error = transfer(&here.1, &key("x"), &remote, &key("x"), &TransferOptions::default()).await.unwrap_err();
    assert_eq!((error.kind(), fake.names()), (ErrorKind::Passing, Vec::new()), "{error} {:?}", fake.log());
    assert!(fake.log().contains(&"DELE /x".to_owned()), "{:?}", fake.log());
}
