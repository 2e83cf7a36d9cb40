//! The functions that the hooks stand before, as the next object in the search order has them.

use libc::{
    addrinfo, c_char, c_int, c_uint, epoll_event, fd_set, hostent, iovec, mmsghdr, msghdr, nfds_t, off_t, pollfd,
    sigset_t, size_t, sockaddr, socklen_t, ssize_t, timespec, timeval,
};
use std::ffi::CStr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// The next definition of `name` after this library's, looked up once.
fn next(slot: &AtomicPtr<libc::c_void>, name: &CStr) -> *mut libc::c_void {
    let known = slot.load(Ordering::Relaxed);
    if !known.is_null() {
        return known;
    }
    // SAFETY: dlsym with a valid name has no further conditions.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    slot.store(found, Ordering::Relaxed);
    found
}

macro_rules! real {
    ($($name:ident($($arg:ident: $type:ty),*) -> $result:ty = $failed:expr;)*) => {
        $(
            /// The C library's function of this name; fails with ENOSYS where there is none.
            ///
            /// # Safety
            /// As for the C function.
            pub(crate) unsafe fn $name($($arg: $type),*) -> $result {
                static NEXT: AtomicPtr<libc::c_void> = AtomicPtr::new(std::ptr::null_mut());
                const NAME: &CStr = match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                    Ok(name) => name,
                    Err(_) => c"",
                };
                let next = next(&NEXT, NAME);
                if next.is_null() {
                    crate::sys::set_errno(libc::ENOSYS);
                    return $failed;
                }
                // SAFETY: the C library's function of this name has this signature; the caller keeps its conditions.
                unsafe {
                    let function: unsafe extern "C" fn($($type),*) -> $result = std::mem::transmute(next);
                    function($($arg),*)
                }
            }
        )*
        /// Looks all of them up, so that no hook has to.
        pub(crate) fn resolve_all() {
            $(
                let name = concat!(stringify!($name), "\0");
                // SAFETY: the name ends with a zero; the result is not used, only the linker's own tables are warmed.
                unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr().cast()) };
            )*
        }
    };
}

real! {
    connect(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int = -1;
    close(fd: c_int) -> c_int = -1;
    dup(fd: c_int) -> c_int = -1;
    dup2(fd: c_int, to: c_int) -> c_int = -1;
    dup3(fd: c_int, to: c_int, flags: c_int) -> c_int = -1;
    poll(fds: *mut pollfd, n: nfds_t, timeout: c_int) -> c_int = -1;
    ppoll(fds: *mut pollfd, n: nfds_t, timeout: *const timespec, mask: *const sigset_t) -> c_int = -1;
    select(n: c_int, r: *mut fd_set, w: *mut fd_set, e: *mut fd_set, timeout: *mut timeval) -> c_int = -1;
    pselect(n: c_int, r: *mut fd_set, w: *mut fd_set, e: *mut fd_set, timeout: *const timespec, mask: *const sigset_t) -> c_int = -1;
    epoll_ctl(ep: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> c_int = -1;
    epoll_wait(ep: c_int, events: *mut epoll_event, max: c_int, timeout: c_int) -> c_int = -1;
    epoll_pwait(ep: c_int, events: *mut epoll_event, max: c_int, timeout: c_int, mask: *const sigset_t) -> c_int = -1;
    epoll_pwait2(ep: c_int, events: *mut epoll_event, max: c_int, timeout: *const timespec, mask: *const sigset_t) -> c_int = -1;
    getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut libc::c_void, len: *mut socklen_t) -> c_int = -1;
    setsockopt(fd: c_int, level: c_int, name: c_int, value: *const libc::c_void, len: socklen_t) -> c_int = -1;
    getpeername(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int = -1;
    shutdown(fd: c_int, how: c_int) -> c_int = -1;
    read(fd: c_int, buffer: *mut libc::c_void, len: size_t) -> ssize_t = -1;
    write(fd: c_int, buffer: *const libc::c_void, len: size_t) -> ssize_t = -1;
    readv(fd: c_int, parts: *const iovec, n: c_int) -> ssize_t = -1;
    writev(fd: c_int, parts: *const iovec, n: c_int) -> ssize_t = -1;
    send(fd: c_int, buffer: *const libc::c_void, len: size_t, flags: c_int) -> ssize_t = -1;
    recv(fd: c_int, buffer: *mut libc::c_void, len: size_t, flags: c_int) -> ssize_t = -1;
    sendto(fd: c_int, buffer: *const libc::c_void, len: size_t, flags: c_int, to: *const sockaddr, to_len: socklen_t) -> ssize_t = -1;
    recvfrom(fd: c_int, buffer: *mut libc::c_void, len: size_t, flags: c_int, from: *mut sockaddr, from_len: *mut socklen_t) -> ssize_t = -1;
    sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t = -1;
    recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t = -1;
    sendmmsg(fd: c_int, messages: *mut mmsghdr, n: c_uint, flags: c_int) -> c_int = -1;
    recvmmsg(fd: c_int, messages: *mut mmsghdr, n: c_uint, flags: c_int, timeout: *mut timespec) -> c_int = -1;
    sendfile(to: c_int, from: c_int, offset: *mut off_t, n: size_t) -> ssize_t = -1;
    sendfile64(to: c_int, from: c_int, offset: *mut off_t, n: size_t) -> ssize_t = -1;
    splice(from: c_int, from_offset: *mut libc::loff_t, to: c_int, to_offset: *mut libc::loff_t, n: size_t, flags: c_uint) -> ssize_t = -1;
    getaddrinfo(node: *const c_char, service: *const c_char, hints: *const addrinfo, result: *mut *mut addrinfo) -> c_int = libc::EAI_SYSTEM;
    gethostbyname(name: *const c_char) -> *mut hostent = std::ptr::null_mut();
    gethostbyname2(name: *const c_char, family: c_int) -> *mut hostent = std::ptr::null_mut();
    __poll_chk(fds: *mut pollfd, n: nfds_t, timeout: c_int, size: size_t) -> c_int = -1;
    __ppoll_chk(fds: *mut pollfd, n: nfds_t, timeout: *const timespec, mask: *const sigset_t, size: size_t) -> c_int = -1;
    __read_chk(fd: c_int, buffer: *mut libc::c_void, len: size_t, size: size_t) -> ssize_t = -1;
    __recv_chk(fd: c_int, buffer: *mut libc::c_void, len: size_t, size: size_t, flags: c_int) -> ssize_t = -1;
    __recvfrom_chk(fd: c_int, buffer: *mut libc::c_void, len: size_t, size: size_t, flags: c_int, from: *mut sockaddr, from_len: *mut socklen_t) -> ssize_t = -1;
}
