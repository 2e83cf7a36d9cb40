//! Data connections under Kerberos: `PROT S` and `PROT P` as RFC 2228, section 6, has them: each message with its length before it, four
//! bytes, the most significant first. An empty message is the end.
//!
//! Each message of a context has a number, on whichever connection it goes (RFC 4121). Here they have to come in order, and at the end
//! all have to have come that were sent since: over this connection, or over the control connection, which may be a little behind. So
//! nobody on the way can leave out, repeat or swap what was sent, nor hand it over as a command, unless all of a message reads like one; nor
//! a command as data where the size is known. An end of the connection alone shows nothing: where the size is not
//! announced (`ALLO`) it is refused.

use super::error::Error;
use super::opened::Opened;
use phoebus_krb5::{Context, Failure};
use phoebus_net::Stream;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::coop::consume_budget;
use tokio::time::{Instant, sleep};

/// How much goes into a message: less than any client says that it takes (`PBSZ`).
const SEAL: usize = 32 << 10;

/// The longest message that is taken.
pub(crate) const MAX_MESSAGE: usize = 1 << 20;

/// The least that clients have to take: a message of [`SEAL`] with what protects it.
pub(crate) const MIN_MESSAGE: usize = 64 << 10;

/// How long commands that were sent before the end of the data may come after it.
const BEHIND: Duration = Duration::from_secs(5);

/// How often is looked whether they have come.
const LOOK: Duration = Duration::from_millis(20);

/// How much is read at once.
const READ: usize = 64 << 10;

/// The protection of one connection.
#[derive(Debug)]
pub(super) struct Tokens {
    context: Arc<Context>,
    private: bool,
    /// What has come and was not opened.
    come: Vec<u8>,
    plain: Opened,
    /// The numbers of the last message before this connection, and of the last one over it.
    before: u64,
    last: u64,
    ended: bool,
}

impl Tokens {
    pub(super) fn new(context: Arc<Context>, private: bool) -> Self {
        let before = context.latest();
        Self { context, private, come: Vec::new(), plain: Opened::default(), before, last: before, ended: false }
    }

    /// Reads what the other end has sent; 0 at the end. Cancel safe.
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
            // Messages may bring nothing, one after the other.
            consume_budget().await;
            // Straight to where it waits: a future that held as much would be moved about with it.
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
                // An end amid a message is no end.
                return if self.come.is_empty() { Ok(0) } else { Err(io::ErrorKind::UnexpectedEof.into()) };
            }
        }
    }

    /// Whether the message came that says that this was all.
    pub(super) fn has_ended(&self) -> bool {
        self.ended
    }

    /// Waits until all messages have come that were sent up to the end.
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

    /// Opens a message of which all has come, if there is one.
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
        // All of the one before was read.
        *self.plain.more() = opened.bytes;
        Ok(true)
    }

    /// Whether there may be something to read without waiting for the connection.
    pub(super) fn is_ready(&self) -> bool {
        !self.plain.is_empty() || !self.come.is_empty() || self.ended
    }

    /// As `bytes` go over the connection, some at a time; what is left is given back. None at all are the end.
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
