//! io_uring(7), which makes system calls without the C library: refused, as by a kernel that does not have it.
//!
//! Connections that are made in a ring would pass by the gateways in silence, and registrations of epoll sets that are made
//! there show a program a handshake's connection as its own (libuv 1.45 to 1.48 does so). Programs that use rings do without
//! where a kernel or a container has none. Those that cannot say so themselves, and why is said here, to everyone.
//!
//! A program reaches rings by syscall(2), or by liburing, whose functions for setting one up are stood in front of. One that
//! has liburing in itself, or makes the system call by instructions of its own, is not seen.

use crate::process::no_unwind;
use crate::{config, real, report, sys};
use libc::{c_int, c_long, c_uint, c_void, size_t};
use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether the program is refused a ring; the first time, it is said why.
fn refused() -> bool {
    config::init();
    if config::get().is_none() {
        return false;
    }
    static SAID: AtomicBool = AtomicBool::new(false);
    if !SAID.swap(true, Ordering::Relaxed) {
        no_unwind(|| {
            let mut name = [0; 16];
            sys::process_name(&mut name);
            let name = CStr::from_bytes_until_nul(&name).ok().and_then(|name| name.to_str().ok()).unwrap_or("");
            let refused = format_args!("io_uring is refused to this program ({name}), as by a kernel without it: ");
            report::sentence(format_args!("{refused}connections made in a ring would not go through gateways"));
        });
    }
    true
}

hook! {
    /// syscall(2). The C library takes as many arguments, whatever number the program gives.
    fn syscall(number: c_long, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> c_long {
        if number == libc::SYS_io_uring_setup && refused() {
            sys::set_errno(libc::ENOSYS);
            return -1;
        }
        real::syscall(number, a, b, c, d, e, f)
    }

    /// liburing's own system call.
    fn io_uring_setup(entries: c_uint, parameters: *mut c_void) -> c_int {
        if refused() { -libc::ENOSYS } else { real::io_uring_setup(entries, parameters) }
    }

    /// Sets a ring up.
    fn io_uring_queue_init(entries: c_uint, ring: *mut c_void, flags: c_uint) -> c_int {
        if refused() { -libc::ENOSYS } else { real::io_uring_queue_init(entries, ring, flags) }
    }

    /// Sets a ring up with parameters.
    fn io_uring_queue_init_params(entries: c_uint, ring: *mut c_void, parameters: *mut c_void) -> c_int {
        if refused() { -libc::ENOSYS } else { real::io_uring_queue_init_params(entries, ring, parameters) }
    }

    /// Sets a ring up in memory of the program's.
    fn io_uring_queue_init_mem(
        entries: c_uint, ring: *mut c_void, parameters: *mut c_void, memory: *mut c_void, len: size_t
    ) -> c_int {
        if refused() {
            return -libc::ENOSYS;
        }
        real::io_uring_queue_init_mem(entries, ring, parameters, memory, len)
    }
}
