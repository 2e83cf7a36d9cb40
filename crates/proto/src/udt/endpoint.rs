//! Many connections on one UDP socket, and the listener among them.
//!
//! Datagrams are told apart by the socket id that they carry. A stranger's request is answered with a cookie, or with
//! nothing; only a request that repeats the cookie reaches the caller, as [`Incoming`]. Nothing is stored before that. An
//! answer has the length of the request, which libudt needs, and there is a bound to answers per second: under a flood of
//! forged requests less goes out than comes in.

use super::connection::{Agreement, Connection};
use super::cookie::{Secret, Spent};
use super::handshake::{Handshake, MSS_MIN, Request, VERSION};
use super::packet::{Body, Packet};
use super::{Config, ConfigError};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// One UDP socket's connections.
#[derive(Debug)]
pub struct Endpoint {
    secret: Secret,
    /// Cookies of accepted connections: a request that is replayed when its connection is gone opens none.
    spent: Spent,
    listener: Option<Arc<Config>>,
    connections: HashMap<u32, Peer>,
    /// Accepted connections by the peer's address and socket: a repeated request is for them.
    accepted: HashMap<(SocketAddr, u32), u32>,
    /// Connections that meet a peer at an address.
    meeting: HashMap<SocketAddr, u32>,
    /// Answers to strangers that may go, and since when they were counted.
    answers: f64,
    counted_at: Duration,
}

#[derive(Debug, Clone, Copy)]
struct Peer {
    remote: SocketAddr,
    accepted_from: Option<u32>,
}

/// What a datagram is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Route {
    /// For the connection with this socket: [`Connection::handle`] takes it.
    Connection(u32),
    /// A request with a good cookie: [`Endpoint::accept`] or [`Endpoint::refuse`] it. Unless the caller does either, nothing
    /// is remembered, and the peer asks again.
    Incoming(Incoming),
    /// So many bytes of the caller's buffer are to be sent back.
    Answer(usize),
    /// Nothing to be done.
    Ignore,
}

/// A peer that wants a connection and receives at its address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Incoming {
    /// Its address.
    pub remote: SocketAddr,
    request: Handshake,
}

/// Why a connection is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// 1002, the only reason that libudt gives.
    Rejected,
}

impl Endpoint {
    /// Answers to strangers per second: more than any listener has new clients, and 6 Mbit/s.
    pub const ANSWERS_PER_SECOND: f64 = 10_000.0;

    /// An endpoint without connections. Nobody else may know the seed, nor may it be used twice.
    pub fn new(seed: [u8; 32]) -> Self {
        Self {
            secret: Secret::new(seed),
            spent: Spent::default(),
            listener: None,
            connections: HashMap::new(),
            accepted: HashMap::new(),
            meeting: HashMap::new(),
            answers: Self::ANSWERS_PER_SECOND,
            counted_at: Duration::ZERO,
        }
    }

    /// Takes requests from now on, or none any more.
    ///
    /// # Errors
    /// [`ConfigError`] if the settings do not work.
    pub fn listen(&mut self, config: Option<Arc<Config>>) -> Result<(), ConfigError> {
        config.as_ref().map_or(Ok(()), |config| config.check())?;
        self.listener = config;
        Ok(())
    }

    /// A connection to a listener.
    ///
    /// # Errors
    /// [`ConfigError`] if the settings do not work.
    pub fn connect(
        &mut self,
        now: Duration,
        remote: SocketAddr,
        config: Arc<Config>,
    ) -> Result<Connection, ConfigError> {
        config.check()?;
        let (socket, seed) = self.socket(remote, None);
        Ok(Connection::ask(now, config, remote, false, socket, seed))
    }

    /// A connection to a peer that asks as well, at the same time; one per address.
    ///
    /// # Errors
    /// [`ConfigError`] if the settings do not work.
    pub fn meet(&mut self, now: Duration, remote: SocketAddr, config: Arc<Config>) -> Result<Connection, ConfigError> {
        config.check()?;
        let (socket, seed) = self.socket(remote, None);
        self.meeting.insert(remote, socket);
        Ok(Connection::ask(now, config, remote, true, socket, seed))
    }

    /// A connection to a peer that has asked; `None` if nobody listens any more.
    pub fn accept(&mut self, now: Duration, incoming: &Incoming) -> Option<Connection> {
        let config = self.listener.clone()?;
        let Incoming { remote, request } = incoming;
        self.spent.add(now, request.socket, request.cookie);
        let (socket, seed) = self.socket(*remote, Some(request.socket));
        let agreement = Agreement {
            peer_socket: request.socket,
            mss: request.mss.min(config.mss),
            window: request.flow_window.clamp(2, Config::BUFFER_MAX),
            // Both directions begin with the client's number: that is how it knows the answer.
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

    /// Forgets a connection.
    pub fn remove(&mut self, socket: u32) {
        let Some(Peer { remote, accepted_from }) = self.connections.remove(&socket) else { return };
        if let Some(peer_socket) = accepted_from {
            self.accepted.remove(&(remote, peer_socket));
        }
        if self.meeting.get(&remote) == Some(&socket) {
            self.meeting.remove(&remote);
        }
    }

    /// Connections that were not removed.
    pub fn len(&self) -> usize {
        self.connections.len()
    }

    /// Whether there is no connection.
    pub fn is_empty(&self) -> bool {
        self.connections.is_empty()
    }

    /// Says what a datagram is. `answer` has room for [`packet::CONTROL_LEN_MAX`](super::packet::CONTROL_LEN_MAX) bytes.
    pub fn route(&mut self, now: Duration, from: SocketAddr, datagram: &[u8], answer: &mut [u8]) -> Route {
        match Packet::destination_of(datagram) {
            Some(0) => self.route_request(now, from, datagram, answer),
            // A connection keeps to its address, as in libudt: whoever comes from another one has only guessed.
            Some(socket) if self.connections.get(&socket).is_some_and(|peer| peer.remote == from) => {
                Route::Connection(socket)
            }
            _ => Route::Ignore,
        }
    }

    fn route_request(&mut self, now: Duration, from: SocketAddr, datagram: &[u8], answer: &mut [u8]) -> Route {
        let Ok(Packet { body: Body::Handshake(request), .. }) = Packet::decode(datagram) else { return Route::Ignore };
        if let Some(socket) = self.meeting.get(&from).filter(|_| request.request != Request::Induction) {
            return Route::Connection(*socket);
        }
        let Handshake { socket, initial_seq, cookie, .. } = request;
        let returns =
            request.request == Request::Conclusion && self.secret.verify(now, from, socket, initial_seq, cookie);
        // It has an answer even if nobody listens any more.
        if let Some(socket) = self.accepted.get(&(from, socket)).filter(|_| returns) {
            return Route::Connection(*socket);
        }
        let Some(config) = &self.listener else { return Route::Ignore };
        match request.request {
            Request::Induction => {
                let cookie = self.secret.cookie(now, from, socket, initial_seq);
                self.answer(now, Handshake { cookie, ..request }, answer)
            }
            Request::Conclusion if returns => {
                if self.spent.contains(now, socket, cookie) {
                    return Route::Ignore;
                }
                let sound = socket != 0 && request.mss >= MSS_MIN;
                if request.version != VERSION || request.kind != config.kind.number() || !sound {
                    return self.answer(now, Handshake { request: Request::REFUSED, ..request }, answer);
                }
                Route::Incoming(Incoming { remote: from, request })
            }
            _ => Route::Ignore,
        }
    }

    /// Answers a stranger, if answers are left.
    fn answer(&mut self, now: Duration, handshake: Handshake, answer: &mut [u8]) -> Route {
        let passed = now.saturating_sub(self.counted_at).as_secs_f64();
        self.counted_at = self.counted_at.max(now);
        // A tenth of a second's worth may go at once.
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

    /// A new socket, and a seed for its connection.
    fn socket(&mut self, remote: SocketAddr, accepted_from: Option<u32>) -> (u32, u64) {
        loop {
            let seed = self.secret.draw();
            // libudt takes numbers for signed, and 0 for a request.
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
