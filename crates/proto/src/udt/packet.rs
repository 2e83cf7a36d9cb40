//! The wire format of packets: a header of 16 bytes, big-endian, and a body.
//!
//! ```text
//!  data      0 │ sequence number 31          control   1 │ type 15 │ reserved 16
//!            FF O │ message number 29                  information 32
//!            timestamp, µs                              timestamp, µs
//!            destination socket id                      destination socket id
//! ```
//!
//! The decoder borrows, does not allocate, and refuses packets that are too short for their type. It ignores bytes
//! after a packet's last field, because libudt pads some packets.

use super::handshake::{self, Handshake};
use super::loss_list::LossList;
use super::seq::{MessageNumber, Seq};
use super::words::{words, write_words};

/// Length of the packet header, in bytes.
pub const HEADER_LEN: usize = 16;
/// Longest control packet that this engine sends: an acknowledgement or a handshake. Loss reports are bounded by the
/// MSS.
pub const CONTROL_LEN_MAX: usize = HEADER_LEN + handshake::LEN;

/// One packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packet<'a> {
    /// Microseconds on the sender's clock since its connection began, modulo 2³².
    pub timestamp: u32,
    /// The receiver's socket id; 0 in the first packets of a handshake.
    pub destination: u32,
    /// Type and contents.
    pub body: Body<'a>,
}

/// Type and contents of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Body<'a> {
    /// Part of a stream or message.
    Data {
        /// Sequence number.
        seq: Seq,
        /// Position in the message.
        place: MessagePosition,
        /// User data.
        payload: &'a [u8],
    },
    /// Opens a connection.
    Handshake(Handshake),
    /// Tells that the sender is alive.
    KeepAlive,
    /// Acknowledgement of received packets.
    Ack {
        /// The number that an ACK2 repeats; 0 in light acknowledgements, which no ACK2 answers.
        number: u32,
        /// The report.
        report: AckReport,
    },
    /// Report of lost packets.
    Nak(LossList<'a>),
    /// The delay of packets is growing.
    DelayWarning,
    /// The sender has closed the connection.
    Shutdown,
    /// Acknowledgement of an acknowledgement, by which the receiver measures the round-trip time.
    Ack2 {
        /// The number of the ACK.
        number: u32,
    },
    /// The sender has dropped a message.
    Drop {
        /// The message.
        message: MessageNumber,
        /// Its first packet.
        first: Seq,
        /// Its last packet.
        last: Seq,
    },
    /// The sender's application has failed.
    PeerError {
        /// libudt's error number.
        code: u32,
    },
    /// A user-defined or unknown type.
    Other {
        /// The type.
        kind: u16,
    },
}

/// A data packet's position in its message: message number and flags.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MessagePosition(u32);

/// An acknowledgement: everything before `next` has arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AckReport {
    /// The first packet that has not arrived.
    pub next: Seq,
    /// Present in acknowledgements of at least 16 bytes.
    pub path: Option<PathReport>,
    /// Present in acknowledgements of at least 24 bytes.
    pub rates: Option<RateReport>,
    /// Present in acknowledgements of 28 bytes, which libudt does not send and reads as 24 bytes: the number after the
    /// highest packet that has arrived, including packets after gaps.
    pub end: Option<Seq>,
}

/// A receiver's measurements of the path, and the room in its buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PathReport {
    /// Round-trip time, µs.
    pub rtt: u32,
    /// Variation of the round-trip time, µs.
    pub rtt_var: u32,
    /// Packets that fit into the receiver's buffer, from [`AckReport::next`] on.
    pub room: u32,
}

/// A receiver's measurements of rates, in packets per second; 0 if not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RateReport {
    /// Arrival rate.
    pub receiving: u32,
    /// Capacity of the path, estimated from packet pairs.
    pub capacity: u32,
}

/// Why bytes do not decode as a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PacketError {
    /// The packet is shorter than the header.
    #[error("a packet of {len} bytes; {expected} were expected")]
    Short {
        /// Length in bytes.
        len: usize,
        /// Smallest length in bytes.
        expected: usize,
    },
    /// A control packet whose body has an invalid length.
    #[error("a packet of type {kind} with a body of {len} bytes")]
    Length {
        /// The type.
        kind: u16,
        /// Bytes after the header.
        len: usize,
    },
}

const HANDSHAKE: u16 = 0;
const KEEP_ALIVE: u16 = 1;
const ACK: u16 = 2;
const NAK: u16 = 3;
const DELAY_WARNING: u16 = 4;
const SHUTDOWN: u16 = 5;
const ACK2: u16 = 6;
const DROP: u16 = 7;
const PEER_ERROR: u16 = 8;
const CONTROL: u32 = 1 << 31;

impl<'a> Packet<'a> {
    /// Decodes a packet.
    ///
    /// # Errors
    /// [`PacketError`]. The receiver must ignore the packet.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, PacketError> {
        let short = PacketError::Short { len: bytes.len(), expected: HEADER_LEN };
        let (header, rest) = bytes.split_first_chunk::<HEADER_LEN>().ok_or(short)?;
        let [first, second, timestamp, destination] = words(header);
        let body = if first & CONTROL == 0 {
            Body::Data { seq: Seq::new(first), place: MessagePosition(second), payload: rest }
        } else {
            control((first >> 16) as u16 & 0x7fff, second, rest)?
        };
        Ok(Self { timestamp, destination, body })
    }

    /// The destination socket id, without decoding the rest; `None` if the header is incomplete.
    pub fn destination_of(bytes: &[u8]) -> Option<u32> {
        bytes.first_chunk::<HEADER_LEN>().map(|header| words::<4>(header)[3])
    }

    /// Writes the packet into `out` and returns its length; `None` if it does not fit.
    pub fn encode(&self, out: &mut [u8]) -> Option<usize> {
        let (kind, information) = match self.body {
            Body::Data { seq, place, payload } => {
                let len = HEADER_LEN + payload.len();
                let out = out.get_mut(..len)?;
                write_words(out, &[seq.get(), place.0, self.timestamp, self.destination])?;
                out[HEADER_LEN..].copy_from_slice(payload);
                return Some(len);
            }
            Body::Handshake(_) => (HANDSHAKE, 0),
            Body::KeepAlive => (KEEP_ALIVE, 0),
            Body::Ack { number, .. } => (ACK, number),
            Body::Nak(_) => (NAK, 0),
            Body::DelayWarning => (DELAY_WARNING, 0),
            Body::Shutdown => (SHUTDOWN, 0),
            Body::Ack2 { number } => (ACK2, number),
            Body::Drop { message, .. } => (DROP, message.get()),
            Body::PeerError { code } => (PEER_ERROR, code),
            Body::Other { kind } => (kind, 0),
        };
        write_words(out, &[CONTROL | u32::from(kind) << 16, information, self.timestamp, self.destination])?;
        let rest = &mut out[HEADER_LEN..];
        let len = match self.body {
            Body::Handshake(handshake) => handshake.encode(rest)?,
            Body::Ack { report, .. } => report.encode(rest)?,
            Body::Nak(list) => list.copy_to(rest)?,
            Body::Drop { first, last, .. } => write_words(rest, &[first.get(), last.get()])?,
            // libudt never sends a control packet without a body, so pad with one word.
            _ => write_words(rest, &[0])?,
        };
        Some(HEADER_LEN + len)
    }
}

/// Writes the header of a NAK whose list of `list_len` bytes is already in place, and returns the packet's length.
pub(super) fn nak_header(out: &mut [u8], list_len: usize, timestamp: u32, destination: u32) -> Option<usize> {
    write_words(out, &[CONTROL | u32::from(NAK) << 16, 0, timestamp, destination])?;
    Some(HEADER_LEN + list_len)
}

fn control(kind: u16, information: u32, rest: &[u8]) -> Result<Body<'_>, PacketError> {
    let length = PacketError::Length { kind, len: rest.len() };
    Ok(match kind {
        HANDSHAKE => Body::Handshake(Handshake::decode(rest).ok_or(length)?),
        KEEP_ALIVE => Body::KeepAlive,
        ACK => Body::Ack { number: information, report: AckReport::decode(rest).ok_or(length)? },
        NAK => Body::Nak(LossList::new(rest).ok_or(length)?),
        DELAY_WARNING => Body::DelayWarning,
        SHUTDOWN => Body::Shutdown,
        ACK2 => Body::Ack2 { number: information },
        DROP => {
            let [first, last] = words(rest.first_chunk::<8>().ok_or(length)?);
            Body::Drop { message: MessageNumber::new(information), first: Seq::new(first), last: Seq::new(last) }
        }
        PEER_ERROR => Body::PeerError { code: information },
        kind => Body::Other { kind },
    })
}

impl AckReport {
    /// Decodes the four forms: 28, 24, 16 bytes, and 4 bytes, which libudt calls a light acknowledgement.
    fn decode(bytes: &[u8]) -> Option<Self> {
        let next = Seq::new(words::<1>(bytes.first_chunk::<4>()?)[0]);
        let path = bytes.first_chunk::<16>().map(|fields| {
            let [_, rtt, rtt_var, room] = words(fields);
            PathReport { rtt, rtt_var, room }
        });
        let rates = bytes.first_chunk::<24>().map(|fields| {
            let [.., receiving, capacity] = words::<6>(fields);
            RateReport { receiving, capacity }
        });
        let end = bytes.first_chunk::<28>().map(|fields| Seq::new(words::<7>(fields)[6]));
        // Other lengths are indistinguishable from a truncated packet.
        matches!(bytes.len(), 4 | 16 | 24..).then_some(Self { next, path, rates, end })
    }

    fn encode(&self, out: &mut [u8]) -> Option<usize> {
        let next = self.next.get();
        match (self.path, self.rates) {
            (None, _) => write_words(out, &[next]),
            (Some(PathReport { rtt, rtt_var, room }), None) => write_words(out, &[next, rtt, rtt_var, room]),
            (Some(PathReport { rtt, rtt_var, room }), Some(RateReport { receiving, capacity })) => {
                let len = write_words(out, &[next, rtt, rtt_var, room, receiving, capacity])?;
                Some(len + self.end.map_or(Some(0), |end| write_words(&mut out[len..], &[end.get()]))?)
            }
        }
    }
}

impl MessagePosition {
    /// The position of a packet in a stream, without a message.
    pub(super) const NONE: Self = Self(0);
    const FIRST: u32 = 1 << 31;
    const LAST: u32 = 1 << 30;
    const IN_ORDER: u32 = 1 << 29;

    /// A position in message `number`.
    pub fn new(number: MessageNumber, first: bool, last: bool, in_order: bool) -> Self {
        let flag = |on: bool, bit: u32| if on { bit } else { 0 };
        Self(number.get() | flag(first, Self::FIRST) | flag(last, Self::LAST) | flag(in_order, Self::IN_ORDER))
    }

    /// The message's number.
    pub const fn message(self) -> MessageNumber {
        MessageNumber::new(self.0)
    }

    /// Whether the packet begins the message.
    pub const fn is_first(self) -> bool {
        self.0 & Self::FIRST != 0
    }

    /// Whether the packet ends the message.
    pub const fn is_last(self) -> bool {
        self.0 & Self::LAST != 0
    }

    /// Whether the message must be delivered after all messages before it.
    pub const fn is_in_order(self) -> bool {
        self.0 & Self::IN_ORDER != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn data_packet_matches_a_capture_of_libudt() {
        // Word by word: sequence number, first and last packet of message 1, time stamp, socket; then the bytes.
        let wire = [
            0x2a, 0x41, 0xd6, 0xe7, 0xc0, 0, 0, 1, 0, 0, 0x20, 0x0d, 0x3b, 0x9a, 0xca, 0x01, b'h', b'e', b'l', b'l',
            b'o',
        ];
        let place = MessagePosition::new(MessageNumber::FIRST, true, true, false);
        let body = Body::Data { seq: Seq::new(0x2a41_d6e7), place, payload: b"hello" };
        let packet = Packet { timestamp: 0x200d, destination: 0x3b9a_ca01, body };
        assert_eq!(Packet::decode(&wire), Ok(packet));
        let mut out = [0; 64];
        assert_eq!(packet.encode(&mut out), Some(wire.len()));
        assert_eq!(out[..wire.len()], wire);
    }

    #[test]
    fn acknowledgements_decode_in_four_lengths_only() {
        let mut wire = [0x80, 2, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 7].to_vec();
        for word in 1..=7u32 {
            wire.extend(word.to_be_bytes());
            let len = wire.len() - HEADER_LEN;
            let decoded = Packet::decode(&wire);
            if [4, 16, 24, 28].contains(&len) {
                let Ok(Packet { body: Body::Ack { number: 9, report }, .. }) = decoded else { panic!("{decoded:?}") };
                assert_eq!((report.path.is_some(), report.rates.is_some()), (len >= 16, len >= 24));
                assert_eq!(report.end, (len == 28).then_some(Seq::new(7)));
            } else {
                assert_eq!(decoded, Err(PacketError::Length { kind: 2, len }));
            }
        }
    }

    #[test]
    fn place_keeps_message_number_and_flags() {
        let place = MessagePosition::new(MessageNumber::MAX, false, true, true);
        assert!(!place.is_first() && place.is_last() && place.is_in_order());
        assert_eq!(place.message(), MessageNumber::MAX);
    }

    proptest! {
        #[test]
        fn decoded_packets_survive_reencoding(bytes: Vec<u8>, kind in 0u8..10, control: bool) {
            let mut bytes = bytes;
            if let [b0, b1, ..] = &mut bytes[..] {
                (*b0, *b1) = if control { (0x80, kind) } else { (*b0 & 0x7f, *b1) };
            }
            if let Ok(packet) = Packet::decode(&bytes) {
                let mut out = vec![0; bytes.len() + 8];
                let len = packet.encode(&mut out).unwrap();
                prop_assert_eq!(Packet::decode(&out[..len]), Ok(packet));
                prop_assert_eq!(Packet::destination_of(&bytes), Some(packet.destination));
                prop_assert_eq!(packet.encode(&mut out[..len - 1]), None);
            }
        }
    }
}
