//! The files of an agent, by which programs find it and keep it running.
//!
//! | file | content |
//! |---|---|
//! | `NAME` | the agent's address and secret; locked while it lives, so that the kernel shows its death |
//! | the shorter name | a link to the file of the last started agent for this gateway |
//! | `NAME.lock` | held while an agent is started, so that two are not |
//! | `NAME.users` | held, shared, by the programs that `phoebus run` has started; the agent stays while they live |
//! | `NAME.log`, `NAME.admin` | its log, and the socket that `phoebus status --gateway` asks |

use anyhow::{Context, Result, bail};
use phoebus_client::Agents;
use phoebus_config::agent::Running;
use rustix::fs::{FlockOperation, flock};
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

/// Longest name of a Unix socket (sockaddr_un, with the zero at its end).
const SOCKET_MAX: usize = 107;
/// Interval of touching the file, so that cleaners of old files leave it.
const TOUCH: Duration = Duration::from_secs(3600);

/// The files of a running agent. Dropping it removes them.
#[derive(Debug)]
pub(super) struct Claim {
    file: File,
    path: PathBuf,
    /// The name by which programs find it that demand no first hop.
    pointer: Option<PathBuf>,
    users: File,
    touched: Instant,
}

impl Claim {
    /// Publishes the agent `running` to programs.
    ///
    /// # Errors
    /// An agent with these settings is running already, or the files cannot be written.
    pub(super) fn make(agents: &Agents, running: &Running) -> Result<Self> {
        let [path, pointer] = agents.files();
        if agents.find_own().is_some() {
            bail!("an agent with these settings runs already ({})", path.display());
        }
        let cannot = |what: &Path| format!("cannot write {}", what.display());
        // The file appears complete and locked.
        let fresh = beside(&path, &format!("new.{}", std::process::id()));
        let mut file = create(&fresh)?;
        flock(&file, FlockOperation::NonBlockingLockExclusive).with_context(|| cannot(&fresh))?;
        file.write_all(running.text().as_bytes()).with_context(|| cannot(&fresh))?;
        fs::rename(&fresh, &path).with_context(|| cannot(&path))?;
        let pointer = (!agents.is_plain()).then_some(pointer);
        if let Some(pointer) = &pointer {
            let fresh = beside(pointer, &format!("new.{}", std::process::id()));
            let _ = fs::remove_file(&fresh);
            symlink(path.file_name().unwrap_or_default(), &fresh).with_context(|| cannot(&fresh))?;
            fs::rename(&fresh, pointer).with_context(|| cannot(pointer))?;
        }
        let users = users(agents)?;
        Ok(Self { file, path, pointer, users, touched: Instant::now() })
    }

    /// Whether a program uses the agent.
    pub(super) fn is_held(&mut self) -> bool {
        if self.touched.elapsed() > TOUCH {
            self.touched = Instant::now();
            let _ = self.file.set_modified(SystemTime::now());
        }
        let held = flock(&self.users, FlockOperation::NonBlockingLockExclusive).is_err();
        let _ = flock(&self.users, FlockOperation::Unlock);
        held
    }

    /// Removes the agent's name, unless a program has started to use it, and calls `let_go` to give up its other names.
    /// Later programs start another agent.
    pub(super) fn leave(&self, let_go: impl FnOnce()) -> bool {
        if flock(&self.users, FlockOperation::NonBlockingLockExclusive).is_err() {
            return false;
        }
        self.remove();
        let_go();
        let _ = flock(&self.users, FlockOperation::Unlock);
        true
    }

    /// Removes what leads to this agent, and nothing that leads to another.
    fn remove(&self) {
        let same = |a: &fs::Metadata, b: &fs::Metadata| (a.dev(), a.ino()) == (b.dev(), b.ino());
        let Ok(own) = self.file.metadata() else { return };
        if let Some(pointer) = &self.pointer
            && fs::metadata(pointer).is_ok_and(|there| same(&own, &there))
        {
            let _ = fs::remove_file(pointer);
        }
        if fs::symlink_metadata(&self.path).is_ok_and(|there| same(&own, &there)) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.remove();
    }
}

/// Creates the directory, and its parent, for this user alone, since its content is trusted.
///
/// # Errors
/// It cannot be made private.
pub(super) fn make_directory(directory: &Path) -> Result<()> {
    let uid = rustix::process::geteuid().as_raw();
    for path in [directory.parent().unwrap_or(directory), directory] {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(path)
            .with_context(|| format!("cannot make the directory {}", path.display()))?;
        let metadata =
            fs::symlink_metadata(path).with_context(|| format!("cannot use the directory {}", path.display()))?;
        if !metadata.is_dir() || metadata.uid() != uid || metadata.mode() & 0o022 != 0 {
            bail!(
                "cannot use {}: expected a directory of user {uid} that nobody else can write; remove it, or set \
                 XDG_RUNTIME_DIR to another place",
                path.display()
            );
        }
    }
    Ok(())
}

/// Takes the lock for starting the agent. Others wait for it.
pub(super) fn starting(agents: &Agents) -> Result<File> {
    let path = beside(&agents.files()[0], "lock");
    let file = create(&path)?;
    flock(&file, FlockOperation::LockExclusive).with_context(|| format!("cannot lock {}", path.display()))?;
    Ok(file)
}

/// The file that programs hold.
pub(super) fn users(agents: &Agents) -> Result<File> {
    create(&beside(&agents.files()[0], "users"))
}

/// The agent's log.
pub(super) fn log(agents: &Agents) -> Result<(File, PathBuf)> {
    let path = beside(&agents.files()[0], "log");
    let file = create(&path)?;
    file.set_len(0).with_context(|| format!("cannot write {}", path.display()))?;
    Ok((file, path))
}

/// The socket for `phoebus status`. `None` if its path would be too long.
pub(super) fn admin_socket(agents: &Agents) -> Option<PathBuf> {
    Some(beside(&agents.files()[0], "admin")).filter(|path| path.as_os_str().len() <= SOCKET_MAX)
}

fn beside(path: &Path, end: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(end);
    name.into()
}

fn create(path: &Path) -> Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    options.open(path).with_context(|| format!("cannot write {}", path.display()))
}
