//! The state directory, in which other processes find a running testbed by its name.
//!
//! It holds the control socket, the files that replace the hosts' `/etc`, and the gateways' output. Its owner
//! holds a lock on the file `lock`, which the kernel releases when the owner and its sentinel are dead; a
//! directory with a free lock is stale, and the next testbed of that name replaces it.

use super::environment::{base, base_for_writing, control_socket};
use super::{Error, leftovers};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::fs::{self, DirBuilder, File};
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A state directory owned by this process. Dropping it leaves a stale directory behind.
#[derive(Debug)]
pub(super) struct StateDir {
    name: String,
    path: PathBuf,
    lock: File,
}

/// A testbed found by name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Found {
    /// The testbed's name.
    pub name: String,
    /// Its state directory.
    pub path: PathBuf,
    /// Whether it can be used.
    pub state: State,
}

/// The state of a testbed, as seen by other processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// Its owner answers requests ([`super::Remote`]).
    Running,
    /// Its owner uses it alone, as tests and benchmarks do.
    Private,
    /// Its owner is dead; [`Found::clear`] removes the leftovers.
    Stale,
}

/// The owner's record for a later cleanup.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Record {
    /// The owner's process.
    pub(super) pid: u32,
    /// Its start time, in seconds since 1970.
    pub(super) since: u64,
    /// The inode numbers of the hosts' network namespaces.
    pub(super) namespaces: Vec<u64>,
}

impl StateDir {
    /// Creates the directory of a new testbed; without a name, under a unique generated one.
    pub(super) fn create(name: Option<&str>) -> Result<Self, Error> {
        let base = base_for_writing()?;
        // Stale directories that cannot be cleared do not prevent a new testbed.
        Found::all()?.iter().filter(|found| found.state == State::Stale).for_each(|found| drop(found.clear()));
        if let Some(name) = name {
            if !super::scenario::is_label(name, 32) {
                return Err(Error::Name(name.into()));
            }
            return Self::create_named(&base, name);
        }
        static NEXT: AtomicU32 = AtomicU32::new(0);
        loop {
            let name = match NEXT.fetch_add(1, Ordering::Relaxed) {
                0 => format!("tb{}", std::process::id()),
                n => format!("tb{}-{n}", std::process::id()),
            };
            match Self::create_named(&base, &name) {
                Err(Error::NameTaken(_)) => {}
                made => return made,
            }
        }
    }

    fn create_named(base: &Path, name: &str) -> Result<Self, Error> {
        // The directory appears under its name only with its lock held, so that nobody takes it for stale.
        let fresh = hidden(base, name, "new");
        let path = base.join(name);
        DirBuilder::new().mode(0o700).create(&fresh).map_err(Error::state(&fresh))?;
        let made = (|| {
            let lock = File::create(fresh.join("lock")).map_err(Error::state(&fresh))?;
            flock(&lock, FlockOperation::NonBlockingLockExclusive).map_err(Error::state(&fresh))?;
            // A second round is needed if the first finds a stale directory; a third if another process holds
            // its lock to inspect it.
            for _ in 0..3 {
                match fs::rename(&fresh, &path) {
                    Ok(()) => return Ok(Self { name: name.into(), path: path.clone(), lock }),
                    Err(error) if matches!(error.raw_os_error(), Some(libc::ENOTEMPTY | libc::EEXIST)) => {}
                    Err(error) => return Err(Error::state(&path)(error)),
                }
                if !clear(&path, name)? {
                    std::thread::sleep(Duration::from_millis(20));
                }
            }
            Err(Error::NameTaken(name.into()))
        })();
        if made.is_err() {
            let _ = fs::remove_dir_all(&fresh);
        }
        made
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn lock(&self) -> BorrowedFd<'_> {
        self.lock.as_fd()
    }

    /// Removes the directory of a testbed that failed to start.
    pub(super) fn abandon(self) {
        let gone = hidden(self.path.parent().unwrap_or(&self.path), &self.name, "gone");
        if fs::rename(&self.path, &gone).is_ok() {
            let _ = fs::remove_dir_all(&gone);
        }
    }

    /// Writes the file `name` in the directory and returns its path.
    pub(super) fn write(&self, name: &str, contents: &str) -> Result<PathBuf, Error> {
        let path = self.path.join(name);
        fs::write(&path, contents).map_err(Error::state(&path))?;
        Ok(path)
    }

    /// As [`Self::write`], readable only by its owner.
    pub(super) fn write_secret(&self, name: &str, contents: &str) -> Result<(), Error> {
        let path = self.path.join(name);
        let open = || {
            let mut options = fs::OpenOptions::new();
            options.write(true).create(true).truncate(true).mode(0o600);
            options.open(&path)?.write_all(contents.as_bytes())
        };
        open().map_err(Error::state(&path))
    }

    pub(super) fn record(&self, namespaces: Vec<u64>) -> Result<(), Error> {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let record = Record { pid: std::process::id(), since, namespaces };
        let text = serde_json::to_string(&record).map_err(|e| Error::state(&self.path)(io::Error::from(e)))?;
        self.write("record.json", &text).map(drop)
    }
}

impl Found {
    /// All testbeds of this user on this machine, by name.
    pub fn all() -> Result<Vec<Self>, Error> {
        let base = base()?;
        let entries = match fs::read_dir(&base) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(Error::state(base)(error)),
        };
        let mut found: Vec<_> = entries
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .filter(|name| super::scenario::is_label(name, 32))
            .filter_map(|name| {
                let path = base.join(&name);
                let state = state(&path)?;
                Some(Self { name, path, state })
            })
            .collect();
        found.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(found)
    }

    /// Removes the leftovers of a dead owner: processes that still run in the hosts, and the directory.
    /// Returns whether there was anything to remove.
    pub fn clear(&self) -> Result<bool, Error> {
        clear(&self.path, &self.name)
    }
}

/// The state of the testbed in the directory `path`; `None` if the directory does not exist.
fn state(path: &Path) -> Option<State> {
    let lock = File::open(path.join("lock")).ok()?;
    let dead = flock(&lock, FlockOperation::NonBlockingLockShared).is_ok();
    Some(match control_socket(path).exists() {
        _ if dead => State::Stale,
        true => State::Running,
        false => State::Private,
    })
}

/// Removes the state directory `path` of the testbed `name` if its owner is dead. Returns false if the owner
/// is alive.
fn clear(path: &Path, name: &str) -> Result<bool, Error> {
    let lock = match File::open(path.join("lock")) {
        Ok(lock) => lock,
        // Another process has removed it meanwhile.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(true),
        Err(error) => return Err(Error::state(path)(error)),
    };
    match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(Errno::WOULDBLOCK) => return Ok(false),
        Err(error) => return Err(Error::state(path)(error)),
    }
    let record: Option<Record> =
        fs::read_to_string(path.join("record.json")).ok().and_then(|text| serde_json::from_str(&text).ok());
    leftovers::kill(name, &record.unwrap_or_default().namespaces);
    // Renamed first, so that a new testbed of this name gets its own directory meanwhile.
    let gone = hidden(path.parent().unwrap_or(path), name, "gone");
    fs::rename(path, &gone).map_err(Error::state(path))?;
    fs::remove_dir_all(&gone).map_err(Error::state(&gone))?;
    Ok(true)
}

/// A name in the same directory that no testbed can have.
pub(super) fn hidden(base: &Path, name: &str, what: &str) -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    base.join(format!(".{name}.{what}.{}.{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed)))
}
