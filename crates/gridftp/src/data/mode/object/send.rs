//! Sends a flow as objects.

use super::super::super::channel::Inner;
use super::super::super::error::Error;
use super::super::super::known_paths::PathInUse;
use super::super::super::losses::ObjectTotals;
use super::super::super::objects::Objects;
use super::super::super::outgoing::read;
use super::super::Sending as WhatToSend;
use super::ACK_INTERVAL;
use super::control::{Control, LAST_WORDS, unexpected};
use bytes::Bytes;
use phoebus_files::block::Body;
use phoebus_files::store::Flow;
use phoebus_files::sum::Combining;
use phoebus_net::object::{self, OVERHEAD, Sending, SendingOptions};
use phoebus_proto::object::{Message, Seal, SendConfig, SendCounters, Shape, VERSION};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

/// Longest packet by default, in bytes: jumbo frames. Longer ones gain little, and one lost fragment would lose all.
const PACKET_MAX: u32 = 8938;

/// Assumed round trip before the first measurement.
const RTT: Duration = Duration::from_millis(100);

/// Sends all of the flow. Returns the number of bytes.
pub(super) async fn send(inner: &Arc<Inner>, what: WhatToSend) -> Result<u64, Error> {
    let WhatToSend { flow, moved, .. } = what;
    let objects = inner.settings.objects.unwrap_or_default();
    let mut control = Control::between(inner, false).await?;
    match run(inner, &mut control, &objects, (flow, moved)).await {
        Ok(sent) => {
            // Whatever happens now, the peer has everything.
            control.into_connection().part(LAST_WORDS).await;
            Ok(sent)
        }
        Err(error) => Err(control.fail(inner, error).await),
    }
}

async fn run(
    inner: &Arc<Inner>,
    control: &mut Control,
    objects: &Objects,
    (flow, moved): (Arc<dyn Flow>, Arc<AtomicU64>),
) -> Result<u64, Error> {
    let path = inner.settings.known_paths.take(control.ends(inner)?);
    let (sending, shape, granted) = agree(inner, control, objects, &path).await?;
    let mut credit = Credit(granted);
    open(control, &sending, &mut credit).await?;
    let (said, mut to_say) = mpsc::channel(4);
    let reader = Reader { flow, chunk_len: shape.chunk_len, said, moved };
    let mut reading = std::pin::pin!(reader.run(&sending));
    let mut sent = None;
    let mut all_arrived = std::pin::pin!(sending.arrived());
    // All has arrived, and the peer's word is missing until then.
    let (mut word_by, mut written_since) = (None, 0);
    loop {
        tokio::select! {
            biased;
            // A peer that goes on talking does not put it off.
            () = sleep_until(word_by.unwrap_or_else(Instant::now)), if word_by.is_some() => {
                return Err(Error::Stalled(inner.settings.stall_timeout));
            }
            message = control.next() => match message? {
                Message::Credit(to) => {
                    sending.raise_credit(credit.raised(to)?);
                    // A chunk was written. There are no more than this end may have in flight.
                    if let Some(at) = word_by.as_mut().filter(|_| written_since < objects.buffers) {
                        (*at, written_since) = (Instant::now() + inner.settings.stall_timeout, written_since + 1);
                    }
                }
                // It may overtake the last acknowledgement.
                Message::Done if let Some((bytes, _)) = sent && sending.has_sent_all() => {
                    record(inner, &sending, (&path, objects));
                    return Ok(bytes);
                }
                other => return Err(unexpected(&other, "CREDIT")),
            },
            Some(message) = to_say.recv() => control.send(&message).await?,
            read = &mut reading, if sent.is_none() => {
                let (bytes, chunks) = read?;
                sent = Some((bytes, chunks));
                // What is still to be said about chunks goes first.
                while let Ok(message) = to_say.try_recv() {
                    control.send(&message).await?;
                }
                control.send(&Message::End { chunks }).await?;
                sending.finish();
            }
            arrived = &mut all_arrived, if word_by.is_none() => {
                arrived?;
                word_by = Some(Instant::now() + inner.settings.stall_timeout);
            }
        }
    }
}

/// Records what the transfer has cost.
fn record(inner: &Inner, sending: &Sending, (path, objects): (&PathInUse, &Objects)) {
    // What a rate of the user's says of the path is too little.
    if let Some(found) = sending.known_path().filter(|_| objects.rate.is_none()) {
        path.learn(found);
    }
    let (SendCounters { needed, sent, repairs, repeats, parity, lost, drops, .. }, (rtt, rate)) =
        (sending.counters(), sending.pace());
    let rtt = rtt.map_or(0.0, |rtt| rtt.as_secs_f64());
    let path_rate = sending.known_path().map_or(0.0, |found| found.bits_per_second as f64);
    let totals = ObjectTotals { transfers: 1, needed, sent, repairs, repeats, parity, drops, rate, path_rate, rtt };
    tracing::debug!(
        packets = needed,
        waste = totals.waste(),
        lost,
        repairs,
        repeats,
        parity,
        drops,
        rtt,
        rate,
        "sent as objects"
    );
    if let Some(losses) = inner.losses() {
        losses.add_objects(totals);
    }
}

/// Waits until datagrams are known to get through. Nothing of the flow was read before, so its bytes may still go another way.
async fn open(control: &mut Control, sending: &Sending, credit: &mut Credit) -> Result<(), Error> {
    loop {
        tokio::select! {
            biased;
            opened = sending.opened() => return opened.map_err(Error::from),
            message = control.next() => match message? {
                Message::Credit(to) => sending.raise_credit(credit.raised(to)?),
                other => return Err(unexpected(&other, "CREDIT")),
            },
        }
    }
}

/// The credit that the peer has given over the control stream.
#[derive(Debug)]
struct Credit(u64);

impl Credit {
    /// Raises it to `to`.
    fn raised(&mut self, to: u64) -> Result<u64, Error> {
        if to <= self.0 {
            return Err(Error::Object(format!("the peer sent credit {to} after {}; it only grows", self.0)));
        }
        self.0 = to;
        Ok(to)
    }
}

/// Proposes the transfer, and starts to send what the peer accepts.
async fn agree(
    inner: &Inner,
    control: &mut Control,
    objects: &Objects,
    in_use: &PathInUse,
) -> Result<(Sending, Shape, u64), Error> {
    let to = control.datagrams_to()?;
    let packet_len = packet_len(control, to, objects)?;
    let transfer = random()? as u32;
    let mut shape =
        Shape { transfer, packet_len, chunk_len: objects.chunk, ack_packets: objects.ack, ack_interval: ACK_INTERVAL };
    shape.check().map_err(|error| Error::Object(format!("driver object: {error}")))?;
    let secret = match (objects.seal, control.secret(transfer)) {
        (_, Some(secret)) => secret,
        (Seal::None, None) => object::Secret([0; 32]),
        (Seal::Encrypt, None) => return Err(Error::Object("the control stream has no keys for datagrams".to_owned())),
    };
    control.send(&Message::Hello { version: VERSION, shape, seal: objects.seal }).await?;
    // The end that has connected sends its first check now.
    let path = control.is_own().then(|| control.path(inner, (shape, objects.seal, &secret), true)).transpose()?;
    let (chunk_len, credit, socket_room) = match control.next_within(inner.settings.reply_timeout).await? {
        Message::Accept { version, chunk_len, credit, socket_room, packet_len } if (1..=VERSION).contains(&version) => {
            if packet_len > shape.packet_len {
                let proposed = shape.packet_len;
                let why = format!("the peer accepts packets of {packet_len} bytes; at most {proposed} were proposed");
                return Err(Error::Object(why));
            }
            shape.packet_len = packet_len;
            shape.check().map_err(|error| Error::Object(format!("the peer accepts what cannot be: {error}")))?;
            (chunk_len, credit, socket_room)
        }
        Message::Accept { version, .. } => {
            return Err(Error::Object(format!("the peer accepts version {version}; from 1 to {VERSION} was expected")));
        }
        other => return Err(unexpected(&other, "ACCEPT")),
    };
    if chunk_len > shape.chunk_len || chunk_len < packet_len {
        let why = format!(
            "the peer accepts chunks of {chunk_len} bytes; from {packet_len} to {} were proposed",
            shape.chunk_len
        );
        return Err(Error::Object(why));
    }
    shape.chunk_len = chunk_len;
    let (port, path) = match path {
        Some((port, mut path)) => {
            path.shorten(shape.packet_len);
            (port, path)
        }
        None => control.path(inner, (shape, objects.seal, &secret), true)?,
    };
    let config = SendConfig {
        rtt: RTT,
        socket_room,
        known_loss: in_use.known().map_or(0.0, |known| f64::from(known.loss_per_million) / 1e6),
        seed: random()?,
        overhead: (OVERHEAD + port.prefix_len()) as u32 + if to.is_ipv6() { 48 } else { 28 },
        ..SendConfig::default()
    };
    // Before the user's own time-out, which could not say why nothing moves.
    let options = SendingOptions {
        config,
        shared_control: in_use.control(objects, shape.packet_len),
        chunks: objects.buffers.into(),
        batch: objects.batch,
        silence: inner.settings.stall_timeout * 3 / 4,
    };
    let factory = objects.factory(in_use.to_resume());
    let sending = Sending::start(port, path, (shape, objects.seal, &secret), &*factory, options)?;
    sending.raise_credit(credit);
    Ok((sending, shape, credit))
}

/// The length of packets: what was asked for, or what the path carries.
fn packet_len(control: &Control, to: SocketAddr, objects: &Objects) -> Result<u32, Error> {
    let (most, usual) = control.longest_packets(to)?;
    match objects.packet {
        // An even number, so that there can be parity.
        None => Ok(usual.min(PACKET_MAX) & !1),
        Some(packet) if packet <= most => Ok(packet),
        Some(packet) => Err(Error::Object(format!(
            "driver object: packet is {packet}; the path to {to} carries packets of at most {most} bytes"
        ))),
    }
}

fn random() -> Result<u64, Error> {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).map_err(|error| Error::Object(error.to_string()))?;
    Ok(u64::from_ne_bytes(bytes))
}

/// Takes blocks off the flow, and makes chunks of them.
struct Reader {
    flow: Arc<dyn Flow>,
    chunk_len: u32,
    said: mpsc::Sender<Message>,
    moved: Arc<AtomicU64>,
}

impl Reader {
    /// Reads to the end of the flow. Returns the number of bytes, and that of chunks.
    async fn run(self, sending: &Sending) -> Result<(u64, u64), Error> {
        let (mut sent, mut chunks) = (0, 0);
        while let Some(block) = self.flow.next().await? {
            let len = block.len();
            block.offset.checked_add(len).ok_or(Error::Endless)?;
            chunks += match block.body {
                Body::Bytes(bytes) => self.bytes(sending, block.offset, bytes).await?,
                // Bytes that are still in a file, for connections on which the kernel could send it.
                Body::FileRange(lent) => {
                    let (mut done, mut chunks) = (0, 0);
                    while done < len {
                        let bytes = read(lent.clone(), done).await?;
                        let read = bytes.len() as u64;
                        chunks += self.bytes(sending, block.offset + done, bytes.into()).await?;
                        done += read;
                    }
                    chunks
                }
                Body::Written(_) | Body::Hole(_) => return Err(Error::Order),
            };
            sent += len;
        }
        Ok((sent, chunks))
    }

    /// Makes chunks of a part of the object. Returns their number.
    async fn bytes(&self, sending: &Sending, offset: u64, bytes: Bytes) -> Result<u64, Error> {
        let (mut at, mut chunks) = (0, 0);
        while at < bytes.len() {
            let len = (bytes.len() - at).min(self.chunk_len as usize);
            self.chunk(sending, offset + at as u64, bytes.slice(at..at + len)).await?;
            self.moved.fetch_add(len as u64, Ordering::Relaxed);
            (chunks, at) = (chunks + 1, at + len);
        }
        Ok(chunks)
    }

    async fn chunk(&self, sending: &Sending, offset: u64, bytes: Bytes) -> Result<(), Error> {
        let (len, checksum) = (bytes.len() as u32, Combining::Crc32c.of(&bytes));
        let number = sending.push(bytes).await?;
        // The other side is gone only if the transfer has failed.
        let _ = self.said.send(Message::Chunk { number, offset, len, checksum }).await;
        Ok(())
    }
}
