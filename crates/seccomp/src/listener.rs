//! The listener of a filter: caught calls, and their answers.

use crate::filter::SOCKETCALL;
use crate::sys;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::process::Pid;
use std::io;
use std::time::Duration;

/// How long a call is waited for again after the kernel had no memory for it.
const PAUSE: Duration = Duration::from_millis(10);

/// The listener.
#[derive(Debug)]
pub struct Listener {
    listener: OwnedFd,
    is_patient: bool,
}

/// A caught call, whose caller waits: connect(2), or socketcall(2) ([`Caller::asked`](crate::Caller::asked)).
#[derive(Debug, Clone, Copy)]
pub struct Call {
    /// Identifies it until it is answered.
    pub id: u64,
    /// The thread that called; `None` if it is in a namespace that this process cannot see.
    pub thread: Option<Pid>,
    /// The number of the socket's descriptor there.
    pub descriptor: i32,
    /// Where the address is in the caller's memory.
    pub address: u64,
    /// How long the caller says that it is, in bytes.
    pub len: i32,
    /// What a socketcall(2) asks for. Its arguments are at `address`.
    pub(crate) socketcall: Option<u32>,
}

/// What a caller gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// The call has succeeded.
    Done,
    /// It fails with this error.
    Failed(i32),
    /// The kernel carries out the call, with what the caller's memory holds by then.
    Continue,
}

impl Listener {
    pub(crate) fn new(listener: OwnedFd, is_patient: bool) -> Self {
        Self { listener, is_patient }
    }

    /// Whether callers wait for their answer whatever signals come. Otherwise (before Linux 5.19) a signal ends their
    /// wait, and nothing tells so but [`is_waiting`](Self::is_waiting).
    pub fn is_patient(&self) -> bool {
        self.is_patient
    }

    /// Waits for a call. `None`: nobody is left who could make one. (Kernels before 5.9 do not tell that.)
    ///
    /// # Errors
    /// The listener is of no use any more.
    pub fn receive(&self) -> io::Result<Option<Call>> {
        loop {
            // Without callers, some kernels answer ENOENT at once, over and over.
            let mut waits = [PollFd::new(&self.listener, PollFlags::IN)];
            match poll(&mut waits, None) {
                Ok(_) if waits[0].revents().contains(PollFlags::IN) => {}
                Ok(_) => return Ok(None),
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            }
            match sys::receive(self.listener.as_fd()) {
                Ok(call) => {
                    let [descriptor, address, len, ..] = call.data.args;
                    // The kernel takes both as `int`.
                    let (descriptor, len) = (descriptor as i32, len as i32);
                    let thread = Pid::from_raw(call.pid as i32);
                    // The architecture that has it does not use the number for another caught call.
                    let is_socketcall = call.data.nr as u32 == SOCKETCALL;
                    let socketcall = is_socketcall.then_some(descriptor as u32);
                    return Ok(Some(Call { id: call.id, thread, descriptor, address, len, socketcall }));
                }
                Err(error) => match Errno::from_io_error(&error) {
                    // The caller has gone, or was interrupted.
                    Some(Errno::NOENT | Errno::INTR) => {}
                    Some(Errno::NOMEM) => std::thread::sleep(PAUSE),
                    _ => return Err(error),
                },
            }
        }
    }

    /// Whether the caller still waits. What was read of its memory belongs to it only if this holds afterwards.
    pub fn is_waiting(&self, call: &Call) -> bool {
        sys::is_valid(self.listener.as_fd(), call.id)
    }

    /// Answers a call. Returns whether its caller was still waiting: a signal may have interrupted it.
    pub fn answer(&self, call: &Call, answer: Answer) -> bool {
        let (error, flags) = match answer {
            Answer::Done => (0, 0),
            // Errors are positive here, and negative there.
            Answer::Failed(errno) => (errno.saturating_neg(), 0),
            Answer::Continue => (0, libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE),
        };
        sys::answer(self.listener.as_fd(), call.id, error, flags).is_ok()
    }
}
