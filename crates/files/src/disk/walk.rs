//! The way to what is written. A symbolic link on it is followed if this user or root has made it, wherever it lies: anybody else would
//! choose where somebody with more rights writes. So is one of an owner without a number here, if only that owner can make names in its
//! directory ([`owned::is_unmapped`]).
//!
//! The way is gone component by component, each opened from the directory before it without following anything. What is judged is the
//! very link whose text is then read, and it lies in the very directory that is open: nobody can exchange them in between.

use super::owned;
use crate::key::Key;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, PROC_SUPER_MAGIC, ResolveFlags, Stat};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;

/// How many symbolic links are followed on a way, as many as the kernel follows.
const MAX_LINKS: usize = 40;

/// How a path is opened of which nothing but its place is needed.
const PATH: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);

/// Where symbolic links may lead.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Links {
    /// To what lies beneath the root. For trees that others can write to, and for everything that is served.
    #[default]
    Beneath,
    /// Anywhere. For the files of whoever runs this, named by themselves.
    Anywhere,
}

/// Where a way ends.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) dir: OwnedFd,
    /// The name there of what is no symbolic link, or of nothing; a dot for the directory itself.
    pub(super) name: Vec<u8>,
}

impl Place {
    pub(super) fn name(&self) -> &OsStr {
        OsStr::from_bytes(&self.name)
    }
}

/// Opens `key` below `root` if no symbolic link is on the way to it; none if that has to be gone step by step.
pub(super) fn straight(
    root: &OwnedFd,
    links: Links,
    key: &Key,
    flags: OFlags,
    mode: Mode,
) -> Option<io::Result<OwnedFd>> {
    let beneath = if links == Links::Beneath { ResolveFlags::BENEATH } else { ResolveFlags::empty() };
    match rustix::fs::openat2(root, key.as_path(), flags, mode, beneath | ResolveFlags::NO_SYMLINKS) {
        // Some systems do not have the call, or do not allow it.
        Err(Errno::LOOP | Errno::AGAIN | Errno::NOSYS | Errno::PERM) => None,
        opened => Some(opened.map_err(io::Error::from)),
    }
}

/// Goes from `root` to where `key` leads at last.
///
/// # Errors
/// A directory on the way does not exist; the way leads out of `root` and may not; a link on it is not followed.
pub(super) fn follow(root: &OwnedFd, links: Links, key: &Key) -> io::Result<Place> {
    follow_path(root, links, key.as_path().as_os_str().as_bytes())
}

/// The same for a path below `root`.
pub(super) fn follow_path(root: &OwnedFd, links: Links, path: &[u8]) -> io::Result<Place> {
    let mut walk = Walk { root, links, here: root.try_clone()?, names: Vec::new(), left: MAX_LINKS };
    let mut ahead = parts(path);
    while let Some(part) = ahead.pop() {
        let is_last = ahead.is_empty();
        match &part[..] {
            b"." => {}
            b".." => walk.up()?,
            _ => match walk.step(&part, is_last)? {
                Step::Down => {}
                Step::End => return Ok(Place { dir: walk.here, name: part }),
                Step::Link(text) => {
                    if text.starts_with(b"/") {
                        walk.top()?;
                    }
                    ahead.extend(parts(&text));
                }
            },
        }
    }
    Ok(Place { dir: walk.here, name: b".".to_vec() })
}

/// The components of a path, the last of them first. A slash at its end is a component, too: a directory is meant.
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
    /// The names of the directories from the root to `here`, where nothing else may be reached.
    names: Vec<Vec<u8>>,
    /// How many links may be followed yet.
    left: usize,
}

enum Step {
    /// Into a directory.
    Down,
    /// What is looked for.
    End,
    /// To a link that is to be followed, with this text.
    Link(Vec<u8>),
}

impl Walk<'_> {
    fn step(&mut self, part: &[u8], is_last: bool) -> io::Result<Step> {
        let name = OsStr::from_bytes(part);
        if !is_last {
            // A directory is what it mostly is; opened as one, it is mounted if that is done when it is needed.
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
        // Some links of /proc lead where their text does not, and nobody can exchange them.
        if self.links == Links::Anywhere && !is_last && rustix::fs::fstatfs(&link)?.f_type == PROC_SUPER_MAGIC {
            self.here = rustix::fs::openat(&self.here, name, PATH | OFlags::DIRECTORY, Mode::empty())?;
            return Ok(Step::Down);
        }
        Ok(Step::Link(rustix::fs::readlinkat(&link, "", Vec::new())?.into_bytes()))
    }

    /// Whether the link of this name in this directory is to be followed. Whether others can make names there now says nothing of when
    /// the link was made.
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
        // A directory may have been moved out of the root meanwhile: from the root down nothing leads out.
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
pub(super) fn stat(place: &Place) -> io::Result<Stat> {
    Ok(rustix::fs::statat(&place.dir, place.name(), AtFlags::SYMLINK_NOFOLLOW)?)
}
