//! Batches of short files: SITE MPUT and SITE MGET ([`phoebus_proto::gridftp::batch`]).
//!
//! Each file is a draft of its own, verified and published as a single upload is. Only their syncs are shared, and one
//! thread makes the system calls of many. A file that fails has the code of its failure in the last reply; the others are not
//! affected. The client stores it again alone, and gets the reason.

use super::super::config::FILES_OF_BATCH;
use super::super::failure::Failure;
use super::super::names::{nobodys, quoted};
use super::super::session::task::Transfer;
use super::super::worker::{TaskClient, Worker};
use super::super::{NOT_DONE, session::task::Operation};
use crate::data::{Channel, Intake, Mode};
use bytes::Bytes;
use phoebus_files::block::{Block, Body};
use phoebus_files::key::Key;
use phoebus_files::local::Turn;
use phoebus_files::range::Extent;
use phoebus_files::store::{
    Attributes, Fallible, Flow, Kind, OnThread, ShortObject, Store, Time, on_this_thread, run_on_this_thread,
};
use phoebus_files::sum::{Algorithm, Combining, Sum};
use phoebus_files::{Error, is_part};
use phoebus_proto::gridftp::batch::{BatchError, Decoder, Encoder, File, MAX_SIZE, MAX_WANTED, Record};
use phoebus_proto::gridftp::reply::Reply;
use std::sync::Arc;
use tokio::runtime::Handle;
use tokio::sync::{Mutex, mpsc, watch};

/// Most bytes that are stored together, so that a session's memory is bounded.
const STORED: usize = 1 << 20;

/// Bytes that are read at a time, ahead of the connection. A client may read them slowly or never.
const READ: usize = 256 << 10;

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

fn lost() -> Failure {
    Failure::say(451, "the server could not go on with it")
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
        let mut all = Vec::new();
        let received = self.receive_files(&channel, &store, &mut all, client).await;
        // Whatever became of the rest, what has its name by now is made durable and logged.
        let settled = store.settle().await.map_err(Failure::from);
        for Stored { number, key, bytes, result } in all {
            let what = match key {
                Some(key) => Operation::Receive { key }.to_string(),
                None => "store under a name that is none".to_owned(),
            };
            let (peer, user) = (self.peer, &transfer.user);
            let result = result.and_then(|()| settled.as_ref().map(drop).map_err(Failure::reply));
            match result {
                Ok(()) => tracing::info!(%peer, user, what, bytes, "transferred"),
                Err(reply) => {
                    let (code, why) = (reply.code, reply.text());
                    tracing::info!(target: NOT_DONE, %peer, user, what, code, why, "not transferred");
                    not_stored.push((number, code));
                }
            }
        }
        let bytes = received?;
        settled.map(|()| bytes)
    }

    /// Receives the files of a batch, and notes in `all` what became of each. Returns the bytes that came.
    async fn receive_files(
        &self,
        channel: &Channel,
        store: &Arc<dyn Store>,
        all: &mut Vec<Stored>,
        client: &TaskClient,
    ) -> Result<u64, Failure> {
        let intake = Intake { pool: self.pool(1), from: 0, expected: None, into: None };
        let incoming = channel.receive(Mode::Stream, intake);
        let stall_timeout = self.server.config.data.stall_timeout.0;
        let (mut decoder, mut some) = (Decoder::default(), Group::default());
        let (mut number, mut bytes, mut paths, mut ended) = (0, 0, 0, false);
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
                let mut full = None;
                match record {
                    Record::File(file) => {
                        paths += file.path.len();
                        if paths > MAX_WANTED {
                            return Err(Failure::say(
                                552,
                                format!("the paths of a batch have at most {MAX_WANTED} bytes"),
                            ));
                        }
                        full = some.make_room(&file);
                        some.add(number, file);
                        number += 1;
                    }
                    Record::Refused(_) => return Err(unreadable(BatchError::Kind(2))),
                    Record::End => ended = true,
                }
                let last = if ended { some.take() } else { None };
                for files in full.into_iter().chain(last) {
                    // Files that are being stored are few, and a client that stops leaves no drafts.
                    let permit = tokio::select! {
                        permit = self.turn() => permit?,
                        () = client.stopped() => return Err(Failure::Stopped),
                    };
                    all.extend(self.store_some(store, files, permit).await?);
                }
            }
        }
        decoder.finish().map_err(unreadable)?;
        Ok(bytes)
    }

    /// Stores files.
    async fn store_some(
        &self,
        store: &Arc<dyn Store>,
        files: Vec<(usize, File)>,
        permit: Turn,
    ) -> Result<Vec<Stored>, Failure> {
        let named: Vec<_> = files.iter().map(|(number, file)| (*number, key(&file.path), file.bytes.len())).collect();
        let work = |store: Arc<dyn Store>| {
            let store_one = move |(_, file)| Box::pin(store_one(store.clone(), file)) as OnThread<_>;
            files.into_iter().map(store_one).collect()
        };
        let done = Self::on_one_thread(store, work, permit).await?;
        let stored = named.into_iter().zip(done).map(|((number, key, bytes), done)| Stored {
            number,
            key: key.ok(),
            bytes,
            result: done.map_err(|failure| failure.reply()),
        });
        Ok(stored.collect())
    }

    /// Waits until this batch may have files open.
    async fn turn(&self) -> Result<Turn, Failure> {
        let share = self.served.as_ref().map(|served| served.share_of(&self.server.batches)).ok_or_else(lost)?;
        share.turn().await.ok_or_else(lost)
    }

    /// Does `work` in `store`, on a thread of the pool if the store can be used there.
    async fn on_one_thread<T: Send + 'static>(
        store: &Arc<dyn Store>,
        work: impl FnOnce(Arc<dyn Store>) -> Vec<OnThread<Result<T, Failure>>> + Send + 'static,
        permit: Turn,
    ) -> Result<Vec<Result<T, Failure>>, Failure> {
        let (store, runtime) = (store.clone(), Handle::current());
        let (wanted, still) = watch::channel(());
        let done = if store.on_this_thread().is_some() {
            let done = tokio::task::spawn_blocking(move || {
                // What has begun is brought to its end, even if the client is gone.
                let _permit = (permit, wanted);
                runtime.block_on(async move {
                    let (store, syncs) = on_this_thread(&store);
                    run_on_this_thread(work(store), FILES_OF_BATCH, syncs.as_deref(), still).await
                })
            });
            done.await.map_err(|_| lost())?
        } else {
            run_on_this_thread(work(store), FILES_OF_BATCH, None, still).await
        };
        Ok(done.into_iter().map(|done| done.unwrap_or_else(|| Err(lost()))).collect())
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
        let (blocks, flow) = mpsc::channel(1);
        let (moved, flow) = (Arc::default(), Arc::new(Read(Mutex::new(flow))));
        let send = async { channel.send(Mode::Stream, 1, flow, &moved).await.map_err(Failure::from) };
        let (sent, read) = tokio::select! {
            done = async { tokio::try_join!(send, self.read_all(&store, keys, blocks)) } => done?,
            () = client.stopped() => return Err(Failure::Stopped),
        };
        for (key, read) in read {
            let what = Operation::Send { key, part: None, stripe: None };
            let (peer, user) = (self.peer, &transfer.user);
            match read {
                Ok(bytes) => tracing::info!(%peer, user, %what, bytes, "transferred"),
                Err(reply) => {
                    let (code, why) = (reply.code, reply.text());
                    tracing::info!(target: NOT_DONE, %peer, user, %what, code, why, "not transferred");
                }
            }
        }
        Ok(sent)
    }

    /// Reads files, and passes them on as a batch. Returns their sizes, or why they could not be read.
    async fn read_all(
        &self,
        store: &Arc<dyn Store>,
        keys: &[Key],
        blocks: mpsc::Sender<Block>,
    ) -> Result<Vec<(Key, Result<usize, Reply>)>, Failure> {
        let (mut batch, mut at, mut read) = (Encoder::default(), 0, Vec::new());
        let mut rest = keys;
        while !rest.is_empty() {
            let some = rest[..rest.len().min(FILES_OF_BATCH)].to_vec();
            let work = move |store: Arc<dyn Store>| vec![Box::pin(read_some(store, some)) as OnThread<_>];
            let permit = self.turn().await?;
            let objects: Vec<Result<ShortObject, Failure>> =
                Self::on_one_thread(store, work, permit).await?.pop().unwrap_or_else(|| Ok(Vec::new()))?;
            let (these, others) = rest.split_at(objects.len().min(rest.len()));
            rest = others;
            for (key, object) in these.iter().zip(objects) {
                let added = object.and_then(|object| {
                    let Attributes { mode, modified } = object.attributes;
                    let modified = modified.map(|time| (time.seconds, time.nanos));
                    let file = File { mode, modified, sum: object.crc32c(), ..File::default() };
                    batch.file(&file, &object.bytes).map_err(unreadable).map(|()| object.bytes.len())
                });
                let added = added.map_err(|failure| failure.reply());
                if let Err(reply) = &added {
                    batch.refused(reply.code);
                }
                read.push((key.clone(), added));
            }
            if rest.is_empty() {
                batch.end();
            }
            let block = Block { offset: at, body: Bytes::from(batch.take()), sum: None };
            at += block.len();
            if blocks.send(block.into()).await.is_err() {
                // The sender reports why it wants no more.
                return std::future::pending().await;
            }
        }
        Ok(read)
    }
}

/// Files that are to be stored together.
#[derive(Default)]
struct Group {
    files: Vec<(usize, File)>,
    bytes: usize,
}

impl Group {
    /// The files, if they have to be stored before `file` can be added. A file of the same name would wait for the first one.
    fn make_room(&mut self, file: &File) -> Option<Vec<(usize, File)>> {
        let is_full = self.files.len() >= FILES_OF_BATCH || self.bytes + file.bytes.len() > STORED;
        let has_name = self.files.iter().any(|(_, other)| other.path == file.path);
        if is_full || has_name { self.take() } else { None }
    }

    fn add(&mut self, number: usize, file: File) {
        self.bytes += file.bytes.len();
        self.files.push((number, file));
    }

    /// All files, if there are any.
    fn take(&mut self) -> Option<Vec<(usize, File)>> {
        self.bytes = 0;
        Some(std::mem::take(&mut self.files)).filter(|files| !files.is_empty())
    }
}

/// What became of a file.
struct Stored {
    number: usize,
    /// Its name, if it has a usable one.
    key: Option<Key>,
    bytes: usize,
    result: Result<(), Reply>,
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
    if is_part(key.name()) {
        return Err(Failure::say(553, format!("{} is a name of a client's draft, which STOR takes", quoted(&key))));
    }
    let modified = file.modified.map(|(seconds, nanos)| Time { seconds, nanos });
    let permissions = |mode: Option<u32>| mode.map(|mode| mode & 0o777);
    let object = ShortObject {
        key,
        bytes: file.bytes.into(),
        sum: Sum::combined(Combining::Crc32c, file.sum),
        attributes: Attributes { mode: permissions(file.mode), modified },
        at_most: permissions(file.at_most),
        before: None,
    };
    if !object.is_whole() {
        return Err(Failure::say(451, format!("{} has come with other bytes than were sent", quoted(&object.key))));
    }
    object.store(&*store).await?;
    Ok(())
}

/// Reads files until they have [`READ`] bytes.
async fn read_some(store: Arc<dyn Store>, keys: Vec<Key>) -> Result<Vec<Result<ShortObject, Failure>>, Failure> {
    let (mut objects, mut bytes) = (Vec::new(), 0);
    for key in &keys {
        let object = read_one(&*store, key).await;
        bytes += object.as_ref().map_or(0, |object| object.bytes.len());
        objects.push(object);
        if bytes >= READ {
            break;
        }
    }
    Ok(objects)
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
    let sum = ShortObject::sum_of(&bytes, Algorithm::Crc32c);
    Ok(ShortObject { key: key.clone(), sum, bytes, attributes, at_most: None, before: None })
}

/// The flow of what was read.
#[derive(Debug)]
struct Read(Mutex<mpsc::Receiver<Block>>);

impl Flow for Read {
    fn next(&self) -> Fallible<'_, Option<Block>> {
        Box::pin(async { Ok(self.0.lock().await.recv().await) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_a_batch_begin_at_the_root() {
        assert_eq!(key(b"/a/b").unwrap(), Key::parse("a/b").unwrap());
        for wrong in [&b"a/b"[..], b"", b"/", b"/a/..", b"/..", b"/a\0b"] {
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
