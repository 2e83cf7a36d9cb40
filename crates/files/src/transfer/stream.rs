//! Streams, which have an order and an end and nothing else: standard input and output, pipes, other programs.

use super::{Check, Done, How};
use crate::block::Block;
use crate::error::Error;
use crate::range::Extent;
use crate::store::{Draft, Object, Shape};
use crate::sum::Hasher;
use std::io;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

/// Writes all that comes from `stream`, which errors call `name`, to `draft`, verifies it as `check` says, and publishes it
/// when the stream has ended. The draft was begun without a size. A stream may wait as long as it likes: whoever writes it
/// may be thinking.
///
/// # Errors
/// The stream or the draft fails, or the two differ; then nothing is kept, since a stream cannot be read again.
pub async fn pour(
    stream: &mut (impl AsyncRead + Unpin),
    name: &str,
    draft: &Arc<dyn Draft>,
    check: Option<Check>,
    how: &How,
) -> Result<Done, Error> {
    let poured = async {
        let mut hasher = check.map(|check| Hasher::new(check.algorithm()));
        let mut size = 0;
        loop {
            let mut buffer = how.pool.take().await;
            let len = fill_up(stream, buffer.room()).await.map_err(|error| Error::io(name, "read", error))?;
            if len == 0 {
                break;
            }
            if let Some(throttle) = &how.throttle {
                throttle.wait_for(len as u64).await;
            }
            let block = Block::new(size, buffer.freeze(len));
            if let Some(hasher) = &mut hasher {
                hasher.update(block.bytes()?);
            }
            let written = timeout(how.stall, draft.write(block)).await;
            written.map_err(|_| Error::Stalled { name: draft.name(), after: how.stall })??;
            how.progress.moved(len as u64);
            size += len as u64;
        }
        let verified = match (check, hasher) {
            (Some(check), Some(hasher)) => Some(check.compare_with(hasher.finish(), &**draft, size).await?),
            _ => None,
        };
        draft.publish(size).await?;
        Ok(Done { size, moved: size, verified })
    };
    let poured = poured.await;
    if poured.is_err() {
        draft.abandon(false).await;
    }
    poured
}

/// Writes the bytes `wanted` of `object` to `stream`, which errors call `name`. Those that come from a far object are
/// compared by `check` in the end: a stream cannot take back what it was given, so whoever reads it has to heed how this
/// ends.
///
/// # Errors
/// The object or the stream fails, or what arrived is not what was sent.
pub async fn drain(
    object: &Arc<dyn Object>,
    wanted: Extent,
    stream: &mut (impl AsyncWrite + Unpin),
    name: &str,
    check: Option<Check>,
    how: &How,
) -> Result<Done, Error> {
    let shape =
        Shape { pool: how.pool.clone(), readers: 1, ordered: true, sum: None, lend: false, holes: false, into: None };
    let flow = object.flow(wanted.into(), shape).await?;
    let mut hasher = check.map(|check| Hasher::new(check.algorithm()));
    let mut at = wanted.start();
    loop {
        let next = timeout(how.stall, flow.next()).await;
        let next = next.map_err(|_| Error::Stalled { name: object.name(), after: how.stall })??;
        let Some(block) = next else { break };
        if block.offset != at {
            let extent = block.extent().unwrap_or(wanted);
            return Err(Error::Beyond { name: object.name(), extent });
        }
        let (bytes, len) = (block.bytes()?, block.len());
        if let Some(throttle) = &how.throttle {
            throttle.wait_for(len).await;
        }
        if let Some(hasher) = &mut hasher {
            hasher.update(bytes);
        }
        stream.write_all(bytes).await.map_err(|error| Error::io(name, "write", error))?;
        how.progress.moved(len);
        at += len;
    }
    if at != wanted.end() {
        return Err(Error::Short { name: object.name(), at, expected: wanted.end() });
    }
    stream.flush().await.map_err(|error| Error::io(name, "write", error))?;
    object.unchanged().await?;
    let verified = match (check, hasher) {
        (Some(check), Some(hasher)) => {
            let found = hasher.finish();
            let expected = object.checksum(check.algorithm(), wanted).await?;
            if expected != found {
                return Err(Error::Mismatch { name: name.to_owned(), expected, found });
            }
            Some(found)
        }
        _ => None,
    };
    Ok(Done { size: wanted.len(), moved: wanted.len(), verified })
}

/// Reads until `room` is full or the stream ends.
async fn fill_up(stream: &mut (impl AsyncRead + Unpin), room: &mut [u8]) -> io::Result<usize> {
    let mut len = 0;
    while len < room.len() {
        match stream.read(&mut room[len..]).await? {
            0 => break,
            n => len += n,
        }
    }
    Ok(len)
}
