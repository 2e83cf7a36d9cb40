//! Path lookup for writing. A symbolic link is followed only if this user or root has made it: others could otherwise
//! choose where a more privileged user writes. A link of an unmapped owner is followed if only that owner can make
//! names in its directory ([`owned::is_unmapped`]).
//!
//! Each component is opened from its parent without following links. The checked link is the one whose target is read,
//! in the opened directory, so nobody can exchange it in between.

use super::owned;
use crate::key::Key;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, PROC_SUPER_MAGIC, ResolveFlags, Stat};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;

/// Most symbolic links in a lookup, as in the kernel.
const MAX_LINKS: usize = 40;

/// Flags to open a path without access to its content.
const PATH: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);

/// Where symbolic links may lead.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Links {
    /// Below the root. For trees that others can write to, and for everything that is served.
    #[default]
    Beneath,
    /// Anywhere. For files that the user of the program names.
    Anywhere,
}

/// The result of a lookup.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) dir: OwnedFd,
    /// The last component, which is no symbolic link, or does not exist; a dot for the directory itself.
    pub(super) name: Vec<u8>,
}

impl Target {
    pub(super) fn name(&self) -> &OsStr {
        OsStr::from_bytes(&self.name)
    }
}

/// Opens `key` below `root` if no symbolic link is on the path. `None`: a stepwise lookup is needed.
pub(super) fn straight(
    root: &OwnedFd,
    links: Links,
    key: &Key,
    flags: OFlags,
    mode: Mode,
) -> Option<io::Result<OwnedFd>> {
    let beneath = if links == Links::Beneath { ResolveFlags::BENEATH } else { ResolveFlags::empty() };
    match rustix::fs::openat2(root, key.as_path(), flags, mode, beneath | ResolveFlags::NO_SYMLINKS) {
        // Some systems lack the call, or forbid it.
        Err(Errno::LOOP | Errno::AGAIN | Errno::NOSYS | Errno::PERM) => None,
        opened => Some(opened.map_err(io::Error::from)),
    }
}

/// Looks up `key` from `root`, following its links.
///
/// # Errors
/// A directory does not exist; the path leaves `root` without permission; or a link is not followed.
pub(super) fn follow(root: &OwnedFd, links: Links, key: &Key) -> io::Result<Target> {
    follow_path(root, links, key.as_path().as_os_str().as_bytes())
}

/// The same for a path below `root`.
pub(super) fn follow_path(root: &OwnedFd, links: Links, path: &[u8]) -> io::Result<Target> {
    let mut walk = Walk { root, links, here: root.try_clone()?, names: Vec::new(), left: MAX_LINKS };
    let mut ahead = parts(path);
    while let Some(part) = ahead.pop() {
        let is_last = ahead.is_empty();
        match &part[..] {
            b"." => {}
            b".." => walk.up()?,
            _ => match walk.step(&part, is_last)? {
                Step::Down => {}
                Step::End => return Ok(Target { dir: walk.here, name: part }),
                Step::Link(text) => {
                    if text.starts_with(b"/") {
                        walk.top()?;
                    }
                    ahead.extend(parts(&text));
                }
            },
        }
    }
    Ok(Target { dir: walk.here, name: b".".to_vec() })
}

/// The components of a path, the last first. A trailing slash counts as one: it demands a directory.
fn parts(path: &[u8]) -> Vec<Vec<u8>> {
    let mut parts: Vec<Vec<u8>> = path.split(|&byte| byte == b'/').rev().map(<[u8]>::to_vec).collect();
    if let Some(last) = parts.first_mut().filter(|last| last.is_empty()) {
        last.push(b'.');
    }
    parts.retain(|part| !part.is_empty());
    parts
}

struct Walk<'a> {
    root: &'a OwnedFd,
    links: Links,
    here: OwnedFd,
    /// The directories from the root to `here`, if nothing else may be reached.
    names: Vec<Vec<u8>>,
    /// Links that may still be followed.
    left: usize,
}

enum Step {
    /// Enter a directory.
    Down,
    /// The last component.
    End,
    /// Follow a link with this target.
    Link(Vec<u8>),
}

impl Walk<'_> {
    fn step(&mut self, part: &[u8], is_last: bool) -> io::Result<Step> {
        let name = OsStr::from_bytes(part);
        if !is_last {
            // Most components are directories. Opening them as such triggers automounts.
            let flags = PATH | OFlags::NOFOLLOW | OFlags::DIRECTORY;
            match rustix::fs::openat(&self.here, name, flags, Mode::empty()) {
                Err(Errno::NOTDIR | Errno::LOOP) => {}
                dir => {
                    self.enter(dir?, part);
                    return Ok(Step::Down);
                }
            }
        }
        let link = match rustix::fs::openat(&self.here, name, PATH | OFlags::NOFOLLOW, Mode::empty()) {
            Err(Errno::NOENT) if is_last => return Ok(Step::End),
            link => link?,
        };
        let stat = rustix::fs::fstat(&link)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::Symlink {
            return if is_last { Ok(Step::End) } else { Err(Errno::NOTDIR.into()) };
        }
        self.judge(&stat, name)?;
        self.left = self.left.checked_sub(1).ok_or(Errno::LOOP)?;
        // Some links of /proc lead elsewhere than their text, and nobody can exchange them.
        if self.links == Links::Anywhere && !is_last && rustix::fs::fstatfs(&link)?.f_type == PROC_SUPER_MAGIC {
            self.here = rustix::fs::openat(&self.here, name, PATH | OFlags::DIRECTORY, Mode::empty())?;
            return Ok(Step::Down);
        }
        Ok(Step::Link(rustix::fs::readlinkat(&link, "", Vec::new())?.into_bytes()))
    }

    /// Whether to follow this link. The current permissions of the directory say nothing about the time when the link
    /// was made.
    fn judge(&self, link: &Stat, name: &OsStr) -> io::Result<()> {
        let owner = link.st_uid;
        if owned::is_trusted(owner) || owned::is_unmapped(link, &rustix::fs::fstat(&self.here)?) {
            return Ok(());
        }
        let why = format!(
            "\"{}\" is a symbolic link of user {owner}, and not of root or of the user who writes: name the path that it leads to, \
             or make the link one's own (chown -h)",
            name.display()
        );
        Err(io::Error::new(io::ErrorKind::PermissionDenied, why))
    }

    fn enter(&mut self, dir: OwnedFd, name: &[u8]) {
        self.here = dir;
        if self.links == Links::Beneath {
            self.names.push(name.to_vec());
        }
    }

    fn up(&mut self) -> io::Result<()> {
        if self.links == Links::Anywhere {
            self.here = rustix::fs::openat(&self.here, "..", PATH | OFlags::DIRECTORY, Mode::empty())?;
            return Ok(());
        }
        // A directory may have been moved out of the root meanwhile. From the root down, nothing leads out.
        self.names.pop().ok_or(Errno::XDEV)?;
        let above = if self.names.is_empty() { b".".to_vec() } else { self.names.join(&b'/') };
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        let (above, flags) = (OsStr::from_bytes(&above), PATH | OFlags::DIRECTORY);
        self.here = rustix::fs::openat2(self.root, above, flags, Mode::empty(), resolve)?;
        Ok(())
    }

    fn top(&mut self) -> io::Result<()> {
        if self.links == Links::Beneath {
            return Err(Errno::XDEV.into());
        }
        self.here = rustix::fs::open("/", PATH | OFlags::DIRECTORY, Mode::empty())?;
        Ok(())
    }
}

/// What `place` is.
pub(super) fn stat(place: &Target) -> io::Result<Stat> {
    Ok(rustix::fs::statat(&place.dir, place.name(), AtFlags::SYMLINK_NOFOLLOW)?)
}
