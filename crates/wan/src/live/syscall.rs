//! The ioctls of TUN devices and interfaces, and the two system calls that rustix does not wrap. All `unsafe`
//! of this crate's data path is here.
#![allow(unsafe_code, reason = "ioctls take raw pointers")]

use bytes::{BufMut, BytesMut};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Attaches a descriptor of `/dev/net/tun` to a new device.
pub(super) fn tun_create(tun: BorrowedFd<'_>, name: &str) -> io::Result<()> {
    let mut request = request(name)?;
    request.ifr_ifru.ifru_flags =
        (libc::IFF_TUN | libc::IFF_NO_PI | libc::IFF_VNET_HDR | libc::IFF_TUN_EXCL) as libc::c_short;
    interface_ioctl(tun, libc::TUNSETIFF, &mut request)
}

/// Declares which offloads the device's reader supports.
pub(super) fn tun_offload(tun: BorrowedFd<'_>, flags: libc::c_uint) -> io::Result<()> {
    // SAFETY: TUNSETOFFLOAD takes its argument by value and accesses no memory of this process.
    check(unsafe { libc::ioctl(tun.as_raw_fd(), libc::TUNSETOFFLOAD, libc::c_ulong::from(flags)) })
}

/// Sets the MTU of the interface `name` in the network namespace of `socket`.
pub(super) fn set_mtu(socket: BorrowedFd<'_>, name: &str, mtu: u16) -> io::Result<()> {
    let mut request = request(name)?;
    request.ifr_ifru.ifru_mtu = libc::c_int::from(mtu);
    interface_ioctl(socket, libc::SIOCSIFMTU, &mut request)
}

/// Sets the length, in packets, of the transmit queue of the interface `name` in the network namespace of `socket`.
pub(super) fn set_transmit_queue(socket: BorrowedFd<'_>, name: &str, packets: u32) -> io::Result<()> {
    let mut request = request(name)?;
    // The kernel reads `ifr_qlen`, the same `int` of the union.
    request.ifr_ifru.ifru_metric = i32::try_from(packets).unwrap_or(i32::MAX);
    interface_ioctl(socket, libc::SIOCSIFTXQLEN, &mut request)
}

/// Reads once into the spare capacity of `buffer`, and returns how many bytes were appended.
pub(super) fn read_append(file: BorrowedFd<'_>, buffer: &mut BytesMut) -> io::Result<usize> {
    let room = buffer.spare_capacity_mut();
    // SAFETY: the kernel writes at most `room.len()` bytes to `room`, which is exclusively borrowed.
    let read = unsafe { libc::read(file.as_raw_fd(), room.as_mut_ptr().cast(), room.len()) };
    let read = usize::try_from(read).map_err(|_| io::Error::last_os_error())?;
    // SAFETY: the kernel has initialised the first `read` bytes of the spare capacity.
    unsafe { buffer.advance_mut(read) };
    Ok(read)
}

/// Gives the calling thread real-time priority (SCHED_FIFO), above all ordinary threads.
pub(crate) fn run_first() -> io::Result<()> {
    let parameters = libc::sched_param { sched_priority: 1 };
    // SAFETY: 0 stands for the calling thread, and the parameters are only read.
    check(unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK, &raw const parameters) })
}

fn request(name: &str) -> io::Result<libc::ifreq> {
    // SAFETY: all fields of `ifreq` are integers, pointers or arrays of them, for which zero is valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if name.is_empty() || name.len() >= request.ifr_name.len() || name.bytes().any(|b| b == 0 || b == b'/' || b == b'%')
    {
        let sentence = format!("\"{name}\" is not an interface name of 1 to {} bytes", request.ifr_name.len() - 1);
        return Err(io::Error::new(io::ErrorKind::InvalidInput, sentence));
    }
    for (place, byte) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *place = byte as libc::c_char;
    }
    Ok(request)
}

fn interface_ioctl(file: BorrowedFd<'_>, operation: libc::Ioctl, request: &mut libc::ifreq) -> io::Result<()> {
    // SAFETY: `request` is a valid `ifreq`, which each of these operations reads and may write.
    check(unsafe { libc::ioctl(file.as_raw_fd(), operation, std::ptr::from_mut(request)) })
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
