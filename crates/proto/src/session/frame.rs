//! The framed mode: how a stream is carried on a hop whose connection outlives it, or has no half-close of its own (S22).
//!
//! Every frame begins with a header of 16 bytes, big-endian:
//!
//! ```text
//!  0        1          2         4               8                               16
//! ┌────────┬──────────┬─────────┬───────────────┬───────────────────────────────┐
//! │ type   │ direction│ 0       │ length        │ offset                        │
//! └────────┴──────────┴─────────┴───────────────┴───────────────────────────────┘
//! ```
//!
//! `direction` is 0 from initiator to acceptor and 1 back, so that a frame which went the wrong way shows. An [`Exchange`]
//! follows one session on one connection and says when the connection may carry another: when both sides have shut down
//! and each has confirmed that the other's bytes and shutdown went on to the next hop, or when both have sent RESET. Without
//! the confirmation the next OPEN could stand behind a session whose receiver has stopped reading.
//!
//! Where a hop is a [bundle](super::bundle) of connections, each of them has an exchange of its own, which is
//! [striped](Exchange::striped): it carries parts of the stream, so that its offsets may leave some out, but never go back.

use super::wire::MESSAGE_MAX;

/// Bytes of a frame's header.
pub const HEADER_LEN: usize = 16;
/// Longest payload of a DATA frame: what a relay moves in one go, with room to spare.
pub const DATA_MAX: u32 = 16 << 20;

/// Which end of the connection sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// The end that sent OPEN.
    Initiator,
    /// The end that answered.
    Acceptor,
}

/// One frame, without its payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Frame {
    /// `len` bytes of the stream follow.
    Data {
        /// Bytes that follow, at least 1 and at most [`DATA_MAX`].
        len: u32,
    },
    /// The sender's stream has ended.
    Shutdown,
    /// Everything before `offset` went on to the next hop. The shutdown counts as one byte after the last.
    Ack {
        /// The first position that was not yet passed on.
        offset: u64,
    },
    /// The session has failed; a REFUSED message of `len` bytes (without prefix) says why. The sender's last frame of the
    /// session; the receiver answers with its own.
    Reset {
        /// Bytes that follow, at most [`MESSAGE_MAX`].
        len: u32,
    },
    /// Asks for a PONG with the same token.
    Ping {
        /// Chosen by the sender.
        token: u64,
    },
    /// Answers a PING.
    Pong {
        /// From the PING.
        token: u64,
    },
}

/// How a peer broke the framed mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The type is not known.
    #[error("a frame of unknown type {0}")]
    Kind(u8),
    /// The direction is not the sender's, or a reserved field is not 0.
    #[error("a frame with a wrong direction or reserved field")]
    Header,
    /// The length is not one that this type may have.
    #[error("a frame of type {kind} with a length of {len}")]
    Length {
        /// The frame's type.
        kind: u8,
        /// Its length.
        len: u32,
    },
    /// The offset does not continue the stream.
    #[error("a frame at offset {got}; expected {expected}")]
    Offset {
        /// The frame's offset.
        got: u64,
        /// Where the stream stands.
        expected: u64,
    },
    /// DATA or SHUTDOWN after SHUTDOWN.
    #[error("a frame after the end of the stream")]
    AfterShutdown,
    /// Anything after RESET.
    #[error("a frame after it had given the session up")]
    AfterReset,
    /// RESET after SHUTDOWN and the confirmation of the peer's.
    #[error("a reset after it had confirmed the end of the session")]
    Settled,
    /// An acknowledgement of what was never sent, or of less than before.
    #[error("an acknowledgement of offset {got}; expected {min} to {max}")]
    Ack {
        /// The offset acknowledged.
        got: u64,
        /// The offset acknowledged before.
        min: u64,
        /// All that was sent.
        max: u64,
    },
}

const DATA: u8 = 1;
const SHUTDOWN: u8 = 2;
const ACK: u8 = 3;
const RESET: u8 = 4;
const PING: u8 = 5;
const PONG: u8 = 6;

/// One session on one framed connection: positions, shutdowns and acknowledgements of both directions.
#[derive(Debug, Clone)]
pub struct Exchange {
    role: Role,
    /// Whether others carry what is left out here.
    striped: bool,
    out: Stream,
    inc: Stream,
}

/// One direction. `end` is 1 after the shutdown, so that `position + end` numbers it like one more byte.
#[derive(Debug, Clone, Copy, Default)]
struct Stream {
    position: u64,
    end: u64,
    acked: u64,
    reset: bool,
}

impl Stream {
    /// Whether it may go on.
    fn open(self) -> Result<(), FrameError> {
        match self {
            Self { reset: true, .. } => Err(FrameError::AfterReset),
            Self { end: 1, .. } => Err(FrameError::AfterShutdown),
            _ => Ok(()),
        }
    }

    fn all_acked(self) -> bool {
        self.end == 1 && self.acked == self.position + 1
    }
}

impl Exchange {
    /// A session that has just been opened.
    pub fn new(role: Role) -> Self {
        Self { role, striped: false, out: Stream::default(), inc: Stream::default() }
    }

    /// A session's part on one connection of a bundle.
    pub fn striped(role: Role) -> Self {
        Self { striped: true, ..Self::new(role) }
    }

    /// Which end this is.
    pub fn role(&self) -> Role {
        self.role
    }

    /// The header of a DATA frame of `len` bytes, which are to follow.
    ///
    /// # Errors
    /// [`FrameError::AfterShutdown`], [`FrameError::AfterReset`]; [`FrameError::Length`] for 0 or more than [`DATA_MAX`].
    pub fn data(&mut self, len: u32) -> Result<[u8; HEADER_LEN], FrameError> {
        self.data_at(self.out.position, len)
    }

    /// The same for bytes from `offset` of the stream on, where others may carry what lies before.
    ///
    /// # Errors
    /// As [`Exchange::data`]; [`FrameError::Offset`] where `offset` does not continue what this connection carries.
    pub fn data_at(&mut self, offset: u64, len: u32) -> Result<[u8; HEADER_LEN], FrameError> {
        self.out.open()?;
        if !(1..=DATA_MAX).contains(&len) {
            return Err(FrameError::Length { kind: DATA, len });
        }
        let end = self.continues(self.out, offset, len)?;
        let header = self.header(DATA, len, offset);
        self.out.position = end;
        Ok(header)
    }

    /// The SHUTDOWN frame: this side's stream has ended.
    ///
    /// # Errors
    /// [`FrameError::AfterShutdown`] the second time, [`FrameError::AfterReset`].
    pub fn shutdown(&mut self) -> Result<[u8; HEADER_LEN], FrameError> {
        self.shutdown_at(self.out.position)
    }

    /// The same for a stream that ends at `offset`, the last bytes of which others may carry.
    ///
    /// # Errors
    /// As [`Exchange::shutdown`]; [`FrameError::Offset`] where `offset` does not continue what this connection carries.
    pub fn shutdown_at(&mut self, offset: u64) -> Result<[u8; HEADER_LEN], FrameError> {
        self.out.open()?;
        self.out.position = self.continues(self.out, offset, 0)?;
        self.out.end = 1;
        Ok(self.header(SHUTDOWN, 0, offset))
    }

    /// An ACK frame for all that was received, to be sent when all of it, the shutdown included if it came, went on to the
    /// next hop.
    pub fn ack(&mut self) -> [u8; HEADER_LEN] {
        self.inc.acked = self.inc.position + self.inc.end;
        self.header(ACK, 0, self.inc.acked)
    }

    /// The header of a RESET frame with a reason of `len` bytes: this side gives the session up, or confirms that the peer
    /// did. Nothing of the session may follow it, acknowledgements and answers to PING included.
    ///
    /// # Errors
    /// [`FrameError::AfterReset`] the second time; [`FrameError::Settled`] where the peer may have taken the session for
    /// ended already, and would take this for the next one; [`FrameError::Length`] for more than [`MESSAGE_MAX`].
    pub fn reset(&mut self, len: u32) -> Result<[u8; HEADER_LEN], FrameError> {
        if self.out.reset {
            return Err(FrameError::AfterReset);
        }
        if self.settled() && !self.inc.reset {
            return Err(FrameError::Settled);
        }
        if len > MESSAGE_MAX as u32 {
            return Err(FrameError::Length { kind: RESET, len });
        }
        self.out.reset = true;
        Ok(self.header(RESET, len, 0))
    }

    /// A PING.
    pub fn ping(&self, token: u64) -> [u8; HEADER_LEN] {
        self.header(PING, 0, token)
    }

    /// The answer to a PING.
    pub fn pong(&self, token: u64) -> [u8; HEADER_LEN] {
        self.header(PONG, 0, token)
    }

    /// Takes a header that the peer has sent.
    ///
    /// # Errors
    /// How the peer broke the framed mode; the connection is of no use any more.
    pub fn receive(&mut self, header: &[u8; HEADER_LEN]) -> Result<Frame, FrameError> {
        let (kind, len, number) = self.fields(header)?;
        if self.inc.reset {
            return Err(FrameError::AfterReset);
        }
        let allowed = match kind {
            DATA => 1..=DATA_MAX,
            RESET => 0..=MESSAGE_MAX as u32,
            _ => 0..=0,
        };
        if !allowed.contains(&len) {
            return Err(FrameError::Length { kind, len });
        }
        match kind {
            DATA | SHUTDOWN => {
                self.inc.open()?;
                self.inc.position = self.continues(self.inc, number, len)?;
                self.inc.end = u64::from(kind == SHUTDOWN);
                Ok(if kind == DATA { Frame::Data { len } } else { Frame::Shutdown })
            }
            ACK => {
                let (min, max) = (self.out.acked, self.out.position + self.out.end);
                if !(min..=max).contains(&number) {
                    return Err(FrameError::Ack { got: number, min, max });
                }
                self.out.acked = number;
                Ok(Frame::Ack { offset: number })
            }
            RESET => {
                self.inc.reset = true;
                Ok(Frame::Reset { len })
            }
            PING => Ok(Frame::Ping { token: number }),
            PONG => Ok(Frame::Pong { token: number }),
            unknown => Err(FrameError::Kind(unknown)),
        }
    }

    /// Whether this side has sent its shutdown.
    pub fn shutdown_sent(&self) -> bool {
        self.out.end == 1
    }

    /// Whether the peer has sent its shutdown.
    pub fn shutdown_received(&self) -> bool {
        self.inc.end == 1
    }

    /// Whether the peer has confirmed that all of this side's bytes and the shutdown went on.
    pub fn delivered(&self) -> bool {
        self.out.all_acked()
    }

    /// Whether this side has said all there is: its shutdown, and that the peer's went on. The peer is free as soon as it
    /// has heard that and said the same.
    pub fn settled(&self) -> bool {
        self.out.end == 1 && self.inc.all_acked()
    }

    /// Whether the peer has given the session up.
    pub fn reset_received(&self) -> bool {
        self.inc.reset
    }

    /// Whether the session is over and the connection may carry another: it ended on both sides, or both gave it up.
    pub fn reusable(&self) -> bool {
        match (self.out.reset, self.inc.reset) {
            (false, false) => self.out.all_acked() && self.inc.all_acked(),
            (sent, received) => sent && received,
        }
    }

    /// Where the streams stand that are sent and received: how many bytes that is, or where the last part ends that this
    /// connection of a bundle carried.
    pub fn bytes(&self) -> (u64, u64) {
        (self.out.position, self.inc.position)
    }

    /// Where `stream` stands after `len` bytes at `offset`. One less than all there could be, so that its end has a number too.
    fn continues(&self, stream: Stream, offset: u64, len: u32) -> Result<u64, FrameError> {
        let expected = stream.position;
        let fits = if self.striped { offset >= expected } else { offset == expected };
        let end = offset.checked_add(len.into()).filter(|end| fits && *end < u64::MAX);
        end.ok_or(FrameError::Offset { got: offset, expected })
    }

    fn header(&self, kind: u8, len: u32, number: u64) -> [u8; HEADER_LEN] {
        let mut header = [0; HEADER_LEN];
        header[0] = kind;
        header[1] = u8::from(self.role == Role::Acceptor);
        header[4..8].copy_from_slice(&len.to_be_bytes());
        header[8..].copy_from_slice(&number.to_be_bytes());
        header
    }

    fn fields(&self, header: &[u8; HEADER_LEN]) -> Result<(u8, u32, u64), FrameError> {
        let [kind, direction, r0, r1, l0, l1, l2, l3, number @ ..] = *header;
        if !(DATA..=PONG).contains(&kind) {
            return Err(FrameError::Kind(kind));
        }
        if direction != u8::from(self.role == Role::Initiator) || [r0, r1] != [0, 0] {
            return Err(FrameError::Header);
        }
        Ok((kind, u32::from_be_bytes([l0, l1, l2, l3]), u64::from_be_bytes(number)))
    }
}
