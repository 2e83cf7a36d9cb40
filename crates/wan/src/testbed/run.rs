//! Runs a command for the lifetime of its testbed: forwards signals to it, and ends it with the testbed or
//! this process.
#![allow(unsafe_code, reason = "signal descriptors, and what a child does between fork and exec")]

use super::supervisor::Supervisor;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, getppid, kill_process, set_parent_process_death_signal};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It ended by itself.
    Ended(ExitStatus),
    /// Its testbed had ended.
    TestbedLost,
}

/// Runs `command` until it ends. Signals that would end this process are forwarded to it, except those of
/// terminal keys, which reach both. If the testbed ends first, the command is terminated; if this process is
/// killed, so is the command. Must be called before the process starts a second thread, and as its last work:
/// the signals stay blocked.
///
/// # Errors
///
/// Starting the command failed.
pub fn run(command: &mut Command, supervisor: &Supervisor) -> io::Result<Outcome> {
    let signals = Signals::block()?;
    let (parent, before) = (rustix::process::getpid(), signals.before);
    let bind = move || {
        // SAFETY: the set is initialised.
        if unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut()) } != 0 {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        set_parent_process_death_signal(Some(Signal::KILL))?;
        // The parent may have died before the setting took effect.
        if getppid() == Some(parent) { Ok(()) } else { Err(io::ErrorKind::Interrupted.into()) }
    };
    // SAFETY: between fork and exec the closure only makes system calls.
    unsafe { command.pre_exec(bind) };
    let mut child = command.spawn()?;
    loop {
        let mut polled = [
            PollFd::new(&signals.queue, PollFlags::IN),
            PollFd::from_borrowed_fd(supervisor.liveness(), PollFlags::IN),
        ];
        let _ = poll(&mut polled, None);
        let [signalled, lost] = polled.map(|fd| !fd.revents().is_empty());
        while signalled && let Some(signal) = signals.next() {
            if signal.to_pass_on
                && let Some(signal) = Signal::from_named_raw(signal.number)
            {
                let _ = kill_process(Pid::from_child(&child), signal);
            }
        }
        if let Some(status) = child.try_wait()? {
            return Ok(Outcome::Ended(status));
        }
        if lost {
            end(&mut child)?;
            return Ok(Outcome::TestbedLost);
        }
    }
}

/// Terminates the command: SIGTERM first, SIGKILL after two seconds.
fn end(child: &mut Child) -> io::Result<()> {
    let _ = kill_process(Pid::from_child(child), Signal::TERM);
    let deadline = Instant::now() + Duration::from_secs(2);
    while child.try_wait()?.is_none() {
        if Instant::now() > deadline {
            child.kill()?;
            child.wait()?;
            return Ok(());
        }
        let _ = poll(&mut [], Some(&Timespec { tv_sec: 0, tv_nsec: 10_000_000 }));
    }
    Ok(())
}

/// Blocked signals, read from a descriptor.
struct Signals {
    queue: OwnedFd,
    /// The signal mask before, which a child should start with.
    before: libc::sigset_t,
}

struct Received {
    number: i32,
    /// Whether only this process received the signal.
    to_pass_on: bool,
}

impl Signals {
    fn block() -> io::Result<Self> {
        let signals =
            [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT, libc::SIGUSR1, libc::SIGUSR2, libc::SIGCHLD];
        let (mut set, mut before) = (MaybeUninit::<libc::sigset_t>::uninit(), MaybeUninit::<libc::sigset_t>::uninit());
        // SAFETY: sigemptyset initialises the one set, and pthread_sigmask the other if it succeeds; the
        // other calls read the set or add to it. Nothing else owns the new descriptor.
        unsafe {
            libc::sigemptyset(set.as_mut_ptr());
            for signal in signals {
                libc::sigaddset(set.as_mut_ptr(), signal);
            }
            let error = libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), before.as_mut_ptr());
            if error != 0 {
                return Err(io::Error::from_raw_os_error(error));
            }
            match libc::signalfd(-1, set.as_ptr(), libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) {
                -1 => Err(io::Error::last_os_error()),
                fd => Ok(Self { queue: OwnedFd::from_raw_fd(fd), before: before.assume_init() }),
            }
        }
    }

    fn next(&self) -> Option<Received> {
        let mut info = [0u8; size_of::<libc::signalfd_siginfo>()];
        rustix::io::read(self.queue.as_fd(), &mut info[..]).ok().filter(|length| *length == info.len())?;
        // struct signalfd_siginfo starts with the signal's number, an errno, and a code for the signal's
        // origin.
        let field = |at: usize| i32::from_ne_bytes([info[at], info[at + 1], info[at + 2], info[at + 3]]);
        // Signals from the kernel: terminal keys, which the whole foreground group gets; SIGCHLD; and SIGHUP
        // of a terminal, which only its session leader gets.
        let from_process = field(8) <= 0;
        Some(Received { number: field(0), to_pass_on: from_process || field(0) == libc::SIGHUP })
    }
}
