//! A process that the system kills, and another that resumes its work; and a process without space.

use crate::common;
use common::{content, key, local};
use phoebus_files::{ErrorKind, Throttle, TransferOptions, transfer};
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use tempfile::tempdir;

const DIR: &str = "PHOEBUS_FILES_TEST_KILLED_IN";
const SIZE: usize = 12 << 20;

/// The work of the process that is killed. As an ordinary test, it does nothing.
#[tokio::test(flavor = "multi_thread")]
async fn slowly() {
    let Some(dir) = std::env::var_os(DIR) else { return };
    let how = TransferOptions {
        throttle: Some(Throttle::new(1 << 20)),
        checkpoint: Duration::from_millis(50),
        pool: phoebus_files::block::Pool::new(64 << 10, 16),
        ..TransferOptions::default()
    };
    let store = local(Path::new(&dir));
    transfer(&store, &key("from"), &store, &key("to"), &how).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_transfer_goes_on_where_it_was() {
    let dir = tempdir().unwrap();
    let (from, to) = (dir.path().join("from"), dir.path().join("to"));
    fs::write(&from, content(SIZE, 7)).unwrap();
    let journal = dir.path().join(".to.phoebus-journal");
    for _ in 0..2 {
        let before = fs::metadata(&journal).map_or(0, |meta| meta.len());
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "killed::slowly"])
            .env(DIR, dir.path())
            .spawn()
            .unwrap();
        // Long enough for some checkpoints, whose records make the journal grow.
        let give_up = Instant::now() + Duration::from_secs(60);
        while fs::metadata(&journal).map_or(0, |meta| meta.len()) < before + 200 && child.try_wait().unwrap().is_none()
        {
            assert!(Instant::now() < give_up, "no checkpoint was made");
            std::thread::sleep(Duration::from_millis(5));
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!to.exists(), "it had come to its end, or half of it was shown");
    }
    let store = local(dir.path());
    let done = transfer(&store, &key("from"), &store, &key("to"), &TransferOptions::default()).await.unwrap();
    assert!(done.moved < SIZE as u64, "nothing was kept");
    assert!(done.verified.is_some());
    assert!(fs::read(&to).unwrap() == content(SIZE, 7));
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
}

/// The work of the process with a limit on file sizes.
#[tokio::test(flavor = "multi_thread")]
async fn without_space() {
    let Some(dir) = std::env::var_os(DIR) else { return };
    let store = local(Path::new(&dir));
    let error = transfer(&store, &key("from"), &store, &key("to"), &TransferOptions::default()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace);
    assert!(error.to_string().starts_with(&format!("no space for {}/to: ", Path::new(&dir).display())), "{error}");
}

#[test]
fn full_disk_leaves_nothing_behind() {
    let dir = tempdir().unwrap();
    fs::write(dir.path().join("from"), content(3 << 20, 7)).unwrap();
    let script = "trap '' XFSZ; ulimit -f 2048; exec \"$0\" --exact killed::without_space";
    let exe = std::env::current_exe().unwrap();
    let status = Command::new("sh").args(["-c", script]).arg(exe).env(DIR, dir.path()).status().unwrap();
    assert!(status.success());
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}
