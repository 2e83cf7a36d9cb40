//! Decides whether many files are synced by one call (`syncfs(2)`), which writes the whole file system.

use super::LinuxFile;
use rustix::fs::FsWord;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

/// Fewer files are synced one after the other.
const FEWEST: usize = 4;

/// Most unwritten bytes of the whole machine with which one call is faster: some tenths of a second on a disk. The call
/// waits for those of all programs.
const UNWRITTEN: u64 = 64 << 20;

/// File systems whose `syncfs` makes everything safe that `fsync` would (statfs(2)). Network file systems, and those of
/// other programs (FUSE), may have such a call without effect.
const SAFE: [FsWord; 7] = [
    0xef53,      // ext2, ext3, ext4
    0x5846_5342, // XFS
    0x9123_683e, // btrfs
    0xf2f5_2010, // F2FS
    0x2fc1_2fc1, // ZFS
    0x0102_1994, // tmpfs
    0x794c_7630, // overlayfs, which passes it on to the upper file system
];

/// Syncs all of `files` by one call for the file system of `root`. False if that is not safe, or not faster.
///
/// `root` was opened before the files were written, so the kernel reports any failure since then.
pub(super) fn sync(root: &OwnedFd, files: &[&LinuxFile]) -> io::Result<bool> {
    if files.len() < FEWEST || !SAFE.contains(&rustix::fs::fstatfs(root)?.f_type) {
        return Ok(false);
    }
    let device = rustix::fs::fstat(root)?.st_dev;
    for file in files {
        if rustix::fs::fstat(file.0.as_fd())?.st_dev != device {
            return Ok(false);
        }
    }
    let status = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    if unwritten(&status).is_none_or(|bytes| bytes > UNWRITTEN) {
        return Ok(false);
    }
    rustix::fs::syncfs(root)?;
    Ok(true)
}

/// The bytes that wait to be written to any disk, from the text of `/proc/meminfo` (proc_meminfo(5)).
fn unwritten(status: &str) -> Option<u64> {
    let of = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        line.trim().strip_suffix(" kB")?.parse::<u64>().ok()
    };
    Some(of("Dirty")?.saturating_add(of("Writeback")?).saturating_mul(1024))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unwritten_bytes_are_those_of_all_programs() {
        let status = "MemTotal:  4 kB\nDirty:   100 kB\nWriteback:  20 kB\nWritebackTmp:  7 kB\n";
        assert_eq!(unwritten(status), Some(120 << 10));
        assert_eq!(unwritten("MemTotal:  4 kB\n"), None);
        assert_eq!(unwritten("Dirty: many kB\nWriteback: 0 kB\n"), None);
    }
}
