//! A packet with its virtio-net header, which can be split between any two segments.

use super::checksum;
use super::headers::{Headers, Transport, ipv4, ipv6, tcp, u16_at, udp};
use super::vnet::VnetHeader;
use crate::model::Packet;
use bytes::BytesMut;

/// The result of one read from a TUN device: a packet, or a super-packet of several segments.
///
/// The bytes are the headers followed by the payload; an unsplit frame has them in one piece of memory, and
/// splitting copies only the headers.
#[derive(Debug)]
pub struct Frame {
    /// The virtio-net header and the packet's headers; for an opaque packet, everything.
    head: BytesMut,
    payload: BytesMut,
    /// How to split the packet; `None` if it cannot be split.
    segmented: Option<Segmented>,
}

#[derive(Debug, Clone, Copy)]
struct Segmented {
    vnet: VnetHeader,
    headers: Headers,
}

impl Frame {
    /// Parses a frame from `bytes`, which start with a virtio-net header. `None` if they are too short for
    /// one.
    pub fn parse(mut bytes: BytesMut) -> Option<Self> {
        let vnet = VnetHeader::read(&bytes)?;
        let ip = &bytes[VnetHeader::LEN..];
        let segmented = match Headers::of_super_packet(&vnet, ip) {
            Some(headers) if ip.len() - headers.payload_at > usize::from(vnet.gso_size) => {
                Some(Segmented { vnet, headers })
            }
            _ => None,
        };
        let head_len = segmented.map_or(bytes.len(), |s| VnetHeader::LEN + s.headers.payload_at);
        let payload = bytes.split_off(head_len);
        Some(Self { head: bytes, payload, segmented })
    }

    /// The bytes to write to the device as one packet, in this order. The second part may be empty.
    pub fn parts(&self) -> [&[u8]; 2] {
        [&self.head, &self.payload]
    }

    /// The packet's headers, starting with IP; for an opaque packet, all of it.
    pub(crate) fn ip_head(&self) -> &[u8] {
        self.head.get(VnetHeader::LEN..).unwrap_or_default()
    }

    /// Updates lengths, checksums and the virtio-net header to match the payload and `segmented`.
    fn seal(&mut self, Segmented { mut vnet, headers }: Segmented) {
        let Headers { v6, transport, transport_at, payload_at } = headers;
        let ip = &mut self.head[VnetHeader::LEN..];
        let len = payload_at + self.payload.len();
        let length_before =
            if v6 { u16_at(ip, ipv6::PAYLOAD_LENGTH) + ipv6::LEN } else { u16_at(ip, ipv4::TOTAL_LENGTH) };
        if v6 {
            put_u16(ip, ipv6::PAYLOAD_LENGTH, len - ipv6::LEN);
        } else {
            put_u16(ip, ipv4::TOTAL_LENGTH, len);
            put_u16(ip, ipv4::CHECKSUM, 0);
            let checksum = checksum::internet_checksum(&ip[..transport_at]);
            put_u16(ip, ipv4::CHECKSUM, usize::from(checksum));
        }
        // The checksum field contains the sum of the pseudo-header, in which only the transport's length has
        // changed.
        let (old, new) = (length_before - transport_at, len - transport_at);
        let checksum_at = transport_at
            + match transport {
                Transport::Tcp => tcp::CHECKSUM,
                Transport::Udp => {
                    put_u16(ip, transport_at + udp::LENGTH, new);
                    udp::CHECKSUM
                }
            };
        let sum = checksum::replace(u16_at(ip, checksum_at) as u16, old as u16, new as u16);
        put_u16(ip, checksum_at, usize::from(sum));

        vnet.hdr_len = payload_at as u16;
        self.segmented = Some(Segmented { vnet, headers });
        let on_device = if self.segments() == 1 { vnet.unsegmented() } else { vnet };
        self.head[..VnetHeader::LEN].copy_from_slice(&on_device.to_bytes());
    }
}

impl Packet for Frame {
    fn segments(&self) -> u32 {
        let Some(Segmented { vnet, .. }) = self.segmented else { return 1 };
        // A frame comes from one read of at most 64 KiB, so the number fits.
        self.payload.len().div_ceil(usize::from(vnet.gso_size)) as u32
    }

    fn segment_bytes(&self) -> u32 {
        let first_payload = self.segmented.map_or(0, |s| self.payload.len().min(usize::from(s.vnet.gso_size)));
        (self.ip_head().len() + first_payload) as u32
    }

    fn bytes(&self) -> u64 {
        u64::from(self.segments()) * self.ip_head().len() as u64 + self.payload.len() as u64
    }

    /// Splits as RFC 9293 and the kernel's segmentation (`tcp_gso_segment`, `__udp_gso_segment`) do: the
    /// later part continues the sequence numbers and IP identifications; PSH and FIN stay on the last
    /// segment, CWR on the first.
    fn split_off(&mut self, at: u32) -> Self {
        let Some(mut front) = self.segmented else {
            debug_assert!(false, "a single segment has no inner boundary");
            return Self { head: BytesMut::new(), payload: BytesMut::new(), segmented: None };
        };
        let mut back = front;
        let Headers { v6, transport, transport_at, .. } = front.headers;
        let boundary = at as usize * usize::from(front.vnet.gso_size);
        let mut rest = Self {
            head: BytesMut::from(&self.head[..]),
            payload: self.payload.split_off(boundary.min(self.payload.len())),
            segmented: None,
        };
        let ip = &mut rest.head[VnetHeader::LEN..];
        if !v6 {
            put_u16(ip, ipv4::ID, u16_at(ip, ipv4::ID).wrapping_add(at as usize));
        }
        if transport == Transport::Tcp {
            let sequence_at = transport_at + tcp::SEQUENCE;
            let sequence = (u16_at(ip, sequence_at) as u32) << 16 | u16_at(ip, sequence_at + 2) as u32;
            let continued = sequence.wrapping_add(boundary as u32);
            ip[sequence_at..sequence_at + 4].copy_from_slice(&continued.to_be_bytes());
            self.head[VnetHeader::LEN + transport_at + tcp::FLAGS] &= !(tcp::FIN | tcp::PSH);
            // Without the ECN bit, CWR belongs to a counter that all segments repeat (accurate ECN).
            if front.vnet.gso_type & VnetHeader::GSO_ECN != 0 {
                ip[transport_at + tcp::FLAGS] &= !tcp::CWR;
                back.vnet.gso_type &= !VnetHeader::GSO_ECN;
            }
        }
        front.vnet.flags = VnetHeader::NEEDS_CSUM;
        back.vnet.flags = VnetHeader::NEEDS_CSUM;
        self.seal(front);
        rest.seal(back);
        rest
    }
}

/// Writes the low 16 bits of `value` at offset `at`, which must lie within the headers found by [`Headers`].
fn put_u16(bytes: &mut [u8], at: usize, value: usize) {
    bytes[at..at + 2].copy_from_slice(&(value as u16).to_be_bytes());
}
