//! The client with servers that are wrong, odd or hostile. No cut transfer looks complete, nothing hangs, and errors
//! name the server.

mod altered;
mod gone;
mod links;
mod long;
mod lost;
mod odd;
mod private;
mod shared;
mod twins;
mod waits;

use crate::fake;
use fake::tools::{Does, Here, SOON, bytes, get, get_with, key, on, options, put, put_with, remote, says, within};
use fake::{Client, Fake};
use phoebus_files::key::Key;
use phoebus_files::store::{Attributes, Store};
use phoebus_files::{Error, ErrorKind};
use phoebus_gridftp::client::{Login, Options, Password, Remote};
use std::io::{Read, Write};
use std::net::Shutdown;
use std::time::Duration;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_good_server_gives_and_takes() {
    let (fake, content) = (Fake::good(), bytes(3_000_000));
    fake.put("/x", &content);
    let here = Here::new();
    let done = get(&fake, &here, None).await.unwrap();
    assert!(here.content() == Some(content.clone()) && done.verified.is_some());
    fake.files.lock().unwrap().clear();
    let done = put(&fake, &here).await.unwrap();
    assert!(fake.get("/x") == Some(content) && done.verified.is_some());
    assert_eq!(fake.names(), ["/x"]);
    let remote = remote(&fake).await;
    assert_eq!(remote.home().to_string(), "home");
    let listed = remote.list(&Key::ROOT).await.unwrap().more().await.unwrap();
    assert_eq!((listed.len(), &listed[0].name[..], listed[0].meta.size), (1, &b"x"[..], Some(3_000_000)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_no_answer_is_named() {
    for (greeting, words) in [
        ("hello there\r\n", "a code of three digits was expected"),
        ("421 too many\r\n", "421 too many"),
        ("530 go away\r\n", "220 was expected"),
        ("", "did not answer within 3 s"),
        ("220-never ending\r\n", "did not answer within 3 s"),
        ("331 what?\r\n", "220 was expected"),
    ] {
        let fake = on("", move |client, _| {
            client.raw(greeting.as_bytes());
            client.hold();
        });
        let options = if words.starts_with("did not") { within(&fake, SOON) } else { options(&fake) };
        says(&Remote::connect(options).await.unwrap_err(), words);
    }
    let fake = on("", |client, _| client.hang_up());
    says(&Remote::connect(options(&fake)).await.unwrap_err(), "closed the control connection");
    let fake = on("FEAT", |client, _| client.raw(&vec![b'x'; 200_000]));
    says(&Remote::connect(options(&fake)).await.unwrap_err(), "a line of more than 65536 bytes");
    let fake = on("FEAT", |client, _| {
        client.raw(b"211-\r\n");
        let line = [vec![b'x'; 60_000], b"\r\n".to_vec()].concat();
        (0..1200).for_each(|_| client.raw(&line));
        client.hold();
    });
    says(&Remote::connect(options(&fake)).await.unwrap_err(), "more than 131072 bytes");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_learns_the_password_and_no_name_is_a_command() {
    let fake = on("PASS", |client, password| client.say(&format!("530 \"{password}\" is wrong")));
    let login = Login { user: Some("jane".into()), password: Some(Password("s3cret".into())) };
    let wrong = Options { login: login.clone(), ..options(&fake) };
    assert!(!format!("{wrong:?}").contains("s3cret"));
    let error = Remote::connect(wrong).await.unwrap_err();
    assert!(error.kind() == ErrorKind::Denied && !error.to_string().contains("s3cret"), "{error}");
    assert!(!error.to_string().contains("anonymous"), "{error}");
    says(&Remote::connect(options(&fake)).await.unwrap_err(), "anonymous, since no user is given: ftp://USER@HOST");
    says(&error, "cannot log in to");
    let fake = Fake::good();
    let login = Login { user: Some("jane\r\nDELE /x".into()), ..login };
    assert!(Remote::connect(Options { login, ..options(&fake) }).await.is_err());
    let remote = remote(&fake).await;
    let odd = key("x\r\nDELE /y");
    for error in [
        remote.stat(&odd).await.unwrap_err(),
        remote.remove(&odd).await.unwrap_err(),
        remote.rename(&key("x"), &odd, true).await.unwrap_err(),
        remote.open(&odd).await.unwrap_err(),
        remote.list(&odd).await.unwrap_err(),
        remote.set(&odd, Attributes { mode: Some(0o644), modified: None }).await.unwrap_err(),
    ] {
        says(&error, "line end");
    }
    assert!(fake.log().iter().all(|line| !line.starts_with("DELE")), "{:?}", fake.log());
    let fake = on("USER", |client, _| client.say("331 password"));
    let login = Login { user: Some("jane".into()), password: None };
    let error = Remote::connect(Options { login, ..options(&fake) }).await.unwrap_err();
    says(&error, "asks for the password of jane");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn data_comes_from_the_server_whatever_it_says() {
    let fake = Fake::with(|client, verb, _| match verb {
        "EPSV" => {
            client.say("500 not here");
            true
        }
        "PASV" => {
            let [high, low] = client.listen().to_be_bytes();
            client.say(&format!("227 go there: 192,0,2,1,{high},{low}."));
            true
        }
        _ => false,
    });
    let (here, content) = (Here::new(), bytes(100_000));
    fake.put("/x", &content);
    get(&fake, &here, None).await.unwrap();
    assert!(here.content() == Some(content));
    for (verb, answer) in
        [("EPSV", "229 nowhere"), ("EPSV", "229 (|||0|)"), ("EPSV", "425 no"), ("EPSV", "227 1,2,3,4,5,6")]
    {
        let fake = on(verb, move |client, _| client.say(answer));
        fake.put("/x", b"x");
        let error = get(&fake, &Here::new(), None).await.unwrap_err();
        assert!(error.to_string().contains("ftp://fake"), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_cut_is_not_there() {
    let content = bytes(1_000_000);
    let half = |client: &mut Client, end: &str| {
        client.say("150 coming");
        let mut data = client.data();
        data.write_all(&bytes(1_000_000)[..500_000]).unwrap();
        data.shutdown(Shutdown::Write).unwrap();
        // The client sees the end of the data connection first, and gives up the control connection.
        data.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let _ = data.read(&mut [0]);
        client.say(end);
    };
    for (end, words) in [
        ("226 that is all", "ended after 500000 of 1000000 bytes"),
        ("426 cut", "426 cut"),
        ("451 the disk is broken", "451 the disk is broken"),
        ("999", "ended after 500000 of 1000000 bytes"),
    ] {
        let fake = on("RETR", move |client, _| half(client, end));
        fake.put("/x", &content);
        let here = Here::new();
        says(&get(&fake, &here, None).await.unwrap_err(), words);
        assert_eq!(here.content(), None, "{end}");
    }
    // All bytes, but no reply.
    for end in ["", "451 the disk is broken", "550 no"] {
        let fake = on("RETR", move |client, _| {
            client.say("150 coming");
            client.data().write_all(&bytes(1_000_000)).unwrap();
            if end.is_empty() { client.hang_up() } else { client.say(end) }
        });
        fake.put("/x", &content);
        let here = Here::new();
        get(&fake, &here, None).await.unwrap_err();
        assert_eq!(here.content(), None, "{end}");
    }
    // More bytes than the file has.
    let fake = on("RETR", |client, _| {
        client.say("150 coming");
        let _ = client.data().write_all(&bytes(2_000_000));
        client.say("226 done");
    });
    fake.put("/x", &content);
    says(&get(&fake, &Here::new(), None).await.unwrap_err(), "more than the 1000000 bytes");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silence_is_not_waited_for_for_ever() {
    let content = bytes(100_000);
    let silent: [(&str, Does); 4] = [
        ("RETR", |client, _| client.hold()),
        // Replies that the transfer is complete, but sends nothing.
        ("RETR", |client, _| {
            client.say("150 coming");
            client.say("226 done");
            client.hold();
        }),
        ("RETR", |client, _| {
            client.say("150 coming");
            let mut data = client.data();
            data.write_all(&bytes(10)).unwrap();
            client.hold();
        }),
        // All bytes arrive, but no reply.
        ("RETR", |client, _| {
            client.say("150 coming");
            client.data().write_all(&bytes(100_000)).unwrap();
            client.hold();
        }),
    ];
    for (verb, does) in silent {
        let fake = on(verb, does);
        fake.put("/x", &content);
        let here = Here::new();
        let error = get_with(within(&fake, SOON), &here).await.unwrap_err();
        assert!(error.may_pass() && here.content().is_none(), "{error}");
    }
    // Large enough that the client checks which bytes have arrived.
    let content = bytes(2_000_000);
    for verb in ["MLST", "CKSM", "STOR", "RNTO", "EPSV"] {
        let fake = on(verb, |client, _| client.hold());
        fake.put("/y", &content);
        let error = put_with(within(&fake, SOON), &Here::with(&content)).await.unwrap_err();
        assert!(error.may_pass(), "{verb}: {error}");
        assert_eq!(fake.get("/x"), None, "{verb}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_did_not_arrive_gets_no_name() {
    let content = bytes(3_000_000);
    let stor: [(Does, &str, ErrorKind); 5] = [
        (|client, _| client.say("553 not here"), "553 not here", ErrorKind::Denied),
        (
            |client, path| {
                client.say("150 go on");
                let data = client.data();
                client.store(path, b"xyz");
                client.say("226 done");
                drop(data);
            },
            "ftp://fake/x",
            ErrorKind::Passing,
        ),
        (
            |client, path| {
                client.say("150 go on");
                let all = client.take();
                client.store(path, &all[..1_000_000]);
                client.say("226 done");
            },
            "damaged on the way",
            ErrorKind::Verification,
        ),
        (
            |client, _| {
                client.say("150 go on");
                client.take();
                client.say("452 the disk is full");
            },
            "no space for",
            ErrorKind::NoSpace,
        ),
        (
            |client, path| {
                client.say("150 go on");
                let mut all = client.take();
                all[1_500_000] ^= 1;
                client.store(path, &all);
                client.say("226 done");
            },
            "damaged on the way",
            ErrorKind::Verification,
        ),
    ];
    for (does, words, kind) in stor {
        let fake = on("STOR", does);
        fake.put("/x", b"old");
        let error = put(&fake, &Here::with(&content)).await.unwrap_err();
        says(&error, words);
        // The client may have sent bytes that the server did not take. The checksum then reports that.
        let sorts = [kind, if kind == ErrorKind::Passing { ErrorKind::Verification } else { kind }];
        assert!(sorts.contains(&error.kind()), "{error}");
        assert_eq!(fake.get("/x"), Some(b"old".to_vec()), "{error}");
        assert_eq!(fake.names(), ["/x"], "{words}");
    }
    let fake = on("RNTO", |client, _| client.say("553 not that name"));
    let error = put(&fake, &Here::with(&content)).await.unwrap_err();
    says(&error, "553 not that name");
    assert_eq!(fake.names(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damage_is_found_and_long_sums_are_waited_for() {
    let content = bytes(1_000_000);
    let fake = on("RETR", |client, path| {
        client.say("150 coming");
        let mut content = client.files.lock().unwrap()[path].clone();
        content[777] ^= 4;
        client.data().write_all(&content).unwrap();
        client.say("226 done");
    });
    fake.put("/x", &content);
    let here = Here::new();
    let error = get(&fake, &here, None).await.unwrap_err();
    assert!(error.kind() == ErrorKind::Verification && here.content().is_none(), "{error}");
    // Longer than the time limit, but with preliminary replies.
    const LONG: Duration = Duration::from_secs(6);
    let fake = on("CKSM", |client, argument| {
        for _ in 0..8 {
            client.say("113 still at it");
            std::thread::sleep(LONG / 6);
        }
        client.answer("CKSM", argument);
    });
    fake.put("/x", &content);
    get_with(within(&fake, LONG), &here).await.unwrap();
    let fake = on("CKSM", |client, _| client.say("213 not a sum"));
    fake.put("/x", &content);
    says(&get(&fake, &Here::new(), None).await.unwrap_err(), "hexadecimal digits");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn directories_are_whole_or_not_listed() {
    let listing = |lines: &'static [u8], end: &'static str| {
        on("MLSD", move |client, _| {
            client.say("150 coming");
            client.data().write_all(lines).unwrap();
            client.say(end);
        })
    };
    let all = async |fake: &Fake| {
        let remote = remote(fake).await;
        let (mut listing, mut names) = (remote.list(&Key::ROOT).await?, Vec::new());
        loop {
            let page = listing.more().await?;
            if page.is_empty() {
                return Ok::<_, Error>(names);
            }
            names.extend(page.into_iter().map(|entry| String::from_utf8(entry.name).unwrap()));
        }
    };
    let fake = listing(
        b"type=file; a\r\ntype=dir; b\ntype=odd; c\r\ntype=cdir; .\r\ntype=file; .x.1.phoebus-part",
        "226 done",
    );
    assert_eq!(all(&fake).await.unwrap(), ["a", "b", "c"]);
    // A link that leads elsewhere does not.
    let fake = listing(b"type=file; ../../etc/passwd\r\ntype=dir; ..\r\ntype=file; /a/b/\r\n", "226 done");
    assert_eq!(all(&fake).await.unwrap(), ["passwd", "b"]);
    says(&all(&listing(b"type=file; a\r\n", "426 cut")).await.unwrap_err(), "426 cut");
    says(&all(&listing(b"no facts\r\n", "226 done")).await.unwrap_err(), "lists no file");
    says(&all(&listing(&[b'x'; 100_000], "226 done")).await.unwrap_err(), "a line of its listing");
    // Without MLSD.
    let plain = |lines: &'static [u8]| {
        Fake::with(move |client, verb, _| {
            match verb {
                "FEAT" => client.say("211-\r\n SIZE\r\n MDTM\r\n211 End"),
                "MLSD" | "MLST" => client.say("500 what?"),
                "LIST" => {
                    client.say("150 coming");
                    client.data().write_all(lines).unwrap();
                    client.say("226 done");
                }
                _ => return false,
            }
            true
        })
    };
    let fake = plain(b"total 3\r\n-rw-r--r-- 1 u g 5 Nov 21 10:00 a b\r\ndrwxr-xr-x 2 u g 5 Nov 21 2025 d\r\n");
    assert_eq!(all(&fake).await.unwrap(), ["a b", "d"]);
    let remote = remote(&fake).await;
    let listed = remote.list(&Key::ROOT).await.unwrap().more().await.unwrap();
    assert_eq!(listed[0].meta.modified.unwrap().seconds, 1_795_291_200);
    says(&all(&plain(b"11-21-26  10:00AM  <DIR>  x\r\n")).await.unwrap_err(), "not as ls -l has it");
}

/// Headers of extended blocks.
fn header(flags: u8, count: u64, offset: u64) -> Vec<u8> {
    [&[flags][..], &count.to_be_bytes(), &offset.to_be_bytes()].concat()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn extended_blocks_end_when_all_have_said_so() {
    let block = |at: usize, len: usize| [header(0, len as u64, at as u64), bytes(1000)[at..at + len].to_vec()].concat();
    let whole = block(0, 1000);
    // The bytes that the server sends on each connection, and, if the transfer must fail, possible parts of the error.
    let cases: Vec<(Vec<Vec<u8>>, &[&str])> = vec![
        (vec![[whole.clone(), header(8 | 64, 0, 1)].concat()], &[]),
        (vec![[block(500, 500), header(8, 0, 0)].concat(), [block(0, 500), header(8 | 64, 0, 2)].concat()], &[]),
        // Fewer ends than were announced.
        (vec![[whole.clone(), header(8 | 64, 0, 3)].concat()], &["nothing moved"]),
        // More ends than were announced. If EOF is read first, the transfer ends with it, and lacks the bytes of the
        // other connection.
        (
            vec![[whole.clone(), header(8, 0, 0)].concat(), [header(8 | 64, 0, 1)].concat()],
            &["EOF said 1", "before the 1000 bytes"],
        ),
        // No end at all.
        (vec![whole.clone()], &["closed before its end"]),
        // The connection ends within a block.
        (vec![[header(0, 1000, 0), vec![0; 10]].concat()], &["closed before its end"]),
        // All ends, and not all bytes.
        (vec![[block(0, 999), header(8 | 64, 0, 1)].concat()], &["before the 1000 bytes"]),
        // Offsets beyond 64 bits.
        (vec![header(0, 2, u64::MAX)], &["beyond 64 bits"]),
    ];
    for (connections, words) in cases {
        let shown = format!("{connections:?}");
        let sent = connections.clone();
        let fake = on("RETR", move |client, _| {
            client.say("150 coming");
            let aim = client.aim;
            let mut open = Vec::new();
            for bytes in &sent {
                client.aim = aim;
                let mut data = client.data();
                let _ = data.write_all(bytes);
                open.push(data);
            }
            drop(open);
            client.say("226 done");
        });
        fake.put("/x", &bytes(1000));
        let here = Here::new();
        let limited = if words == ["nothing moved"] { within(&fake, SOON) } else { options(&fake) };
        match get_with(Options { streams: Some(2), ..limited }, &here).await {
            Ok(_) if words.is_empty() => assert!(here.content() == Some(bytes(1000)), "{shown}"),
            Err(error) if !words.is_empty() => {
                assert!(here.content().is_none(), "{shown}");
                let text = error.to_string();
                assert!(words.iter().any(|words| text.contains(words)), "{text}: {words:?}");
            }
            done => panic!("{shown}: {done:?}, {words:?}"),
        }
    }
    let fake = on("MODE", |client, _| client.say("504 no"));
    fake.put("/x", b"x");
    says(&get(&fake, &Here::new(), Some(2)).await.unwrap_err(), "no parallel streams");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_is_gone_on_with_where_it_was_cut() {
    let content = bytes(20 << 20);
    let fake = Fake::with({
        let cut = std::sync::atomic::AtomicBool::new(true);
        move |client, verb, path| {
            let first = verb == "STOR" && cut.swap(false, std::sync::atomic::Ordering::Relaxed);
            if first {
                client.say("150 go on");
                let mut data = client.data();
                let mut some = vec![0; 10 << 20];
                std::io::Read::read_exact(&mut data, &mut some).unwrap();
                client.store(path, &some);
                client.hang_up();
            }
            first
        }
    });
    let here = Here::with(&content);
    let state = tempfile::tempdir().unwrap();
    // Uploads without a place for locks have drafts of their own.
    let put = || put_with(Options { state: Some(state.path().to_owned()), ..options(&fake) }, &here);
    let error = put().await.unwrap_err();
    assert!(error.may_pass() && fake.get("/x").is_none(), "{error}");
    let done = put().await.unwrap();
    assert!(fake.get("/x") == Some(content) && fake.names() == ["/x"]);
    assert!(done.moved == 11 << 20 && done.verified.is_some(), "{done:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_just_looked_at_is_renamed_at_once() {
    let names = ["a", "b", "c"];
    // The client soon forgets what it has seen, so on a busy machine this test starts again.
    loop {
        let (fake, began) = (Fake::good(), std::time::Instant::now());
        names.iter().for_each(|name| fake.put(&format!("/{name}"), b"x"));
        let remote = remote(&fake).await;
        for name in names {
            remote.stat(&key(name)).await.unwrap();
        }
        for name in names {
            remote.rename(&key(name), &key(&format!("{name}2")), true).await.unwrap();
        }
        if began.elapsed() > Duration::from_secs(1) {
            continue;
        }
        let count = |verb: &str| fake.log().iter().filter(|line| line.starts_with(verb)).count();
        assert_eq!((count("RNFR"), count("RNTO")), (3, 3), "{:?}", fake.log());
        // Each file is looked up once before its removal, and once after it, since a second name of the file would
        // stay.
        for name in names {
            let about: Vec<_> = fake.log().into_iter().filter(|line| line.ends_with(&format!(" /{name}"))).collect();
            assert_eq!(about, [format!("MLST /{name}"), format!("RNFR /{name}"), format!("MLST /{name}")]);
        }
        // A file that was renamed meanwhile is not removed in place of the earlier one.
        remote.rename(&key("a"), &key("a3"), true).await.unwrap_err();
        assert_eq!(fake.names(), ["/a2", "/b2", "/c2"]);
        return;
    }
}
