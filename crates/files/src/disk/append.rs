//! Files that lines are appended to, named by who runs the program: logs and reports.

use super::{Links, walk};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// How often the way is gone again when others put links on it meanwhile.
const LOOKUPS: usize = 16;

/// Opens `path` to append to it, and makes it if it is not there. A symbolic link is followed only if this user or root has made it, as
/// on the way to any file that is written.
///
/// # Errors
/// It cannot be written, or a link of somebody else is on the way.
pub fn append_to(path: &Path) -> io::Result<File> {
    // Links that the system itself makes, to what is open already.
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
