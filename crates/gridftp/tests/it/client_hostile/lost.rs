//! Servers that break the connection instead of answering.

use super::fake::Fake;
use super::fake::tools::{Here, bytes, key, remote};
use phoebus_files::store::Store;
use phoebus_files::{Done, Error, ErrorKind, TransferOptions, Verify, transfer};
use phoebus_gridftp::client::Remote;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

/// A server that breaks the connection instead of answering `lost` for the first time, either after or before it
/// carries the command out.
fn losing(lost: &'static str, done: bool, spoil: impl Fn(&mut super::fake::Client) + Send + Sync + 'static) -> Fake {
    let (first, dirs) = (AtomicBool::new(true), Mutex::new(Vec::<String>::new()));
    Fake::with(move |client, verb, argument| {
        let loses = verb == lost && first.swap(false, Ordering::Relaxed);
        if loses && !done {
            client.hang_up();
            return true;
        }
        let mut dirs = dirs.lock().unwrap();
        let answer = match verb {
            "MLST" if dirs.iter().any(|dir| dir == argument) => {
                client.say(&format!("250-Listing\r\n type=dir; {argument}\r\n250 End"));
                return true;
            }
            "MKD" if !dirs.iter().any(|dir| dir == argument) => {
                dirs.push(argument.to_owned());
                "257 made"
            }
            "RMD" if dirs.iter().any(|dir| dir == argument) => {
                dirs.retain(|dir| dir != argument);
                "250 gone"
            }
            _ if loses => {
                spoil(client);
                client.mute = true;
                client.answer(verb, argument);
                client.hang_up();
                return true;
            }
            _ => return false,
        };
        if loses {
            client.hang_up()
        } else {
            client.say(answer)
        }
        true
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_done_is_no_failure_though_its_answer_was_lost() {
    for done in [true, false] {
        let fake = losing("DELE", done, |_| {});
        fake.put("/x", b"x");
        assert_eq!(remote(&fake).await.remove(&key("x")).await.is_ok(), done);
        assert_eq!(fake.get("/x").is_none(), done);

        let fake = losing("RNTO", done, |_| {});
        fake.put("/x", b"x");
        assert_eq!(remote(&fake).await.rename(&key("x"), &key("y"), true).await.is_ok(), done);
        assert_eq!(fake.names(), [if done { "/y" } else { "/x" }]);

        let fake = losing("MKD", done, |_| {});
        assert_eq!(remote(&fake).await.make_dir(&key("d")).await.is_ok(), done);

        let fake = losing("RMD", done, |_| {});
        let remote = remote(&fake).await;
        remote.make_dir(&key("d")).await.unwrap();
        assert_eq!(remote.remove_dir(&key("d")).await.is_ok(), done);
    }
    // A name that did not exist before was not moved, even if the new name exists.
    let fake = losing("RNTO", false, |_| {});
    fake.put("/y", b"y");
    let error = remote(&fake).await.rename(&key("x"), &key("y"), true).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
}

/// Puts `/x`, and repeats it once after a passing error. Returns how often it was sent.
async fn put_twice(fake: &Fake, replace: bool) -> (Result<Done, Error>, usize) {
    let (here, how) = (Here::with(&bytes(100_000)), TransferOptions { replace, ..TransferOptions::default() });
    let remote = remote(fake).await;
    let mut done = transfer(&here.1, &key("x"), &remote, &key("x"), &how).await;
    if done.as_ref().is_err_and(Error::may_pass) {
        done = transfer(&here.1, &key("x"), &remote, &key("x"), &how).await;
    }
    (done, fake.log().iter().filter(|line| line.starts_with("STOR")).count())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_whose_name_was_given_is_not_sent_again() {
    for replace in [true, false] {
        let fake = losing("RNTO", true, |_| {});
        let (done, sent) = put_twice(&fake, replace).await;
        assert!(done.is_ok() && sent == 1 && fake.names() == ["/x"], "{done:?} {sent}");
        // The draft did not get its name.
        let fake = losing("RNTO", false, |_| {});
        let (done, sent) = put_twice(&fake, replace).await;
        assert!(done.is_ok() && sent == 2 && fake.names() == ["/x"], "{done:?} {sent}");
    }
    // The server refuses logins for a while, so the next attempt checks the result.
    let (fake, out) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicBool::new(false)));
    let (count, shut) = (fake, out.clone());
    let fake = Fake::with(move |client, verb, argument| {
        if verb == "RNTO" && count.fetch_add(1, Ordering::Relaxed) == 0 {
            shut.store(true, Ordering::Relaxed);
            client.mute = true;
            client.answer(verb, argument);
            client.hang_up();
            return true;
        }
        if verb == "USER" && shut.swap(false, Ordering::Relaxed) {
            client.hang_up();
            return true;
        }
        false
    });
    let (done, sent) = put_twice(&fake, false).await;
    assert!(done.is_ok() && sent == 1, "{done:?} {sent}");
    // Another file with the name has appeared meanwhile, and it stays.
    let first = Arc::new(AtomicBool::new(true));
    let fake = Fake::with(move |client, verb, argument| {
        if verb == "RNTO" && first.swap(false, Ordering::Relaxed) {
            client.mute = true;
            client.answer(verb, argument);
            client.files.lock().unwrap().insert("/x".to_owned(), b"newer".to_vec());
            client.hang_up();
            return true;
        }
        false
    });
    let (done, sent) = put_twice(&fake, true).await;
    let error = done.unwrap_err();
    assert!(sent == 1 && error.to_string().contains("what has that name now is another one"), "{error}");
    assert_eq!(fake.get("/x"), Some(b"newer".to_vec()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_keeps_its_mode_is_no_other_file() {
    // Only STAT shows the mode, which must be kept. After the cut, the client looks at the name without STAT.
    let first = AtomicBool::new(true);
    let fake = Fake::with(move |client, verb, argument| {
        match (verb, argument) {
            // The draft has been removed, as by somebody who cleans up.
            ("RNTO", _) if first.swap(false, Ordering::Relaxed) => {
                client.files.lock().unwrap().retain(|name, _| name == "/x");
                client.hang_up();
            }
            ("STAT", "/x") => client.say("213-Status\r\n-rw-r-----    1 0        0     5 Nov 21 10:00 x\r\n213 End"),
            _ => return false,
        }
        true
    });
    fake.put("/x", b"older");
    let here = Here::with(&bytes(100_000));
    let (remote, how) = (remote(&fake).await, TransferOptions { modes: false, ..TransferOptions::default() });
    let error = transfer(&here.1, &key("x"), &remote, &key("x"), &how).await.unwrap_err();
    assert!(error.may_pass(), "{error}");
    transfer(&here.1, &key("x"), &remote, &key("x"), &how).await.unwrap();
    assert_eq!(fake.get("/x"), Some(bytes(100_000)));
}

/// A server that breaks the connection at the first RNTO, does not carry it out, and reports the same time for all
/// files.
fn breaking(sums: bool, vanishes: bool) -> Fake {
    let first = AtomicBool::new(true);
    Fake::with(move |client, verb, _| {
        match verb {
            "FEAT" if !sums => client.say("211-\r\n MLST type*;size*;modify*;\r\n SIZE\r\n MFMT\r\n211 End"),
            "RNTO" if first.swap(false, Ordering::Relaxed) => {
                client.files.lock().unwrap().retain(|name, _| !vanishes || name == "/x");
                client.hang_up();
            }
            _ => return false,
        }
        true
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_old_file_is_not_taken_for_the_new_one_whose_name_was_not_given() {
    for (sums, len) in [(true, 1000), (false, 1000), (true, 2 << 20), (false, 2 << 20)] {
        let (content, old) = (bytes(len), vec![b'o'; len]);
        let here = Here::with(&content);
        // The same size, and the same time at the server.
        let fake = breaking(sums, false);
        fake.put("/x", &old);
        let remote = remote(&fake).await;
        let how = TransferOptions { verify: Verify::Possible, ..TransferOptions::default() };
        let put = async |remote: &Remote| transfer(&here.1, &key("x"), remote, &key("x"), &how).await;
        let error = put(&remote).await.unwrap_err();
        assert!(error.may_pass(), "{error}");
        // The draft stays. If the server had renamed it after all, only the final name would exist.
        assert!(fake.names().len() == 2 && fake.get("/x") == Some(old.clone()), "{sums} {len}");
        put(&remote).await.unwrap();
        assert!(fake.names() == ["/x"] && fake.get("/x") == Some(content.clone()), "{sums} {len}");
        // The draft has disappeared.
        let fake = breaking(sums, true);
        fake.put("/x", &old);
        let remote = super::fake::tools::remote(&fake).await;
        put(&remote).await.unwrap_err();
        // The client reports this at most once, and the next attempt succeeds.
        let done = match put(&remote).await {
            Err(_) => put(&remote).await,
            done => done,
        };
        assert!(done.is_ok() && fake.get("/x") == Some(content), "{sums} {len} {done:?}");
    }
}
