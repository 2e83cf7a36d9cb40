//! Streams, which have only an order and an end: standard input and output, pipes, other programs.

use super::{Check, Done, TransferOptions};
use crate::block::Block;
use crate::error::Error;
use crate::range::Extent;
use crate::store::{BytesFlow, Draft, Object};
use crate::sum::Hasher;
use bytes::Bytes;
use std::io;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

/// Writes everything from `stream`, called `name` in errors, to `draft`, verifies it by `check`, and publishes it at
/// the end of the stream. The draft was begun without a size. A stream may pause without limit: its writer may be a
/// person.
///
/// # Errors
/// The stream or the draft fails, or the two differ; then nothing is kept, since a stream cannot be read again.
pub async fn pour(
    stream: &mut (impl AsyncRead + Unpin),
    name: &str,
    draft: &Arc<dyn Draft>,
    check: Option<Check>,
    how: &TransferOptions,
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
            let block = Block::<Bytes>::new(size, buffer.freeze(len));
            if let Some(hasher) = &mut hasher {
                hasher.update(&block.body);
            }
            let written = timeout(how.stall_timeout, draft.write(block)).await;
            written.map_err(|_| Error::Stalled { name: draft.name(), after: how.stall_timeout })??;
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

/// Writes the bytes `wanted` of `object` to `stream`, called `name` in errors. Bytes of a remote object are verified by
/// `check` at the end. A stream cannot be undone, so its reader must heed the result.
///
/// # Errors
/// The object or the stream fails, or the bytes are wrong.
pub async fn drain(
    object: &Arc<dyn Object>,
    wanted: Extent,
    stream: &mut (impl AsyncWrite + Unpin),
    name: &str,
    check: Option<Check>,
    how: &TransferOptions,
) -> Result<Done, Error> {
    let flow = BytesFlow::of(&**object, wanted.into(), how.pool.clone(), true).await?;
    let mut hasher = check.map(|check| Hasher::new(check.algorithm()));
    let mut at = wanted.start();
    loop {
        let next = timeout(how.stall_timeout, flow.next()).await;
        let next = next.map_err(|_| Error::Stalled { name: object.name(), after: how.stall_timeout })??;
        let Some(block) = next else { break };
        if block.offset != at {
            let extent = block.extent().unwrap_or(wanted);
            return Err(Error::Beyond { name: object.name(), extent });
        }
        let (bytes, len) = (&block.body, block.len());
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
