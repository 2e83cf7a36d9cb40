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
    /// Receives `files` files of at most `most` bytes in all, and calls `came` after each. `None` stands for a file whose
    /// blocks are not in order. Each file comes over one connection; the sender may make another for the next. The last
    /// one is kept.
    ///
    /// # Errors
    /// Of connections; [`Error::Long`] if more bytes come; [`Error::Stalled`]; [`Error::Nobody`] and the like if no
    /// permitted peer connects in time.
    pub async fn receive_files(
        &self,
        files: usize,
        most: usize,
        mut came: impl FnMut(),
    ) -> Result<Vec<Option<Vec<u8>>>, Error> {
        let acceptor = Acceptor::of(&self.0, true);
        let mut receiving = Receiving {
            channel: self,
            acceptor,
            connection: None,
            buffer: vec![0; READ],
            held: 0..0,
            room: most,
            most,
        };
        let mut contents = Vec::new();
        for _ in 0..files {
            contents.push(receiving.file().await?);
            came();
        }
        let Receiving { connection, held, .. } = receiving;
        if let Some(connection) = connection.filter(|_| held.is_empty()) {
            self.0.keep(connection);
        }
        Ok(contents)
    }
}

/// The state between files.
struct Receiving<'a> {
    channel: &'a Channel,
    acceptor: Acceptor,
    connection: Option<Connection>,
    buffer: Vec<u8>,
    /// The part of the buffer that was read and not parsed.
    held: Range<usize>,
    /// Bytes that may still come, of `most`.
    room: usize,
    most: usize,
}

impl Receiving<'_> {
    async fn file(&mut self) -> Result<Option<Vec<u8>>, Error> {
        let (mut parser, mut tally) = (block::Channel::new(), Tally::new());
        let (mut content, mut is_in_order) = (Vec::new(), true);
        let mut is_kept = true;
        self.begin().await?;
        while !tally.is_complete() {
            let wants = parser.wants();
            if wants == Wants::Nothing {
                // The file has parts on other connections, which nobody has asked for.
                return Err(Error::TooMany(1));
            }
            if self.held.is_empty() && self.read().await? == 0 {
                return Err(BlockError::Cut.into());
            }
            let there = &self.buffer[self.held.clone()];
            let mut events = Vec::new();
            let taken = match wants {
                Wants::Data { offset, len } => {
                    let taken = there.len().min(usize::try_from(len).unwrap_or(usize::MAX));
                    self.room = self.room.checked_sub(taken).ok_or(Error::Long(self.most as u64))?;
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

    /// Waits for the first bytes of a file, on the connection of the last one or on another.
    async fn begin(&mut self) -> Result<(), Error> {
        if !self.held.is_empty() {
            return Ok(());
        }
        let settings = &self.channel.0.settings;
        let Some(connection) = &self.connection else {
            let accepted = timeout(settings.reply_timeout, self.acceptor.next()).await;
            let accepted = accepted.unwrap_or_else(|_| Err(self.acceptor.nobody(settings.reply_timeout)));
            self.connection = Some(accepted?);
            return Ok(());
        };
        let other = async {
            tokio::select! {
                biased;
                ready = connection.readable() => ready.map(|()| None).map_err(Error::from),
                other = self.acceptor.next() => other.map(Some),
            }
        };
        let other = timeout(settings.stall_timeout, other).await.map_err(|_| Error::Stalled(settings.stall_timeout))?;
        if let Some(other) = other? {
            self.connection.replace(other).into_iter().for_each(Connection::close);
        }
        Ok(())
    }

    /// Reads into the empty buffer. Returns the number of bytes, 0 at the end of the connection.
    async fn read(&mut self) -> Result<usize, Error> {
        let limit = self.channel.0.settings.stall_timeout;
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
        let mut came = 0;
        let all = channel.receive_files(files, most, || came += 1).await;
        assert!(all.is_err() || came == files);
        all
    }

    #[tokio::test]
    async fn files_follow_each_other_over_one_connection_or_several() {
        let (one, two) = (Some(b"one".to_vec()), Some(Vec::new()));
        let both = [file(b"one", 0), file(b"", 0)].concat();
        assert_eq!(received(&[both], 2, 9).await.unwrap(), [one.clone(), two.clone()]);
        assert_eq!(received(&[file(b"one", flag::CLOSE), file(b"", 0)], 2, 9).await.unwrap(), [one, two]);
        let late = [Header::data(2, 1).encode().to_vec(), b"x".to_vec(), file(b"", 0)].concat();
        assert_eq!(received(&[late], 1, 9).await.unwrap(), [None]);
    }

    #[tokio::test]
    async fn what_is_too_long_or_no_file_is_refused() {
        assert!(matches!(received(&[file(b"four", 0)], 1, 3).await, Err(Error::Long(3))));
        let parts = Header { flags: flag::EOD | flag::EOF, count: 0, offset: 2 }.encode().to_vec();
        assert!(matches!(received(&[parts], 1, 9).await, Err(Error::TooMany(1))));
        assert!(received(&[vec![flag::RESTART; 17]], 1, 9).await.is_err());
    }
}
