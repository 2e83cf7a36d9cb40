//! The namespaces of a host: network, mount and UTS, without names, held open only by descriptors.
//!
//! Nothing in the file system refers to them, so they end with the last process that is in them or holds
//! them: a testbed whose owner is killed leaves none behind. `setns(2)` and `unshare(2)` act on one thread,
//! except for user namespaces, which only a single-threaded process can enter; hence the different ways to
//! enter below.
#![allow(unsafe_code, reason = "namespaces, and what a child does between fork and exec")]

use super::Error;
use rustix::io::Errno;
use rustix::process::chdir;
use rustix::thread::{
    CapabilitySet, LinkNameSpaceType, UnshareFlags, capabilities, move_into_link_name_space, unshare_unsafe,
};
use std::ffi::CStr;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;

/// Descriptors of a host's namespaces.
#[derive(Debug)]
pub struct Namespaces {
    user: OwnedFd,
    net: OwnedFd,
    mount: OwnedFd,
    uts: OwnedFd,
}

impl Namespaces {
    /// Moves the calling thread into new namespaces.
    pub(super) fn unshare() -> io::Result<Self> {
        let flags = UnshareFlags::NEWNET | UnshareFlags::NEWNS | UnshareFlags::NEWUTS;
        // SAFETY: the descriptor table stays shared (no CLONE_FILES), so descriptors of other code keep their
        // meaning.
        unsafe { unshare_unsafe(flags) }?;
        let open = |kind: &str| File::open(format!("/proc/thread-self/ns/{kind}")).map(OwnedFd::from);
        Ok(Self { user: open("user")?, net: open("net")?, mount: open("mnt")?, uts: open("uts")? })
    }

    /// The descriptors, in the order of [`Namespaces::from_fds`].
    pub(super) fn fds(&self) -> [BorrowedFd<'_>; 4] {
        [self.user.as_fd(), self.net.as_fd(), self.mount.as_fd(), self.uts.as_fd()]
    }

    /// Takes over descriptors from another process.
    pub(super) fn from_fds([user, net, mount, uts]: [OwnedFd; 4]) -> Self {
        Self { user, net, mount, uts }
    }

    /// The network namespace.
    pub(super) fn net(&self) -> BorrowedFd<'_> {
        self.net.as_fd()
    }

    /// The inode number that identifies the network namespace in `/proc` while it exists.
    pub(super) fn net_inode(&self) -> io::Result<u64> {
        Ok(File::from(self.net.try_clone()?).metadata()?.ino())
    }

    /// Moves only the calling thread into the host's network and mount namespaces, permanently: for a thread
    /// that was created for this purpose.
    pub(super) fn enter_thread(&self) -> io::Result<()> {
        // A thread that shares its working directory with others may not change its mount namespace.
        // SAFETY: the call only unshares the file system attributes of this thread.
        unsafe { unshare_unsafe(UnshareFlags::FS) }?;
        Ok(self.enter()?)
    }

    /// Moves the calling process into the host. If the host is in another user namespace, as without root,
    /// the process must be single-threaded.
    pub fn enter_process(&self) -> io::Result<()> {
        let directory = std::env::current_dir();
        let ours = fs::metadata("/proc/self/ns/user")?;
        let theirs = File::from(self.user.try_clone()?).metadata()?;
        if ours.ino() != theirs.ino() {
            move_into_link_name_space(self.user.as_fd(), Some(LinkNameSpaceType::User))?;
        }
        self.enter()?;
        directory.and_then(std::env::set_current_dir)
    }

    /// Makes `command` start inside the host, in the same working directory as outside.
    pub(super) fn enter_on_spawn(self: &Arc<Self>, command: &mut Command) {
        let namespaces = Arc::clone(self);
        let enter = move || {
            let mut directory = [0u8; libc::PATH_MAX as usize];
            // SAFETY: the length is that of the buffer, so getcwd writes into it and allocates nothing.
            let known = !unsafe { libc::getcwd(directory.as_mut_ptr().cast(), directory.len()) }.is_null();
            namespaces.enter()?;
            match CStr::from_bytes_until_nul(&directory) {
                Ok(path) if known => Ok(chdir(path)?),
                _ => Ok(()),
            }
        };
        // SAFETY: between fork and exec the closure only makes system calls on descriptors that it owns; it
        // neither allocates nor locks.
        unsafe { command.pre_exec(enter) };
    }

    fn enter(&self) -> Result<(), Errno> {
        move_into_link_name_space(self.net.as_fd(), Some(LinkNameSpaceType::Network))?;
        move_into_link_name_space(self.uts.as_fd(), Some(LinkNameSpaceType::HostNameAndNISDomainName))?;
        move_into_link_name_space(self.mount.as_fd(), Some(LinkNameSpaceType::Mount))
    }
}

/// Checks that this process may build testbeds; the error says what it lacks.
pub(super) fn check_privileges() -> Result<(), Error> {
    check_tun()?;
    if may_administer() {
        return Ok(());
    }
    let lacking =
        "a testbed needs root, or a user namespace as `unshare -Ur` makes it, for CAP_SYS_ADMIN and CAP_NET_ADMIN";
    Err(Error::NotPermitted(lacking.into()))
}

/// Obtains the privileges to build testbeds: root needs nothing; any other user becomes root in a user
/// namespace, if the machine permits that. Must be called before the process starts a second thread.
pub fn gain_privileges() -> Result<(), Error> {
    check_tun()?;
    if may_administer() {
        return Ok(());
    }
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    // SAFETY: the descriptor table stays shared.
    unsafe { unshare_unsafe(UnshareFlags::NEWUSER) }.map_err(|error| {
        Error::NotPermitted(format!(
            "a testbed needs root, or user namespaces, and the kernel refused one: {}{}",
            io::Error::from(error),
            user_namespace_hint()
        ))
    })?;
    let write = |file: &str, text: String| fs::write(file, text).map_err(Error::state(file));
    write("/proc/self/setgroups", "deny".into())?;
    write("/proc/self/uid_map", format!("0 {uid} 1"))?;
    write("/proc/self/gid_map", format!("0 {gid} 1"))
}

fn check_tun() -> Result<(), Error> {
    let Err(error) = fs::OpenOptions::new().read(true).write(true).open("/dev/net/tun") else { return Ok(()) };
    Err(Error::NotPermitted(match error.kind() {
        io::ErrorKind::NotFound => "/dev/net/tun does not exist; load the module with `modprobe tun`".into(),
        io::ErrorKind::PermissionDenied => {
            "/dev/net/tun is not open to this user; a testbed needs root, or `chmod 666 /dev/net/tun`".into()
        }
        _ => format!("/dev/net/tun: {error}"),
    }))
}

/// Whether this process may create network and mount namespaces.
fn may_administer() -> bool {
    let needed = CapabilitySet::SYS_ADMIN | CapabilitySet::NET_ADMIN;
    capabilities(None).is_ok_and(|sets| sets.effective.contains(needed))
}

/// The usual sysctl settings that forbid user namespaces, and which of them is active.
fn user_namespace_hint() -> String {
    let switches = [
        ("user.max_user_namespaces", "0"),
        ("kernel.unprivileged_userns_clone", "0"),
        ("kernel.apparmor_restrict_unprivileged_userns", "1"),
    ];
    let set = |key: &str, value: &str| {
        fs::read_to_string(format!("/proc/sys/{}", key.replace('.', "/"))).is_ok_and(|text| text.trim() == value)
    };
    let found = switches.into_iter().find(|(key, value)| set(key, value));
    found.map(|(key, value)| format!(" (sysctl {key} is {value})")).unwrap_or_default()
}
