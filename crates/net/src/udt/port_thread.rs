//! The thread behind a port.
//!
//! In every round it receives what has arrived, processes the connections that a datagram, a timer or their
//! owner has made due, and sends what they may send, a batch at a time. Then it sleeps until the next timer,
//! datagram or call of an owner. No connection blocks the others: after some batches it goes to the end of
//! the queue.

use super::hub::{Hub, Link, State};
use crate::datagram::{Route as SocketRoute, Sent};
use phoebus_proto::udt::packet::{CONTROL_LEN_MAX, Packet};
use phoebus_proto::udt::{Arrival, Incoming, Route, Transmit};
use quinn_udp::RecvMeta;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::io::{self, IoSliceMut};
use std::net::IpAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

/// Most buffers that one receive call fills; each holds a datagram, or with UDP_GRO several coalesced ones.
const RECEIVED_MAX: usize = 16;
/// Size of one such buffer, in bytes.
const DATAGRAM_MAX: usize = 65_536;
/// Most receive calls before connections are processed, even if more has arrived.
const RECEIVES: usize = 4;
/// The shortest time for which packets gather: less than this, and the thread would wake as often as for datagrams.
const WORTHWHILE: Duration = Duration::from_micros(200);
/// A `poll` that took no longer than this did not sleep.
const AT_ONCE: Duration = Duration::from_micros(10);
/// Most batches that a connection sends in one turn.
const BATCHES: usize = 8;

/// The state of the driver thread.
#[derive(Debug)]
pub(super) struct PortThread {
    hub: Arc<Hub>,
    links: HashMap<u32, Entry>,
    timers: BTreeSet<(Duration, u32)>,
    /// Connections to process.
    due: VecDeque<u32>,
    inbox: Box<[u8]>,
    out: Box<[u8]>,
    /// The batch in `out`, which the socket had no room for and which must go first.
    held: Option<Held>,
    /// Whether datagrams may have arrived, and whether the thread slept before they did.
    may_receive: bool,
    slept: bool,
    /// For how long the packets of the connections that received last may gather in the kernel.
    gathering: Option<Duration>,
    stop: bool,
}

#[derive(Debug)]
struct Entry {
    link: Arc<Link>,
    timer: Option<Duration>,
    is_due: bool,
    is_settled: bool,
}

/// A batch that the socket had no room for, with its destination.
#[derive(Debug, Clone, Copy)]
struct Held {
    route: SocketRoute,
    transmit: Transmit,
}

impl PortThread {
    pub(super) fn new(hub: Arc<Hub>) -> Self {
        Self {
            hub,
            links: HashMap::new(),
            timers: BTreeSet::new(),
            due: VecDeque::new(),
            inbox: vec![0; RECEIVED_MAX * DATAGRAM_MAX].into(),
            out: vec![0; DATAGRAM_MAX].into(),
            held: None,
            may_receive: true,
            slept: false,
            gathering: None,
            stop: false,
        }
    }

    /// Runs until the port is closed and its connections have ended.
    pub(super) fn run(&mut self) {
        while !self.is_over() {
            self.take_requests();
            if self.may_receive {
                self.receive();
            }
            self.check_timers();
            self.send();
            // The owner wakes this thread once when it is dropped. Nothing else would wake this thread.
            let may_end = self.stop && self.links.is_empty();
            if !may_end && (self.due.is_empty() && !self.may_receive || self.held.is_some()) {
                self.sleep();
            }
        }
    }

    /// Whether the port is closed and no connection is left. Once true, nobody can take the port over any
    /// more.
    fn is_over(&self) -> bool {
        if !self.stop || !self.links.is_empty() {
            return false;
        }
        let mut requests = self.hub.requests();
        let over = requests.stop && requests.new.is_empty();
        requests.dead |= over;
        over
    }

    fn take_requests(&mut self) {
        let mut requests = self.hub.requests();
        self.stop = requests.stop;
        let (new, scheduled) = (std::mem::take(&mut requests.new), std::mem::take(&mut requests.scheduled));
        drop(requests);
        for link in new {
            self.add(link);
        }
        scheduled.into_iter().for_each(|socket| self.look_at(socket));
    }

    fn add(&mut self, link: Arc<Link>) {
        let socket = link.socket;
        self.links.insert(socket, Entry { link, timer: None, is_due: false, is_settled: false });
        self.look_at(socket);
    }

    /// Queues a connection for processing.
    fn look_at(&mut self, socket: u32) {
        if let Some(entry) = self.links.get_mut(&socket).filter(|entry| !entry.is_due) {
            entry.is_due = true;
            self.due.push_back(socket);
        }
    }

    fn check_timers(&mut self) {
        let Some(&(first, _)) = self.timers.first() else { return };
        let now = self.hub.now();
        if first > now {
            return;
        }
        while let Some((_, socket)) = self.timers.first().copied().filter(|(at, _)| *at <= now) {
            self.timers.pop_first();
            if let Some(entry) = self.links.get_mut(&socket) {
                entry.timer = None;
            }
            self.look_at(socket);
        }
    }

    fn receive(&mut self) {
        let mut inbox = std::mem::take(&mut self.inbox);
        let is_first = std::mem::take(&mut self.slept);
        self.may_receive = (0..RECEIVES).all(|call| self.receive_some(&mut inbox, is_first && call == 0));
        self.inbox = inbox;
    }

    /// Receives with one call; returns whether more may have arrived.
    fn receive_some(&mut self, inbox: &mut [u8], is_first: bool) -> bool {
        let mut metas = [RecvMeta::default(); RECEIVED_MAX];
        let mut slots = inbox.chunks_exact_mut(DATAGRAM_MAX);
        let mut buffers: [_; RECEIVED_MAX] = std::array::from_fn(|_| IoSliceMut::new(slots.next().unwrap_or_default()));
        let Some(count) = self.hub.socket.receive(&mut buffers, &mut metas) else { return false };
        let now = self.hub.now();
        // Only a single datagram that arrived while the thread slept has a meaningful arrival time.
        let is_alone = is_first && count == 1 && metas[0].len <= metas[0].stride;
        let arrival = if is_alone { Arrival::Alone } else { Arrival::Batched };
        for (bytes, meta) in inbox.chunks_exact(DATAGRAM_MAX).zip(&metas[..count]) {
            self.take_in(now, &bytes[..meta.len.min(DATAGRAM_MAX)], meta, arrival);
        }
        count == RECEIVED_MAX
    }

    /// Passes the datagrams of one coalesced buffer, all from one address, to their connections.
    fn take_in(&mut self, now: Duration, bytes: &[u8], meta: &RecvMeta, arrival: Arrival) {
        let mut answer = [0; CONTROL_LEN_MAX];
        let mut train = bytes.chunks(meta.stride.max(1)).peekable();
        while let Some(datagram) = train.next() {
            let route = self.hub.accepting().endpoint.route(now, meta.addr, datagram, &mut answer);
            match route {
                Route::Connection(socket) => {
                    let Some(entry) = self.links.get(&socket) else { continue };
                    let mut state = entry.link.state();
                    state.local = state.local.or(meta.dst_ip);
                    // The shortest pause decides. Connections whose packets do not gather wait as well; see `limits.receive_coalescing`.
                    if !state.gathering.is_zero() {
                        self.gathering =
                            Some(self.gathering.map_or(state.gathering, |so_far| so_far.min(state.gathering)));
                    }
                    state.connection.handle(now, datagram, arrival);
                    // Following datagrams are usually for the same connection.
                    while let Some(datagram) = train.next_if(|next| Packet::destination_of(next) == Some(socket)) {
                        state.connection.handle(now, datagram, arrival);
                    }
                    drop(state);
                    self.look_at(socket);
                }
                Route::Incoming(incoming) => self.accept(now, &incoming, meta.dst_ip),
                Route::Answer(len) => {
                    let way = SocketRoute { to: meta.addr, from: meta.dst_ip };
                    // If the answer does not fit into the socket's buffer, the peer repeats its request.
                    let _ = self.hub.socket.send(way, &answer[..len], len);
                }
                Route::Ignore => {}
            }
        }
    }

    /// Accepts a new connection if the listener's queue has room; otherwise the peer repeats its request.
    fn accept(&mut self, now: Duration, incoming: &Incoming, local: Option<IpAddr>) {
        let mut accepting = self.hub.accepting();
        let Some(acceptor) = &accepting.acceptor else { return };
        let Ok(permit) = acceptor.clone().try_reserve_owned() else { return };
        let Some(connection) = accepting.endpoint.accept(now, incoming) else { return };
        drop(accepting);
        if let Ok(link) = self.hub.register(connection, local) {
            permit.send(link);
        }
    }

    /// Sends until no connection may send more or the socket is full.
    fn send(&mut self) {
        if let Some(Held { route, transmit }) = self.held.take() {
            self.send_batch(route, transmit);
        }
        // Connections that become due meanwhile wait for the next round.
        for _ in 0..self.due.len() {
            if self.held.is_some() {
                return;
            }
            let Some(socket) = self.due.pop_front() else { return };
            if self.attend(socket) {
                self.due.push_back(socket);
            }
        }
    }

    /// Processes a connection; returns whether it has more to send.
    fn attend(&mut self, socket: u32) -> bool {
        let Some(entry) = self.links.get_mut(&socket) else { return false };
        entry.is_due = false;
        let link = entry.link.clone();
        let mut state = link.state();
        state.wakeup = Duration::ZERO;
        state.connection.handle_timeout(self.hub.now());
        for _ in 0..BATCHES {
            let len = self.hub.socket.batch_len(state.connection.datagram_len());
            let Some(transmit) = state.connection.poll_transmit(self.hub.now(), &mut self.out[..len]) else {
                self.leave(&link, state);
                return false;
            };
            let way = SocketRoute { to: link.remote, from: state.local };
            drop(state);
            let failed = self.send_batch(way, transmit);
            state = link.state();
            if let Some(error) = failed {
                let is_opening = !state.connection.is_open() && state.connection.closed().is_none();
                // A lost route may return, but a packet that is too long stays too long.
                if is_opening || error.raw_os_error() == Some(libc::EMSGSIZE) {
                    state.fail(self.hub.now(), &error);
                }
            }
            if self.held.is_some() {
                break;
            }
        }
        let wakers = state.wakers();
        drop(state);
        link.wake(wakers);
        if let Some(entry) = self.links.get_mut(&socket) {
            entry.is_due = true;
        }
        true
    }

    /// Sends the batch in `out`, or holds it until the socket has room. Returns the error if it can never be
    /// sent.
    fn send_batch(&mut self, route: SocketRoute, transmit: Transmit) -> Option<io::Error> {
        if transmit.is_probe {
            self.hub.socket.send_whole(route, &self.out[..transmit.len]);
            return None;
        }
        match self.hub.socket.send(route, &self.out[..transmit.len], transmit.segment) {
            Sent::Gone => None,
            Sent::Refused(error) => Some(error),
            Sent::Full => {
                self.held = Some(Held { route, transmit });
                None
            }
        }
    }

    /// Finishes a connection's turn: sets its timer, wakes waiting tasks, or forgets it.
    fn leave(&mut self, link: &Link, mut state: MutexGuard<'_, State>) {
        let socket = link.socket;
        let drained_at = state.connection.drained_at();
        let wakeup = drained_at.or_else(|| state.connection.poll_timeout());
        state.wakeup = wakeup.unwrap_or(Duration::MAX);
        let wakers = state.wakers();
        drop(state);
        link.wake(wakers);
        let Some(entry) = self.links.get_mut(&socket) else { return };
        if drained_at.is_some() && !std::mem::replace(&mut entry.is_settled, true) {
            self.hub.settle();
        }
        if entry.timer != wakeup {
            if let Some(timer) = std::mem::replace(&mut entry.timer, wakeup) {
                self.timers.remove(&(timer, socket));
            }
            self.timers.extend(wakeup.map(|at| (at, socket)));
        }
        if drained_at.is_some_and(|at| at <= self.hub.now()) {
            self.forget(socket);
        }
    }

    fn forget(&mut self, socket: u32) {
        let Some(entry) = self.links.remove(&socket) else { return };
        if let Some(timer) = entry.timer {
            self.timers.remove(&(timer, socket));
        }
        self.hub.accepting().endpoint.remove(socket);
    }

    /// Sleeps until the first timer, a datagram, an owner's call, or room for the held batch. While a bulk flow arrives,
    /// every datagram would wake this thread: then it sleeps for a fixed time, or until the first timer. Calls of owners
    /// wait as long.
    fn sleep(&mut self) {
        let now = self.hub.now();
        let left = self.timers.first().map(|(at, _)| at.saturating_sub(now));
        let gathering = self.gathering.take();
        let gathering = gathering.map(|time| time.min(self.fill_time()));
        if let Some(gathering) = gathering.filter(|time| *time >= WORTHWHILE && self.held.is_none()) {
            std::thread::sleep(left.map_or(gathering, |left| left.min(gathering)));
            (self.may_receive, self.slept) = (true, false);
            return;
        }
        let left = left.map(|left| Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() });
        let room = if self.held.is_some() { PollFlags::OUT } else { PollFlags::empty() };
        let hub = &*self.hub;
        let mut fds = [PollFd::new(&hub.socket, PollFlags::IN | room), PollFd::new(&hub.wake_fd, PollFlags::IN)];
        // After an interruption, the next round checks everything anyway.
        let _ = poll(&mut fds, left.as_ref());
        let [socket, wake_fd] = fds.map(|fd| fd.revents());
        if !wake_fd.is_empty() {
            let _ = rustix::io::read(&hub.wake_fd, &mut [0; 8]);
        }
        if socket.contains(PollFlags::ERR) {
            hub.socket.clear_error();
        }
        // A datagram that had already arrived waited for this thread, so its time says nothing about the
        // path.
        self.slept = self.hub.now() - now > AT_ONCE;
        self.may_receive = !socket.is_empty();
    }
}

impl PortThread {
    /// The time in which the flows that gather fill a small part of the socket's buffer, all together. The buffer also holds
    /// what belongs to each packet, and other flows need the rest.
    fn fill_time(&self) -> Duration {
        const OF_BUFFER: usize = 8;
        let rate = self.hub.gathering.load(Ordering::Relaxed).max(1);
        Duration::from_secs_f64((self.hub.socket.receive_buffer() / OF_BUFFER) as f64 / rate as f64)
    }
}

impl Drop for PortThread {
    /// However the thread ends, no task is left waiting.
    fn drop(&mut self) {
        let mut requests = self.hub.requests();
        requests.dead = true;
        for link in std::mem::take(&mut requests.new) {
            self.links.insert(link.socket, Entry { link, timer: None, is_due: false, is_settled: false });
        }
        drop(requests);
        for Entry { link, is_settled, .. } in self.links.drain().map(|(_, entry)| entry) {
            let mut state = link.state();
            state.fail(self.hub.now(), &io::Error::from_raw_os_error(libc::EIO));
            let wakers = state.wakers();
            drop(state);
            link.wake(wakers);
            if !is_settled {
                self.hub.settle();
            }
        }
    }
}
