//! Servers that rename one of two names of a file to the other. rename(2) then removes neither.

use super::fake::Fake;
use super::fake::tools::{key, remote};
use phoebus_files::store::Store;
use phoebus_files::{Error, ErrorKind};
use std::sync::atomic::{AtomicBool, Ordering};

/// A different behaviour of the server: returns whether it answered the command.
type Twist = fn(&mut super::Client, &str, &str) -> bool;

/// The facts of a path. Its bytes give the identity of the file; `->` is a link to `/b`.
fn facts(client: &super::Client, path: &str) -> Option<String> {
    let mut content = client.files.lock().unwrap().get(path)?.clone();
    if content == b"->" {
        content = client.files.lock().unwrap().get("/b")?.clone();
    }
    Some(String::from_utf8(content).unwrap())
}

/// A server with the names `/a` and `/b` of one file. Its facts identify files, and the directory of both names, whose
/// identity is `root`.
fn twins(root: &'static str, twist: Twist) -> Fake {
    let fake = Fake::with(move |client, verb, argument| {
        if twist(client, verb, argument) {
            return true;
        }
        match (verb, argument) {
            ("MLST", "/") => client.say(&format!("250-Listing\r\n type=dir;unique={root}; /\r\n250 End")),
            ("MLST", path) => match facts(client, path) {
                Some(file) => client.say(&format!("250-Listing\r\n type=file;size=3;unique={file}; {path}\r\n250 End")),
                None => client.say("550 no such file"),
            },
            ("RNTO", to) if *client.from() != *to && facts(client, client.from()) == facts(client, to) => {
                client.say("250 done");
            }
            ("LIST", _) => {
                let lines: String =
                    client.files.lock().unwrap().iter().fold(String::new(), |lines, (path, content)| {
                        let (name, is_link) = (path.trim_start_matches('/'), content == b"->");
                        let (letters, more) = if is_link { ("lrwxrwxrwx", " -> b") } else { ("-rw-r--r--", "") };
                        lines + &format!("{letters}    1 0        0     3 Nov 21 10:00 {name}{more}\r\n")
                    });
                client.list(&lines);
            }
            _ => return false,
        }
        true
    });
    fake.put("/a", b"1g1");
    fake.put("/b", b"1g1");
    fake
}

async fn rename(fake: &Fake) -> Result<(), Error> {
    remote(fake).await.rename(&key("a"), &key("b"), true).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_of_two_names_goes() {
    let fake = twins("1g9", |_, _, _| false);
    rename(&fake).await.unwrap();
    assert_eq!(fake.names(), ["/b"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_looked_at_is_not_taken_for_gone() {
    static WAS_MOVED: AtomicBool = AtomicBool::new(false);
    let fake = twins("1g9", |client, verb, argument| {
        WAS_MOVED.fetch_or(verb == "RNTO", Ordering::Relaxed);
        let refuses = verb == "MLST" && argument == "/a" && WAS_MOVED.load(Ordering::Relaxed);
        if refuses {
            client.say("550 Permission denied");
        }
        refuses
    });
    let error = rename(&fake).await.unwrap_err();
    assert!(error.to_string().contains("whether both names are there") && error.kind() == ErrorKind::Denied, "{error}");
    assert_eq!(fake.names(), ["/a", "/b"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_gone_was_renamed_whatever_is_said_of_the_new_name() {
    let fake = twins("1g9", |client, verb, argument| {
        let refuses = verb == "MLST" && argument == "/b";
        if refuses {
            client.say("550 Permission denied");
        }
        refuses
    });
    fake.put("/b", b"2g2");
    rename(&fake).await.unwrap();
    assert_eq!((fake.names(), fake.get("/b")), (vec!["/b".to_owned()], Some(b"1g1".to_vec())));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_breaks_is_another_the_next_time() {
    static BREAKS: AtomicBool = AtomicBool::new(false);
    let fake = twins("1g9", |client, verb, argument| {
        if verb == "RNTO" && argument == "/b" {
            BREAKS.store(true, Ordering::Relaxed);
        }
        let breaks = verb == "MLST" && BREAKS.swap(false, Ordering::Relaxed);
        if breaks {
            client.hang_up();
        }
        breaks
    });
    rename(&fake).await.unwrap();
    assert_eq!(fake.names(), ["/b"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_link_that_was_made_anew_stays() {
    // Before the name is put aside, and right then.
    for when in ["RNTO /b", "RNFR /a"] {
        let fake = match when {
            "RNTO /b" => twins("1g9", |client, verb, argument| {
                if (verb, argument) == ("RNTO", "/b") {
                    client.files.lock().unwrap().insert("/a".to_owned(), b"->".to_vec());
                    client.say("250 done");
                    return true;
                }
                false
            }),
            _ => twins("1g9", |client, verb, argument| {
                if verb == "RNTO" && argument.ends_with(".phoebus-moved") {
                    client.files.lock().unwrap().insert("/a".to_owned(), b"->".to_vec());
                }
                false
            }),
        };
        let renamed = rename(&fake).await;
        assert!(renamed.is_ok() == (when == "RNTO /b"), "{when} {renamed:?}");
        assert_eq!((fake.names(), fake.get("/a")), (vec!["/a".to_owned(), "/b".to_owned()], Some(b"->".to_vec())));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_all_files_are_called_tells_none_apart() {
    let fake = twins("1g1", |_, _, _| false);
    let error = rename(&fake).await.unwrap_err();
    assert!(error.to_string().contains("may have been made anew meanwhile"), "{error}");
    assert_eq!(fake.names(), ["/a", "/b"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_put_aside_is_named() {
    // A path that leads to one name twice: once the name is aside, the second path is gone too, and the name cannot be
    // restored. Or the reply to the rename aside is lost.
    for is_lost in [false, true] {
        let twist: Twist = if is_lost {
            |client, verb, argument| {
                let is_lost = verb == "RNTO" && argument.ends_with(".phoebus-moved");
                if is_lost {
                    let mut files = client.files.lock().unwrap();
                    let content = files.remove("/a").unwrap();
                    files.insert(argument.to_owned(), content);
                    // Another client has created the name again.
                    files.insert("/a".to_owned(), b"1g2".to_vec());
                    drop(files);
                    client.hang_up();
                }
                is_lost
            }
        } else {
            |client, verb, argument| {
                if verb == "RNTO" && argument.ends_with(".phoebus-moved") {
                    client.files.lock().unwrap().remove("/b");
                }
                let aside = client.from().ends_with(".phoebus-moved");
                let refuses = verb == "RNTO" && argument == "/b" && aside;
                if refuses {
                    client.say("553 not now");
                }
                refuses
            }
        };
        let fake = twins("1g9", twist);
        let error = rename(&fake).await.unwrap_err();
        let names = fake.names();
        let aside = names.iter().find(|name| name.ends_with(".phoebus-moved")).unwrap();
        assert!(error.to_string().contains(&aside[1..]), "{error} {names:?}");
    }
}
