//! The rtnetlink requests (`rtnetlink(7)`) that give a host its interfaces, addresses and routes.
//!
//! Hosts are unnumbered routers: each has one address per family, on all of its interfaces, and reaches
//! another host by a route to that host's address through an interface. So a host's name resolves to the same
//! address on every path.

use rustix::net::netdevice::name_to_index;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with};
use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;

/// A route socket in the network namespace of the thread that opened it.
pub(super) struct Netlink {
    socket: OwnedFd,
    sequence: u32,
}

impl Netlink {
    pub(super) fn open() -> io::Result<Self> {
        let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
        Ok(Self { socket, sequence: 0 })
    }

    /// The index of the interface `name`.
    pub(super) fn index(&self, name: &str) -> io::Result<u32> {
        Ok(name_to_index(&self.socket, name)?)
    }

    /// Brings an interface up, and sets the length of its transmit queue, in packets, if given.
    pub(super) fn up(&mut self, index: u32, queue: Option<u32>) -> io::Result<()> {
        let mut request = Request::new(libc::RTM_NEWLINK, 0);
        // struct ifinfomsg: family, pad, type, index, flags, change mask.
        request.bytes(&[libc::AF_UNSPEC as u8, 0, 0, 0]);
        request.bytes(&index.to_ne_bytes());
        request.bytes(&(libc::IFF_UP as u32).to_ne_bytes());
        request.bytes(&(libc::IFF_UP as u32).to_ne_bytes());
        if let Some(packets) = queue {
            request.attribute(libc::IFLA_TXQLEN, &packets.to_ne_bytes());
        }
        self.ask(request)
    }

    /// Assigns the single address `address`, usable at once (without duplicate address detection).
    pub(super) fn add_address(&mut self, index: u32, address: IpAddr) -> io::Result<()> {
        let mut request = Request::new(libc::RTM_NEWADDR, libc::NLM_F_CREATE | libc::NLM_F_EXCL);
        // struct ifaddrmsg: family, prefix length, flags, scope, index.
        request.bytes(&[family(address), bits(address), libc::IFA_F_NODAD as u8, libc::RT_SCOPE_UNIVERSE]);
        request.bytes(&index.to_ne_bytes());
        request.address(libc::IFA_LOCAL, address);
        request.address(libc::IFA_ADDRESS, address);
        self.ask(request)
    }

    /// Routes packets to `destination` through an interface, with `source` as the default source address.
    pub(super) fn add_route(&mut self, destination: IpAddr, index: u32, source: IpAddr) -> io::Result<()> {
        let mut request = Request::new(libc::RTM_NEWROUTE, libc::NLM_F_CREATE | libc::NLM_F_EXCL);
        let scope = if destination.is_ipv4() { libc::RT_SCOPE_LINK } else { libc::RT_SCOPE_UNIVERSE };
        // struct rtmsg: family, destination and source length, TOS, table, protocol, scope, type, flags.
        request.bytes(&[family(destination), bits(destination), 0, 0]);
        request.bytes(&[libc::RT_TABLE_MAIN, libc::RTPROT_STATIC, scope, libc::RTN_UNICAST]);
        request.bytes(&0u32.to_ne_bytes());
        request.address(libc::RTA_DST, destination);
        request.address(libc::RTA_PREFSRC, source);
        request.attribute(libc::RTA_OIF, &index.to_ne_bytes());
        self.ask(request)
    }

    /// Sends a request and waits for the kernel's acknowledgement.
    fn ask(&mut self, request: Request) -> io::Result<()> {
        self.sequence += 1;
        send(&self.socket, &request.finish(self.sequence), SendFlags::empty())?;
        let mut reply = [0u8; 1024];
        let (length, _) = recv(&self.socket, &mut reply[..], RecvFlags::empty())?;
        // struct nlmsghdr, then struct nlmsgerr, whose first field is a negated errno, or 0 for success.
        match reply[..length] {
            [_, _, _, _, t0, t1, _, _, _, _, _, _, _, _, _, _, e0, e1, e2, e3, ..]
                if i32::from(u16::from_ne_bytes([t0, t1])) == libc::NLMSG_ERROR =>
            {
                match i32::from_ne_bytes([e0, e1, e2, e3]) {
                    0 => Ok(()),
                    error => Err(io::Error::from_raw_os_error(error.saturating_neg())),
                }
            }
            _ => Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the kernel answered with something other than a verdict",
            )),
        }
    }
}

/// A message under construction: a header of 16 bytes, a fixed part, attributes.
struct Request(Vec<u8>);

impl Request {
    fn new(kind: u16, flags: libc::c_int) -> Self {
        let flags = (libc::NLM_F_REQUEST | libc::NLM_F_ACK | flags) as u16;
        let mut message = vec![0; 16];
        message[4..6].copy_from_slice(&kind.to_ne_bytes());
        message[6..8].copy_from_slice(&flags.to_ne_bytes());
        Self(message)
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// Appends an attribute: length, type, value, padded to four bytes.
    fn attribute(&mut self, kind: u16, value: &[u8]) {
        self.bytes(&(4 + value.len() as u16).to_ne_bytes());
        self.bytes(&kind.to_ne_bytes());
        self.bytes(value);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
    }

    fn address(&mut self, kind: u16, address: IpAddr) {
        match address {
            IpAddr::V4(v4) => self.attribute(kind, &v4.octets()),
            IpAddr::V6(v6) => self.attribute(kind, &v6.octets()),
        }
    }

    fn finish(mut self, sequence: u32) -> Vec<u8> {
        let length = self.0.len() as u32;
        self.0[0..4].copy_from_slice(&length.to_ne_bytes());
        self.0[8..12].copy_from_slice(&sequence.to_ne_bytes());
        self.0
    }
}

fn family(address: IpAddr) -> u8 {
    (if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 }) as u8
}

fn bits(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}
