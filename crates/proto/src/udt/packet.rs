//! Packets on the wire: a header of 16 bytes, big-endian, and what follows it.
//!
//! ```text
//!  data      0 │ sequence number 31          control   1 │ type 15 │ reserved 16
//!            FF O │ message number 29                  information 32
//!            timestamp, µs                              timestamp, µs
//!            destination socket id                      destination socket id
//! ```
//!
//! Decoding borrows, allocates nothing, and refuses whatever is too short for its type. Bytes after a packet's last field
//! are ignored, since libudt pads some packets.

use super::handshake::{self, Handshake};
use super::loss_list::LossList;
use super::seq::{MessageNumber, Seq};
use super::words::{words, write_words};

/// Bytes of every packet's header.
pub const HEADER_LEN: usize = 16;
/// Longest control packet that this engine sends: an acknowledgement or a handshake. Loss reports are bounded by the MSS.
pub const CONTROL_LEN_MAX: usize = HEADER_LEN + handshake::LEN;

/// One packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packet<'a> {
    /// Microseconds on the sender's clock since its connection began, modulo 2³².
    pub timestamp: u32,
    /// The receiver's socket; 0 in the first packets of a handshake.
    pub destination: u32,
    /// What it says.
    pub body: Body<'a>,
}

/// What a packet says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Body<'a> {
    /// Part of a stream or message.
    Data {
        /// Its number.
        seq: Seq,
        /// Its place in a message.
        place: Place,
        /// Its bytes.
        payload: &'a [u8],
    },
    /// Opens a connection.
    Handshake(Handshake),
    /// Shows that the sender is alive.
    KeepAlive,
    /// What has arrived.
    Ack {
        /// The number that an ACK2 repeats; 0 in light acknowledgements, which get none.
        number: u32,
        /// The report.
        report: AckReport,
    },
    /// What is missing.
    Nak(LossList<'a>),
    /// The delay of packets is growing.
    DelayWarning,
    /// The sender is gone.
    Shutdown,
    /// An acknowledgement has arrived.
    Ack2 {
        /// Its number.
        number: u32,
    },
    /// A message will never be complete.
    Drop {
        /// The message.
        message: MessageNumber,
        /// Its first packet.
        first: Seq,
        /// Its last packet.
        last: Seq,
    },
    /// An application has failed on the sender's side.
    PeerError {
        /// libudt's error number.
        code: u32,
    },
    /// A type that is reserved for users, or not known.
    Other {
        /// The type.
        kind: u16,
    },
}

/// A data packet's place in its message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place(u32);

/// An acknowledgement: everything before `next` has arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AckReport {
    /// The first packet that has not arrived.
    pub next: Seq,
    /// What acknowledgements of 16 bytes and more add.
    pub path: Option<PathReport>,
    /// What acknowledgements of 24 bytes add.
    pub rates: Option<RateReport>,
    /// What acknowledgements of 28 bytes add, which libudt does not send and takes for ones of 24: the number after the
    /// last packet that has arrived, whatever is missing before it.
    pub end: Option<Seq>,
}

/// A receiver's view of the path and of its buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PathReport {
    /// Round-trip time, µs.
    pub rtt: u32,
    /// Its variation, µs.
    pub rtt_var: u32,
    /// Packets that fit into the receiver's buffer, from [`AckReport::next`] on.
    pub room: u32,
}

/// A receiver's view of rates, packets per second; 0 where it does not know.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RateReport {
    /// At which packets arrive.
    pub receiving: u32,
    /// At which they could.
    pub capacity: u32,
}

/// Why bytes are no packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PacketError {
    /// Fewer bytes than the header, or than the type asks for.
    #[error("a packet of {len} bytes; {expected} were expected")]
    Short {
        /// Bytes there are.
        len: usize,
        /// Bytes there should be at least.
        expected: usize,
    },
    /// An acknowledgement, handshake or loss report whose length is none that exists.
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
    /// Reads a packet.
    ///
    /// # Errors
    /// [`PacketError`]; the packet is to be ignored.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, PacketError> {
        let short = PacketError::Short { len: bytes.len(), expected: HEADER_LEN };
        let (header, rest) = bytes.split_first_chunk::<HEADER_LEN>().ok_or(short)?;
        let [first, second, timestamp, destination] = words(header);
        let body = if first & CONTROL == 0 {
            Body::Data { seq: Seq::new(first), place: Place(second), payload: rest }
        } else {
            control((first >> 16) as u16 & 0x7fff, second, rest)?
        };
        Ok(Self { timestamp, destination, body })
    }

    /// The socket that a packet is for, without a look at the rest; `None` if there is no header.
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
            // libudt cannot send a control packet without a body, and so pads it.
            _ => write_words(rest, &[0])?,
        };
        Some(HEADER_LEN + len)
    }
}

/// Puts a NAK's header before the list of `list_len` bytes that is already in its place, and returns the packet's length.
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
    /// 28 bytes, 24, 16 or, of what libudt calls light, 4.
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
        // Between the lengths there is none that could be told from a cut one.
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

impl Place {
    /// The place of a packet that belongs to no message.
    pub(super) const NONE: Self = Self(0);
    const FIRST: u32 = 1 << 31;
    const LAST: u32 = 1 << 30;
    const IN_ORDER: u32 = 1 << 29;

    /// A place in message `number`.
    pub fn new(number: MessageNumber, first: bool, last: bool, in_order: bool) -> Self {
        let flag = |on: bool, bit: u32| if on { bit } else { 0 };
        Self(number.get() | flag(first, Self::FIRST) | flag(last, Self::LAST) | flag(in_order, Self::IN_ORDER))
    }

    /// The message.
    pub const fn message(self) -> MessageNumber {
        MessageNumber::new(self.0)
    }

    /// Whether it begins the message.
    pub const fn is_first(self) -> bool {
        self.0 & Self::FIRST != 0
    }

    /// Whether it ends the message.
    pub const fn is_last(self) -> bool {
        self.0 & Self::LAST != 0
    }

    /// Whether the message is to be delivered after all before it.
    pub const fn is_in_order(self) -> bool {
        self.0 & Self::IN_ORDER != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn data_is_as_libudt_sends_it() {
        // Word by word: sequence number, first and last packet of message 1, time stamp, socket; then the bytes.
        let wire = [
            0x2a, 0x41, 0xd6, 0xe7, 0xc0, 0, 0, 1, 0, 0, 0x20, 0x0d, 0x3b, 0x9a, 0xca, 0x01, b'h', b'e', b'l', b'l',
            b'o',
        ];
        let place = Place::new(MessageNumber::FIRST, true, true, false);
        let body = Body::Data { seq: Seq::new(0x2a41_d6e7), place, payload: b"hello" };
        let packet = Packet { timestamp: 0x200d, destination: 0x3b9a_ca01, body };
        assert_eq!(Packet::decode(&wire), Ok(packet));
        let mut out = [0; 64];
        assert_eq!(packet.encode(&mut out), Some(wire.len()));
        assert_eq!(out[..wire.len()], wire);
    }

    #[test]
    fn acknowledgements_come_in_four_lengths() {
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
    fn places_keep_their_parts() {
        let place = Place::new(MessageNumber::MAX, false, true, true);
        assert!(!place.is_first() && place.is_last() && place.is_in_order());
        assert_eq!(place.message(), MessageNumber::MAX);
    }

    proptest! {
        #[test]
        fn what_decodes_encodes_to_what_decodes_the_same(bytes: Vec<u8>, kind in 0u8..10, control: bool) {
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
