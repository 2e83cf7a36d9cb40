//! What comes in: datagrams and time-outs.

use super::opening::Step;
use super::{CloseReason, Connection, Open, Role, State, silence};
use crate::udt::control::{Ack, Loss};
use crate::udt::handshake::{Handshake, Request};
use crate::udt::packet::{AckReport, Body, Packet};
use crate::udt::receive::Arrival;
use crate::udt::{Config, LossList, SYN};
use std::time::Duration;

impl Connection {
    /// Takes a datagram that the [`Endpoint`](crate::udt::Endpoint) has found to be for this connection. What is malformed,
    /// forged without knowledge of the connection, or repeated changes nothing.
    pub fn handle(&mut self, now: Duration, datagram: &[u8], arrival: Arrival) {
        let Ok(packet) = Packet::decode(datagram) else {
            self.packets_ignored += 1;
            return;
        };
        match &mut self.state {
            State::Opening(_) => self.handle_opening(now, packet.body),
            State::Open(_) if packet.destination == self.socket => self.handle_open(now, packet.body, arrival),
            // A request that was repeated, of a client that does not know of this connection yet.
            State::Open(open) if packet.destination == 0 && matches!(packet.body, Body::Handshake(_)) => {
                if open.role != Role::Client {
                    open.handshakes_due = Open::ANSWERS;
                }
            }
            State::Closed { ack_due, shutdown_due, until, .. } => {
                let answer = *until > now && !matches!(packet.body, Body::Shutdown);
                *ack_due |= answer;
                *shutdown_due |= answer;
            }
            State::Open(_) => self.packets_ignored += 1,
        }
    }

    /// Does what is due. To be called at the time of [`poll_timeout`](Self::poll_timeout), or whenever that is unknown.
    pub fn handle_timeout(&mut self, now: Duration) {
        match &mut self.state {
            State::Opening(opening) if opening.is_late(now) => {
                let rendezvous = opening.is_rendezvous();
                let Config { connect_timeout, rendezvous_timeout, .. } = &*self.config;
                let patience = if rendezvous { *rendezvous_timeout } else { *connect_timeout };
                self.end(now, CloseReason::ConnectTimeout(patience));
            }
            State::Open(open) => {
                if open.send.timeout_at(&self.rtt).is_some_and(|at| at <= now) {
                    let heard = now < self.last_heard + silence(&self.rtt);
                    open.send.on_timeout(now, &self.rtt, heard);
                }
                if !open.timed_out && open.silence_at(self.last_heard, silence(&self.rtt)).is_some_and(|at| at <= now) {
                    open.timed_out = true;
                    let path = open.path(&self.rtt, self.seed);
                    open.control.on_timeout(now, &path);
                }
                let patience = self.config.idle_timeout;
                let (stuck, mss) = (open.send.is_stuck(now, patience), open.mss);
                if now >= self.last_heard + patience {
                    self.end(now, CloseReason::Silence(patience));
                } else if stuck {
                    self.end(now, CloseReason::Stuck { mss, patience });
                }
                self.finish_closing(now);
            }
            _ => {}
        }
    }

    /// When to call [`handle_timeout`](Self::handle_timeout) and then [`poll_transmit`](Self::poll_transmit) next, unless
    /// something happens before. May be in the past. Valid once `poll_transmit` had nothing.
    pub fn poll_timeout(&self) -> Option<Duration> {
        match &self.state {
            State::Opening(opening) => Some(opening.due()),
            State::Open(open) => {
                let pace = open.pace(self.rate_limit);
                let paced = open.send.has_next(pace.window).then(|| open.pacer.wakeup(pace.interval));
                let times = [
                    paced,
                    open.receive.due(),
                    open.send.timeout_at(&self.rtt),
                    open.silence_at(self.last_heard, silence(&self.rtt)).filter(|_| !open.timed_out),
                    open.closing.map(|since| since + self.config.linger),
                    Some(self.last_sent + self.config.keep_alive),
                    Some(self.last_heard + self.config.idle_timeout),
                ];
                times.into_iter().flatten().min()
            }
            State::Closed { shutdown_due: true, .. } => Some(Duration::ZERO),
            State::Closed { .. } => None,
        }
    }

    fn handle_opening(&mut self, now: Duration, body: Body<'_>) {
        let State::Opening(opening) = &mut self.state else { return };
        let role = if opening.is_rendezvous() { Role::Rendezvous } else { Role::Client };
        let step = match body {
            Body::Handshake(answer) => opening.handle(now, &answer),
            // What this says is lost, but will be repeated: the peer has no answer to it.
            _ => opening.peer_is_open().map_or(Step::Ignore, Step::Open),
        };
        match step {
            Step::Ignore => {}
            Step::Open(agreement) => self.open(now, role, agreement),
            Step::Refused(code) => self.end(now, CloseReason::Refused(code)),
        }
    }

    fn handle_open(&mut self, now: Duration, body: Body<'_>, arrival: Arrival) {
        let State::Open(open) = &mut self.state else { return };
        self.last_heard = now;
        open.timed_out = false;
        match body {
            Body::Data { seq, place, payload } => open.receive.data(now, &self.rtt, seq, place, payload, arrival),
            Body::Ack { number, report } => self.handle_ack(now, number, report),
            Body::Ack2 { number } => {
                if let Some(rtt) = open.receive.ack2(now, number) {
                    self.rtt.measured(rtt);
                }
            }
            Body::Nak(list) => self.handle_nak(now, list),
            Body::Handshake(handshake) => open.answer_handshake(&handshake),
            Body::DelayWarning => {
                let path = open.path(&self.rtt, self.seed);
                open.control.on_delay_warning(now, &path);
            }
            Body::Shutdown => self.end(now, CloseReason::Peer),
            Body::Drop { message, first, last } => open.receive.drop_message(now, message, first, last),
            Body::PeerError { code } => open.peer_error = Some(code),
            Body::KeepAlive | Body::Other { .. } => {}
        }
    }

    fn handle_ack(&mut self, now: Duration, number: u32, report: AckReport) {
        let State::Open(open) = &mut self.state else { return };
        let mut rtt = None;
        if let Some(path) = report.path {
            rtt = self.rtt.reported(path.rtt, path.rtt_var);
            // One in a SYN is enough, but one that is repeated has not been answered.
            if number == open.ack2_last.1 || now >= open.ack2_last.0 + SYN {
                (open.ack2, open.ack2_last) = (Some(number), (now, number));
            }
        }
        if let Some(rates) = report.rates {
            open.receiving = averaged(open.receiving, rates.receiving, 16.0);
            open.capacity = averaged(open.capacity, rates.capacity, 1.0);
        }
        // That a flow stands still behind what it has lost to a queue is what lets its neighbours catch up.
        let end = report.end.filter(|_| !self.rtt.is_queued());
        let Some(heard) = open.send.acknowledged(now, &AckReport { end, ..report }) else { return };
        let own = heard.sent_at.map(|sent_at| now.saturating_sub(sent_at));
        let rtt = rtt.into_iter().chain(own).min();
        let ack = Ack { count: heard.arrived, sample: heard.sample, delivered: open.send.delivered(), rtt };
        let path = open.path(&self.rtt, self.seed);
        open.control.on_ack(now, &path, &ack);
        self.finish_closing(now);
    }

    fn handle_nak(&mut self, now: Duration, list: LossList<'_>) {
        let State::Open(open) = &mut self.state else { return };
        let heard = open.send.reported_lost(now, &self.rtt, list.ranges());
        let path = open.path(&self.rtt, self.seed);
        if let Some((first, _)) = list.ranges().next().filter(|_| heard.lost > 0) {
            open.control.on_loss(now, &path, &Loss { first, count: heard.lost });
        }
        if heard.arrived > 0 {
            let delivered = open.send.delivered();
            let ack = Ack { count: heard.arrived, sample: heard.sample, delivered, rtt: None };
            open.control.on_ack(now, &path, &ack);
        }
    }
}

impl Open {
    /// When the peer has been silent for too long to be well, with packets under way.
    pub(super) fn silence_at(&self, last_heard: Duration, patience: Duration) -> Option<Duration> {
        self.send.oldest_sent_at().map(|sent_at| sent_at.max(last_heard) + patience)
    }

    /// The peer repeats itself: it has not heard that the connection is open.
    fn answer_handshake(&mut self, handshake: &Handshake) {
        let repeats = match self.role {
            Role::Client => false,
            Role::Listener => true,
            Role::Rendezvous => handshake.request != Request::Agreement,
        };
        if repeats {
            self.handshakes_due = Self::ANSWERS;
        }
    }
}

/// UDT's average of a rate, begun with the first report; 0 is no report.
fn averaged(average: f64, report: u32, initial: f64) -> f64 {
    let report = f64::from(report);
    if report == 0.0 {
        average
    } else if average == initial {
        report
    } else {
        (average * 7.0 + report) / 8.0
    }
}
