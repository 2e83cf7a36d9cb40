//! Neighbours: flows of TCP, and what carries them and UDT over the same links.
//!
//! The flows send without end, or a few packets, and their loss recovery is ideal: links here keep the order of packets, so that a receiver
//! knows of every loss when the next packet arrives, and says so in every acknowledgement. What is lost is not sent again,
//! but nor is it counted.

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

/// What a packet knows of the time when it was sent, and its acknowledgement says again.
#[derive(Clone, Copy, Default)]
pub(crate) struct Stamp {
    pub(crate) sent_at: Duration,
    /// Packets that had arrived by then, and when the last of them did.
    pub(crate) delivered: u64,
    pub(crate) delivered_at: Duration,
}

enum Body {
    Data {
        number: u64,
        stamp: Stamp,
    },
    /// All before `end` that have arrived are so many; the last of them is stamped.
    Ack {
        end: u64,
        arrived: u64,
        stamp: Stamp,
    },
}

/// What a full segment carries, with time stamps.
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

/// How a flow is controlled.
pub(crate) enum Control {
    Cubic(Cubic),
    Bbr(Bbr),
}

/// What an acknowledgement says.
pub(crate) struct News {
    pub(crate) arrived: u64,
    pub(crate) lost: u64,
    pub(crate) rtt: Duration,
    pub(crate) stamp: Stamp,
    /// Packets that have arrived so far, and that are still under way.
    pub(crate) delivered: u64,
    pub(crate) under_way: u64,
    /// All packets before this number are accounted for, and `next` is that of the next packet.
    pub(crate) seen: u64,
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
    /// Packets that have arrived, and when the last of them did.
    delivered: u64,
    delivered_at: Duration,
    paced_at: Duration,
    progress_at: Duration,
    /// Packets that there are to send.
    limit: u64,
    /// When the last of them was accounted for.
    pub(crate) ended_at: Option<Duration>,
}

impl Sender {
    const TIMEOUT: Duration = Duration::from_secs(1);

    pub(crate) fn new(control: Control, starts_at: Duration) -> Self {
        let (paced_at, progress_at, delivered_at) = (starts_at, starts_at, starts_at);
        let (next, seen, lost, delivered, limit, ended_at) = (0, 0, 0, 0, u64::MAX, None);
        Self { control, starts_at, next, seen, lost, delivered, delivered_at, paced_at, progress_at, limit, ended_at }
    }

    /// One that has so many packets to send.
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
        self.look_for_the_end(now);
        let (delivered, under_way) = (arrived, self.next - end);
        let rtt = now - stamp.sent_at;
        let news = News { arrived: count, lost, rtt, stamp, delivered, under_way, seen: end, next: self.next };
        match &mut self.control {
            Control::Cubic(cubic) => cubic.acknowledged(now, &news),
            Control::Bbr(bbr) => bbr.acknowledged(now, &news),
        }
    }

    fn window(&self) -> f64 {
        match &self.control {
            Control::Cubic(cubic) => cubic.window(),
            Control::Bbr(bbr) => bbr.window(),
        }
    }

    fn look_for_the_end(&mut self, now: Duration) {
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
            self.look_for_the_end(now);
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
        let silent = if self.next == self.seen { self.starts_at } else { self.progress_at + Self::TIMEOUT };
        if self.may_send() { self.paced_at } else { silent }
    }
}

/// The receiver of a flow.
#[derive(Default)]
struct Receiver {
    end: u64,
    arrived: u64,
    /// Packets that no acknowledgement has told of.
    fresh: u32,
}

impl Receiver {
    /// Takes a packet, and acknowledges every second one, and those behind a gap at once.
    fn data(&mut self, number: u64, stamp: Stamp) -> Option<Body> {
        let gap = number != self.end;
        (self.end, self.arrived, self.fresh) = (number + 1, self.arrived + 1, self.fresh + 1);
        (gap || self.fresh >= 2).then(|| {
            self.fresh = 0;
            Body::Ack { end: self.end, arrived: self.arrived, stamp }
        })
    }
}

/// A machine with a UDT socket, and with TCP beside it.
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

    /// Bytes that have arrived on each flow of TCP.
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
