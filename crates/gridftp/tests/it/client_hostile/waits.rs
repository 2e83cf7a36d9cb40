//! Servers that send preliminary replies for ever.

use super::fake::tools::{Here, bytes, key, on, put_with, says, within};
use super::fake::{Client, Fake};
use phoebus_files::store::Store;
use phoebus_files::{Error, ErrorKind};
use phoebus_gridftp::client::Remote;
use std::time::Duration;

/// The time limit on silence: a tenth of the limit on a command without progress.
const SILENCE: Duration = Duration::from_millis(1500);

const NO_PROGRESS: &str = "112-Perf Marker\r\n Timestamp:  0.0\r\n Stripe Index: 0\r\n Stripe Bytes Transferred: 0\r\n Total Stripe Count: 1\r\n112 End.";

/// Sends `line` until the client disconnects.
fn repeat(client: &mut Client, line: &str) {
    loop {
        client.say(line);
        if client.has_gone(Duration::from_millis(200)) {
            return;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upload_that_makes_no_progress_ends() {
    let put = async |line: &'static str| {
        let fake = on("STOR", move |client, _| {
            client.say("150 go on");
            client.take();
            repeat(client, line);
        });
        put_with(within(&fake, SILENCE), &Here::with(&bytes(1000))).await.unwrap_err()
    };
    let (one, other) = tokio::join!(put("150 wait"), put(NO_PROGRESS));
    for error in [one, other] {
        says(&error, "x: the server sent only preliminary replies for 15 s, and made no progress");
        assert!(error.may_pass());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upload_that_is_slow_to_be_stored_is_waited_for() {
    let fake = on("STOR", |client, path| {
        client.say("150 go on");
        let content = client.take();
        for _ in 0..8 {
            client.say(NO_PROGRESS);
            std::thread::sleep(SILENCE / 4);
        }
        client.store(path, &content);
        client.say("226 done");
    });
    let content = bytes(1000);
    put_with(within(&fake, SILENCE), &Here::with(&content)).await.unwrap();
    assert_eq!(fake.get("/x"), Some(content));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_listing_that_makes_no_progress_ends() {
    let fake = on("MLSD", |client, _| {
        client.say("150 coming");
        std::io::Write::write_all(&mut client.data(), b"type=file;size=1; a\r\n").unwrap();
        repeat(client, "150 wait");
    });
    let remote = Remote::connect(within(&fake, SILENCE)).await.unwrap();
    let mut listing = remote.list(&key("d")).await.unwrap();
    let error = loop {
        match listing.more().await {
            Ok(page) => assert!(!page.is_empty(), "the listing is taken for complete"),
            Err(error) => break error,
        }
    };
    assert!(matches!(&error, Error::Stalled { after, .. } if *after == SILENCE * 10), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_checksum_that_is_never_told_is_given_up() {
    let fake = on("CKSM", |client, _| repeat(client, "113 still at it"));
    let error = put_with(within(&fake, SILENCE), &Here::with(&bytes(1000))).await.unwrap_err();
    says(&error, "the server sent only preliminary replies for 15 s, and made no progress");
    assert_eq!(error.kind(), ErrorKind::Passing);
    drop::<Fake>(fake);
}
