//! A connection: handshake, sending and receiving half, timers, close.

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
use super::handshake::{Handshake, Request, VERSION};
use super::packet::Body;
use super::receive::{ACKNOWLEDGEMENTS, Receiver};
use super::rtt::Rtt;
use super::send::Sender;
use super::seq::Seq;
use super::{Config, SYN};
use crate::control::{self, Controller, Pacer};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// One UDT connection.
///
/// After every datagram, time-out, read or write, call [`poll_transmit`](Self::poll_transmit) until it returns `None`.
/// Then call [`poll_timeout`](Self::poll_timeout) for the time of the next timer.
#[derive(Debug)]
pub struct Connection {
    config: Arc<Config>,
    remote: SocketAddr,
    socket: u32,
    seed: u64,
    /// Origin of the packets' time stamps.
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
    /// This end closed the connection, and all data was acknowledged.
    #[error("closed by this end")]
    Local,
    /// This end closed the connection, but the peer did not acknowledge all data within [`Config::linger`].
    #[error("the peer did not acknowledge all data within {0:?} of the close")]
    Lingered(Duration),
    /// A shutdown packet arrived. It is not authenticated, and does not imply that all data was received.
    #[error("closed by the peer")]
    Peer,
    /// The peer refused the connection, with this code.
    #[error("refused by the peer with code {0}")]
    Refused(i32),
    /// The handshake took too long.
    #[error("no connection within {0:?}")]
    ConnectTimeout(Duration),
    /// Nothing was received from the peer for the idle time-out.
    #[error("nothing received from the peer for {0:?}")]
    Silence(Duration),
    /// Packets arrive from the peer, but no data gets through to it, for example because the path carries small packets
    /// only.
    #[error(
        "for {timeout:?} no data got through to the peer, although its packets arrive; the largest packets have {mss} bytes"
    )]
    Stuck {
        /// Length of the largest packets, in bytes.
        mss: u32,
        /// How long no data got through.
        timeout: Duration,
    },
}

/// State of a connection.
#[derive(Debug)]
enum State {
    Opening(Opening),
    Open(Box<Open>),
    /// The connection has ended. Received data can still be read. Until `until`, every packet that arrives is answered
    /// with a last acknowledgement and a shutdown.
    Closed {
        reason: CloseReason,
        peer_socket: u32,
        /// The buffers, unless the connection was never open.
        buffers: Option<Box<Open>>,
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
    /// Averages of the rates that the peer reports.
    receiving: f64,
    capacity: f64,
    /// Number of the ACK2 to send.
    ack2: Option<u32>,
    /// Time and number of the last ACK2.
    ack2_last: (Duration, u32),
    /// Number of handshake answers to send before anything else.
    handshakes_due: u32,
    drop_due: Option<Body<'static>>,
    /// Whether the last packet sent was the first of a packet pair.
    in_pair: bool,
    /// When the local close began.
    closing: Option<Duration>,
    /// Whether the control was told of a time-out and nothing was received since.
    timed_out: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    Client,
    Listener,
    Rendezvous,
}

impl Connection {
    /// How long a closed connection answers late packets.
    const DRAIN: Duration = Duration::from_secs(3);

    /// Starts a handshake with a listener, or a rendezvous.
    pub(super) fn initiate(
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

    /// A connection that a listener has accepted. It is open at once.
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

    /// The peer's address: the destination of all datagrams.
    pub fn remote(&self) -> SocketAddr {
        self.remote
    }

    /// This end's socket id, by which the [`Endpoint`](super::Endpoint) identifies the connection.
    pub fn socket(&self) -> u32 {
        self.socket
    }

    /// Whether the handshake is complete and the connection has not ended.
    pub fn is_open(&self) -> bool {
        matches!(self.state, State::Open(_))
    }

    /// Why the connection has ended, if it has. Received data can still be read.
    pub fn closed(&self) -> Option<CloseReason> {
        if let State::Closed { reason, .. } = &self.state { Some(*reason) } else { None }
    }

    /// Whether the connection has ended and will not send any more. It can be removed once all data was read.
    pub fn is_drained(&self, now: Duration) -> bool {
        matches!(&self.state, State::Closed { until, shutdown_due: false, .. } if *until <= now)
    }

    /// Until when a closed connection answers late packets. It can be removed afterwards. `None` if it is not closed.
    pub fn drained_at(&self) -> Option<Duration> {
        if let State::Closed { until, .. } = &self.state { Some(*until) } else { None }
    }

    /// Length of the longest datagram that this end sends, in bytes.
    pub fn datagram_len(&self) -> usize {
        let mss = self.established().map_or(self.config.mss, |open| open.mss);
        (mss - super::IP_UDP_LEN) as usize
    }

    /// The name of the current rate control.
    pub fn control(&self) -> &'static str {
        self.control
    }

    /// Closes the connection in order: ends it when all written data is acknowledged, or when [`Config::linger`] has
    /// passed. No more data can be written.
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

    /// Ends the connection at once. Unacknowledged data is lost.
    pub fn abort(&mut self, now: Duration) {
        if self.closed().is_none() {
            self.end(now, CloseReason::Local);
        }
    }

    /// Changes the limit of the sending rate.
    pub fn set_rate_limit(&mut self, bits_per_second: Option<u64>) {
        self.rate_limit = bits_per_second;
    }

    /// The limit of the sending rate, in bits per second.
    pub fn rate_limit(&self) -> Option<u64> {
        self.rate_limit
    }

    /// Raises the receive window of an accepted connection from [`Config::accept_buffer`] to
    /// [`Config::receive_buffer`], and advertises it to the peer.
    pub fn widen(&mut self) {
        let limit = self.config.receive_buffer;
        if let State::Open(open) = &mut self.state {
            open.receive.widen(limit);
        }
    }

    /// Sends an acknowledgement at once, to test whether the peer is alive: the peer answers it with ACK2 even if it
    /// has nothing to send.
    pub fn probe(&mut self) {
        if let State::Open(open) = &mut self.state {
            open.receive.probe();
        }
    }

    /// Sizes of the send and the receive buffer, in packets.
    pub fn buffers(&self) -> [u32; 2] {
        [self.config.send_buffer, self.config.receive_buffer]
    }

    /// Replaces the rate control.
    pub fn set_control(&mut self, now: Duration, factory: &dyn control::Factory) {
        let (rtt, seed) = (self.rtt, self.seed);
        if let State::Open(open) = &mut self.state {
            open.control = factory.build(now, &open.path(&rtt, seed));
            self.control = factory.name();
        }
    }

    /// The state of an open connection, or of one that has ended after it was open.
    fn established(&self) -> Option<&Open> {
        match &self.state {
            State::Open(open) => Some(open),
            State::Closed { buffers, .. } => buffers.as_deref(),
            State::Opening(_) => None,
        }
    }

    fn established_mut(&mut self) -> Option<&mut Open> {
        match &mut self.state {
            State::Open(open) => Some(open),
            State::Closed { buffers, .. } => buffers.as_deref_mut(),
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
        // In a rendezvous, a libudt peer uses this end's MSS even if its own is smaller.
        let slot_len = payload_len(self.config.mss);
        // The handshake advertises the whole buffer, and the first acknowledgement the part in use: a peer's control
        // that takes its largest window from the handshake is then not limited for good.
        let receive_limit = match role {
            Role::Listener => self.config.receive_buffer.min(self.config.accept_buffer),
            Role::Client | Role::Rendezvous => self.config.receive_buffer,
        };
        let mut receive = Receiver::new(now, kind, first_in, receive_limit, slot_len, payload);
        receive.offered(self.config.receive_buffer);
        let path = control::Path {
            mss,
            window_max: window.min(self.config.send_buffer),
            rtt: self.rtt.get(),
            rtt_measured: self.rtt.is_measured(),
            receiving: 16.0,
            capacity: 1.0,
            next: send.next_number(),
            in_flight: 0,
            acknowledgements: ACKNOWLEDGEMENTS,
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
        }));
    }

    /// Ends the connection, and sends a shutdown if the end is this side's decision.
    fn end(&mut self, now: Duration, reason: CloseReason) {
        let placeholder =
            State::Closed { reason, peer_socket: 0, buffers: None, ack_due: false, shutdown_due: false, until: now };
        match std::mem::replace(&mut self.state, placeholder) {
            State::Open(open) => {
                let tell = matches!(
                    reason,
                    CloseReason::Local | CloseReason::Lingered(_) | CloseReason::Silence(_) | CloseReason::Stuck { .. }
                );
                let until = if tell { now + Self::DRAIN } else { now };
                let peer_socket = open.peer_socket;
                let buffers = Some(open);
                self.state = State::Closed { reason, peer_socket, buffers, ack_due: tell, shutdown_due: tell, until };
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
    /// How often each answer to a handshake is sent. A libudt client takes the first packet for the answer. If the
    /// answer was lost and the first packet is data, the connection never opens.
    const ANSWERS: u32 = 3;

    fn path(&self, rtt: &Rtt, seed: u64) -> control::Path {
        control::Path {
            mss: self.mss,
            window_max: self.window_max,
            rtt: rtt.get(),
            rtt_measured: rtt.is_measured(),
            receiving: self.receiving,
            capacity: self.capacity,
            next: self.send.next_number(),
            in_flight: self.send.in_flight(),
            acknowledgements: ACKNOWLEDGEMENTS,
            seed,
        }
    }

    /// The pace of the control, slowed down to the rate limit.
    fn pace(&self, limit: Option<u64>) -> control::Pace {
        let pace = self.control.pace();
        let least = limit.map_or(0.0, |limit| control::interval_of(limit, self.mss));
        control::Pace { interval: pace.interval.max(least), ..pace }
    }
}

/// How long the peer may be silent with packets in flight before the control is told of a time-out.
fn silence_limit(rtt: &Rtt) -> Duration {
    (rtt.overdue() + SYN).max(Duration::from_millis(300))
}
