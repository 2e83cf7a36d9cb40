//! Starts a program under the filter. Its listener comes back by a socket, since only the filtered process can make it.

use crate::filter;
use crate::listener::Listener;
use crate::sys;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::{IoSlice, IoSliceMut};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use rustix::process::{ForeignRawFd, Pid, PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};
use rustix::thread::CapabilitySet;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::process::{Child, Command};

/// Why a program was not started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// This architecture has no filter.
    #[error("there is no filter for this architecture; expected x86_64 or aarch64")]
    Architecture,
    /// The kernel, or a filter that is in force already, does not permit it.
    #[error("{}", refusal(.0))]
    Filter(io::Error),
    /// Yama does not permit it, by this value.
    #[error("kernel.yama.ptrace_scope is {0}, and expected is 0 or 1")]
    Yama(u8),
    /// The program cannot be executed.
    #[error("{0}")]
    Exec(io::Error),
}

/// Which of the two processes this is after [`fork`].
#[derive(Debug)]
pub enum Fork {
    /// The one that called, with the number of the other.
    Parent(Pid),
    /// The new one.
    Child,
}

/// Makes a copy of this process, which must have one thread.
///
/// # Errors
/// That of fork(2); `ResourceBusy` if there are more threads.
pub fn fork() -> io::Result<Fork> {
    Ok(sys::fork()?.map_or(Fork::Child, Fork::Parent))
}

/// Whether this host lets a process have another one's sockets, as far as this process can try by itself.
///
/// # Errors
/// The reason why it does not.
pub fn usable() -> Result<(), StartError> {
    filter::program().ok_or(StartError::Architecture)?;
    let nothing = std::fs::File::open("/dev/null").map_err(StartError::Filter)?;
    let number = ForeignRawFd::from(nothing.as_raw_fd());
    pidfd_open(getpid(), PidfdFlags::empty())
        .and_then(|own| pidfd_getfd(own, number, PidfdGetfdFlags::empty()))
        .map_err(|errno| StartError::Filter(errno.into()))?;
    match yama() {
        NOBODY => Err(StartError::Yama(NOBODY)),
        PRIVILEGED if !may_trace_all() => Err(StartError::Yama(PRIVILEGED)),
        _ => Ok(()),
    }
}

/// Values of Yama's ptrace_scope: only privileged processes have others' sockets, or nobody does.
const PRIVILEGED: u8 = 2;
const NOBODY: u8 = 3;

/// Yama's ptrace_scope, 0 without Yama.
fn yama() -> u8 {
    let scope = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    scope.trim().parse().unwrap_or(0)
}

fn may_trace_all() -> bool {
    rustix::thread::capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_PTRACE))
}

/// Starts the program under the filter, without new privileges (PR_SET_NO_NEW_PRIVS) and without blocked signals.
///
/// # Errors
/// [`StartError`].
pub fn start(command: &mut Command) -> Result<(Child, Listener), StartError> {
    let program = filter::program().ok_or(StartError::Architecture)?;
    let pair = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None);
    let (own, theirs) = pair.map_err(|errno| StartError::Filter(errno.into()))?;
    sys::before_exec(command, move || {
        rustix::thread::set_no_new_privs(true)?;
        let (listener, is_patient) = sys::install(&program)?;
        let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut message = SendAncillaryBuffer::new(&mut room);
        let listeners = [listener.as_fd()];
        message.push(SendAncillaryMessage::ScmRights(&listeners));
        sendmsg(&theirs, &[IoSlice::new(&[u8::from(is_patient)])], &mut message, SendFlags::empty())?;
        // This process may hold its own.
        sys::release_signals();
        Ok(())
    });
    let child = command.spawn();
    match (child, received(&own)) {
        (Ok(child), Some(listener)) => Ok((child, listener)),
        (Err(error), Some(_)) => Err(StartError::Exec(error)),
        // Before the filter there is nothing but its set-up.
        (Err(error), None) => Err(StartError::Filter(error)),
        (Ok(_), None) => Err(StartError::Filter(io::ErrorKind::UnexpectedEof.into())),
    }
}

/// The listener, if it was sent.
fn received(from: &OwnedFd) -> Option<Listener> {
    let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut message = RecvAncillaryBuffer::new(&mut room);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let mut is_patient = [0];
    recvmsg(from, &mut [IoSliceMut::new(&mut is_patient)], &mut message, flags).ok()?;
    let listener = message.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    })?;
    Some(Listener::new(listener, is_patient == [1]))
}

fn refusal(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::EBUSY) => {
            "another process catches calls of this one already, such as a phoebus run that has started it".to_owned()
        }
        Some(libc::EPERM | libc::EACCES) => {
            "this host does not let a process have another one's sockets (pidfd_getfd), as in some containers"
                .to_owned()
        }
        Some(libc::EINVAL | libc::ENOSYS) => {
            "the kernel has no seccomp user notification or no pidfd_getfd; expected Linux 5.6 or later".to_owned()
        }
        _ => error.to_string(),
    }
}
