//! The thread of a transfer: it sends what is due, and processes acknowledgements.

use super::super::path::{Failure, Path, too_long};
use super::super::port::path_mtu;
use super::super::seal::Sealer;
use super::batch::fill;
use super::state::{Shared, State};
use crate::datagram::{Inbox, Sent};
use phoebus_proto::object::packet::{HEADER_LEN, Header, Kind};
use phoebus_proto::object::{Ack, ReplayWindow, Shape};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// Most datagrams in one batch: what the kernel segments at once.
const BATCH_MAX: usize = 64;
/// Buffers for acknowledgements that one call fills: few arrive at a time, and the kernel coalesces them.
const ACKS_MAX: usize = 4;
/// Most batches before what has arrived is processed.
const BATCHES: usize = 8;
/// How long a batch is held before deadlines are looked at again, if the socket does not become writable.
const HELD: Duration = Duration::from_millis(100);

/// The part of the thread that nobody shares.
pub(super) struct Thread {
    pub(super) shared: Arc<Shared>,
    pub(super) path: Path,
    pub(super) shape: Shape,
    pub(super) out_seal: Sealer,
    pub(super) in_seal: Sealer,
    pub(super) replay: ReplayWindow,
    pub(super) silence: Duration,
    pub(super) batch: u32,
    /// For how many time-outs in a row the path's MTU was asked for.
    pub(super) asked_at: u32,
    /// A batch that the socket had no room for: its length and that of its datagrams.
    pub(super) held: Option<(usize, usize)>,
}

impl Thread {
    pub(super) fn run(&mut self) {
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

    pub(super) fn fail(&self, failure: Failure) {
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
        let (seconds, own) = (self.silence.as_secs(), self.shared.port.local_addr());
        match self.shared.port.is_relayed() {
            true => format!(
                "the server has acknowledged nothing new for {seconds} s; a firewall may drop datagrams (UDP) that go by way of the \
                 gateway at {to}, before it or behind it, or the path behind it carries only shorter ones than at the start"
            ),
            false => format!(
                "{to} has acknowledged nothing new for {seconds} s; a firewall may drop datagrams (UDP) to it, or from it to {own}"
            ),
        }
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
