//! Paths that other users made can neither lead out of a root nor make anything hang.

use crate::common;
use common::{key, local};
use phoebus_files::block::Block;
use phoebus_files::local::{Identity, Local};
use phoebus_files::store::{Attributes, Begun, Kind, Spec, Store, Time};
use phoebus_files::{Error, Links, draft_of};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, lchown, symlink};
use std::os::unix::net::UnixListener;
use std::time::Duration;
use tempfile::tempdir;

/// Another user, for the tests that need root.
const GAMES: u32 = 5;

#[tokio::test]
async fn symbolic_links_do_not_lead_out() {
    let outer = tempdir().unwrap();
    let root = outer.path().join("root");
    fs::create_dir_all(root.join("in/sub")).unwrap();
    fs::create_dir(outer.path().join("out")).unwrap();
    fs::write(outer.path().join("out/secret"), "secret").unwrap();
    fs::write(root.join("in/f"), "inside").unwrap();
    symlink("../../out", root.join("in/up")).unwrap();
    symlink(outer.path().join("out"), root.join("absolute")).unwrap();
    symlink("../out/secret", root.join("file")).unwrap();
    symlink("/proc/self/cwd", root.join("magic")).unwrap();
    symlink("in/f", root.join("good")).unwrap();
    symlink("in", root.join("good_dir")).unwrap();

    let store = local(&root);
    assert!(store.open(&key("good")).await.is_ok() && store.open(&key("good_dir/f")).await.is_ok());
    let escapes = |error: Error, what: &str| {
        assert!(matches!(error, Error::Escapes { .. }), "{what}: {error}");
        assert!(error.to_string().contains(" leads out of "), "{error}");
    };
    for dir in ["in/up", "absolute", "magic"] {
        let (file, new) = (key(&format!("{dir}/secret")), key(&format!("{dir}/new")));
        escapes(store.open(&file).await.unwrap_err(), "open");
        escapes(store.stat(&file).await.unwrap_err(), "stat");
        escapes(store.create(&new, Spec::default()).await.unwrap_err(), "create");
        escapes(store.edit(&new).await.unwrap_err(), "edit");
        escapes(store.make_dir(&new).await.unwrap_err(), "make_dir");
        escapes(store.remove(&file).await.unwrap_err(), "remove");
        escapes(store.remove_dir(&file).await.unwrap_err(), "remove_dir");
        escapes(store.list(&key(dir)).await.unwrap_err(), "list");
        escapes(store.set(&file, Attributes { mode: Some(0o777), modified: None }).await.unwrap_err(), "set");
        assert!(store.rename(&key("in/f"), &new, true).await.is_err());
        assert!(store.rename(&file, &key("stolen"), true).await.is_err());
    }
    escapes(store.open(&key("file")).await.unwrap_err(), "open");
    escapes(store.edit(&key("file")).await.unwrap_err(), "edit");

    // A link stays a link. Its target is written, if it is beneath the root.
    let replacing = Spec { replace: true, ..Spec::default() };
    let Ok(Begun::Draft(draft)) = store.create(&key("good"), replacing.clone()).await else { panic!() };
    draft.publish(0).await.unwrap();
    assert_eq!(fs::read(root.join("in/f")).unwrap(), b"");
    assert!(fs::symlink_metadata(root.join("good")).unwrap().is_symlink());
    escapes(store.create(&key("file"), replacing.clone()).await.unwrap_err(), "create");
    symlink("nothing", root.join("in/dangling")).unwrap();
    let error = store.create(&key("in/dangling"), replacing.clone()).await.unwrap_err().to_string();
    assert!(error.ends_with("is a symbolic link that leads nowhere, not a file"), "{error}");
    // In a directory where others can make names, only a user's own links are followed.
    fs::create_dir(root.join("tmp")).unwrap();
    fs::set_permissions(root.join("tmp"), fs::Permissions::from_mode(0o1777)).unwrap();
    symlink("../in/f", root.join("tmp/theirs")).unwrap();
    lchown(root.join("tmp/theirs"), Some(GAMES), None).unwrap();
    let error = store.create(&key("tmp/theirs"), replacing).await.unwrap_err();
    assert!(matches!(error, Error::Denied { .. }), "{error}");
    assert_eq!(fs::read(outer.path().join("out/secret")).unwrap(), b"secret");
    assert_eq!(fs::read_dir(outer.path().join("out")).unwrap().count(), 1);

    let own = phoebus_files::local::Local::new(&root, Links::Anywhere).unwrap();
    assert!(own.open(&key("file")).await.is_ok(), "whoever names their own files may follow their own links");
}

#[tokio::test]
async fn special_files_are_refused_without_blocking() {
    let root = tempdir().unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        root.path().join("pipe"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o600),
        0,
    )
    .unwrap();
    let _socket = UnixListener::bind(root.path().join("socket")).unwrap();
    fs::create_dir(root.path().join("dir")).unwrap();
    let store = local(root.path());
    for (name, is) in [("pipe", "neither a file nor a directory"), ("dir", "a directory")] {
        let error = store.open(&key(name)).await.unwrap_err().to_string();
        assert_eq!(error, format!("{}/{name} is {is}, not a file", root.path().display()));
    }
    assert!(store.open(&key("socket")).await.is_err());
    for name in ["pipe", "socket", "dir", ""] {
        let replacing = Spec { replace: true, ..Spec::default() };
        let error = store.create(&key(name), replacing).await.unwrap_err();
        assert!(matches!(error, Error::Kind { .. }), "{error}");
    }
    assert_eq!(store.stat(&key("socket")).await.unwrap().kind, Kind::Other);
}

/// Writes `bytes` to the file `f` with a known source, so that it can be resumed.
async fn put(store: &Local, bytes: &[u8]) {
    let Begun::Draft(draft) = store.create(&key("f"), of("source", bytes.len())).await.unwrap() else { panic!() };
    draft.write(Block::new(0, bytes.to_vec())).await.unwrap();
    draft.publish(bytes.len() as u64).await.unwrap();
}

fn of(source: &str, len: usize) -> Spec {
    let source = Some((source.to_owned(), None));
    Spec { size: Some(len as u64), source, replace: true, ..Spec::default() }
}

/// The names in a directory, sorted.
fn names(dir: &std::path::Path) -> Vec<String> {
    let names = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

#[tokio::test]
async fn symbolic_link_is_made_beside_files_of_others() {
    let dir = tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o1777)).unwrap();
    // The name that earlier versions gave to every link while they made it, and such a link that a killed process left.
    for (name, owner) in [(".l.link.phoebus-part", GAMES), (".left.link.phoebus-part", 0)] {
        let place = dir.path().join(name);
        if owner == 0 {
            symlink("old", &place).unwrap()
        } else {
            fs::create_dir(&place).unwrap()
        }
        lchown(&place, Some(owner), None).unwrap();
    }
    let store = local(dir.path());
    for (name, target) in [("l", "one"), ("l", "other"), ("left", "here")] {
        store.make_link(&key(name), target.as_bytes(), Some(Time { seconds: 1, nanos: 0 }), true).await.unwrap();
        assert_eq!(fs::read_link(dir.path().join(name)).unwrap().to_str(), Some(target));
    }
    let refused = store.make_link(&key("l"), b"third", None, false).await;
    assert!(matches!(refused, Err(Error::Exists { .. })), "{refused:?}");
    assert_eq!(
        names(dir.path()),
        [".l.link.phoebus-part", ".left.link.phoebus-part", "l", "left"],
        "and nothing is left"
    );
}

#[tokio::test]
async fn files_of_others_at_draft_names_are_left_alone() {
    let dir = tempdir().unwrap();
    let victim = dir.path().join("victim");
    for plant in ["a link", "a hard link", "a file", "a directory", "a lock"] {
        let root = dir.path().join(plant);
        fs::create_dir(&root).unwrap();
        fs::set_permissions(&root, fs::Permissions::from_mode(0o1777)).unwrap();
        fs::write(&victim, "victim").unwrap();
        let place = root.join(draft_of(&key("f")).unwrap().to_string());
        let mut held = None;
        match plant {
            "a link" => symlink(&victim, &place).unwrap(),
            "a hard link" => fs::hard_link(&victim, &place).unwrap(),
            "a directory" => fs::create_dir(&place).unwrap(),
            _ => {
                fs::write(&place, "theirs").unwrap();
                fs::set_permissions(&place, fs::Permissions::from_mode(0o666)).unwrap();
                if plant == "a lock" {
                    let file = fs::File::open(&place).unwrap();
                    rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive).unwrap();
                    held = Some(file);
                }
            }
        }
        if plant != "a hard link" {
            lchown(&place, Some(GAMES), None).unwrap();
        }
        for journal_from in [0, 1 << 20] {
            put(&Local::new(&root, Links::Anywhere).unwrap().with_journal_from(journal_from), b"bytes").await;
            let meta = fs::symlink_metadata(root.join("f")).unwrap();
            assert!(meta.is_file() && (meta.uid(), meta.nlink()) == (0, 1), "{plant}: {meta:?}");
            assert_eq!(fs::read(root.join("f")).unwrap(), b"bytes", "{plant}");
        }
        assert_eq!(fs::read(&victim).unwrap(), b"victim", "{plant}");
        assert_eq!(names(&root).len(), 2, "{plant}: what others made stays, and nothing else: {:?}", names(&root));
        drop(held);
    }
}

#[tokio::test]
async fn draft_resumes_in_a_shared_directory() {
    let root = tempdir().unwrap();
    fs::set_permissions(root.path(), fs::Permissions::from_mode(0o1777)).unwrap();
    let store = local(root.path());
    let begin = async |source: &str| match store.create(&key("f"), of(source, 10)).await.unwrap() {
        Begun::Draft(draft) => draft,
        Begun::Done => panic!("nothing was published"),
    };
    let draft = begin("one").await;
    draft.write(Block::new(0, &b"01234"[..])).await.unwrap();
    draft.abandon(true).await;
    drop(draft);
    assert_eq!(names(root.path()).len(), 2);
    let draft = begin("one").await;
    assert_eq!(draft.kept().total(), 5);
    draft.abandon(true).await;
    drop(draft);
    // A draft of another source removes its predecessor.
    let draft = begin("two").await;
    assert_eq!((draft.kept().total(), names(root.path()).len()), (0, 2));
    // A draft whose permissions were opened to others meanwhile is not trusted.
    draft.write(Block::new(0, &b"abcde"[..])).await.unwrap();
    draft.abandon(true).await;
    drop(draft);
    for name in names(root.path()) {
        fs::set_permissions(root.path().join(name), fs::Permissions::from_mode(0o666)).unwrap();
    }
    assert!(begin("two").await.kept().is_empty());
}

#[tokio::test]
async fn overwritten_file_keeps_owner_mode_and_attributes() {
    let root = tempdir().unwrap();
    let file = root.path().join("f");
    // Owner, user 7, group, mask, others (acl(5)).
    let entries = [(1u16, 6u16, u32::MAX), (2, 4, 7), (4, 0, u32::MAX), (16, 4, u32::MAX), (32, 0, u32::MAX)];
    let mut list = 2u32.to_le_bytes().to_vec();
    for (tag, may, id) in entries {
        list.extend([&tag.to_le_bytes()[..], &may.to_le_bytes(), &id.to_le_bytes()].concat());
    }
    let get = |name: &str| {
        let mut value = vec![0; 1000];
        let len = rustix::fs::getxattr(&file, name, &mut value).unwrap();
        value.truncate(len);
        value
    };
    fs::write(&file, "old").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    chown(&file, Some(GAMES), Some(60)).unwrap();
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(&file, "user.note", b"kept", flags).unwrap();
    for with_list in [false, true] {
        if with_list {
            rustix::fs::setxattr(&file, "system.posix_acl_access", &list, flags).unwrap();
        }
        put(&local(root.path()), b"new").await;
        let meta = fs::metadata(&file).unwrap();
        let mode = if with_list { 0o640 } else { 0o600 };
        assert_eq!((meta.uid(), meta.gid(), meta.mode() & 0o7777), (GAMES, 60, mode));
        assert_eq!((fs::read(&file).unwrap(), get("user.note")), (b"new".to_vec(), b"kept".to_vec()));
    }
    assert_eq!(get("system.posix_acl_access"), list);
    // An existing file does not get the directory's default ACL for new files.
    rustix::fs::setxattr(root.path(), "system.posix_acl_default", &list, flags).unwrap();
    rustix::fs::removexattr(&file, "system.posix_acl_access").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
    put(&local(root.path()), b"new").await;
    let now = rustix::fs::getxattr(&file, "system.posix_acl_access", &mut [0; 100]);
    assert_eq!((now, fs::metadata(&file).unwrap().mode() & 0o7777), (Err(rustix::io::Errno::NODATA), 0o640));

    // A user who cannot keep the file's owner is refused before anything is written.
    let games = Identity::named("games", Duration::from_secs(60)).unwrap();
    chown(root.path(), Some(GAMES), None).unwrap();
    chown(&file, Some(0), None).unwrap();
    let error = local(root.path()).acting_as(games).create(&key("f"), of("source", 3)).await.unwrap_err();
    assert!(matches!(error, Error::Denied { .. }) && error.to_string().contains("only root"), "{error}");
    assert_eq!((names(root.path()), fs::read(&file).unwrap()), (vec!["f".to_owned()], b"new".to_vec()));
}
