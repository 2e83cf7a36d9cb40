//! Servers that alter names.

use super::fake::tools::{key, remote};
use super::fake::{Client, Fake};
use phoebus_files::Links;
use phoebus_files::Retry;
use phoebus_files::job::{Job, Report};
use phoebus_files::key::Key;
use phoebus_files::local::Local;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Copies files with these names to a server that stores each under the name that `calls` returns, and lists those that
/// `lists` accepts.
async fn carry(
    names: &[&str],
    calls: impl Fn(&str) -> String + Send + Sync + 'static,
    lists: impl Fn(&str) -> bool + Send + Sync + 'static,
) -> (Report, Vec<String>, usize) {
    carry_with(names, calls, lists, |_, _, _, _| false).await
}

/// The same. `twist` may answer a command itself; it receives the number of listings so far, and returns whether it
/// answered.
async fn carry_with(
    names: &[&str],
    calls: impl Fn(&str) -> String + Send + Sync + 'static,
    lists: impl Fn(&str) -> bool + Send + Sync + 'static,
    twist: impl Fn(&mut Client, &str, &str, usize) -> bool + Send + Sync + 'static,
) -> (Report, Vec<String>, usize) {
    let listings = AtomicUsize::new(0);
    let fake = Fake::with(move |client, verb, argument| match verb {
        _ if twist(client, verb, argument, listings.load(Ordering::Relaxed) + usize::from(verb == "MLSD")) => {
            listings.fetch_add(usize::from(verb == "MLSD"), Ordering::Relaxed);
            true
        }
        "MLSD" => {
            listings.fetch_add(1, Ordering::Relaxed);
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
    let retry = Retry { attempts: 2, first: Duration::from_millis(1), ..Retry::default() };
    let job = Job { retry, files: 1, short: 1, ..Job::new(Arc::new(source), Arc::new(remote(&fake).await)) };
    let report = job.run([(key("d"), Key::ROOT)]).await;
    let listed = fake.log().iter().filter(|line| line.starts_with("MLSD")).count();
    (report, fake.names(), listed)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_server_calls_otherwise_is_a_failure() {
    let all = |_: &str| true;
    // The server keeps names as they are.
    let (report, names, listed) = carry(&["FOO", "bar"], str::to_owned, all).await;
    assert!(report.is_complete() && names == ["/FOO", "/bar"] && report.unlisted.is_none(), "{report:?}");
    // One listing before the copy, and one after it.
    assert_eq!(listed, 2);
    let (report, ..) = carry(&["FOO", "bar"], str::to_lowercase, all).await;
    assert!(report.failed == 1 && report.failures[0].1.to_string().contains("it calls it \"foo\""), "{report:?}");
    // Two names that the server shortens to the same name.
    let cut = |name: &str| match name.ends_with(".phoebus-part") {
        true => name.to_owned(),
        false => name.chars().take(10).collect(),
    };
    let (report, names, _) = carry(&["a-long-name-1", "a-long-name-2"], cut, all).await;
    assert!(report.failed == 2 && names == ["/a-long-nam"], "{report:?} {names:?}");
    // The same, but the server finds neither file by its own name, and the remaining file is not one that existed
    // before.
    let (report, names, _) =
        carry_with(&["a-long-name-1", "a-long-name-of-2"], cut, all, |client, verb, argument, _| {
            let is_long = verb == "MLST" && argument.len() > 11 && !argument.ends_with(".phoebus-part");
            if is_long {
                client.say("550 No such file or directory");
            }
            is_long
        })
        .await;
    assert!(report.failed == 2 && names == ["/a-long-nam"], "{report:?} {names:?}");
    let (report, names, _) = carry(&["Bar", "bar"], str::to_lowercase, all).await;
    assert!(report.failed > 0 && names == ["/bar"], "{report:?}");
    // A hidden file is found although the listing lacks it.
    let (report, ..) = carry(&[".hidden", "bar"], str::to_owned, |name| !name.starts_with('.')).await;
    assert!(report.is_complete(), "{report:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_found_is_told_whatever_else_cannot_be_seen() {
    let hidden = |name: &str| name != ".secret";
    let calls = |name: &str| if name == "Foo" { "foo".to_owned() } else { name.to_owned() };
    let (report, ..) = carry_with(&[".secret", "Foo", "bar"], calls, hidden, |client, verb, argument, listings| {
        let denied = verb == "MLST" && argument == "/.secret" && listings > 1;
        if denied {
            client.say("550 Permission denied");
        }
        denied
    })
    .await;
    let failures: Vec<String> = report.failures.iter().map(|(_, error)| error.to_string()).collect();
    let told = |words: &str| failures.iter().any(|failure| failure.contains(words));
    assert!(failures.len() == 2 && told("it calls it \"foo\"") && told("Permission denied"), "{report:?}");
    // A listing that fails with a passing error is repeated.
    let (report, _, listed) = carry_with(
        &["Foo"],
        calls,
        |_| true,
        |client, verb, _, listings| {
            let fails = verb == "MLSD" && listings == 2;
            if fails {
                client.say("425 no data connection");
            }
            fails
        },
    )
    .await;
    assert!(report.failed == 1 && report.unlisted.is_none() && listed == 3, "{report:?} {listed}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_taken_away_at_once_is_no_failure() {
    let takes = |client: &mut Client, verb: &str, _: &str, listings: usize| {
        if verb == "MLSD" && listings == 2 {
            client.files.lock().unwrap().remove("/experiment-1.h5");
        }
        false
    };
    let (report, ..) = carry_with(&["experiment", "experiment-1.h5"], str::to_owned, |_| true, takes).await;
    assert!(report.is_complete() && (report.carried, report.gone) == (2, 1), "{report:?}");
    // A file that exists under its own name is not taken for another file with a similar name.
    let shown = |name: &str| name != "experiment-1.h5";
    let (report, ..) = carry(&["experiment", "experiment-1.h5"], str::to_owned, shown).await;
    assert!(report.is_complete() && (report.carried, report.gone) == (2, 0), "{report:?}");
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
    std::fs::create_dir(dir.path().join("d")).unwrap();
    std::fs::write(dir.path().join("d/x"), "x").unwrap();
    let source = Arc::new(Local::new(dir.path(), Links::Beneath).unwrap());
    let report = Job::new(source.clone(), Arc::new(remote(&fake).await)).run([(key("d"), Key::ROOT)]).await;
    assert!(report.is_complete() && report.unlisted.is_some_and(|why| why.contains("Permission denied")));
    // For a single file, no directory is listed.
    let listed = || fake.log().iter().filter(|line| line.starts_with("MLSD")).count();
    let before = listed();
    let report = Job::new(source, Arc::new(remote(&fake).await)).run([(key("d/x"), key("y"))]).await;
    assert!(
        report.is_complete() && report.carried == 1 && report.unlisted.is_none() && listed() == before,
        "{report:?}"
    );
}
