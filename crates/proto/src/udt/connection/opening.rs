//! How a connection is opened: the side that asks, and both sides of a rendezvous. The side that listens is the
//! [`Endpoint`](crate::udt::Endpoint), which makes a connection only when it is open.

use crate::udt::Config;
use crate::udt::handshake::{Handshake, MSS_MIN, Request, VERSION};
use crate::udt::seq::Seq;
use std::net::SocketAddr;
use std::time::Duration;

/// A handshake under way.
#[derive(Debug)]
pub(super) struct Opening {
    rendezvous: bool,
    /// What is sent.
    request: Handshake,
    /// The peer's socket, where it is known: that of a listener is 0.
    destination: u32,
    /// In a rendezvous, the last that came.
    heard: Option<Handshake>,
    send_at: Duration,
    /// How often this request was sent, and when it was first.
    sent: u32,
    sent_at: Duration,
    deadline: Duration,
}

/// What an answer means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// Nothing.
    Ignore,
    /// The connection is open.
    Open(Agreement),
    /// It will not be.
    Refused(i32),
}

/// What both ends have agreed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::udt) struct Agreement {
    pub(in crate::udt) peer_socket: u32,
    pub(in crate::udt) mss: u32,
    /// Packets that fit into the peer's buffer.
    pub(in crate::udt) window: u32,
    /// The first packet of this end, and that of the peer.
    pub(in crate::udt) first_out: Seq,
    pub(in crate::udt) first_in: Seq,
    /// A first measurement of the round-trip time.
    pub(in crate::udt) rtt: Option<Duration>,
}

impl Opening {
    /// How often a request is repeated.
    const INTERVAL: Duration = Duration::from_millis(250);

    pub(super) fn new(
        now: Duration,
        config: &Config,
        remote: SocketAddr,
        rendezvous: bool,
        socket: u32,
        first: Seq,
    ) -> Self {
        let request = Handshake {
            version: VERSION,
            kind: config.kind.number(),
            initial_seq: first,
            mss: config.mss,
            flow_window: config.receive_buffer,
            request: if rendezvous { Request::Rendezvous } else { Request::Induction },
            socket,
            cookie: 0,
            peer_ip: Handshake::peer_ip(remote.ip()),
        };
        let patience = if rendezvous { config.rendezvous_timeout } else { config.connect_timeout };
        let deadline = now + patience;
        Self { rendezvous, request, destination: 0, heard: None, send_at: now, sent: 0, sent_at: now, deadline }
    }

    /// Whether two sockets meet that both ask.
    pub(super) fn is_rendezvous(&self) -> bool {
        self.rendezvous
    }

    /// When to repeat the request, or to give up.
    pub(super) fn due(&self) -> Duration {
        self.send_at.min(self.deadline)
    }

    /// Whether it has taken too long.
    pub(super) fn is_late(&self, now: Duration) -> bool {
        now >= self.deadline
    }

    /// The request that is due, and whom it is for.
    pub(super) fn poll(&mut self, now: Duration) -> Option<(u32, Handshake)> {
        if self.send_at > now || self.is_late(now) {
            return None;
        }
        if self.sent == 0 {
            self.sent_at = now;
        }
        self.sent += 1;
        self.send_at = now + Self::INTERVAL;
        Some((self.destination, self.request))
    }

    /// A handshake has come.
    pub(super) fn handle(&mut self, now: Duration, answer: &Handshake) -> Step {
        if answer.request.is_refusal() {
            let Request::Other(code) = answer.request else { return Step::Ignore };
            return Step::Refused(code);
        }
        if self.rendezvous { self.meet(now, answer) } else { self.answered(now, answer) }
    }

    /// In a rendezvous, something else than a handshake has come: the peer takes the connection for open.
    pub(super) fn peer_is_open(&self) -> Option<Agreement> {
        self.agree(self.heard.as_ref()?)
    }

    fn answered(&mut self, now: Duration, answer: &Handshake) -> Step {
        match answer.request {
            Request::Induction => {
                self.request.cookie = answer.cookie;
                self.request.request = Request::Conclusion;
                (self.send_at, self.sent) = (now, 0);
                Step::Ignore
            }
            // The listener shows that it knows the request by its sequence number.
            Request::Conclusion if answer.initial_seq == self.request.initial_seq => match self.agree(answer) {
                Some(agreement) => {
                    // An answer to a repeated request may be one to the first.
                    let rtt = (self.sent == 1).then(|| now.saturating_sub(self.sent_at));
                    Step::Open(Agreement { rtt, ..agreement })
                }
                None => Step::Ignore,
            },
            _ => Step::Ignore,
        }
    }

    fn meet(&mut self, now: Duration, answer: &Handshake) -> Step {
        if answer.request == Request::Induction {
            return Step::Ignore;
        }
        if answer.request != Request::Agreement {
            // What libudt sends for an agreement lacks the kind.
            if answer.kind != self.request.kind || answer.version != VERSION {
                return Step::Ignore;
            }
            self.heard = Some(*answer);
            self.destination = answer.socket;
        }
        if self.request.request == Request::Rendezvous || answer.request == Request::Rendezvous {
            self.request.request = Request::Conclusion;
            self.send_at = now;
            return Step::Ignore;
        }
        match self.heard.as_ref().and_then(|heard| self.agree(heard)) {
            Some(agreement) => Step::Open(agreement),
            None => Step::Ignore,
        }
    }

    /// What results from the two handshakes; `None` if the peer's makes no sense.
    fn agree(&self, answer: &Handshake) -> Option<Agreement> {
        if answer.mss < MSS_MIN || answer.socket == 0 {
            return None;
        }
        Some(Agreement {
            peer_socket: answer.socket,
            mss: answer.mss.min(self.request.mss),
            window: answer.flow_window.clamp(2, Config::BUFFER_MAX),
            first_out: self.request.initial_seq,
            first_in: answer.initial_seq,
            rtt: None,
        })
    }
}
