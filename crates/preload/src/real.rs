//! The functions behind the hooks, as the next library in the search order has them.
//!
//! The constructor looks them up. A hook that another library's constructor calls earlier looks up its own. So another
//! preloaded library behind this one is still called, and blocking calls remain cancellation points. They are
//! `C-unwind`, because the C library cancels a thread by unwinding it.

use crate::errno::{errno, set_errno};
use libc::{
    addrinfo, c_char, c_int, c_long, c_uint, c_void, epoll_event, fd_set, hostent, iovec, mmsghdr, msghdr, nfds_t,
    off_t, off64_t, pollfd, sigset_t, size_t, sockaddr, socklen_t, ssize_t, timespec, timeval,
};
use std::ffi::CStr;
use std::sync::atomic::{AtomicPtr, Ordering};

macro_rules! real {
    ($(fn $name:ident($($argument:ident: $type:ty),* $(,)?) -> $result:ty;)*) => {
        #[allow(non_upper_case_globals, reason = "each is named for its function")]
        mod found {
            use super::*;
            $(pub(super) static $name: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());)*
        }

        $(
            /// The real function.
            ///
            /// # Safety
            /// That of the C library's function.
            #[inline]
            pub(crate) unsafe fn $name($($argument: $type),*) -> $result {
                let at = find(&found::$name, concat!(stringify!($name), "\0"));
                if at.is_null() {
                    return Missing::missing();
                }
                // SAFETY: the symbol of this name is a function of this type; the arguments are the caller's promise.
                unsafe {
                    let function: unsafe extern "C-unwind" fn($($type),*) -> $result = std::mem::transmute(at);
                    function($($argument),*)
                }
            }
        )*

        /// Looks up every function.
        pub(crate) fn find_all() {
            $(find(&found::$name, concat!(stringify!($name), "\0"));)*
        }
    };
}

real! {
    fn syscall(
        number: c_long, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize
    ) -> c_long;
    fn connect(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int;
    fn io_uring_setup(entries: c_uint, parameters: *mut c_void) -> c_int;
    fn io_uring_queue_init(entries: c_uint, ring: *mut c_void, flags: c_uint) -> c_int;
    fn io_uring_queue_init_params(entries: c_uint, ring: *mut c_void, parameters: *mut c_void) -> c_int;
    fn io_uring_queue_init_mem(
        entries: c_uint, ring: *mut c_void, parameters: *mut c_void, memory: *mut c_void, len: size_t
    ) -> c_int;
    fn close(fd: c_int) -> c_int;
    fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int;
    fn closefrom(first: c_int) -> ();
    fn dup2(from: c_int, to: c_int) -> c_int;
    fn dup3(from: c_int, to: c_int, flags: c_int) -> c_int;
    fn shutdown(fd: c_int, how: c_int) -> c_int;

    fn poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int;
    fn ppoll(fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t) -> c_int;
    fn __poll_chk(fds: *mut pollfd, count: nfds_t, timeout: c_int, room: size_t) -> c_int;
    fn __ppoll_chk(
        fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t, room: size_t
    ) -> c_int;
    fn select(count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *mut timeval) -> c_int;
    fn pselect(
        count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set,
        timeout: *const timespec, mask: *const sigset_t
    ) -> c_int;
    fn epoll_ctl(epfd: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int;
    fn epoll_wait(epfd: c_int, events: *mut epoll_event, room: c_int, timeout: c_int) -> c_int;
    fn epoll_pwait(epfd: c_int, events: *mut epoll_event, room: c_int, timeout: c_int, mask: *const sigset_t) -> c_int;
    fn epoll_pwait2(
        epfd: c_int, events: *mut epoll_event, room: c_int, timeout: *const timespec, mask: *const sigset_t
    ) -> c_int;

    fn read(fd: c_int, buffer: *mut c_void, len: size_t) -> ssize_t;
    fn __read_chk(fd: c_int, buffer: *mut c_void, len: size_t, room: size_t) -> ssize_t;
    fn readv(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t;
    fn recv(fd: c_int, buffer: *mut c_void, len: size_t, flags: c_int) -> ssize_t;
    fn __recv_chk(fd: c_int, buffer: *mut c_void, len: size_t, room: size_t, flags: c_int) -> ssize_t;
    fn recvfrom(
        fd: c_int, buffer: *mut c_void, len: size_t, flags: c_int, addr: *mut sockaddr, addr_len: *mut socklen_t
    ) -> ssize_t;
    fn __recvfrom_chk(
        fd: c_int, buffer: *mut c_void, len: size_t, room: size_t, flags: c_int, addr: *mut sockaddr,
        addr_len: *mut socklen_t
    ) -> ssize_t;
    fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t;
    fn recvmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int, timeout: *mut timespec) -> c_int;
    fn write(fd: c_int, buffer: *const c_void, len: size_t) -> ssize_t;
    fn writev(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t;
    fn send(fd: c_int, buffer: *const c_void, len: size_t, flags: c_int) -> ssize_t;
    fn sendto(
        fd: c_int, buffer: *const c_void, len: size_t, flags: c_int, addr: *const sockaddr, addr_len: socklen_t
    ) -> ssize_t;
    fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t;
    fn sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int;
    fn sendfile(to: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t;
    fn sendfile64(to: c_int, from: c_int, offset: *mut off64_t, count: size_t) -> ssize_t;
    fn splice(
        from: c_int, from_offset: *mut off64_t, to: c_int, to_offset: *mut off64_t, len: size_t, flags: c_uint
    ) -> ssize_t;

    fn getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, len: *mut socklen_t) -> c_int;
    fn setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, len: socklen_t) -> c_int;
    fn getpeername(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int;
    fn getsockname(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int;

    fn getaddrinfo(
        node: *const c_char, service: *const c_char, hints: *const addrinfo, found: *mut *mut addrinfo
    ) -> c_int;
    fn gai_error(request: *mut AsyncLookup) -> c_int;
    fn gethostbyname(name: *const c_char) -> *mut hostent;
    fn gethostbyname2(name: *const c_char, family: c_int) -> *mut hostent;
    fn gethostbyname_r(
        name: *const c_char, entry: *mut hostent, buffer: *mut c_char, len: size_t, found: *mut *mut hostent,
        error: *mut c_int
    ) -> c_int;
    fn gethostbyname2_r(
        name: *const c_char, family: c_int, entry: *mut hostent, buffer: *mut c_char, len: size_t,
        found: *mut *mut hostent, error: *mut c_int
    ) -> c_int;
}

/// A request of getaddrinfo_a(3), `struct gaicb`.
#[repr(C)]
pub(crate) struct AsyncLookup {
    pub(crate) name: *const c_char,
    pub(crate) service: *const c_char,
    pub(crate) hints: *const addrinfo,
    pub(crate) found: *mut addrinfo,
    state: c_int,
    reserved: [c_int; 5],
}

/// Stands for a function that the C library does not have.
trait Missing {
    fn missing() -> Self;
}

impl Missing for c_int {
    fn missing() -> Self {
        set_errno(libc::ENOSYS);
        -1
    }
}

impl Missing for c_long {
    fn missing() -> Self {
        set_errno(libc::ENOSYS);
        -1
    }
}

impl Missing for ssize_t {
    fn missing() -> Self {
        set_errno(libc::ENOSYS);
        -1
    }
}

impl Missing for () {
    fn missing() -> Self {}
}

impl Missing for *mut hostent {
    fn missing() -> Self {
        std::ptr::null_mut()
    }
}

/// The address of a function. `name` ends with a zero.
fn find(cache: &AtomicPtr<c_void>, name: &'static str) -> *mut c_void {
    let known = cache.load(Ordering::Relaxed);
    if !known.is_null() {
        return known;
    }
    let Ok(name) = CStr::from_bytes_with_nul(name.as_bytes()) else { return std::ptr::null_mut() };
    let before = errno();
    // SAFETY: the name ends with a zero.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    set_errno(before);
    cache.store(found, Ordering::Relaxed);
    found
}
