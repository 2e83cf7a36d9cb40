//! The files of an agent: by which programs find it, and who uses it.
//!
//! | file | what it is |
//! |---|---|
//! | `NAME` | where the agent listens and its secret; locked while it lives, so that the kernel tells of its death |
//! | the shorter name | a link to the file of the agent for this gateway that was started last |
//! | `NAME.lock` | held by whoever starts an agent, so that two do not |
//! | `NAME.users` | held, shared, by the programs that `phoebus run` has started; while they live the agent stays |
//! | `NAME.log`, `NAME.admin` | its log, and the socket that `phoebus status --gateway` asks |

use anyhow::{Context, Result, bail};
use phoebus_client::Agents;
use phoebus_proto::agent::Running;
use rustix::fs::{FlockOperation, flock};
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

/// Longest name of a Unix socket (sockaddr_un, with the zero at its end).
const SOCKET_MAX: usize = 107;
/// How often the file is touched, so that nobody who tidies up takes it for forgotten.
const TOUCH: Duration = Duration::from_secs(3600);

/// The files of an agent that lives. Dropped, they no longer lead to it.
#[derive(Debug)]
pub(super) struct Claim {
    file: File,
    path: PathBuf,
    pointer: PathBuf,
    users: File,
    touched: Instant,
}

impl Claim {
    /// Lets programs find the agent that is `running`.
    ///
    /// # Errors
    /// When one with these settings runs already, or the files cannot be written.
    pub(super) fn make(agents: &Agents, running: &Running) -> Result<Self> {
        let [path, pointer] = agents.files();
        if agents.find_own().is_some() {
            bail!("an agent with these settings runs already ({})", path.display());
        }
        let cannot = |what: &Path| format!("cannot write {}", what.display());
        // The file appears under its name only whole, and with its lock held.
        let fresh = beside(&path, &format!("new.{}", std::process::id()));
        let mut file = create(&fresh)?;
        flock(&file, FlockOperation::NonBlockingLockExclusive).with_context(|| cannot(&fresh))?;
        file.write_all(running.text().as_bytes()).with_context(|| cannot(&fresh))?;
        fs::rename(&fresh, &path).with_context(|| cannot(&path))?;
        let fresh = beside(&pointer, &format!("new.{}", std::process::id()));
        let _ = fs::remove_file(&fresh);
        symlink(path.file_name().unwrap_or_default(), &fresh).with_context(|| cannot(&fresh))?;
        fs::rename(&fresh, &pointer).with_context(|| cannot(&pointer))?;
        let users = users(agents)?;
        Ok(Self { file, path, pointer, users, touched: Instant::now() })
    }

    /// Whether any program holds on to the agent.
    pub(super) fn is_held(&mut self) -> bool {
        if self.touched.elapsed() > TOUCH {
            self.touched = Instant::now();
            let _ = self.file.set_modified(SystemTime::now());
        }
        let held = flock(&self.users, FlockOperation::NonBlockingLockExclusive).is_err();
        let _ = flock(&self.users, FlockOperation::Unlock);
        held
    }

    /// Takes the agent's name away, unless a program has come to hold on to it, and has `let_go` give up what else has a name. Whoever
    /// comes from now on starts another.
    pub(super) fn leave(&self, let_go: impl FnOnce()) -> bool {
        if flock(&self.users, FlockOperation::NonBlockingLockExclusive).is_err() {
            return false;
        }
        self.remove();
        let_go();
        let _ = flock(&self.users, FlockOperation::Unlock);
        true
    }

    /// Removes what leads here, and nothing that leads to another agent.
    fn remove(&self) {
        let same = |a: &fs::Metadata, b: &fs::Metadata| (a.dev(), a.ino()) == (b.dev(), b.ino());
        let Ok(own) = self.file.metadata() else { return };
        if fs::metadata(&self.pointer).is_ok_and(|there| same(&own, &there)) {
            let _ = fs::remove_file(&self.pointer);
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

/// Makes the directory, and its parent, for this user alone: what is in it is believed.
///
/// # Errors
/// When it cannot be had so.
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

/// Takes the right to start the agent; whoever else starts it waits.
pub(super) fn starting(agents: &Agents) -> Result<File> {
    let path = beside(&agents.files()[0], "lock");
    let file = create(&path)?;
    flock(&file, FlockOperation::LockExclusive).with_context(|| format!("cannot lock {}", path.display()))?;
    Ok(file)
}

/// The file that programs hold on to.
pub(super) fn users(agents: &Agents) -> Result<File> {
    create(&beside(&agents.files()[0], "users"))
}

/// What the agent says goes here.
pub(super) fn log(agents: &Agents) -> Result<(File, PathBuf)> {
    let path = beside(&agents.files()[0], "log");
    let file = create(&path)?;
    file.set_len(0).with_context(|| format!("cannot write {}", path.display()))?;
    Ok((file, path))
}

/// Where `phoebus status` may ask; none where the name would be too long for one.
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
