//! Drafts with a bound on their length: the hook for quotas.

use super::direct::{DirectWriter, claimed_by};
use super::draft::{Capabilities, Draft, TakeFileRange, TakeHole};
use super::{Boxed, Fallible};
use crate::block::{Block, Content, FileRange};
use crate::error::Error;
use crate::range::{Extent, Ranges};
use crate::sum::{Algorithm, Sum};
use bytes::Bytes;
use std::sync::Arc;

/// Permits bytes of a draft, and handles its end.
pub trait Bound: std::fmt::Debug + Send + Sync + 'static {
    /// Permits bytes up to the offset `end`.
    ///
    /// # Errors
    /// The object may not become so long. Then none of these bytes is written.
    fn reach(&self, end: u64) -> Result<(), Error>;

    /// Publishes the bounded `draft` ([`Draft::publish`]).
    fn publish<'a>(&'a self, draft: &'a dyn Draft, size: u64) -> Fallible<'a, ()>;

    /// Gives up the bounded `draft` ([`Draft::abandon`]).
    fn abandon<'a>(&'a self, draft: &'a dyn Draft, keep: bool) -> Boxed<'a, ()>;
}

/// A draft that writes no bytes, by any method, without permission of its bound.
#[derive(Debug)]
pub struct Bounded<B> {
    draft: Arc<dyn Draft>,
    bound: Arc<B>,
}

impl<B: Bound> Bounded<B> {
    /// Wraps `draft`.
    pub fn new(draft: Arc<dyn Draft>, bound: B) -> Self {
        Self { draft, bound: Arc::new(bound) }
    }

    fn direct_writer(&self, direct_writer: Arc<dyn DirectWriter>) -> Arc<dyn DirectWriter> {
        let bound = self.bound.clone();
        claimed_by(direct_writer, move |direct_writer, extent| {
            bound.reach(extent.end())?;
            direct_writer.claim(extent)
        })
    }
}

impl<B: Bound> Draft for Bounded<B> {
    fn name(&self) -> String {
        self.draft.name()
    }

    fn kept(&self) -> Ranges {
        self.draft.kept()
    }

    fn capabilities(&self) -> Capabilities<'_> {
        // All capabilities are named, so that no new one can bypass the bound.
        let Capabilities { place, resumable, ordered, file_ranges, holes, direct_writer, drain: _, fetch: _ } =
            self.draft.capabilities();
        let direct_writer = direct_writer.map(|direct_writer| self.direct_writer(direct_writer));
        let bound = &*self.bound;
        let file_ranges = file_ranges.map(|inner| Box::new(Within { inner, bound }) as _);
        let holes = holes.map(|inner| Box::new(Within { inner, bound }) as _);
        // Without these two, blocks come by `write`.
        Capabilities { place, resumable, ordered, file_ranges, holes, direct_writer, drain: None, fetch: None }
    }

    fn write(&self, block: Block<Bytes>) -> Fallible<'_, ()> {
        permitted(&*self.bound, end(&block), || self.draft.write(block))
    }

    fn flush(&self) -> Fallible<'_, ()> {
        self.draft.flush()
    }

    fn checkpoint(&self) -> Fallible<'_, Ranges> {
        self.draft.checkpoint()
    }

    fn written_sum(&self, size: u64) -> Option<Sum> {
        self.draft.written_sum(size)
    }

    fn checksum(&self, algorithm: Algorithm) -> Fallible<'_, Sum> {
        self.draft.checksum(algorithm)
    }

    fn publish(&self, size: u64) -> Fallible<'_, ()> {
        self.bound.publish(&*self.draft, size)
    }

    fn abandon(&self, keep: bool) -> Boxed<'_, ()> {
        self.bound.abandon(&*self.draft, keep)
    }
}

/// Wraps the capabilities of a draft.
#[derive(Debug)]
struct Within<'a, T: ?Sized, B> {
    inner: Box<T>,
    bound: &'a B,
}

impl<'a, B: Bound> TakeFileRange for Within<'a, dyn TakeFileRange + 'a, B> {
    fn write_file_range(&self, block: Block<FileRange>) -> Fallible<'_, ()> {
        permitted(self.bound, end(&block), || self.inner.write_file_range(block))
    }
}

impl<'a, B: Bound> TakeHole for Within<'a, dyn TakeHole + 'a, B> {
    fn write_hole(&self, extent: Extent, sum: Option<u32>) -> Fallible<'_, ()> {
        permitted(self.bound, extent.end(), || self.inner.write_hole(extent, sum))
    }
}

/// The end of a block.
fn end<C: Content>(block: &Block<C>) -> u64 {
    block.extent().map_or(u64::MAX, Extent::end)
}

/// `write` with permission.
fn permitted<'a>(bound: &impl Bound, end: u64, write: impl FnOnce() -> Fallible<'a, ()>) -> Fallible<'a, ()> {
    match bound.reach(end) {
        Ok(()) => write(),
        Err(error) => Box::pin(async { Err(error) }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Links;
    use crate::error::ErrorKind;
    use crate::key::Key;
    use crate::local::Local;
    use crate::store::Store;

    /// Permits ten bytes.
    #[derive(Debug)]
    struct Ten;

    impl Bound for Ten {
        fn reach(&self, end: u64) -> Result<(), Error> {
            let full = || Error::Store { name: "x".into(), reason: "it is full".into(), kind: ErrorKind::NoSpace };
            (end <= 10).then_some(()).ok_or_else(full)
        }

        fn publish<'a>(&'a self, draft: &'a dyn Draft, size: u64) -> Fallible<'a, ()> {
            draft.publish(size)
        }

        fn abandon<'a>(&'a self, draft: &'a dyn Draft, keep: bool) -> Boxed<'a, ()> {
            draft.abandon(keep)
        }
    }

    #[tokio::test]
    async fn bytes_beyond_the_bound_are_taken_on_no_way() {
        let dir = tempfile::tempdir().unwrap();
        let store = Local::new(dir.path(), Links::Beneath).unwrap();
        let draft = Bounded::new(store.edit(&Key::parse("x").unwrap()).await.unwrap(), Ten);
        draft.write(Block::new(0, vec![1; 5])).await.unwrap();
        assert_eq!(draft.write(Block::new(5, vec![1; 6])).await.unwrap_err().kind(), ErrorKind::NoSpace);
        let Capabilities { direct_writer, drain, fetch, resumable, .. } = draft.capabilities();
        let direct_writer = direct_writer.unwrap();
        assert_eq!(direct_writer.claim(Extent::new(5, 5).unwrap()).unwrap().total(), 5);
        assert_eq!(direct_writer.claim(Extent::new(5, 6).unwrap()).unwrap_err().kind(), ErrorKind::NoSpace);
        assert!(drain.is_none() && fetch.is_none() && resumable);
    }
}
