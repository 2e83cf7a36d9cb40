//! Paths that others made cannot lead out of a root, nor make anything hang.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;

use common::{key, local};
use phoebus_files::store::{Attributes, Begun, Kind, Spec, Store};
use phoebus_files::{Error, Links};
use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use tempfile::tempdir;

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

    // What takes the place of a link is a file of its own, and not what the link leads to.
    let replacing = Spec { replace: true, ..Spec::default() };
    let Ok(Begun::Draft(draft)) = store.create(&key("good"), replacing).await else { panic!() };
    draft.publish(0).await.unwrap();
    assert_eq!(fs::read(root.join("in/f")).unwrap(), b"inside");
    assert_eq!(fs::read(outer.path().join("out/secret")).unwrap(), b"secret");
    assert_eq!(fs::read_dir(outer.path().join("out")).unwrap().count(), 1);

    let own = phoebus_files::local::Local::new(&root, Links::Anywhere).unwrap();
    assert!(own.open(&key("file")).await.is_ok(), "whoever names their own files may follow their own links");
}

#[tokio::test]
async fn what_is_no_file_is_refused_and_hangs_nobody() {
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
