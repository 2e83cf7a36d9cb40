//! Catches connect(2) of a program and of all that it starts, without root: seccomp user notification
//! (seccomp_unotify(2)). This reaches programs that make system calls past the C library.
//!
//! - [`filter`]: which system calls are caught or refused.
//! - [`start`] starts a program under the filter, and gives the [`Listener`].
//! - [`Listener`]: receives caught calls and answers them.
//! - [`Caller`]: the memory and the very sockets of the process that called.
//! - [`socket`]: connects such a socket.
//! - [`Inherited`]: descriptors that the processes beside the program let go of.
//! - [`signals`]: what the parent of the program needs to pass on signals.
//!
//! A caught call waits until it is answered. When the last copy of the listener is gone, caught calls fail with ENOSYS,
//! so that nothing goes direct. This is no fence against a hostile program: see seccomp_unotify(2).
//!
//! `sys.rs` holds all `unsafe` of this crate.

mod caller;
pub mod filter;
mod inherited;
mod listener;
pub mod signals;
pub mod socket;
mod start;
#[allow(unsafe_code, reason = "the system calls that no safe library has")]
mod sys;

pub use caller::{Asked, Caller};
pub use inherited::Inherited;
pub use listener::{Answer, Call, Listener};
pub use start::{Fork, StartError, fork, start, usable};
