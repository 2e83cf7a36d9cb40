//! Readable objects, and flows of their bytes.

use super::direct::DirectWriter;
use super::{Fallible, Meta};
use crate::block::{Block, Body, Pool};
use crate::error::Error;
use crate::range::{Extent, Ranges};
use crate::sum::{Algorithm, Combining, Sum};
use crate::user_file::UserFile;
use bytes::Bytes;
use std::any::Any;
use std::fmt::Debug;
use std::sync::Arc;

/// A readable object.
pub trait Object: Debug + Send + Sync {
    /// Name in errors.
    fn name(&self) -> String;

    /// Its metadata when it was opened.
    fn meta(&self) -> &Meta;

    /// A flow of the bytes `wanted`, all of which must exist.
    fn flow(&self, wanted: Ranges, shape: Shape) -> Fallible<'_, Arc<dyn Flow>>;

    /// The bytes of several ranges, each up to the end of the object: one round trip over a network (R1, R2).
    fn read<'a>(&'a self, wanted: &'a [Extent]) -> Fallible<'a, Vec<Bytes>>;

    /// The checksum of `extent`, computed where the bytes are. May take as long as reading them.
    fn checksum(&self, algorithm: Algorithm, extent: Extent) -> Fallible<'_, Sum>;

    /// Fails with [`Error::Changed`] if the object no longer matches [`Self::meta`].
    fn unchanged(&self) -> Fallible<'_, ()>;

    /// The open file, if it is local: for callers that need its identity.
    fn file(&self) -> Option<&UserFile> {
        None
    }

    /// Itself, for drafts of the same kind of store that can fetch it directly ([`Fetch`](super::Fetch)).
    fn as_any(&self) -> Option<&dyn Any> {
        None
    }
}

/// Blocks of an object. Several tasks may read from one flow. After a failure, one of them gets the error, and the
/// others get it too or get nothing more.
pub trait Flow: Debug + Send + Sync {
    /// The next block. `None` at the end. A dropped future loses nothing.
    fn next(&self) -> Fallible<'_, Option<Block>>;
}

/// A flow of blocks in memory, for users who asked for nothing else.
#[derive(Debug)]
pub struct BytesFlow(Arc<dyn Flow>);

impl BytesFlow {
    /// Reads the bytes `wanted` of `object`; in ascending order if `ordered`.
    ///
    /// # Errors
    /// Those of [`Object::flow`].
    pub async fn of(object: &dyn Object, wanted: Ranges, pool: Pool, ordered: bool) -> Result<Self, Error> {
        let shape = Shape { pool, readers: 1, ordered, sum: None, lend: false, holes: false, into: None };
        Ok(Self(object.flow(wanted, shape).await?))
    }

    /// Wraps `flow`, from which only bytes were requested.
    pub fn over(flow: Arc<dyn Flow>) -> Self {
        Self(flow)
    }

    /// The next block, as in [`Flow::next`].
    ///
    /// # Errors
    /// Those of `next`; or [`Error::Unsupported`] if the flow gives something that was not requested.
    pub async fn next(&self) -> Result<Option<Block<Bytes>>, Error> {
        let Some(Block { offset, body, sum }) = self.0.next().await? else { return Ok(None) };
        match body {
            Body::Bytes(body) => Ok(Some(Block { offset, body, sum })),
            other => Err(unasked(&other)),
        }
    }
}

/// The error for an unrequested `body`.
pub(crate) fn unasked(body: &Body) -> Error {
    let (name, what) = match body {
        Body::Bytes(_) => ("a block", "bytes"),
        Body::FileRange(lent) => (&*lent.name, "bytes that are still in a file"),
        Body::Written(_) => ("a block", "bytes that have gone on already"),
        Body::Hole(_) => ("a block", "zeros that are nowhere"),
    };
    Error::Unsupported { name: name.to_owned(), what }
}

/// Requirements of a flow.
#[derive(Debug, Clone)]
pub struct Shape {
    /// Its buffers. Blocks are no longer than those.
    pub pool: Pool,
    /// Blocks to read at a time, if that makes sense.
    pub readers: usize,
    /// Ascending order, for streams. Reading is then sequential, with read-ahead.
    pub ordered: bool,
    /// The checksum to compute for each block while its bytes are in the cache.
    pub sum: Option<Combining>,
    /// Whether blocks may be ranges of a local file, if nothing has to be hashed.
    pub lend: bool,
    /// Whether blocks may be holes of a local file, of any length, which are not read.
    pub holes: bool,
    /// Direct writer for bytes that cross a network, with its checksum.
    pub into: Option<Arc<dyn DirectWriter>>,
}
