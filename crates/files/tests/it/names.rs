//! Whether a remote destination has stored files under the requested names.

use crate::common;
use common::{Far, key, local};
use phoebus_files::Retry;
use phoebus_files::Stop;
use phoebus_files::job::{Event, Job, Report, Watcher};
use phoebus_files::key::Key;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tempfile::tempdir;

/// A job to a server that alters names, for all files in `from`.
fn job(from: &Path, far: &Far) -> Job {
    far.faults.alters.store(1, Ordering::Relaxed);
    let retry = Retry { attempts: 3, first: Duration::from_millis(1), most: Duration::from_millis(1) };
    Job { retry, ..Job::new(Arc::new(local(from)), Arc::new(far.clone())) }
}

#[tokio::test(flavor = "multi_thread")]
async fn of_what_answers_nothing_is_said_where_names_cannot_be_listed() {
    let (from, to) = (tempdir().unwrap(), tempdir().unwrap());
    let far = Far::new(to.path());
    let carry = async |names: &[&str], taken: &str| -> Report {
        far.faults.unlisted.store(1000, Ordering::Relaxed);
        for name in names {
            fs::write(from.path().join(name), name).unwrap();
        }
        let taking = Arc::new(Taking(to.path().join(taken)));
        let job = Job { watcher: taking, ..job(from.path(), &far) };
        job.run(names.iter().map(|name| (key(name), key(name)))).await
    };
    let report = carry(&["caf\u{e9}", "plain", "taken"], "taken").await;
    assert_eq!((report.failed, report.gone), (0, 1), "{report:?}");
    assert!(report.unlisted.is_some_and(|why| why.contains("busy")));
    // A missing name that no server alters counts as gone. One that some servers alter is a failure.
    let report = carry(&["a:stream", "plain"], "a:stream").await;
    assert_eq!((report.failed, report.gone), (1, 0), "{report:?}");
}

/// Removes one file as soon as it exists.
#[derive(Debug)]
struct Taking(std::path::PathBuf);

impl Watcher for Taking {
    fn saw(&self, event: &Event<'_>) {
        if let Event::Carried { to, .. } = event
            && self.0.ends_with(to.to_string())
        {
            fs::remove_file(&self.0).unwrap();
        }
    }
}

/// Counts repeated attempts, and stops the job at the first if requested.
#[derive(Debug)]
struct Again {
    count: AtomicU64,
    stop: Option<Stop>,
}

impl Watcher for Again {
    fn saw(&self, event: &Event<'_>) {
        if let Event::Again { .. } = event {
            self.count.fetch_add(1, Ordering::Relaxed);
            if let Some(stop) = &self.stop {
                stop.ask();
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_does_not_list_is_not_tried_again_for_each_directory() {
    let (from, to) = (tempdir().unwrap(), tempdir().unwrap());
    for dir in 0..40 {
        fs::create_dir(from.path().join(dir.to_string())).unwrap();
        fs::write(from.path().join(dir.to_string()).join("f"), "f").unwrap();
    }
    let far = Far::new(to.path());
    far.faults.unlisted.store(1000, Ordering::Relaxed);
    let all = [(Key::ROOT, Key::ROOT)];
    let again = Arc::new(Again { count: 0.into(), stop: None });
    let report = Job { watcher: again.clone(), ..job(from.path(), &far) }.run(all.clone()).await;
    assert!(report.is_complete() && report.unlisted.is_some(), "{report:?}");
    // At most two attempts of each concurrent check.
    assert!(again.count.load(Ordering::Relaxed) <= 8, "{again:?}");
    // A job that is told to stop does not wait for it.
    let there = tempdir().unwrap();
    let (far, stop) = (Far::new(there.path()), Stop::default());
    far.faults.unlisted.store(1000, Ordering::Relaxed);
    let again = Arc::new(Again { count: 0.into(), stop: Some(stop.clone()) });
    let mut job = Job { watcher: again, ..job(from.path(), &far) };
    job.retry = Retry { attempts: 2, first: Duration::from_secs(3600), most: Duration::from_secs(3600) };
    job.how.stop = stop;
    job.run(all).await;
}
