//! Writing files of this machine: drafts, and files that are changed where they stand.

use super::Local;
use crate::block::Block;
use crate::disk::{DiskFile, Linux, LinuxFile};
use crate::draft::{MAX_GAPS, Work, checksum};
use crate::error::Error;
use crate::key::Key;
use crate::range::{Extent, Ranges};
use crate::store::{Boxed, Draft, Fallible, Kind};
use crate::sum::{Algorithm, Sum};
use std::fmt;
use std::fs::File;
use std::sync::{Arc, Mutex, PoisonError};

/// A draft, whose calls run where they may block.
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

    fn is_resumable(&self) -> bool {
        self.work.is_journalled()
    }

    fn write(&self, block: Block) -> Fallible<'_, ()> {
        self.run(move |work| work.write(&block))
    }

    fn wrote(&self, extent: Extent) -> Result<(), Error> {
        self.work.wrote(extent)
    }

    fn checkpoint(&self) -> Fallible<'_, Ranges> {
        self.run(Work::checkpoint)
    }

    fn given(&self, size: u64) -> Option<Sum> {
        self.work.given(size)
    }

    fn checksum(&self, algorithm: Algorithm) -> Fallible<'_, Sum> {
        self.run(move |work| work.reread(algorithm))
    }

    fn publish(&self, size: u64) -> Fallible<'_, ()> {
        Box::pin(async move {
            self.run(move |work| work.publish(size)).await?;
            self.store.changed(self.dir.clone());
            Ok(())
        })
    }

    fn abandon(&self, keep: bool) -> Boxed<'_, ()> {
        Box::pin(async move {
            // Whoever gives a draft up has an error to tell already; what is left behind is found by the next attempt.
            let _ = self.run(move |work| work.abandon(keep)).await;
        })
    }

    fn file(&self) -> Option<Arc<File>> {
        Some(self.work.file().0.clone())
    }
}

impl fmt::Debug for LocalDraft {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LocalDraft").field(&self.work.label()).finish()
    }
}

/// A file that is changed where it stands.
#[derive(Debug)]
pub(super) struct Edit {
    store: Local,
    label: String,
    file: LinuxFile,
    kind: Kind,
    written: Arc<Mutex<Ranges>>,
}

impl Edit {
    pub(super) fn new(store: Local, label: String, file: LinuxFile, kind: Kind) -> Self {
        Self { store, label, file, kind, written: Arc::default() }
    }

    fn run<T: Send + 'static>(
        &self,
        act: &'static str,
        call: impl FnOnce(&LinuxFile) -> std::io::Result<T> + Send + 'static,
    ) -> Fallible<'_, T> {
        let (file, label) = (self.file.clone(), self.label.clone());
        Box::pin(self.store.run(move |_| call(&file).map_err(|error| Error::io(label, act, error))))
    }

    fn written(&self) -> Ranges {
        self.written.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Draft for Edit {
    fn name(&self) -> String {
        self.label.clone()
    }

    /// Nothing: what is there may be anything.
    fn kept(&self) -> Ranges {
        Ranges::new()
    }

    /// What was written stays where it is.
    fn is_resumable(&self) -> bool {
        self.kind == Kind::File
    }

    fn write(&self, block: Block) -> Fallible<'_, ()> {
        let Some(extent) = block.extent().filter(|extent| extent.end() <= i64::MAX as u64) else {
            let error = Error::Beyond { name: self.label.clone(), extent: Extent::first(u64::MAX) };
            return Box::pin(async { Err(error) });
        };
        Box::pin(async move {
            self.run("write", move |file| file.write_at(&block.bytes, block.offset)).await?;
            self.wrote(extent)
        })
    }

    fn wrote(&self, extent: Extent) -> Result<(), Error> {
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        written.insert(extent);
        if written.count() > MAX_GAPS {
            let what = "the number of gaps between what was written";
            return Err(Error::Limit { name: self.label.clone(), what, limit: MAX_GAPS as u64 });
        }
        Ok(())
    }

    fn checkpoint(&self) -> Fallible<'_, Ranges> {
        Box::pin(async move {
            let written = self.written();
            if self.kind == Kind::File {
                self.run("sync", DiskFile::sync).await?;
            }
            Ok(written)
        })
    }

    /// None: it is not known what the rest of it is.
    fn given(&self, _size: u64) -> Option<Sum> {
        None
    }

    fn checksum(&self, algorithm: Algorithm) -> Fallible<'_, Sum> {
        if self.kind != Kind::File {
            let error = Error::Unsupported { name: self.label.clone(), what: "reading again what was written" };
            return Box::pin(async { Err(error) });
        }
        self.run("read", move |file| checksum(file, algorithm, Extent::first(file.stat()?.size)))
    }

    /// Makes what was written safe; it was never hidden.
    fn publish(&self, size: u64) -> Fallible<'_, ()> {
        Box::pin(async move {
            let missing = self.written().missing(Extent::first(size)).total();
            if missing > 0 {
                return Err(Error::Incomplete { name: self.label.clone(), missing, size });
            }
            self.checkpoint().await.map(drop)
        })
    }

    fn abandon(&self, _keep: bool) -> Boxed<'_, ()> {
        Box::pin(async {})
    }

    fn file(&self) -> Option<Arc<File>> {
        Some(self.file.0.clone())
    }
}
