//! How a connection is opened: the side that asks, and both sides of a rendezvous. The side that listens is the
//! [`Endpoint`](crate::udt::Endpoint), which makes a connection only when it is open.
//!
//! The side that asks finds out what the path carries: with every first request go copies of it that are padded to the sizes
//! of [`Ladder`], largest first, and not to be fragmented. A listener of this implementation answers each, and returns the
//! MSS that stands in it, so that the first answer tells the largest size that gets through, without a round trip of its
//! own. libudt answers the short one alone.

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
    /// Sizes that are tried, and how many of them went with the request that is due.
    ladder: Ladder,
    tried: usize,
    /// How often this request was sent, and when it was first.
    sent: u32,
    sent_at: Duration,
    deadline: Duration,
}

/// What goes out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ask {
    /// The socket that it is for.
    pub(super) destination: u32,
    pub(super) request: Handshake,
    /// The size of the IP packet that it is padded to, which must not be fragmented.
    pub(super) padded_to: Option<u32>,
}

/// Sizes of IP packets, as an MSS counts them, that are tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Ladder {
    sizes: [u32; 1 + Ladder::BELOW.len()],
    len: usize,
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

impl Ladder {
    /// Ethernet; tunnels over it, most of them and nearly all; what IPv6 demands; what every IPv4 host takes.
    const BELOW: [u32; 5] = [1500, 1450, 1400, 1280, 576];

    /// From `mss` down, for packets that are `extra` longer than they are counted; empty if nothing is to be tried.
    fn new(mss: u32, extra: u32, tries: bool) -> Self {
        let mut ladder = Self { sizes: [mss; _], len: usize::from(tries) };
        for size in Self::BELOW.map(|size| size - extra).into_iter().filter(|size| tries && *size < mss) {
            ladder.sizes[ladder.len] = size;
            ladder.len += 1;
        }
        ladder
    }

    fn get(&self) -> &[u32] {
        &self.sizes[..self.len]
    }
}

impl Opening {
    /// How often a request is repeated.
    const INTERVAL: Duration = Duration::from_millis(250);
    /// How long answers to padded requests are waited for after that to the short one: all were sent at the same time.
    const STRAGGLING: Duration = Duration::from_millis(10);

    pub(super) fn new(
        now: Duration,
        config: &Config,
        remote: SocketAddr,
        rendezvous: bool,
        socket: u32,
        first: Seq,
    ) -> Self {
        let ladder = Ladder::new(config.mss, ipv6_extra(remote), config.discover_mss && !rendezvous);
        let request = Handshake {
            version: VERSION,
            kind: config.kind.number(),
            initial_seq: first,
            // A first request that is not padded says of itself what padded ones say: how long it is.
            mss: if ladder.get().is_empty() { config.mss } else { MSS_MIN },
            flow_window: config.receive_buffer,
            request: if rendezvous { Request::Rendezvous } else { Request::Induction },
            socket,
            cookie: 0,
            peer_ip: Handshake::peer_ip(remote.ip()),
        };
        let patience = if rendezvous { config.rendezvous_timeout } else { config.connect_timeout };
        let deadline = now + patience;
        Self {
            rendezvous,
            request,
            destination: 0,
            heard: None,
            send_at: now,
            ladder,
            tried: 0,
            sent: 0,
            sent_at: now,
            deadline,
        }
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

    /// The request that is due, after those that are padded.
    pub(super) fn poll(&mut self, now: Duration) -> Option<Ask> {
        if self.send_at > now || self.is_late(now) {
            return None;
        }
        if self.request.request == Request::Induction
            && let Some(mss) = self.ladder.get().get(self.tried).copied()
        {
            self.tried += 1;
            let request = Handshake { mss, ..self.request };
            return Some(Ask { destination: self.destination, request, padded_to: Some(mss) });
        }
        self.tried = 0;
        if self.sent == 0 {
            self.sent_at = now;
        }
        self.sent += 1;
        self.send_at = now + Self::INTERVAL;
        Some(Ask { destination: self.destination, request: self.request, padded_to: None })
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
                self.cookie(now, answer);
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

    /// A cookie has come, and shows a size that the path carries if the request was padded to one.
    fn cookie(&mut self, now: Duration, answer: &Handshake) {
        let shown = self.ladder.get().iter().copied().find(|size| *size == answer.mss);
        if self.request.request == Request::Induction {
            let largest = self.ladder.get().first().copied();
            let waits = shown.is_none() && largest.is_some();
            self.request.mss = shown.or(largest).unwrap_or(self.request.mss);
            (self.request.cookie, self.request.request) = (answer.cookie, Request::Conclusion);
            (self.send_at, self.sent) = (if waits { now + Self::STRAGGLING } else { now }, 0);
        } else if let Some(shown) = shown.filter(|_| self.sent == 0) {
            // The one with the cookie has not gone yet: it may have been waiting for this, or know of a smaller size.
            if self.send_at > now || shown > self.request.mss {
                (self.request.mss, self.send_at) = (shown, now);
            }
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

/// What an IP header is longer than UDT counts.
fn ipv6_extra(remote: SocketAddr) -> u32 {
    if remote.ip().to_canonical().is_ipv6() { 20 } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn opening(mss: u32) -> Opening {
        let config = Config { mss, ..Config::default() };
        Opening::new(SECOND, &config, "192.0.2.1:9".parse().unwrap(), false, 7, Seq::new(1))
    }

    fn sizes(opening: &mut Opening, now: Duration) -> Vec<Option<u32>> {
        std::iter::from_fn(|| opening.poll(now)).map(|ask| ask.padded_to).collect()
    }

    fn answer(opening: &mut Opening, now: Duration, mss: u32) {
        let answer = Handshake { mss, cookie: mss, ..opening.request };
        let answer = Handshake { request: Request::Induction, ..answer };
        assert_eq!(opening.handle(now, &answer), Step::Ignore);
    }

    #[test]
    fn padded_requests_go_first_and_again_with_every_repetition() {
        let mut opening = opening(9000);
        let all = [Some(9000), Some(1500), Some(1450), Some(1400), Some(1280), Some(576), None];
        assert_eq!(sizes(&mut opening, SECOND), all);
        assert_eq!(sizes(&mut opening, SECOND), []);
        assert_eq!(sizes(&mut opening, SECOND + Opening::INTERVAL), all);
        assert_eq!(Ladder::new(1480, 20, true).get(), [1480, 1430, 1380, 1260, 556]);
        assert_eq!(Ladder::new(500, 0, true).get(), [500]);
        assert_eq!(Ladder::new(1500, 0, false).get(), []);
    }

    #[test]
    fn the_first_answer_to_a_padded_request_decides() {
        let mut opening = opening(1500);
        sizes(&mut opening, SECOND);
        answer(&mut opening, SECOND, 1450);
        answer(&mut opening, SECOND, 1400);
        let ask = opening.poll(SECOND).unwrap();
        assert_eq!((ask.request.request, ask.request.mss, ask.padded_to), (Request::Conclusion, 1450, None));
        // Those that come later repeat nothing.
        answer(&mut opening, SECOND, 1400);
        answer(&mut opening, SECOND, MSS_MIN);
        assert_eq!((opening.poll(SECOND), opening.request.cookie), (None, 1450));
    }

    #[test]
    fn a_listener_that_answers_the_short_request_alone_gets_the_largest_size_a_little_later() {
        let mut opening = opening(1500);
        sizes(&mut opening, SECOND);
        answer(&mut opening, SECOND, MSS_MIN);
        assert_eq!((opening.poll(SECOND), opening.due()), (None, SECOND + Opening::STRAGGLING));
        let ask = opening.poll(SECOND + Opening::STRAGGLING).unwrap();
        assert_eq!((ask.request.request, ask.request.mss), (Request::Conclusion, 1500));

        let mut opening = self::opening(1500);
        sizes(&mut opening, SECOND);
        answer(&mut opening, SECOND, MSS_MIN);
        answer(&mut opening, SECOND, 1280);
        assert_eq!(opening.poll(SECOND).unwrap().request.mss, 1280, "answers that were reordered count as well");
    }
}
