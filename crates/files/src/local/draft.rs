//! Writes local files: drafts, and files that are changed in place.

use super::{Local, UserFile};
use crate::block::Block;
use crate::disk::{Disk, DiskFile, Linux, LinuxFile};
use crate::draft::{MAX_GAPS, Work};
use crate::error::{Error, ErrorKind};
use crate::key::Key;
use crate::range::{Extent, Ranges};
use crate::store::{Boxed, Capabilities, DirectWriter, Draft, Fallible, Kind, TakeHole};
use crate::sum::{Algorithm, Combining, Sum};
use bytes::Bytes;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Longest wait for direct writers. One that hangs in a disk may take longer; it then still holds the lock.
const PARTING: Duration = Duration::from_secs(1);

/// A draft whose calls run on blocking threads.
pub(super) struct LocalDraft {
    pub(super) store: Local,
    pub(super) dir: Key,
    pub(super) work: Arc<Work<Linux>>,
}

impl LocalDraft {
    fn run<T: Send + 'static>(
        &self,
        call: impl FnOnce(&Work<Linux>) -> Result<T, Error> + Send + 'static,
    ) -> Fallible<'_, T> {
        let work = self.work.clone();
        Box::pin(self.store.run(move |_| call(&work)))
    }
}

impl Draft for LocalDraft {
    fn name(&self) -> String {
        self.work.label().to_owned()
    }

    fn kept(&self) -> Ranges {
        self.work.safe()
    }

    fn capabilities(&self) -> Capabilities<'_> {
        let direct_writer = || {
            let file = self.store.user_file(self.work.file());
            Arc::new(LocalLanding { work: self.work.clone(), file }) as _
        };
        Capabilities {
            place: Some(self.work.place().clone()),
            resumable: self.work.is_journalled(),
            holes: Some(Box::new(self)),
            // Only those who have the bytes can look for zeros.
            direct_writer: (!self.work.leaves_holes()).then(direct_writer),
            ..Capabilities::default()
        }
    }

    fn write(&self, block: Block<Bytes>) -> Fallible<'_, ()> {
        self.run(move |work| work.write(&block))
    }

    fn flush(&self) -> Fallible<'_, ()> {
        Box::pin(async { Ok(()) })
    }

    fn checkpoint(&self) -> Fallible<'_, Ranges> {
        self.run(Work::checkpoint)
    }

    fn written_sum(&self, size: u64) -> Option<Sum> {
        self.work.written_sum(size)
    }

    fn checksum(&self, algorithm: Algorithm) -> Fallible<'_, Sum> {
        Box::pin(async move {
            let (name, act) = (self.work.label(), "read the draft of");
            let size = self.run(move |work| {
                let stat = work.file().stat();
                Ok(stat.map_err(|error| Error::io(work.label(), act, error))?.size)
            });
            let extent = Extent::first(size.await?);
            self.store.checksum((name, act), self.work.file(), algorithm, extent).await
        })
    }

    fn publish(&self, size: u64) -> Fallible<'_, ()> {
        Box::pin(async move {
            if let Some(batch_sync) = self.store.1.batch_sync() {
                self.run(move |work| work.prepare(size)).await?;
                batch_sync.wait(&self.work).await?;
                self.run(Work::give_name).await?;
            } else {
                self.run(move |work| work.publish(size)).await?;
            }
            self.store.changed(self.dir.clone());
            Ok(())
        })
    }

    fn abandon(&self, keep: bool) -> Boxed<'_, ()> {
        Box::pin(async move {
            // The caller has an error to report. The next attempt finds what is left.
            let _ = self.run(move |work| work.abandon(keep)).await;
            if let Some(batch_sync) = self.store.1.batch_sync() {
                batch_sync.forget_given_up();
            }
            alone(&self.work).await;
        })
    }
}

impl TakeHole for &LocalDraft {
    fn write_hole(&self, extent: Extent, sum: Option<u32>) -> Fallible<'_, ()> {
        self.run(move |work| work.write_hole(extent, sum))
    }
}

struct LocalLanding {
    work: Arc<Work<Linux>>,
    file: UserFile,
}

impl DirectWriter for LocalLanding {
    fn claim(&self, extent: Extent) -> Result<Ranges, Error> {
        self.work.claim(extent)
    }

    fn file(&self) -> &UserFile {
        &self.file
    }

    fn sum(&self) -> Option<Combining> {
        self.work.sum()
    }

    fn wrote(&self, extent: Extent, sum: u32) -> Result<(), Error> {
        self.work.note(extent, sum);
        Ok(())
    }

    fn failed(&self, error: std::io::Error) -> Error {
        self.work.fail("write", error)
    }
}

impl fmt::Debug for LocalLanding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LocalLanding").field(&self.work.label()).finish()
    }
}

impl fmt::Debug for LocalDraft {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LocalDraft").field(&self.work.label()).finish()
    }
}

/// A file that is changed in place.
#[derive(Debug, Clone)]
pub(super) struct Edit {
    store: Local,
    key: Key,
    label: Arc<str>,
    file: LinuxFile,
    /// The same for direct writers.
    shared: UserFile,
    kind: Kind,
    written: Arc<Mutex<Ranges>>,
}

impl Edit {
    fn new(store: Local, key: Key, file: LinuxFile, kind: Kind) -> Self {
        let (shared, label) = (store.user_file(&file), store.label(&key));
        Self { store, key, label: label.into(), file, shared, kind, written: Arc::default() }
    }

    /// Fails if somebody has removed the file, or given its name to another.
    async fn must_have_its_name(&self) -> Result<(), Error> {
        let (file, key) = (self.file.clone(), self.key.clone());
        let call = move |store: &Local| {
            let failed = |error| store.error(&key, "look at", error);
            let own = file.stat().map_err(failed)?;
            match store.0.disk.stat(&key, true) {
                Ok(there) if (there.device, there.id) == (own.device, own.id) => Ok(()),
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(failed(error)),
                _ => {
                    let reason = "it was removed or replaced while it was written".to_owned();
                    Err(Error::Store { name: store.label(&key), reason, kind: ErrorKind::Other })
                }
            }
        };
        self.store.run(call).await
    }

    fn run<T: Send + 'static>(
        &self,
        act: &'static str,
        call: impl FnOnce(&LinuxFile) -> std::io::Result<T> + Send + 'static,
    ) -> Fallible<'_, T> {
        let (file, label) = (self.file.clone(), self.label.clone());
        Box::pin(self.store.run(move |_| call(&file).map_err(|error| Error::io(&*label, act, error))))
    }

    fn written(&self) -> Ranges {
        self.written.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Local {
    /// Opens `key` for writing, and creates it if it is missing. Returns its size, too. With `alone`, nobody else has it
    /// open in this way.
    pub(super) async fn open_in_place(&self, key: &Key, alone: bool) -> Result<(Edit, u64), Error> {
        let mode = 0o666 & !self.0.mask;
        let place = key.clone();
        let opened = self.run(move |store| {
            let (disk, key) = (&store.0.disk, &place);
            let failed = |error| store.error(key, "open", error);
            // The opening must not be visible to the reader of a pipe.
            let file = match disk.stat_to_write(key) {
                Ok(there) => {
                    store.takes_bytes(key, there.kind)?;
                    disk.edit(key)
                }
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => disk.create(key, mode),
                Err(error) => Err(error),
            };
            let file = file.map_err(failed)?;
            let kind = file.stat().map_err(failed)?.kind;
            store.takes_bytes(key, kind)?;
            // Pipes and devices append by themselves.
            if kind != Kind::File {
                return Ok((kind, file, 0));
            }
            if alone && !file.lock().map_err(failed)? {
                return Err(Error::Busy { name: store.label(key) });
            }
            let size = file.stat().map_err(failed)?.size;
            Ok((kind, file, size))
        });
        let (kind, file, size) = opened.await?;
        self.changed(key.parent());
        Ok((Edit::new(self.clone(), key.clone(), file, kind), size))
    }
}

impl Draft for Edit {
    fn name(&self) -> String {
        self.label.to_string()
    }

    /// Unknown: the file may have any content.
    fn kept(&self) -> Ranges {
        Ranges::new()
    }

    fn capabilities(&self) -> Capabilities<'_> {
        Capabilities {
            // Written bytes stay in place.
            resumable: self.kind == Kind::File,
            direct_writer: Some(Arc::new(self.clone())),
            ..Capabilities::default()
        }
    }

    fn write(&self, block: Block<Bytes>) -> Fallible<'_, ()> {
        let Some(extent) = block.extent().filter(|extent| extent.end() <= i64::MAX as u64) else {
            let error = Error::Beyond { name: self.name(), extent: Extent::first(u64::MAX) };
            return Box::pin(async { Err(error) });
        };
        Box::pin(async move {
            self.run("write", move |file| file.write_at(&block.body, block.offset)).await?;
            self.wrote(extent, 0)
        })
    }

    fn flush(&self) -> Fallible<'_, ()> {
        Box::pin(async { Ok(()) })
    }

    /// The file must still have its name.
    fn checkpoint(&self) -> Fallible<'_, Ranges> {
        Box::pin(async move {
            let written = self.written();
            if self.kind == Kind::File {
                self.run("sync", DiskFile::sync).await?;
                self.must_have_its_name().await?;
            }
            Ok(written)
        })
    }

    /// Unknown: the rest of the file is not known.
    fn written_sum(&self, _size: u64) -> Option<Sum> {
        None
    }

    fn checksum(&self, algorithm: Algorithm) -> Fallible<'_, Sum> {
        if self.kind != Kind::File {
            let error = Error::Unsupported { name: self.name(), what: "reading a written file again" };
            return Box::pin(async { Err(error) });
        }
        Box::pin(async move {
            let size = self.run("look at", |file| Ok(file.stat()?.size)).await?;
            self.store.checksum((&*self.label, "read"), &self.file, algorithm, Extent::first(size)).await
        })
    }

    /// Syncs; the file was never hidden.
    fn publish(&self, size: u64) -> Fallible<'_, ()> {
        Box::pin(async move {
            let missing = self.written().missing(Extent::first(size)).total();
            if missing > 0 {
                return Err(Error::Incomplete { name: self.name(), missing, size });
            }
            self.checkpoint().await.map(drop)
        })
    }

    fn abandon(&self, _keep: bool) -> Boxed<'_, ()> {
        Box::pin(alone(&self.written))
    }
}

/// Waits until no direct writer ([`DirectWriter`]) holds `shared`. They are told to stop, and do so soon. So a new
/// attempt finds no writer and no lock.
async fn alone<T>(shared: &Arc<T>) {
    let until = Instant::now() + PARTING;
    while Arc::strong_count(shared) > 1 && Instant::now() < until {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

impl DirectWriter for Edit {
    /// The whole file: the new content replaces it.
    fn claim(&self, extent: Extent) -> Result<Ranges, Error> {
        match extent.end() <= i64::MAX as u64 {
            true => Ok(extent.into()),
            false => Err(Error::Beyond { name: self.name(), extent }),
        }
    }

    fn file(&self) -> &UserFile {
        &self.shared
    }

    fn wrote(&self, extent: Extent, _sum: u32) -> Result<(), Error> {
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        written.insert(extent);
        if written.count() > MAX_GAPS {
            let what = "the number of gaps between what was written";
            return Err(Error::Limit { name: self.name(), what, limit: MAX_GAPS as u64 });
        }
        Ok(())
    }

    fn failed(&self, error: std::io::Error) -> Error {
        Error::io(&*self.label, "write", error)
    }
}
