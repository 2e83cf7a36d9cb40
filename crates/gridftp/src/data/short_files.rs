//! Receives many short files one after the other in extended block mode (GFD.20, section 3.4), over a connection that the
//! sender keeps between them.
//!
//! All is read in the caller's task. A task for each file and connection would cost more than the files.

use super::acceptor::Acceptor;
use super::channel::Channel;
use super::connection::Connection;
use super::error::Error;
use phoebus_proto::gridftp::block::{self, BlockError, Event, Tally, Wants};
use std::ops::Range;
use tokio::time::timeout;

/// Bytes of one read.
const READ: usize = 256 << 10;

impl Channel {
    /// Receives `files` files of at most `most` bytes in all, with the headers of their blocks. `None` stands for a file
    /// whose blocks are not in order. Each file comes over one connection; the sender may end it after a file, and make
    /// another. The last one is kept. Calls `connected` at each connection.
    ///
    /// # Errors
    /// Of connections; [`Error::Long`] if more bytes come; [`Error::Stalled`]; [`Error::Nobody`] and the like if no
    /// permitted peer connects in time.
    pub async fn receive_files(
        &self,
        files: usize,
        most: usize,
        connected: impl Fn(),
    ) -> Result<Vec<Option<Vec<u8>>>, Error> {
        let acceptor = Acceptor::of(&self.0, true);
        let (buffer, held, connection) = (vec![0; READ], 0..0, None);
        let mut receiving =
            Receiving { channel: self, acceptor, connection, connected, buffer, held, room: most, most };
        let mut contents = Vec::new();
        for _ in 0..files {
            contents.push(receiving.file().await?);
        }
        let Receiving { connection, held, .. } = receiving;
        if let Some(connection) = connection.filter(|_| held.is_empty()) {
            self.0.keep(connection);
        }
        Ok(contents)
    }
}

/// The state between files.
struct Receiving<'a, C> {
    channel: &'a Channel,
    acceptor: Acceptor,
    connection: Option<Connection>,
    connected: C,
    buffer: Vec<u8>,
    /// The part of the buffer that was read and not parsed.
    held: Range<usize>,
    /// Bytes that may still come, of `most`.
    room: usize,
    most: usize,
}

impl<C: Fn()> Receiving<'_, C> {
    async fn file(&mut self) -> Result<Option<Vec<u8>>, Error> {
        let (mut parser, mut tally) = (block::Channel::new(), Tally::new());
        let (mut content, mut is_in_order) = (Vec::new(), true);
        let (mut is_kept, mut has_begun) = (true, false);
        while !tally.is_complete() {
            let wants = parser.wants();
            if wants == Wants::Nothing {
                // The file has parts on other connections, which nobody has asked for.
                return Err(Error::TooMany(1));
            }
            if self.held.is_empty() && self.read().await? == 0 {
                if has_begun {
                    return Err(BlockError::Cut.into());
                }
                self.connection.take().into_iter().for_each(Connection::close);
                continue;
            }
            has_begun = true;
            let there = &self.buffer[self.held.clone()];
            let mut events = Vec::new();
            let taken = match wants {
                Wants::Data { offset, len } => {
                    let taken = there.len().min(usize::try_from(len).unwrap_or(usize::MAX));
                    is_in_order &= offset == content.len() as u64;
                    content.extend_from_slice(&there[..taken]);
                    events.extend(parser.took(taken as u64));
                    taken
                }
                Wants::Header(_) | Wants::Nothing => {
                    let (taken, found) = parser.header(there)?;
                    events = found;
                    taken
                }
            };
            self.held.start += taken;
            self.room = self.room.checked_sub(taken).ok_or(Error::Long(self.most as u64))?;
            for event in events {
                is_kept &= !matches!(event, Event::End { kept: false });
                tally.count(event)?;
            }
        }
        if !is_kept {
            self.connection.take().into_iter().for_each(Connection::close);
            self.held = 0..0;
        }
        Ok(is_in_order.then_some(content))
    }

    /// Reads into the empty buffer. Returns the number of bytes, 0 at the end of the connection.
    async fn read(&mut self) -> Result<usize, Error> {
        let settings = &self.channel.0.settings;
        let limit = settings.stall_timeout;
        if self.connection.is_none() {
            let accepted = timeout(settings.reply_timeout, self.acceptor.next()).await;
            self.connection = Some(accepted.unwrap_or_else(|_| Err(self.acceptor.nobody(settings.reply_timeout)))?);
            (self.connected)();
        }
        let Some(connection) = &mut self.connection else { return Ok(0) };
        let read = timeout(limit, connection.read(&mut self.buffer)).await;
        let len = read.map_err(|_| Error::Stalled(limit))??;
        self.held = 0..len;
        Ok(len)
    }
}

#[cfg(test)]
mod tests {
    use super::super::settings::Settings;
    use super::*;
    use phoebus_proto::gridftp::block::{Header, flag};
    use std::io::Write;
    use std::net::{Ipv4Addr, TcpStream};

    fn file(content: &[u8], flags: u8) -> Vec<u8> {
        let end = Header { flags: flag::EOD | flag::EOF | flags, count: 0, offset: 1 };
        [&Header::data(0, content.len() as u64).encode()[..], content, &end.encode()].concat()
    }

    async fn received(sent: &[Vec<u8>], files: usize, most: usize) -> Result<Vec<Option<Vec<u8>>>, Error> {
        let channel = Channel::listening(Ipv4Addr::LOCALHOST.into(), Settings::default()).unwrap();
        let to = channel.local_addr().unwrap();
        let mut senders = Vec::new();
        for bytes in sent {
            let mut sender = TcpStream::connect(to).unwrap();
            sender.write_all(bytes).unwrap();
            senders.push(sender);
        }
        let connected = std::cell::Cell::new(0);
        let all = channel.receive_files(files, most, || connected.set(connected.get() + 1)).await;
        assert!(all.is_err() || connected.get() == sent.len());
        all
    }

    #[tokio::test]
    async fn files_follow_each_other_over_one_connection_or_several() {
        let (one, two) = (Some(b"one".to_vec()), Some(Vec::new()));
        let both = [file(b"one", 0), file(b"", 0)].concat();
        assert_eq!(received(&[both], 2, 99).await.unwrap(), [one.clone(), two.clone()]);
        assert_eq!(received(&[file(b"one", flag::CLOSE), file(b"", 0)], 2, 99).await.unwrap(), [one, two]);
        let late = [Header::data(2, 1).encode().to_vec(), b"x".to_vec(), file(b"", 0)].concat();
        assert_eq!(received(&[late], 1, 99).await.unwrap(), [None]);
    }

    #[tokio::test]
    async fn what_is_too_long_or_no_file_is_refused() {
        assert!(matches!(received(&[file(b"four", 0)], 1, 20).await, Err(Error::Long(20))));
        let parts = Header { flags: flag::EOD | flag::EOF, count: 0, offset: 2 }.encode().to_vec();
        assert!(matches!(received(&[parts], 1, 99).await, Err(Error::TooMany(1))));
        let endless = Header::data(0, 0).encode().repeat(9);
        assert!(matches!(received(&[endless], 1, 99).await, Err(Error::Long(99))));
        assert!(received(&[vec![flag::RESTART; 17]], 1, 99).await.is_err());
    }
}
