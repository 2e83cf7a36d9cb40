//! Datagrams (`docs/protocol/object.md` §3): a header of fixed length in the clear, and a body that is usually sealed.

/// Length of the header of a datagram, in bytes.
pub const HEADER_LEN: usize = 18;
/// Transmission numbers are below this.
pub const TRANSMISSION_END: u64 = 1 << 40;
/// Chunk numbers are below this.
pub const CHUNK_END: u64 = 1 << 40;
/// Packets of a chunk are fewer than this.
pub const INDEX_END: u32 = 1 << 24;

/// What the body of a datagram is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Bytes of the packet that the header names.
    Data,
    /// An acknowledgement ([`Ack`](super::Ack)). The header names no packet.
    Ack,
    /// A parity packet of the chunk that the header names; the index is a [`ParityNumber`](super::parity::ParityNumber).
    Parity,
    /// A check whether datagrams get through ([`Checking`](super::Checking)).
    Check,
    /// The answer to the check of this number.
    CheckAnswer,
}

/// Number of a packet: its chunk, and its place in the chunk. Packets of a chunk have the same length, except the last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct PacketNumber {
    /// Number of the chunk. Chunks are numbered from 0 in the order in which they are first sent.
    pub chunk: u64,
    /// Number of the packet within the chunk, from 0.
    pub index: u32,
}

/// Header of a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// What the body is.
    pub kind: Kind,
    /// The transfer, as the control stream has named it.
    pub transfer: u32,
    /// Number of this transmission: each end counts its own datagrams, whatever they carry, and never uses a number
    /// twice. It is the nonce of the seal. Checks and their answers are numbered by themselves, and have keys of their own.
    pub transmission: u64,
    /// The packet whose bytes follow.
    pub packet: PacketNumber,
}

impl Header {
    /// The header as bytes.
    pub fn encode(&self) -> [u8; HEADER_LEN] {
        let mut out = [0; HEADER_LEN];
        out[0] = match self.kind {
            Kind::Data => 1,
            Kind::Ack => 2,
            Kind::Parity => 3,
            Kind::Check => 4,
            Kind::CheckAnswer => 5,
        };
        out[1..5].copy_from_slice(&self.transfer.to_be_bytes());
        out[5..10].copy_from_slice(&self.transmission.to_be_bytes()[3..]);
        out[10..15].copy_from_slice(&self.packet.chunk.to_be_bytes()[3..]);
        out[15..18].copy_from_slice(&self.packet.index.to_be_bytes()[1..]);
        out
    }

    /// Parses the header at the start of `datagram`, and returns the body as well. `None` if it is not of this protocol.
    pub fn decode(datagram: &[u8]) -> Option<(Self, &[u8])> {
        let (header, body) = datagram.split_first_chunk::<HEADER_LEN>()?;
        let kind = match header[0] {
            1 => Kind::Data,
            2 => Kind::Ack,
            3 => Kind::Parity,
            4 => Kind::Check,
            5 => Kind::CheckAnswer,
            _ => return None,
        };
        let number =
            |range: std::ops::Range<usize>| header[range].iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
        let packet = PacketNumber { chunk: number(10..15), index: number(15..18) as u32 };
        Some((Self { kind, transfer: number(1..5) as u32, transmission: number(5..10), packet }, body))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn decoded_header_is_the_encoded_one(
            kind in prop::sample::select(vec![Kind::Data, Kind::Ack, Kind::Parity, Kind::Check, Kind::CheckAnswer]),
            transfer: u32,
            transmission in 0..TRANSMISSION_END,
            chunk in 0..CHUNK_END,
            index in 0..INDEX_END,
        ) {
            let header = Header { kind, transfer, transmission, packet: PacketNumber { chunk, index } };
            let datagram = [&header.encode()[..], b"body"].concat();
            prop_assert_eq!(Header::decode(&datagram), Some((header, &b"body"[..])));
        }

        #[test]
        fn any_bytes_are_a_header_or_none(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            if let Some((header, body)) = Header::decode(&bytes) {
                prop_assert_eq!([&header.encode()[..], body].concat(), bytes);
            }
        }
    }
}
