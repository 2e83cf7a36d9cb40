//! Many short files between two directories: one thread carries them and syncs them together, but each has a result of
//! its own.

use crate::common;
use common::{content, key};
use phoebus_files::job::{Event, Job, Report, Watcher};
use phoebus_files::key::Key;
use phoebus_files::local::Local;
use phoebus_files::{ErrorKind, Links};
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;
use tempfile::{TempDir, tempdir};

/// More than one batch.
const FILES: usize = 300;

fn local(dir: &Path) -> Local {
    Local::new(dir, Links::Beneath).unwrap()
}

fn many() -> TempDir {
    let dir = tempdir().unwrap();
    for i in 0..FILES {
        fs::write(dir.path().join(format!("f{i:03}")), content(i * 7 % 3000, i as u64)).unwrap();
    }
    dir
}

/// Runs a function when a file begins to be carried.
struct At<F>(F);

impl<F: Fn(&Key) + Send + Sync> Watcher for At<F> {
    fn saw(&self, event: &Event<'_>) {
        if let Event::Carry { to, .. } = event {
            self.0(to);
        }
    }
}

impl<F> std::fmt::Debug for At<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("At").finish()
    }
}

async fn carried(from: &Path, to: &Path, at: impl Fn(&Key) + Send + Sync + 'static) -> Report {
    let job = Job::new(Arc::new(local(from)), Arc::new(local(to)));
    Job { watcher: Arc::new(At(at)), ..job }.run([(Key::ROOT, Key::ROOT)]).await
}

/// The names in `to`, none of which may be a draft. Asserts that files have the bytes of those in `from`.
fn whole(from: &Path, to: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(to).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    for name in &names {
        let path = to.join(name);
        assert!(!path.is_file() || fs::read(path).unwrap() == fs::read(from.join(name)).unwrap(), "{name}");
    }
    names
}

#[tokio::test(flavor = "multi_thread")]
async fn what_fails_in_a_batch_leaves_the_others_alone() {
    let (from, to) = (many(), tempdir().unwrap());
    fs::create_dir(to.path().join("f010")).unwrap();
    let lost = from.path().join("f020");
    let report = carried(from.path(), to.path(), move |to| {
        if *to == key("f020") {
            fs::remove_file(&lost).unwrap();
        }
    })
    .await;
    assert_eq!((report.carried, report.failed), (FILES as u64 - 2, 2));
    let kind = |name: &str| report.failures.iter().find(|(failed, _)| *failed == key(name)).unwrap().1.kind();
    assert_eq!((kind("f010"), kind("f020")), (ErrorKind::Request, ErrorKind::NotFound));
    assert_eq!(whole(from.path(), to.path()).len(), FILES - 1);
    // Existing files are not carried again.
    let again = carried(from.path(), to.path(), |_| {}).await;
    assert_eq!((again.carried, again.skipped, again.failed), (0, FILES as u64 - 2, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn file_that_has_grown_is_carried_whole() {
    let (from, to) = (many(), tempdir().unwrap());
    let grown = from.path().join("f005");
    let report = carried(from.path(), to.path(), move |to| {
        if *to == key("f005") {
            fs::write(&grown, content(3 << 20, 1)).unwrap();
        }
    })
    .await;
    assert!(report.is_complete(), "{report:?}");
    assert_eq!(whole(from.path(), to.path()).len(), FILES);
}

#[tokio::test(flavor = "multi_thread")]
async fn request_to_stop_ends_batches_between_files() {
    let (from, to) = (many(), tempdir().unwrap());
    let job = Job::new(Arc::new(local(from.path())), Arc::new(local(to.path())));
    let stop = job.how.stop.clone();
    let watcher = Arc::new(At(move |to: &Key| {
        if *to == key("f200") {
            stop.ask();
        }
    }));
    let report = Job { watcher, ..job }.run([(Key::ROOT, Key::ROOT)]).await;
    assert!(report.stopped && report.carried < FILES as u64, "{report:?}");
    assert_eq!(whole(from.path(), to.path()).len() as u64, report.carried);
}

/// The variable with the directory for [`within_few_descriptors`].
const DIR: &str = "PHOEBUS_TEST_FEW_DESCRIPTORS";

/// The work of the process that may open few files. As an ordinary test, it does nothing.
#[tokio::test(flavor = "multi_thread")]
async fn within_few_descriptors() {
    let Some(dir) = std::env::var_os(DIR) else { return };
    let from = many();
    let report = carried(from.path(), Path::new(&dir), |_| {}).await;
    assert!(report.is_complete(), "{report:?}");
    assert_eq!(whole(from.path(), Path::new(&dir)).len(), FILES);
}

#[test]
fn few_descriptors_make_small_batches() {
    for limit in [64, 180, 256] {
        let to = tempdir().unwrap();
        let script = format!("ulimit -n {limit}; exec \"$0\" --exact batches::within_few_descriptors");
        let exe = std::env::current_exe().unwrap();
        let status = Command::new("sh").args(["-c", &script]).arg(exe).env(DIR, to.path()).status().unwrap();
        assert!(status.success(), "{limit}");
        assert_eq!(fs::read_dir(to.path()).unwrap().count(), FILES, "{limit}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn batch_ends_with_its_job() {
    let (from, to) = (many(), tempdir().unwrap());
    let (go, waits) = mpsc::channel::<()>();
    let (waits, begun) = (Mutex::new(waits), Arc::new(AtomicUsize::new(0)));
    let counted = begun.clone();
    let watcher = Arc::new(At(move |_: &Key| {
        counted.fetch_add(1, Ordering::SeqCst);
        // Until the job has ended.
        let _ = waits.lock().unwrap().recv();
    }));
    let job = Job::new(Arc::new(local(from.path())), Arc::new(local(to.path())));
    let job = Job { watcher: watcher.clone(), ..job };
    let running = tokio::spawn(async move { job.run([(Key::ROOT, Key::ROOT)]).await });
    while begun.load(Ordering::SeqCst) == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    running.abort();
    assert!(running.await.unwrap_err().is_cancelled());
    drop(go);
    while Arc::strong_count(&watcher) > 1 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    // Each batch may have begun one file.
    assert!(begun.load(Ordering::SeqCst) <= 3);
}
