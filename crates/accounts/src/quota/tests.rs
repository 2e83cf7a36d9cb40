use super::*;
use phoebus_files::Links;
use phoebus_files::block::Block;
use phoebus_files::store::{OnThread, run_on_this_thread};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

/// The bytes and files below `root`.
fn count(root: &Path, used: &Mutex<Used>) -> (u64, u64) {
    let count = counted(root, used).unwrap();
    assert_eq!(count.unknown, None);
    (count.bytes, count.files)
}

fn key(text: &str) -> Key {
    Key::parse(text).unwrap()
}

async fn put(store: &Limited, name: &str, len: usize, size: Option<u64>) -> Result<(), String> {
    let text = |error: Error| error.to_string();
    let spec = Spec { size, replace: true, ..Spec::default() };
    let Begun::Draft(draft) = store.create(&key(name), spec).await.map_err(text)? else { panic!("{name} is there") };
    for at in (0..len).step_by(10) {
        let block = Block::new(at as u64, vec![7; 10.min(len - at)]);
        if let Err(error) = draft.write(block).await {
            draft.abandon(true).await;
            return Err(text(error));
        }
    }
    draft.publish(len as u64).await.map_err(text)
}

#[tokio::test]
async fn writes_beyond_the_quota_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("there"), [0; 40]).unwrap();
    let local = Local::new(dir.path(), Links::Beneath).unwrap();
    let store = Limited::new(local, dir.path(), Quota { bytes: Some(ByteSize(100)), files: Some(4) }, None);
    let used = || {
        let used = store.0.used();
        (used.bytes, used.files, used.claimed)
    };
    put(&store, "a", 30, Some(30)).await.unwrap();
    assert_eq!(used(), (70, 2, (0, 0)));
    // The upload exceeds the quota, with or without an announced size.
    for size in [Some(31), None] {
        let error = put(&store, "b", 31, size).await.unwrap_err();
        assert!(error.contains("quota of 100"), "{error}");
        assert!(!dir.path().join("b").exists());
    }
    assert_eq!(used().2, (0, 0));
    store.room(30).await.unwrap();
    assert!(store.room(31).await.is_err());
    // What is replaced counts until it is.
    put(&store, "a", 25, Some(25)).await.unwrap();
    assert_eq!(used(), (65, 2, (0, 0)));
    // What may have changed is counted again, but for what takes long.
    fs::write(dir.path().join("unseen"), [0; 3]).unwrap();
    let rests = Some((Instant::now(), Duration::from_secs(3600)));
    (store.0.used().counted, store.0.used().stale) = (rests, true);
    store.room(0).await.unwrap();
    assert_eq!(used().0, 65);
    store.0.used().counted = Some((Instant::now(), Duration::ZERO));
    store.room(0).await.unwrap();
    assert_eq!(used().0, 68);
    fs::remove_file(dir.path().join("unseen")).unwrap();
    store.0.used().stale = true;
    store.room(0).await.unwrap();
    // What goes makes room, and a file that grows takes it.
    store.remove(&key("there")).await.unwrap();
    let draft = store.edit(&key("a")).await.unwrap();
    draft.write(Block::new(20, vec![1; 80])).await.unwrap();
    assert!(draft.write(Block::new(100, vec![1; 1])).await.is_err());
    drop(draft);
    assert_eq!(used(), (100, 1, (0, 0)));
    for name in ["d", "d/e", "f"] {
        store.make_dir(&key(name)).await.unwrap();
    }
    assert!(store.make_dir(&key("g")).await.unwrap_err().to_string().contains("quota of 4 for files"));
    assert!(put(&store, "g", 0, Some(0)).await.is_err());
    store.remove_dir(&key("f")).await.unwrap();
    store.rename(&key("a"), &key("d/e/a"), true).await.unwrap();
    put(&store, "g", 0, Some(0)).await.unwrap();
    let (bytes, files, _) = used();
    assert_eq!(count(dir.path(), &Mutex::default()), (bytes, files));
}

#[test]
fn writers_of_one_upload_claim_its_bytes_once() {
    const BYTES: u64 = 1000;
    let dir = tempfile::tempdir().unwrap();
    let local = Local::new(dir.path(), Links::Beneath).unwrap();
    let quota = Quota { bytes: Some(ByteSize(BYTES)), files: None };
    let store = Limited::new(local, dir.path(), quota, None);
    for _ in 0..500 {
        let claim = Claim::new(&store.0, 0, 0, None).unwrap();
        let together = std::sync::Barrier::new(4);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    together.wait();
                    claim.reach(BYTES).unwrap();
                });
            }
        });
        assert_eq!(claim.size(), (BYTES, 0));
    }
}

/// A store with resumable drafts and a quota of `bytes`, in a temporary directory.
fn resuming(bytes: u64) -> (tempfile::TempDir, Limited) {
    let dir = tempfile::tempdir().unwrap();
    let local = Local::new(dir.path(), Links::Beneath).unwrap().with_journal_from(1);
    let store = Limited::new(local, dir.path(), Quota { bytes: Some(ByteSize(bytes)), files: None }, None);
    (dir, store)
}

/// Begins a resumable upload of `size` bytes.
async fn begin(store: &Limited, name: &str, size: u64) -> Result<Arc<dyn Draft>, Error> {
    let source = Some(("the client's".to_owned(), None));
    let spec = Spec { size: Some(size), source, replace: true, ..Spec::default() };
    match store.create(&key(name), spec).await? {
        Begun::Draft(draft) => Ok(draft),
        Begun::Done => panic!("{name} is there"),
    }
}

/// The same, cut after ten bytes.
async fn cut(store: &Limited, name: &str, size: u64) {
    let draft = begin(store, name, size).await.unwrap();
    draft.write(Block::new(0, vec![7; 10])).await.unwrap();
    draft.checkpoint().await.unwrap();
    draft.abandon(true).await;
}

fn bytes(store: &Limited) -> (u64, u64) {
    let used = store.0.used();
    (used.bytes, used.claimed.0)
}

#[tokio::test]
async fn drafts_count_until_they_are_resumed() {
    let (_dir, store) = resuming(1000);
    cut(&store, "x", 800).await;
    assert_eq!(bytes(&store), (800, 0));
    // The resuming upload needs no space beside the draft, and no other upload can use the draft.
    let draft = begin(&store, "x", 800).await.unwrap();
    assert_eq!((draft.kept().total(), bytes(&store)), (10, (0, 800)));
    let other = begin(&store, "x", 200).await.unwrap_err();
    assert!(matches!(other, Error::Busy { .. }), "{other}");
    assert_eq!(bytes(&store), (0, 800));
    assert!(begin(&store, "y", 201).await.unwrap_err().to_string().contains("quota of"));
    draft.abandon(true).await;
    drop(draft);
    assert_eq!(bytes(&store), (800, 0));
    // A refused upload leaves the draft unchanged, whatever the reason for the refusal.
    store.make_dir(&key("x")).await.unwrap();
    for size in [None, Some(200), Some(1001)] {
        for _ in 0..3 {
            assert!(put(&store, "x", 0, size).await.is_err());
            // Counted again it has its journal, too.
            let (used, claimed) = bytes(&store);
            assert!((800..1000).contains(&used) && claimed == 0, "{used} {claimed}");
        }
    }
    assert!(put(&store, "y", 300, None).await.is_err());
    // Another file takes its place.
    store.remove_dir(&key("x")).await.unwrap();
    put(&store, "x", 900, Some(900)).await.unwrap();
    assert!((900..1000).contains(&bytes(&store).0));
}

/// Whether it is the quota that refuses.
fn is_over<T: std::fmt::Debug>(done: Result<T, Error>) -> bool {
    matches!(done.unwrap_err(), Error::Store { kind: ErrorKind::NoSpace, .. })
}

#[tokio::test]
async fn announced_size_may_already_be_held_by_a_draft() {
    let (dir, store) = resuming(1000);
    for mode in [0o700, 0o1777] {
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(mode)).unwrap();
        cut(&store, "x", 800).await;
        for counts_anew in [false, true] {
            store.0.used().stale = counts_anew;
            store.room(800).await.unwrap();
            assert!(is_over(store.room(700).await) && is_over(store.room(801).await));
            // Under another name it is another file, of which nothing is left.
            assert!(is_over(begin(&store, "y", 800).await) && is_over(begin(&store, "x", 1001).await));
            let names = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name());
            assert_eq!(names.filter(|name| name.to_string_lossy().contains(".y.")).count(), 0);
        }
        let draft = begin(&store, "x", 800).await.unwrap();
        assert_eq!((draft.kept().total(), bytes(&store).1), (10, 800));
        // While the draft is written, no other upload of this name begins, and no other file uses its space.
        store.room(800).await.unwrap();
        assert!(matches!(begin(&store, "x", 800).await, Err(Error::Busy { .. })));
        assert!(is_over(begin(&store, "y", 800).await));
        // A draft that is given up for good frees its space.
        draft.abandon(false).await;
        drop(draft);
        let draft = begin(&store, "x", 800).await.unwrap();
        assert_eq!((draft.kept().total(), bytes(&store).1), (0, 800));
        draft.abandon(false).await;
        drop(draft);
        store.0.used().stale = true;
        store.room(1000).await.unwrap();
        assert_eq!(bytes(&store), (0, 0));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}

#[tokio::test]
async fn dropped_draft_releases_its_quota() {
    let (_dir, store) = resuming(100);
    let draft = begin(&store, "x", 80).await.unwrap();
    drop(draft);
    assert_eq!((bytes(&store), store.0.used().stale), ((80, 0), true));
}

#[tokio::test]
async fn changes_during_a_count_are_not_lost() {
    let (dir, store) = resuming(100);
    fs::write(dir.path().join("there"), [0; 20]).unwrap();
    fs::create_dir(dir.path().join("d")).unwrap();
    store.room(0).await.unwrap();
    let long = Duration::from_secs(3600);
    for (found, expected) in [(20, 60), (60, 100)] {
        // A count may or may not include a file that was uploaded during it.
        store.0.used().begin();
        put(&store, "a", 40, Some(40)).await.unwrap();
        store.0.used().end((found, 3), long);
        assert_eq!((bytes(&store).0, store.0.used().stale), (expected, true));
        store.0.used().counted = None;
        store.remove(&key("a")).await.unwrap();
        store.room(0).await.unwrap();
        assert_eq!((bytes(&store).0, store.0.used().stale), (20, false));
    }
    // A count may miss a file that was moved during it, and may include one that was removed.
    store.0.used().begin();
    store.rename(&key("there"), &key("d/there"), true).await.unwrap();
    store.0.used().end((0, 1), long);
    assert_eq!(bytes(&store).0, 20);
    store.0.used().begin();
    store.remove(&key("d/there")).await.unwrap();
    store.0.used().end((20, 2), Duration::ZERO);
    assert_eq!(bytes(&store).0, 20);
    store.room(100).await.unwrap();
    assert_eq!(bytes(&store).0, 0);
}

#[test]
fn lengths_of_drafts_stay_known_while_the_tree_is_counted() {
    let mut used = Used::default();
    used.note_draft(5);
    used.begin();
    used.note_draft(7);
    assert!(used.draft_lengths.contains(&5), "a cut upload can be resumed during a count");
    used.found_drafts([9].into());
    used.end((0, 0), Duration::ZERO);
    assert_eq!(used.draft_lengths, [7, 9].into());
}

#[tokio::test]
async fn concurrent_removals_are_not_subtracted_twice() {
    let (dir, store) = resuming(100);
    put(&store, "a", 60, Some(60)).await.unwrap();
    let one = store.0.touch(&key("a"));
    store.remove(&key("a")).await.unwrap();
    assert!(!store.0.used().gone(&one.path, 60));
    assert_eq!((bytes(&store).0, store.0.used().stale), (60, true));
    drop(one);
    store.room(100).await.unwrap();
    assert_eq!(count(dir.path(), &store.0.used), (0, 0));
    assert_eq!(bytes(&store).0, 0);
}

#[tokio::test]
async fn links_and_confined_directories_are_those_of_the_store() {
    let (dir, store) = resuming(100);
    store.make_dir(&key("d")).await.unwrap();
    put(&store, "d/x", 60, Some(60)).await.unwrap();
    assert!(store.has_links() && store.sets_modes());
    store.make_link(&key("l"), b"d/x", None, false).await.unwrap();
    assert_eq!(store.read_link(&key("l")).await.unwrap(), b"d/x");
    assert_eq!(store.stat_link(&key("l")).await.unwrap().kind, phoebus_files::store::Kind::Link);
    let files = store.0.used().files;
    assert_eq!((files, count(dir.path(), &store.0.used)), (3, (60, 3)));
    let confined = store.confined(&key("d")).await.unwrap().unwrap();
    let spec = Spec { size: Some(50), ..Spec::default() };
    assert!(confined.create(&key("y"), spec).await.unwrap_err().to_string().contains("quota of 100"));
    confined.remove(&key("x")).await.unwrap();
    assert_eq!(bytes(&store).0, 0);
}

#[tokio::test]
async fn removed_files_free_their_quota() {
    let (dir, store) = resuming(100);
    put(&store, "a", 90, Some(90)).await.unwrap();
    fs::remove_file(dir.path().join("a")).unwrap();
    let ago = |seconds| Some((Instant::now() - Duration::from_secs(seconds), Duration::ZERO));
    store.0.used().counted = ago(0);
    assert!(is_over(store.room(100).await));
    assert!(!store.0.used().stale);
    store.0.used().counted = ago(6);
    store.room(100).await.unwrap();
    // What is refused as it arrives has it counted for the next attempt.
    fs::write(dir.path().join("b"), [0; 90]).unwrap();
    store.0.used().stale = true;
    store.room(10).await.unwrap();
    fs::remove_file(dir.path().join("b")).unwrap();
    store.0.used().counted = ago(6);
    assert!(put(&store, "c", 80, None).await.is_err());
    put(&store, "c", 80, None).await.unwrap();
    // Counting takes at most a tenth of the time.
    fs::remove_file(dir.path().join("c")).unwrap();
    store.0.used().counted = Some((Instant::now() - Duration::from_secs(6), Duration::from_secs(1)));
    assert!(is_over(store.room(100).await));
}

#[tokio::test]
async fn another_directory_in_the_place_of_the_root_is_counted_anew() {
    let top = tempfile::tempdir().unwrap();
    let root = top.path().join("root");
    fs::create_dir(&root).unwrap();
    let quota = Quota { bytes: Some(ByteSize(100)), files: None };
    let new = |before: Option<&Limited>| Limited::new(Local::new(&root, Links::Beneath).unwrap(), &root, quota, before);
    let store = new(None);
    put(&store, "a", 90, Some(90)).await.unwrap();
    assert!(is_over(new(Some(&store)).room(20).await));
    fs::rename(&root, top.path().join("old")).unwrap();
    fs::create_dir(&root).unwrap();
    new(Some(&store)).room(100).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn batches_on_one_thread_keep_within_the_quota() {
    let root = tempfile::tempdir().unwrap();
    let quota = Quota { bytes: Some(ByteSize(500)), files: Some(8) };
    let store = Limited::new(Local::new(root.path(), Links::Beneath).unwrap(), root.path(), quota, None);
    let runtime = tokio::runtime::Handle::current();
    let (_wanted, still) = tokio::sync::watch::channel(());
    let done = tokio::task::spawn_blocking(move || {
        runtime.block_on(async {
            let here = store.at(store.0.store.here(), store.0.base.clone());
            let one = |n: usize| {
                let store = here.clone();
                Box::pin(async move { put(&store, &format!("f{n}"), 10 * n, None).await }) as OnThread<_>
            };
            let done = run_on_this_thread((1..=10).map(one).collect(), 4, Some(&here), still).await;
            (done, bytes(&store))
        })
    });
    let (done, left) = done.await.unwrap();
    let stored = done.iter().filter(|one| matches!(one, Some(Ok(())))).count();
    // The root counts as no file.
    assert!(done.iter().all(Option::is_some) && (7..=8).contains(&stored), "{done:?}");
    let there: Vec<_> =
        std::fs::read_dir(root.path()).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len()).collect();
    assert_eq!((there.iter().sum::<u64>(), there.len()), (left.0, stored));
}
