//! TUN devices (`Documentation/networking/tuntap.rst`) with virtio-net headers and segmentation offload: the
//! program behind a device gets packets of up to 64 KiB, as a network card's driver would.

use super::syscall;
use rustix::fs::{Mode, OFlags};
use rustix::net::{AddressFamily, SocketType};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;

/// Length of a device's transmit queue, in packets; the kernel drops what exceeds it. The kernel's default of
/// 500 is 6 ms of small packets at 1 Gbit/s, less than a busy machine may keep the emulator from running.
pub const TRANSMIT_QUEUE_PACKETS: u32 = 4096;

/// A TUN device, which exists as long as this value.
#[derive(Debug)]
pub struct Tun {
    file: OwnedFd,
    name: String,
    udp_offload: bool,
    /// The interface statistics of the device's network namespace.
    statistics: File,
}

/// Creates the TUN device `name` with the given MTU in the calling thread's network namespace. The device is
/// down and has no address. Reading the returned end yields the packets that the host sends; writing to it
/// delivers packets to the host.
///
/// The device segments TCP over IPv4 and IPv6, and UDP too where the kernel can (Linux 6.2); see [`Tun::udp_offload`].
///
/// # Errors
///
/// The system's error, with a sentence on what was attempted: most often `/dev/net/tun` is missing or not
/// accessible to this user, or the thread may not create devices in its network namespace.
pub fn open_tun(name: &str, mtu: u16) -> io::Result<Tun> {
    let file = rustix::fs::open("/dev/net/tun", OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())
        .map_err(|error| explain(error.into(), "cannot open /dev/net/tun (the emulated WAN needs TUN devices)"))?;
    syscall::tun_create(file.as_fd(), name)
        .map_err(|error| explain(error, &format!("cannot create the TUN device {name}")))?;
    let udp_offload = offload(&file, name)?;

    let socket = rustix::net::socket(AddressFamily::INET, SocketType::DGRAM, None)?;
    syscall::set_mtu(socket.as_fd(), name, mtu)
        .map_err(|error| explain(error, &format!("cannot set the MTU of {name} to {mtu}")))?;
    match syscall::set_transmit_queue(socket.as_fd(), name, TRANSMIT_QUEUE_PACKETS) {
        // In a user namespace the kernel accepts the queue length only by rtnetlink, from the code that
        // brings the device up.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {}
        result => result.map_err(|error| explain(error, &format!("cannot set the transmit queue of {name}")))?,
    }
    // The open file stays bound to the namespace in which it was opened.
    let statistics = File::open(STATISTICS).map_err(|error| explain(error, &format!("cannot open {STATISTICS}")))?;
    Ok(Tun { file, name: name.to_owned(), udp_offload, statistics })
}

impl Tun {
    /// The device's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether the host passes bulk UDP unsegmented. Without this, as on kernels before 6.2, UDP costs more
    /// CPU time.
    pub fn udp_offload(&self) -> bool {
        self.udp_offload
    }

    /// Number of packets that the host sent but the device dropped because its queue was full.
    pub(super) fn overruns(&self) -> io::Result<u64> {
        let mut text = Vec::with_capacity(4096);
        let mut buffer = [0; 4096];
        loop {
            match self.statistics.read_at(&mut buffer, text.len() as u64)? {
                0 => break,
                read => text.extend_from_slice(&buffer[..read]),
            }
        }
        transmit_drops(&String::from_utf8_lossy(&text), &self.name).ok_or_else(|| {
            io::Error::new(io::ErrorKind::NotFound, format!("{STATISTICS} has no line for {}", self.name))
        })
    }
}

impl AsFd for Tun {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

const STATISTICS: &str = "/proc/thread-self/net/dev";

/// The transmit drops of interface `name` in the text of `/proc/net/dev`: two header lines, then for each
/// interface eight receive counters and eight transmit counters, the fourth of which are drops.
fn transmit_drops(text: &str, name: &str) -> Option<u64> {
    let counters = text.lines().find_map(|line| line.trim_start().strip_prefix(name)?.strip_prefix(':'))?;
    counters.split_ascii_whitespace().nth(8 + 3)?.parse().ok()
}

/// Turns on all offloads that the kernel supports, and returns whether UDP's is among them.
fn offload(tun: &OwnedFd, name: &str) -> io::Result<bool> {
    let tcp = libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6 | libc::TUN_F_TSO_ECN;
    let udp = libc::TUN_F_USO4 | libc::TUN_F_USO6;
    if syscall::tun_offload(tun.as_fd(), tcp | udp).is_ok() {
        return Ok(true);
    }
    syscall::tun_offload(tun.as_fd(), tcp)
        .map_err(|error| explain(error, &format!("cannot turn on TCP segmentation offload of {name}")))?;
    tracing::warn!(
        device = name,
        "this kernel's TUN devices have no UDP segmentation offload (Linux 6.2 and later do)"
    );
    Ok(false)
}

fn explain(error: io::Error, sentence: &str) -> io::Error {
    io::Error::new(error.kind(), format!("{sentence}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drops_are_parsed_by_interface() {
        let text = "Inter-|   Receive                            |  Transmit\n \
            face |bytes packets errs drop fifo frame compressed multicast|bytes packets errs drop fifo colls carrier compressed\n\
            wan10:  1 2 3 4 5 6 7 8 9 10 11 99 13 14 15 16\n  \
            wan1: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n";
        assert_eq!(transmit_drops(text, "wan1"), Some(12));
        assert_eq!(transmit_drops(text, "wan10"), Some(99));
        assert_eq!(transmit_drops(text, "wan"), None);
    }

    #[test]
    fn invalid_interface_names_are_refused() {
        for name in ["", "sixteen-letters-", "a/b", "wan%d", "nul\0"] {
            let message = open_tun(name, 1500).unwrap_err().to_string();
            assert!(message.contains("is not an interface name of 1 to 15 bytes"), "{message}");
        }
    }
}
