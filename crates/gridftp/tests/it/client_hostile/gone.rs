//! Replies about names that do not exist, and about files that the server cannot read.

use super::fake::Fake;
use super::fake::tools::{key, remote};
use phoebus_files::Links;
use phoebus_files::Retry;
use phoebus_files::job::{Job, Report};
use phoebus_files::key::Key;
use phoebus_files::local::Local;
use std::sync::Arc;

/// Mirrors a server that lists only `/x` to a directory that also has `lost`. The server answers MLST about `lost` and
/// about other missing names with these replies. Returns the report, and whether `lost` was deleted.
async fn mirror(lost: &'static str, nothing: &'static str) -> (Report, bool) {
    let fake = Fake::with(move |client, verb, argument| {
        if verb != "MLST" || argument == "/x" {
            return false;
        }
        client.say(&if argument == "/lost" { lost } else { nothing }.replace("NAME", argument));
        true
    });
    fake.put("/x", b"x");
    let dir = tempfile::tempdir().unwrap();
    for name in ["x", "lost"] {
        std::fs::create_dir_all(dir.path().join("d")).unwrap();
        std::fs::write(dir.path().join("d").join(name), "old").unwrap();
    }
    let dest = Local::new(dir.path(), Links::Beneath).unwrap();
    let retry = Retry { attempts: 1, ..Retry::default() };
    let job = Job { delete: Some(10), retry, ..Job::new(Arc::new(remote(&fake).await), Arc::new(dest)) };
    let report = job.run([(Key::ROOT, key("d"))]).await;
    (report, !dir.path().join("d/lost").exists())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_deleted_of_which_the_server_does_not_say_that_it_is_gone() {
    for (lost, nothing, gone) in [
        ("550 NAME: No such file or directory", "550 NAME: No such file or directory", true),
        // One reply for all.
        ("550 Could not look.", "550 Could not look.", true),
        ("550 NAME cannot be had.", "550 NAME cannot be had.", true),
        ("550 NAME: Input/output error", "550 NAME: No such file or directory", false),
        ("550 NAME: Stale file handle", "550 NAME: Stale file handle", false),
        ("550 The disk is broken.", "550 NAME: No such file or directory", false),
    ] {
        let (report, deleted) = mirror(lost, nothing).await;
        assert_eq!((report.failed == 0, report.not_deleted, deleted), (gone, !gone, gone), "{lost}: {report:?}");
    }
}
