//! io_uring(7), which makes system calls without the C library: refused, as by a kernel without it.
//!
//! Connections made in a ring would go past the gateways in silence. Epoll registrations made there would show a
//! program the handshake's connection as its own (libuv 1.45 to 1.48 does so). Programs that use rings also work
//! without them, because kernels and containers may lack them. Programs that need rings cannot explain their failure,
//! so this library reports it.
//!
//! A program reaches rings by syscall(2), or by liburing, whose functions for the set-up are hooked. A program that
//! contains liburing, or makes the system call by instructions of its own, is not noticed.

use crate::process::no_unwind;
use crate::{config, real, report, sys};
use libc::{c_int, c_long, c_uint, c_void, size_t};
use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether the program is refused a ring; reports the reason the first time.
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
    /// syscall(2). The C library passes as many arguments, whatever number the program gives.
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
