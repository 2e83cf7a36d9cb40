//! The framed mode: carries a stream on a connection that outlives the session or has no half-close of its own (S22).
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
//! `direction` is 0 from initiator to acceptor and 1 back, so that a reflected frame is detected. A [`FrameState`] is
//! the frame state of one session on one connection. It tells when the connection may carry another session: when both
//! sides have sent SHUTDOWN and each has acknowledged that the other's bytes and SHUTDOWN went on to the next hop, or
//! when both have sent RESET. Without the acknowledgements, the next OPEN could queue behind a session whose receiver
//! has stopped reading.
//!
//! If a hop is a [bundle](super::bundle) of connections, each connection has a [striped](FrameState::striped) frame
//! state: the connection carries parts of the stream, so that its offsets may skip bytes but never go back.

use super::wire::MESSAGE_MAX;

/// Bytes of a frame's header.
pub const HEADER_LEN: usize = 16;
/// Longest payload of a DATA frame, in bytes: more than a relay moves at a time.
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
        /// The first offset that was not yet forwarded.
        offset: u64,
    },
    /// The session has failed. A REFUSED message of `len` bytes (without prefix) gives the reason. RESET is the
    /// sender's last frame of the session. The receiver answers with a RESET of its own.
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
        /// The token of the PING.
        token: u64,
    },
}

/// How a peer broke the framed mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The frame type is not known.
    #[error("a frame of unknown type {0}")]
    Kind(u8),
    /// The direction is not the peer's, or a reserved field is not 0.
    #[error("a frame with a wrong direction or reserved field")]
    Header,
    /// The length is not allowed for the frame type.
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
        /// The offset that continues the stream.
        expected: u64,
    },
    /// DATA or SHUTDOWN after SHUTDOWN.
    #[error("a frame after the end of the stream")]
    AfterShutdown,
    /// Any frame after RESET.
    #[error("a frame after RESET")]
    AfterReset,
    /// RESET after SHUTDOWN and after the acknowledgement of the peer's SHUTDOWN.
    #[error("a reset after the acknowledged end of the session")]
    Settled,
    /// An acknowledgement of bytes that were never sent, or of less than an earlier one.
    #[error("an acknowledgement of offset {got}; expected {min} to {max}")]
    Ack {
        /// The acknowledged offset.
        got: u64,
        /// The offset of the acknowledgement before.
        min: u64,
        /// The end of everything that was sent.
        max: u64,
    },
}

const DATA: u8 = 1;
const SHUTDOWN: u8 = 2;
const ACK: u8 = 3;
const RESET: u8 = 4;
const PING: u8 = 5;
const PONG: u8 = 6;

/// The frame state of one session on one connection: offsets, shutdowns and acknowledgements of both directions.
#[derive(Debug, Clone)]
pub struct FrameState {
    role: Role,
    /// Whether offsets may skip bytes, which other connections of the bundle carry.
    striped: bool,
    out: Stream,
    inc: Stream,
}

/// One direction. `end` is 1 after the shutdown, so that `position + end` counts the shutdown as one more byte.
#[derive(Debug, Clone, Copy, Default)]
struct Stream {
    position: u64,
    end: u64,
    acked: u64,
    reset: bool,
}

impl Stream {
    /// Checks that neither SHUTDOWN nor RESET was sent in this direction.
    fn check_open(self) -> Result<(), FrameError> {
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

impl FrameState {
    /// The state of a session that has just been opened.
    pub fn new(role: Role) -> Self {
        Self { role, striped: false, out: Stream::default(), inc: Stream::default() }
    }

    /// The state of one connection of a bundle, which carries parts of the session's stream.
    pub fn striped(role: Role) -> Self {
        Self { striped: true, ..Self::new(role) }
    }

    /// The role of this end.
    pub fn role(&self) -> Role {
        self.role
    }

    /// The header of a DATA frame. The caller sends `len` bytes of payload after it.
    ///
    /// # Errors
    /// [`FrameError::AfterShutdown`], [`FrameError::AfterReset`]; [`FrameError::Length`] for 0 or more than
    /// [`DATA_MAX`].
    pub fn data(&mut self, len: u32) -> Result<[u8; HEADER_LEN], FrameError> {
        self.data_at(self.out.position, len)
    }

    /// The header of a DATA frame with the bytes from `offset` on. On a striped connection, other connections may carry
    /// the bytes before `offset`.
    ///
    /// # Errors
    /// As [`FrameState::data`]; [`FrameError::Offset`] if `offset` does not continue what this connection carries.
    pub fn data_at(&mut self, offset: u64, len: u32) -> Result<[u8; HEADER_LEN], FrameError> {
        self.out.check_open()?;
        if !(1..=DATA_MAX).contains(&len) {
            return Err(FrameError::Length { kind: DATA, len });
        }
        let end = self.end_of(self.out, offset, len)?;
        let header = self.header(DATA, len, offset);
        self.out.position = end;
        Ok(header)
    }

    /// The SHUTDOWN frame: this side's stream has ended.
    ///
    /// # Errors
    /// [`FrameError::AfterShutdown`] on a second call, [`FrameError::AfterReset`].
    pub fn shutdown(&mut self) -> Result<[u8; HEADER_LEN], FrameError> {
        self.shutdown_at(self.out.position)
    }

    /// The SHUTDOWN frame of a stream that ends at `offset`. On a striped connection, other connections may carry the
    /// last bytes before `offset`.
    ///
    /// # Errors
    /// As [`FrameState::shutdown`]; [`FrameError::Offset`] if `offset` does not continue what this connection carries.
    pub fn shutdown_at(&mut self, offset: u64) -> Result<[u8; HEADER_LEN], FrameError> {
        self.out.check_open()?;
        self.out.position = self.end_of(self.out, offset, 0)?;
        self.out.end = 1;
        Ok(self.header(SHUTDOWN, 0, offset))
    }

    /// An ACK frame for everything received so far. The caller sends it once all of that, including a received
    /// SHUTDOWN, went on to the next hop.
    pub fn ack(&mut self) -> [u8; HEADER_LEN] {
        self.inc.acked = self.inc.position + self.inc.end;
        self.header(ACK, 0, self.inc.acked)
    }

    /// The header of a RESET frame with a reason of `len` bytes: this side aborts the session, or answers the peer's
    /// RESET. No other frame of the session may follow it, including ACK and PONG.
    ///
    /// # Errors
    /// [`FrameError::AfterReset`] on a second call; [`FrameError::Settled`] if the peer may regard the session as ended
    /// and would take RESET for a message of the next one; [`FrameError::Length`] for more than [`MESSAGE_MAX`].
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

    /// A PING frame.
    pub fn ping(&self, token: u64) -> [u8; HEADER_LEN] {
        self.header(PING, 0, token)
    }

    /// A PONG frame, the answer to the PING with this token.
    pub fn pong(&self, token: u64) -> [u8; HEADER_LEN] {
        self.header(PONG, 0, token)
    }

    /// Processes a header that the peer has sent.
    ///
    /// # Errors
    /// How the peer broke the framed mode. The connection cannot be used any more.
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
                self.inc.check_open()?;
                self.inc.position = self.end_of(self.inc, number, len)?;
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

    /// Whether this side has sent SHUTDOWN.
    pub fn shutdown_sent(&self) -> bool {
        self.out.end == 1
    }

    /// Whether the peer has sent SHUTDOWN.
    pub fn shutdown_received(&self) -> bool {
        self.inc.end == 1
    }

    /// Whether the peer has acknowledged that all of this side's bytes and its SHUTDOWN went on to the next hop.
    pub fn delivered(&self) -> bool {
        self.out.all_acked()
    }

    /// Whether this side has sent SHUTDOWN and acknowledged the peer's SHUTDOWN. The peer may then reuse the connection
    /// as soon as it has received both and has sent the same.
    pub fn settled(&self) -> bool {
        self.out.end == 1 && self.inc.all_acked()
    }

    /// Whether the peer has sent RESET.
    pub fn reset_received(&self) -> bool {
        self.inc.reset
    }

    /// Whether the session is over and the connection may carry another: both sides have sent and acknowledged
    /// SHUTDOWN, or both have sent RESET.
    pub fn reusable(&self) -> bool {
        match (self.out.reset, self.inc.reset) {
            (false, false) => self.out.all_acked() && self.inc.all_acked(),
            (sent, received) => sent && received,
        }
    }

    /// The offsets that the sent and the received stream have reached on this connection. Unless the connection is
    /// striped, these are the numbers of bytes sent and received.
    pub fn bytes(&self) -> (u64, u64) {
        (self.out.position, self.inc.position)
    }

    /// The offset of `stream` after `len` bytes at `offset`. It stays below `u64::MAX`, so that the shutdown has a
    /// number too.
    fn end_of(&self, stream: Stream, offset: u64, len: u32) -> Result<u64, FrameError> {
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
