//! Whether an address is one of this host, as the kernel's routing says (rtnetlink, `man 7 rtnetlink`).
//!
//! The kernel is asked anew for each address. So addresses that come and go count as they are at that moment, and so do those
//! that no interface shows: a range routed to the host itself (`ip route add local …`), anycast and broadcast addresses.

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with};
use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;

/// Bytes of `struct nlmsghdr` and of `struct rtmsg` behind it.
const HEADERS: usize = 16 + 12;
/// Where `rtm_type` is in an answer.
const TYPE_AT: usize = 16 + 7;
/// More than the kernel says about one route.
const ANSWER_MAX: usize = 8192;

/// The kernel, asked about one address after another over one socket, which is opened for the first.
#[derive(Debug, Default)]
pub struct Routes {
    socket: Option<OwnedFd>,
    answer: Vec<u8>,
}

impl Routes {
    /// Whether a packet to `addr` would stay on this host or go to all of a link: its route is local, anycast, broadcast or
    /// multicast. An address to which there is no route is not the host's.
    ///
    /// # Errors
    /// The kernel cannot be asked: netlink is forbidden, or there is no descriptor left.
    pub fn is_own(&mut self, addr: IpAddr) -> io::Result<bool> {
        let addr = addr.to_canonical();
        // The kernel is not asked for what is so on every host: a connection to no address goes to this one.
        if addr.is_loopback() || addr.is_unspecified() {
            return Ok(true);
        }
        // A socket with which something is wrong is not asked again: what it says next might be late.
        let socket = self.socket.take().map_or_else(open, Ok)?;
        self.answer.resize(ANSWER_MAX, 0);
        // The kernel answers before `send` returns.
        send(&socket, &question(addr), SendFlags::empty())?;
        let (_, len) = recv(&socket, &mut self.answer[..], RecvFlags::empty())?;
        self.socket = Some(socket);
        judge(self.answer.get(..len).unwrap_or_default(), addr)
    }
}

/// The same for one address alone.
///
/// # Errors
/// As for [`Routes::is_own`].
pub fn is_own(addr: IpAddr) -> io::Result<bool> {
    Routes::default().is_own(addr)
}

fn open() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    // Protocol 0 is NETLINK_ROUTE.
    Ok(socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?)
}

/// RTM_GETROUTE for `addr`.
fn question(addr: IpAddr) -> Vec<u8> {
    let (family, octets) = match addr {
        IpAddr::V4(addr) => (libc::AF_INET, addr.octets().to_vec()),
        IpAddr::V6(addr) => (libc::AF_INET6, addr.octets().to_vec()),
    };
    let attribute = 4 + octets.len();
    let mut message = Vec::with_capacity(HEADERS + attribute);
    // struct nlmsghdr: length, type, flags, sequence number, port.
    message.extend_from_slice(&((HEADERS + attribute) as u32).to_ne_bytes());
    message.extend_from_slice(&libc::RTM_GETROUTE.to_ne_bytes());
    message.extend_from_slice(&(libc::NLM_F_REQUEST as u16).to_ne_bytes());
    message.extend_from_slice(&[0; 8]);
    // struct rtmsg: family, bits of the destination, and nothing else that is asked for.
    message.extend_from_slice(&[family as u8, (octets.len() * 8) as u8]);
    message.extend_from_slice(&[0; 10]);
    // struct rtattr: length, type; then the destination.
    message.extend_from_slice(&(attribute as u16).to_ne_bytes());
    message.extend_from_slice(&libc::RTA_DST.to_ne_bytes());
    message.extend_from_slice(&octets);
    message
}

/// No route, or one that says no. Connecting fails, and says why.
const UNREACHABLE: [i32; 4] = [libc::ENETUNREACH, libc::EHOSTUNREACH, libc::EACCES, libc::EINVAL];
/// A kernel without IPv6 (`ipv6.disable=1`). Of an IPv4 address it would say that the kernel answers no such questions.
const NO_IPV6: [i32; 2] = [libc::EOPNOTSUPP, libc::EAFNOSUPPORT];

/// What the kernel's answer about `addr` says.
fn judge(answer: &[u8], addr: IpAddr) -> io::Result<bool> {
    let unexpected = || io::Error::new(io::ErrorKind::InvalidData, "the kernel's answer about a route makes no sense");
    let kind = answer.get(4..6).and_then(|bytes| bytes.try_into().ok()).map(u16::from_ne_bytes);
    if kind == Some(libc::RTM_NEWROUTE) {
        let route = *answer.get(TYPE_AT).ok_or_else(unexpected)?;
        return Ok([libc::RTN_LOCAL, libc::RTN_ANYCAST, libc::RTN_BROADCAST, libc::RTN_MULTICAST].contains(&route));
    }
    let error = answer.get(16..20).and_then(|bytes| bytes.try_into().ok()).map(i32::from_ne_bytes);
    match (kind.map(i32::from), error) {
        (Some(libc::NLMSG_ERROR), Some(error)) if UNREACHABLE.contains(&-error) => Ok(false),
        (Some(libc::NLMSG_ERROR), Some(error)) if addr.is_ipv6() && NO_IPV6.contains(&-error) => Ok(false),
        (Some(libc::NLMSG_ERROR), Some(error)) if error < 0 => Err(io::Error::from_raw_os_error(-error)),
        _ => Err(unexpected()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_knows_its_own_addresses() {
        let mut routes = Routes::default();
        for _ in 0..2 {
            for own in ["127.0.0.1", "127.200.3.4", "::1", "::ffff:127.0.0.1", "255.255.255.255", "0.0.0.0", "::"] {
                assert!(routes.is_own(own.parse().unwrap()).unwrap(), "{own}");
            }
            // From the blocks for documentation: no host has them, whether there is a route to them or not.
            for other in ["192.0.2.1", "2001:db8::1", "203.0.113.255"] {
                assert!(!routes.is_own(other.parse().unwrap()).unwrap(), "{other}");
            }
        }
    }

    #[test]
    fn what_cannot_be_reached_is_not_the_hosts() {
        let answer = |errno: i32, addr: &str| {
            let mut answer = [0; 36];
            answer[4..6].copy_from_slice(&(libc::NLMSG_ERROR as u16).to_ne_bytes());
            answer[16..20].copy_from_slice(&(-errno).to_ne_bytes());
            judge(&answer, addr.parse().unwrap())
        };
        let (old, new) = ("192.0.2.1", "2001:db8::1");
        for errno in [libc::ENETUNREACH, libc::EHOSTUNREACH, libc::EACCES] {
            assert!(!answer(errno, old).unwrap() && !answer(errno, new).unwrap(), "{errno}");
        }
        // From a kernel that was started without IPv6; or from one that is never to be asked.
        for errno in [libc::EOPNOTSUPP, libc::EAFNOSUPPORT] {
            assert!(!answer(errno, new).unwrap(), "{errno}");
            assert_eq!(answer(errno, old).unwrap_err().raw_os_error(), Some(errno));
        }
        assert_eq!(answer(libc::EPERM, new).unwrap_err().raw_os_error(), Some(libc::EPERM));
    }

    #[test]
    fn an_answer_that_makes_no_sense_is_an_error() {
        for answer in [&[][..], &[0; 15], &[0; 40], &[0xff; 64]] {
            assert!(judge(answer, IpAddr::from([192, 0, 2, 1])).is_err(), "{answer:?}");
        }
    }
}
