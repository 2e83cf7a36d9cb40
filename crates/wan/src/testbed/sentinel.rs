//! The sentinel: a small process that ends a testbed when its owner ends, even by SIGKILL.
//!
//! Namespaces and TUN devices end by themselves once nobody holds them. What the kernel would leave are the processes in the
//! hosts and the state directory; the sentinel takes both away, on every orderly end too, so that there is only one way down.
//! It is a shell script ([`sentinel.sh`](self)), since a library has no program of its own to start, and a forked copy of a
//! process with many threads may do next to nothing.
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

/// The sentinel of one testbed.
#[derive(Debug)]
pub(super) struct Sentinel(Child);

impl Sentinel {
    /// Starts a sentinel over `hosts`. It shares the lock on the state directory, which thus stays taken until it is done.
    pub(super) fn start<'a>(state: &StateDir, hosts: impl Iterator<Item = &'a Namespaces>) -> Result<Self, Error> {
        let namespaces: Vec<_> = hosts.map(|host| host.net().as_raw_fd()).collect();
        let mut command = Command::new("/bin/sh");
        command.arg("-c").arg(SCRIPT).arg("sentinel").args(namespaces.iter().map(ToString::to_string));
        command.env_clear().env("PATH", "/usr/local/bin:/usr/bin:/bin").current_dir("/");
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let inherited: Vec<_> = namespaces.into_iter().chain([state.lock().as_raw_fd()]).collect();
        let detach = move || {
            // A session of its own, out of reach of a signal to the owner's process group.
            rustix::process::setsid()?;
            descriptors::close_on_exec()?;
            for &fd in &inherited {
                // SAFETY: the descriptors belong to the testbed that is starting this process and are open across the fork.
                fcntl_setfd(unsafe { BorrowedFd::borrow_raw(fd) }, FdFlags::empty())?;
            }
            Ok(())
        };
        // SAFETY: between fork and exec the closure only makes system calls; nothing in it allocates or locks.
        unsafe { command.pre_exec(detach) };
        let mut child = command.spawn().map_err(Error::system("cannot start /bin/sh, which takes a testbed down"))?;
        if let Some(stdin) = &mut child.stdin {
            writeln!(stdin, "{}", state.path().display())
                .map_err(Error::system("cannot talk to the testbed's sentinel"))?;
        }
        Ok(Self(child))
    }

    /// Ends every process in the hosts, removes the state directory, and waits until that is done.
    pub(super) fn finish(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}
