//! The process that has made a caught call: its memory and its sockets.
//!
//! The kernel lets this process have them only if it may trace the caller (ptrace(2), "ptrace access mode checking"):
//! the same user, no higher privileges, and with Yama's `ptrace_scope` of 1 a descendant.

use crate::filter::{FAST_OPEN, SOCKETCALL_SENDS};
use crate::listener::Call;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::process::{ForeignRawFd, Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// Longest address of a socket, in bytes (`sizeof(struct sockaddr_storage)`).
const ADDRESS_MAX: usize = 128;
/// PIDFD_THREAD, of Linux 6.9: the descriptor is of a thread, which may have descriptors of its own.
const THREAD: PidfdFlags = PidfdFlags::from_bits_retain(0o200);

/// What a caught call asks for.
#[derive(Debug, Clone, Copy)]
pub enum Asked {
    /// connect(2).
    Connect(Call),
    /// To send, and to connect first if this is so (MSG_FASTOPEN).
    Send(bool),
}

/// A process that waits in a caught call.
#[derive(Debug, Clone)]
pub struct Caller {
    thread: Pid,
    process: Arc<OwnedFd>,
}

impl Caller {
    /// The caller of `call`.
    ///
    /// # Errors
    /// It has gone (ESRCH), or is in a namespace that this process cannot see (EPERM).
    pub fn of(call: &Call) -> Result<Self, Errno> {
        let thread = call.thread.ok_or(Errno::PERM)?;
        let process = match pidfd_open(thread, THREAD) {
            // Older kernels have descriptors of whole processes.
            Err(Errno::INVAL) => pidfd_open(process_of(thread)?, PidfdFlags::empty())?,
            opened => opened?,
        };
        Ok(Self { thread, process: process.into() })
    }

    /// The number of its process.
    pub fn process(&self) -> i32 {
        process_of(self.thread).unwrap_or(self.thread).as_raw_pid()
    }

    /// A descriptor that becomes readable when the caller has ended (pidfd_open(2)).
    pub fn end(&self) -> Arc<OwnedFd> {
        self.process.clone()
    }

    /// What the call asks for, with its arguments from the caller's memory if they are there.
    ///
    /// # Errors
    /// EFAULT: they are not in its memory. EACCES: this process may not read it.
    pub fn asked(&self, call: &Call) -> Result<Asked, Errno> {
        let Some(which) = call.socketcall else { return Ok(Asked::Connect(*call)) };
        let mut arguments = [0; 4];
        // No more are read than the call has.
        let flags = SOCKETCALL_SENDS.into_iter().find(|(send, _)| *send == which).map(|(_, index)| index);
        let count = flags.map_or(3, |flags| flags + 1);
        let mut bytes = [0; 16];
        self.read(call.address, &mut bytes[..4 * count])?;
        for (argument, bytes) in arguments.iter_mut().zip(bytes.as_chunks::<4>().0) {
            *argument = u32::from_ne_bytes(*bytes);
        }
        if let Some(flags) = flags {
            return Ok(Asked::Send(arguments[flags] & FAST_OPEN != 0));
        }
        let [descriptor, address, len, _] = arguments;
        let (descriptor, len) = (descriptor as i32, len as i32);
        Ok(Asked::Connect(Call { descriptor, address: address.into(), len, socketcall: None, ..*call }))
    }

    /// The very open file behind the caller's descriptor: what happens to it, happens to the caller's.
    ///
    /// # Errors
    /// EBADF: it has no such descriptor. EPERM: this process may not have it.
    pub fn file(&self, call: &Call) -> Result<OwnedFd, Errno> {
        let number = ForeignRawFd::from(call.descriptor);
        if call.descriptor < 0 {
            return Err(Errno::BADF);
        }
        pidfd_getfd(&self.process, number, PidfdGetfdFlags::empty())
    }

    /// The address that the call names, read once.
    ///
    /// # Errors
    /// EINVAL: its length is none. EFAULT: it is not in the caller's memory. EACCES: this process may not read it.
    pub fn address(&self, call: &Call) -> Result<Vec<u8>, Errno> {
        let len = usize::try_from(call.len).ok().filter(|len| *len <= ADDRESS_MAX).ok_or(Errno::INVAL)?;
        let mut address = vec![0; len];
        if len > 0 {
            self.read(call.address, &mut address)?;
        }
        Ok(address)
    }

    fn read(&self, address: u64, bytes: &mut [u8]) -> Result<(), Errno> {
        let memory = File::open(format!("/proc/{}/mem", self.thread.as_raw_pid()));
        let memory = memory.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::ACCESS))?;
        memory.read_exact_at(bytes, address).map_err(|_| Errno::FAULT)
    }
}

/// The process of a thread.
fn process_of(thread: Pid) -> Result<Pid, Errno> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", thread.as_raw_pid()));
    let status = status.map_err(|_| Errno::SRCH)?;
    let number = status.lines().find_map(|line| line.strip_prefix("Tgid:")).and_then(|n| n.trim().parse().ok());
    number.and_then(Pid::from_raw).ok_or(Errno::SRCH)
}
