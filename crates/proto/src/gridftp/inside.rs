//! Data connections inside another byte stream, such as an SSH channel, one after the other
//! (`docs/protocol/gridftp.md`, "Data inside SSH"): the frames of the stream, and the [`Ticket`] by which a stream is
//! joined to the server process of its control connection.
//!
//! ```text
//!   frame = kind (1 byte) | value (4 bytes, big-endian) | for Data: value bytes of data
//! ```

use super::reply::Reply;
use crate::hex::{hex, unhex};
use std::fmt;
use std::str::FromStr;

/// The name of this driver in `SITE SETNETSTACK`.
pub const DRIVER: &str = "ssh";

/// The first bytes of the relay at the far side.
pub const GREETING: &[u8] = b"phoebus-data/1\n";

/// Length of a frame's header, in bytes.
pub const HEAD: usize = 5;

/// Most bytes of data in one frame. Both ends need a buffer of this size.
pub const MAX_DATA: usize = 64 << 10;

/// The header of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Frame {
    /// The client requests a data connection to this port of the server.
    Open(u16),
    /// The server has accepted the connection; also the answer to a valid ticket.
    Opened,
    /// The server has refused the connection.
    Refused,
    /// This many bytes of data follow.
    Data(usize),
    /// The sender has sent all data.
    End,
    /// The sender has aborted the connection. The data may be incomplete.
    Reset,
}

/// A header with an invalid kind or value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the stream that carries data connections has a frame of kind {kind} and value {value}, which none has")]
pub struct FrameError {
    kind: u8,
    value: u32,
}

impl Frame {
    /// Encodes the header.
    pub fn encode(self) -> [u8; HEAD] {
        let (kind, value) = match self {
            Self::Open(port) => (1, u32::from(port)),
            Self::Opened => (2, 0),
            Self::Refused => (3, 0),
            // Callers send at most MAX_DATA bytes, so the length fits.
            Self::Data(len) => (4, len as u32),
            Self::End => (5, 0),
            Self::Reset => (6, 0),
        };
        let [a, b, c, d] = value.to_be_bytes();
        [kind, a, b, c, d]
    }

    /// Decodes a header.
    ///
    /// # Errors
    /// [`FrameError`] if kind or value is invalid, or if the frame announces more than [`MAX_DATA`] bytes.
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

/// Joins a stream to a control connection: the name finds the server process on its host, and the secret proves that
/// the stream belongs to the same client.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Ticket {
    /// The name of the server process on its host. Not secret.
    pub name: [u8; 16],
    /// A secret that only the client has received.
    pub secret: [u8; 32],
}

/// The reply does not contain a ticket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the server answers something else than 250 ssh:ticket=… to SITE SETNETSTACK ssh")]
pub struct TicketError;

impl Ticket {
    /// The text of the server's 250 reply to `SITE SETNETSTACK`.
    pub fn answer(&self) -> String {
        format!("{DRIVER}:ticket={}-{}", hex(&self.name), hex(&self.secret))
    }

    /// Parses the ticket in the server's reply.
    ///
    /// # Errors
    /// [`TicketError`]. It does not quote the reply, which may contain a secret.
    pub fn of_answer(reply: &Reply) -> Result<Self, TicketError> {
        let line = match (&reply.lines[..], reply.code) {
            ([line], 250) => str::from_utf8(line).ok(),
            _ => None,
        };
        let text = line.and_then(|line| line.strip_prefix(DRIVER)?.strip_prefix(":ticket="));
        text.ok_or(TicketError)?.parse()
    }

    /// The line by which the client tells the relay the name.
    pub fn name_line(&self) -> String {
        format!("{}\n", hex(&self.name))
    }

    /// Parses the name in such a line, without the line end.
    pub fn parse_name(text: &str) -> Option<[u8; 16]> {
        of_hex(text)
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
        let ticket = of_hex(name).zip(of_hex(secret)).map(|(name, secret)| Self { name, secret });
        ticket.ok_or(TicketError)
    }
}

/// The bytes that `text` writes in lower-case digits.
fn of_hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let is_lower = !text.bytes().any(|b| b.is_ascii_uppercase());
    unhex(text).filter(|_| is_lower)?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_decode_back_and_invalid_headers_are_refused() {
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
    fn tickets_are_parsed_from_replies_and_printed_without_secrets() {
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
