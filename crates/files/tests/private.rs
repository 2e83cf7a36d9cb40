//! Directories that are private at the source, at a far destination.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;

use common::{Far, key, local};
use phoebus_files::job::{Job, Retry};
use phoebus_files::key::Key;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tempfile::{TempDir, tempdir};

const ALL: [(Key, Key); 1] = [(Key::ROOT, Key::ROOT)];

/// A private directory with files and directories in it, and a file beside it.
fn tree() -> TempDir {
    let dir = tempdir().unwrap();
    for path in ["own/a", "own/sub/b", "own/sub/deep/c", "z"] {
        let path = dir.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "secret").unwrap();
    }
    fs::set_permissions(dir.path().join("own"), fs::Permissions::from_mode(0o700)).unwrap();
    dir
}

fn job(from: &Path, far: &Far) -> Job {
    let retry = Retry { attempts: 3, first: Duration::from_millis(1), most: Duration::from_millis(1) };
    Job { retry, ..Job::new(Arc::new(local(from)), Arc::new(far.clone())) }
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o777
}

#[tokio::test(flavor = "multi_thread")]
async fn they_are_private_before_directories_are_made_in_them() {
    let (from, to) = (tree(), tempdir().unwrap());
    let far = Far::new(to.path());
    // One try of setting the mode fails and is made again.
    far.faults.unset.store(1, Ordering::Relaxed);
    let report = job(from.path(), &far).run(ALL).await;
    assert!(report.is_complete() && report.carried == 4, "{report:?}");
    let made = far.faults.made.lock().unwrap().clone();
    let above = made.iter().find(|(dir, _)| *dir == key("own/sub")).unwrap().1.unwrap();
    assert_eq!((above & 0o777, mode(&to.path().join("own"))), (0o700, 0o700));
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_put_in_one_that_cannot_be_made_private() {
    let (from, to) = (tree(), tempdir().unwrap());
    let far = Far::new(to.path());
    // As often as it is tried.
    far.faults.unset.store(3, Ordering::Relaxed);
    let report = job(from.path(), &far).run(ALL).await;
    assert_eq!((report.carried, report.failed), (1, 6), "{report:?}");
    assert!(report.failures[0].1.to_string().contains("busy"), "{report:?}");
    assert!(report.failures[1].1.to_string().contains("could not be made so"), "{report:?}");
    assert_eq!(fs::read_dir(to.path().join("own")).unwrap().count(), 0);
    // At the end it is made so, and the next run goes on.
    assert_eq!(mode(&to.path().join("own")), 0o700);
    assert!(job(from.path(), &far).run(ALL).await.is_complete());
    assert!(to.path().join("own/sub/deep/c").exists());
}
