//! Attributes of files besides their bytes: owner, group, access list (acl(5)), extended attributes (xattr(7)).

use rustix::fs::{
    Gid, Mode, Stat, Uid, XattrFlags, fchmod, fchown, fgetxattr, flistxattr, fremovexattr, fsetxattr, fstat,
};
use rustix::io::Errno;
use rustix::process::geteuid;
use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::OnceLock;

/// Longest list of names, and longest value, in Linux.
const MAX_XATTR: usize = 64 << 10;

/// Attributes of the bytes, not of the file: capabilities and signatures are also lost when a file is written in place.
const OF_THE_BYTES: [&[u8]; 3] = [b"security.capability", b"security.ima", b"security.evm"];

/// The access list, which a file may inherit from its directory (acl(5)).
const ACCESS_LIST: &CStr = c"system.posix_acl_access";

/// Prefixes of attributes with a meaning for the system, among them all access lists.
const OF_THE_SYSTEM: &[u8] = b"system.";

/// Whether nobody but the caller can have influenced the open `file`.
pub(super) fn is_own(file: impl AsFd, shared: bool) -> io::Result<bool> {
    let stat = fstat(file)?;
    let alone = stat.st_mode & 0o077 == 0;
    let regular = rustix::fs::FileType::from_raw_mode(stat.st_mode).is_file();
    Ok(regular && stat.st_uid == geteuid().as_raw() && stat.st_nlink == 1 && (alone || !shared))
}

/// Whether users other than the caller and root can make names in the directory. With an access list, the mode shows
/// its mask.
pub(super) fn is_shared(dir: &Stat) -> bool {
    !is_trusted(dir.st_uid) || Mode::from_raw_mode(dir.st_mode).intersects(Mode::WGRP | Mode::WOTH)
}

/// Whether this user's files are trusted: the caller's own, and root's.
pub(crate) fn is_trusted(user: u32) -> bool {
    user == geteuid().as_raw() || user == 0
}

/// Whether the owner of `link` and of its directory `dir`, in which nobody else can make names, has no number in this
/// user namespace (user_namespaces(7)). In containers, root of the host looks like that.
pub(super) fn is_unmapped(link: &Stat, dir: &Stat) -> bool {
    static UNMAPPED: OnceLock<Option<u32>> = OnceLock::new();
    let unmapped = UNMAPPED.get_or_init(|| {
        let map = std::fs::read_to_string("/proc/self/uid_map").ok()?;
        let number = std::fs::read_to_string("/proc/sys/kernel/overflowuid").ok()?;
        number.trim().parse().ok().filter(|number| leaves_out(&map, *number))
    });
    *unmapped == Some(link.st_uid)
        && dir.st_uid == link.st_uid
        && !Mode::from_raw_mode(dir.st_mode).intersects(Mode::WGRP | Mode::WOTH)
}

/// Whether the number stands for unmapped users by this map (user_namespaces(7)). Most containers have a real user of
/// that number: there the two cannot be told apart.
fn leaves_out(map: &str, number: u32) -> bool {
    let maps = |line: &str| {
        let fields: Option<Vec<u64>> = line.split_whitespace().map(|field| field.parse().ok()).collect();
        match fields.as_deref() {
            Some(&[first, _, count]) => (first..first.saturating_add(count)).contains(&u64::from(number)),
            // A line that is not understood may be about it.
            _ => true,
        }
    };
    !map.is_empty() && !map.lines().any(maps)
}

/// Checks that `new`, this user's draft, can get the owner and group of `was` and the extended attributes of `old`,
/// which is the same file. Some file systems set the owner themselves.
///
/// Group and attributes stay with the draft. Its owner and access list change only at the end, because they could let
/// others read it before.
pub(super) fn may_inherit(new: impl AsFd, was: &super::Stat, old: impl AsFd) -> io::Result<()> {
    let new = new.as_fd();
    let refused = |why: String| Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    let is = fstat(new)?;
    if is.st_uid != was.owner {
        match fchown(new, Some(Uid::from_raw(was.owner)), None) {
            Err(Errno::PERM | Errno::INVAL | Errno::NOTSUP) => {
                return refused(format!(
                    "it belongs to user {}, and only root can leave it to him; remove it first to replace it",
                    was.owner
                ));
            }
            done => done?,
        }
        fchown(new, Some(Uid::from_raw(is.st_uid)), None)?;
    }
    if is.st_gid != was.group {
        match fchown(new, None, Some(Gid::from_raw(was.group))) {
            Err(Errno::PERM | Errno::INVAL | Errno::NOTSUP) => {
                return refused(format!(
                    "it is of group {}, which you are not in; remove it first to replace it",
                    was.group
                ));
            }
            done => done?,
        }
    }
    // Access lists of all kinds belong to the system. With NFSv4 they set the mode too.
    copy_attributes(new, old.as_fd(), |name| !name.starts_with(OF_THE_SYSTEM))?;
    if fstat(new)?.st_mode & 0o077 != 0 {
        match fchmod(new, Mode::RUSR | Mode::WUSR) {
            // Where modes cannot be set, nothing here changes them.
            Err(Errno::PERM | Errno::INVAL | Errno::NOTSUP) => {}
            done => done?,
        }
    }
    Ok(())
}

/// Gives `new` the attributes of `old`, as far as they differ.
pub(super) fn inherit(new: impl AsFd, old: impl AsFd) -> io::Result<()> {
    let (new, old) = (new.as_fd(), old.as_fd());
    let (is, was) = (fstat(new)?, fstat(old)?);
    let (owner, group) = (was.st_uid, was.st_gid);
    if (owner, group) != (is.st_uid, is.st_gid) {
        let owner = (owner != is.st_uid).then(|| Uid::from_raw(owner));
        let group = (group != is.st_gid).then(|| Gid::from_raw(group));
        fchown(new, owner, group)?;
    }
    copy_attributes(new, old, |_| true)?;
    // Directories give new files an access list, which could let others read them.
    let mut none = [0; 0];
    if fgetxattr(old, ACCESS_LIST, &mut none) == Err(Errno::NODATA) {
        match fremovexattr(new, ACCESS_LIST) {
            Err(Errno::NODATA | Errno::NOTSUP) => {}
            done => done?,
        }
    }
    Ok(())
}

/// Copies the extended attributes of `old` that `takes` accepts to `new`, as far as they differ.
fn copy_attributes(new: BorrowedFd<'_>, old: BorrowedFd<'_>, takes: impl Fn(&[u8]) -> bool) -> io::Result<()> {
    let mut names = vec![0; MAX_XATTR];
    let len = match flistxattr(old, &mut names) {
        Err(Errno::NOTSUP | Errno::NOSYS) => return Ok(()),
        len => len?,
    };
    let (mut value, mut has) = (vec![0; MAX_XATTR], vec![0; MAX_XATTR]);
    for name in names[..len].split_inclusive(|byte| *byte == 0) {
        let Ok(name) = CStr::from_bytes_with_nul(name) else { continue };
        if OF_THE_BYTES.contains(&name.to_bytes()) || !takes(name.to_bytes()) {
            continue;
        }
        let len = match fgetxattr(old, name, &mut value) {
            // It was removed meanwhile.
            Err(Errno::NODATA) => continue,
            len => len?,
        };
        let same = fgetxattr(new, name, &mut has).is_ok_and(|has_len| has[..has_len] == value[..len]);
        if !same {
            fsetxattr(new, name, &value[..len], XattrFlags::empty())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::{Disk, linux::Linux};
    use super::*;
    use crate::key::Key;
    use rustix::thread::set_thread_res_uid;
    use std::fs::File;

    #[test]
    fn overflow_owner_is_trusted_only_if_no_user_has_it() {
        for outside in ["         0       1000          1\n", "0 0 65534", "0 1000 1\n1 100000 65533\n"] {
            assert!(leaves_out(outside, 65534), "{outside}");
        }
        // The host, and most containers: with a range of 65536 users, the last but one has the number.
        let host = "         0          0 4294967295\n";
        for inside in [host, "0 100000 65536\n", "0 1000 1\n1 100000 65536\n", "65534 1000 1\n", "0 1000", ""] {
            assert!(!leaves_out(inside, 65534), "{inside}");
        }
    }

    #[test]
    fn before_it_is_complete_a_draft_gets_no_access_list() {
        let dir = tempfile::tempdir().unwrap();
        let [new, old] = ["new", "old"].map(|name| {
            std::fs::create_dir(dir.path().join(name)).unwrap();
            File::open(dir.path().join(name)).unwrap()
        });
        fchmod(&new, Mode::from_raw_mode(0o755)).unwrap();
        // Owner, group, others (acl(5)). Directories have an attribute of the system that is not the one of files.
        let mut list = 2u32.to_le_bytes().to_vec();
        for tag in [1u16, 4, 32] {
            list.extend([&tag.to_le_bytes()[..], &5u16.to_le_bytes(), &u32::MAX.to_le_bytes()].concat());
        }
        let of_the_system = c"system.posix_acl_default";
        fsetxattr(&old, of_the_system, &list, XattrFlags::empty()).unwrap();
        fsetxattr(&old, c"user.note", b"kept", XattrFlags::empty()).unwrap();
        let disk = Linux::new(dir.path(), crate::Links::Beneath).unwrap();
        may_inherit(&new, &disk.stat(&Key::parse("old").unwrap(), true).unwrap(), &old).unwrap();
        let len = |name: &CStr| fgetxattr(&new, name, &mut [0; 100]);
        assert_eq!((len(c"user.note"), len(of_the_system)), (Ok(4), Err(Errno::NODATA)));
        assert_eq!(fstat(&new).unwrap().st_mode & 0o777, 0o600);
        inherit(&new, &old).unwrap();
        assert_eq!(fgetxattr(&new, of_the_system, &mut [0; 100]), Ok(list.len()));
    }

    #[test]
    fn owner_is_the_one_the_file_system_assigns() {
        // As root alone another owner can be had.
        if !geteuid().is_root() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let [new, old, other] = ["new", "old", "other"].map(|name| File::create(dir.path().join(name)).unwrap());
        let [seven, eight] = [7, 8].map(Uid::from_raw);
        fchown(&new, Some(seven), None).unwrap();
        fchown(&old, Some(seven), None).unwrap();
        fchown(&other, Some(eight), None).unwrap();
        let disk = Linux::new(dir.path(), crate::Links::Beneath).unwrap();
        let [was_old, was_other] = ["old", "other"].map(|name| disk.stat(&Key::parse(name).unwrap(), true).unwrap());
        // A thread has an identity of its own.
        let tried = std::thread::spawn(move || {
            set_thread_res_uid(None, Uid::from_raw(9), None).unwrap();
            [(was_old, old), (was_other, other)]
                .map(|(was, old)| may_inherit(&new, &was, old).map_err(|error| error.to_string()))
        });
        let [as_it_is, changed] = tried.join().unwrap();
        assert_eq!(as_it_is, Ok(()));
        assert!(changed.unwrap_err().contains("only root"));
    }
}
