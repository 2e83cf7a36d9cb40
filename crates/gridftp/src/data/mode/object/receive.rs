//! Receives objects as a flow.

use super::super::super::blocks::{Sender, give};
use super::super::super::channel::Inner;
use super::super::super::error::Error;
use super::super::super::intake::Intake;
use super::super::super::losses::ObjectTotals;
use super::super::super::objects::Objects;
use super::control::{Control, LAST_WORDS, unexpected};
use phoebus_files::block::{Block, Buffer, Pool};
use phoebus_files::sum::Combining;
use phoebus_net::object::{self, Received, Receiving};
use phoebus_proto::object::{Message, ReceiveCounters, Seal, Shape, VERSION};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Receives all of the flow, and passes its blocks on. Ends only once everything has come.
pub(super) async fn receive(inner: &Arc<Inner>, intake: Intake, blocks: &Sender) -> Result<(), Error> {
    let objects = inner.settings.objects.unwrap_or_default();
    let mut control = Control::between(inner, true).await?;
    match run(inner, &mut control, &objects, (intake, blocks)).await {
        Ok(()) => {
            // Everything is here, whether or not the peer still hears of it.
            let parting = control.into_connection().part(LAST_WORDS);
            match inner.is_listening() {
                // The peer's reply does not wait for its own end.
                true => drop(tokio::spawn(parting)),
                // This program may end before a task does.
                false => parting.await,
            }
            Ok(())
        }
        Err(error) => Err(control.fail(inner, error).await),
    }
}

async fn run(
    inner: &Arc<Inner>,
    control: &mut Control,
    objects: &Objects,
    (intake, blocks): (Intake, &Sender),
) -> Result<(), Error> {
    let (version, shape, seal) = match control.next_within(inner.settings.reply_timeout).await? {
        Message::Hello { version: 0, .. } => {
            return Err(Error::Object("the peer proposes version 0; 1 or later was expected".to_owned()));
        }
        Message::Hello { version, shape, seal } => (version.min(VERSION), shape, seal),
        other => return Err(unexpected(&other, "HELLO")),
    };
    shape.check().map_err(|error| Error::Object(format!("the peer proposes what cannot be: {error}")))?;
    if seal != objects.seal {
        return Err(Error::Object("the peer proposes another seal than was agreed (seal)".to_owned()));
    }
    // What comes through gateways has to fit what precedes it on their hops.
    let longest = control.longest_relayed().map_or(shape.packet_len, |longest| longest.min(shape.packet_len) & !1);
    let shape = Shape { packet_len: longest, ..shape };
    // Packets have to fit the chunk, whatever is the least.
    let chunk_len = shape.chunk_len.min(objects.chunk).max(shape.packet_len);
    let memory = inner.settings.object_memory.as_ref();
    let share = memory.map(|memory| memory.share((chunk_len, shape.packet_len), objects.buffers));
    let (chunk_len, buffers) = match &share {
        Some(share) => share.fit((chunk_len, shape.packet_len), objects.buffers),
        None => (chunk_len, objects.buffers),
    };
    let shape = Shape { chunk_len, ..shape };
    shape.check().map_err(|error| Error::Object(format!("the gateways relay too short datagrams: {error}")))?;
    let secret = match (seal, control.secret(shape.transfer)) {
        (_, Some(secret)) => secret,
        (Seal::None, None) => object::Secret([0; 32]),
        (Seal::Encrypt, None) => return Err(Error::Object("the control stream has no keys for datagrams".to_owned())),
    };
    let (port, path) = control.path(inner, (shape, seal, &secret), false)?;
    let receiving = Receiving::start(port.clone(), path, (shape, seal, &secret))?;
    let pool = Pool::new(chunk_len as usize, buffers as usize);
    let mut credit = 0;
    for _ in 0..buffers {
        credit = receiving.grant(ChunkBuffer(pool.take().await));
    }
    let socket_room = port.socket_room();
    control.send(&Message::Accept { version, chunk_len, credit, socket_room, packet_len: shape.packet_len }).await?;
    Run { from: intake.from, announced: BTreeMap::new(), total: None, passed: 0 }
        .run_to_end(control, &receiving, (&pool, blocks))
        .await?;
    let ReceiveCounters { packets, duplicates, drops, sent, parity, restored, .. } = receiving.counters();
    let totals = ObjectTotals {
        transfers: 1,
        needed: packets - duplicates + restored,
        sent,
        drops,
        parity,
        ..ObjectTotals::default()
    };
    if drops > 0
        && let Some(note) = port.note()
    {
        tracing::warn!(drops, "this host had no room for datagrams: {note}");
    }
    tracing::debug!(packets = totals.needed, waste = totals.waste(), duplicates, drops, "received as objects");
    if let Some(losses) = inner.losses() {
        losses.add_objects(totals);
    }
    Ok(())
}

/// A buffer of a chunk.
#[derive(Debug)]
struct ChunkBuffer(Buffer);

impl AsMut<[u8]> for ChunkBuffer {
    fn as_mut(&mut self) -> &mut [u8] {
        self.0.room()
    }
}

/// A transfer in progress.
struct Run {
    /// Added to all offsets.
    from: u64,
    /// Chunks that were announced and not passed on yet: offset, length and checksum.
    announced: BTreeMap<u64, (u64, u32, u32)>,
    /// Number of all chunks, once it is known.
    total: Option<u64>,
    /// Number of chunks that were passed on.
    passed: u64,
}

impl Run {
    async fn run_to_end(
        &mut self,
        control: &mut Control,
        receiving: &Receiving<ChunkBuffer>,
        (pool, blocks): (&Pool, &Sender),
    ) -> Result<(), Error> {
        while self.total != Some(self.passed) {
            tokio::select! {
                biased;
                message = control.next() => self.message(receiving, message?)?,
                buffer = pool.take() => {
                    let credit = receiving.grant(ChunkBuffer(buffer));
                    control.send(&Message::Credit(credit)).await?;
                }
                received = receiving.next() => {
                    let block = self.block(received?)?;
                    give(blocks, block).await?;
                    self.passed += 1;
                }
            }
        }
        control.send(&Message::Done).await
    }

    fn message(&mut self, receiving: &Receiving<ChunkBuffer>, message: Message) -> Result<(), Error> {
        match message {
            Message::Chunk { number, offset, len, checksum } if self.total.is_none() => {
                let offset = self.from.checked_add(offset).filter(|offset| offset.checked_add(len.into()).is_some());
                self.announced.insert(number, (offset.ok_or(Error::Endless)?, len, checksum));
                receiving.announce(number, len).map_err(Error::Object)
            }
            Message::End { chunks } if self.total.is_none() => {
                let announced = self.passed + self.announced.len() as u64;
                if chunks != announced {
                    return Err(Error::Object(format!(
                        "the peer ends after {chunks} chunks, and announced {announced}"
                    )));
                }
                self.total = Some(chunks);
                Ok(())
            }
            other => Err(unexpected(&other, "CHUNK or END")),
        }
    }

    /// Checks a complete chunk, and makes a block of it.
    fn block(&mut self, received: Received<ChunkBuffer>) -> Result<Block, Error> {
        let Received { number, buffer } = received;
        let announced = self.announced.remove(&number);
        let (offset, len, checksum) = announced.ok_or_else(|| Error::Object(format!("chunk {number} came twice")))?;
        let bytes = buffer.0.freeze(len as usize);
        if Combining::Crc32c.of(&bytes) != checksum {
            return Err(Error::Object(format!(
                "chunk {number} is damaged: its checksum is not the one that was announced"
            )));
        }
        Ok(Block::new(offset, bytes))
    }
}
