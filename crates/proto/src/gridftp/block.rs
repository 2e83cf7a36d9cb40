//! Extended block mode, MODE E (GFD.20, section 3.4): blocks that say where they belong, over as many connections as there
//! are.
//!
//! A block is `u8 descriptor | u64 count | u64 offset`, big-endian, and `count` bytes. Each connection ends with a block
//! that has EOD; one block of the transfer has EOF, and in the place of its offset the number of EODs that there will be.
//! The transfer is complete when that many have come, over connections that may be fewer (one that is used again) or were
//! opened at any time. A connection whose last block has EOD without CLOSE may carry another transfer.
//!
//! [`Channel`] reads one connection, [`Tally`] counts over all of them, and [`Ending`] writes the ends.

/// The bytes before a block's own.
pub const HEADER: usize = 17;

/// The descriptor's bits.
pub mod flag {
    /// The connection will be closed after this block.
    pub const CLOSE: u8 = 4;
    /// No more data comes over this connection in this transfer.
    pub const EOD: u8 = 8;
    /// The block is a restart marker and no data.
    pub const RESTART: u8 = 16;
    /// The sender suspects errors in it.
    pub const ERROR: u8 = 32;
    /// The offset is the number of EODs.
    pub const EOF: u8 = 64;
    /// The end of a record.
    pub const EOR: u8 = 128;
}

/// How many connections a transfer may have had.
pub const MAX_CHANNELS: u64 = 1 << 16;

/// Blocks that cannot be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BlockError {
    /// The block reaches beyond what 64 bits can count.
    #[error("a block of {count} bytes at {offset} reaches beyond 64 bits")]
    Range {
        /// Its length.
        count: u64,
        /// Its offset.
        offset: u64,
    },
    /// A block says how many ends there are and has data.
    #[error("a block with EOF has {0} bytes of data, and none were expected")]
    EofData(u64),
    /// The number of ends that was announced cannot be.
    #[error("EOF says that {0} connections end, and 1 to 65536 were expected")]
    Ends(u64),
    /// Two blocks say different numbers of ends, or more came than were announced.
    #[error("{found} connections end, and EOF said {announced}")]
    Disagree {
        /// What came or was said last.
        found: u64,
        /// What was said first.
        announced: u64,
    },
    /// The sender says that the data is wrong.
    #[error("the sender marks the block at {0} as damaged")]
    Damaged(u64),
    /// A restart marker: nobody sends one in a data block, and what it would have to do is not known.
    #[error("a data connection carries a restart marker, which is not known here")]
    Marker,
    /// Something came after a connection's last block.
    #[error("a data connection goes on after its end")]
    AfterEnd,
    /// The connection was closed before its last block had come.
    #[error("a data connection was closed before its end")]
    Cut,
}

/// What precedes a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Bits of [`flag`].
    pub flags: u8,
    /// How many bytes follow.
    pub count: u64,
    /// Where they belong; with EOF, how many connections end.
    pub offset: u64,
}

impl Header {
    /// The header of a block of data.
    pub const fn data(offset: u64, count: u64) -> Self {
        Self { flags: 0, count, offset }
    }

    /// As it is sent.
    pub fn encode(self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        bytes[0] = self.flags;
        bytes[1..9].copy_from_slice(&self.count.to_be_bytes());
        bytes[9..].copy_from_slice(&self.offset.to_be_bytes());
        bytes
    }

    /// As it was sent.
    pub fn decode(bytes: &[u8; HEADER]) -> Self {
        let [flags, c0, c1, c2, c3, c4, c5, c6, c7, offset @ ..] = *bytes;
        let count = u64::from_be_bytes([c0, c1, c2, c3, c4, c5, c6, c7]);
        Self { flags, count, offset: u64::from_be_bytes(offset) }
    }

    const fn has(self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}

/// What a connection that is read needs next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wants {
    /// So many bytes of a header, which go to [`Channel::header`].
    Header(usize),
    /// So many bytes of data that belong at the offset. They may be read to wherever they are wanted, in parts, each of
    /// which is told to [`Channel::took`].
    Data {
        /// Where the next byte belongs.
        offset: u64,
        /// How many there are.
        len: u64,
    },
    /// Nothing: its part of the transfer has ended.
    Nothing,
}

/// What a header or the last byte of a block said beside its data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Said {
    /// How many connections end in this transfer.
    Ends(u64),
    /// This one has.
    End {
        /// Whether it is kept for another transfer.
        kept: bool,
    },
}

/// One connection, as it is read.
#[derive(Debug, Clone)]
pub struct Channel {
    header: [u8; HEADER],
    filled: usize,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Header,
    Data { offset: u64, left: u64, flags: u8 },
    Ended { kept: bool },
}

impl Default for Channel {
    fn default() -> Self {
        Self::new()
    }
}

impl Channel {
    /// A connection at the beginning of a transfer.
    pub const fn new() -> Self {
        Self { header: [0; HEADER], filled: 0, state: State::Header }
    }

    /// What it needs next.
    pub const fn wants(&self) -> Wants {
        match self.state {
            State::Header => Wants::Header(HEADER - self.filled),
            State::Data { offset, left, .. } => Wants::Data { offset, len: left },
            State::Ended { .. } => Wants::Nothing,
        }
    }

    /// Takes bytes of a header, as many of `bytes` as it wants, and says how many and what the block said. What is said of
    /// ends comes first, so that a block may say both.
    ///
    /// # Errors
    /// The block cannot be, or no header is wanted.
    pub fn header(&mut self, bytes: &[u8]) -> Result<(usize, Vec<Said>), BlockError> {
        match self.state {
            State::Header => {}
            State::Ended { .. } if !bytes.is_empty() => return Err(BlockError::AfterEnd),
            _ => return Ok((0, Vec::new())),
        }
        let taken = bytes.len().min(HEADER - self.filled);
        self.header[self.filled..self.filled + taken].copy_from_slice(&bytes[..taken]);
        self.filled += taken;
        if self.filled < HEADER {
            return Ok((taken, Vec::new()));
        }
        self.filled = 0;
        Ok((taken, self.begin(Header::decode(&self.header))?))
    }

    /// Notes that `len` bytes of data were read, and says whether the connection ended with them.
    pub fn took(&mut self, len: u64) -> Option<Said> {
        let State::Data { offset, left, flags } = self.state else { return None };
        let len = len.min(left);
        // The header was refused if its end did not fit.
        self.state = State::Data { offset: offset.saturating_add(len), left: left - len, flags };
        if len == left { self.finish(flags) } else { None }
    }

    /// Notes that the connection was closed.
    ///
    /// # Errors
    /// Its last block had not come. A connection that ends so has not ended well, whatever came before.
    pub const fn closed(&self) -> Result<(), BlockError> {
        if matches!(self.state, State::Ended { .. }) { Ok(()) } else { Err(BlockError::Cut) }
    }

    /// The same connection for another transfer, if it was kept.
    pub const fn again(&self) -> Option<Self> {
        if matches!(self.state, State::Ended { kept: true }) { Some(Self::new()) } else { None }
    }

    fn begin(&mut self, header: Header) -> Result<Vec<Said>, BlockError> {
        let Header { flags, count, offset } = header;
        if header.has(flag::RESTART) {
            return Err(BlockError::Marker);
        }
        if header.has(flag::ERROR) {
            return Err(BlockError::Damaged(offset));
        }
        let mut said = Vec::new();
        if header.has(flag::EOF) {
            if count > 0 {
                return Err(BlockError::EofData(count));
            }
            if !(1..=MAX_CHANNELS).contains(&offset) {
                return Err(BlockError::Ends(offset));
            }
            said.push(Said::Ends(offset));
        } else if offset.checked_add(count).is_none() {
            return Err(BlockError::Range { count, offset });
        }
        if count > 0 {
            self.state = State::Data { offset, left: count, flags };
        } else {
            said.extend(self.finish(flags));
        }
        Ok(said)
    }

    fn finish(&mut self, flags: u8) -> Option<Said> {
        let kept = flags & flag::CLOSE == 0;
        self.state = if flags & flag::EOD == 0 { State::Header } else { State::Ended { kept } };
        (flags & flag::EOD != 0).then_some(Said::End { kept })
    }
}

/// The ends of a transfer, over all its connections.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    ended: u64,
    announced: Option<u64>,
}

impl Tally {
    /// None yet.
    pub const fn new() -> Self {
        Self { ended: 0, announced: None }
    }

    /// Counts what a connection said.
    ///
    /// # Errors
    /// It contradicts what others said.
    pub fn count(&mut self, said: Said) -> Result<(), BlockError> {
        match said {
            Said::Ends(found) => match *self.announced.get_or_insert(found) {
                announced if announced != found || self.ended > found => {
                    Err(BlockError::Disagree { found: found.max(self.ended), announced })
                }
                _ => Ok(()),
            },
            Said::End { .. } => {
                self.ended += 1;
                match self.announced {
                    Some(announced) if self.ended > announced => {
                        Err(BlockError::Disagree { found: self.ended, announced })
                    }
                    None if self.ended > MAX_CHANNELS => Err(BlockError::Ends(self.ended)),
                    _ => Ok(()),
                }
            }
        }
    }

    /// Whether all data has come that was sent.
    pub fn is_complete(&self) -> bool {
        self.announced == Some(self.ended)
    }
}

/// The ends of a transfer, as they are sent.
#[derive(Debug, Clone, Copy)]
pub struct Ending {
    channels: u64,
    /// How many the last of them says that there are.
    announced: Option<u64>,
    sent: u64,
}

impl Ending {
    /// Those of a transfer that used so many connections, at least one.
    pub fn new(channels: u64) -> Self {
        let channels = channels.clamp(1, MAX_CHANNELS);
        Self { channels, announced: Some(channels), sent: 0 }
    }

    /// Those of one of several senders to the same place, which has so many connections of a transfer's. One of the senders has
    /// `announced` how many connections all of them have; the others announce nothing.
    pub fn among(channels: u64, announced: Option<u64>) -> Self {
        Self { announced, ..Self::new(channels) }
    }

    /// The last block of the next connection, which is closed after it unless it is `kept`; none when all have theirs. The
    /// last of them says how many there were, as GCT does.
    pub fn next(&mut self, kept: bool) -> Option<Header> {
        self.sent = self.sent.checked_add(1).filter(|&sent| sent <= self.channels)?;
        let close = if kept { 0 } else { flag::CLOSE };
        Some(match self.announced.filter(|_| self.sent == self.channels) {
            Some(all) => Header { flags: flag::EOF | flag::EOD | close, count: 0, offset: all },
            None => Header { flags: flag::EOD | close, count: 0, offset: 0 },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Data by offset, and what was said.
    type Read = (Vec<(u64, u8)>, Vec<Said>);

    /// Reads all of `bytes`, in pieces of `piece`.
    fn read(channel: &mut Channel, bytes: &[u8], piece: usize) -> Result<Read, BlockError> {
        let (mut data, mut said) = (Vec::new(), Vec::new());
        for mut bytes in bytes.chunks(piece) {
            while !bytes.is_empty() {
                let taken = match channel.wants() {
                    Wants::Data { offset, len } => {
                        let taken = bytes.len().min(usize::try_from(len).unwrap_or(usize::MAX));
                        data.extend((offset..).zip(bytes[..taken].iter().copied()));
                        said.extend(channel.took(taken as u64));
                        taken
                    }
                    _ => {
                        let (taken, new) = channel.header(bytes)?;
                        said.extend(new);
                        taken
                    }
                };
                bytes = &bytes[taken..];
            }
        }
        Ok((data, said))
    }

    #[test]
    fn ends_are_those_that_gct_sends() {
        // Seen on four connections of its server: three of them, and one.
        let mut ending = Ending::new(4);
        let ends: Vec<_> = std::iter::from_fn(|| ending.next(true)).map(|h| (h.flags, h.count, h.offset)).collect();
        assert_eq!(ends, [(0x08, 0, 0), (0x08, 0, 0), (0x08, 0, 0), (0x48, 0, 4)]);
        let (mut tally, mut channel) = (Tally::new(), Channel::new());
        for (i, (flags, count, offset)) in ends.into_iter().rev().enumerate() {
            assert!(!tally.is_complete());
            let (_, said) = read(&mut channel, &Header { flags, count, offset }.encode(), 17).unwrap();
            said.into_iter().for_each(|said| tally.count(said).unwrap());
            assert_eq!((tally.is_complete(), channel.wants()), (i == 3, Wants::Nothing));
            assert!(channel.closed().is_ok());
            channel = channel.again().unwrap();
        }
    }

    #[test]
    fn several_senders_to_one_place_end_together() {
        let mut tally = Tally::new();
        for (announced, last) in [(Some(5), (0x48, 5)), (None, (0x08, 0))] {
            let mut ending = Ending::among(if announced.is_some() { 2 } else { 3 }, announced);
            let ends: Vec<_> = std::iter::from_fn(|| ending.next(true)).collect();
            assert_eq!(ends.last().map(|h| (h.flags, h.offset)), Some(last));
            for end in ends {
                assert!(!tally.is_complete());
                let (_, said) = read(&mut Channel::new(), &end.encode(), 17).unwrap();
                said.into_iter().for_each(|said| tally.count(said).unwrap());
            }
        }
        assert!(tally.is_complete());
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let refused = |flags, count, offset| {
            read(&mut Channel::new(), &Header { flags, count, offset }.encode(), 17).unwrap_err()
        };
        assert_eq!(refused(0, 2, u64::MAX), BlockError::Range { count: 2, offset: u64::MAX });
        assert_eq!(refused(flag::EOF, 1, 1), BlockError::EofData(1));
        assert_eq!(refused(flag::EOF, 0, 0), BlockError::Ends(0));
        assert_eq!(refused(flag::EOF, 0, MAX_CHANNELS + 1), BlockError::Ends(MAX_CHANNELS + 1));
        assert_eq!(refused(flag::ERROR, 5, 7), BlockError::Damaged(7));
        assert_eq!(refused(flag::RESTART, 5, 0), BlockError::Marker);
        let mut ended = Channel::new();
        let closing = Header { flags: flag::EOD | flag::CLOSE, count: 0, offset: 0 };
        read(&mut ended, &closing.encode(), 17).unwrap();
        assert!(ended.again().is_none());
        assert_eq!(ended.header(b"x"), Err(BlockError::AfterEnd));
        let mut cut = Channel::new();
        read(&mut cut, &Header::data(0, 5).encode(), 17).unwrap();
        cut.took(4);
        assert_eq!(cut.closed(), Err(BlockError::Cut));
        assert_eq!(Channel::new().closed(), Err(BlockError::Cut), "a connection over which nothing came");

        let mut tally = Tally::new();
        tally.count(Said::Ends(1)).unwrap();
        assert_eq!(tally.count(Said::Ends(2)), Err(BlockError::Disagree { found: 2, announced: 1 }));
        tally.count(Said::End { kept: true }).unwrap();
        assert_eq!(tally.count(Said::End { kept: true }), Err(BlockError::Disagree { found: 2, announced: 1 }));
        let mut late = Tally::new();
        late.count(Said::End { kept: true }).unwrap();
        late.count(Said::End { kept: true }).unwrap();
        assert_eq!(late.count(Said::Ends(1)), Err(BlockError::Disagree { found: 2, announced: 1 }));
    }

    proptest! {
        #[test]
        fn blocks_over_any_connections_in_any_pieces_give_the_object(
            blocks in proptest::collection::vec((0..3usize, 0..40u64), 0..30),
            piece in 1..50usize,
            last_has_data in any::<bool>(),
        ) {
            let (mut streams, mut at, mut expected) = (vec![Vec::new(); 3], 0u64, Vec::new());
            for (stream, len) in blocks {
                streams[stream].extend(Header::data(at, len).encode());
                let bytes = (at..at + len).map(|offset| (offset, (offset * 7) as u8));
                streams[stream].extend(bytes.clone().map(|(_, byte)| byte));
                expected.extend(bytes);
                at += len;
            }
            let mut ending = Ending::new(3);
            for (i, stream) in streams.iter_mut().enumerate() {
                let end = ending.next(i == 1).unwrap();
                if last_has_data && i == 0 {
                    // The end may come with data.
                    stream.extend(Header { flags: end.flags, count: 1, offset: at }.encode());
                    stream.push(99);
                    expected.push((at, 99));
                } else {
                    stream.extend(end.encode());
                }
            }
            let (mut tally, mut found) = (Tally::new(), Vec::new());
            for (i, stream) in streams.iter().enumerate() {
                prop_assert!(!tally.is_complete());
                let mut channel = Channel::new();
                let (data, said) = read(&mut channel, stream, piece).unwrap();
                found.extend(data);
                said.into_iter().for_each(|said| tally.count(said).unwrap());
                prop_assert_eq!(channel.again().is_some(), i == 1);
            }
            prop_assert!(tally.is_complete());
            found.sort();
            prop_assert_eq!(found, expected);
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            let _ = read(&mut Channel::new(), &bytes, 13);
        }
    }
}
