//! Output: assembles the datagrams to send.

use super::{Connection, Open, State};
use crate::udt::packet::{self, Body, HEADER_LEN, Packet};
use crate::udt::send::Next;
use crate::udt::{IP_UDP_LEN, PAIR_EVERY};
use std::time::Duration;

/// Most packets sent together: the limit of UDP_SEGMENT in every Linux version that has it (4.18 and later).
const SEGMENTS_MAX: u32 = 64;

/// Datagrams to send to the peer, consecutive in the caller's buffer. At most 64, the limit of UDP_SEGMENT.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Transmit {
    /// Length of all datagrams together, in bytes.
    pub len: usize,
    /// Length of each datagram but the last, which may be shorter, in bytes: the segment size of UDP_SEGMENT.
    pub segment: usize,
    /// Whether the datagram probes the path MTU. It must not be fragmented, and the caller ignores the system's error
    /// that it is too long (EMSGSIZE).
    pub is_probe: bool,
}

impl Connection {
    /// Writes the datagrams that may be sent now into `buf`. A buffer for several packets is filled with as many data
    /// packets as the pace allows. A buffer shorter than a packet of the MSS gets no data packet. Call it until it
    /// returns `None`.
    pub fn poll_transmit(&mut self, now: Duration, buf: &mut [u8]) -> Option<Transmit> {
        let transmit = self.next_transmit(now, buf)?;
        self.last_sent = now;
        Some(transmit)
    }

    fn next_transmit(&mut self, now: Duration, buf: &mut [u8]) -> Option<Transmit> {
        let timestamp = now.saturating_sub(self.began).as_micros() as u32;
        match &mut self.state {
            State::Opening(opening) => {
                let max = buf.len() as u32 + IP_UDP_LEN;
                let mut requests = std::iter::from_fn(|| opening.poll(now));
                let outgoing = requests.find(|outgoing| outgoing.padded_to.is_none_or(|mss| mss <= max))?;
                let transmit = single(buf, timestamp, outgoing.destination, Body::Handshake(outgoing.request))?;
                let Some(mss) = outgoing.padded_to else { return Some(transmit) };
                let len = (mss - IP_UDP_LEN) as usize;
                buf[transmit.len..len].fill(0);
                Some(Transmit { len, segment: len, is_probe: true })
            }
            State::Closed { peer_socket, buffers, ack_due, shutdown_due, .. } => {
                let destination = *peer_socket;
                // The last acknowledgement precedes the shutdown: the peer may wait for it.
                if let Some(open) = buffers.as_ref().filter(|_| std::mem::take(ack_due)) {
                    return single(buf, timestamp, destination, open.receive.last_acknowledgement());
                }
                std::mem::take(shutdown_due).then(|| single(buf, timestamp, destination, Body::Shutdown))?
            }
            State::Open(open) if open.handshakes_due > 0 => {
                open.handshakes_due -= 1;
                let destination = open.peer_socket;
                let State::Open(open) = &self.state else { return None };
                single(buf, timestamp, destination, Body::Handshake(self.handshake_answer(open)))
            }
            State::Open(open) => {
                let destination = open.peer_socket;
                if let Some(number) = open.ack2.take() {
                    return single(buf, timestamp, destination, Body::Ack2 { number });
                }
                let list_max = buf.len().min(open.mss as usize - IP_UDP_LEN as usize);
                let list = buf.get_mut(HEADER_LEN..list_max)?;
                if let Some(len) = open.receive.loss_report(now, &self.rtt, list) {
                    let len = packet::nak_header(buf, len, timestamp, destination)?;
                    return Some(Transmit { len, segment: len, is_probe: false });
                }
                if let Some(body) = open.receive.acknowledgement(now, &self.rtt) {
                    return single(buf, timestamp, destination, body);
                }
                let limit = self.rate_limit;
                if let Some(transmit) = open.data(now, limit, timestamp, buf) {
                    return Some(transmit);
                }
                let idle = now >= self.last_sent + self.config.keep_alive;
                idle.then(|| single(buf, timestamp, destination, Body::KeepAlive))?
            }
        }
    }
}

impl Open {
    /// A batch of data packets of equal length, except that the last one may be shorter.
    fn data(&mut self, now: Duration, limit: Option<u64>, timestamp: u32, buf: &mut [u8]) -> Option<Transmit> {
        if let Some(body) = self.drop_due.take() {
            return single(buf, timestamp, self.peer_socket, body);
        }
        let pace = self.pace(limit);
        self.pacer.hasten(now, pace.interval);
        let (mut at, mut segment, mut count) = (0, 0, 0);
        while count < SEGMENTS_MAX && (self.in_pair || self.pacer.is_ready(now)) {
            let (index, len) = match self.send.peek(now, pace.window) {
                Some(Next::Packet { index, len }) => (index, len),
                Some(Next::Drop { message, first, last }) => {
                    self.drop_due = Some(Body::Drop { message, first, last });
                    break;
                }
                None => {
                    self.pacer.rest();
                    break;
                }
            };
            let size = HEADER_LEN + len;
            if at > 0 && size > segment || buf.len() < at + size {
                break;
            }
            segment = segment.max(size);
            let (seq, place, payload) = self.send.transmit(now, index);
            let body = Body::Data { seq, place, payload };
            let packet = Packet { timestamp, destination: self.peer_socket, body };
            at += packet.encode(&mut buf[at..])?;
            count += 1;
            let part = f64::from(size as u32 + IP_UDP_LEN) / f64::from(self.mss);
            self.pacer.charge(now, pace.interval, part);
            // The second packet of a pair follows the first at once. The pacer is charged for both.
            self.in_pair = seq.get().is_multiple_of(PAIR_EVERY) && self.send.has_next(pace.window);
            if size < segment {
                break;
            }
        }
        if at > 0 {
            return Some(Transmit { len: at, segment, is_probe: false });
        }
        single(buf, timestamp, self.peer_socket, self.drop_due.take()?)
    }
}

fn single(buf: &mut [u8], timestamp: u32, destination: u32, body: Body<'_>) -> Option<Transmit> {
    let len = Packet { timestamp, destination, body }.encode(buf)?;
    Some(Transmit { len, segment: len, is_probe: false })
}
