//! A connection: handshake, both halves, timers, end.

mod data;
mod incoming;
mod opening;
mod outgoing;
mod stats;

pub use data::ReadError;
pub(super) use opening::Agreement;
pub use outgoing::Transmit;
pub use stats::Stats;

use self::opening::Opening;
use super::config::payload_len;
use super::control::{self, Controller};
use super::handshake::{Handshake, Request, VERSION};
use super::packet::Body;
use super::receive::Receiver;
use super::rtt::Rtt;
use super::send::{Pacer, Sender};
use super::seq::Seq;
use super::{Config, SYN};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// One UDT connection.
///
/// After anything that may have changed it — a datagram, a time-out, a read or a write — call
/// [`poll_transmit`](Self::poll_transmit) until it has nothing, then ask [`poll_timeout`](Self::poll_timeout) when to come back.
#[derive(Debug)]
pub struct Connection {
    config: Arc<Config>,
    remote: SocketAddr,
    socket: u32,
    seed: u64,
    /// Zero of the time stamps.
    began: Duration,
    state: State,
    rtt: Rtt,
    last_heard: Duration,
    last_sent: Duration,
    rate_limit: Option<u64>,
    control: &'static str,
    packets_ignored: u64,
}

/// Why a connection has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CloseReason {
    /// This end closed it.
    #[error("closed by this end")]
    Local,
    /// This end closed it, but the peer did not take everything in time.
    #[error("the peer did not take all data within {0:?} of the close")]
    Lingered(Duration),
    /// A shutdown packet came. It is not authenticated, and says nothing about bytes that are missing.
    #[error("closed by the peer")]
    Peer,
    /// The peer does not want the connection; its number for that.
    #[error("refused by the peer with code {0}")]
    Refused(i32),
    /// The handshake took too long.
    #[error("no connection within {0:?}")]
    ConnectTimeout(Duration),
    /// Nothing was heard for too long.
    #[error("nothing heard of the peer for {0:?}")]
    Silence(Duration),
    /// The peer is heard, but no data gets through to it: the path carries small packets only, for one.
    #[error(
        "for {patience:?} no packet with data got through to the peer, which is heard; the largest have {mss} bytes"
    )]
    Stuck {
        /// The longest packet, in bytes.
        mss: u32,
        /// For how long.
        patience: Duration,
    },
}

/// Where a connection stands.
#[derive(Debug)]
enum State {
    Opening(Opening),
    Open(Box<Open>),
    /// Over. What has arrived can still be read; whatever comes is answered by a last acknowledgement and a shutdown, until
    /// a time.
    Closed {
        reason: CloseReason,
        peer_socket: u32,
        rest: Option<Box<Open>>,
        ack_due: bool,
        shutdown_due: bool,
        until: Duration,
    },
}

/// An open connection.
#[derive(Debug)]
struct Open {
    role: Role,
    peer_socket: u32,
    mss: u32,
    window_max: u32,
    first_out: Seq,
    send: Sender,
    receive: Receiver,
    control: Box<dyn Controller>,
    pacer: Pacer,
    /// What the peer reports of rates, averaged.
    receiving: f64,
    capacity: f64,
    ack2: Option<u32>,
    ack2_last: (Duration, u32),
    /// Copies of the answer to the peer's handshake that are to go before anything else.
    handshakes_due: u32,
    drop_due: Option<Body<'static>>,
    /// The last packet sent was the first of a pair.
    in_pair: bool,
    /// Since when the connection is closing.
    closing: Option<Duration>,
    /// A time-out has been told to the control, and nothing was heard since.
    timed_out: bool,
    peer_error: Option<u32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    Client,
    Listener,
    Rendezvous,
}

impl Connection {
    /// How long a closed connection answers what still comes.
    const DRAIN: Duration = Duration::from_secs(3);

    /// One that asks a listener, or meets a peer that asks as well.
    pub(super) fn ask(
        now: Duration,
        config: Arc<Config>,
        remote: SocketAddr,
        rendezvous: bool,
        socket: u32,
        seed: u64,
    ) -> Self {
        let opening = Opening::new(now, &config, remote, rendezvous, socket, Seq::new(seed as u32));
        Self::new(now, config, remote, socket, seed, State::Opening(opening))
    }

    /// One that a listener has accepted.
    pub(super) fn accept(
        now: Duration,
        config: Arc<Config>,
        remote: SocketAddr,
        socket: u32,
        seed: u64,
        agreement: Agreement,
    ) -> Self {
        let opening = Opening::new(now, &config, remote, false, socket, agreement.first_in);
        let mut connection = Self::new(now, config, remote, socket, seed, State::Opening(opening));
        connection.open(now, Role::Listener, agreement);
        connection
    }

    fn new(now: Duration, config: Arc<Config>, remote: SocketAddr, socket: u32, seed: u64, state: State) -> Self {
        let (rate_limit, control) = (config.rate_limit, config.control.name());
        Self {
            config,
            control,
            remote,
            socket,
            seed,
            began: now,
            state,
            rtt: Rtt::new(),
            last_heard: now,
            last_sent: now,
            rate_limit,
            packets_ignored: 0,
        }
    }

    /// The peer's address, to which everything goes.
    pub fn remote(&self) -> SocketAddr {
        self.remote
    }

    /// This end's socket, by which the [`Endpoint`](super::Endpoint) knows it.
    pub fn socket(&self) -> u32 {
        self.socket
    }

    /// Whether the handshake is done, and nothing has ended the connection.
    pub fn is_open(&self) -> bool {
        matches!(self.state, State::Open(_))
    }

    /// Why the connection has ended, if it has. What has arrived can still be read.
    pub fn closed(&self) -> Option<CloseReason> {
        if let State::Closed { reason, .. } = &self.state { Some(*reason) } else { None }
    }

    /// Whether nothing will come of it any more and it can be forgotten, once everything is read.
    pub fn is_drained(&self, now: Duration) -> bool {
        matches!(&self.state, State::Closed { until, shutdown_due: false, .. } if *until <= now)
    }

    /// Until when a closed connection answers what still comes; then it can be forgotten. `None` for one that is not closed.
    pub fn drained_at(&self) -> Option<Duration> {
        if let State::Closed { until, .. } = &self.state { Some(*until) } else { None }
    }

    /// Bytes of the longest datagram that this end sends.
    pub fn datagram_len(&self) -> usize {
        let mss = self.rest().map_or(self.config.mss, |open| open.mss);
        (mss - super::IP_UDP_LEN) as usize
    }

    /// The name of the rate control in force.
    pub fn control(&self) -> &'static str {
        self.control
    }

    /// Ends the connection when all that was written is acknowledged, or [`Config::linger`] has passed. Nothing can be
    /// written after it.
    pub fn close(&mut self, now: Duration) {
        match &mut self.state {
            State::Open(open) => {
                open.closing.get_or_insert(now);
                self.finish_closing(now);
            }
            State::Opening(_) => self.end(now, CloseReason::Local),
            State::Closed { .. } => {}
        }
    }

    /// Ends the connection at once.
    pub fn abort(&mut self, now: Duration) {
        if self.closed().is_none() {
            self.end(now, CloseReason::Local);
        }
    }

    /// Changes the limit of the rate from now on.
    pub fn set_rate_limit(&mut self, bits_per_second: Option<u64>) {
        self.rate_limit = bits_per_second;
    }

    /// The limit of the rate in force, in bits per second.
    pub fn rate_limit(&self) -> Option<u64> {
        self.rate_limit
    }

    /// Gives an accepted connection all of its receive buffer, of which it had [`Config::accept_buffer`], and tells the peer so.
    pub fn widen(&mut self) {
        let limit = self.config.receive_buffer;
        if let State::Open(open) = &mut self.state {
            open.receive.widen(limit);
        }
    }

    /// Sends an acknowledgement at once, which the peer answers by ACK2, even if it has nothing to send: a sign of life.
    pub fn probe(&mut self) {
        if let State::Open(open) = &mut self.state {
            open.receive.probe();
        }
    }

    /// Packets that the send and the receive buffer hold at most.
    pub fn buffers(&self) -> [u32; 2] {
        [self.config.send_buffer, self.config.receive_buffer]
    }

    /// Exchanges the rate control.
    pub fn set_control(&mut self, now: Duration, factory: &dyn control::Factory) {
        let (rtt, seed) = (self.rtt, self.seed);
        if let State::Open(open) = &mut self.state {
            open.control = factory.build(now, &open.path(&rtt, seed));
            self.control = factory.name();
        }
    }

    /// The error number that the peer's application has sent, once.
    pub fn take_peer_error(&mut self) -> Option<u32> {
        if let State::Open(open) = &mut self.state { open.peer_error.take() } else { None }
    }

    fn rest(&self) -> Option<&Open> {
        match &self.state {
            State::Open(open) => Some(open),
            State::Closed { rest, .. } => rest.as_deref(),
            State::Opening(_) => None,
        }
    }

    fn rest_mut(&mut self) -> Option<&mut Open> {
        match &mut self.state {
            State::Open(open) => Some(open),
            State::Closed { rest, .. } => rest.as_deref_mut(),
            State::Opening(_) => None,
        }
    }

    fn open(&mut self, now: Duration, role: Role, agreement: Agreement) {
        let Agreement { peer_socket, mss, window, first_out, first_in, rtt } = agreement;
        if let Some(rtt) = rtt {
            self.rtt.measured(rtt);
        }
        let (kind, payload) = (self.config.kind, payload_len(mss));
        let send = Sender::new(kind, first_out, payload, self.config.send_buffer, window);
        // In a rendezvous a peer of libudt uses this end's MSS without a look at its own.
        let slot_len = payload_len(self.config.mss);
        // The handshake tells of the whole buffer, and the first acknowledgement of what there is of it: control that takes its
        // largest window from the handshake is not held back for good.
        let receive_limit = match role {
            Role::Listener => self.config.receive_buffer.min(self.config.accept_buffer),
            Role::Client | Role::Rendezvous => self.config.receive_buffer,
        };
        let receive = Receiver::new(now, kind, first_in, receive_limit, slot_len, payload);
        let path = control::Path {
            mss,
            window_max: window.min(self.config.send_buffer),
            rtt: self.rtt.get(),
            rtt_measured: self.rtt.is_measured(),
            receiving: 16.0,
            capacity: 1.0,
            next: first_out,
            under_way: 0,
            seed: self.seed,
        };
        self.last_heard = now;
        self.state = State::Open(Box::new(Open {
            role,
            peer_socket,
            mss,
            window_max: path.window_max,
            first_out,
            send,
            receive,
            control: self.config.control.build(now, &path),
            pacer: Pacer::new(self.config.quantum, self.config.catch_up),
            receiving: path.receiving,
            capacity: path.capacity,
            ack2: None,
            ack2_last: (now, 0),
            handshakes_due: if role == Role::Client { 0 } else { Open::ANSWERS },
            drop_due: None,
            in_pair: false,
            closing: None,
            timed_out: false,
            peer_error: None,
        }));
    }

    /// Ends the connection, and tells the peer if this end wants it to.
    fn end(&mut self, now: Duration, reason: CloseReason) {
        let placeholder =
            State::Closed { reason, peer_socket: 0, rest: None, ack_due: false, shutdown_due: false, until: now };
        match std::mem::replace(&mut self.state, placeholder) {
            State::Open(open) => {
                let tell = matches!(
                    reason,
                    CloseReason::Local | CloseReason::Lingered(_) | CloseReason::Silence(_) | CloseReason::Stuck { .. }
                );
                let until = if tell { now + Self::DRAIN } else { now };
                let peer_socket = open.peer_socket;
                let rest = Some(open);
                self.state = State::Closed { reason, peer_socket, rest, ack_due: tell, shutdown_due: tell, until };
            }
            State::Opening(_) => {}
            closed @ State::Closed { .. } => self.state = closed,
        }
    }

    fn finish_closing(&mut self, now: Duration) {
        let State::Open(open) = &self.state else { return };
        let Some(since) = open.closing else { return };
        if open.send.is_empty() {
            self.end(now, CloseReason::Local);
        } else if now >= since + self.config.linger {
            self.end(now, CloseReason::Lingered(self.config.linger));
        }
    }

    /// This end's answer to a handshake of an open connection.
    fn handshake_answer(&self, open: &Open) -> Handshake {
        Handshake {
            version: VERSION,
            kind: self.config.kind.number(),
            initial_seq: open.first_out,
            mss: if open.role == Role::Rendezvous { self.config.mss } else { open.mss },
            flow_window: self.config.receive_buffer,
            request: if open.role == Role::Rendezvous { Request::Agreement } else { Request::Conclusion },
            socket: self.socket,
            cookie: 0,
            peer_ip: Handshake::peer_ip(self.remote.ip()),
        }
    }
}

impl Open {
    /// How often each answer to a handshake is sent. A client of libudt takes whatever comes first for it: when it was data,
    /// since the answer was lost, the connection is open for nobody.
    const ANSWERS: u32 = 3;

    fn path(&self, rtt: &Rtt, seed: u64) -> control::Path {
        control::Path {
            mss: self.mss,
            window_max: self.window_max,
            rtt: rtt.get(),
            rtt_measured: rtt.is_measured(),
            receiving: self.receiving,
            capacity: self.capacity,
            next: self.send.next(),
            under_way: self.send.under_way(),
            seed,
        }
    }

    /// Nanoseconds per full packet, and packets that may be under way.
    fn pace(&self, limit: Option<u64>) -> control::Pace {
        let pace = self.control.pace();
        let least = limit.map_or(0.0, |limit| control::interval_of(limit, self.mss));
        control::Pace { interval: pace.interval.max(least), ..pace }
    }
}

/// After how long without a word from the peer, with packets under way, the control is told.
fn silence(rtt: &Rtt) -> Duration {
    (rtt.overdue() + SYN).max(Duration::from_millis(300))
}
