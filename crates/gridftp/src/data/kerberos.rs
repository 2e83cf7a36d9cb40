//! Data connections under Kerberos: `PROT S` and `PROT P` (RFC 2228, section 6). Each message follows its length, four
//! bytes in network order. An empty message is the end.
//!
//! Each message of a context has a sequence number, whichever connection carries it (RFC 4121). Here they must come in
//! order, and at the end all messages up to it must have arrived: over this connection, or over the control connection,
//! which may lag a little. So an attacker can neither drop, repeat nor reorder data, nor pass it off as a command,
//! unless a message reads like one; nor a command as data if the size is known. The end of the connection alone proves
//! nothing: without an announced size (`ALLO`) it is refused.

use super::error::Error;
use super::opened::Opened;
use phoebus_krb5::{Context, Failure};
use phoebus_net::Stream;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::coop::consume_budget;
use tokio::time::{Instant, sleep};

/// Bytes in a message: fewer than any client's `PBSZ`.
const SEAL: usize = 32 << 10;

/// Longest message that is accepted.
pub(crate) const MAX_MESSAGE: usize = 1 << 20;

/// Smallest `PBSZ`: a message of [`SEAL`] bytes with its protection.
pub(crate) const MIN_MESSAGE: usize = 64 << 10;

/// How long commands that were sent before the end of data may arrive after it.
const BEHIND: Duration = Duration::from_secs(5);

/// Interval of checks whether they have arrived.
const LOOK: Duration = Duration::from_millis(20);

/// Most bytes of one read.
const READ: usize = 64 << 10;

/// The protection of one connection.
#[derive(Debug)]
pub(super) struct Tokens {
    context: Arc<Context>,
    private: bool,
    /// Received bytes that were not opened.
    come: Vec<u8>,
    plain: Opened,
    /// Sequence numbers of the last message before the transfer, and of the last one over this connection.
    before: u64,
    last: u64,
    ended: bool,
}

impl Tokens {
    /// For data of messages that come after number `before`.
    pub(super) fn new(context: Arc<Context>, private: bool, before: u64) -> Self {
        Self { context, private, come: Vec::new(), plain: Opened::default(), before, last: before, ended: false }
    }

    /// Reads data. 0 at the end. Cancel safe.
    pub(super) async fn read(&mut self, stream: &Stream, room: &mut [u8]) -> io::Result<usize> {
        loop {
            if !self.plain.is_empty() {
                return Ok(self.plain.read(room));
            }
            if self.ended {
                return self.all_has_come().await.map(|()| 0);
            }
            if self.open()? {
                continue;
            }
            // Several messages in succession may be without data.
            consume_budget().await;
            // A buffer of that size within the future would be moved with it.
            let had = self.come.len();
            self.come.resize(had + READ, 0);
            let read = stream.try_read(&mut self.come[had..]);
            self.come.truncate(had + *read.as_ref().unwrap_or(&0));
            let len = match read {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    stream.readable().await?;
                    continue;
                }
                other => other?,
            };
            if len == 0 {
                // An end within a message is a cut.
                return if self.come.is_empty() { Ok(0) } else { Err(io::ErrorKind::UnexpectedEof.into()) };
            }
        }
    }

    /// Whether the final message came.
    pub(super) fn has_ended(&self) -> bool {
        self.ended
    }

    /// Waits until all messages up to the end have arrived.
    async fn all_has_come(&self) -> io::Result<()> {
        let until = Instant::now() + BEHIND;
        while !self.context.has_all(self.before, self.last) {
            if Instant::now() >= until {
                return Err(wrong("messages are missing that were sent before the end"));
            }
            sleep(LOOK).await;
        }
        Ok(())
    }

    /// Opens a complete message, if there is one.
    fn open(&mut self) -> io::Result<bool> {
        let Some((length, rest)) = self.come.split_first_chunk::<4>() else { return Ok(false) };
        let length = u32::from_be_bytes(*length) as usize;
        if length > MAX_MESSAGE {
            return Err(wrong(&format!("a message of {length} bytes came, and at most {MAX_MESSAGE} are taken")));
        }
        let Some(message) = rest.get(..length) else { return Ok(false) };
        let opened = self.context.unwrap(message).map_err(|failure| wrong(&failure.to_string()))?;
        if self.private && !opened.private {
            return Err(wrong("a message came that is not encrypted, and PROT P was agreed on"));
        }
        let number = opened.number.ok_or_else(|| wrong("messages of RFC 4121 were expected, which have numbers"))?;
        if number <= self.last {
            return Err(wrong("a message came after one that was sent later"));
        }
        self.last = number;
        self.come.drain(..4 + length);
        self.ended = opened.bytes.is_empty();
        // The previous message was read completely.
        *self.plain.more() = opened.bytes;
        Ok(true)
    }

    /// Whether a read may succeed without waiting for the connection.
    pub(super) fn is_ready(&self) -> bool {
        !self.plain.is_empty() || !self.come.is_empty() || self.ended
    }

    /// Protects some of `bytes`, and returns the rest. Without bytes, makes the final message.
    pub(super) fn seal<'a>(&self, bytes: &'a [u8], out: &mut Vec<u8>) -> Result<&'a [u8], Error> {
        let (now, later) = bytes.split_at(bytes.len().min(SEAL));
        let message = self.context.wrap(now, self.private).map_err(|failure| sealing(&failure))?;
        let length = u32::try_from(message.len()).map_err(|_| Error::Endless)?;
        out.clear();
        out.extend_from_slice(&length.to_be_bytes());
        out.extend_from_slice(&message);
        Ok(later)
    }
}

fn wrong(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why.to_owned())
}

fn sealing(failure: &Failure) -> Error {
    Error::Broken(io::Error::other(failure.to_string()))
}
