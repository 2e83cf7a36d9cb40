//! The sentinel: a small process that cleans up a testbed when its owner ends, even by SIGKILL.
//!
//! Namespaces and TUN devices vanish once nobody holds them. The kernel would leave the processes in the
//! hosts and the state directory; the sentinel removes both, on every orderly end too, so that there is only
//! one way down. It is a shell script ([`sentinel.sh`](self)), because a library has no program of its own to
//! start, and a forked copy of a multi-threaded process may do next to nothing.
#![allow(unsafe_code, reason = "namespaces, and what a child does between fork and exec")]

use super::namespace::Namespaces;
use super::state::StateDir;
use super::{Error, descriptors};
use rustix::io::{FdFlags, fcntl_setfd};
use std::io::Write;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

const SCRIPT: &str = include_str!("sentinel.sh");

/// The sentinel process of one testbed.
#[derive(Debug)]
pub(super) struct Sentinel(Child);

impl Sentinel {
    /// Starts a sentinel for `hosts`. It shares the lock on the state directory, which so stays locked until
    /// it is done.
    pub(super) fn start<'a>(state: &StateDir, hosts: impl Iterator<Item = &'a Namespaces>) -> Result<Self, Error> {
        let namespaces: Vec<_> = hosts.map(|host| host.net().as_raw_fd()).collect();
        let mut command = Command::new("/bin/sh");
        command.arg("-c").arg(SCRIPT).arg("sentinel").args(namespaces.iter().map(ToString::to_string));
        command.env_clear().env("PATH", "/usr/local/bin:/usr/bin:/bin").current_dir("/");
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let inherited: Vec<_> = namespaces.into_iter().chain([state.lock().as_raw_fd()]).collect();
        let detach = move || {
            // A new session, so that a signal to the owner's process group does not reach it.
            rustix::process::setsid()?;
            descriptors::close_on_exec()?;
            for &fd in &inherited {
                // SAFETY: the descriptors belong to the testbed that starts this process, and stay open
                // across the fork.
                fcntl_setfd(unsafe { BorrowedFd::borrow_raw(fd) }, FdFlags::empty())?;
            }
            Ok(())
        };
        // SAFETY: between fork and exec the closure only makes system calls; it neither allocates nor locks.
        unsafe { command.pre_exec(detach) };
        let mut child = command.spawn().map_err(Error::system("cannot start /bin/sh, which takes a testbed down"))?;
        if let Some(stdin) = &mut child.stdin {
            writeln!(stdin, "{}", state.path().display())
                .map_err(Error::system("cannot talk to the testbed's sentinel"))?;
        }
        Ok(Self(child))
    }

    /// Ends every process in the hosts, removes the state directory, and waits for completion.
    pub(super) fn finish(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}
