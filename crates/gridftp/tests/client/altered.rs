//! Servers that call files otherwise than they were told to.

use super::fake::Fake;
use super::fake::tools::{key, remote};
use phoebus_files::Links;
use phoebus_files::job::{Job, Report, Retry};
use phoebus_files::key::Key;
use phoebus_files::local::Local;
use std::io::Write;
use std::sync::Arc;

/// Carries files of these names to a server that takes each name for what `calls` makes of it, and lists those that `lists` says.
async fn carry(
    names: &[&str],
    calls: impl Fn(&str) -> String + Send + Sync + 'static,
    lists: impl Fn(&str) -> bool + Send + Sync + 'static,
) -> (Report, Vec<String>, usize) {
    let fake = Fake::with(move |client, verb, argument| match verb {
        "MLSD" => {
            let names: Vec<(String, usize)> = {
                let files = client.files.lock().unwrap();
                files.iter().map(|(path, bytes)| (path[1..].to_owned(), bytes.len())).collect()
            };
            client.say("150 coming");
            let mut data = client.data();
            for (name, size) in names.into_iter().filter(|(name, _)| lists(name)) {
                data.write_all(format!("type=file;size={size}; {name}\r\n").as_bytes()).unwrap();
            }
            drop(data);
            client.say("226 done");
            true
        }
        "MKD" => {
            client.say("550 exists");
            true
        }
        "MLST" if matches!(argument, "/" | "/d") => {
            client.say(&format!("250-Listing\r\n type=dir; {argument}\r\n250 End"));
            true
        }
        _ => match argument.split_once('/') {
            Some((before, name)) => {
                let name = name.strip_prefix("d/").unwrap_or(name);
                client.answer(verb, &format!("{before}/{}", calls(name)));
                true
            }
            None => false,
        },
    });
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("d")).unwrap();
    for name in names {
        std::fs::write(dir.path().join("d").join(name), name).unwrap();
    }
    let source = Local::new(dir.path(), Links::Beneath).unwrap();
    let retry = Retry { attempts: 1, ..Retry::default() };
    let job = Job { retry, files: 1, short: 1, ..Job::new(Arc::new(source), Arc::new(remote(&fake).await)) };
    let report = job.run([(key("d"), Key::ROOT)]).await;
    let listed = fake.log().iter().filter(|line| line.starts_with("MLSD")).count();
    (report, fake.names(), listed)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_server_calls_otherwise_is_a_failure() {
    let all = |_: &str| true;
    // As it is said.
    let (report, names, listed) = carry(&["FOO", "bar"], str::to_owned, all).await;
    assert!(report.is_complete() && names == ["/FOO", "/bar"] && report.unlisted.is_none(), "{report:?}");
    // Once before, and once when they are there.
    assert_eq!(listed, 2);
    let (report, ..) = carry(&["FOO", "bar"], str::to_lowercase, all).await;
    assert!(report.failed == 1 && report.failures[0].1.to_string().contains("it calls it \"foo\""), "{report:?}");
    // Two files that became one.
    let cut = |name: &str| match name.ends_with(".phoebus-part") {
        true => name.to_owned(),
        false => name.chars().take(10).collect(),
    };
    let (report, names, _) = carry(&["a-long-name-1", "a-long-name-2"], cut, all).await;
    assert!(report.failed == 2 && names == ["/a-long-nam"], "{report:?} {names:?}");
    let (report, names, _) = carry(&["Bar", "bar"], str::to_lowercase, all).await;
    assert!(report.failed > 0 && names == ["/bar"], "{report:?}");
    // What is hidden is there.
    let (report, ..) = carry(&[".hidden", "bar"], str::to_owned, |name| !name.starts_with('.')).await;
    assert!(report.is_complete(), "{report:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn that_a_server_lists_nothing_is_told_and_no_failure() {
    let fake = Fake::with(|client, verb, argument| match verb {
        "MLSD" => {
            client.say("550 Permission denied");
            true
        }
        "MKD" => {
            client.say("550 exists");
            true
        }
        "MLST" if argument == "/" => {
            client.say("250-Listing\r\n type=dir; /\r\n250 End");
            true
        }
        _ => false,
    });
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("x"), "x").unwrap();
    let source = Local::new(dir.path(), Links::Beneath).unwrap();
    let report = Job::new(Arc::new(source), Arc::new(remote(&fake).await)).run([(key("x"), key("x"))]).await;
    assert!(report.is_complete() && report.unlisted.is_some_and(|why| why.contains("Permission denied")));
}
