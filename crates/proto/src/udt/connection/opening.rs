//! The handshake of the connecting side, and of both sides of a rendezvous. The listening side is the
//! [`Endpoint`](crate::udt::Endpoint), which creates a connection only when it is open.
//!
//! The connecting side discovers the path MTU without an extra round trip. Together with every induction request it
//! sends copies that are padded to the sizes of [`MssProbes`], largest first, with fragmentation forbidden. A listener
//! of this implementation answers each and returns the MSS of the request, so that the first answer shows the largest
//! size that gets through. libudt answers the short request alone.

use crate::udt::Config;
use crate::udt::handshake::{Handshake, MSS_MIN, Request, VERSION};
use crate::udt::seq::Seq;
use std::net::SocketAddr;
use std::time::Duration;

/// A handshake in progress.
#[derive(Debug)]
pub(super) struct Opening {
    rendezvous: bool,
    /// The request to send.
    request: Handshake,
    /// The peer's socket id; 0 for a listener, or if not known.
    destination: u32,
    /// In a rendezvous, the last handshake received from the peer.
    peer_handshake: Option<Handshake>,
    /// When to send the request next.
    send_at: Duration,
    probes: MssProbes,
    /// Number of probes already sent with the current transmission of the request.
    probes_sent: usize,
    /// Number of transmissions of the request.
    sent: u32,
    /// Time of the first transmission.
    sent_at: Duration,
    deadline: Duration,
}

/// A handshake packet to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct OutgoingRequest {
    /// The destination socket id.
    pub(super) destination: u32,
    pub(super) request: Handshake,
    /// Size of the IP packet to pad to, which must not be fragmented. `None` for a request without padding.
    pub(super) padded_to: Option<u32>,
}

/// Sizes of IP packets, counted like an MSS, that the path is probed with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct MssProbes {
    sizes: [u32; 1 + MssProbes::BELOW.len()],
    len: usize,
}

/// Result of a received handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// Go on waiting.
    Ignore,
    /// The connection is open.
    Open(Agreement),
    /// The peer refused the connection, with this code.
    Refused(i32),
}

/// The negotiated parameters of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::udt) struct Agreement {
    pub(in crate::udt) peer_socket: u32,
    pub(in crate::udt) mss: u32,
    /// Packets that fit into the peer's buffer.
    pub(in crate::udt) window: u32,
    /// This end's initial sequence number.
    pub(in crate::udt) first_out: Seq,
    /// The peer's initial sequence number.
    pub(in crate::udt) first_in: Seq,
    /// First measurement of the round-trip time.
    pub(in crate::udt) rtt: Option<Duration>,
}

impl MssProbes {
    /// Ethernet (1500), most tunnels over Ethernet (1450) and nearly all of them (1400), the minimum MTU of IPv6
    /// (1280), and the size that every IPv4 host accepts (576).
    const BELOW: [u32; 5] = [1500, 1450, 1400, 1280, 576];

    /// Sizes from `mss` down, for IP headers that are `extra` bytes longer than the MSS counts. None unless `enabled`.
    fn new(mss: u32, extra: u32, enabled: bool) -> Self {
        let mut probes = Self { sizes: [mss; _], len: usize::from(enabled) };
        for size in Self::BELOW.map(|size| size - extra).into_iter().filter(|size| enabled && *size < mss) {
            probes.sizes[probes.len] = size;
            probes.len += 1;
        }
        probes
    }

    fn get(&self) -> &[u32] {
        &self.sizes[..self.len]
    }
}

impl Opening {
    /// Interval of retransmissions of a request.
    const INTERVAL: Duration = Duration::from_millis(250);
    /// How long to wait for answers to padded requests after the answer to the short one. All were sent at the same
    /// time, so their answers arrive close together.
    const PROBE_WAIT: Duration = Duration::from_millis(10);

    pub(super) fn new(
        now: Duration,
        config: &Config,
        remote: SocketAddr,
        rendezvous: bool,
        socket: u32,
        first: Seq,
    ) -> Self {
        let probes = MssProbes::new(config.mss, ipv6_extra(remote), config.discover_mss && !rendezvous);
        let request = Handshake {
            version: VERSION,
            kind: config.kind.number(),
            initial_seq: first,
            // With probes, the MSS field of each induction request is its own length, also of the one without padding.
            mss: if probes.get().is_empty() { config.mss } else { MSS_MIN },
            flow_window: config.receive_buffer,
            request: if rendezvous { Request::Rendezvous } else { Request::Induction },
            socket,
            cookie: 0,
            peer_ip: Handshake::peer_ip(remote.ip()),
        };
        let timeout = if rendezvous { config.rendezvous_timeout } else { config.connect_timeout };
        let deadline = now + timeout;
        Self {
            rendezvous,
            request,
            destination: 0,
            peer_handshake: None,
            send_at: now,
            probes,
            probes_sent: 0,
            sent: 0,
            sent_at: now,
            deadline,
        }
    }

    /// Whether both sides connect to each other, without a listener.
    pub(super) fn is_rendezvous(&self) -> bool {
        self.rendezvous
    }

    /// When to retransmit the request, or when the handshake times out.
    pub(super) fn timeout(&self) -> Duration {
        self.send_at.min(self.deadline)
    }

    /// Whether the deadline of the handshake has passed.
    pub(super) fn is_timed_out(&self, now: Duration) -> bool {
        now >= self.deadline
    }

    /// The next packet to send: first the padded copies of an induction request, then the request itself.
    pub(super) fn poll(&mut self, now: Duration) -> Option<OutgoingRequest> {
        if self.send_at > now || self.is_timed_out(now) {
            return None;
        }
        if self.request.request == Request::Induction
            && let Some(mss) = self.probes.get().get(self.probes_sent).copied()
        {
            self.probes_sent += 1;
            let request = Handshake { mss, ..self.request };
            return Some(OutgoingRequest { destination: self.destination, request, padded_to: Some(mss) });
        }
        self.probes_sent = 0;
        if self.sent == 0 {
            self.sent_at = now;
        }
        self.sent += 1;
        self.send_at = now + Self::INTERVAL;
        Some(OutgoingRequest { destination: self.destination, request: self.request, padded_to: None })
    }

    /// Processes a received handshake.
    pub(super) fn handle(&mut self, now: Duration, answer: &Handshake) -> Step {
        if answer.request.is_refusal() {
            let Request::Other(code) = answer.request else { return Step::Ignore };
            return Step::Refused(code);
        }
        if self.rendezvous { self.on_rendezvous(now, answer) } else { self.on_answer(now, answer) }
    }

    /// Processes a packet other than a handshake. In a rendezvous, it shows that the connection is open at the peer.
    pub(super) fn peer_is_open(&self) -> Option<Agreement> {
        self.agree(self.peer_handshake.as_ref()?)
    }

    fn on_answer(&mut self, now: Duration, answer: &Handshake) -> Step {
        match answer.request {
            Request::Induction => {
                self.on_cookie(now, answer);
                Step::Ignore
            }
            // The listener's answer repeats the sequence number of the request.
            Request::Conclusion if answer.initial_seq == self.request.initial_seq => match self.agree(answer) {
                Some(agreement) => {
                    // After a retransmission, the answer may belong to either request, so it gives no measurement.
                    let rtt = (self.sent == 1).then(|| now.saturating_sub(self.sent_at));
                    Step::Open(Agreement { rtt, ..agreement })
                }
                None => Step::Ignore,
            },
            _ => Step::Ignore,
        }
    }

    /// Processes the answer with the cookie. The answer to a padded request proves that the path carries its size.
    fn on_cookie(&mut self, now: Duration, answer: &Handshake) {
        let proven = self.probes.get().iter().copied().find(|size| *size == answer.mss);
        if self.request.request == Request::Induction {
            let largest = self.probes.get().first().copied();
            let waits = proven.is_none() && largest.is_some();
            self.request.mss = proven.or(largest).unwrap_or(self.request.mss);
            (self.request.cookie, self.request.request) = (answer.cookie, Request::Conclusion);
            (self.send_at, self.sent) = (if waits { now + Self::PROBE_WAIT } else { now }, 0);
        } else if let Some(proven) = proven.filter(|_| self.sent == 0) {
            // The conclusion was not sent yet: it waits for this answer, or carries a smaller size.
            if self.send_at > now || proven > self.request.mss {
                (self.request.mss, self.send_at) = (proven, now);
            }
        }
    }

    fn on_rendezvous(&mut self, now: Duration, answer: &Handshake) -> Step {
        if answer.request == Request::Induction {
            return Step::Ignore;
        }
        if answer.request != Request::Agreement {
            // libudt's agreement lacks version and kind, so only the other requests are checked.
            if answer.kind != self.request.kind || answer.version != VERSION {
                return Step::Ignore;
            }
            self.peer_handshake = Some(*answer);
            self.destination = answer.socket;
        }
        if self.request.request == Request::Rendezvous || answer.request == Request::Rendezvous {
            self.request.request = Request::Conclusion;
            self.send_at = now;
            return Step::Ignore;
        }
        match self.peer_handshake.as_ref().and_then(|handshake| self.agree(handshake)) {
            Some(agreement) => Step::Open(agreement),
            None => Step::Ignore,
        }
    }

    /// The parameters that follow from both handshakes; `None` if the peer's is invalid.
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

/// Bytes by which the IP header is longer than UDT counts.
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
        std::iter::from_fn(|| opening.poll(now)).map(|outgoing| outgoing.padded_to).collect()
    }

    fn answer(opening: &mut Opening, now: Duration, mss: u32) {
        let answer = Handshake { mss, cookie: mss, ..opening.request };
        let answer = Handshake { request: Request::Induction, ..answer };
        assert_eq!(opening.handle(now, &answer), Step::Ignore);
    }

    #[test]
    fn padded_requests_are_sent_first_with_every_retransmission() {
        let mut opening = opening(9000);
        let all = [Some(9000), Some(1500), Some(1450), Some(1400), Some(1280), Some(576), None];
        assert_eq!(sizes(&mut opening, SECOND), all);
        assert_eq!(sizes(&mut opening, SECOND), []);
        assert_eq!(sizes(&mut opening, SECOND + Opening::INTERVAL), all);
        assert_eq!(MssProbes::new(1480, 20, true).get(), [1480, 1430, 1380, 1260, 556]);
        assert_eq!(MssProbes::new(500, 0, true).get(), [500]);
        assert_eq!(MssProbes::new(1500, 0, false).get(), []);
    }

    #[test]
    fn first_answer_to_a_padded_request_sets_the_mss() {
        let mut opening = opening(1500);
        sizes(&mut opening, SECOND);
        answer(&mut opening, SECOND, 1450);
        answer(&mut opening, SECOND, 1400);
        let sent = opening.poll(SECOND).unwrap();
        assert_eq!((sent.request.request, sent.request.mss, sent.padded_to), (Request::Conclusion, 1450, None));
        // Later answers cause no retransmission.
        answer(&mut opening, SECOND, 1400);
        answer(&mut opening, SECOND, MSS_MIN);
        assert_eq!((opening.poll(SECOND), opening.request.cookie), (None, 1450));
    }

    #[test]
    fn full_mss_is_used_after_a_wait_if_only_the_short_request_is_answered() {
        let mut opening = opening(1500);
        sizes(&mut opening, SECOND);
        answer(&mut opening, SECOND, MSS_MIN);
        assert_eq!((opening.poll(SECOND), opening.timeout()), (None, SECOND + Opening::PROBE_WAIT));
        let sent = opening.poll(SECOND + Opening::PROBE_WAIT).unwrap();
        assert_eq!((sent.request.request, sent.request.mss), (Request::Conclusion, 1500));

        let mut opening = self::opening(1500);
        sizes(&mut opening, SECOND);
        answer(&mut opening, SECOND, MSS_MIN);
        answer(&mut opening, SECOND, 1280);
        assert_eq!(opening.poll(SECOND).unwrap().request.mss, 1280, "reordered answers count as well");
    }
}
