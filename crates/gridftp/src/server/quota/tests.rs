use super::*;
use phoebus_files::Links;
use phoebus_files::block::Block;
use std::fs;
use std::time::Duration;

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
async fn no_more_is_filled_than_there_is_room_for() {
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
    // Neither what is announced nor what comes fits.
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
    assert_eq!(counted(dir.path(), &Mutex::default()).unwrap(), (bytes, files));
}

/// A store of a user with files that go on, in a directory of its own.
fn resuming(bytes: u64) -> (tempfile::TempDir, Limited) {
    let dir = tempfile::tempdir().unwrap();
    let local = Local::new(dir.path(), Links::Beneath).unwrap().with_journal_from(1);
    let store = Limited::new(local, dir.path(), Quota { bytes: Some(ByteSize(bytes)), files: None }, None);
    (dir, store)
}

/// Begins a file of so many bytes that can be gone on with.
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
async fn drafts_count_until_somebody_goes_on_with_them() {
    let (_dir, store) = resuming(1000);
    cut(&store, "x", 800).await;
    assert_eq!(bytes(&store), (800, 0));
    // What goes on with it needs no room beside it, and has it alone.
    let draft = begin(&store, "x", 800).await.unwrap();
    assert_eq!((draft.kept().total(), bytes(&store)), (10, (0, 800)));
    let other = begin(&store, "x", 200).await.unwrap_err();
    assert!(matches!(other, Error::Busy { .. }), "{other}");
    assert_eq!(bytes(&store), (0, 800));
    assert!(begin(&store, "y", 201).await.unwrap_err().to_string().contains("quota of"));
    draft.abandon(true).await;
    drop(draft);
    assert_eq!(bytes(&store), (800, 0));
    // Who is refused, whatever for, leaves it as it was.
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

#[tokio::test]
async fn what_is_dropped_amid_counts() {
    let (_dir, store) = resuming(100);
    let draft = begin(&store, "x", 80).await.unwrap();
    drop(draft);
    assert_eq!((bytes(&store), store.0.used().stale), ((80, 0), true));
}

#[tokio::test]
async fn what_changes_while_it_is_counted_is_not_lost() {
    let (dir, store) = resuming(100);
    fs::write(dir.path().join("there"), [0; 20]).unwrap();
    fs::create_dir(dir.path().join("d")).unwrap();
    store.room(0).await.unwrap();
    let long = Duration::from_secs(3600);
    for (found, expected) in [(20, 60), (60, 100)] {
        // What has come may be among what was found, or not.
        store.0.used().begin();
        put(&store, "a", 40, Some(40)).await.unwrap();
        store.0.used().end((found, 3), long);
        assert_eq!((bytes(&store).0, store.0.used().stale), (expected, true));
        store.0.used().counted = None;
        store.remove(&key("a")).await.unwrap();
        store.room(0).await.unwrap();
        assert_eq!((bytes(&store).0, store.0.used().stale), (20, false));
    }
    // What was moved may have been found nowhere; what has gone may have been found.
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

#[tokio::test]
async fn what_two_do_at_once_is_not_subtracted_twice() {
    let (dir, store) = resuming(100);
    put(&store, "a", 60, Some(60)).await.unwrap();
    let one = store.0.touch(&key("a"));
    store.remove(&key("a")).await.unwrap();
    assert!(!store.0.used().gone(&one.path, 60));
    assert_eq!((bytes(&store).0, store.0.used().stale), (60, true));
    drop(one);
    store.room(100).await.unwrap();
    assert_eq!(counted(dir.path(), &store.0.used).unwrap(), (0, 0));
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
    assert_eq!((files, counted(dir.path(), &store.0.used).unwrap()), (3, (60, 3)));
    let confined = store.confined(&key("d")).await.unwrap().unwrap();
    let spec = Spec { size: Some(50), ..Spec::default() };
    assert!(confined.create(&key("y"), spec).await.unwrap_err().to_string().contains("quota of 100"));
    confined.remove(&key("x")).await.unwrap();
    assert_eq!(bytes(&store).0, 0);
}
