//! Whose a file is, and what it has beside its bytes: owner, group, access list (acl(5)), extended attributes (xattr(7)).

use rustix::fs::{Gid, Mode, Stat, Uid, XattrFlags, fchown, fgetxattr, flistxattr, fsetxattr, fstat};
use rustix::io::Errno;
use rustix::process::geteuid;
use std::ffi::CStr;
use std::io;
use std::os::fd::AsFd;

/// The longest list of names, and the longest value, that Linux has.
const MAX_XATTR: usize = 64 << 10;

/// What belongs to the bytes and not to the file: capabilities and signatures are lost as well when a file is written in place.
const OF_THE_BYTES: [&[u8]; 3] = [b"security.capability", b"security.ima", b"security.evm"];

/// Whether nobody but the user who asks has had a hand in the open `file`.
pub(super) fn is_own(file: impl AsFd, shared: bool) -> io::Result<bool> {
    let stat = fstat(file)?;
    let alone = stat.st_mode & 0o077 == 0;
    let regular = rustix::fs::FileType::from_raw_mode(stat.st_mode).is_file();
    Ok(regular && stat.st_uid == geteuid().as_raw() && stat.st_nlink == 1 && (alone || !shared))
}

/// Whether others than the user who asks and root can make names in the directory. Its mask shows in the mode where it has an
/// access list.
pub(super) fn is_shared(dir: &Stat) -> bool {
    !is_trusted(dir.st_uid) || Mode::from_raw_mode(dir.st_mode).intersects(Mode::WGRP | Mode::WOTH)
}

/// Whether what this user has made is believed: the user who asks himself, and root.
pub(crate) fn is_trusted(user: u32) -> bool {
    user == geteuid().as_raw() || user == 0
}

/// Whether `new`, which this user has made, can get the owner and the group of `old`.
pub(super) fn may_inherit(new: impl AsFd, old: &super::Stat) -> io::Result<()> {
    let refused = |why: String| Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    if geteuid().is_root() {
        return Ok(());
    }
    if old.owner != geteuid().as_raw() {
        let owner = old.owner;
        return refused(format!(
            "it belongs to user {owner}, and only root can leave it to him; remove it first to replace it"
        ));
    }
    let group = old.group;
    if fstat(&new)?.st_gid == group {
        return Ok(());
    }
    match fchown(&new, None, Some(Gid::from_raw(group))) {
        Err(Errno::PERM) => {
            refused(format!("it is of group {group}, which you are not in; remove it first to replace it"))
        }
        done => Ok(done?),
    }
}

/// Gives `new` what `old` has beside its bytes. Nothing is done about what they have in common.
pub(super) fn inherit(new: impl AsFd, old: impl AsFd) -> io::Result<()> {
    let (new, old) = (new.as_fd(), old.as_fd());
    let (is, was) = (fstat(new)?, fstat(old)?);
    let (owner, group) = (was.st_uid, was.st_gid);
    if (owner, group) != (is.st_uid, is.st_gid) {
        let owner = (owner != is.st_uid).then(|| Uid::from_raw(owner));
        let group = (group != is.st_gid).then(|| Gid::from_raw(group));
        fchown(new, owner, group)?;
    }
    let mut names = vec![0; MAX_XATTR];
    let len = match flistxattr(old, &mut names) {
        Err(Errno::NOTSUP | Errno::NOSYS) => return Ok(()),
        len => len?,
    };
    let (mut value, mut has) = (vec![0; MAX_XATTR], vec![0; MAX_XATTR]);
    for name in names[..len].split_inclusive(|byte| *byte == 0) {
        let Ok(name) = CStr::from_bytes_with_nul(name) else { continue };
        if OF_THE_BYTES.contains(&name.to_bytes()) {
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
