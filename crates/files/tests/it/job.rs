//! Jobs: trees, filters, existing files, and failures.

use crate::common;
use common::{Far, content, key, local};
use phoebus_files::ErrorKind;
use phoebus_files::Retry;
use phoebus_files::job::{Comparison, Event, Job, Report, Watcher};
use phoebus_files::key::Key;
use phoebus_files::plan::{By, Existing, Filter, Pattern, expand};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};
use tempfile::{TempDir, tempdir};

/// The events, as text.
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

/// Paths with the content, times and modes of files.
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
    let kind = |name: &str| report.failures.iter().find(|(failed, _)| *failed == key(name)).unwrap().1.kind();
    assert_eq!((kind("absent"), kind("run/c.h5")), (ErrorKind::NotFound, ErrorKind::Request));
}

/// A server that has died fails each file. That nothing can be made durable there is no failure of its own.
#[tokio::test(flavor = "multi_thread")]
async fn only_what_was_carried_has_to_be_made_durable() {
    for (name, expected) in [("absent", (0, 1, false)), ("a.h5", (1, 1, true))] {
        let (from, to) = (tree(), tempdir().unwrap());
        let far = Far::new(to.path());
        far.faults.unsettled.store(9, Ordering::Relaxed);
        let (job, _) = job(from.path(), to.path());
        let job = Job { dest: Arc::new(far), ..job };
        let report = job.run([(key(name), key(name))]).await;
        assert_eq!((report.carried, report.failed, report.unsettled), expected, "{name}");
    }
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
    // An attempt sends several requests at a time, and may meet both faults.
    let again = log.sorted().into_iter().filter(|line| line.contains("again")).count();
    assert!((1..=2).contains(&again), "{again}");
    assert_eq!(seen(to.path()), seen(from.path()));
}

/// Keys beneath the root of `dir`, with links, which are not followed.
fn names(dir: &Path) -> Vec<String> {
    let (mut all, mut dirs) = (Vec::new(), vec![dir.to_owned()]);
    while let Some(at) = dirs.pop() {
        for entry in fs::read_dir(at).unwrap() {
            let path = entry.unwrap().path();
            all.push(path.strip_prefix(dir).unwrap().display().to_string());
            if path.symlink_metadata().unwrap().is_dir() {
                dirs.push(path);
            }
        }
    }
    all.sort();
    all
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_source_does_not_have_is_deleted_and_nothing_else() {
    let (from, to, outside) = (tree(), tempdir().unwrap(), tempdir().unwrap());
    let (job, _) = job(from.path(), to.path());
    assert!(job.run(ALL).await.is_complete());
    let all = names(to.path());
    fs::write(outside.path().join("precious"), "x").unwrap();
    fs::create_dir_all(to.path().join("old/er")).unwrap();
    for name in ["old/er/x", "old/y", "run/z", "run/kept.tmp"] {
        fs::write(to.path().join(name), "x").unwrap();
    }
    symlink(outside.path(), to.path().join("old/link")).unwrap();
    symlink(outside.path(), to.path().join("run/link")).unwrap();
    let before = names(to.path());
    let mut filter = Filter::default();
    filter.exclude("kept.tmp").unwrap();
    let job = Job { filter: Arc::new(filter), delete: Some(6), ..job };

    // More names than the limit, so nothing is deleted.
    let report = job.run(ALL).await;
    assert!(report.failed == 1 && report.not_deleted && report.deleted == 0, "{report:?}");
    assert!(report.failures[0].1.to_string().contains("more than 6 files"), "{:?}", report.failures);
    assert_eq!(names(to.path()), before);
    let dry = Job { delete: Some(7), dry_run: true, ..job.clone() }.run(ALL).await;
    assert_eq!((dry.deleted, names(to.path())), (7, before.clone()), "a dry run deleted something");

    let job = Job { delete: Some(7), ..job };
    let report = job.run(ALL).await;
    assert!(report.is_complete() && report.deleted == 7, "{report:?}");
    let mut expected = [all, vec!["run/kept.tmp".to_owned()]].concat();
    expected.sort();
    assert_eq!(names(to.path()), expected);
    assert!(outside.path().join("precious").exists(), "a link was followed");
    assert_eq!(job.run(ALL).await.deleted, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_draft_is_deleted_that_somebody_writes_or_may_write() {
    let (from, to) = (tree(), tempdir().unwrap());
    let (job, _) = job(from.path(), to.path());
    assert!(job.run(ALL).await.is_complete());
    // Drafts beside names that stay, in a directory that is deleted, and of a writer whose lock is not visible.
    let beside = ["run/.x.phoebus-draft", ".y.0123456789abcdef.phoebus-part"];
    let within = [
        "old/.x.phoebus-draft",
        "old/.x.phoebus-journal",
        "older/.y.phoebus-draft",
        "oldest/.z.0123456789abcdef.phoebus-part",
    ];
    for dir in ["old", "older", "oldest"] {
        fs::create_dir(to.path().join(dir)).unwrap();
    }
    beside.iter().chain(&within).for_each(|name| fs::write(to.path().join(name), "x").unwrap());
    let used = fs::File::open(to.path().join(within[0])).unwrap();
    used.lock().unwrap();
    let job = Job { delete: Some(100), ..job };
    let report = job.run(ALL).await;
    let there = |names: &[&str]| names.iter().map(|name| to.path().join(name).exists()).collect::<Vec<_>>();
    assert_eq!((there(&beside), there(&within)), (vec![true; 2], vec![true, true, false, true]), "{report:?}");
    assert!(!to.path().join("older").exists() && report.failed > 0, "{report:?}");
    // It is deleted after its writer has closed it.
    drop(used);
    let report = job.run(ALL).await;
    assert_eq!((there(&beside), there(&within)), (vec![true; 2], vec![false, false, false, true]), "{report:?}");
    assert!(!to.path().join("old").exists() && to.path().join("oldest").exists());
    // A draft that stays is not a failure.
    assert_eq!(report.failed, 0, "{report:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_deleted_after_a_failure_or_a_listing_that_is_not_whole() {
    let (from, to) = (tree(), tempdir().unwrap());
    let (job, _) = job(from.path(), to.path());
    assert!(job.run(ALL).await.is_complete());
    fs::write(to.path().join("run/extra"), "x").unwrap();
    let before = names(to.path());
    // One of several files that cannot be carried.
    fs::create_dir(to.path().join("new")).unwrap();
    fs::write(from.path().join("new"), "x").unwrap();
    let job = Job { delete: Some(100), ..job };
    let report = job.run(ALL).await;
    assert!(report.failed > 0 && report.not_deleted && to.path().join("run/extra").exists(), "{report:?}");
    fs::remove_dir(to.path().join("new")).unwrap();
    fs::remove_file(from.path().join("new")).unwrap();
    // Each listing of the source is cut after one entry: the first time with an error, and then as if it were complete.
    for silent in [false, true] {
        let far = Far::new(from.path());
        far.faults.cut_listings.store(if silent { 2 } else { 1 }, Ordering::Relaxed);
        let job = Job { source: Arc::new(far), ..job.clone() };
        let report = job.run(ALL).await;
        assert_eq!(report.not_deleted, !silent, "{report:?}");
        let found = names(to.path());
        let lost: Vec<_> = before.iter().filter(|name| !found.contains(name) && *name != "run/extra").collect();
        assert!(lost.is_empty(), "{lost:?} went, which the source has");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn links_are_carried_as_links_if_that_is_asked() {
    let (from, to) = (tempdir().unwrap(), tempdir().unwrap());
    fs::write(from.path().join("file"), "x").unwrap();
    fs::create_dir(from.path().join("dir")).unwrap();
    for (target, name) in [("file", "to-file"), ("dir", "to-dir"), ("/no/where", "to-nowhere")] {
        symlink(target, from.path().join(name)).unwrap();
    }
    let (job, _) = job(from.path(), to.path());
    let job = Job { links: true, existing: Existing::Sync(By::Equal), ..job };
    let report = job.run(ALL).await;
    assert!(report.is_complete() && report.carried == 4, "{report:?}");
    let led = |name: &str| fs::read_link(to.path().join(name)).unwrap().display().to_string();
    assert_eq!((led("to-file"), led("to-dir"), led("to-nowhere")), ("file".into(), "dir".into(), "/no/where".into()));
    let times = |dir: &TempDir| fs::symlink_metadata(dir.path().join("to-file")).unwrap().modified().unwrap();
    assert_eq!(times(&from), times(&to));
    assert_eq!(job.run(ALL).await.skipped, 4);
    // A link to another target is replaced, and so is a file, but not a directory.
    for name in ["to-file", "to-dir", "to-nowhere"] {
        fs::remove_file(to.path().join(name)).unwrap();
    }
    symlink("other", to.path().join("to-file")).unwrap();
    fs::write(to.path().join("to-dir"), "x").unwrap();
    fs::create_dir(to.path().join("to-nowhere")).unwrap();
    let report = job.run(ALL).await;
    assert_eq!((report.carried, report.skipped, report.failed), (2, 1, 1), "{report:?}");
    assert_eq!((led("to-file"), led("to-dir")), ("file".into(), "dir".into()));
    assert_eq!(names(to.path()).iter().filter(|name| name.contains("phoebus")).count(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mode_alone_that_changed_is_set() {
    let (from, to) = (tree(), tempdir().unwrap());
    let (job, _) = job(from.path(), to.path());
    let job = Job { existing: Existing::Sync(By::Equal), ..job };
    assert!(job.run(ALL).await.is_complete());
    fs::set_permissions(from.path().join("a.h5"), fs::Permissions::from_mode(0o750)).unwrap();
    let dry = Job { dry_run: true, ..job.clone() }.run(ALL).await;
    assert_eq!((dry.modes_set, dry.skipped), (1, 5));
    assert_ne!(seen(to.path()), seen(from.path()));
    let report = job.run(ALL).await;
    assert_eq!((report.modes_set, report.carried, report.skipped), (1, 0, 5), "{report:?}");
    assert_eq!(seen(to.path()), seen(from.path()));
    assert_eq!(job.run(ALL).await.modes_set, 0);
}

/// Notes the mode of a directory when the copy of a file into it begins.
#[derive(Debug)]
struct Looking(std::path::PathBuf, Mutex<Vec<u32>>);

impl Watcher for Looking {
    fn saw(&self, event: &Event<'_>) {
        if let Event::Carry { .. } = event {
            self.1.lock().unwrap().push(fs::metadata(&self.0).unwrap().mode() & 0o7777);
        }
    }
}

#[tokio::test]
async fn private_directories_are_private_while_they_are_filled() {
    let (from, to) = (tempdir().unwrap(), tempdir().unwrap());
    fs::create_dir(from.path().join("own")).unwrap();
    fs::write(from.path().join("own/a"), "secret").unwrap();
    fs::set_permissions(from.path().join("own"), fs::Permissions::from_mode(0o500)).unwrap();
    // New names in such a directory get its group.
    fs::set_permissions(to.path(), fs::Permissions::from_mode(0o2775)).unwrap();
    let looking = Arc::new(Looking(to.path().join("own"), Mutex::default()));
    let (source, dest) = (Arc::new(local(from.path())), Arc::new(local(to.path())));
    let job = Job { watcher: looking.clone(), ..Job::new(source, dest) };
    assert!(job.run(ALL).await.is_complete());
    assert_eq!(*looking.1.lock().unwrap(), [0o2700]);
    assert_eq!(fs::metadata(to.path().join("own")).unwrap().mode() & 0o7777, 0o2500);
}

/// Counts the files that are found before they are carried.
#[derive(Debug, Default)]
struct Counting(Mutex<(u64, u64, bool)>);

impl Watcher for Counting {
    fn saw(&self, event: &Event<'_>) {
        let mut counted = self.0.lock().unwrap();
        match event {
            Event::Found { meta } => {
                counted.0 += 1;
                counted.1 += meta.size.unwrap_or(0);
            }
            Event::Counted => counted.2 = true,
            _ => {}
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_far_tree_is_listed_ahead_and_again_and_counted() {
    let (from, to) = (tempdir().unwrap(), tempdir().unwrap());
    for dir in 0..12 {
        for file in ["a", "b/c", "b/d/e"] {
            let path = from.path().join(format!("{dir}/{file}"));
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, file).unwrap();
        }
    }
    let (source, dest) = (Far::new(from.path()), Far::new(to.path()));
    source.faults.passing.store(3, Ordering::Relaxed);
    dest.faults.passing.store(3, Ordering::Relaxed);
    let (job, log) = job(from.path(), to.path());
    let retry = Retry { attempts: 10, ..job.retry };
    let job = Job { source: Arc::new(source.clone()), dest: Arc::new(dest), retry, ..job };
    let report = job.run(ALL).await;
    assert!(report.is_complete() && report.carried == 36 && report.dirs == 37, "{report:?}");
    assert_eq!(seen(to.path()), seen(from.path()));
    let again = log.sorted().iter().filter(|line| line.contains(" again: far: busy")).count();
    assert!(again >= 6, "{again} were told of");
    let most = source.faults.most_listing.load(Ordering::Relaxed);
    assert!((2..=5).contains(&most), "{most} listings at a time");
    let counting = Arc::new(Counting::default());
    assert_eq!(Job { watcher: counting.clone(), ..job }.run(ALL).await.skipped, 36);
    assert_eq!(*counting.0.lock().unwrap(), (36, 12 * 9, true));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_listed_before_an_error_is_carried() {
    let (from, to) = (tempdir().unwrap(), tempdir().unwrap());
    fs::write(from.path().join("file"), "x").unwrap();
    let (job, _) = job(from.path(), to.path());
    let far = Far::new(from.path());
    far.faults.cut_listings.store(1, Ordering::Relaxed);
    let report = Job { source: Arc::new(far), ..job }.run(ALL).await;
    assert_eq!((report.carried, report.failed), (1, 1), "{report:?}");
    assert!(to.path().join("file").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn trees_that_differ_are_told_apart() {
    let (from, to) = (tree(), tempdir().unwrap());
    let (job, _) = job(from.path(), to.path());
    assert!(job.run(ALL).await.is_complete());
    symlink("a.h5", from.path().join("link")).unwrap();
    symlink("a.h5", to.path().join("link")).unwrap();
    let comparison = Comparison {
        source: job.source.clone(),
        dest: Arc::new(Far::new(to.path())),
        by: By::Checksum,
        filter: Arc::default(),
        one_way: false,
        at_once: 3,
    };
    let compare = async |comparison: &Comparison| {
        let mut found = Vec::new();
        comparison
            .run(&Key::ROOT, &Key::ROOT, |key, finding| {
                if !matches!(finding, Ok(None)) {
                    found.push(format!("{key}: {finding:?}"));
                }
            })
            .await;
        found.sort();
        found
    };
    assert_eq!(compare(&comparison).await, Vec::<String>::new());
    // The same size and time, but other bytes.
    let path = to.path().join("run/c.h5");
    let time = fs::metadata(&path).unwrap().modified().unwrap();
    fs::write(&path, content(50_000, 4)).unwrap();
    fs::File::options().append(true).open(&path).unwrap().set_modified(time).unwrap();
    fs::write(to.path().join("b.tmp"), "longer than before").unwrap();
    fs::remove_file(to.path().join("a.h5")).unwrap();
    fs::create_dir(to.path().join("more")).unwrap();
    fs::write(to.path().join("more/x"), "x").unwrap();
    fs::remove_dir(to.path().join("empty")).unwrap();
    fs::write(to.path().join("empty"), "x").unwrap();
    fs::remove_file(to.path().join("link")).unwrap();
    fs::remove_file(from.path().join("link")).unwrap();
    let missing = "a.h5: Ok(Some(Missing))";
    let (size, kind, extra) = ("b.tmp: Ok(Some(Size))", "empty: Ok(Some(Kind))", "more: Ok(Some(Extra))");
    assert_eq!(compare(&comparison).await, [missing, size, kind, extra, "run/c.h5: Ok(Some(Content))"]);
    let by_time = Comparison { by: By::Equal, one_way: true, ..comparison };
    assert_eq!(compare(&by_time).await, [missing, size, kind]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dry_run_refuses_what_the_run_refuses() {
    let (from, to) = (tempdir().unwrap(), tempdir().unwrap());
    for name in ["as-dir", "dir/below", "fine"] {
        fs::create_dir_all(from.path().join(name).parent().unwrap()).unwrap();
        fs::write(from.path().join(name), name).unwrap();
    }
    fs::create_dir(to.path().join("as-dir")).unwrap();
    fs::write(to.path().join("dir"), "a file").unwrap();
    let one = |name: &str, to: &str| [(Key::parse(name).unwrap(), Key::parse(to).unwrap())];
    let (wet, _) = job(from.path(), to.path());
    let dry = Job { dry_run: true, ..wet.clone() };
    for items in [&ALL[..], &one("fine", "gone/fine"), &one("as-dir", "as-dir")] {
        let planned = dry.run(items.to_vec()).await;
        let done = wet.run(items.to_vec()).await;
        let failures =
            |report: &Report| report.failures.iter().map(|(_, error)| error.to_string()).collect::<BTreeSet<_>>();
        assert!(done.failed > 0, "{items:?}");
        assert!(failures(&planned).is_subset(&failures(&done)) && planned.failed > 0, "{planned:?} {done:?}");
        assert_eq!(planned.carried, done.carried + done.skipped, "{planned:?} {done:?}");
        let _ = fs::remove_file(to.path().join("fine"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_has_another_name_at_the_destination_is_not_deleted() {
    for (how, name, there) in [(1, "README", "readme"), (2, "caf\u{e9}", "cafe\u{301}")] {
        let (from, to) = (tempdir().unwrap(), tempdir().unwrap());
        fs::write(from.path().join(name), "new").unwrap();
        fs::write(to.path().join("other"), "older").unwrap();
        let far = Far::new(to.path());
        far.faults.folds.store(how, Ordering::Relaxed);
        let mut job = Job { delete: Some(10), ..Job::new(Arc::new(local(from.path())), Arc::new(far)) };
        let report = job.run(ALL).await;
        assert!(report.is_complete() && report.deleted == 1, "{report:?}");
        assert_eq!(names(to.path()), [there]);
        // A dry run reports the names that the job then deletes.
        job.dry_run = true;
        assert_eq!(job.run(ALL).await.deleted, 0);
        assert_eq!(names(to.path()), [there]);
    }
}

/// A file system that finds a name in composed and decomposed form.
#[tokio::test(flavor = "multi_thread")]
async fn files_whose_names_differ_in_composition_are_not_lost() {
    let (from, to) = (tempdir().unwrap(), tempdir().unwrap());
    for name in ["caf\u{e9}", "cafe\u{301}"] {
        fs::write(from.path().join(name), name).unwrap();
    }
    let far = Far::new(to.path());
    far.faults.folds.store(2, Ordering::Relaxed);
    let report = Job::new(Arc::new(local(from.path())), Arc::new(far)).run(ALL).await;
    assert!((report.carried, report.failed) == (1, 1), "{report:?}");
    assert!(report.failures[0].1.to_string().contains("takes several names for one"), "{report:?}");
    // On others, both exist.
    let to = tempdir().unwrap();
    let report = Job::new(Arc::new(local(from.path())), Arc::new(local(to.path()))).run(ALL).await;
    assert!(report.is_complete() && names(to.path()).len() == 2, "{report:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_asked_about_new_names_where_nothing_could_be_deleted() {
    let (from, to) = (tree(), tempdir().unwrap());
    fs::create_dir(to.path().join("run")).unwrap();
    let far = Far::new(to.path());
    let (job, _) = job(from.path(), to.path());
    let job = Job { dest: Arc::new(far.clone()), ..job };
    let asked = async |job: Job| {
        far.faults.stats.store(0, Ordering::Relaxed);
        let report = job.run(ALL).await;
        assert!(report.is_complete() && report.deleted == 0, "{report:?}");
        far.faults.stats.load(Ordering::Relaxed)
    };
    let without = asked(Job { dry_run: true, ..job.clone() }).await;
    assert_eq!(asked(Job { dry_run: true, delete: Some(10), ..job }).await, without);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_link_that_is_listed_otherwise_is_not_deleted() {
    let (from, to) = (tempdir().unwrap(), tempdir().unwrap());
    symlink("nowhere", from.path().join("caf\u{e9}")).unwrap();
    fs::write(to.path().join("other"), "older").unwrap();
    let far = Far::new(to.path());
    far.faults.folds.store(2, Ordering::Relaxed);
    let source = Arc::new(local(from.path()));
    let job = Job { delete: Some(10), links: true, ..Job::new(source, Arc::new(far)) };
    let report = job.run(ALL).await;
    assert!(report.is_complete() && report.deleted == 1, "{report:?}");
    assert_eq!(names(to.path()), ["cafe\u{301}"]);
}
