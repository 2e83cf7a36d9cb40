//! Extended block mode in which either end may connect, MODE X (GFD.47, section 2).
//!
//! A block is `u8 descriptor | u64 count | u64 offset | u64 transaction`, big-endian, and `count` bytes. The receiver says `READY`, in
//! text, on each connection before anything comes over it, and `BYE` when it has come to its end, which is a block with EOD. At least one
//! block of a transfer has EOF: after it nothing begins on a connection that was not ready before. So the transfer is complete when
//! that has come, and each connection that was told READY has had its EOD: the receiver knows all of them, and no count is needed.
//! `CLOSE` asks the sender to end a connection early, and `RESEND` for a block once more.
//!
//! Where the text leaves something open this is as dCache has it (`ModeX.java`), which is the only implementation there is.
//!
//! [`Channel`] reads one connection at the receiver, [`Words`] what the receiver says.

use super::block::{Wants, flag};

/// The bytes before a block's own.
pub const HEADER: usize = 25;

/// The descriptors that are known. One that is not has to be refused (GFD.47, section 2.3).
const KNOWN: u8 = flag::EOF | flag::EOD | flag::CLOSE;

/// The longest line that a receiver may say.
pub const MAX_LINE: usize = 128;

/// What cannot be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum XError {
    /// The block reaches beyond what 64 bits can count.
    #[error("a block of {count} bytes at {offset} reaches beyond 64 bits")]
    Range {
        /// Its length.
        count: u64,
        /// Its offset.
        offset: u64,
    },
    /// Nobody knows what the block is.
    #[error("a block has the descriptor {0}, and EOF (64), EOD (8) and CLOSE (4) are known")]
    Descriptor(u8),
    /// Something came after a connection's last block.
    #[error("a data connection goes on after its end")]
    AfterEnd,
    /// The connection was closed before its last block had come.
    #[error("a data connection was closed before its end")]
    Cut,
    /// All connections have ended, and none of them said that all has come.
    #[error("all data connections have ended, and none of them said that this was all (EOF)")]
    Unfinished,
    /// The receiver says what is not known, or not now.
    #[error("the receiver said \"{0}\", and {1} was expected")]
    Word(String, &'static str),
    /// The receiver goes on without a line's end.
    #[error("the receiver said a line of more than {MAX_LINE} bytes")]
    Long,
    /// The receiver wants a block once more, for the sake of a checksum that blocks do not have here.
    #[error("the receiver wants a block once more (RESEND), which is not implemented here")]
    Resend,
}

/// What precedes a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Bits of [`flag`].
    pub flags: u8,
    /// How many bytes follow.
    pub count: u64,
    /// Where they belong.
    pub offset: u64,
    /// To which transfer they belong, where several go over the same connections; 0 here.
    pub transaction: u64,
}

impl Header {
    /// That of so many bytes of data.
    pub const fn data(offset: u64, count: u64) -> Self {
        Self { flags: 0, count, offset, transaction: 0 }
    }

    /// The last of a connection, and of the transfer if that is `over`.
    pub const fn end(over: bool) -> Self {
        let flags = flag::EOD | flag::CLOSE | if over { flag::EOF } else { 0 };
        Self { flags, count: 0, offset: 0, transaction: 0 }
    }

    /// As it is sent.
    pub fn encode(&self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        bytes[0] = self.flags;
        bytes[1..9].copy_from_slice(&self.count.to_be_bytes());
        bytes[9..17].copy_from_slice(&self.offset.to_be_bytes());
        bytes[17..].copy_from_slice(&self.transaction.to_be_bytes());
        bytes
    }

    /// As it has come.
    pub fn decode(bytes: &[u8; HEADER]) -> Self {
        let number = |from: usize| bytes[from..from + 8].iter().fold(0, |all, &byte| all << 8 | u64::from(byte));
        Self { flags: bytes[0], count: number(1), offset: number(9), transaction: number(17) }
    }
}

/// One connection, as the receiver reads it.
#[derive(Debug, Clone)]
pub struct Channel {
    header: [u8; HEADER],
    filled: usize,
    state: State,
    over: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Header,
    Data { offset: u64, left: u64, last: bool },
    Ended,
}

impl Default for Channel {
    fn default() -> Self {
        Self::new()
    }
}

impl Channel {
    /// A connection at its beginning.
    pub const fn new() -> Self {
        Self { header: [0; HEADER], filled: 0, state: State::Header, over: false }
    }

    /// What it needs next.
    pub const fn wants(&self) -> Wants {
        match self.state {
            State::Header => Wants::Header(HEADER - self.filled),
            State::Data { offset, left, .. } => Wants::Data { offset, len: left },
            State::Ended => Wants::Nothing,
        }
    }

    /// Whether it has said that nothing begins on connections that are not ready.
    pub const fn is_over(&self) -> bool {
        self.over
    }

    /// Takes bytes of a header, as many of `bytes` as it wants, and says how many.
    ///
    /// # Errors
    /// The block cannot be, or no header is wanted.
    pub fn header(&mut self, bytes: &[u8]) -> Result<usize, XError> {
        match self.state {
            State::Header => {}
            State::Ended if !bytes.is_empty() => return Err(XError::AfterEnd),
            _ => return Ok(0),
        }
        let taken = bytes.len().min(HEADER - self.filled);
        self.header[self.filled..self.filled + taken].copy_from_slice(&bytes[..taken]);
        self.filled += taken;
        if self.filled == HEADER {
            self.filled = 0;
            self.begin(Header::decode(&self.header))?;
        }
        Ok(taken)
    }

    fn begin(&mut self, header: Header) -> Result<(), XError> {
        let Header { flags, count, offset, .. } = header;
        if flags & !KNOWN != 0 {
            return Err(XError::Descriptor(flags));
        }
        if offset.checked_add(count).is_none() {
            return Err(XError::Range { count, offset });
        }
        self.over |= flags & flag::EOF != 0;
        let last = flags & flag::EOD != 0;
        self.state = match (count, last) {
            (0, true) => State::Ended,
            (0, false) => State::Header,
            _ => State::Data { offset, left: count, last },
        };
        Ok(())
    }

    /// Notes that `len` bytes of data were read.
    pub fn took(&mut self, len: u64) {
        let State::Data { offset, left, last } = self.state else { return };
        let len = len.min(left);
        self.state = match (left - len, last) {
            (0, true) => State::Ended,
            (0, false) => State::Header,
            // The header was refused if its end did not fit.
            (left, last) => State::Data { offset: offset.saturating_add(len), left, last },
        };
    }

    /// Notes that the connection was closed.
    ///
    /// # Errors
    /// Its last block had not come.
    pub const fn closed(&self) -> Result<(), XError> {
        if matches!(self.state, State::Ended) { Ok(()) } else { Err(XError::Cut) }
    }
}

/// What a receiver says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Word {
    /// Blocks may come over this connection.
    Ready,
    /// The connection's last block has come.
    Bye,
    /// The sender is to end the connection, if it has others.
    Close,
    /// A block is to come once more.
    Resend,
    /// Something else.
    Other(String),
}

impl Word {
    /// As it is sent.
    pub fn line(&self) -> String {
        let word = match self {
            Self::Ready => "READY",
            Self::Bye => "BYE",
            Self::Close => "CLOSE",
            Self::Resend => "RESEND",
            Self::Other(other) => other,
        };
        format!("{word}\n")
    }
}

/// The lines that a receiver says on one connection.
#[derive(Debug, Clone, Default)]
pub struct Words {
    come: Vec<u8>,
}

impl Words {
    /// Takes what has come.
    ///
    /// # Errors
    /// [`XError::Long`], without a bound in memory.
    pub fn push(&mut self, bytes: &[u8]) -> Result<(), XError> {
        self.come.extend_from_slice(bytes);
        // As many lines as anybody says, none of them too long.
        match self.come.split(|&b| b == b'\n').any(|line| line.len() > MAX_LINE) || self.come.len() > 16 * MAX_LINE {
            true => Err(XError::Long),
            false => Ok(()),
        }
    }

    /// The next word, if all of its line has come. What follows it in its line is for versions that know what.
    pub fn take(&mut self) -> Option<Word> {
        let end = self.come.iter().position(|&b| b == b'\n')?;
        let line: Vec<u8> = self.come.drain(..=end).collect();
        let line = String::from_utf8_lossy(&line);
        Some(match line.split_ascii_whitespace().next().unwrap_or_default() {
            "READY" => Word::Ready,
            "BYE" => Word::Bye,
            "CLOSE" => Word::Close,
            "RESEND" => Word::Resend,
            other => Word::Other(other.chars().filter(|c| !c.is_control()).collect()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Reads `bytes` in pieces of `piece` up to the connection's end; data by offset, and how much was used.
    fn read(channel: &mut Channel, bytes: &[u8], piece: usize) -> Result<(Vec<(u64, u8)>, usize), XError> {
        let (mut data, mut used) = (Vec::new(), 0);
        for mut bytes in bytes.chunks(piece) {
            while !bytes.is_empty() {
                let taken = match channel.wants() {
                    Wants::Nothing => return Ok((data, used)),
                    Wants::Header(_) => channel.header(bytes)?,
                    Wants::Data { offset, len } => {
                        let taken = bytes.len().min(usize::try_from(len).unwrap_or(usize::MAX));
                        data.extend((offset..).zip(bytes[..taken].iter().copied()));
                        channel.took(taken as u64);
                        taken
                    }
                };
                used += taken;
                bytes = &bytes[taken..];
            }
        }
        Ok((data, used))
    }

    #[test]
    fn a_header_is_as_dcache_writes_it() {
        // putLong of count, position and transaction after the descriptor.
        let encoded = Header { flags: 76, count: 0x0102, offset: 0x0304_0506_0708, transaction: 9 }.encode();
        let expected = [76, 0, 0, 0, 0, 0, 0, 1, 2, 0, 0, 3, 4, 5, 6, 7, 8, 0, 0, 0, 0, 0, 0, 0, 9];
        assert_eq!(encoded, expected);
        assert_eq!(Header::end(true).flags, 64 | 8 | 4);
        assert_eq!(Header::end(false).flags, 8 | 4);
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let refused = |flags, count, offset| {
            let header = Header { flags, count, offset, transaction: 0 };
            read(&mut Channel::new(), &header.encode(), 25).unwrap_err()
        };
        assert_eq!(refused(0, 2, u64::MAX), XError::Range { count: 2, offset: u64::MAX });
        for flags in [1, 2, 16, 32, 128, 255] {
            assert_eq!(refused(flags, 0, 0), XError::Descriptor(flags));
        }
        let mut ended = Channel::new();
        read(&mut ended, &Header::end(true).encode(), 25).unwrap();
        assert!(ended.is_over() && ended.closed().is_ok());
        assert_eq!(ended.header(b"x"), Err(XError::AfterEnd));
        let mut cut = Channel::new();
        read(&mut cut, &Header::data(0, 5).encode(), 25).unwrap();
        cut.took(4);
        assert_eq!(cut.closed(), Err(XError::Cut));
        assert_eq!(Channel::new().closed(), Err(XError::Cut), "a connection over which nothing came");
    }

    #[test]
    fn words_are_lines_of_bounded_length() {
        let mut words = Words::default();
        words.push(b"READY\r\nCLO").unwrap();
        assert_eq!((words.take(), words.take()), (Some(Word::Ready), None));
        words.push(b"SE now\nRESEND 5\nBYE\n\nHELLO\n").unwrap();
        let all: Vec<_> = std::iter::from_fn(|| words.take()).collect();
        let other = |text: &str| Word::Other(text.to_owned());
        assert_eq!(all, [Word::Close, Word::Resend, Word::Bye, other(""), other("HELLO")]);
        assert_eq!(words.push(&[b'x'; MAX_LINE + 1]), Err(XError::Long));
        assert_eq!(Words::default().push(&b"BYE\n".repeat(10_000)), Err(XError::Long));
    }

    proptest! {
        #[test]
        fn blocks_in_any_pieces_give_the_object(
            lens in proptest::collection::vec(0..40u64, 0..20),
            piece in 1..60usize,
            last_has_data in any::<bool>(),
        ) {
            let (mut stream, mut at, mut expected) = (Vec::new(), 0u64, Vec::new());
            for (i, &len) in lens.iter().enumerate() {
                let last = last_has_data && i + 1 == lens.len();
                let flags = if last { flag::EOF | flag::EOD } else { 0 };
                stream.extend(Header { flags, ..Header::data(at, len) }.encode());
                let bytes = (at..at + len).map(|offset| (offset, (offset * 7) as u8));
                stream.extend(bytes.clone().map(|(_, byte)| byte));
                expected.extend(bytes);
                at += len;
            }
            if !last_has_data || lens.is_empty() {
                stream.extend(Header::end(true).encode());
            }
            let mut channel = Channel::new();
            let (data, used) = read(&mut channel, &stream, piece).unwrap();
            prop_assert_eq!((data, used), (expected, stream.len()));
            prop_assert!(channel.is_over() && channel.closed().is_ok());
        }

        #[test]
        fn nothing_that_is_cut_has_ended(lens in proptest::collection::vec(1..20u64, 1..5), cut in any::<prop::sample::Index>()) {
            let mut stream = Vec::new();
            for len in lens {
                stream.extend(Header::data(0, len).encode());
                stream.extend(vec![1; len as usize]);
            }
            stream.extend(Header::end(true).encode());
            stream.truncate(cut.index(stream.len()));
            let mut channel = Channel::new();
            read(&mut channel, &stream, 7).unwrap();
            prop_assert_eq!(channel.closed(), Err(XError::Cut));
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200), piece in 1..30usize) {
            let _ = read(&mut Channel::new(), &bytes, piece);
            let mut words = Words::default();
            for piece in bytes.chunks(piece) {
                if words.push(piece).is_err() {
                    break;
                }
                while words.take().is_some() {}
            }
        }
    }
}
