//! Feeds any bytes to the cutting of super-packets, as a TUN device might hand them over, and cuts them between any of their
//! segments: the parts must stand for exactly what the whole stood for.
//!
//! Input: a byte whose lowest bit says whether lengths and offsets are to be put right first, without which few inputs get
//! past the first checks; four bytes that say where to cut; then the virtio-net header and the packet.
#![no_main]

use bytes::BytesMut;
use libfuzzer_sys::fuzz_target;
use phoebus_wan::model::{Amount, Packet};
use phoebus_wan::packet::{Frame, GsoType, Headers, Transport, VnetHeader, internet_checksum};

const VNET: usize = VnetHeader::LEN;
const TCP: u8 = 6;
const UDP: u8 = 17;
/// Flags of TCP that not all segments repeat.
const FIN: u8 = 0x01;
const PSH: u8 = 0x08;
const CWR: u8 = 0x80;

fuzz_target!(|data: &[u8]| {
    let Some((&[mode, ref cuts @ ..], packet)) = data.split_first_chunk::<5>() else { return };
    let mut bytes = packet.to_vec();
    if mode & 1 == 1 {
        put_right(&mut bytes);
    }
    let Some(frame) = Frame::parse(BytesMut::from(&bytes[..])) else {
        assert!(bytes.len() < VNET, "only what is too short for a header is no frame");
        return;
    };
    assert_eq!(frame.parts().concat(), bytes, "an uncut frame is what was read");
    let whole = frame.amount();
    let mut parts = vec![frame];
    for cut in cuts {
        let index = usize::from(*cut) % parts.len();
        let segments = parts[index].segments();
        if segments > 1 {
            let rest = parts[index].split_off(1 + u32::from(*cut) % (segments - 1));
            parts.insert(index + 1, rest);
        }
    }
    let mut sum = Amount::default();
    parts.iter().for_each(|part| sum += part.amount());
    assert_eq!(sum, whole, "nothing is lost or gained");
    if parts.len() > 1 {
        stand_for(&parts, &bytes);
    }
});

/// Checks the parts of a super-packet against it.
fn stand_for(parts: &[Frame], whole: &[u8]) {
    let vnet = VnetHeader::read(whole).expect("it was parsed");
    let headers = Headers::of_super_packet(&vnet, &whole[VNET..]).expect("it was cut");
    let Headers { v6, transport, transport_at, payload_at } = headers;
    let ecn = vnet.gso_type & VnetHeader::GSO_ECN != 0;
    let payload = &whole[VNET + payload_at..];
    let checksum_at = transport_at + usize::from(vnet.csum_offset);
    // The sum of a pseudo-header without its length, in one's complement.
    let pseudo = |ip: &[u8]| {
        let (sum, len) = (u32::from(u16_at(ip, checksum_at)), (ip.len() - transport_at) as u32);
        (sum + 0xffff - len) % 0xffff
    };
    let original = &whole[VNET..];
    let (mut at, mut segments) = (0, 0);
    for (index, part) in parts.iter().enumerate() {
        let bytes = part.parts().concat();
        let (ip, vnet) = (&bytes[VNET..], VnetHeader::read(&bytes).expect("it has a header"));
        assert_eq!(usize::from(vnet.hdr_len), payload_at);
        assert_eq!(vnet.flags, VnetHeader::NEEDS_CSUM);
        let own = &ip[payload_at..];
        assert!(!own.is_empty());
        assert_eq!(own, &payload[at..at + own.len()], "the payload goes on where it stopped");
        if v6 {
            assert_eq!(usize::from(u16_at(ip, 4)), ip.len() - 40);
        } else {
            assert_eq!(usize::from(u16_at(ip, 2)), ip.len());
            assert_eq!(u16_at(ip, 4), u16_at(original, 4).wrapping_add(segments as u16), "a number for each segment");
            assert_eq!(internet_checksum(&ip[..transport_at]), 0, "the header's checksum holds");
        }
        match transport {
            Transport::Udp => assert_eq!(usize::from(u16_at(ip, transport_at + 4)), ip.len() - transport_at),
            Transport::Tcp => {
                let first = u32_at(original, transport_at + 4);
                assert_eq!(u32_at(ip, transport_at + 4), first.wrapping_add(at as u32));
                let only_last = if index + 1 < parts.len() { FIN | PSH } else { 0 };
                let only_first = if index > 0 && ecn { CWR } else { 0 };
                assert_eq!(ip[transport_at + 13], original[transport_at + 13] & !only_last & !only_first);
            }
        }
        assert_eq!(pseudo(ip), pseudo(original), "the partial checksum follows the length");
        at += own.len();
        segments += part.segments();
        let again = Frame::parse(BytesMut::from(&bytes[..])).expect("a part is a frame");
        assert_eq!((again.segments(), again.bytes()), (part.segments(), part.bytes()), "on the next link too");
    }
    assert_eq!(at, payload.len());
}

/// Makes the lengths of a packet agree, and its virtio-net header say how to segment it; all else stays as it is.
fn put_right(bytes: &mut [u8]) {
    let Some((vnet, ip)) = bytes.split_first_chunk_mut::<VNET>() else { return };
    // 20 to be told apart, 40 for IPv6, and a little to stand behind.
    if ip.len() < 64 || ip.len() > 0xffff {
        return;
    }
    let len = ip.len();
    let v6 = ip[0] >> 4 == 6;
    let (protocol_at, transport_at) = if v6 {
        put(ip, 4, len - 40);
        let (mut next_at, mut at) = (6, 40);
        while matches!(ip[next_at], 0 | 43 | 60) && at + 8 < len {
            next_at = at;
            at += (usize::from(ip[at + 1]) + 1) * 8;
        }
        (next_at, at)
    } else {
        ip[0] = 0x40 | (ip[0] & 0x0f).max(5);
        put(ip, 2, len);
        (ip[6], ip[7]) = (ip[6] & 0xc0, 0);
        (9, usize::from(ip[0] & 0x0f) * 4)
    };
    if transport_at + 20 >= len {
        return;
    }
    let tcp = ip[protocol_at] & 1 == 0;
    ip[protocol_at] = if tcp { TCP } else { UDP };
    if tcp {
        ip[transport_at + 12] = ip[transport_at + 12].max(0x50);
    } else {
        put(ip, transport_at + 4, len - transport_at);
    }
    let mut header = VnetHeader::read(&vnet[..]).expect("it has this length");
    let gso = match (tcp, v6) {
        (true, false) => GsoType::TcpV4,
        (true, true) => GsoType::TcpV6,
        (false, _) => GsoType::Udp,
    };
    header.flags = VnetHeader::NEEDS_CSUM;
    header.gso_type = u8::from(gso) | header.gso_type & VnetHeader::GSO_ECN;
    header.gso_size = header.gso_size.max(1);
    header.csum_start = transport_at as u16;
    header.csum_offset = if tcp { 16 } else { 6 };
    *vnet = header.to_bytes();
}

fn put(bytes: &mut [u8], at: usize, value: usize) {
    bytes[at..at + 2].copy_from_slice(&(value as u16).to_be_bytes());
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from(u16_at(bytes, at)) << 16 | u32::from(u16_at(bytes, at + 2))
}
