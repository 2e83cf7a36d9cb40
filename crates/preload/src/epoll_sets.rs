//! The epoll sets of a socket, as the kernel lists them (`/proc/PID/fdinfo` of proc(5)).
//!
//! The table records registrations only while a socket is unconnected. A socket may also be added while it is connected,
//! and connect again later. The kernel tells only by set which sockets are in it, so that all sets of the process are
//! asked; this is for rare moments.

use crate::record::Registration;
use crate::sys;
use libc::c_int;
use std::ffi::CStr;
use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};

/// More than the longest line of a description. Stacks of programs may be small.
const LINE: usize = 256;

/// Descriptors below this number are remembered.
const LIMIT: usize = 1 << 16;

/// Descriptors that were used as epoll sets, one bit each. Some may be other files by now.
static SETS: [AtomicU64; LIMIT / 64] = [const { AtomicU64::new(0) }; LIMIT / 64];

/// Records that the program uses a descriptor as an epoll set.
pub(crate) fn note(epfd: c_int) {
    let Some(bits) = usize::try_from(epfd).ok().and_then(|epfd| SETS.get(epfd / 64)) else { return };
    let bit = 1 << (epfd % 64);
    if bits.load(Ordering::Relaxed) & bit == 0 {
        bits.fetch_or(bit, Ordering::Relaxed);
    }
}

/// Calls `visit` with every registration of the socket behind `fd` in the epoll sets of this process, under descriptors
/// that the program still has. Without `/proc` or a free descriptor there are none.
pub(crate) fn each(fd: c_int, mut visit: impl FnMut(Registration)) {
    // No handler may jump past the release of a descriptor.
    let mask = sys::block_signals();
    if let (Some(cookie), Ok(inode)) = (sys::cookie(fd), sys::inode(fd)) {
        each_set(|epfd, description| {
            each_line(description, |line| {
                let Some((registration, of)) = parse(epfd, line) else { return };
                if of == inode && sys::cookie(registration.fd) == Some(cookie) {
                    visit(registration);
                }
            });
        });
    }
    sys::restore_signals(mask);
}

/// Calls `visit` with the descriptor of every file that was used as an epoll set, and its opened description.
fn each_set(mut visit: impl FnMut(c_int, c_int)) {
    for (index, bits) in SETS.iter().enumerate() {
        let mut left = bits.load(Ordering::Relaxed);
        while left != 0 {
            let epfd = (index * 64) as c_int + left.trailing_zeros() as c_int;
            left &= left - 1;
            if let Some(description) = describe(epfd) {
                visit(epfd, description);
                sys::close(description);
            } else if !sys::is_open(epfd) {
                bits.fetch_and(!(1 << (epfd % 64)), Ordering::Relaxed);
                // Another thread may have got the number meanwhile.
                if sys::is_open(epfd) {
                    note(epfd);
                }
            }
        }
    }
}

/// Opens the kernel's description of a descriptor of the calling thread.
fn describe(fd: c_int) -> Option<c_int> {
    let mut path = [0_u8; 48];
    write!(&mut path[..47], "/proc/thread-self/fdinfo/{fd}").ok()?;
    sys::open(CStr::from_bytes_until_nul(&path).ok()?, libc::O_RDONLY).ok()
}

/// Calls `visit` with each whole line of a file.
fn each_line(file: c_int, mut visit: impl FnMut(&[u8])) {
    let mut bytes = [0; LINE];
    let mut filled = 0;
    while let Ok(read @ 1..) = sys::read(file, &mut bytes[filled..]) {
        filled += read;
        let mut begin = 0;
        while let Some(len) = bytes[begin..filled].iter().position(|byte| *byte == b'\n') {
            visit(&bytes[begin..begin + len]);
            begin += len + 1;
        }
        bytes.copy_within(begin..filled, 0);
        filled -= begin;
    }
}

/// The registration in a line of the description of `epfd`, and the inode of what is registered. Other lines have none.
fn parse(epfd: c_int, line: &[u8]) -> Option<(Registration, u64)> {
    let mut words = line.split(|byte| *byte == b' ' || *byte == b':').filter(|word| !word.is_empty());
    if words.next() != Some(b"tfd") {
        return None;
    }
    let fd = number(words.next()?, 10)?;
    let mut field = |name: &[u8], radix| {
        words.by_ref().find(|word| *word == name)?;
        number(words.next()?, radix)
    };
    let events = field(b"events", 16)? as u32;
    let data = field(b"data", 16)?;
    let inode = field(b"ino", 16)?;
    let exclusive = events & libc::EPOLLEXCLUSIVE as u32 != 0;
    Some((Registration { epfd, fd: fd as c_int, events, data, exclusive, shown: true }, inode))
}

fn number(digits: &[u8], radix: u32) -> Option<u64> {
    u64::from_str_radix(std::str::from_utf8(digits).ok()?, radix).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::os::fd::AsRawFd;

    fn all(fd: c_int) -> Vec<(c_int, c_int, u32, u64)> {
        let mut found = Vec::new();
        each(fd, |registration| {
            found.push((registration.epfd, registration.fd, registration.events, registration.data));
        });
        found.sort_unstable();
        found
    }

    fn set() -> c_int {
        // SAFETY: no pointers.
        let epfd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        note(epfd);
        epfd
    }

    fn add(epfd: c_int, fd: c_int, events: c_int, data: u64) {
        let event = libc::epoll_event { events: events as u32, u64: data };
        sys::epoll_ctl(epfd, libc::EPOLL_CTL_ADD, fd, event).unwrap();
    }

    #[test]
    fn kernel_tells_every_set_of_a_socket() {
        let [socket, other] = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let (fd, copy) = (socket.as_raw_fd(), socket.try_clone().unwrap());
        assert_eq!(all(fd), []);
        let [one, two] = [set(), set()];
        // Enough others that a description does not fit into the buffer.
        let others: Vec<_> = (0..50).map(|_| other.try_clone().unwrap()).collect();
        others.iter().for_each(|other| add(one, other.as_raw_fd(), libc::EPOLLIN, 1));
        add(one, fd, libc::EPOLLIN | libc::EPOLLET, u64::MAX);
        add(two, copy.as_raw_fd(), libc::EPOLLOUT, 7);
        let always = (libc::EPOLLERR | libc::EPOLLHUP) as u32;
        let first = (one, fd, (libc::EPOLLIN | libc::EPOLLET) as u32 | always, u64::MAX);
        let second = (two, copy.as_raw_fd(), libc::EPOLLOUT as u32 | always, 7);
        let mut both = [first, second];
        both.sort_unstable();
        assert_eq!(all(fd), both);
        // A descriptor that is gone reaches nothing.
        drop(copy);
        assert_eq!(all(fd), [first]);
        assert_eq!(all(other.as_raw_fd()).len(), others.len());
        [one, two].into_iter().for_each(sys::close);
        assert_eq!(all(fd), []);
    }

    #[test]
    fn other_lines_are_passed_over() {
        let line = b"tfd:       15 events: 80000019 data: ffffffffffffffff  pos:0 ino:2a sdev:9";
        let (registration, inode) = parse(3, line).unwrap();
        assert_eq!((registration.epfd, registration.fd, inode), (3, 15, 42));
        assert_eq!((registration.events, registration.data), (0x8000_0019, u64::MAX));
        for other in ["", "pos:\t0", "tfd:", "tfd: x events: 1 data: 1 ino:1", "tfd: 1 events: 1 data: 1  pos:0"] {
            assert!(parse(3, other.as_bytes()).is_none(), "{other}");
        }
    }
}
