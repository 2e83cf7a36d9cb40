//! The receiving end: a thread that opens packets, puts them into their chunks, and acknowledges.

use super::path::{Failure, Path};
use super::port::Port;
use super::seal::{End, Sealer, Secret};
use crate::datagram::{Inbox, RECEIVED_MAX};
use phoebus_proto::object::packet::{HEADER_LEN, Header, Kind};
use phoebus_proto::object::parity::{self, ParityNumber};
use phoebus_proto::object::{ACK_LEN_MIN, ReceiveCounters, Receiver, Seal, Shape, Unplaced};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::Notify;

/// Longest body of an acknowledgement, in bytes: it fits the smallest MTU of IPv6 with all headers.
const ACK_MAX: usize = 1200;
/// For how long packets of a busy transfer gather before the thread wakes.
const RECEIVE_PAUSE: Duration = Duration::from_micros(500);
/// Datagrams in one round that make a transfer busy.
const BUSY: usize = 8;

const _: () = assert!(ACK_MAX >= ACK_LEN_MIN);

/// A complete chunk.
#[derive(Debug)]
pub struct Received<B> {
    /// Its number.
    pub number: u64,
    /// The buffer that holds its bytes.
    pub buffer: B,
}

/// The receiving end of a transfer, with buffers of the type `B`. Dropping it ends the thread.
#[derive(Debug)]
pub struct Receiving<B: AsMut<[u8]> + Send + 'static> {
    shared: Arc<Shared<B>>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared<B> {
    port: Port,
    state: Mutex<State<B>>,
    /// Chunks are complete, or the transfer has failed.
    progress: Notify,
}

#[derive(Debug)]
struct State<B> {
    receiver: Receiver,
    /// Buffers that no chunk has yet.
    free: Vec<B>,
    /// The buffers of the chunks in flight, the first first.
    chunks: VecDeque<Option<B>>,
    /// Number of the first of these.
    first: u64,
    complete: VecDeque<Received<B>>,
    /// Parity packets of chunks that are not complete, by chunk.
    parity: BTreeMap<u64, Parity>,
    /// Chunks that parity may complete, since more of them or their length is known by now.
    restorable: Vec<u64>,
    failure: Option<Failure>,
    stop: bool,
}

/// Parity packets of a chunk: the number of all, and those that have arrived, at most [`parity::most`].
#[derive(Debug)]
struct Parity {
    of: u32,
    packets: Vec<(u32, Vec<u8>)>,
}

/// A chunk whose missing packets can be computed.
struct Restorable<B> {
    chunk: u64,
    buffer: B,
    len: usize,
    missing: Vec<u32>,
    parity: Parity,
}

/// The part of the thread that nobody shares.
struct Thread<B> {
    shared: Arc<Shared<B>>,
    out_seal: Sealer,
    in_seal: Sealer,
    path: Path,
    packet_len: usize,
}

impl<B: AsMut<[u8]> + Send + 'static> Receiving<B> {
    /// Starts to receive over `port` and `path`. Buffers have at least `shape.chunk_len` bytes.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start(port: Port, mut path: Path, (shape, seal, secret): (Shape, Seal, &Secret)) -> io::Result<Self> {
        port.begin()?;
        path.begin(&port);
        let state = State {
            receiver: Receiver::new(shape),
            free: Vec::new(),
            chunks: VecDeque::new(),
            first: 0,
            complete: VecDeque::new(),
            parity: BTreeMap::new(),
            restorable: Vec::new(),
            failure: None,
            stop: false,
        };
        let shared = Arc::new(Shared { port, state: Mutex::new(state), progress: Notify::new() });
        let (out_seal, in_seal) = (Sealer::new(seal, secret, End::Receiver), Sealer::new(seal, secret, End::Sender));
        let mut thread =
            Thread { shared: shared.clone(), out_seal, in_seal, path, packet_len: shape.packet_len as usize };
        let run = move || {
            if catch_unwind(AssertUnwindSafe(|| thread.run())).is_err() {
                let failure = "the thread that receives objects has panicked".to_owned().into();
                thread.shared.state().failure.get_or_insert(failure);
                thread.shared.progress.notify_waiters();
            }
        };
        let thread = std::thread::Builder::new().name("object-receive".to_owned()).spawn(run)?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Adds a buffer, by which the sender may begin one more chunk. Returns the new credit.
    pub fn grant(&self, buffer: B) -> u64 {
        let now = self.shared.port.now();
        let mut state = self.shared.state();
        state.free.push(buffer);
        state.receiver.grant(now);
        let credit = state.receiver.credit();
        drop(state);
        self.shared.port.wake();
        credit
    }

    /// Records the length of a chunk, as the peer has said over the control stream.
    ///
    /// # Errors
    /// The peer breaks the protocol.
    pub fn announce(&self, number: u64, len: u32) -> Result<(), String> {
        let mut state = self.shared.state();
        let complete = state.receiver.announce(number, len).map_err(|error| error.to_string())?;
        if let Some(number) = complete {
            state.completed(number);
            drop(state);
            self.shared.progress.notify_waiters();
        } else if state.parity.contains_key(&number) {
            // Parity has arrived before. To compute packets takes a while.
            state.restorable.push(number);
            drop(state);
            self.shared.port.wake();
        }
        Ok(())
    }

    /// Waits for the next complete chunk. Cancel safe.
    ///
    /// # Errors
    /// The transfer has failed.
    pub async fn next(&self) -> Result<Received<B>, Failure> {
        loop {
            let mut progress = std::pin::pin!(self.shared.progress.notified());
            progress.as_mut().enable();
            {
                let mut state = self.shared.state();
                if let Some(received) = state.complete.pop_front() {
                    return Ok(received);
                }
                if let Some(failure) = &state.failure {
                    return Err(failure.clone());
                }
            }
            progress.await;
        }
    }

    /// Counters.
    pub fn counters(&self) -> ReceiveCounters {
        self.shared.state().receiver.counters()
    }
}

impl<B: AsMut<[u8]> + Send + 'static> Drop for Receiving<B> {
    fn drop(&mut self) {
        self.shared.state().stop = true;
        self.shared.port.wake();
        // Another transfer may use the port next. The thread stops within a millisecond.
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        self.shared.port.end();
    }
}

impl<B> Shared<B> {
    fn state(&self) -> MutexGuard<'_, State<B>> {
        // The state machine stays consistent even if a panic interrupted the holder.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<B: AsMut<[u8]>> State<B> {
    /// Passes a complete chunk on.
    fn completed(&mut self, number: u64) {
        self.parity.remove(&number);
        let at = number.checked_sub(self.first).map(|at| at as usize);
        if let Some(buffer) = at.and_then(|at| self.chunks.get_mut(at)).and_then(Option::take) {
            self.complete.push_back(Received { number, buffer });
        }
        while self.first < self.receiver.complete() && self.chunks.pop_front().is_some() {
            self.first += 1;
        }
    }

    /// What it takes to compute the missing packets of a chunk, if there is parity for all of them. The chunk's buffer is taken.
    fn take_restorable(&mut self, chunk: u64) -> Option<Restorable<B>> {
        let parity = self.parity.get(&chunk)?;
        if (self.receiver.missing_count(chunk)? as usize) > parity.packets.len() {
            return None;
        }
        let (missing, len) = (self.receiver.missing(chunk)?, self.receiver.len_of(chunk)? as usize);
        // There is one even if no packet has arrived.
        self.buffer(chunk)?;
        let buffer = self.chunks.get_mut(chunk.checked_sub(self.first)? as usize)?.take()?;
        let parity = self.parity.remove(&chunk)?;
        Some(Restorable { chunk, buffer, len, missing, parity })
    }

    /// Remembers that a chunk may be completed by its parity, if it has some.
    fn may_restore(&mut self, chunk: u64) {
        if self.parity.contains_key(&chunk) && !self.restorable.contains(&chunk) {
            self.restorable.push(chunk);
        }
    }

    /// The buffer of a chunk in flight.
    fn buffer(&mut self, chunk: u64) -> Option<&mut B> {
        let at = chunk.checked_sub(self.first)? as usize;
        while self.chunks.len() <= at {
            self.chunks.push_back(None);
        }
        let slot = self.chunks.get_mut(at)?;
        if slot.is_none() {
            *slot = self.free.pop();
        }
        slot.as_mut()
    }
}

impl<B: AsMut<[u8]>> Thread<B> {
    fn run(&mut self) {
        let mut inbox = Inbox::new(RECEIVED_MAX);
        let pause = self.shared.port.receive_pause(RECEIVE_PAUSE);
        let (mut may_receive, mut out) = (true, Vec::new());
        loop {
            let mut count = 0;
            if may_receive {
                (may_receive, count) = self.receive(&mut inbox);
            }
            self.restore();
            let check = match self.path.poll(&self.shared.port) {
                Ok(until) => until,
                Err(failure) => {
                    self.shared.state().failure.get_or_insert(failure);
                    self.shared.progress.notify_waiters();
                    return;
                }
            };
            let until = self.acknowledge(&mut out).into_iter().chain(check).min();
            if self.shared.state().stop {
                return;
            }
            if may_receive {
                continue;
            }
            if count >= BUSY && !pause.is_zero() {
                // Each datagram would wake the thread.
                std::thread::sleep(pause);
                may_receive = true;
            } else {
                may_receive = self.shared.port.wait(until, false).may_receive;
            }
        }
    }

    /// Processes what has arrived. Returns whether more may have, and how many datagrams there were.
    fn receive(&mut self, inbox: &mut Inbox) -> (bool, usize) {
        let shared = self.shared.clone();
        let (now, mut count, mut is_progress) = (shared.port.now(), 0, false);
        let mut state = shared.state();
        let more = shared.port.receive(inbox, |datagram, from| {
            count += 1;
            match self.datagram(&mut state, now, datagram, from) {
                Ok(progress) => is_progress |= progress,
                Err(failure) => {
                    state.failure.get_or_insert(failure.into());
                    is_progress = true;
                }
            }
        });
        drop(state);
        if is_progress {
            shared.progress.notify_waiters();
        }
        (more, count)
    }

    /// Computes missing packets of chunks that parity may complete. That takes a while, so the state is not held meanwhile: only this
    /// thread touches the buffers of chunks in flight.
    fn restore(&self) {
        let chunks = std::mem::take(&mut self.shared.state().restorable);
        for chunk in chunks {
            let Some(mut restorable) = self.shared.state().take_restorable(chunk) else { continue };
            let packet_len = self.packet_len;
            let room = restorable.buffer.as_mut().get_mut(..restorable.len);
            let Parity { of, packets } = &restorable.parity;
            let is_restored = room
                .is_some_and(|room| parity::restore(room, packet_len, &restorable.missing, (packets, *of as usize)));
            let mut state = self.shared.state();
            let at = restorable.chunk.checked_sub(state.first).map(|at| at as usize);
            if let Some(slot) = at.and_then(|at| state.chunks.get_mut(at)) {
                *slot = Some(restorable.buffer);
            }
            if !is_restored {
                continue;
            }
            let now = self.shared.port.now();
            if let Some(number) = state.receiver.restored(now, restorable.chunk) {
                state.completed(number);
                drop(state);
                self.shared.progress.notify_waiters();
            }
        }
    }

    /// Processes a datagram, and returns whether it completes a chunk. Whatever does not open is dropped without an answer.
    fn datagram(
        &mut self,
        state: &mut State<B>,
        now: Duration,
        datagram: &mut [u8],
        from: SocketAddr,
    ) -> Result<bool, String> {
        if !self.path.is_peer(from) {
            return Ok(false);
        }
        let Some((header, body)) = Header::decode(datagram) else { return Ok(false) };
        if matches!(header.kind, Kind::Check | Kind::CheckAnswer) {
            self.path.datagram(&self.shared.port, &header, datagram, from);
            return Ok(false);
        }
        let Some(len) = body.len().checked_sub(self.in_seal.len()) else { return Ok(false) };
        if header.kind == Kind::Parity {
            return self.parity(state, now, (&header, len), datagram, from).map(|()| false);
        }
        let place = state.receiver.place(&header, len);
        if place == Err(Unplaced::Foreign) {
            return Ok(false);
        }
        let Some(bytes) = self.in_seal.open(&header, &mut datagram[HEADER_LEN..]) else { return Ok(false) };
        let place = match place {
            Ok(place) => place,
            Err(Unplaced::Invalid(what)) => return Err(format!("the peer sent {what}")),
            Err(Unplaced::Foreign) => return Ok(false),
        };
        self.path.heard(from);
        if !place.is_duplicate {
            let bytes = &bytes[..len];
            let room =
                state.buffer(place.chunk).and_then(|buffer| buffer.as_mut().get_mut(place.offset..place.offset + len));
            let Some(room) = room else { return Err("a chunk is longer than its buffer".to_owned()) };
            room.copy_from_slice(bytes);
        }
        let Some(number) = state.receiver.arrived(now, &header, len) else {
            state.may_restore(header.packet.chunk);
            return Ok(false);
        };
        state.completed(number);
        Ok(true)
    }

    /// Processes a parity packet.
    fn parity(
        &mut self,
        state: &mut State<B>,
        now: Duration,
        (header, len): (&Header, usize),
        datagram: &mut [u8],
        from: SocketAddr,
    ) -> Result<(), String> {
        let place = state.receiver.place_parity(header, len);
        if place == Err(Unplaced::Foreign) {
            return Ok(());
        }
        let Some(bytes) = self.in_seal.open(header, &mut datagram[HEADER_LEN..]) else { return Ok(()) };
        let place = match place {
            Ok(place) => place,
            Err(Unplaced::Invalid(what)) => return Err(format!("the peer sent {what}")),
            Err(Unplaced::Foreign) => return Ok(()),
        };
        self.path.heard(from);
        state.receiver.parity_arrived(now, header, len);
        let Some((chunk, ParityNumber { number, of })) = place else { return Ok(()) };
        let parity = state.parity.entry(chunk).or_insert_with(|| Parity { of, packets: Vec::new() });
        if parity.of != of {
            return Err("the peer sent parity of two kinds for one chunk".to_owned());
        }
        if parity.packets.iter().all(|(known, _)| *known != number) {
            parity.packets.push((number, bytes[..len].to_vec()));
        }
        state.may_restore(chunk);
        Ok(())
    }

    /// Sends acknowledgements that are due. Returns when the next one will be.
    fn acknowledge(&mut self, out: &mut Vec<u8>) -> Option<Duration> {
        let shared = self.shared.clone();
        let now = shared.port.now();
        loop {
            out.clear();
            out.resize(HEADER_LEN, 0);
            let mut state = shared.state();
            if state.receiver.poll_timeout().is_some_and(|due| due <= now) {
                state.receiver.dropped(shared.port.drops());
            }
            let Some(header) = state.receiver.poll_transmit(now, ACK_MAX, out) else {
                return state.receiver.poll_timeout();
            };
            drop(state);
            out[..HEADER_LEN].copy_from_slice(&header.encode());
            out.resize(out.len() + self.out_seal.len(), 0);
            if self.out_seal.seal(&header, out)
                && let Some(to) = self.path.to()
            {
                // The next statement makes good a lost one.
                let _ = shared.port.send(to, out, out.len());
            }
        }
    }
}
