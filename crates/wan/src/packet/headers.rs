//! Finds the headers of an IP packet, as far as splitting it requires.

use super::vnet::{GsoType, VnetHeader};

/// The offsets in a super-packet whose headers are complete and consistent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Headers {
    /// Whether the packet is IPv6.
    pub v6: bool,
    /// The transport above IP.
    pub transport: Transport,
    /// Offset of the transport header from the IP header.
    pub transport_at: usize,
    /// Offset of the payload from the IP header.
    pub payload_at: usize,
}

/// The transports whose super-packets can be split.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// TCP (RFC 9293).
    Tcp,
    /// UDP (RFC 768).
    Udp,
}

impl Headers {
    /// Finds the headers of the super-packet `ip`, which `vnet` tells how to segment. `None` if the two
    /// disagree.
    pub fn of_super_packet(vnet: &VnetHeader, ip: &[u8]) -> Option<Self> {
        let gso = vnet.gso()?;
        // The kernel always leaves the checksum of a super-packet to the device, which alone can segment it.
        if vnet.gso_size == 0 || vnet.flags & VnetHeader::NEEDS_CSUM == 0 {
            return None;
        }
        let v6 = ip.first()? >> 4 == 6;
        let transport_at = usize::from(vnet.csum_start);
        let protocol = if v6 { ipv6_transport(ip, transport_at)? } else { ipv4_transport(ip, transport_at)? };
        let (transport, checksum_offset, transport_len) = match (gso, protocol, v6) {
            (GsoType::TcpV4, PROTOCOL_TCP, false) | (GsoType::TcpV6, PROTOCOL_TCP, true) => {
                (Transport::Tcp, tcp::CHECKSUM, usize::from(ip.get(transport_at + tcp::DATA_OFFSET)? >> 4) * 4)
            }
            (GsoType::Udp, PROTOCOL_UDP, _) => (Transport::Udp, udp::CHECKSUM, udp::LEN),
            _ => return None,
        };
        let transport_len_min = if transport == Transport::Tcp { tcp::LEN_MIN } else { udp::LEN };
        let payload_at = transport_at + transport_len;
        let consistent = transport_len >= transport_len_min
            && payload_at < ip.len()
            && usize::from(vnet.csum_offset) == checksum_offset
            && (transport == Transport::Tcp || u16_at(ip, transport_at + udp::LENGTH) == ip.len() - transport_at);
        consistent.then_some(Self { v6, transport, transport_at, payload_at })
    }
}

pub(crate) const PROTOCOL_TCP: u8 = 6;
pub(crate) const PROTOCOL_UDP: u8 = 17;

/// Offsets in the IPv4 header (RFC 791).
pub(crate) mod ipv4 {
    pub(crate) const LEN_MIN: usize = 20;
    pub(crate) const TOTAL_LENGTH: usize = 2;
    pub(crate) const ID: usize = 4;
    pub(crate) const FRAGMENT: usize = 6;
    pub(crate) const PROTOCOL: usize = 9;
    pub(crate) const CHECKSUM: usize = 10;
    /// The more-fragments flag and the fragment offset: both zero in an unfragmented packet.
    pub(crate) const FRAGMENT_MASK: usize = 0x3fff;
}

/// Offsets in the IPv6 header (RFC 8200).
pub(crate) mod ipv6 {
    pub(crate) const LEN: usize = 40;
    pub(crate) const PAYLOAD_LENGTH: usize = 4;
    pub(crate) const NEXT_HEADER: usize = 6;
    pub(crate) const HOP_BY_HOP: u8 = 0;
    pub(crate) const ROUTING: u8 = 43;
    pub(crate) const DESTINATION_OPTIONS: u8 = 60;
}

/// Offsets in the TCP header (RFC 9293).
pub(crate) mod tcp {
    pub(crate) const LEN_MIN: usize = 20;
    pub(crate) const SEQUENCE: usize = 4;
    pub(crate) const DATA_OFFSET: usize = 12;
    pub(crate) const FLAGS: usize = 13;
    pub(crate) const CHECKSUM: usize = 16;
    pub(crate) const FIN: u8 = 0x01;
    pub(crate) const PSH: u8 = 0x08;
    pub(crate) const CWR: u8 = 0x80;
}

/// Offsets in the UDP header (RFC 768).
pub(crate) mod udp {
    pub(crate) const LEN: usize = 8;
    pub(crate) const LENGTH: usize = 4;
    pub(crate) const CHECKSUM: usize = 6;
}

/// The big-endian 16 bits at `at`; all ones if the packet is too short, which is no valid value of any field
/// read here.
pub(crate) fn u16_at(bytes: &[u8], at: usize) -> usize {
    bytes.get(at..at + 2).map_or(0xffff, |b| usize::from(u16::from_be_bytes([b[0], b[1]])))
}

/// The transport protocol of an IPv4 packet whose transport begins at `transport_at`, if the packet is
/// complete and no fragment.
fn ipv4_transport(ip: &[u8], transport_at: usize) -> Option<u8> {
    let header_len = usize::from(ip.first()? & 0x0f) * 4;
    let sound = ip.first()? >> 4 == 4
        && header_len >= ipv4::LEN_MIN
        && header_len == transport_at
        && u16_at(ip, ipv4::TOTAL_LENGTH) == ip.len()
        && u16_at(ip, ipv4::FRAGMENT) & ipv4::FRAGMENT_MASK == 0;
    if sound { ip.get(ipv4::PROTOCOL).copied() } else { None }
}

/// The transport protocol of an IPv6 packet whose transport begins at `transport_at`, if only headers precede
/// it that every segment repeats (RFC 8200, section 4.1).
fn ipv6_transport(ip: &[u8], transport_at: usize) -> Option<u8> {
    if u16_at(ip, ipv6::PAYLOAD_LENGTH) + ipv6::LEN != ip.len() {
        return None;
    }
    let (mut next, mut at) = (*ip.get(ipv6::NEXT_HEADER)?, ipv6::LEN);
    while at < transport_at && matches!(next, ipv6::HOP_BY_HOP | ipv6::ROUTING | ipv6::DESTINATION_OPTIONS) {
        next = *ip.get(at)?;
        at += (usize::from(*ip.get(at + 1)?) + 1) * 8;
    }
    (at == transport_at).then_some(next)
}
