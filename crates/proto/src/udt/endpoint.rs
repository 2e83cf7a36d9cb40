//! Multiplexes the connections and the listener of one UDP socket.
//!
//! The socket id in each datagram selects the connection. A new client's request is answered with a cookie, or not at
//! all. Only a request that returns the cookie reaches the caller, as [`Incoming`]; nothing is stored before that. The
//! number of answers per second is bounded, and an answer is as long as the request, as libudt requires: a flood of
//! forged requests cannot be amplified.

use super::connection::{Agreement, Connection};
use super::cookie::{Secret, UsedCookies};
use super::handshake::{Handshake, MSS_MIN, Request, VERSION};
use super::packet::{Body, Packet};
use super::{Config, ConfigError};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// The connections and the listener of one UDP socket.
#[derive(Debug)]
pub struct Endpoint {
    secret: Secret,
    /// Cookies of accepted connections. A request replayed after its connection has ended opens no new one.
    used_cookies: UsedCookies,
    listener: Option<Arc<Config>>,
    connections: HashMap<u32, Peer>,
    /// Accepted connections by the peer's address and socket. They receive retransmitted requests.
    accepted: HashMap<(SocketAddr, u32), u32>,
    /// Rendezvous connections by the peer's address.
    rendezvous: HashMap<SocketAddr, u32>,
    /// Token bucket of answers to new clients, and the time of its last refill.
    answers: f64,
    refilled_at: Duration,
}

#[derive(Debug, Clone, Copy)]
struct Peer {
    remote: SocketAddr,
    accepted_from: Option<u32>,
}

/// What the caller must do with a datagram.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Route {
    /// Pass it to the [`Connection::handle`] of the connection with this socket.
    Connection(u32),
    /// A request with a valid cookie: call [`Endpoint::accept`] or [`Endpoint::refuse`]. If the caller does neither,
    /// the endpoint stores nothing, and the peer repeats its request.
    Incoming(Incoming),
    /// Send this many bytes of the answer buffer back.
    Answer(usize),
    /// Drop it.
    Ignore,
}

/// A connection request whose source address is verified by a cookie.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Incoming {
    /// The peer's address.
    pub remote: SocketAddr,
    request: Handshake,
}

/// Why a connection is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// Code 1002, the only one that libudt sends.
    Rejected,
}

impl Endpoint {
    /// Most answers to new clients per second: more than the new clients of any listener, and about 6 Mbit/s.
    pub const ANSWERS_PER_SECOND: f64 = 10_000.0;

    /// An endpoint without connections. The seed must be secret and must not be reused.
    pub fn new(seed: [u8; 32]) -> Self {
        Self {
            secret: Secret::new(seed),
            used_cookies: UsedCookies::default(),
            listener: None,
            connections: HashMap::new(),
            accepted: HashMap::new(),
            rendezvous: HashMap::new(),
            answers: Self::ANSWERS_PER_SECOND,
            refilled_at: Duration::ZERO,
        }
    }

    /// Starts to accept requests with these settings, or stops with `None`.
    ///
    /// # Errors
    /// [`ConfigError`] if the settings are invalid.
    pub fn listen(&mut self, config: Option<Arc<Config>>) -> Result<(), ConfigError> {
        config.as_ref().map_or(Ok(()), |config| config.check())?;
        self.listener = config;
        Ok(())
    }

    /// Starts a connection to a listener.
    ///
    /// # Errors
    /// [`ConfigError`] if the settings are invalid.
    pub fn connect(
        &mut self,
        now: Duration,
        remote: SocketAddr,
        config: Arc<Config>,
    ) -> Result<Connection, ConfigError> {
        config.check()?;
        let (socket, seed) = self.socket(remote, None);
        Ok(Connection::initiate(now, config, remote, false, socket, seed))
    }

    /// Starts a rendezvous: both peers connect to each other at the same time. One per remote address.
    ///
    /// # Errors
    /// [`ConfigError`] if the settings are invalid.
    pub fn rendezvous(
        &mut self,
        now: Duration,
        remote: SocketAddr,
        config: Arc<Config>,
    ) -> Result<Connection, ConfigError> {
        config.check()?;
        let (socket, seed) = self.socket(remote, None);
        self.rendezvous.insert(remote, socket);
        Ok(Connection::initiate(now, config, remote, true, socket, seed))
    }

    /// Accepts a request. Returns `None` if the endpoint does not listen any more.
    pub fn accept(&mut self, now: Duration, incoming: &Incoming) -> Option<Connection> {
        let config = self.listener.clone()?;
        let Incoming { remote, request } = incoming;
        self.used_cookies.add(now, request.socket, request.cookie);
        let (socket, seed) = self.socket(*remote, Some(request.socket));
        let agreement = Agreement {
            peer_socket: request.socket,
            mss: request.mss.min(config.mss),
            window: request.flow_window.clamp(2, Config::BUFFER_MAX),
            // Both directions begin with the client's sequence number, by which the client recognizes the answer.
            first_out: request.initial_seq,
            first_in: request.initial_seq,
            rtt: None,
        };
        Some(Connection::accept(now, config, *remote, socket, seed, agreement))
    }

    /// Writes the refusal of a request into `answer`, and returns its length; `None` if it does not fit.
    pub fn refuse(&self, incoming: &Incoming, reason: Refusal, answer: &mut [u8]) -> Option<usize> {
        let Refusal::Rejected = reason;
        let body = Body::Handshake(Handshake { request: Request::REFUSED, ..incoming.request });
        Packet { timestamp: 0, destination: incoming.request.socket, body }.encode(answer)
    }

    /// Removes a connection.
    pub fn remove(&mut self, socket: u32) {
        let Some(Peer { remote, accepted_from }) = self.connections.remove(&socket) else { return };
        if let Some(peer_socket) = accepted_from {
            self.accepted.remove(&(remote, peer_socket));
        }
        if self.rendezvous.get(&remote) == Some(&socket) {
            self.rendezvous.remove(&remote);
        }
    }

    /// Number of connections that were not removed.
    pub fn len(&self) -> usize {
        self.connections.len()
    }

    /// Whether there is no connection.
    pub fn is_empty(&self) -> bool {
        self.connections.is_empty()
    }

    /// Tells what to do with a datagram. `answer` must hold [`packet::CONTROL_LEN_MAX`](super::packet::CONTROL_LEN_MAX)
    /// bytes.
    pub fn route(&mut self, now: Duration, from: SocketAddr, datagram: &[u8], answer: &mut [u8]) -> Route {
        match Packet::destination_of(datagram) {
            Some(0) => self.route_request(now, from, datagram, answer),
            // A connection's peer keeps its address, as in libudt. A datagram from another address is forged.
            Some(socket) if self.connections.get(&socket).is_some_and(|peer| peer.remote == from) => {
                Route::Connection(socket)
            }
            _ => Route::Ignore,
        }
    }

    fn route_request(&mut self, now: Duration, from: SocketAddr, datagram: &[u8], answer: &mut [u8]) -> Route {
        let Ok(Packet { body: Body::Handshake(request), .. }) = Packet::decode(datagram) else { return Route::Ignore };
        if let Some(socket) = self.rendezvous.get(&from).filter(|_| request.request != Request::Induction) {
            return Route::Connection(*socket);
        }
        let Handshake { socket, initial_seq, cookie, .. } = request;
        let is_verified =
            request.request == Request::Conclusion && self.secret.verify(now, from, socket, initial_seq, cookie);
        // An accepted connection answers retransmitted requests even if the endpoint does not listen any more.
        if let Some(socket) = self.accepted.get(&(from, socket)).filter(|_| is_verified) {
            return Route::Connection(*socket);
        }
        let Some(config) = &self.listener else { return Route::Ignore };
        match request.request {
            Request::Induction => {
                let cookie = self.secret.cookie(now, from, socket, initial_seq);
                self.answer(now, Handshake { cookie, ..request }, answer)
            }
            Request::Conclusion if is_verified => {
                if self.used_cookies.contains(now, socket, cookie) {
                    return Route::Ignore;
                }
                let is_valid = socket != 0 && request.mss >= MSS_MIN;
                if request.version != VERSION || request.kind != config.kind.number() || !is_valid {
                    return self.answer(now, Handshake { request: Request::REFUSED, ..request }, answer);
                }
                Route::Incoming(Incoming { remote: from, request })
            }
            _ => Route::Ignore,
        }
    }

    /// Answers a new client, unless the rate limit is reached.
    fn answer(&mut self, now: Duration, handshake: Handshake, answer: &mut [u8]) -> Route {
        let passed = now.saturating_sub(self.refilled_at).as_secs_f64();
        self.refilled_at = self.refilled_at.max(now);
        // Bursts are limited to the answers of 100 ms.
        let most = Self::ANSWERS_PER_SECOND / 10.0;
        self.answers = (self.answers + passed * Self::ANSWERS_PER_SECOND).min(most);
        if self.answers < 1.0 {
            return Route::Ignore;
        }
        let packet = Packet { timestamp: 0, destination: handshake.socket, body: Body::Handshake(handshake) };
        match packet.encode(answer) {
            Some(len) => {
                self.answers -= 1.0;
                Route::Answer(len)
            }
            None => Route::Ignore,
        }
    }

    /// Allocates a socket id, and a seed for its connection.
    fn socket(&mut self, remote: SocketAddr, accepted_from: Option<u32>) -> (u32, u64) {
        loop {
            let seed = self.secret.random();
            // 31 bits, not 0: libudt's socket ids are signed, and 0 means a connection request.
            let socket = (seed >> 33) as u32;
            if socket != 0 && !self.connections.contains_key(&socket) {
                self.connections.insert(socket, Peer { remote, accepted_from });
                if let Some(peer_socket) = accepted_from {
                    self.accepted.insert((remote, peer_socket), socket);
                }
                return (socket, seed);
            }
        }
    }
}
