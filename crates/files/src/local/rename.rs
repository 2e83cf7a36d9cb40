//! Renames with their special cases: private drafts before they are published, and two names of one file.

use crate::disk::{Disk, DiskFile, Linux, LinuxFile, Stat};
use crate::draft::{is_part, moved_name};
use crate::key::Key;
use crate::store::{Attributes, Kind};
use std::io;

/// Gives the held draft `from` ([`Spec::held`]) the permissions of the file `to` that it replaces, or those of a new
/// file.
///
/// # Errors
/// They cannot be set: under its final name, nobody would ever set them.
pub(super) fn release(disk: &Linux, from: &Key, to: &Key, mask: u32) -> io::Result<Option<LinuxFile>> {
    // A missing file, or a link to another draft, is left to the rename.
    if !is_part(from.name()) || !disk.stat(from, false).is_ok_and(|stat| stat.is_held()) {
        return Ok(None);
    }
    let refused = |why: &str| {
        let why = format!("it is private until it has its name, and its permissions cannot be set: {why}");
        io::Error::new(io::ErrorKind::PermissionDenied, why)
    };
    // Others may have replaced the file, or renamed it.
    let Some(file) = disk.adopt(from, true)? else {
        return Err(refused("it has a second name, or its owner is not the user who renames it"));
    };
    if !file.stat()?.is_held() {
        return Ok(None);
    }
    let old = disk.stat(to, false).ok().filter(|old| old.kind == Kind::File);
    let mode = Some(old.map_or(0o666 & !mask, |old| old.mode & 0o777));
    file.set(&Attributes { mode, modified: None }).map_err(|error| refused(&error.to_string()))?;
    Ok(Some(file))
}

/// Removes the name `from` after a rename to `to`: between two names of one file, rename(2) does nothing and reports
/// success.
pub(super) fn leave_other_link(disk: &Linux, from: &Key, to: &Key) -> io::Result<()> {
    let is_left = |old: &Stat| old.kind != Kind::Dir && old.links > 1;
    let Some(old) = disk.stat(from, false).ok().filter(is_left) else { return Ok(()) };
    if from == to || !disk.stat(to, false).is_ok_and(|new| new.is(&old)) {
        return Ok(());
    }
    // Whether these are two names, and not one in two cases, shows once the first is put aside.
    let aside = moved_name(from).map_err(io::Error::other)?;
    disk.rename(from, &aside, false)?;
    match disk.stat(to, false) {
        Ok(new) if new.is(&old) => disk.unlink(&aside),
        _ => disk.rename(&aside, to, false),
    }
}
