//! Input events: received datagrams and expired timers.

use super::opening::Step;
use super::{CloseReason, Connection, Open, Role, State, silence_limit};
use crate::control::{Ack, Loss};
use crate::udt::handshake::{Handshake, Request};
use crate::udt::packet::{AckReport, Body, Packet};
use crate::udt::receive::Arrival;
use crate::udt::{Config, LossList, SYN};
use std::time::Duration;

impl Connection {
    /// Processes a datagram that the [`Endpoint`](crate::udt::Endpoint) has assigned to this connection. Malformed and
    /// duplicate datagrams, and those forged without knowledge of the connection, change nothing.
    pub fn handle(&mut self, now: Duration, datagram: &[u8], arrival: Arrival) {
        let Ok(packet) = Packet::decode(datagram) else {
            self.packets_ignored += 1;
            return;
        };
        match &mut self.state {
            State::Opening(_) => self.handle_opening(now, packet.body),
            State::Open(_) if packet.destination == self.socket => self.handle_open(now, packet.body, arrival),
            // A retransmitted request: the client has not received the answer yet.
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

    /// Processes expired timers. Call it at the time of [`poll_timeout`](Self::poll_timeout). Earlier calls are
    /// harmless.
    pub fn handle_timeout(&mut self, now: Duration) {
        match &mut self.state {
            State::Opening(opening) if opening.is_timed_out(now) => {
                let rendezvous = opening.is_rendezvous();
                let Config { connect_timeout, rendezvous_timeout, .. } = &*self.config;
                let timeout = if rendezvous { *rendezvous_timeout } else { *connect_timeout };
                self.end(now, CloseReason::ConnectTimeout(timeout));
            }
            State::Open(open) => {
                if open.send.timeout_at(&self.rtt).is_some_and(|at| at <= now) {
                    let is_peer_alive = now < self.last_heard + silence_limit(&self.rtt);
                    open.send.on_timeout(now, &self.rtt, is_peer_alive);
                }
                let silence_at = open.silence_at(self.last_heard, silence_limit(&self.rtt));
                if !open.timed_out && silence_at.is_some_and(|at| at <= now) {
                    open.timed_out = true;
                    let path = open.path(&self.rtt, self.seed);
                    open.control.on_timeout(now, &path);
                }
                let timeout = self.config.idle_timeout;
                let (stuck, mss) = (open.send.is_stuck(now, timeout), open.mss);
                if now >= self.last_heard + timeout {
                    self.end(now, CloseReason::Silence(timeout));
                } else if stuck {
                    self.end(now, CloseReason::Stuck { mss, timeout });
                }
                self.finish_closing(now);
            }
            _ => {}
        }
    }

    /// When to call [`handle_timeout`](Self::handle_timeout) and then [`poll_transmit`](Self::poll_transmit) next,
    /// unless another event occurs before. The time may be in the past. Valid after `poll_transmit` has returned
    /// `None`.
    pub fn poll_timeout(&self) -> Option<Duration> {
        match &self.state {
            State::Opening(opening) => Some(opening.timeout()),
            State::Open(open) => {
                let pace = open.pace(self.rate_limit);
                let paced = open.send.has_next(pace.window).then(|| open.pacer.wakeup(pace.interval));
                let times = [
                    paced,
                    open.receive.due(),
                    open.send.timeout_at(&self.rtt),
                    open.silence_at(self.last_heard, silence_limit(&self.rtt)).filter(|_| !open.timed_out),
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
            // The contents are lost, but the peer retransmits them, because they stay unacknowledged.
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
            // Nothing here depends on errors of the peer's application.
            Body::KeepAlive | Body::PeerError { .. } | Body::Other { .. } => {}
        }
    }

    fn handle_ack(&mut self, now: Duration, number: u32, report: AckReport) {
        let State::Open(open) = &mut self.state else { return };
        let mut rtt = None;
        if let Some(path) = report.path {
            rtt = self.rtt.reported(path.rtt, path.rtt_var);
            // One ACK2 in a SYN is enough. An ACK with the same number is a repetition: its ACK2 was lost.
            if number == open.ack2_last.1 || now >= open.ack2_last.0 + SYN {
                (open.ack2, open.ack2_last) = (Some(number), (now, number));
            }
        }
        if let Some(rates) = report.rates {
            open.receiving = averaged(open.receiving, rates.receiving, 16.0);
            open.capacity = averaged(open.capacity, rates.capacity, 1.0);
        }
        // While a queue has built up, packets behind a loss stay counted as in flight, so that this flow pauses after
        // its loss and competing flows can catch up.
        let end = report.end.filter(|_| !self.rtt.is_queued());
        let Some(outcome) = open.send.acknowledged(now, &AckReport { end, ..report }) else { return };
        let own = outcome.sent_at.map(|sent_at| now.saturating_sub(sent_at));
        let rtt = rtt.into_iter().chain(own).min();
        let ack = Ack { count: outcome.arrived, sample: outcome.sample, delivered: open.send.delivered(), rtt };
        let path = open.path(&self.rtt, self.seed);
        open.control.on_ack(now, &path, &ack);
        self.finish_closing(now);
    }

    fn handle_nak(&mut self, now: Duration, list: LossList<'_>) {
        let State::Open(open) = &mut self.state else { return };
        let outcome = open.send.reported_lost(now, &self.rtt, list.ranges());
        let path = open.path(&self.rtt, self.seed);
        if let Some((first, _)) = list.ranges().next().filter(|_| outcome.lost > 0) {
            open.control.on_loss(now, &path, &Loss { first: open.send.number_of(first), count: outcome.lost });
        }
        if outcome.arrived > 0 {
            let delivered = open.send.delivered();
            let ack = Ack { count: outcome.arrived, sample: outcome.sample, delivered, rtt: None };
            open.control.on_ack(now, &path, &ack);
        }
    }
}

impl Open {
    /// When the peer will have been silent for `limit` with packets in flight.
    pub(super) fn silence_at(&self, last_heard: Duration, limit: Duration) -> Option<Duration> {
        self.send.oldest_sent_at().map(|sent_at| sent_at.max(last_heard) + limit)
    }

    /// Schedules another answer if the peer retransmits its handshake: it has not received the answer.
    fn answer_handshake(&mut self, handshake: &Handshake) {
        let is_retransmission = match self.role {
            Role::Client => false,
            Role::Listener => true,
            Role::Rendezvous => handshake.request != Request::Agreement,
        };
        if is_retransmission {
            self.handshakes_due = Self::ANSWERS;
        }
    }
}

/// UDT's moving average of a rate. The first report replaces the initial value; 0 means no report.
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
