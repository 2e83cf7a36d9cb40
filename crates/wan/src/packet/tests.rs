//! Compares frames with a simulated network card: a simple, slow segmentation of super-packets, written from
//! the RFCs for these tests. However a frame is split, the card must produce the same segments from the parts
//! as from the whole.

use super::*;
use crate::model::Packet;
use bytes::BytesMut;
use proptest::prelude::*;

/// Describes a super-packet to build.
#[derive(Debug, Clone)]
pub(super) struct Recipe {
    pub(super) v6: bool,
    pub(super) udp: bool,
    /// IPv4 options or IPv6 extension headers, in units of 8 bytes.
    pub(super) extra: usize,
    /// TCP options in units of 4 bytes.
    pub(super) options: usize,
    pub(super) tcp_flags: u8,
    pub(super) sequence: u32,
    pub(super) id: u16,
    pub(super) gso_size: u16,
    pub(super) payload: usize,
}

impl Recipe {
    /// A full TCP super-packet over IPv4 as Linux sends it: timestamps, 1448 bytes per segment.
    pub(super) fn tcp(payload: usize) -> Self {
        let (tcp_flags, sequence, id) = (0x18, 0xffff_f000, 0xfffe);
        Self { v6: false, udp: false, extra: 0, options: 3, tcp_flags, sequence, id, gso_size: 1448, payload }
    }

    pub(super) fn build(&self) -> BytesMut {
        let transport_len = if self.udp { 8 } else { 20 + self.options * 4 };
        let ip_len = if self.v6 { 40 } else { 20 } + self.extra * 8;
        let len = ip_len + transport_len + self.payload;
        let protocol = if self.udp { 17 } else { 6 };
        let mut ip = vec![0; len];
        if self.v6 {
            ip[0] = 0x60;
            ip[4..6].copy_from_slice(&((len - 40) as u16).to_be_bytes());
            (ip[6], ip[7]) = (if self.extra > 0 { 60 } else { protocol }, 64);
            ip[8..40].copy_from_slice(&std::array::from_fn::<u8, 32, _>(|i| i as u8 * 7 + 1));
            if self.extra > 0 {
                (ip[40], ip[41]) = (protocol, self.extra as u8 - 1);
            }
        } else {
            ip[0] = 0x40 | (ip_len / 4) as u8;
            ip[2..4].copy_from_slice(&(len as u16).to_be_bytes());
            ip[4..6].copy_from_slice(&self.id.to_be_bytes());
            (ip[6], ip[8], ip[9]) = (0x40, 64, protocol);
            ip[12..20].copy_from_slice(&[10, 9, 0, 1, 10, 9, 0, 2]);
            ip[20..ip_len].fill(1);
            let sum = !sum_words(&ip[..ip_len]);
            ip[10..12].copy_from_slice(&sum.to_be_bytes());
        }
        let transport = &mut ip[ip_len..];
        transport[..4].copy_from_slice(&[0x9c, 0x40, 0x14, 0x51]);
        if self.udp {
            transport[4..6].copy_from_slice(&((transport_len + self.payload) as u16).to_be_bytes());
        } else {
            transport[4..8].copy_from_slice(&self.sequence.to_be_bytes());
            (transport[12], transport[13]) = ((transport_len as u8 / 4) << 4, self.tcp_flags);
        }
        for (position, byte) in transport[transport_len..].iter_mut().enumerate() {
            *byte = (position % 251) as u8;
        }
        let checksum_at = if self.udp { 6 } else { 16 };
        let partial = pseudo_header(&ip, ip_len);
        ip[ip_len + checksum_at..][..2].copy_from_slice(&partial.to_be_bytes());
        let gso = match (self.udp, self.v6) {
            (true, _) => GsoType::Udp,
            (false, false) => GsoType::TcpV4,
            (false, true) => GsoType::TcpV6,
        };
        let ecn = if !self.udp && self.tcp_flags & 0x80 != 0 { VnetHeader::GSO_ECN } else { 0 };
        let vnet = VnetHeader {
            flags: VnetHeader::NEEDS_CSUM,
            gso_type: u8::from(gso) | ecn,
            hdr_len: (ip_len + transport_len) as u16,
            gso_size: self.gso_size,
            csum_start: ip_len as u16,
            csum_offset: checksum_at as u16,
        };
        let mut bytes = BytesMut::from(&vnet.to_bytes()[..]);
        bytes.extend_from_slice(&ip);
        bytes
    }
}

pub(super) fn frame(recipe: &Recipe) -> Frame {
    Frame::parse(recipe.build()).unwrap()
}

/// The one's complement sum of big-endian words.
pub(super) fn sum_words(bytes: &[u8]) -> u16 {
    let mut sum = 0u64;
    for pair in bytes.chunks(2) {
        sum += u64::from(pair[0]) << 8 | u64::from(*pair.get(1).unwrap_or(&0));
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// The sum of the pseudo-header (RFC 9293 §3.1, RFC 8200 §8.1) of a packet whose transport begins at `transport_at`.
pub(super) fn pseudo_header(ip: &[u8], transport_at: usize) -> u16 {
    let v6 = ip[0] >> 4 == 6;
    let mut pseudo = ip[if v6 { 8..40 } else { 12..20 }].to_vec();
    let protocol = match v6 {
        false => ip[9],
        true if ip[6] == 60 => ip[40],
        true => ip[6],
    };
    pseudo.extend([0, protocol]);
    pseudo.extend(((ip.len() - transport_at) as u16).to_be_bytes());
    sum_words(&pseudo)
}

/// The segments that a network card would put on the wire for the bytes of a frame.
fn card(bytes: &[u8]) -> Vec<Vec<u8>> {
    let vnet = VnetHeader::read(bytes).unwrap();
    let ip = &bytes[VnetHeader::LEN..];
    let transport_at = usize::from(vnet.csum_start);
    let checksum_at = transport_at + usize::from(vnet.csum_offset);
    assert_eq!(vnet.flags, VnetHeader::NEEDS_CSUM);
    let partial = u16::from_be_bytes([ip[checksum_at], ip[checksum_at + 1]]);
    let expected = pseudo_header(ip, transport_at);
    // In one's complement, 0xffff also represents zero.
    assert_eq!(partial % 0xffff, expected % 0xffff, "partial checksum");
    let (v6, udp) = (ip[0] >> 4 == 6, vnet.csum_offset == 6);
    let (headers, payload) = ip.split_at(usize::from(vnet.hdr_len));
    if !v6 {
        assert_eq!(sum_words(&headers[..transport_at]), 0xffff, "IPv4 header checksum");
        assert_eq!(usize::from(u16::from_be_bytes([ip[2], ip[3]])), ip.len());
    }
    let size = if vnet.gso_type == 0 { payload.len() } else { usize::from(vnet.gso_size) };
    assert!(vnet.gso_type == 0 || payload.len() > size, "one segment is no super-packet");
    let last = payload.len().div_ceil(size) - 1;
    let segment = |(index, part): (usize, &[u8])| {
        let mut segment = [headers, part].concat();
        let len = segment.len();
        if v6 {
            segment[4..6].copy_from_slice(&((len - 40) as u16).to_be_bytes());
        } else {
            let id = u16::from_be_bytes([ip[4], ip[5]]).wrapping_add(index as u16);
            segment[2..4].copy_from_slice(&(len as u16).to_be_bytes());
            segment[4..6].copy_from_slice(&id.to_be_bytes());
            segment[10..12].fill(0);
            let sum = !sum_words(&segment[..transport_at]);
            segment[10..12].copy_from_slice(&sum.to_be_bytes());
        }
        if udp {
            segment[transport_at + 4..][..2].copy_from_slice(&((len - transport_at) as u16).to_be_bytes());
        } else {
            let sequence = &mut segment[transport_at + 4..transport_at + 8];
            let first = u32::from_be_bytes([sequence[0], sequence[1], sequence[2], sequence[3]]);
            sequence.copy_from_slice(&first.wrapping_add((index * size) as u32).to_be_bytes());
            let flags = &mut segment[transport_at + 13];
            if index != last {
                *flags &= !0x09;
            }
            if index != 0 && vnet.gso_type & VnetHeader::GSO_ECN != 0 {
                *flags &= !0x80;
            }
        }
        let pseudo = pseudo_header(&segment, transport_at);
        segment[checksum_at..][..2].copy_from_slice(&pseudo.to_be_bytes());
        let sum = !sum_words(&segment[transport_at..]);
        segment[checksum_at..][..2].copy_from_slice(&sum.to_be_bytes());
        segment
    };
    payload.chunks(size).enumerate().map(segment).collect()
}

fn bytes_of(frame: &Frame) -> Vec<u8> {
    frame.parts().concat()
}

fn recipes() -> impl Strategy<Value = Recipe> {
    let kind = (any::<bool>(), any::<bool>(), 0..4usize, 0..=10usize);
    (kind, any::<u8>(), any::<u32>(), any::<u16>(), 500..1500u16, 1..60_000usize).prop_map(
        |((v6, udp, extra, options), tcp_flags, sequence, id, gso_size, payload)| Recipe {
            v6,
            udp,
            extra,
            options,
            tcp_flags,
            sequence,
            id,
            gso_size,
            payload,
        },
    )
}

proptest! {
    #[test]
    fn split_frames_yield_the_segments_of_the_whole(recipe in recipes(), cuts in proptest::collection::vec(any::<u32>(), 0..4)) {
        let original = recipe.build();
        let mut parts = vec![frame(&recipe)];
        let whole = parts[0].amount();
        for cut in cuts {
            let index = cut as usize % parts.len();
            let segments = parts[index].segments();
            if segments > 1 {
                let rest = parts[index].split_off(1 + cut % (segments - 1));
                parts.insert(index + 1, rest);
            }
        }
        let mut sum = crate::model::Amount::default();
        parts.iter().for_each(|part| sum += part.amount());
        prop_assert_eq!(sum, whole);
        // A packet of a single segment is no super-packet, but its virtio-net header need not say so until it
        // is split.
        if whole.segments > 1 {
            let expected = card(&original);
            prop_assert_eq!(expected.len() as u64, whole.segments);
            let segments: Vec<_> = parts.iter().flat_map(|part| card(&bytes_of(part))).collect();
            prop_assert_eq!(segments, expected);
        } else {
            prop_assert_eq!(bytes_of(&parts[0]), original);
        }
    }

    #[test]
    fn mutated_packets_cause_no_panic(
        recipe in recipes(),
        damage in proptest::collection::vec((0..160usize, any::<u8>()), 0..8),
        truncation in proptest::option::of(0..200usize),
        cut in any::<u32>(),
    ) {
        let mut bytes = recipe.build();
        for (place, value) in damage {
            if let Some(byte) = bytes.get_mut(place) {
                *byte = value;
            }
        }
        bytes.truncate(truncation.unwrap_or(bytes.len()));
        let original = bytes.to_vec();
        let Some(mut frame) = Frame::parse(bytes) else { return Ok(()) };
        prop_assert_eq!(bytes_of(&frame), original);
        let whole = frame.amount();
        if whole.segments > 1 {
            let rest = frame.split_off(1 + cut % (frame.segments() - 1));
            let mut sum = frame.amount();
            sum += rest.amount();
            prop_assert_eq!(sum, whole);
        }
    }

    #[test]
    fn random_bytes_cause_no_panic(noise in proptest::collection::vec(any::<u8>(), 0..200), cut in any::<u32>()) {
        if let Some(mut frame) = Frame::parse(BytesMut::from(&noise[..])) && frame.segments() > 1 {
            frame.split_off(1 + cut % (frame.segments() - 1));
        }
    }
}

#[test]
fn frame_counts_wire_segments_and_bytes() {
    let frame = frame(&Recipe::tcp(10 * 1448 + 100));
    assert_eq!((frame.segments(), frame.segment_bytes()), (11, 1500));
    assert_eq!(frame.bytes(), 10 * 1500 + 152);
}

#[test]
fn first_and_last_segment_keep_their_flags() {
    let mut front = frame(&Recipe { tcp_flags: 0x10 | 0x80 | 0x08 | 0x01, ..Recipe::tcp(3 * 1448) });
    let mut middle = front.split_off(1);
    let back = middle.split_off(1);
    let flags = |frame: &Frame| bytes_of(frame)[VnetHeader::LEN + 20 + 13];
    assert_eq!([flags(&front), flags(&middle), flags(&back)], [0x10 | 0x80, 0x10, 0x10 | 0x08 | 0x01]);
    let ids = [&front, &middle, &back].map(|frame| u16::from_be_bytes([bytes_of(frame)[14], bytes_of(frame)[15]]));
    assert_eq!(ids, [0xfffe, 0xffff, 0]);
}

#[test]
fn accurate_ecn_keeps_its_counter_on_every_segment() {
    let mut bytes = Recipe { tcp_flags: 0x90, ..Recipe::tcp(3000) }.build();
    bytes[1] &= !VnetHeader::GSO_ECN;
    let mut front = Frame::parse(bytes).unwrap();
    let back = front.split_off(1);
    assert_eq!(bytes_of(&back)[VnetHeader::LEN + 20 + 13], 0x90);
}

#[test]
fn inconsistent_headers_make_an_opaque_packet() {
    let segments_after = |change: fn(&mut [u8])| {
        let mut bytes = Recipe::tcp(5000).build();
        change(&mut bytes);
        Frame::parse(bytes).unwrap().segments()
    };
    assert_eq!(segments_after(|_| ()), 4);
    let flaws: [fn(&mut [u8]); 7] = [
        |b| b[0] = 0,                            // no checksum left to the device
        |b| b[1] = 4,                            // announced as IPv6
        |b| b[4..6].fill(0),                     // segments without payload
        |b| b[VnetHeader::LEN] = 0x44,           // an IPv4 header of 16 bytes
        |b| b[VnetHeader::LEN + 3] ^= 1,         // a total length that is not the packet's
        |b| b[VnetHeader::LEN + 6] |= 0x20,      // a fragment
        |b| b[VnetHeader::LEN + 20 + 12] = 0x40, // a TCP header of 16 bytes
    ];
    for (index, flaw) in flaws.into_iter().enumerate() {
        assert_eq!(segments_after(flaw), 1, "flaw {index}");
    }
}
