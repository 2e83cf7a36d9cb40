//! Direct writing to the open file of a draft.

use crate::error::Error;
use crate::range::{Extent, Ranges};
use crate::sum::Combining;
use crate::user_file::UserFile;
use std::fmt::{self, Debug};
use std::sync::Arc;

/// The open file of a draft, for threads that write to it directly.
pub trait DirectWriter: Debug + Send + Sync {
    /// Claims the parts of `extent` that nobody has written or is writing. The caller must write them, or fail.
    ///
    /// # Errors
    /// The draft has no such bytes, or accepts nothing more.
    fn claim(&self, extent: Extent) -> Result<Ranges, Error>;

    /// The file and its user.
    fn file(&self) -> &UserFile;

    /// The algorithm of checksums for [`Self::wrote`].
    fn sum(&self) -> Option<Combining> {
        None
    }

    /// Records that the claimed `extent` is written, with its checksum if one is kept.
    ///
    /// # Errors
    /// Too many gaps.
    fn wrote(&self, extent: Extent, sum: u32) -> Result<(), Error>;

    /// The error for a failed write. Afterwards the draft accepts nothing more.
    fn failed(&self, error: std::io::Error) -> Error;
}

/// `direct_writer` with another claim function, which may call the original one.
pub fn claimed_by<F>(direct_writer: Arc<dyn DirectWriter>, claim: F) -> Arc<dyn DirectWriter>
where
    F: Fn(&dyn DirectWriter, Extent) -> Result<Ranges, Error> + Send + Sync + 'static,
{
    Arc::new(Claimed { direct_writer, claim })
}

struct Claimed<F> {
    direct_writer: Arc<dyn DirectWriter>,
    claim: F,
}

impl<F: Fn(&dyn DirectWriter, Extent) -> Result<Ranges, Error> + Send + Sync> DirectWriter for Claimed<F> {
    fn claim(&self, extent: Extent) -> Result<Ranges, Error> {
        (self.claim)(&*self.direct_writer, extent)
    }

    fn file(&self) -> &UserFile {
        self.direct_writer.file()
    }

    fn sum(&self) -> Option<Combining> {
        self.direct_writer.sum()
    }

    fn wrote(&self, extent: Extent, sum: u32) -> Result<(), Error> {
        self.direct_writer.wrote(extent, sum)
    }

    fn failed(&self, error: std::io::Error) -> Error {
        self.direct_writer.failed(error)
    }
}

impl<F> Debug for Claimed<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Claimed").field(&self.direct_writer).finish()
    }
}
