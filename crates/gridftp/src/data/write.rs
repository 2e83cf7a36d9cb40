//! Receives into a file: the thread that receives bytes of a plain connection writes them to their place. Without a
//! checksum, it splices (socket, pipe, file); otherwise it hashes and writes while the bytes are in the processor's
//! cache.

use super::blocks::{Sender, give};
use super::connection::Connection;
use super::error::Error;
use super::time_slice::{IoThreads, Step, Why, Work, turn};
use phoebus_files::block::Block;
use phoebus_files::local::Identity;
use phoebus_files::range::{Extent, Ranges};
use phoebus_files::store::DirectWriter;
use phoebus_net::bulk::{Bulk, SplicePipe};
use phoebus_proto::gridftp::block::{self, BlockError, Event, HEADER, Wants};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use tokio::sync::watch;

/// Bytes that are read at once for hashing: few enough to stay in a processor's cache.
const READ: usize = 256 << 10;

/// Received bytes after which a connection gets a pipe. For less, it costs more than it saves.
const PIPE_FROM: u64 = 256 << 10;

/// Writes received bytes to their place.
pub(super) struct Arriving {
    direct_writer: Arc<dyn DirectWriter>,
    /// Offset in the file of the first byte.
    from: u64,
    came: u64,
    pipe: Option<SplicePipe>,
    /// Whether bytes are copied: for hashing, without pipes, or if the file does not support splice.
    copies: bool,
    buffer: Vec<u8>,
    /// The last written range, which may still grow, and its checksum.
    last: Option<(Extent, u32)>,
    written: Vec<Extent>,
}

impl Arriving {
    pub(super) fn new(direct_writer: Arc<dyn DirectWriter>, from: u64) -> Self {
        let copies = direct_writer.sum().is_some();
        let (pipe, last) = (None, None);
        Self { direct_writer, from, came: 0, pipe, copies, buffer: Vec::new(), last, written: Vec::new() }
    }

    /// Whether it is time for a pipe.
    fn wants_pipe(&self) -> bool {
        self.pipe.is_none() && self.came >= PIPE_FROM && !self.copies
    }

    /// Makes the pipe. As the process, since users may have few.
    fn make_pipe(&mut self) {
        self.pipe = SplicePipe::new().ok();
        self.copies = self.pipe.is_none();
    }

    /// Receives up to `most` bytes for `offset`. Returns their number; 0 at the end.
    fn take(&mut self, bulk: &Bulk, offset: u64, most: u64) -> Result<u64, Error> {
        let at = self.from.checked_add(offset).ok_or(Error::Endless)?;
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        let came = match self.pipe.as_mut().filter(|_| !self.copies) {
            Some(pipe) => {
                let len = pipe.fill(bulk, most)? as u64;
                let extent = Extent::new(at, len).ok_or(Error::Endless)?;
                let mine = self.direct_writer.claim(extent)?;
                let drained = if mine.covers(extent) {
                    self.direct_writer.file().act(|file| pipe.drain(file, at))
                } else {
                    Ok(false)
                };
                if drained.map_err(|error| self.direct_writer.failed(error))? {
                    self.note(extent, |_, _| 0)?;
                } else {
                    let bytes = pipe.take()?;
                    self.copies |= mine.covers(extent);
                    self.put(&bytes, extent, &mine)?;
                }
                len
            }
            None => {
                self.buffer.resize(READ, 0);
                let len = bulk.read(&mut self.buffer[..most.min(READ)])?;
                let extent = Extent::new(at, len as u64).ok_or(Error::Endless)?;
                let mine = self.direct_writer.claim(extent)?;
                let buffer = std::mem::take(&mut self.buffer);
                self.put(&buffer[..len], extent, &mine)?;
                self.buffer = buffer;
                len as u64
            }
        };
        self.came += came;
        Ok(came)
    }

    /// Writes the ranges `mine` of `bytes`, which are at `extent`.
    fn put(&mut self, bytes: &[u8], extent: Extent, mine: &Ranges) -> Result<(), Error> {
        let how = self.direct_writer.sum();
        for part in mine.iter().filter_map(|part| part.common(extent)) {
            // Within `bytes`, since within `extent`.
            let from = (part.start() - extent.start()) as usize;
            let bytes = &bytes[from..from + part.len() as usize];
            let written = self.direct_writer.file().act(|file| file.write_all_at(bytes, part.start()));
            written.map_err(|error| self.direct_writer.failed(error))?;
            self.note(part, |before, follows| match how {
                None => 0,
                Some(how) if follows => how.extend(before, bytes),
                Some(how) => how.of(bytes),
            })?;
        }
        Ok(())
    }

    /// Records that `extent` was written. `sum`: its checksum, and whether it continues the previous range.
    fn note(&mut self, extent: Extent, sum: impl FnOnce(u32, bool) -> u32) -> Result<(), Error> {
        if extent.is_empty() {
            return Ok(());
        }
        match &mut self.last {
            Some((last, value)) if last.end() == extent.start() => {
                *value = sum(*value, true);
                *last = Extent::between(last.start(), extent.end()).ok_or(Error::Endless)?;
            }
            _ => {
                self.tell()?;
                self.last = Some((extent, sum(0, false)));
            }
        }
        Ok(())
    }

    /// Reports the last written range to the draft.
    fn tell(&mut self) -> Result<(), Error> {
        if let Some((extent, sum)) = self.last.take() {
            self.direct_writer.wrote(extent, sum)?;
            self.written.push(extent);
        }
        Ok(())
    }
}

/// A connection that fails within a slice has written what came before. A later attempt resumes there.
impl Drop for Arriving {
    fn drop(&mut self) {
        // The only error is that the file cannot be so long. The connection reports its own.
        let _ = self.tell();
    }
}

/// The part of a connection in a transfer, as it is written.
pub(super) trait Arrival: Work {
    /// The writer.
    fn arriving(&mut self) -> &mut Arriving;

    /// Whether the connection can be kept now.
    fn is_idle(&self) -> bool;
}

/// Does all of `work`, and sends written ranges to `blocks`. Returns early if it is idle once `stopped` says that the
/// transfer is complete.
pub(super) async fn write_blocks<W: Arrival>(
    mut connection: Connection,
    mut work: W,
    (blocks, io_threads): (&Sender, &IoThreads),
    mut stopped: Option<watch::Receiver<bool>>,
) -> Result<(Connection, W), Error> {
    loop {
        tokio::select! {
            biased;
            ready = connection.readable() => ready?,
            () = complete(&mut stopped), if work.is_idle() => return Ok((connection, work)),
        }
        let mut loose = connection.loosen()?;
        let mut why = Why::Over;
        while why == Why::Over {
            (loose, work, why) = turn(loose, work, io_threads).await?;
            work.arriving().tell()?;
            for extent in std::mem::take(&mut work.arriving().written) {
                give(blocks, Block::written(extent)).await?;
            }
        }
        connection = loose.settle()?;
        if why == Why::Done {
            return Ok((connection, work));
        }
    }
}

/// Waits until `stopped` is set or its sender is gone.
async fn complete(stopped: &mut Option<watch::Receiver<bool>>) {
    match stopped {
        Some(stopped) => drop(stopped.wait_for(|stopped| *stopped).await),
        None => std::future::pending().await,
    }
}

/// A connection in extended block mode.
pub(super) struct Blocks {
    arriving: Arriving,
    channel: block::Channel,
    /// What the blocks announced.
    pub(super) said: Vec<Event>,
    /// Whether nothing has come, and it may end without data.
    optional: bool,
    /// Whether it has done so.
    pub(super) gone: bool,
}

impl Blocks {
    pub(super) fn new(arriving: Arriving, optional: bool) -> Self {
        Self { arriving, channel: block::Channel::new(), said: Vec::new(), optional, gone: false }
    }
}

impl Work for Blocks {
    fn user(&self) -> Option<Arc<Identity>> {
        self.arriving.direct_writer.file().user().cloned()
    }

    fn prepare(&mut self) -> Result<Step, Error> {
        self.arriving.make_pipe();
        Ok(Step::More)
    }

    fn step(&mut self, bulk: &Bulk) -> Result<Step, Error> {
        if self.arriving.wants_pipe() {
            return Ok(Step::Prepare);
        }
        match self.channel.wants() {
            Wants::Nothing => return Ok(Step::Done),
            Wants::Header(wanted) => {
                let mut header = [0; HEADER];
                let len = match bulk.read(&mut header[..wanted]) {
                    Err(error) if self.optional && error.kind() != std::io::ErrorKind::WouldBlock => 0,
                    read => read?,
                };
                if len == 0 {
                    self.gone = self.optional;
                    return if self.gone { Ok(Step::Done) } else { Err(BlockError::Cut.into()) };
                }
                self.optional = false;
                self.said.extend(self.channel.header(&header[..len])?.1);
            }
            Wants::Data { offset, len } => {
                let len = self.arriving.take(bulk, offset, len)?;
                if len == 0 {
                    return Err(BlockError::Cut.into());
                }
                self.said.extend(self.channel.took(len));
            }
        }
        Ok(Step::More)
    }
}

impl Arrival for Blocks {
    fn arriving(&mut self) -> &mut Arriving {
        &mut self.arriving
    }

    /// It can only be kept between blocks.
    fn is_idle(&self) -> bool {
        self.channel.wants() == Wants::Header(HEADER) && self.said.is_empty()
    }
}

/// A stream.
pub(super) struct Bytes {
    arriving: Arriving,
    expected: Option<u64>,
}

impl Bytes {
    pub(super) fn new(arriving: Arriving, expected: Option<u64>) -> Self {
        Self { arriving, expected }
    }
}

impl Work for Bytes {
    fn user(&self) -> Option<Arc<Identity>> {
        self.arriving.direct_writer.file().user().cloned()
    }

    fn prepare(&mut self) -> Result<Step, Error> {
        self.arriving.make_pipe();
        Ok(Step::More)
    }

    fn step(&mut self, bulk: &Bulk) -> Result<Step, Error> {
        if self.arriving.wants_pipe() {
            return Ok(Step::Prepare);
        }
        let came = self.arriving.came;
        let left = self.expected.map_or(u64::MAX, |expected| expected - came);
        if left == 0 {
            return match bulk.read(&mut [0])? {
                0 => Ok(Step::Done),
                _ => Err(Error::Long(came)),
            };
        }
        match (self.arriving.take(bulk, came, left)?, self.expected) {
            (0, Some(expected)) => Err(Error::Short { came, expected }),
            (0, None) => Ok(Step::Done),
            _ => Ok(Step::More),
        }
    }
}

impl Arrival for Bytes {
    fn arriving(&mut self) -> &mut Arriving {
        &mut self.arriving
    }

    fn is_idle(&self) -> bool {
        false
    }
}
