//! The virtio-net header (virtio 1.2, section 5.1.6; `linux/virtio_net.h`) that precedes each packet on a TUN device
//! opened with IFF_VNET_HDR. Fields are in the machine's byte order, as legacy devices have them.

/// The header before each packet: which checksum is incomplete, and how to segment the packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct VnetHeader {
    /// [`Self::NEEDS_CSUM`] and further flags.
    pub flags: u8,
    /// The kind of segmentation, and possibly [`Self::GSO_ECN`].
    pub gso_type: u8,
    /// Length of the packet's headers, from IP to transport.
    pub hdr_len: u16,
    /// Payload bytes per segment.
    pub gso_size: u16,
    /// Offset from the IP header at which the transport checksum starts.
    pub csum_start: u16,
    /// Offset of the checksum field from `csum_start`.
    pub csum_offset: u16,
}

/// The kinds of segmentation by which frames can be split.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GsoType {
    /// TCP over IPv4.
    TcpV4,
    /// TCP over IPv6.
    TcpV6,
    /// UDP over IPv4 or IPv6, one datagram per segment.
    Udp,
}

impl VnetHeader {
    /// Length of the header on the device.
    pub const LEN: usize = 10;
    /// Flag: the transport checksum field contains only the sum of the pseudo-header.
    pub const NEEDS_CSUM: u8 = 1;
    /// Bit of `gso_type`: CWR is set on the first segment only.
    pub const GSO_ECN: u8 = 0x80;

    const GSO_NONE: u8 = 0;
    const GSO_TCPV4: u8 = 1;
    const GSO_TCPV6: u8 = 4;
    const GSO_UDP_L4: u8 = 5;

    /// Reads the header at the start of `bytes`.
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let [flags, gso_type, h0, h1, g0, g1, s0, s1, o0, o1] = *bytes.first_chunk::<{ Self::LEN }>()?;
        Some(Self {
            flags,
            gso_type,
            hdr_len: u16::from_ne_bytes([h0, h1]),
            gso_size: u16::from_ne_bytes([g0, g1]),
            csum_start: u16::from_ne_bytes([s0, s1]),
            csum_offset: u16::from_ne_bytes([o0, o1]),
        })
    }

    /// The header in the device's format.
    pub fn to_bytes(self) -> [u8; Self::LEN] {
        let [h0, h1] = self.hdr_len.to_ne_bytes();
        let [g0, g1] = self.gso_size.to_ne_bytes();
        let [s0, s1] = self.csum_start.to_ne_bytes();
        let [o0, o1] = self.csum_offset.to_ne_bytes();
        [self.flags, self.gso_type, h0, h1, g0, g1, s0, s1, o0, o1]
    }

    /// The kind of segmentation, if the packet is a super-packet of a known kind.
    pub fn gso(&self) -> Option<GsoType> {
        match self.gso_type & !Self::GSO_ECN {
            Self::GSO_TCPV4 => Some(GsoType::TcpV4),
            Self::GSO_TCPV6 => Some(GsoType::TcpV6),
            Self::GSO_UDP_L4 => Some(GsoType::Udp),
            _ => None,
        }
    }

    /// The header of the same packet reduced to a single segment.
    pub(crate) fn unsegmented(self) -> Self {
        Self { gso_type: Self::GSO_NONE, gso_size: 0, ..self }
    }
}

impl From<GsoType> for u8 {
    fn from(gso: GsoType) -> u8 {
        match gso {
            GsoType::TcpV4 => VnetHeader::GSO_TCPV4,
            GsoType::TcpV6 => VnetHeader::GSO_TCPV6,
            GsoType::Udp => VnetHeader::GSO_UDP_L4,
        }
    }
}
