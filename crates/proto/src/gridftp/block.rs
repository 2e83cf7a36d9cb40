//! Extended block mode, MODE E (GFD.20, section 3.4): blocks with offsets, over any number of parallel connections.
//!
//! A block is `u8 descriptor | u64 count | u64 offset`, big-endian, and `count` bytes of data. The last block of each
//! connection has EOD. One block of the transfer has EOF, and its offset field contains the number of EODs to expect.
//! The transfer is complete when that many EODs have arrived. The number of connections may be smaller, because a
//! connection can be reused, and connections may be opened at any time. A connection whose last block has EOD without
//! CLOSE may carry another transfer.
//!
//! [`Channel`] parses one connection, [`Tally`] counts the EODs of all connections, and [`Ending`] produces the last
//! blocks.

/// Length of a block's header, in bytes.
pub const HEADER: usize = 17;

/// Bits of the descriptor.
pub mod flag {
    /// The sender closes the connection after this block.
    pub const CLOSE: u8 = 4;
    /// No more data of this transfer follows on this connection.
    pub const EOD: u8 = 8;
    /// The block is a restart marker without data.
    pub const RESTART: u8 = 16;
    /// The sender suspects errors in the block.
    pub const ERROR: u8 = 32;
    /// The offset field is the number of EODs.
    pub const EOF: u8 = 64;
    /// The block ends a record.
    pub const EOR: u8 = 128;
}

/// Most connections of a transfer.
pub const MAX_CHANNELS: u64 = 1 << 16;

/// Violations of extended block mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BlockError {
    /// The end of the block does not fit in 64 bits.
    #[error("a block of {count} bytes at {offset} reaches beyond 64 bits")]
    Range {
        /// Length of the block.
        count: u64,
        /// Offset of the block.
        offset: u64,
    },
    /// A block with EOF has data.
    #[error("a block with EOF has {0} bytes of data, and none were expected")]
    EofData(u64),
    /// The announced number of EODs is out of range.
    #[error("EOF says that {0} connections end, and 1 to 65536 were expected")]
    Ends(u64),
    /// Two blocks announce different numbers of EODs, or more EODs arrived than were announced.
    #[error("{found} connections end, and EOF said {announced}")]
    Disagree {
        /// The number that arrived or was announced last.
        found: u64,
        /// The number that was announced first.
        announced: u64,
    },
    /// The sender marks the data as wrong.
    #[error("the sender marks the block at {0} as damaged")]
    Damaged(u64),
    /// A restart marker. No known implementation sends one in a data block, and its meaning there is not defined.
    #[error("a data connection carries a restart marker, which is not known here")]
    Marker,
    /// Bytes arrived after a connection's last block.
    #[error("a data connection goes on after its end")]
    AfterEnd,
    /// The connection was closed before its last block.
    #[error("a data connection was closed before its end")]
    Cut,
}

/// The header of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Bits of [`flag`].
    pub flags: u8,
    /// Number of bytes of data that follow.
    pub count: u64,
    /// Offset of the data in the file; with EOF, the number of EODs.
    pub offset: u64,
}

impl Header {
    /// The header of a data block.
    pub const fn data(offset: u64, count: u64) -> Self {
        Self { flags: 0, count, offset }
    }

    /// Encodes the header.
    pub fn encode(self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        bytes[0] = self.flags;
        bytes[1..9].copy_from_slice(&self.count.to_be_bytes());
        bytes[9..].copy_from_slice(&self.offset.to_be_bytes());
        bytes
    }

    /// Decodes a header.
    pub fn decode(bytes: &[u8; HEADER]) -> Self {
        let [flags, c0, c1, c2, c3, c4, c5, c6, c7, offset @ ..] = *bytes;
        let count = u64::from_be_bytes([c0, c1, c2, c3, c4, c5, c6, c7]);
        Self { flags, count, offset: u64::from_be_bytes(offset) }
    }

    const fn has(self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}

/// The input that a connection needs next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wants {
    /// This many bytes of a header, to be passed to [`Channel::header`].
    Header(usize),
    /// Bytes of data. The caller reads them to their destination, in any number of parts, and calls [`Channel::took`]
    /// for each part.
    Data {
        /// Offset of the next byte in the file.
        offset: u64,
        /// Number of bytes.
        len: u64,
    },
    /// Nothing: this connection's part of the transfer has ended.
    Nothing,
}

/// An event at the beginning or the end of a block, apart from its data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// EOF: the number of EODs in this transfer.
    Ends(u64),
    /// EOD: this connection's part of the transfer has ended.
    End {
        /// Whether the connection stays open for another transfer.
        kept: bool,
    },
}

/// The parser of one connection.
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

    /// The input that the connection needs next.
    pub const fn wants(&self) -> Wants {
        match self.state {
            State::Header => Wants::Header(HEADER - self.filled),
            State::Data { offset, left, .. } => Wants::Data { offset, len: left },
            State::Ended { .. } => Wants::Nothing,
        }
    }

    /// Consumes bytes of a header, as many of `bytes` as it needs. Returns their number and the block's events. A block
    /// may have both events; [`Event::Ends`] comes first.
    ///
    /// # Errors
    /// [`BlockError`] if the block is invalid, or if the connection has ended.
    pub fn header(&mut self, bytes: &[u8]) -> Result<(usize, Vec<Event>), BlockError> {
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

    /// Records that `len` bytes of data were read. Returns [`Event::End`] if the connection's part ended with them.
    pub fn took(&mut self, len: u64) -> Option<Event> {
        let State::Data { offset, left, flags } = self.state else { return None };
        let len = len.min(left);
        // `begin` has checked that the end of the block fits in 64 bits.
        self.state = State::Data { offset: offset.saturating_add(len), left: left - len, flags };
        if len == left { self.finish(flags) } else { None }
    }

    /// Checks that the connection may be closed now.
    ///
    /// # Errors
    /// [`BlockError::Cut`] before its last block: the transfer is then incomplete, whatever has arrived.
    pub const fn closed(&self) -> Result<(), BlockError> {
        if matches!(self.state, State::Ended { .. }) { Ok(()) } else { Err(BlockError::Cut) }
    }

    /// The parser for the next transfer on this connection, if the connection was kept.
    pub const fn again(&self) -> Option<Self> {
        if matches!(self.state, State::Ended { kept: true }) { Some(Self::new()) } else { None }
    }

    fn begin(&mut self, header: Header) -> Result<Vec<Event>, BlockError> {
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
            said.push(Event::Ends(offset));
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

    fn finish(&mut self, flags: u8) -> Option<Event> {
        let kept = flags & flag::CLOSE == 0;
        self.state = if flags & flag::EOD == 0 { State::Header } else { State::Ended { kept } };
        (flags & flag::EOD != 0).then_some(Event::End { kept })
    }
}

/// Counts the EODs of a transfer over all its connections.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    ended: u64,
    announced: Option<u64>,
}

impl Tally {
    /// The count at the beginning of a transfer.
    pub const fn new() -> Self {
        Self { ended: 0, announced: None }
    }

    /// Counts an event of a connection.
    ///
    /// # Errors
    /// [`BlockError`] if the event contradicts earlier ones.
    pub fn count(&mut self, said: Event) -> Result<(), BlockError> {
        match said {
            Event::Ends(found) => match *self.announced.get_or_insert(found) {
                announced if announced != found || self.ended > found => {
                    Err(BlockError::Disagree { found: found.max(self.ended), announced })
                }
                _ => Ok(()),
            },
            Event::End { .. } => {
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

    /// Whether all data has arrived.
    pub fn is_complete(&self) -> bool {
        self.announced == Some(self.ended)
    }
}

/// Produces the last blocks of a transfer.
#[derive(Debug, Clone, Copy)]
pub struct Ending {
    channels: u64,
    /// The number of EODs that the last block announces with EOF.
    announced: Option<u64>,
    sent: u64,
}

impl Ending {
    /// For a transfer over `channels` connections, at least one.
    pub fn new(channels: u64) -> Self {
        let channels = channels.clamp(1, MAX_CHANNELS);
        Self { channels, announced: Some(channels), sent: 0 }
    }

    /// For one of several senders to the same receiver, with `channels` connections of its own. One of the senders must
    /// give in `announced` the number of connections of all senders; the others give `None`.
    pub fn of_one_sender(channels: u64, announced: Option<u64>) -> Self {
        Self { announced, ..Self::new(channels) }
    }

    /// The last block of the next connection. The connection is closed after it unless it is `kept`. `None` when all
    /// connections have their block. The last of these blocks has EOF, as in GCT.
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

    /// Bytes of data with their offsets, and events.
    type Read = (Vec<(u64, u8)>, Vec<Event>);

    /// Parses all of `bytes`, in pieces of `piece` bytes.
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
    fn last_blocks_match_those_of_gct() {
        // Captured from a GCT server with four connections: EOD on three of them, EOD and EOF on the last.
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
    fn transfer_from_several_senders_is_complete_after_all_eods() {
        let mut tally = Tally::new();
        for (announced, last) in [(Some(5), (0x48, 5)), (None, (0x08, 0))] {
            let mut ending = Ending::of_one_sender(if announced.is_some() { 2 } else { 3 }, announced);
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
    fn invalid_blocks_and_contradictory_ends_are_refused() {
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
        assert_eq!(Channel::new().closed(), Err(BlockError::Cut), "a connection without any bytes");

        let mut tally = Tally::new();
        tally.count(Event::Ends(1)).unwrap();
        assert_eq!(tally.count(Event::Ends(2)), Err(BlockError::Disagree { found: 2, announced: 1 }));
        tally.count(Event::End { kept: true }).unwrap();
        assert_eq!(tally.count(Event::End { kept: true }), Err(BlockError::Disagree { found: 2, announced: 1 }));
        let mut late = Tally::new();
        late.count(Event::End { kept: true }).unwrap();
        late.count(Event::End { kept: true }).unwrap();
        assert_eq!(late.count(Event::Ends(1)), Err(BlockError::Disagree { found: 2, announced: 1 }));
    }

    proptest! {
        #[test]
        fn data_arrives_over_any_connections_in_any_pieces(
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
                    // A block with EOD may have data.
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
        fn parsing_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            let _ = read(&mut Channel::new(), &bytes, 13);
        }
    }
}
