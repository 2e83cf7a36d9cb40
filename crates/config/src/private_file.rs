//! Files with secrets or verifiers: read with their permissions, and replaced whole, by one program at a time.

use std::fs::{self, File, OpenOptions, Permissions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Longest file that is read, in bytes: of a hundred thousand users.
const MAX: u64 = 16 << 20;

/// Linux's flag for an open that waits for nobody, on all processors that Rust runs on but MIPS, SPARC, Alpha and HP's.
const O_NONBLOCK: i32 = 0o4000;
/// Linux's flag for an open that follows no link.
const O_NOFOLLOW: i32 = {
    let is_arm_or_power =
        cfg!(any(target_arch = "arm", target_arch = "aarch64", target_arch = "powerpc", target_arch = "powerpc64"));
    if is_arm_or_power { 0o100_000 } else { 0o400_000 }
};
/// Longest wait for another program.
const LOCK: Duration = Duration::from_secs(10);

/// What stands in a file, and who may read it.
pub(crate) struct PrivateText {
    pub(crate) text: String,
    /// Its permissions.
    pub(crate) mode: u32,
    /// Its owner.
    pub(crate) owner: u32,
}

/// Reads a file. `None` if there is none.
///
/// # Errors
/// The system's; `InvalidData` for one that is too long.
pub(crate) fn read(path: &Path) -> io::Result<Option<PrivateText>> {
    read_by(path, 0)
}

/// The same; a symbolic link is an error.
///
/// # Errors
/// As [`read`].
pub(crate) fn read_no_link(path: &Path) -> io::Result<Option<PrivateText>> {
    read_by(path, O_NOFOLLOW)
}

fn read_by(path: &Path, flags: i32) -> io::Result<Option<PrivateText>> {
    // Opening a pipe would wait for somebody who writes to it.
    let file = match OpenOptions::new().read(true).custom_flags(O_NONBLOCK | flags).open(path) {
        // Some accounts have /dev/null as their home.
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Ok(None);
        }
        other => other?,
    };
    let meta = file.metadata()?;
    if !meta.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file"));
    }
    let mut text = String::new();
    if file.take(MAX + 1).read_to_string(&mut text)? as u64 > MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("it is longer than {MAX} bytes")));
    }
    Ok(Some(PrivateText { text, mode: meta.permissions().mode() & 0o777, owner: meta.uid() }))
}

/// Reads a file and writes it again as `change` makes it, whole or not at all, while no other program does the same. A file that is
/// there keeps its permissions and owner; a new one has `mode`.
///
/// # Errors
/// Those of `change`, and the system's.
pub(crate) fn update<E: From<io::Error>>(
    path: &Path,
    mode: u32,
    change: impl FnOnce(Option<PrivateText>) -> Result<String, E>,
) -> Result<(), E> {
    // What a link leads to is changed, and not the link.
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let directory = directory_of(&path);
    let guard = File::open(&directory)?;
    lock(&guard)?;
    let text = change(read(&path)?)?;
    replace(&path, text.as_bytes(), mode)?;
    // After a power failure, too, there is one of both files.
    Ok(guard.sync_all()?)
}

/// Waits until no other program changes files of the directory.
fn lock(directory: &File) -> io::Result<()> {
    let start = Instant::now();
    loop {
        match directory.try_lock() {
            Ok(()) => return Ok(()),
            Err(TryLockError::WouldBlock) if start.elapsed() < LOCK => std::thread::sleep(Duration::from_millis(20)),
            Err(TryLockError::WouldBlock) => {
                let why = "another program has locked its directory for 10 s";
                return Err(io::Error::new(io::ErrorKind::TimedOut, why));
            }
            Err(TryLockError::Error(error)) => return Err(error),
        }
    }
}

fn directory_of(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => PathBuf::from("."),
    }
}

fn replace(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let before = fs::metadata(path).ok();
    let draft = path.with_extension(format!("new-{}", std::process::id()));
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft)?;
    let written = (|| {
        file.write_all(bytes)?;
        if let Some(before) = &before {
            chown(&draft, Some(before.uid()), Some(before.gid()))?;
        }
        let mode = before.as_ref().map_or(mode, |before| before.permissions().mode() & 0o777);
        file.set_permissions(Permissions::from_mode(mode))?;
        file.sync_all()?;
        fs::rename(&draft, path)
    })();
    written.inspect_err(|_| {
        let _ = fs::remove_file(&draft);
    })
}
