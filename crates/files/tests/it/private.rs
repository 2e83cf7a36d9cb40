//! Files and directories that are private at the source.

use crate::common;
use common::{Far, key, local};
use phoebus_files::Retry;
use phoebus_files::TransferOptions;
use phoebus_files::job::Job;
use phoebus_files::key::Key;
use phoebus_files::plan::Existing;
use phoebus_files::store::Store;
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
    // One attempt to set the mode fails and is repeated.
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
    // All attempts fail.
    far.faults.unset.store(3, Ordering::Relaxed);
    let report = job(from.path(), &far).run(ALL).await;
    assert_eq!((report.carried, report.failed), (1, 6), "{report:?}");
    assert!(report.failures[0].1.to_string().contains("busy"), "{report:?}");
    assert!(report.failures[1].1.to_string().contains("could not be made so"), "{report:?}");
    assert_eq!(fs::read_dir(to.path().join("own")).unwrap().count(), 0);
    // The mode is set at the end, and the next run continues.
    assert_eq!(mode(&to.path().join("own")), 0o700);
    assert!(job(from.path(), &far).run(ALL).await.is_complete());
    assert!(to.path().join("own/sub/deep/c").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn they_are_private_before_files_come_to_them_although_they_were_there() {
    let (from, to) = (tree(), tempdir().unwrap());
    let own = to.path().join("own");
    fs::create_dir(&own).unwrap();
    fs::set_permissions(&own, fs::Permissions::from_mode(0o777)).unwrap();
    let far = Far::new(to.path());
    assert!(job(from.path(), &far).run(ALL).await.is_complete());
    let made = far.faults.made.lock().unwrap().clone();
    let above = made.iter().find(|(dir, _)| *dir == key("own/sub")).unwrap().1.unwrap();
    assert_eq!((above & 0o777, mode(&own)), (0o700, 0o700));
    // Without the modes of the source, it keeps its own.
    fs::set_permissions(&own, fs::Permissions::from_mode(0o777)).unwrap();
    let job = job(from.path(), &far);
    let job = Job { how: TransferOptions { modes: false, ..job.how.clone() }, ..job };
    assert!(job.run(ALL).await.is_complete());
    assert_eq!(mode(&own), 0o777);
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_new_has_permissions_that_its_source_lacks() {
    let from = tree();
    for (path, mode) in [("own/a", 0o600), ("own/sub", 0o750), ("own/sub/b", 0o755), ("z", 0o440)] {
        fs::set_permissions(from.path().join(path), fs::Permissions::from_mode(mode)).unwrap();
    }
    let to = [tempdir().unwrap(), tempdir().unwrap()];
    fs::write(to[0].path().join("z"), "").unwrap();
    fs::set_permissions(to[0].path().join("z"), fs::Permissions::from_mode(0o666)).unwrap();
    let far: Arc<dyn Store> = Arc::new(Far::new(to[1].path()));
    for (dest, to) in [(Arc::new(local(to[0].path())) as Arc<dyn Store>, &to[0]), (far, &to[1])] {
        let job = Job { existing: Existing::Replace, ..Job::new(Arc::new(local(from.path())), dest) };
        let job = Job { how: TransferOptions { modes: false, ..job.how.clone() }, ..job };
        assert!(job.run(ALL).await.is_complete());
        for path in ["own", "own/a", "own/sub", "own/sub/b", "own/sub/deep", "own/sub/deep/c"] {
            let (was, is) = (mode(&from.path().join(path)), mode(&to.path().join(path)));
            assert!(is & !was == 0 && is & 0o700 == was & 0o700, "{path}: {was:o} {is:o}");
        }
    }
    // A replaced file keeps its permissions.
    assert_eq!((mode(&to[0].path().join("z")), mode(&to[1].path().join("z"))), (0o666, 0o440));
}
