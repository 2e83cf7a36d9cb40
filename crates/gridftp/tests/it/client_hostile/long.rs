//! Servers whose listings are too long for the client's memory.

use super::fake::Fake;
use super::fake::tools::{key, remote};
use phoebus_files::store::{Kind, Meta, Store};
use phoebus_files::{Error, ErrorKind};
use std::io::{BufWriter, Write};

/// More names of 250 bytes than 64 MiB have room for.
const TOO_MANY: usize = 270_000;

/// A server that lists directories with such names, each of which is private.
fn long_names() -> Fake {
    Fake::with(|client, verb, _| {
        let begin = match verb {
            "MLSD" => "type=dir; ",
            "LIST" => "drwx------ 2 u g 5 Nov 21 10:00 ",
            _ => return false,
        };
        client.say("150 coming");
        let mut data = BufWriter::with_capacity(1 << 20, client.data());
        // A client that has enough closes it.
        let _ = (0..TOO_MANY).try_for_each(|i| write!(data, "{begin}{i:0250}\r\n"));
        drop(data);
        client.say("226 done");
        true
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_are_kept_up_to_a_number_of_bytes() {
    let fake = long_names();
    let remote = remote(&fake).await;
    let is_limit = |error: Error| {
        let expected = "the length of all its names in bytes is more than the 67108864 that are accepted";
        assert!(error.to_string().contains(expected) && error.kind() == ErrorKind::Request, "{error}");
    };
    is_limit(remote.kept_names(&key("d")).await.unwrap_err());
    is_limit(remote.own_dirs(&key("d")).await.unwrap_err());
    // The mode of one of them is as unknown as those of the others.
    let meta = Meta { kind: Kind::Dir, size: None, modified: None, mode: None, sparse: false, identity: None };
    let one = key("d").join(format!("{:0250}", 1)).unwrap();
    assert_eq!(remote.mode(&one, &meta, true).await.unwrap(), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_a_name_that_is_too_long_the_beginning_is_given() {
    let fake = Fake::with(|client, verb, _| {
        let is_list = verb == "MLSD";
        if is_list {
            client.list(&format!("type=file;size=1; {}\r\ntype=file;size=2; short\r\n", "n".repeat(60_000)));
        }
        is_list
    });
    let mut listing = remote(&fake).await.list(&key("d")).await.unwrap();
    let mut names = Vec::new();
    loop {
        let page = listing.more().await.unwrap();
        if page.is_empty() {
            break;
        }
        names.extend(page.into_iter().map(|entry| entry.name));
    }
    // The name is invalid here too, and the walk of the directory reports it.
    assert_eq!(names, ["n".repeat(256).into_bytes(), b"short".to_vec()]);
    assert!(key("d").join(&names[0]).is_err());
}
