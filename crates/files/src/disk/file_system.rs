//! Syncs many files by one call (`syncfs(2)`), which writes their whole file system.

use super::LinuxFile;
use rustix::fs::{Mode, OFlags};
use std::io;
use std::os::fd::{AsFd, OwnedFd};

/// Fewer files are synced one after the other.
const SYNCFS_MIN: usize = 4;

/// Most unwritten bytes of the whole machine with which one call is faster: some tenths of a second on a disk. The call
/// waits for those of all programs.
const DIRTY_MAX: u64 = 64 << 20;

/// File systems whose `syncfs` makes everything safe that `fsync` would, and reports what could not be written. Network file
/// systems and those of other programs (FUSE) may have such a call without effect. overlayfs reports no errors of the file
/// system below, the old ext2 driver does not flush the disk, and F2FS reports no failed checkpoint. Files on btrfs have a device
/// of their subvolume, by which its kind is not found.
const SAFE: [&str; 5] = ["ext3", "ext4", "xfs", "zfs", "tmpfs"];

/// Since 5.8, `syncfs` reports bytes that could not be written (syncfs(2)); since this version, also what the file system's own
/// part of it could not do.
const REPORTS_SINCE: (u32, u32) = (5, 17);

/// A file system that can be synced by one call.
///
/// The kernel reports each failed write once to each descriptor that was open by then. So every batch has a descriptor of its
/// own, opened before its first file.
#[derive(Debug)]
pub(crate) struct FileSystem {
    root: OwnedFd,
    device: u64,
}

impl FileSystem {
    /// That of the directory `root`. `None` if its files are to be synced one after the other.
    pub(super) fn of(root: &OwnedFd) -> Option<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::openat(root, c".", flags, Mode::empty()).ok()?;
        let device = rustix::fs::fstat(&root).ok()?.st_dev;
        let release = rustix::system::uname().release().to_str().ok().and_then(version);
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
        let kind = kind_of(&mounts, (rustix::fs::major(device), rustix::fs::minor(device)))?;
        (release >= Some(REPORTS_SINCE) && SAFE.contains(&kind)).then_some(Self { root, device })
    }

    /// Syncs all of `files`. False if one of them is elsewhere, or one after the other is faster.
    pub(super) fn sync(&self, files: &[&LinuxFile]) -> io::Result<bool> {
        if files.len() < SYNCFS_MIN {
            return Ok(false);
        }
        for file in files {
            if rustix::fs::fstat(file.0.as_fd())?.st_dev != self.device {
                return Ok(false);
            }
        }
        let memory = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
        if unwritten(&memory).is_none_or(|bytes| bytes > DIRTY_MAX) {
            return Ok(false);
        }
        rustix::fs::syncfs(&self.root)?;
        Ok(true)
    }
}

/// The first two numbers of a kernel's release.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|number| number.parse().ok());
    Some((numbers.next()??, numbers.next()??))
}

/// The kind of the file system on a device, from the text of `/proc/self/mountinfo` (proc_pid_mountinfo(5)).
fn kind_of(mounts: &str, (major, minor): (u32, u32)) -> Option<&str> {
    let device = format!("{major}:{minor}");
    let mount = mounts.lines().find(|line| line.split(' ').nth(2) == Some(&device))?;
    mount.split_once(" - ")?.1.split(' ').next()
}

/// The bytes that wait to be written to any disk, from the text of `/proc/meminfo` (proc_meminfo(5)).
fn unwritten(memory: &str) -> Option<u64> {
    let of = |name: &str| {
        let line = memory.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        line.trim().strip_suffix(" kB")?.parse::<u64>().ok()
    };
    Some(of("Dirty")?.saturating_add(of("Writeback")?).saturating_mul(1024))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unwritten_bytes_are_those_of_all_programs() {
        let memory = "MemTotal:  4 kB\nDirty:   100 kB\nWriteback:  20 kB\nWritebackTmp:  7 kB\n";
        assert_eq!(unwritten(memory), Some(120 << 10));
        assert_eq!(unwritten("MemTotal:  4 kB\n"), None);
        assert_eq!(unwritten("Dirty: many kB\nWriteback: 0 kB\n"), None);
    }

    #[test]
    fn kind_of_a_file_system_is_that_of_its_device() {
        let mounts = "22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n\
                      23 22 0:21 / /proc rw - proc proc rw\n36 22 0:32 / /x rw master:1 - fuse.sshfs h: rw\n";
        assert_eq!(kind_of(mounts, (254, 0)), Some("ext4"));
        assert_eq!(kind_of(mounts, (0, 32)), Some("fuse.sshfs"));
        assert_eq!(kind_of(mounts, (0, 33)), None);
        assert_eq!(kind_of("22 1 254:0 / / rw", (254, 0)), None);
    }

    #[test]
    fn releases_are_compared_by_number() {
        assert_eq!(version("6.18.44-fc-v657"), Some((6, 18)));
        assert_eq!(version("5.17"), Some((5, 17)));
        assert!(version("5.15.0-generic") < Some(REPORTS_SINCE) && version("Linux") < Some(REPORTS_SINCE));
    }
}
