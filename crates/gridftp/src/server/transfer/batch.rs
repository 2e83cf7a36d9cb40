//! Batches of short files: SITE MPUT and SITE MGET ([`phoebus_proto::gridftp::batch`]).
//!
//! Each file is a draft of its own, verified and published as a single upload is. Only their syncs are shared, and one
//! thread makes the system calls of many. A file that fails has the code of its failure in the last reply; the others are not
//! affected. The client stores it again alone, and gets the reason.

use super::super::failure::Failure;
use super::super::names::{nobodys, quoted};
use super::super::session::task::Transfer;
use super::super::worker::{TaskClient, Worker};
use super::super::{NOT_DONE, session::task::Operation};
use crate::data::{Intake, Mode};
use bytes::Bytes;
use phoebus_files::Error;
use phoebus_files::block::{Block, Body};
use phoebus_files::key::Key;
use phoebus_files::range::Extent;
use phoebus_files::store::{
    Attributes, Fallible, Flow, Kind, OnThread, ShortObject, Store, Time, on_this_thread, together,
};
use phoebus_files::sum::Combining;
use phoebus_proto::gridftp::batch::{BatchError, Decoder, Encoder, File, MAX_SIZE, Record};
use phoebus_proto::gridftp::reply::Reply;
use std::sync::{Arc, Weak};
use tokio::runtime::Handle;
use tokio::sync::{Mutex, mpsc};

/// Files that are stored together: each is an open file until all are synced.
const TOGETHER: usize = 64;

/// Most bytes of them, so that a session's memory is bounded.
const TOGETHER_BYTES: usize = 4 << 20;

/// Bytes of a block of the flow.
const BLOCK: usize = 256 << 10;

/// The files of a batch that were not stored: their numbers, from 0 on, with the codes of their replies.
pub(super) type NotStored = Vec<(usize, u16)>;

/// The last reply to SITE MPUT: lines such as ` 3 550`, if files were not stored.
pub(super) fn reply(not_stored: &[(usize, u16)]) -> Reply {
    if not_stored.is_empty() {
        return Reply::new(226, "transfer complete");
    }
    let first = format!("Not stored: {} files", not_stored.len()).into_bytes();
    let lines = not_stored.iter().map(|(number, code)| format!(" {number} {code}").into_bytes());
    Reply::of_lines(226, std::iter::once(first).chain(lines).chain([b"End".to_vec()]).collect::<Vec<_>>())
}

impl Worker {
    /// Receives a batch. Returns its bytes, and notes what was not stored.
    pub(super) async fn receive_batch(
        &mut self,
        transfer: &Transfer,
        not_stored: &mut NotStored,
        client: &TaskClient,
    ) -> Result<u64, Failure> {
        let channel = self.channel_of(transfer)?;
        let store = self.store()?;
        Self::begin(&channel, None, client).await;
        let intake = Intake { pool: self.pool(1), from: 0, expected: None, into: None };
        let incoming = channel.receive(Mode::Stream, intake);
        let stall_timeout = self.server.config.data.stall_timeout.0;
        let (mut decoder, mut number, mut bytes) = (Decoder::default(), 0, 0);
        let (mut some, mut size) = (Vec::new(), 0);
        let mut ended = false;
        loop {
            let block = tokio::select! {
                block = tokio::time::timeout(stall_timeout, incoming.next()) => block,
                () = client.stopped() => return Err(Failure::Stopped),
            };
            let stalled = |_| Failure::from(Error::Stalled { name: "the batch".to_owned(), after: stall_timeout });
            let Some(block) = block.map_err(stalled)?? else { break };
            let Body::Bytes(body) = block.body else { continue };
            bytes += body.len() as u64;
            decoder.push(&body);
            while let Some(record) = decoder.take().map_err(unreadable)? {
                match record {
                    Record::File(file) => {
                        size += file.bytes.len();
                        some.push((number, file));
                        number += 1;
                    }
                    Record::Refused(_) => return Err(unreadable(BatchError::Kind(2))),
                    Record::End => ended = true,
                }
                if some.len() >= TOGETHER || size >= TOGETHER_BYTES || (ended && !some.is_empty()) {
                    size = 0;
                    let stored = self.store_some(&store, std::mem::take(&mut some), transfer);
                    not_stored.extend(tokio::select! {
                        stored = stored => stored?,
                        () = client.stopped() => return Err(Failure::Stopped),
                    });
                }
            }
        }
        decoder.finish().map_err(unreadable)?;
        store.settle().await?;
        Ok(bytes)
    }

    /// Stores files, on a thread for all of them. Returns those that were not stored.
    async fn store_some(
        &self,
        store: &Arc<dyn Store>,
        files: Vec<(usize, File)>,
        transfer: &Transfer,
    ) -> Result<NotStored, Failure> {
        let (store, runtime, wanted) = (store.clone(), Handle::current(), Arc::new(()));
        let still = Arc::downgrade(&wanted);
        let named: Vec<_> = files.iter().map(|(number, file)| (*number, key(&file.path), file.bytes.len())).collect();
        let done = tokio::task::spawn_blocking(move || {
            runtime.block_on(async move {
                let (store, syncs) = on_this_thread(&store);
                let work = files.into_iter().map(|(_, file)| Box::pin(store_one(store.clone(), file)) as OnThread<_>);
                together(work.collect(), syncs.as_deref(), &still).await
            })
        });
        let done = done.await.map_err(|_| Failure::say(451, "the files could not be stored"))?;
        drop(wanted);
        let mut not_stored = NotStored::new();
        for ((number, key, bytes), done) in named.into_iter().zip(done) {
            let done = done.unwrap_or(Err(Failure::Stopped));
            let what = key
                .map_or_else(|_| "store a name that is none".to_owned(), |key| Operation::Receive { key }.to_string());
            let (peer, user) = (self.peer, &transfer.user);
            match done {
                Ok(()) => tracing::info!(%peer, user, what, bytes, "transferred"),
                Err(failure) => {
                    let reply = failure.reply();
                    let (code, why) = (reply.code, reply.text());
                    tracing::info!(target: NOT_DONE, %peer, user, what, code, why, "not transferred");
                    not_stored.push((number, code));
                }
            }
        }
        Ok(not_stored)
    }

    /// Sends a batch. Returns its bytes.
    pub(super) async fn send_batch(
        &mut self,
        transfer: &Transfer,
        keys: &[Key],
        client: &TaskClient,
    ) -> Result<u64, Failure> {
        let channel = self.channel_of(transfer)?;
        let store = self.store()?;
        Self::begin(&channel, None, client).await;
        let (blocks, flow) = mpsc::channel(2);
        let (runtime, keys, wanted) = (Handle::current(), keys.to_vec(), Arc::new(()));
        let (peer, user, still) = (self.peer, transfer.user.clone(), Arc::downgrade(&wanted));
        tokio::task::spawn_blocking(move || {
            let log = |key: &Key, bytes: usize| {
                let what = Operation::Send { key: key.clone(), part: None, stripe: None };
                tracing::info!(%peer, user, %what, bytes, "transferred");
            };
            runtime.block_on(read_all(on_this_thread(&store).0, keys, blocks, still, log))
        });
        let moved = Arc::default();
        let flow = Arc::new(Read { blocks: Mutex::new(flow), _wanted: wanted });
        Ok(tokio::select! {
            sent = channel.send(Mode::Stream, 1, flow, &moved) => sent?,
            () = client.stopped() => return Err(Failure::Stopped),
        })
    }
}

fn unreadable(error: BatchError) -> Failure {
    Failure::say(501, error.to_string())
}

/// The name of a file of a batch, a path from the root.
fn key(path: &[u8]) -> Result<Key, Failure> {
    let refused =
        |why: &dyn std::fmt::Display| Failure::say(553, format!("a file of the batch has no usable path: {why}"));
    let path = path.strip_prefix(b"/").ok_or_else(|| refused(&"it does not begin with a slash"))?;
    let key = Key::parse(path).map_err(|error| refused(&error))?;
    if key.is_root() { Err(refused(&"it is the root")) } else { Ok(key) }
}

async fn store_one(store: Arc<dyn Store>, file: File) -> Result<(), Failure> {
    let key = key(&file.path)?;
    nobodys(&key)?;
    let modified = file.modified.map(|(seconds, nanos)| Time { seconds, nanos });
    let permissions = |mode: Option<u32>| mode.map(|mode| mode & 0o777);
    let object = ShortObject {
        key,
        bytes: file.bytes.into(),
        sum: file.sum,
        attributes: Attributes { mode: permissions(file.mode), modified },
        at_most: permissions(file.at_most),
    };
    if !object.is_whole() {
        return Err(Failure::say(451, format!("{} has come with other bytes than were sent", quoted(&object.key))));
    }
    object.store(&*store).await?;
    Ok(())
}

/// Reads files, and passes them on as a batch, until nobody wants it.
async fn read_all(
    store: Arc<dyn Store>,
    keys: Vec<Key>,
    blocks: mpsc::Sender<Block>,
    wanted: Weak<()>,
    log: impl Fn(&Key, usize),
) {
    let (mut batch, mut at) = (Encoder::default(), 0);
    for key in &keys {
        if wanted.strong_count() == 0 {
            return;
        }
        match read_one(&*store, key).await {
            Ok(object) => {
                let Attributes { mode, modified } = object.attributes;
                let modified = modified.map(|time| (time.seconds, time.nanos));
                let file = File { mode, modified, sum: object.sum, ..File::default() };
                match batch.file(&file, &object.bytes) {
                    Ok(()) => log(key, object.bytes.len()),
                    Err(_) => batch.refused(552),
                }
            }
            Err(failure) => batch.refused(failure.reply().code),
        }
        if batch.waiting() >= BLOCK && pass(&mut batch, &mut at, &blocks).await.is_err() {
            return;
        }
    }
    batch.end();
    // Who is gone wants no more.
    let _ = pass(&mut batch, &mut at, &blocks).await;
}

async fn pass(
    batch: &mut Encoder,
    at: &mut u64,
    blocks: &mpsc::Sender<Block>,
) -> Result<(), mpsc::error::SendError<Block>> {
    let block = Block { offset: *at, body: Bytes::from(batch.take()), sum: None };
    *at += block.len();
    blocks.send(block.into()).await
}

async fn read_one(store: &dyn Store, key: &Key) -> Result<ShortObject, Failure> {
    nobodys(key)?;
    let object = store.open(key).await?;
    let meta = *object.meta();
    let size = meta.size.filter(|size| meta.kind == Kind::File && *size <= MAX_SIZE.into());
    let size = size.ok_or_else(|| Failure::say(552, "it is not short enough for a batch"))?;
    let bytes = object.read(&[Extent::first(size)]).await?.pop().unwrap_or_default();
    if (bytes.len() as u64) < size {
        return Err(Error::Short { name: object.name(), at: bytes.len() as u64, expected: size }.into());
    }
    object.unchanged().await?;
    let attributes = Attributes { mode: meta.mode, modified: meta.modified };
    Ok(ShortObject { key: key.clone(), sum: Combining::Crc32c.of(&bytes), bytes, attributes, at_most: None })
}

/// What was read.
#[derive(Debug)]
struct Read {
    blocks: Mutex<mpsc::Receiver<Block>>,
    /// Reading ends with it.
    _wanted: Arc<()>,
}

impl Flow for Read {
    fn next(&self) -> Fallible<'_, Option<Block>> {
        Box::pin(async { Ok(self.blocks.lock().await.recv().await) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_a_batch_begin_at_the_root() {
        assert_eq!(key(b"/a/b").unwrap(), Key::parse("a/b").unwrap());
        for wrong in [&b"a/b"[..], b"", b"/", b"/a/../b", b"/..", b"/a\0b"] {
            assert_eq!(key(wrong).unwrap_err().reply().code, 553, "{wrong:?}");
        }
    }

    #[test]
    fn reply_names_what_was_not_stored() {
        assert_eq!(reply(&[]).lines.len(), 1);
        let reply = reply(&[(0, 550), (17, 452)]);
        assert_eq!((reply.code, reply.text().as_str()), (226, "Not stored: 2 files\n 0 550\n 17 452\nEnd"));
    }
}
