//! Jobs: trees, filters, what is there already, and what fails.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;

use common::{Far, content, key, local};
use phoebus_files::Sort;
use phoebus_files::job::{Event, Job, Retry, Watcher};
use phoebus_files::key::Key;
use phoebus_files::plan::{By, Existing, Filter, Pattern, expand};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};
use tempfile::{TempDir, tempdir};

/// What happened, in words.
#[derive(Debug, Default)]
struct Log(Mutex<Vec<String>>);

impl Watcher for Log {
    fn saw(&self, event: &Event<'_>) {
        let text = match event {
            Event::Carry { to, reason, .. } => format!("{to}: {reason}"),
            Event::Again { to, error, .. } => format!("{to} again: {error}"),
            Event::Failed { key, error } => format!("{key} failed: {error}"),
            _ => return,
        };
        self.0.lock().unwrap().push(text);
    }
}

impl Log {
    fn sorted(&self) -> Vec<String> {
        let mut all = std::mem::take(&mut *self.0.lock().unwrap());
        all.sort();
        all
    }
}

fn tree() -> TempDir {
    let dir = tempdir().unwrap();
    for (name, len) in [("a.h5", 100), ("b.tmp", 5), ("run/c.h5", 50_000), ("run/deep/er/d.h5", 1), ("run/.hidden", 3)]
    {
        let path = dir.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, content(len, 3)).unwrap();
        let time = SystemTime::UNIX_EPOCH + Duration::from_millis(1_500_000_000_250 + len as u64);
        fs::File::options().append(true).open(&path).unwrap().set_modified(time).unwrap();
    }
    fs::create_dir(dir.path().join("empty")).unwrap();
    fs::set_permissions(dir.path().join("run/deep"), fs::Permissions::from_mode(0o550)).unwrap();
    dir
}

/// Paths with what is in them, for files, and their times and modes.
fn seen(root: &Path) -> BTreeMap<String, (Option<Vec<u8>>, SystemTime, u32)> {
    let (mut all, mut dirs) = (BTreeMap::new(), vec![root.to_owned()]);
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            let meta = fs::metadata(&path).unwrap();
            let bytes = meta.is_file().then(|| fs::read(&path).unwrap());
            let name = path.strip_prefix(root).unwrap().display().to_string();
            all.insert(name, (bytes, meta.modified().unwrap(), meta.mode() & 0o777));
            if meta.is_dir() {
                dirs.push(path);
            }
        }
    }
    all
}

fn job(from: &Path, to: &Path) -> (Job, Arc<Log>) {
    let log = Arc::new(Log::default());
    let retry = Retry { attempts: 3, first: Duration::from_millis(1), most: Duration::from_millis(2) };
    let job = Job::new(Arc::new(local(from)), Arc::new(local(to)));
    (Job { watcher: log.clone(), retry, ..job }, log)
}

const ALL: [(Key, Key); 1] = [(Key::ROOT, Key::ROOT)];

#[tokio::test(flavor = "multi_thread")]
async fn a_tree_is_carried_once_and_then_only_what_changed() {
    let (from, to) = (tree(), tempdir().unwrap());
    let (job, log) = job(from.path(), to.path());
    let dry = Job { dry_run: true, ..job.clone() };
    let planned = dry.run(ALL).await;
    assert_eq!((planned.carried, planned.bytes, planned.moved), (5, 50_109, 0));
    assert!(seen(to.path()).is_empty(), "a dry run wrote something");
    log.sorted();

    let report = job.run(ALL).await;
    assert!(report.is_complete(), "{report:?}");
    assert_eq!((report.carried, report.moved, report.skipped), (5, 50_109, 0));
    assert_eq!(seen(to.path()), seen(from.path()));
    assert!(log.sorted().contains(&"run/c.h5: not there".into()));

    let again = job.run(ALL).await;
    assert_eq!((again.carried, again.skipped, again.failed), (0, 5, 0));
    fs::write(from.path().join("a.h5"), content(100, 4)).unwrap();
    fs::write(from.path().join("b.tmp"), "longer than before").unwrap();
    let report = job.run(ALL).await;
    assert_eq!((report.carried, report.skipped), (2, 3));
    assert_eq!(log.sorted(), ["a.h5: newer", "b.tmp: another size"]);
    assert_eq!(seen(to.path()), seen(from.path()));
}

#[tokio::test(flavor = "multi_thread")]
async fn checksums_find_what_sizes_and_times_do_not() {
    let (from, to) = (tree(), tempdir().unwrap());
    let (job, log) = job(from.path(), to.path());
    assert!(job.run(ALL).await.is_complete());
    let (path, time) =
        (to.path().join("run/c.h5"), fs::metadata(to.path().join("run/c.h5")).unwrap().modified().unwrap());
    let mut bytes = fs::read(&path).unwrap();
    bytes[30_000] ^= 4;
    fs::write(&path, bytes).unwrap();
    fs::File::options().append(true).open(&path).unwrap().set_modified(time).unwrap();
    log.sorted();
    assert_eq!(job.run(ALL).await.carried, 0);
    let by_checksum = Job { existing: Existing::Sync(By::Checksum), ..job };
    assert_eq!(by_checksum.run(ALL).await.carried, 1);
    assert_eq!(log.sorted(), ["run/c.h5: another checksum"]);
    assert_eq!(seen(to.path()), seen(from.path()));
}

#[tokio::test(flavor = "multi_thread")]
async fn filters_and_patterns_choose() {
    let (from, to) = (tree(), tempdir().unwrap());
    let (job, log) = job(from.path(), to.path());
    let mut filter = Filter::default();
    filter.exclude("*.tmp").unwrap();
    filter.exclude("deep/").unwrap();
    let job = Job { filter: Arc::new(filter), parents: true, ..job };
    job.run([(Key::ROOT, key("x/y"))]).await;
    let files: Vec<_> = seen(to.path()).into_keys().collect();
    assert_eq!(files, ["x", "x/y", "x/y/a.h5", "x/y/empty", "x/y/run", "x/y/run/.hidden", "x/y/run/c.h5"]);
    assert_eq!(log.sorted().len(), 3);

    let store = local(from.path());
    for (pattern, expected) in [
        ("*.h5", "a.h5"),
        ("r*/*", "run/c.h5 run/deep"),
        ("run/.h*", "run/.hidden"),
        ("{run,none}/[a-c].h5", "run/c.h5"),
        ("none/*", ""),
        ("run/deep/er/d.h5", "run/deep/er/d.h5"),
    ] {
        let found = expand(&store, &Pattern::parse(pattern).unwrap()).await.unwrap();
        let found: Vec<_> = found.into_iter().map(|(key, _)| key.to_string()).collect();
        assert_eq!(found.join(" "), expected, "{pattern}");
    }
    assert!(Pattern::parse("a/**/b").is_err() && Pattern::parse("a/[b").is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_fails_is_told_and_the_rest_is_carried() {
    let (from, to) = (tree(), tempdir().unwrap());
    symlink("nowhere", from.path().join("dangling")).unwrap();
    symlink("a.h5", from.path().join("alias")).unwrap();
    symlink("run", from.path().join("loop")).unwrap();
    fs::create_dir_all(to.path().join("run/c.h5")).unwrap();
    let (job, log) = job(from.path(), to.path());
    let report = job.run([ALL[0].clone(), (key("absent"), key("absent"))]).await;
    assert_eq!((report.carried, report.failed, report.left), (5, 2, 2));
    assert!(!report.is_complete());
    let failed: Vec<_> = log.sorted().into_iter().filter(|line| line.contains("failed")).collect();
    let (to_path, from_path) = (to.path().display(), from.path().display());
    assert_eq!(
        failed,
        [
            format!("absent failed: {from_path}/absent does not exist"),
            format!("run/c.h5 failed: {to_path}/run/c.h5 is a directory, not a file"),
        ]
    );
    assert_eq!(fs::read(to.path().join("alias")).unwrap(), content(100, 3));
    let sort = |name: &str| report.failures.iter().find(|(failed, _)| *failed == key(name)).unwrap().1.sort();
    assert_eq!((sort("absent"), sort("run/c.h5")), (Sort::NotFound, Sort::Request));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_may_pass_is_tried_again() {
    let (from, to) = (tree(), tempdir().unwrap());
    let (job, log) = job(from.path(), to.path());
    let far = Far::new(from.path());
    far.faults.fail.store(2, Ordering::Relaxed);
    far.faults.damage.store(0, Ordering::Relaxed);
    let job = Job { source: Arc::new(far), files: 1, ..job };
    let report = job.run(ALL).await;
    assert!(report.is_complete(), "{report:?}");
    // An attempt asks in several pieces at a time, and may meet both faults.
    let again = log.sorted().into_iter().filter(|line| line.contains("again")).count();
    assert!((1..=2).contains(&again), "{again}");
    assert_eq!(seen(to.path()), seen(from.path()));
}
