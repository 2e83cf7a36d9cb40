//! Symbolic links that other users made, in directories where they can, are not followed for writing.

use crate::common;
use common::{key, local};
use phoebus_files::job::Job;
use phoebus_files::key::Key;
use phoebus_files::local::{Identity, Local};
use phoebus_files::store::{Attributes, Begun, Fallible, Kind, Spec, Store};
use phoebus_files::{Error, Links};
use std::fs;
use std::os::unix::fs::{PermissionsExt, lchown, symlink};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tempfile::{TempDir, tempdir};

/// Another user, for the tests that need root.
const GAMES: u32 = 5;

/// A third user.
const MAN: u32 = 6;

/// The user with the number GAMES.
fn games() -> Identity {
    Identity::named("games", Duration::from_secs(60)).unwrap()
}

fn replacing() -> Spec {
    Spec { replace: true, ..Spec::default() }
}

async fn put(store: &dyn Store, key: &Key) -> Result<(), Error> {
    match store.create(key, replacing()).await? {
        Begun::Draft(draft) => draft.publish(0).await,
        Begun::Done => panic!("nothing was published"),
    }
}

/// A link that belongs to `owner`.
fn link(owner: u32, target: &str, at: &Path) {
    symlink(target, at).unwrap();
    lchown(at, Some(owner), None).unwrap();
}

fn mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// `shared`, where everybody can make names, beside `vic` with the files `a` and `b` and the directory `d`.
fn tree() -> TempDir {
    let root = tempdir().unwrap();
    for dir in ["shared", "vic/d", "src/sub/d"] {
        fs::create_dir_all(root.path().join(dir)).unwrap();
    }
    for file in ["vic/a", "vic/b", "src/sub/a", "src/sub/new", "shared/mine"] {
        fs::write(root.path().join(file), file).unwrap();
        mode(&root.path().join(file), 0o600);
    }
    mode(&root.path().join("shared"), 0o777);
    root
}

/// All operations that change something beneath `dir`, with `dir/a` among it.
async fn refused_below(store: &Local, dir: &str) {
    let of = |name: &str| key(&format!("{dir}/{name}"));
    let (a, new, d, mine) = (of("a"), of("new"), of("d"), key("shared/mine"));
    let set = Attributes { mode: Some(0o666), modified: None };
    let edit = |key| Box::pin(async move { store.edit(key).await.map(drop) }) as Fallible<'_, ()>;
    let create = |key| Box::pin(put(store, key)) as Fallible<'_, ()>;
    let confined = |key| Box::pin(async move { store.confined(key).await.map(drop) }) as Fallible<'_, ()>;
    let stat = |key| Box::pin(async move { store.stat_to_write(key).await.map(drop) }) as Fallible<'_, ()>;
    for (what, refused) in [
        ("create", create(&a)),
        ("create a new one", create(&new)),
        ("edit", edit(&a)),
        ("edit a new one", edit(&new)),
        ("make a directory", store.make_dir(&new)),
        ("make a link", store.make_link(&new, b"a", None, true)),
        ("remove", store.remove(&a)),
        ("discard", store.discard(&a, None)),
        ("remove a directory", store.remove_dir(&d)),
        ("rename from", store.rename(&a, &mine, true)),
        ("rename to", store.rename(&mine, &a, true)),
        ("set", store.set(&a, set)),
        ("set of a directory", store.set(&d, set)),
        ("confine", confined(&d)),
        ("look at", stat(&a)),
    ] {
        let Err(error) = refused.await else { panic!("{what} below {dir} was done") };
        assert!(matches!(error, Error::Denied { .. }), "{what} below {dir}: {error}");
        assert!(error.to_string().contains("is a symbolic link of user 5"), "{what}: {error}");
    }
}

/// None of it has changed.
fn untouched(root: &Path) {
    let mut names: Vec<_> = fs::read_dir(root.join("vic")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["a", "b", "d"]);
    for file in ["vic/a", "vic/b"] {
        assert_eq!(fs::read_to_string(root.join(file)).unwrap(), file);
        assert_eq!(fs::metadata(root.join(file)).unwrap().permissions().mode() & 0o777, 0o600, "{file}");
    }
    assert_eq!(fs::read_to_string(root.join("shared/mine")).unwrap(), "shared/mine");
}

#[tokio::test]
async fn link_of_others_to_a_directory_is_not_written_through() {
    let root = tree();
    let shared = root.path().join("shared");
    link(GAMES, "../vic", &shared.join("sub"));
    // One's own link to the other user's link does not make that one safe, nor does the other user's directory.
    link(0, "sub/../vic", &shared.join("own"));
    fs::create_dir(shared.join("his")).unwrap();
    lchown(shared.join("his"), Some(GAMES), None).unwrap();
    link(GAMES, "../../vic", &shared.join("his/sub"));
    for links in [Links::Beneath, Links::Anywhere] {
        let store = Local::new(root.path(), links).unwrap();
        for dir in ["shared/sub", "shared/own", "shared/his/sub"] {
            refused_below(&store, dir).await;
            assert!(store.open(&key(dir).join("a").unwrap()).await.is_ok(), "it is read through");
        }
        // A whole tree, which sets the mode of the directory.
        let store: Arc<dyn Store> = Arc::new(store);
        let job = Job::new(store.clone(), store);
        let report = job.run([(key("src"), key("shared"))]).await;
        assert_eq!((report.carried, report.failed), (0, 4), "{report:?}");
        mode(&shared, 0o777);
    }
    untouched(root.path());
}

#[tokio::test]
async fn link_of_others_to_a_file_is_not_changed_through() {
    let root = tree();
    let shared = root.path().join("shared");
    link(GAMES, "../vic/a", &shared.join("log"));
    link(0, "log", &shared.join("own"));
    link(GAMES, "/dev/null", &shared.join("device"));
    let set = Attributes { mode: Some(0o666), modified: None };
    for links in [Links::Beneath, Links::Anywhere] {
        let store = Local::new(root.path(), links).unwrap();
        for name in ["log", "own", "device"] {
            let link = key("shared").join(name).unwrap();
            let edited = store.edit(&link).await.map(drop);
            for refused in [edited, put(&store, &link).await, store.set(&link, set).await] {
                let error = refused.unwrap_err();
                assert!(matches!(error, Error::Denied { .. } | Error::Escapes { .. }), "{name}: {error}");
                assert!(matches!(error, Error::Denied { .. }) || name == "device", "{name}: {error}");
            }
        }
        // A file with the same bytes does not get another mode either.
        mode(&root.path().join("vic/b"), 0o666);
        fs::write(root.path().join("vic/b"), "vic/a").unwrap();
        let store: Arc<dyn Store> = Arc::new(store);
        let report = Job::new(store.clone(), store).run([(key("vic/b"), key("shared/log"))]).await;
        assert_eq!((report.carried, report.failed, report.modes_set), (0, 1, 0), "{report:?}");
        mode(&root.path().join("vic/b"), 0o600);
        fs::write(root.path().join("vic/b"), "vic/b").unwrap();
    }
    untouched(root.path());
}

#[tokio::test]
async fn special_files_take_no_bytes_and_no_mode() {
    use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};
    let root = tree();
    let make = |name: &str, kind, number| {
        mknodat(CWD, root.path().join(name), kind, Mode::from_raw_mode(0o600), number).unwrap();
    };
    make("null", FileType::CharacterDevice, makedev(1, 3));
    make("disk", FileType::BlockDevice, makedev(7, 200));
    make("fifo", FileType::Fifo, 0);
    make("socket", FileType::Socket, 0);
    link(0, "fifo", &root.path().join("link"));
    let store = Local::new(root.path(), Links::Beneath).unwrap();
    for name in ["null", "disk", "fifo", "socket", "link"] {
        let key = key(name);
        let set = store.set(&key, Attributes { mode: Some(0o666), modified: None }).await;
        let edited = store.edit(&key).await.map(drop);
        let refused = if name == "null" { vec![set] } else { vec![set, edited, put(&store, &key).await] };
        for refused in refused {
            let error = refused.unwrap_err();
            assert!(matches!(error, Error::Kind { .. }), "{name}: {error}");
        }
        assert_eq!(fs::metadata(root.path().join(name)).unwrap().permissions().mode() & 0o777, 0o600, "{name}");
    }
    // A write to the null device succeeds.
    put(&store, &key("null")).await.unwrap();
}

#[tokio::test]
async fn links_are_followed_that_nobody_else_chose() {
    let root = tree();
    let path = |name: &str| root.path().join(name);
    // Links of root and of one's own, with `..` and a trailing slash.
    fs::create_dir(path("closed")).unwrap();
    link(0, "../vic", &path("closed/sub"));
    link(0, "../closed/sub/", &path("shared/roots"));
    link(GAMES, "roots/../vic/./d/..", &path("shared/his"));
    link(GAMES, "../vic/b", &path("shared/file"));
    for dir in ["vic", "vic/d"] {
        lchown(path(dir), Some(GAMES), None).unwrap();
    }
    for links in [Links::Beneath, Links::Anywhere] {
        let open = || Local::new(root.path(), links).unwrap();
        let games = open().acting_as(games());
        lchown(path("vic/b"), Some(0), None).unwrap();
        for (store, dir) in
            [(&open(), "closed/sub"), (&open(), "shared/roots"), (&games, "shared/roots"), (&games, "shared/his")]
        {
            let of = |name: &str| key(dir).join(name).unwrap();
            put(store, &of("new")).await.unwrap();
            store.edit(&of("new")).await.unwrap();
            store.set(&of("new"), Attributes { mode: Some(0o640), modified: None }).await.unwrap();
            store.rename(&of("new"), &of("newer"), false).await.unwrap();
            store.make_dir(&of("more")).await.unwrap();
            store.remove_dir(&of("more")).await.unwrap();
            assert_eq!(store.stat_to_write(&key(dir)).await.unwrap().kind, Kind::Dir);
            assert!(path("vic/newer").exists());
            store.remove(&of("newer")).await.unwrap();
        }
        lchown(path("vic/b"), Some(GAMES), Some(60)).unwrap();
        put(&games, &key("shared/file")).await.unwrap();
        assert!(fs::symlink_metadata(path("shared/file")).unwrap().is_symlink());
    }
    // Through the root directory, for files that the user names, and through a link that only the kernel can follow.
    link(0, root.path().to_str().unwrap(), &path("shared/top"));
    put(&Local::new("/", Links::Anywhere).unwrap(), &key(path("shared/top/vic/b").to_str().unwrap())).await.unwrap();
    std::env::set_current_dir(root.path()).unwrap();
    put(&Local::new("/", Links::Anywhere).unwrap(), &key("proc/self/cwd/vic/a")).await.unwrap();
    assert_eq!(fs::read(path("vic/a")).unwrap(), b"");
}

#[tokio::test]
async fn links_that_lead_on_and_on_or_out_are_refused() {
    let root = tree();
    let path = |name: &str| root.path().join(name);
    link(0, "loop/x", &path("loop"));
    link(0, "../..", &path("vic/up"));
    link(0, "/", &path("vic/top"));
    for n in 0..50 {
        link(0, if n == 0 { "vic".to_owned() } else { format!("l{}", n - 1) }.as_str(), &path(&format!("l{n}")));
    }
    let store = local(root.path());
    let error = store.make_dir(&key("loop/x")).await.unwrap_err();
    assert!(error.to_string().contains("symbolic link"), "{error}");
    store.make_dir(&key("l39/x")).await.unwrap();
    assert!(store.make_dir(&key("l40/y")).await.is_err() && !path("vic/y").exists());
    for out in ["vic/up/x", "vic/top/x"] {
        let error = store.make_dir(&key(out)).await.unwrap_err();
        assert!(matches!(error, Error::Escapes { .. }), "{error}");
    }
    let error = store.make_dir(&key("vic/a/x")).await.unwrap_err();
    assert!(error.to_string().contains("not a directory"), "{error}");
}

#[tokio::test]
async fn file_made_by_others_meanwhile_gets_no_bytes() {
    let root = tree();
    let store = local(root.path());
    let make = |name: &str, owner| {
        let path = root.path().join("shared").join(name);
        let _ = fs::remove_file(&path);
        fs::write(&path, "").unwrap();
        std::os::unix::fs::chown(path, Some(owner), None).unwrap();
    };
    let begin = async |name: &str| match store.create(&key("shared").join(name).unwrap(), replacing()).await.unwrap() {
        Begun::Draft(draft) => draft,
        Begun::Done => panic!("nothing was published"),
    };
    make("of-man", MAN);
    for (name, before) in [("new", 0), ("mine", 0), ("of-man", MAN)] {
        // A link of root or of the same user is no reason to refuse: whoever could make it had these rights before.
        for (owner, done) in [(before, true), (GAMES, false)] {
            let draft = begin(name).await;
            make(name, owner);
            let published = draft.publish(0).await;
            assert_eq!(published.is_ok(), done, "{name} of {owner}");
            if let Err(error) = published {
                assert!(error.to_string().contains("user 5 has put another file there meanwhile"), "{error}");
                draft.abandon(false).await;
            }
        }
    }
}

#[tokio::test]
async fn concurrent_writers_of_one_file_all_succeed() {
    let root = tree();
    let store = local(root.path());
    let mut all = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let store = store.clone();
        all.spawn(async move {
            for _ in 0..40 {
                put(&store, &key("shared/mine")).await.unwrap();
            }
        });
    }
    while let Some(done) = all.join_next().await {
        done.unwrap();
    }
    assert_eq!(fs::read_dir(root.path().join("shared")).unwrap().count(), 1);
}

#[tokio::test]
async fn replaced_draft_is_not_published() {
    let root = tree();
    let store = local(root.path());
    let Begun::Draft(draft) = store.create(&key("shared/new"), replacing()).await.unwrap() else { panic!("it is new") };
    let place = root.path().join(draft.capabilities().place.unwrap().as_path());
    fs::remove_file(&place).unwrap();
    fs::write(&place, "forged").unwrap();
    let error = draft.publish(0).await.unwrap_err();
    assert!(error.to_string().contains("somebody has put another file in its draft's place"), "{error}");
    assert!(!root.path().join("shared/new").exists());
}

#[tokio::test]
async fn links_are_followed_by_their_owner() {
    let root = tree();
    link(MAN, "../vic", &root.path().join("shared/sub"));
    lchown(root.path().join("vic"), Some(GAMES), None).unwrap();
    let store = || local(root.path());
    let to = key("shared/sub/new");
    for refused in [store(), store().acting_as(games())] {
        assert!(matches!(refused.make_dir(&to).await, Err(Error::Denied { .. })));
    }
    lchown(root.path().join("shared"), Some(MAN), None).unwrap();
    mode(&root.path().join("shared"), 0o755);
    assert!(matches!(store().make_dir(&to).await, Err(Error::Denied { .. })), "its directory is his");
    lchown(root.path().join("shared"), Some(0), None).unwrap();
    assert!(matches!(store().make_dir(&to).await, Err(Error::Denied { .. })), "he made it while he could");
    lchown(root.path().join("shared/sub"), Some(0), None).unwrap();
    store().make_dir(&to).await.unwrap();
}
