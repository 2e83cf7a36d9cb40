//! Messages of the control stream (`docs/protocol/object.md` §2): what must arrive.
//!
//! A message is two bytes of length, big-endian, and a CBOR array (RFC 8949): the number of its type, and its fields.
//! Further fields are skipped, so that later versions can add some.

use super::config::Shape;
use super::packet::CHUNK_END;
use minicbor::encode::Write;
use minicbor::encode::write::Cursor;
use minicbor::{Decoder, Encoder};
use std::time::Duration;

/// The version of the protocol that this end speaks.
pub const VERSION: u64 = 1;
/// Longest message, in bytes without its length.
pub const MESSAGE_MAX: usize = 2048;
/// Longest reason, in bytes.
const REASON_MAX: usize = 1024;
/// Bytes of the length before each message.
const PREFIX: usize = 2;

/// How datagrams are protected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Seal {
    /// Encrypted and authenticated (AES-128-GCM).
    #[default]
    Encrypt,
    /// Not at all: whoever can send to the ports can alter the bytes.
    None,
}

/// A message of the control stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message {
    /// The sender proposes a transfer.
    Hello {
        /// The sender's version.
        version: u64,
        /// What it proposes. `chunk_len` is the longest chunk that it would send.
        shape: Shape,
        /// The protection of datagrams.
        seal: Seal,
    },
    /// The receiver accepts it.
    Accept {
        /// The receiver's version.
        version: u64,
        /// Longest chunk, at most as long as proposed.
        chunk_len: u32,
        /// Chunks below this number may be sent.
        credit: u64,
        /// Bytes of datagrams for which the receiver's socket has room while nobody reads them.
        socket_room: u64,
        /// Length of packets, at most as long as proposed.
        packet_len: u32,
    },
    /// A chunk begins. Its datagrams may arrive before this.
    Chunk {
        /// Its number: one more than that of the chunk before.
        number: u64,
        /// Offset of its first byte in the object.
        offset: u64,
        /// Its length, in bytes.
        len: u32,
        /// CRC-32C of its bytes, as the sender has read them.
        checksum: u32,
    },
    /// Chunks below this number may be sent.
    Credit(u64),
    /// There are no more chunks.
    End {
        /// Their number.
        chunks: u64,
    },
    /// The receiver has everything.
    Done,
    /// One end gives up.
    Failed {
        /// Why, as a sentence.
        reason: String,
    },
}

/// A message that breaks the protocol.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    /// Longer than [`MESSAGE_MAX`].
    #[error("a message of {0} bytes was announced; at most {MESSAGE_MAX} are allowed")]
    TooLong(usize),
    /// Not what its type requires.
    #[error("malformed {0}")]
    Malformed(&'static str),
    /// An unknown type.
    #[error("a message of the unknown type {0}")]
    Unknown(u64),
}

/// Collects the bytes of a control stream, and returns its messages.
#[derive(Debug, Default)]
pub struct Inbox {
    bytes: Vec<u8>,
}

impl Inbox {
    /// Adds received bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// The next message, if all of it has arrived.
    ///
    /// # Errors
    /// The peer breaks the protocol.
    pub fn pop(&mut self) -> Result<Option<Message>, MessageError> {
        let Some((prefix, rest)) = self.bytes.split_first_chunk::<PREFIX>() else { return Ok(None) };
        let len = usize::from(u16::from_be_bytes(*prefix));
        if len > MESSAGE_MAX {
            return Err(MessageError::TooLong(len));
        }
        let Some(body) = rest.get(..len) else { return Ok(None) };
        let message = Message::decode(body)?;
        self.bytes.drain(..PREFIX + len);
        Ok(Some(message))
    }
}

impl Message {
    /// The name of its type.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Hello { .. } => "HELLO",
            Self::Accept { .. } => "ACCEPT",
            Self::Chunk { .. } => "CHUNK",
            Self::Credit(_) => "CREDIT",
            Self::End { .. } => "END",
            Self::Done => "DONE",
            Self::Failed { .. } => "FAILED",
        }
    }

    /// Appends the message, with its length, to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut body = [0; MESSAGE_MAX];
        let mut e = Encoder::new(Cursor::new(&mut body[..]));
        // Every message is shorter than the buffer.
        let _ = self.write(&mut e);
        let len = e.writer().position();
        out.extend_from_slice(&(len as u16).to_be_bytes());
        out.extend_from_slice(&body[..len]);
    }

    fn write<W: Write>(&self, e: &mut Encoder<W>) -> Result<(), minicbor::encode::Error<W::Error>> {
        match self {
            Self::Hello { version, shape, seal } => {
                let Shape { transfer, packet_len, chunk_len, ack_packets, ack_interval } = *shape;
                e.array(8)?.u8(1)?.u64(*version)?.u32(transfer)?.u32(packet_len)?.u32(chunk_len)?.u32(ack_packets)?;
                e.u64(u64::try_from(ack_interval.as_micros()).unwrap_or(u64::MAX))?;
                e.u8(match seal {
                    Seal::Encrypt => 1,
                    Seal::None => 0,
                })?;
            }
            Self::Accept { version, chunk_len, credit, socket_room, packet_len } => {
                e.array(6)?.u8(2)?.u64(*version)?.u32(*chunk_len)?.u64(*credit)?.u64(*socket_room)?.u32(*packet_len)?;
            }
            Self::Chunk { number, offset, len, checksum } => {
                e.array(5)?.u8(3)?.u64(*number)?.u64(*offset)?.u32(*len)?.u32(*checksum)?;
            }
            Self::Credit(credit) => {
                e.array(2)?.u8(4)?.u64(*credit)?;
            }
            Self::End { chunks } => {
                e.array(2)?.u8(5)?.u64(*chunks)?;
            }
            Self::Done => {
                e.array(1)?.u8(6)?;
            }
            Self::Failed { reason } => {
                let end = reason.floor_char_boundary(REASON_MAX);
                e.array(2)?.u8(7)?.str(&reason[..end])?;
            }
        }
        Ok(())
    }

    /// Parses the message in `body`, the bytes after the length.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn decode(body: &[u8]) -> Result<Self, MessageError> {
        let mut d = Decoder::new(body);
        let fields = d.array().ok().flatten().ok_or(MessageError::Malformed("message"))?;
        let kind = d.u64().map_err(|_| MessageError::Malformed("message"))?;
        let read = match kind {
            1 => ("HELLO", hello as Read),
            2 => ("ACCEPT", accept as Read),
            3 => ("CHUNK", chunk as Read),
            4 => ("CREDIT", (|d| Some(Self::Credit(number(d)?))) as Read),
            5 => ("END", (|d| Some(Self::End { chunks: number(d)? })) as Read),
            6 => ("DONE", (|_| Some(Self::Done)) as Read),
            7 => ("FAILED", failed as Read),
            other => return Err(MessageError::Unknown(other)),
        };
        let (name, read) = read;
        let message = read(&mut d).filter(|message| message.fields() <= fields);
        message.ok_or(MessageError::Malformed(name))
    }

    /// Number of items of the array.
    fn fields(&self) -> u64 {
        match self {
            Self::Hello { .. } => 8,
            Self::Accept { .. } => 6,
            Self::Chunk { .. } => 5,
            Self::Credit(_) | Self::End { .. } | Self::Failed { .. } => 2,
            Self::Done => 1,
        }
    }
}

type Read = fn(&mut Decoder<'_>) -> Option<Message>;

fn hello(d: &mut Decoder<'_>) -> Option<Message> {
    let version = d.u64().ok()?;
    let (transfer, packet_len, chunk_len) = (d.u32().ok()?, d.u32().ok()?, d.u32().ok()?);
    let (ack_packets, ack_interval) = (d.u32().ok()?, Duration::from_micros(d.u64().ok()?));
    let seal = match d.u8().ok()? {
        1 => Seal::Encrypt,
        0 => Seal::None,
        _ => return None,
    };
    let shape = Shape { transfer, packet_len, chunk_len, ack_packets, ack_interval };
    Some(Message::Hello { version, shape, seal })
}

fn accept(d: &mut Decoder<'_>) -> Option<Message> {
    let (version, chunk_len, credit) = (d.u64().ok()?, d.u32().ok()?, number(d)?);
    let (socket_room, packet_len) = (d.u64().ok()?, d.u32().ok()?);
    Some(Message::Accept { version, chunk_len, credit, socket_room, packet_len })
}

fn chunk(d: &mut Decoder<'_>) -> Option<Message> {
    Some(Message::Chunk { number: number(d)?, offset: d.u64().ok()?, len: d.u32().ok()?, checksum: d.u32().ok()? })
}

fn failed(d: &mut Decoder<'_>) -> Option<Message> {
    let reason = d.str().ok().filter(|reason| reason.len() <= REASON_MAX)?;
    Some(Message::Failed { reason: reason.to_owned() })
}

/// The number of a chunk, or of chunks.
fn number(d: &mut Decoder<'_>) -> Option<u64> {
    d.u64().ok().filter(|number| *number <= CHUNK_END)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn messages() -> Vec<Message> {
        let ack_interval = Duration::from_millis(10);
        let shape = Shape { transfer: u32::MAX, packet_len: 1438, chunk_len: 1 << 20, ack_packets: 64, ack_interval };
        vec![
            Message::Hello { version: 1, shape, seal: Seal::Encrypt },
            Message::Accept { version: 7, chunk_len: 4096, credit: 64, socket_room: 1 << 20, packet_len: 1422 },
            Message::Chunk { number: 3, offset: u64::MAX, len: 9, checksum: 0xdead_beef },
            Message::Credit(CHUNK_END),
            Message::End { chunks: 0 },
            Message::Done,
            Message::Failed { reason: "the disk is full".to_owned() },
        ]
    }

    #[test]
    fn messages_arrive_as_they_were_sent_however_they_are_cut() {
        let mut bytes = Vec::new();
        messages().iter().for_each(|message| message.encode(&mut bytes));
        let (mut inbox, mut came) = (Inbox::default(), Vec::new());
        for byte in bytes {
            inbox.push(&[byte]);
            came.extend(inbox.pop().unwrap());
        }
        assert_eq!(came, messages());
    }

    #[test]
    fn later_versions_may_add_fields() {
        assert_eq!(Message::decode(&[0x82, 6, 0x61, b'x']), Ok(Message::Done));
        assert_eq!(Message::decode(&[0x81, 24, 99]), Err(MessageError::Unknown(99)));
        // An array that claims fewer fields than the type has.
        assert_eq!(Message::decode(&[0x81, 4, 5]), Err(MessageError::Malformed("CREDIT")));
    }

    #[test]
    fn longer_reasons_are_cut() {
        let mut bytes = Vec::new();
        Message::Failed { reason: "ü".repeat(2000) }.encode(&mut bytes);
        let mut inbox = Inbox::default();
        inbox.push(&bytes);
        assert_eq!(inbox.pop(), Ok(Some(Message::Failed { reason: "ü".repeat(REASON_MAX / 2) })));
    }

    proptest! {
        #[test]
        fn any_bytes_are_messages_or_errors(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut inbox = Inbox::default();
            inbox.push(&bytes);
            while let Ok(Some(_)) = inbox.pop() {}
        }
    }
}
