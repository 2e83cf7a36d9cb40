//! The sending end: a thread that seals and sends what [`Sender`] says, and processes acknowledgements.

use super::path::{Failure, Path, too_long};
use super::port::{Port, path_mtu};
use super::seal::{End, Sealer, Secret};
use crate::datagram::{Inbox, Sent};
use bytes::Bytes;
use phoebus_proto::control::{Factory, KnownPath};
use phoebus_proto::object::packet::{HEADER_LEN, Header, Kind};
use phoebus_proto::object::parity::{self, ParityNumber};
use phoebus_proto::object::{
    ANNOUNCED_AHEAD, Ack, ReplayWindow, Seal, SendConfig, SendCounters, Sender, Shape, Transmit,
};
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::Notify;

/// Most datagrams in one batch: what the kernel segments at once.
const BATCH_MAX: usize = 64;
/// Buffers for acknowledgements that one call fills: few arrive at a time, and the kernel coalesces them.
const ACKS_MAX: usize = 4;
/// Most batches before what has arrived is processed.
const BATCHES: usize = 8;
/// How long a batch is held before deadlines are looked at again, if the socket does not become writable.
const HELD: Duration = Duration::from_millis(100);

/// How to send.
#[derive(Debug)]
pub struct SendingOptions {
    /// The settings of the protocol.
    pub config: SendConfig,
    /// Chunks that may be in flight: as many are held in memory.
    pub chunks: u64,
    /// Most datagrams that the kernel is given at once; at most 64, which it segments.
    pub batch: u32,
    /// A peer that acknowledges nothing for this long is lost.
    pub silence: Duration,
}

/// The sending end of a transfer. Dropping it ends the thread; the peer hears of that over the control stream.
#[derive(Debug)]
pub struct Sending {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    port: Port,
    state: Mutex<State>,
    /// Datagrams get through, chunks have arrived, or the transfer has ended.
    progress: Notify,
    chunks: u64,
}

#[derive(Debug)]
struct State {
    sender: Sender,
    /// The bytes of the chunks in flight, the first first.
    chunks: VecDeque<Bytes>,
    /// Number of the first of these.
    first: u64,
    /// The parity packets of the chunk that was last asked for some.
    parity: Option<(u64, Vec<Vec<u8>>)>,
    /// When an acknowledgement last told of an arrival, or packets went out while none was in flight.
    heard_at: Duration,
    /// Since when the peer has had no buffer for the next chunk.
    starved_since: Option<Duration>,
    /// Whether datagrams get through.
    is_open: bool,
    failure: Option<Failure>,
    stop: bool,
}

/// The part of the thread that nobody shares.
struct Thread {
    shared: Arc<Shared>,
    path: Path,
    shape: Shape,
    out_seal: Sealer,
    in_seal: Sealer,
    replay: ReplayWindow,
    silence: Duration,
    batch: u32,
    /// For how many time-outs in a row the path's MTU was asked for.
    asked_at: u32,
    /// A batch that the socket had no room for: its length and that of its datagrams.
    held: Option<(usize, usize)>,
}

impl Sending {
    /// Starts to send over `port` and `path`, once that is known to be open.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start(
        port: Port,
        mut path: Path,
        (shape, seal, secret): (Shape, Seal, &Secret),
        control: &dyn Factory,
        options: SendingOptions,
    ) -> io::Result<Self> {
        let SendingOptions { config, chunks, batch, silence } = options;
        port.begin()?;
        path.begin(&port);
        let now = port.now();
        let state = State {
            sender: Sender::new(now, shape, config, control),
            chunks: VecDeque::new(),
            first: 0,
            parity: None,
            heard_at: now,
            starved_since: None,
            is_open: false,
            failure: None,
            stop: false,
        };
        let shared =
            Arc::new(Shared { port, state: Mutex::new(state), progress: Notify::new(), chunks: chunks.max(1) });
        let (out_seal, in_seal) = (Sealer::new(seal, secret, End::Sender), Sealer::new(seal, secret, End::Receiver));
        let replay = ReplayWindow::new();
        let mut thread = Thread {
            shared: shared.clone(),
            path,
            shape,
            out_seal,
            in_seal,
            replay,
            silence,
            batch,
            asked_at: 0,
            held: None,
        };
        let run = move || {
            if catch_unwind(AssertUnwindSafe(|| thread.run())).is_err() {
                thread.fail("the thread that sends objects has panicked".to_owned().into());
            }
        };
        let thread = std::thread::Builder::new().name("object-send".to_owned()).spawn(run)?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Waits until datagrams are known to get through. Before that, nothing is sent. Cancel safe.
    ///
    /// # Errors
    /// [`Failure::Closed`] if they do not.
    pub async fn opened(&self) -> Result<(), Failure> {
        self.wait_for(|state| state.is_open.then_some(())).await
    }

    /// Adds a chunk, once there is room, and returns its number. Cancel safe.
    ///
    /// # Errors
    /// The transfer has failed.
    pub async fn push(&self, bytes: Bytes) -> Result<u64, Failure> {
        let number = self.wait_for(|state| {
            let is_announceable = state.sender.chunks_end() < state.sender.credit().saturating_add(ANNOUNCED_AHEAD);
            (is_announceable && state.sender.chunks_in_flight() < self.shared.chunks).then(|| {
                state.chunks.push_back(bytes.clone());
                state.sender.push(u32::try_from(bytes.len()).unwrap_or(u32::MAX))
            })
        });
        let number = number.await?;
        self.shared.port.wake();
        Ok(number)
    }

    /// Says that there are no more chunks.
    pub fn finish(&self) {
        self.shared.state().sender.finish();
        self.shared.port.wake();
    }

    /// Raises the number of chunks that may be sent, as the peer has said over the control stream.
    pub fn raise_credit(&self, credit: u64) {
        self.shared.state().raise_credit(credit);
        // More chunks may be announced.
        self.shared.progress.notify_waiters();
        self.shared.port.wake();
    }

    /// Waits until all chunks have arrived.
    ///
    /// # Errors
    /// The transfer has failed.
    pub async fn arrived(&self) -> Result<(), Failure> {
        self.wait_for(|state| state.sender.is_done().then_some(())).await
    }

    /// Waits until there is what `look` looks for. Cancel safe.
    async fn wait_for<T>(&self, mut look: impl FnMut(&mut State) -> Option<T>) -> Result<T, Failure> {
        loop {
            let mut progress = std::pin::pin!(self.shared.progress.notified());
            progress.as_mut().enable();
            {
                let mut state = self.shared.state();
                if let Some(failure) = &state.failure {
                    return Err(failure.clone());
                }
                if let Some(found) = look(&mut state) {
                    return Ok(found);
                }
            }
            progress.await;
        }
    }

    /// Whether every packet was sent at least once: before that, not everything can have arrived.
    pub fn has_sent_all(&self) -> bool {
        self.shared.state().sender.has_sent_all()
    }

    /// Counters.
    pub fn counters(&self) -> SendCounters {
        self.shared.state().sender.counters()
    }

    /// What the transfer has found out about the path, if it was long enough for that.
    pub fn known_path(&self) -> Option<KnownPath> {
        self.shared.state().sender.known_path()
    }

    /// The round-trip time, if it was measured, and the rate in force, in bits per second.
    pub fn pace(&self) -> (Option<Duration>, f64) {
        let state = self.shared.state();
        (state.sender.rtt(), state.sender.rate())
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        self.shared.state().stop = true;
        self.shared.port.wake();
        // Another transfer may use the port next. The thread stops after a few batches.
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        self.shared.port.end();
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        // The state machine stays consistent even if a panic interrupted the holder.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Raises the credit, and returns whether it was less. A peer that gives some is not out of buffers.
    fn raise_credit(&mut self, credit: u64) -> bool {
        let is_more = credit > self.sender.credit();
        if is_more {
            self.sender.raise_credit(credit);
            self.starved_since = None;
        }
        is_more
    }
}

impl Thread {
    fn run(&mut self) {
        let segment = HEADER_LEN + self.shape.packet_len as usize + self.out_seal.len();
        let batch = self.shared.port.batch_len(segment).min(BATCH_MAX.min(self.batch.max(1) as usize) * segment);
        let (mut out, mut inbox) = (vec![0; batch.max(segment)], Inbox::new(ACKS_MAX));
        let mut may_receive = true;
        loop {
            if may_receive {
                may_receive = self.receive(&mut inbox);
            }
            let until = match self.open().and_then(|until| Ok((until, self.send(&mut out, segment)?))) {
                Ok((check, send)) => check.into_iter().chain(send).min(),
                Err(failure) => {
                    self.fail(failure);
                    return;
                }
            };
            let stop = self.shared.state().stop;
            if stop {
                return;
            }
            if !may_receive {
                may_receive = self.shared.port.wait(until, self.held.is_some()).may_receive;
            }
        }
    }

    fn fail(&self, failure: Failure) {
        self.shared.state().failure.get_or_insert(failure);
        self.shared.progress.notify_waiters();
    }

    /// Checks the path. Returns when there will be more to do.
    fn open(&mut self) -> Result<Option<Duration>, Failure> {
        let until = self.path.poll(&self.shared.port)?;
        let mut state = self.shared.state();
        if self.path.is_open() && !state.is_open {
            state.is_open = true;
            drop(state);
            self.shared.progress.notify_waiters();
        }
        Ok(until)
    }

    /// Processes what has arrived. Returns whether more may have.
    fn receive(&mut self, inbox: &mut Inbox) -> bool {
        let shared = self.shared.clone();
        let mut failure = None;
        let more = shared.port.receive(inbox, |datagram, from| {
            if let Err(error) = self.datagram(datagram, from) {
                failure.get_or_insert(error);
            }
        });
        if let Some(failure) = failure {
            self.fail(failure.into());
        }
        more
    }

    /// Processes a datagram. Whatever does not open is dropped without an answer.
    fn datagram(&mut self, datagram: &mut [u8], from: SocketAddr) -> Result<(), String> {
        if !self.path.is_peer(from) {
            return Ok(());
        }
        let Some((header, _)) = Header::decode(datagram) else { return Ok(()) };
        if matches!(header.kind, Kind::Check | Kind::CheckAnswer) {
            self.path.datagram(&self.shared.port, &header, datagram, from);
            return Ok(());
        }
        if header.kind != Kind::Ack || header.transfer != self.shape.transfer {
            return Ok(());
        }
        if !self.replay.is_new(header.transmission) {
            return Ok(());
        }
        let Some(body) = self.in_seal.open(&header, &mut datagram[HEADER_LEN..]) else { return Ok(()) };
        self.replay.insert(header.transmission);
        self.path.heard(from);
        let ack = Ack::decode(body).ok_or("the peer sent a malformed acknowledgement")?;
        let now = self.shared.port.now();
        let mut state = self.shared.state();
        let is_more = state.raise_credit(ack.credit);
        let before = state.sender.counters().arrived;
        state.sender.handle_ack(now, &ack).map_err(|error| error.to_string())?;
        // A peer that repeats itself for ever has not been heard.
        if state.sender.counters().arrived > before {
            state.heard_at = now;
        }
        let mut arrived = Vec::new();
        while let Some(number) = state.sender.poll_arrived() {
            debug_assert_eq!(number, state.first);
            state.first += 1;
            arrived.extend(state.chunks.pop_front());
        }
        let is_progress = is_more || !arrived.is_empty();
        drop(state);
        // Freeing a chunk may take a while.
        drop(arrived);
        if is_progress {
            self.shared.progress.notify_waiters();
        }
        Ok(())
    }

    /// Sends what is due. Returns when there will be more.
    fn send(&mut self, out: &mut [u8], segment: usize) -> Result<Option<Duration>, Failure> {
        let shared = self.shared.clone();
        let Some(to) = self.path.to().filter(|_| self.path.is_open()) else { return Ok(None) };
        for _ in 0..BATCHES {
            let now = shared.port.now();
            let mut state = shared.state();
            if state.failure.is_some() || state.stop {
                return Ok(None);
            }
            if state.sender.is_exhausted() {
                return Err("the transfer has used up its transmission numbers; longer packets need fewer"
                    .to_owned()
                    .into());
            }
            let deadline = self.deadline(&mut state, now, to)?;
            let (len, segment, until) = match self.held.take() {
                Some((len, segment)) => (len, segment, None),
                None => {
                    state.sender.handle_timeout(now);
                    let was_idle = state.sender.in_flight() == 0;
                    let len = fill(&mut state, &mut self.out_seal, now, (out, segment));
                    if was_idle {
                        // Nothing was in flight, so nothing could be acknowledged.
                        state.heard_at = now;
                    }
                    (len, segment, state.sender.poll_timeout())
                }
            };
            drop(state);
            if len == 0 {
                return Ok(until.into_iter().chain(deadline).min());
            }
            if !self.send_batch(to, &out[..len], segment)? {
                return Ok(Some(now + HELD));
            }
        }
        Ok(Some(Duration::ZERO))
    }

    /// When the transfer fails unless the peer does something.
    ///
    /// # Errors
    /// It has failed.
    fn deadline(&mut self, state: &mut State, now: Duration, to: SocketAddr) -> Result<Option<Duration>, String> {
        let silent_at = (state.sender.in_flight() > 0).then(|| state.heard_at + self.silence);
        state.starved_since = state.sender.is_starved().then(|| state.starved_since.unwrap_or(now));
        let starved_at = state.starved_since.map(|since| since + self.silence);
        self.check_mtu(state, to)?;
        if silent_at.is_some_and(|at| at <= now) {
            return Err(self.silent(to));
        }
        if starved_at.is_some_and(|at| at <= now) {
            let seconds = self.silence.as_secs();
            return Err(format!("{to} has had no buffer for more for {seconds} s"));
        }
        Ok(silent_at.into_iter().chain(starved_at).min())
    }

    /// Ends the transfer if the peer is silent and routers say that the path no longer carries its packets. Each alone proves
    /// nothing: a path may be cut for a while, and messages of routers may be forged.
    fn check_mtu(&mut self, state: &State, to: SocketAddr) -> Result<(), String> {
        const TIMEOUTS: u32 = 2;
        let timeouts = state.sender.timeouts();
        if timeouts < TIMEOUTS || std::mem::replace(&mut self.asked_at, timeouts) == timeouts {
            return Ok(());
        }
        let datagram = HEADER_LEN + self.shape.packet_len as usize + self.out_seal.len();
        let packet = self.shared.port.prefix_len() + datagram + if to.is_ipv6() { 48 } else { 28 };
        match path_mtu(to) {
            Some(mtu) if (mtu as usize) < packet => Err(format!(
                "{to} acknowledges nothing, and routers say that the path carries {mtu} bytes with all headers; packets have {packet}"
            )),
            _ => Ok(()),
        }
    }

    fn silent(&self, to: SocketAddr) -> String {
        format!(
            "{to} has acknowledged nothing new for {} s; a firewall may drop datagrams (UDP) to it, or from it to {}",
            self.silence.as_secs(),
            self.shared.port.local_addr()
        )
    }

    /// Sends a batch. Returns false if the socket has no room for it: then it is held.
    fn send_batch(&mut self, to: SocketAddr, bytes: &[u8], segment: usize) -> Result<bool, Failure> {
        match self.shared.port.send(to, bytes, segment) {
            Sent::Gone => Ok(true),
            Sent::Full => {
                self.held = Some((bytes.len(), segment));
                Ok(false)
            }
            Sent::Refused(error) if error.raw_os_error() == Some(libc::EMSGSIZE) => {
                Err(too_long(to, segment, self.shape.packet_len as usize))
            }
            // A lost route may return; the peer's silence ends the transfer otherwise.
            Sent::Refused(_) => Ok(true),
        }
    }
}

/// Fills `out` with sealed datagrams that are due, all but the last of `segment` bytes. Returns their length.
fn fill(state: &mut State, seal: &mut Sealer, now: Duration, (out, segment): (&mut [u8], usize)) -> usize {
    let mut len = 0;
    while out.len() - len >= segment {
        let Some(transmit) = state.sender.poll_transmit(now) else { break };
        let at = transmit.header.packet.chunk.checked_sub(state.first);
        let chunk = at.and_then(|at| state.chunks.get(at as usize));
        let bytes = match transmit.header.kind {
            Kind::Parity => parity_packet(&mut state.parity, chunk, &transmit),
            _ => chunk.and_then(|chunk| chunk.get(transmit.offset..transmit.offset + transmit.len)),
        };
        let Some(bytes) = bytes else {
            debug_assert!(false, "a packet of no chunk");
            break;
        };
        let whole = HEADER_LEN + transmit.len + seal.len();
        let datagram = &mut out[len..len + whole];
        datagram[..HEADER_LEN].copy_from_slice(&transmit.header.encode());
        datagram[HEADER_LEN..HEADER_LEN + transmit.len].copy_from_slice(bytes);
        if !seal.seal(&transmit.header, datagram) {
            break;
        }
        len += whole;
        if whole < segment {
            break;
        }
    }
    len
}

/// The bytes of a parity packet. Those of a chunk are computed once, since they are sent one after the other.
fn parity_packet<'a>(
    computed: &'a mut Option<(u64, Vec<Vec<u8>>)>,
    chunk: Option<&Bytes>,
    transmit: &Transmit,
) -> Option<&'a [u8]> {
    let packet = transmit.header.packet;
    let ParityNumber { number, of } = ParityNumber::from_index(packet.index)?;
    if computed.as_ref().is_none_or(|(of_chunk, all)| *of_chunk != packet.chunk || all.len() != of as usize) {
        *computed = Some((packet.chunk, parity::encode(chunk?, transmit.len, of as usize)?));
    }
    computed.as_ref()?.1.get(number as usize).map(Vec::as_slice)
}
