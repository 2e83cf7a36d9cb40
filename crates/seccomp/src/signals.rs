//! Signals for a process that stands in for another one: it holds those that it gets, so that it can pass them on, and
//! ends or stops as the other one did.

use crate::sys;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::io;

/// Signals that wait to be passed on. They stay blocked.
#[derive(Debug)]
pub struct Held(OwnedFd);

/// A held signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Signal {
    /// Its number.
    pub number: i32,
    /// Whether a process has sent it. Otherwise the terminal did, which sends it to the whole foreground group.
    pub is_sent: bool,
}

impl Held {
    /// Holds all signals that can be passed on.
    ///
    /// # Errors
    /// That of signalfd(2).
    pub fn new() -> io::Result<Self> {
        sys::hold_signals().map(Self)
    }

    /// The next signal, if one waits.
    pub fn take(&self) -> Option<Signal> {
        // Codes above 0 are the kernel's (SI_KERNEL); processes have SI_USER and below.
        sys::next_signal(&self.0).map(|(number, code)| Signal { number, is_sent: code <= 0 })
    }
}

impl AsFd for Held {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Sends a signal to the process of `pidfd`.
///
/// # Errors
/// That of pidfd_send_signal(2).
pub fn send(pidfd: BorrowedFd, number: i32) -> io::Result<()> {
    sys::send(pidfd, number)
}

/// Ends this process by the signal that has ended another one. Returns if the signal does not end it.
pub fn die_of(number: i32) {
    // The other process has left its core already.
    let none = rustix::process::Rlimit { current: Some(0), maximum: Some(0) };
    let _ = rustix::process::setrlimit(rustix::process::Resource::Core, none);
    sys::default_action(number);
    sys::release_signals();
    sys::raise(number);
}

/// Stops this process until it is continued.
pub fn stop() {
    sys::raise(libc::SIGSTOP);
}
