//! Input and output: while a session is being opened, every such call of the C library fails or waits as on a
//! connection that is being made. After the session is open, these hooks do nothing.
//!
//! Compilers replace calls whose buffer sizes they know by names with `_chk` (FORTIFY_SOURCE).

use crate::addr::RawAddr;
use crate::connect::{self, Course};
use crate::handshake::{self, Stage};
use crate::process::no_unwind;
use crate::sys::{self, Errno};
use crate::tcp;
use crate::wait::{Settled, settle};
use crate::{config, real, socket, table};
use libc::{
    c_int, c_uint, c_void, iovec, mmsghdr, msghdr, off_t, off64_t, size_t, sockaddr, socklen_t, ssize_t, timespec,
};

/// The result of a call during a connect or after its failure; `None` if the kernel handles the call.
///
/// On a blocking descriptor this waits for the session, as for a connection.
#[inline]
fn hold(fd: c_int, flags: c_int, limit: c_int) -> Option<Errno> {
    if table::is_quiet() { None } else { held(fd, flags, limit) }
}

#[cold]
fn held(fd: c_int, flags: c_int, limit: c_int) -> Option<Errno> {
    let mut awaited = match no_unwind(|| handshake::look_to_wait(fd)) {
        (Stage::Plain, _) => return None,
        (Stage::Failed, _) => return failed(fd),
        (Stage::Waiting { .. }, awaited) => awaited,
    };
    if flags & libc::MSG_DONTWAIT != 0 || socket::is_nonblocking(fd) {
        return Some(libc::EAGAIN);
    }
    match settle(fd, &mut awaited, socket::time_limit(fd, limit)) {
        Settled::Plain => None,
        Settled::Gone => Some(libc::EBADF),
        Settled::Failed => failed(fd),
        Settled::Interrupted => Some(libc::EINTR),
        Settled::TimedOut => Some(libc::EAGAIN),
    }
}

fn failed(fd: c_int) -> Option<Errno> {
    no_unwind(|| table::find_live(fd).map(|mut guard| handshake::take_error(&mut guard))).filter(|errno| *errno != 0)
}

fn hold_in(fd: c_int, flags: c_int) -> Option<Errno> {
    hold(fd, flags, libc::SO_RCVTIMEO)
}

fn hold_out(fd: c_int, flags: c_int) -> Option<Errno> {
    hold(fd, flags, libc::SO_SNDTIMEO)
}

/// Connects for a call that both connects and sends (MSG_FASTOPEN, RFC 7413). Then the data are sent as on a
/// connection. A nonblocking call reports that its data were not sent, as without a cookie.
///
/// # Safety
/// `addr` is null or valid for `len` bytes.
unsafe fn connect_first(fd: c_int, flags: c_int, addr: *const sockaddr, len: socklen_t) -> First {
    if flags & libc::MSG_FASTOPEN == 0 || !has_config() {
        return First::Go;
    }
    // SAFETY: the caller's promise.
    let Some(wanted) = (unsafe { RawAddr::read(addr, len) }) else { return First::Go };
    match connect::decide(fd, &wanted) {
        // Such a call does not connect datagram sockets.
        Course::Real | Course::Datagram(_) => First::Go,
        Course::Connected => First::Connected,
        Course::Failed(errno) => First::Fail(errno),
        Course::InUse if flags & libc::MSG_DONTWAIT != 0 && tcp::state(fd) == Some(tcp::SYN_SENT) => {
            First::Fail(connect::under_way(true))
        }
        Course::InUse => match connect::in_use(fd, &wanted) {
            0 => First::Connected,
            errno => First::Fail(errno),
        },
        Course::Pending { again, .. } if flags & libc::MSG_DONTWAIT != 0 || socket::is_nonblocking(fd) => {
            First::Fail(connect::under_way(again))
        }
        Course::Pending { again, awaited } => match connect::complete(fd, &wanted, again, awaited) {
            0 => First::Connected,
            errno => First::Fail(errno),
        },
    }
}

/// Whether there is a configuration. Another library's constructor may send before ours has run.
fn has_config() -> bool {
    config::init();
    config::get().is_some()
}

/// The outcome of a call that both connects and sends.
enum First {
    /// The kernel handles the call.
    Go,
    /// The connection is there.
    Connected,
    Fail(Errno),
}

fn fail(errno: Errno) -> ssize_t {
    sys::set_errno(errno);
    -1
}

hook! {
    /// read(2).
    fn read(fd: c_int, buffer: *mut c_void, len: size_t) -> ssize_t {
        match hold_in(fd, 0) {
            None => real::read(fd, buffer, len),
            Some(errno) => fail(errno),
        }
    }

    /// read(2) by the C library's own name.
    fn __read(fd: c_int, buffer: *mut c_void, len: size_t) -> ssize_t {
        read(fd, buffer, len)
    }

    /// read(2), checked.
    fn __read_chk(fd: c_int, buffer: *mut c_void, len: size_t, room: size_t) -> ssize_t {
        match hold_in(fd, 0) {
            None => real::__read_chk(fd, buffer, len, room),
            Some(errno) => fail(errno),
        }
    }

    /// readv(2).
    fn readv(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t {
        match hold_in(fd, 0) {
            None => real::readv(fd, parts, count),
            Some(errno) => fail(errno),
        }
    }

    /// recv(2).
    fn recv(fd: c_int, buffer: *mut c_void, len: size_t, flags: c_int) -> ssize_t {
        match hold_in(fd, flags) {
            None => real::recv(fd, buffer, len, flags),
            Some(errno) => fail(errno),
        }
    }

    /// recv(2), checked.
    fn __recv_chk(fd: c_int, buffer: *mut c_void, len: size_t, room: size_t, flags: c_int) -> ssize_t {
        match hold_in(fd, flags) {
            None => real::__recv_chk(fd, buffer, len, room, flags),
            Some(errno) => fail(errno),
        }
    }

    /// recvfrom(2).
    fn recvfrom(
        fd: c_int, buffer: *mut c_void, len: size_t, flags: c_int, addr: *mut sockaddr, addr_len: *mut socklen_t
    ) -> ssize_t {
        match hold_in(fd, flags) {
            None => real::recvfrom(fd, buffer, len, flags, addr, addr_len),
            Some(errno) => fail(errno),
        }
    }

    /// recvfrom(2), checked.
    fn __recvfrom_chk(
        fd: c_int, buffer: *mut c_void, len: size_t, room: size_t, flags: c_int, addr: *mut sockaddr,
        addr_len: *mut socklen_t
    ) -> ssize_t {
        match hold_in(fd, flags) {
            None => real::__recvfrom_chk(fd, buffer, len, room, flags, addr, addr_len),
            Some(errno) => fail(errno),
        }
    }

    /// recvmsg(2).
    fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
        match hold_in(fd, flags) {
            None => real::recvmsg(fd, message, flags),
            Some(errno) => fail(errno),
        }
    }

    /// recvmmsg(2).
    fn recvmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int, timeout: *mut timespec) -> c_int {
        match hold_in(fd, flags) {
            None => real::recvmmsg(fd, messages, count, flags, timeout),
            Some(errno) => fail(errno) as c_int,
        }
    }

    /// write(2).
    fn write(fd: c_int, buffer: *const c_void, len: size_t) -> ssize_t {
        match hold_out(fd, 0) {
            None => real::write(fd, buffer, len),
            Some(errno) => fail(errno),
        }
    }

    /// write(2) by the C library's own name.
    fn __write(fd: c_int, buffer: *const c_void, len: size_t) -> ssize_t {
        write(fd, buffer, len)
    }

    /// writev(2).
    fn writev(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t {
        match hold_out(fd, 0) {
            None => real::writev(fd, parts, count),
            Some(errno) => fail(errno),
        }
    }

    /// send(2).
    fn send(fd: c_int, buffer: *const c_void, len: size_t, flags: c_int) -> ssize_t {
        match hold_out(fd, flags) {
            None => real::send(fd, buffer, len, flags),
            Some(errno) => fail(errno),
        }
    }

    /// send(2) by the C library's own name.
    fn __send(fd: c_int, buffer: *const c_void, len: size_t, flags: c_int) -> ssize_t {
        send(fd, buffer, len, flags)
    }

    /// sendto(2).
    fn sendto(
        fd: c_int, buffer: *const c_void, len: size_t, flags: c_int, addr: *const sockaddr, addr_len: socklen_t
    ) -> ssize_t {
        match connect_first(fd, flags, addr, addr_len) {
            First::Go => {}
            First::Connected => return real::send(fd, buffer, len, flags & !libc::MSG_FASTOPEN),
            First::Fail(errno) => return fail(errno),
        }
        match hold_out(fd, flags) {
            None => real::sendto(fd, buffer, len, flags, addr, addr_len),
            Some(errno) => fail(errno),
        }
    }

    /// sendmsg(2).
    fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
        if let Some(asked) = message.as_ref() {
            match connect_first(fd, flags, asked.msg_name.cast(), asked.msg_namelen) {
                First::Go => {}
                First::Connected => {
                    let there = msghdr { msg_name: std::ptr::null_mut(), msg_namelen: 0, ..*asked };
                    return real::sendmsg(fd, &raw const there, flags & !libc::MSG_FASTOPEN);
                }
                First::Fail(errno) => return fail(errno),
            }
        }
        match hold_out(fd, flags) {
            None => real::sendmsg(fd, message, flags),
            Some(errno) => fail(errno),
        }
    }

    /// sendmmsg(2).
    fn sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int {
        // The first message connects. The call may send fewer messages than requested, so it sends this one alone.
        if flags & libc::MSG_FASTOPEN != 0
            && count > 0
            && has_config()
            && let Some(first) = messages.as_mut()
        {
            let sent = sendmsg(fd, &raw const first.msg_hdr, flags);
            first.msg_len = c_uint::try_from(sent).unwrap_or(first.msg_len);
            return if sent < 0 { -1 } else { 1 };
        }
        match hold_out(fd, flags) {
            None => real::sendmmsg(fd, messages, count, flags),
            Some(errno) => fail(errno) as c_int,
        }
    }

    /// sendfile(2).
    fn sendfile(to: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t {
        match hold_out(to, 0) {
            None => real::sendfile(to, from, offset, count),
            Some(errno) => fail(errno),
        }
    }

    /// sendfile(2) with 64-bit offsets.
    fn sendfile64(to: c_int, from: c_int, offset: *mut off64_t, count: size_t) -> ssize_t {
        match hold_out(to, 0) {
            None => real::sendfile64(to, from, offset, count),
            Some(errno) => fail(errno),
        }
    }

    /// splice(2).
    fn splice(
        from: c_int, from_offset: *mut off64_t, to: c_int, to_offset: *mut off64_t, len: size_t, flags: c_uint
    ) -> ssize_t {
        let waits = if flags & libc::SPLICE_F_NONBLOCK != 0 { libc::MSG_DONTWAIT } else { 0 };
        match hold_in(from, waits).or_else(|| hold_out(to, waits)) {
            None => real::splice(from, from_offset, to, to_offset, len, flags),
            Some(errno) => fail(errno),
        }
    }
}
