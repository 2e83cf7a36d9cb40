//! Tells whether an address belongs to this host, according to the kernel's routing table (rtnetlink, `man 7
//! rtnetlink`).
//!
//! The kernel is asked anew for each address. So the answer reflects addresses that come and go, and
//! addresses that no interface lists: a range routed to the host itself (`ip route add local …`), anycast and
//! broadcast addresses.

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with};
use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;

/// Bytes of `struct nlmsghdr` and of the `struct rtmsg` behind it.
const HEADERS: usize = 16 + 12;
/// Offset of `rtm_type` in an answer.
const TYPE_AT: usize = 16 + 7;
/// Larger than any answer of the kernel about one route, in bytes.
const ANSWER_MAX: usize = 8192;

/// Asks the kernel about addresses over one netlink socket, which is opened for the first question.
#[derive(Debug, Default)]
pub struct Routes {
    socket: Option<OwnedFd>,
    answer: Vec<u8>,
}

impl Routes {
    /// Whether a packet to `addr` would stay on this host or be delivered to every host of a link: its route
    /// is local, anycast, broadcast or multicast. An address without a route is not the host's.
    ///
    /// # Errors
    /// When the kernel cannot be asked: netlink is forbidden, or no descriptor is left.
    pub fn is_own(&mut self, addr: IpAddr) -> io::Result<bool> {
        let addr = addr.to_canonical();
        // These hold on every host without asking: a connection to the unspecified address goes to this host.
        if addr.is_loopback() || addr.is_unspecified() {
            return Ok(true);
        }
        // The socket is put back only after success: after a failure, a late answer could be taken for the
        // next one.
        let socket = self.socket.take().map_or_else(open, Ok)?;
        self.answer.resize(ANSWER_MAX, 0);
        // The kernel answers before `send` returns.
        send(&socket, &question(addr), SendFlags::empty())?;
        let (_, len) = recv(&socket, &mut self.answer[..], RecvFlags::empty())?;
        self.socket = Some(socket);
        judge(self.answer.get(..len).unwrap_or_default(), addr)
    }
}

/// As [`Routes::is_own`], for a single address.
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
    // struct rtmsg: family, prefix length of the destination, and zeros for everything else.
    message.extend_from_slice(&[family as u8, (octets.len() * 8) as u8]);
    message.extend_from_slice(&[0; 10]);
    // struct rtattr: length, type; then the destination.
    message.extend_from_slice(&(attribute as u16).to_ne_bytes());
    message.extend_from_slice(&libc::RTA_DST.to_ne_bytes());
    message.extend_from_slice(&octets);
    message
}

/// The kernel has no route, or a route that rejects. Connecting will fail with the reason.
const UNREACHABLE: [i32; 4] = [libc::ENETUNREACH, libc::EHOSTUNREACH, libc::EACCES, libc::EINVAL];
/// The kernel has no IPv6 (`ipv6.disable=1`). For an IPv4 address these mean that the kernel does not answer
/// route questions.
const NO_IPV6: [i32; 2] = [libc::EOPNOTSUPP, libc::EAFNOSUPPORT];

/// Evaluates the kernel's answer about `addr`.
fn judge(answer: &[u8], addr: IpAddr) -> io::Result<bool> {
    let unexpected = || io::Error::new(io::ErrorKind::InvalidData, "the kernel's answer about a route is malformed");
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
    fn own_and_foreign_addresses_are_told_apart() {
        let mut routes = Routes::default();
        for _ in 0..2 {
            for own in ["127.0.0.1", "127.200.3.4", "::1", "::ffff:127.0.0.1", "255.255.255.255", "0.0.0.0", "::"] {
                assert!(routes.is_own(own.parse().unwrap()).unwrap(), "{own}");
            }
            // Addresses of the documentation blocks: no host has them, whether or not a route to them exists.
            for other in ["192.0.2.1", "2001:db8::1", "203.0.113.255"] {
                assert!(!routes.is_own(other.parse().unwrap()).unwrap(), "{other}");
            }
        }
    }

    #[test]
    fn unreachable_address_is_not_the_host_s() {
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
        // Answers of a kernel without IPv6; for an IPv4 address they are errors.
        for errno in [libc::EOPNOTSUPP, libc::EAFNOSUPPORT] {
            assert!(!answer(errno, new).unwrap(), "{errno}");
            assert_eq!(answer(errno, old).unwrap_err().raw_os_error(), Some(errno));
        }
        assert_eq!(answer(libc::EPERM, new).unwrap_err().raw_os_error(), Some(libc::EPERM));
    }

    #[test]
    fn malformed_answer_is_an_error() {
        for answer in [&[][..], &[0; 15], &[0; 40], &[0xff; 64]] {
            assert!(judge(answer, IpAddr::from([192, 0, 2, 1])).is_err(), "{answer:?}");
        }
    }
}
