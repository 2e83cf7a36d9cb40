//! The namespaces of a host: network, mount and UTS, unnamed, held open by descriptors alone.
//!
//! Nothing in the file system refers to them, so they end with the last process that is in them or holds them: a testbed
//! whose owner is killed leaves none behind. `setns(2)` and `unshare(2)` act on one thread, except for user namespaces,
//! which only a process with a single thread can enter; hence the entrances below.
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
    /// Moves the calling thread into new namespaces of its own.
    pub(super) fn unshare() -> io::Result<Self> {
        let flags = UnshareFlags::NEWNET | UnshareFlags::NEWNS | UnshareFlags::NEWUTS;
        // SAFETY: the descriptor table stays shared (no CLONE_FILES), so no other code's descriptors change meaning.
        unsafe { unshare_unsafe(flags) }?;
        let open = |kind: &str| File::open(format!("/proc/thread-self/ns/{kind}")).map(OwnedFd::from);
        Ok(Self { user: open("user")?, net: open("net")?, mount: open("mnt")?, uts: open("uts")? })
    }

    /// The descriptors in the order in which [`Namespaces::from_fds`] takes them.
    pub(super) fn fds(&self) -> [BorrowedFd<'_>; 4] {
        [self.user.as_fd(), self.net.as_fd(), self.mount.as_fd(), self.uts.as_fd()]
    }

    /// Takes descriptors that another process passed on.
    pub(super) fn from_fds([user, net, mount, uts]: [OwnedFd; 4]) -> Self {
        Self { user, net, mount, uts }
    }

    /// The network namespace.
    pub(super) fn net(&self) -> BorrowedFd<'_> {
        self.net.as_fd()
    }

    /// The number by which `/proc` tells network namespaces apart while they exist.
    pub(super) fn net_inode(&self) -> io::Result<u64> {
        Ok(File::from(self.net.try_clone()?).metadata()?.ino())
    }

    /// Moves the calling thread, and no other, into the host's network and mount namespaces, for good: meant for a thread
    /// that was made for the purpose.
    pub(super) fn enter_thread(&self) -> io::Result<()> {
        // A thread that shares its working directory with others may not change its mount namespace.
        // SAFETY: only the file system attributes of this thread become its own.
        unsafe { unshare_unsafe(UnshareFlags::FS) }?;
        Ok(self.enter()?)
    }

    /// Moves the calling process into the host. It must have no second thread where the host is in another user namespace,
    /// which is so without root.
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

    /// Makes `command` start inside the host, in the working directory that it would have had outside.
    pub(super) fn enter_on_spawn(self: &Arc<Self>, command: &mut Command) {
        let namespaces = Arc::clone(self);
        let enter = move || {
            let mut directory = [0u8; libc::PATH_MAX as usize];
            // SAFETY: the buffer is as long as stated. getcwd does not allocate into a buffer that it is given.
            let known = !unsafe { libc::getcwd(directory.as_mut_ptr().cast(), directory.len()) }.is_null();
            namespaces.enter()?;
            match CStr::from_bytes_until_nul(&directory) {
                Ok(path) if known => Ok(chdir(path)?),
                _ => Ok(()),
            }
        };
        // SAFETY: between fork and exec the closure only makes system calls on descriptors that it owns; nothing in it
        // allocates or locks.
        unsafe { command.pre_exec(enter) };
    }

    fn enter(&self) -> Result<(), Errno> {
        move_into_link_name_space(self.net.as_fd(), Some(LinkNameSpaceType::Network))?;
        move_into_link_name_space(self.uts.as_fd(), Some(LinkNameSpaceType::HostNameAndNISDomainName))?;
        move_into_link_name_space(self.mount.as_fd(), Some(LinkNameSpaceType::Mount))
    }
}

/// Whether this process may build testbeds; if not, what it lacks.
pub(super) fn check_privileges() -> Result<(), Error> {
    check_tun()?;
    if may_administer() {
        return Ok(());
    }
    let lacking =
        "a testbed needs root, or a user namespace as `unshare -Ur` makes it, for CAP_SYS_ADMIN and CAP_NET_ADMIN";
    Err(Error::NotPermitted(lacking.into()))
}

/// Makes sure that this process may build testbeds: root stays what it is; anybody else becomes root in a user namespace,
/// where the machine allows that. To be called before the process starts a second thread.
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

/// Whether this process may make network and mount namespaces.
fn may_administer() -> bool {
    let needed = CapabilitySet::SYS_ADMIN | CapabilitySet::NET_ADMIN;
    capabilities(None).is_ok_and(|sets| sets.effective.contains(needed))
}

/// Which of the usual switches keeps users from making user namespaces.
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
