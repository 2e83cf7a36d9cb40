//! Receiving into a file: what comes over a plain connection is put where it belongs by the thread that receives it, spliced where
//! nothing has to be hashed (socket, pipe, file), and otherwise hashed and written while it is in the processor's cache.

use super::connection::Connection;
use super::error::Error;
use super::receive::{Sender, give};
use super::turn::{Carriers, Step, Why, Work, turn};
use phoebus_files::block::Block;
use phoebus_files::local::Identity;
use phoebus_files::range::{Extent, Ranges};
use phoebus_files::store::Landing;
use phoebus_net::bulk::{Bulk, Siphon};
use phoebus_proto::gridftp::block::{self, BlockError, HEADER, Said, Wants};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use tokio::sync::watch;

/// How much is read at once where it is hashed: little enough to stay in a processor's cache.
const READ: usize = 256 << 10;

/// From how many bytes on a connection has a pipe: for fewer it costs more than it saves.
const SIPHON_FROM: u64 = 256 << 10;

/// What comes, put where it belongs.
pub(super) struct Arriving {
    landing: Arc<dyn Landing>,
    /// Where in the file the first byte of what is sent belongs.
    from: u64,
    came: u64,
    siphon: Option<Siphon>,
    /// Whether bytes are copied, since they are hashed, or there are no pipes, or the file takes nothing out of pipes.
    copies: bool,
    buffer: Vec<u8>,
    /// What was written last and not noted yet, since more of it may follow, and its checksum.
    last: Option<(Extent, u32)>,
    landed: Vec<Extent>,
}

impl Arriving {
    pub(super) fn new(landing: Arc<dyn Landing>, from: u64) -> Self {
        let copies = landing.sum().is_some();
        let (siphon, last) = (None, None);
        Self { landing, from, came: 0, siphon, copies, buffer: Vec::new(), last, landed: Vec::new() }
    }

    /// Whether it is time for a pipe.
    fn wants_siphon(&self) -> bool {
        self.siphon.is_none() && self.came >= SIPHON_FROM && !self.copies
    }

    /// Makes the pipe: as the process, for a user is allowed few.
    fn make_siphon(&mut self) {
        self.siphon = Siphon::new().ok();
        self.copies = self.siphon.is_none();
    }

    /// Takes up to `most` bytes that belong at `offset` of what is sent, and says how many; 0 at the end.
    fn take(&mut self, bulk: &Bulk, offset: u64, most: u64) -> Result<u64, Error> {
        let at = self.from.checked_add(offset).ok_or(Error::Endless)?;
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        let came = match self.siphon.as_mut().filter(|_| !self.copies) {
            Some(siphon) => {
                let len = siphon.fill(bulk, most)? as u64;
                let extent = Extent::new(at, len).ok_or(Error::Endless)?;
                let mine = self.landing.claim(extent)?;
                let drained = if mine.covers(extent) {
                    self.landing.file().act(|file| siphon.drain(file, at))
                } else {
                    Ok(false)
                };
                if drained.map_err(|error| self.landing.failed(error))? {
                    self.note(extent, |_, _| 0)?;
                } else {
                    let bytes = siphon.take()?;
                    self.copies |= mine.covers(extent);
                    self.put(&bytes, extent, &mine)?;
                }
                len
            }
            None => {
                self.buffer.resize(READ, 0);
                let len = bulk.read(&mut self.buffer[..most.min(READ)])?;
                let extent = Extent::new(at, len as u64).ok_or(Error::Endless)?;
                let mine = self.landing.claim(extent)?;
                let buffer = std::mem::take(&mut self.buffer);
                self.put(&buffer[..len], extent, &mine)?;
                self.buffer = buffer;
                len as u64
            }
        };
        self.came += came;
        Ok(came)
    }

    /// Writes what is `mine` of `bytes`, which belong at `extent`.
    fn put(&mut self, bytes: &[u8], extent: Extent, mine: &Ranges) -> Result<(), Error> {
        let how = self.landing.sum();
        for part in mine.iter().filter_map(|part| part.common(extent)) {
            // Within `bytes`, since within `extent`.
            let from = (part.start() - extent.start()) as usize;
            let bytes = &bytes[from..from + part.len() as usize];
            let written = self.landing.file().act(|file| file.write_all_at(bytes, part.start()));
            written.map_err(|error| self.landing.failed(error))?;
            self.note(part, |before, follows| match how {
                None => 0,
                Some(how) if follows => how.extend(before, bytes),
                Some(how) => how.of(bytes),
            })?;
        }
        Ok(())
    }

    /// Notes that `extent` was written, whose checksum is `sum` of what precedes it without a gap and of whether anything does.
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

    /// Tells the draft of what was written last.
    fn tell(&mut self) -> Result<(), Error> {
        if let Some((extent, sum)) = self.last.take() {
            self.landing.wrote(extent, sum)?;
            self.landed.push(extent);
        }
        Ok(())
    }
}

/// A connection's part of a transfer, as it lands.
pub(super) trait Arrival: Work {
    /// What it puts things with.
    fn arriving(&mut self) -> &mut Arriving;

    /// Whether it can be left alone now.
    fn is_idle(&self) -> bool;
}

/// Has all of `work` done, and gives `blocks` what has landed; or not all, if it is idle once `stopped` says that the transfer is
/// complete.
pub(super) async fn land<W: Arrival>(
    mut connection: Connection,
    mut work: W,
    (blocks, carriers): (&Sender, &Carriers),
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
            (loose, work, why) = turn(loose, work, carriers).await?;
            work.arriving().tell()?;
            for extent in std::mem::take(&mut work.arriving().landed) {
                give(blocks, Block::landed(extent)).await?;
            }
        }
        connection = loose.settle()?;
        if why == Why::Done {
            return Ok((connection, work));
        }
    }
}

/// Waits until `stopped` says so, or there is nobody left who could.
async fn complete(stopped: &mut Option<watch::Receiver<bool>>) {
    match stopped {
        Some(stopped) => drop(stopped.wait_for(|stopped| *stopped).await),
        None => std::future::pending().await,
    }
}

/// Extended blocks.
pub(super) struct Blocks {
    arriving: Arriving,
    channel: block::Channel,
    /// What the blocks said.
    pub(super) said: Vec<Said>,
    /// Whether nothing has come, and it may go without a word.
    strange: bool,
    /// Whether it has.
    pub(super) gone: bool,
}

impl Blocks {
    pub(super) fn new(arriving: Arriving, strange: bool) -> Self {
        Self { arriving, channel: block::Channel::new(), said: Vec::new(), strange, gone: false }
    }
}

impl Work for Blocks {
    fn user(&self) -> Option<Arc<Identity>> {
        self.arriving.landing.file().user().cloned()
    }

    fn prepare(&mut self) -> Result<Step, Error> {
        self.arriving.make_siphon();
        Ok(Step::More)
    }

    fn step(&mut self, bulk: &Bulk) -> Result<Step, Error> {
        if self.arriving.wants_siphon() {
            return Ok(Step::Prepare);
        }
        match self.channel.wants() {
            Wants::Nothing => return Ok(Step::Done),
            Wants::Header(wanted) => {
                let mut header = [0; HEADER];
                let len = bulk.read(&mut header[..wanted])?;
                if len == 0 {
                    self.gone = self.strange;
                    return if self.gone { Ok(Step::Done) } else { Err(BlockError::Cut.into()) };
                }
                self.strange = false;
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

    /// Only between blocks can it be left alone.
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
        self.arriving.landing.file().user().cloned()
    }

    fn prepare(&mut self) -> Result<Step, Error> {
        self.arriving.make_siphon();
        Ok(Step::More)
    }

    fn step(&mut self, bulk: &Bulk) -> Result<Step, Error> {
        if self.arriving.wants_siphon() {
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
