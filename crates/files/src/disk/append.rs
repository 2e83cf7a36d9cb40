//! Files to append to: logs and reports that the user names.

use super::{Links, walk};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Most attempts if others change links on the path meanwhile.
const LOOKUPS: usize = 16;

/// Opens `path` for appending, and creates it if needed. Symbolic links are followed only if this user or root has made
/// them, as with any file that is written.
///
/// # Errors
/// It cannot be written, or another user's link is on the path.
pub fn append_to(path: &Path) -> io::Result<File> {
    // Links of the system to files that are already open.
    if ["/dev/stdout", "/dev/stderr", "/dev/fd", "/proc"].iter().any(|own| path.starts_with(own)) {
        return File::options().append(true).create(true).open(path);
    }
    let (path, flags) = (std::path::absolute(path)?, OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE);
    let root = rustix::fs::open("/", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    for _ in 0..LOOKUPS {
        let place = walk::follow_path(&root, Links::Anywhere, path.as_os_str().as_bytes())?;
        let flags = flags | OFlags::NOFOLLOW | OFlags::NOCTTY | OFlags::CLOEXEC;
        match rustix::fs::openat(&place.dir, place.name(), flags, Mode::from_raw_mode(0o666)) {
            // Somebody has put a link there meanwhile.
            Err(Errno::LOOP) => {}
            opened => return Ok(opened?.into()),
        }
    }
    Err(Errno::LOOP.into())
}
