//! Data connections inside another byte stream, such as one that SSH carries, one after the other (`docs/protocol/gridftp.md`, "Data
//! inside SSH"): the frames of the stream, and the [`Ticket`] by which whoever opens a stream finds the server of a control connection.
//!
//! ```text
//!   frame = kind (1 byte) | value (4 bytes, big-endian) | for Data: so many bytes
//! ```

use super::reply::Reply;
use std::fmt;
use std::str::FromStr;

/// The driver that carries data so, as `SITE SETNETSTACK` names it.
pub const DRIVER: &str = "ssh";

/// What the far side's relay says first, before anything else.
pub const GREETING: &[u8] = b"phoebus-data/1\n";

/// Bytes of a frame before its data.
pub const HEAD: usize = 5;

/// The most bytes of data in one frame: what either end has to have room for.
pub const MAX_DATA: usize = 64 << 10;

/// The beginning of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Frame {
    /// The client asks for a data connection to this port of the server.
    Open(u16),
    /// The server has taken it; also the answer to a ticket.
    Opened,
    /// The server has not.
    Refused,
    /// So many bytes follow.
    Data(usize),
    /// The sender has sent all.
    End,
    /// The sender has given up: what was sent may not be all.
    Reset,
}

/// What is no frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the stream that carries data connections has a frame of kind {kind} and value {value}, which none has")]
pub struct FrameError {
    kind: u8,
    value: u32,
}

impl Frame {
    /// As it is sent.
    pub fn encode(self) -> [u8; HEAD] {
        let (kind, value) = match self {
            Self::Open(port) => (1, u32::from(port)),
            Self::Opened => (2, 0),
            Self::Refused => (3, 0),
            // A larger one is never sent.
            Self::Data(len) => (4, len as u32),
            Self::End => (5, 0),
            Self::Reset => (6, 0),
        };
        let [a, b, c, d] = value.to_be_bytes();
        [kind, a, b, c, d]
    }

    /// What was sent.
    ///
    /// # Errors
    /// It is no frame, or announces more than [`MAX_DATA`].
    pub fn decode(head: [u8; HEAD]) -> Result<Self, FrameError> {
        let [kind, a, b, c, d] = head;
        let value = u32::from_be_bytes([a, b, c, d]);
        match (kind, value) {
            (1, 1..=0xffff) => Ok(Self::Open(value as u16)),
            (2, 0) => Ok(Self::Opened),
            (3, 0) => Ok(Self::Refused),
            (4, 1..) if value as usize <= MAX_DATA => Ok(Self::Data(value as usize)),
            (5, 0) => Ok(Self::End),
            (6, 0) => Ok(Self::Reset),
            _ => Err(FrameError { kind, value }),
        }
    }
}

/// By what the server of a control connection is found at its host, and by what it knows that a stream is its client's.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Ticket {
    /// The server's name among those of its host. No secret.
    pub name: [u8; 16],
    /// What only the client was told.
    pub secret: [u8; 32],
}

/// What is no ticket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the server answers something else than 250 ssh:ticket=… to SITE SETNETSTACK ssh")]
pub struct TicketError;

impl Ticket {
    /// What a server says after 250 to the driver.
    pub fn answer(&self) -> String {
        format!("{DRIVER}:ticket={}-{}", hex(&self.name), hex(&self.secret))
    }

    /// The server's, in its answer.
    ///
    /// # Errors
    /// It is another answer, which is not repeated: it may hold a secret.
    pub fn of_answer(reply: &Reply) -> Result<Self, TicketError> {
        let line = match (&reply.lines[..], reply.code) {
            ([line], 250) => str::from_utf8(line).ok(),
            _ => None,
        };
        let text = line.and_then(|line| line.strip_prefix(DRIVER)?.strip_prefix(":ticket="));
        text.ok_or(TicketError)?.parse()
    }

    /// The name as a line for the relay.
    pub fn name_line(&self) -> String {
        format!("{}\n", hex(&self.name))
    }

    /// The name in such a line, without its end.
    pub fn parse_name(text: &str) -> Option<[u8; 16]> {
        unhex(text)
    }
}

impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ticket({}, …)", hex(&self.name))
    }
}

impl FromStr for Ticket {
    type Err = TicketError;

    fn from_str(text: &str) -> Result<Self, TicketError> {
        let (name, secret) = text.split_once('-').ok_or(TicketError)?;
        let ticket = unhex(name).zip(unhex(secret)).map(|(name, secret)| Self { name, secret });
        ticket.ok_or(TicketError)
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digits = text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    if !digits || text.len() != 2 * N {
        return None;
    }
    let mut bytes = [0; N];
    for (i, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * i..2 * i + 2], 16).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_read_as_they_were_written() {
        let all = [Frame::Open(1), Frame::Open(65535), Frame::Opened, Frame::Refused, Frame::Data(1)];
        for frame in all.into_iter().chain([Frame::Data(MAX_DATA), Frame::End, Frame::Reset]) {
            assert_eq!(Frame::decode(frame.encode()), Ok(frame));
        }
        for head in [
            [0; 5],
            [1, 0, 0, 0, 0],
            [1, 0, 1, 0, 0],
            [2, 0, 0, 0, 1],
            [4, 0, 0, 0, 0],
            [4, 0, 1, 0, 1],
            [7, 0, 0, 0, 0],
        ] {
            assert!(Frame::decode(head).is_err(), "{head:?}");
        }
    }

    #[test]
    fn tickets_are_read_from_answers_and_shown_without_their_secrets() {
        let ticket = Ticket { name: [0xab; 16], secret: [7; 32] };
        let reply = |text: &str| Reply::new(250, text);
        assert_eq!(Ticket::of_answer(&reply(&ticket.answer())), Ok(ticket));
        assert!(!format!("{ticket:?}").contains("0707"));
        assert_eq!(Ticket::parse_name(ticket.name_line().trim_end()), Some(ticket.name));
        for text in ["OK.", "ssh:ticket=", "ssh:ticket=ab-cd", &ticket.answer()[1..], &ticket.answer().to_uppercase()] {
            assert!(Ticket::of_answer(&reply(text)).is_err(), "{text}");
        }
    }
}
