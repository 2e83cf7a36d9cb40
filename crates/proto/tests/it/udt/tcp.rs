//! Simulated TCP flows, and machines that carry them and UDT over the same links.
//!
//! A flow sends a given number of packets, or without end. Its loss recovery is ideal: simulated links keep the order
//! of packets, so that a receiver knows of every loss when the next packet arrives, and reports it in every
//! acknowledgement. Lost packets are not retransmitted, and do not count as delivered.

use super::bbr::Bbr;
use super::cubic::Cubic;
use super::host::Host;
use phoebus_wan::model::Packet;
use phoebus_wan::sim::{Datagram, Node, Port};
use std::collections::VecDeque;
use std::time::Duration;

/// A packet of either protocol.
pub(crate) enum Mixed {
    Udt(Datagram),
    Tcp(Segment),
}

/// A packet of flow `flow`.
pub(crate) struct Segment {
    flow: usize,
    body: Body,
}

/// The sender's state when a packet was sent. Its acknowledgement returns it.
#[derive(Clone, Copy, Default)]
pub(crate) struct Stamp {
    pub(crate) sent_at: Duration,
    /// Number of packets delivered before.
    pub(crate) delivered: u64,
    /// When the last of these was acknowledged.
    pub(crate) delivered_at: Duration,
}

enum Body {
    Data {
        number: u64,
        stamp: Stamp,
    },
    /// `arrived` packets before `end` have arrived. The stamp is that of the last one.
    Ack {
        end: u64,
        arrived: u64,
        stamp: Stamp,
    },
}

/// Payload of a full segment with time stamps, in bytes.
const PAYLOAD: u64 = 1448;

impl Packet for Mixed {
    fn segments(&self) -> u32 {
        1
    }

    fn segment_bytes(&self) -> u32 {
        match self {
            Mixed::Udt(datagram) => datagram.segment_bytes(),
            Mixed::Tcp(Segment { body: Body::Data { .. }, .. }) => 1500,
            Mixed::Tcp(Segment { body: Body::Ack { .. }, .. }) => 52,
        }
    }

    fn bytes(&self) -> u64 {
        self.segment_bytes().into()
    }

    fn split_off(&mut self, at: u32) -> Self {
        panic!("split of one segment at {at}")
    }
}

/// Congestion control of a flow.
pub(crate) enum Control {
    Cubic(Cubic),
    Bbr(Bbr),
}

/// The contents of an acknowledgement, for the congestion control.
pub(crate) struct AckInfo {
    /// Packets newly known to have arrived.
    pub(crate) arrived: u64,
    /// Packets newly known to be lost.
    pub(crate) lost: u64,
    pub(crate) rtt: Duration,
    pub(crate) stamp: Stamp,
    /// Total number of packets delivered.
    pub(crate) delivered: u64,
    /// Packets in flight.
    pub(crate) in_flight: u64,
    /// All packets before this number are known to have arrived or to be lost.
    pub(crate) seen: u64,
    /// Number of the next packet.
    pub(crate) next: u64,
}

/// The sender of a flow.
pub(crate) struct Sender {
    control: Control,
    pub(crate) starts_at: Duration,
    /// The number of the next packet. Of those before `seen`, `lost` are known to be lost, all others to have arrived.
    next: u64,
    seen: u64,
    lost: u64,
    /// Number of packets delivered.
    delivered: u64,
    /// When the last of these was acknowledged.
    delivered_at: Duration,
    paced_at: Duration,
    progress_at: Duration,
    /// Number of packets to send.
    limit: u64,
    /// When the last packet was known to have arrived or to be lost.
    pub(crate) ended_at: Option<Duration>,
}

impl Sender {
    const TIMEOUT: Duration = Duration::from_secs(1);

    pub(crate) fn new(control: Control, starts_at: Duration) -> Self {
        let (paced_at, progress_at, delivered_at) = (starts_at, starts_at, starts_at);
        let (next, seen, lost, delivered, limit, ended_at) = (0, 0, 0, 0, u64::MAX, None);
        Self { control, starts_at, next, seen, lost, delivered, delivered_at, paced_at, progress_at, limit, ended_at }
    }

    /// A flow with this number of packets to send.
    pub(crate) fn short(control: Control, starts_at: Duration, packets: u64) -> Self {
        Self { limit: packets, ..Self::new(control, starts_at) }
    }

    fn acknowledged(&mut self, now: Duration, end: u64, arrived: u64, stamp: Stamp) {
        if end <= self.seen {
            return;
        }
        let lost = end - arrived - self.lost;
        let count = (end - self.seen) - lost.min(end - self.seen);
        (self.seen, self.lost, self.progress_at, self.delivered_at) = (end, self.lost + lost, now, now);
        self.delivered = arrived;
        self.check_end(now);
        let (delivered, in_flight) = (arrived, self.next - end);
        let rtt = now - stamp.sent_at;
        let ack = AckInfo { arrived: count, lost, rtt, stamp, delivered, in_flight, seen: end, next: self.next };
        match &mut self.control {
            Control::Cubic(cubic) => cubic.acknowledged(now, &ack),
            Control::Bbr(bbr) => bbr.acknowledged(now, &ack),
        }
    }

    fn window(&self) -> f64 {
        match &self.control {
            Control::Cubic(cubic) => cubic.window(),
            Control::Bbr(bbr) => bbr.window(),
        }
    }

    fn check_end(&mut self, now: Duration) {
        if self.seen == self.limit {
            self.ended_at.get_or_insert(now);
        }
    }

    fn may_send(&self) -> bool {
        self.next < self.limit && ((self.next - self.seen) as f64) < self.window()
    }

    fn poll(&mut self, now: Duration, flow: usize) -> Option<Segment> {
        if self.seen < self.next && now >= self.progress_at + Self::TIMEOUT {
            (self.seen, self.progress_at) = (self.next, now);
            if let Control::Cubic(cubic) = &mut self.control {
                cubic.timed_out(self.next);
            }
            self.check_end(now);
        }
        if now < self.paced_at || !self.may_send() {
            return None;
        }
        if self.next == self.seen {
            (self.progress_at, self.delivered_at) = (now, now);
        }
        if let Control::Bbr(bbr) = &self.control {
            self.paced_at = self.paced_at.max(now.saturating_sub(Duration::from_millis(1))) + bbr.interval();
        }
        self.next += 1;
        let stamp = Stamp { sent_at: now, delivered: self.delivered, delivered_at: self.delivered_at };
        Some(Segment { flow, body: Body::Data { number: self.next - 1, stamp } })
    }

    fn next_wakeup(&self) -> Duration {
        if self.ended_at.is_some() {
            return Duration::MAX;
        }
        let timeout = if self.next == self.seen { self.starts_at } else { self.progress_at + Self::TIMEOUT };
        if self.may_send() { self.paced_at } else { timeout }
    }
}

/// The receiver of a flow.
#[derive(Default)]
struct Receiver {
    end: u64,
    arrived: u64,
    /// Packets that were not acknowledged yet.
    unacked: u32,
}

impl Receiver {
    /// Processes a packet. Acknowledges every second packet, and a packet after a gap at once.
    fn data(&mut self, number: u64, stamp: Stamp) -> Option<Body> {
        let gap = number != self.end;
        (self.end, self.arrived, self.unacked) = (number + 1, self.arrived + 1, self.unacked + 1);
        (gap || self.unacked >= 2).then(|| {
            self.unacked = 0;
            Body::Ack { end: self.end, arrived: self.arrived, stamp }
        })
    }
}

/// A machine with a UDT socket and TCP flows.
pub(crate) struct Machine {
    pub(crate) host: Host,
    pub(crate) senders: Vec<Sender>,
    receivers: Vec<Receiver>,
    outbox: VecDeque<Segment>,
}

impl Machine {
    pub(crate) fn new(host: Host) -> Self {
        Self { host, senders: vec![], receivers: vec![], outbox: VecDeque::new() }
    }

    /// Number of bytes received on a TCP flow.
    pub(crate) fn received(&self, flow: usize) -> u64 {
        self.receivers.get(flow).map_or(0, |receiver| receiver.arrived * PAYLOAD)
    }
}

impl Node for Machine {
    type Packet = Mixed;

    fn receive(&mut self, now: Duration, from: Port, packet: Mixed) {
        let Segment { flow, body } = match packet {
            Mixed::Udt(datagram) => return self.host.receive(now, from, datagram),
            Mixed::Tcp(segment) => segment,
        };
        match body {
            Body::Data { number, stamp } => {
                while self.receivers.len() <= flow {
                    self.receivers.push(Receiver::default());
                }
                let answer = self.receivers[flow].data(number, stamp);
                self.outbox.extend(answer.map(|body| Segment { flow, body }));
            }
            Body::Ack { end, arrived, stamp } => self.senders[flow].acknowledged(now, end, arrived, stamp),
        }
    }

    fn poll(&mut self, now: Duration) -> Option<(Port, Mixed)> {
        if let Some((port, datagram)) = self.host.poll(now) {
            return Some((port, Mixed::Udt(datagram)));
        }
        let mut senders = self.senders.iter_mut().enumerate();
        let segment = self.outbox.pop_front().or_else(|| senders.find_map(|(flow, sender)| sender.poll(now, flow)))?;
        Some((Port(0), Mixed::Tcp(segment)))
    }

    fn next_wakeup(&self) -> Option<Duration> {
        self.senders.iter().map(Sender::next_wakeup).chain(self.host.next_wakeup()).min()
    }
}
