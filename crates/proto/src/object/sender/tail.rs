//! The tail of a transfer, when every packet was sent once: parity packets if the loss of the path is known, and otherwise
//! repetitions.

use super::super::packet::{Header, Kind, PacketNumber};
use super::super::parity::{self, ParityNumber};
use super::{Sender, Transmit};
use std::collections::VecDeque;
use std::time::Duration;

impl Sender {
    /// Packets that have to be sent before their loss says what will be lost at the tail.
    const LOSS_KNOWN_FROM: u64 = 500;
    /// Parity packets, as a fraction of all packets, and of any transfer.
    const PARITY_BUDGET: f64 = 0.01;
    const PARITY_MIN: usize = 32;
    /// Repetitions at the tail of any transfer, however short.
    const REPEATS_MIN: u64 = 8;

    /// Decides which parity packets are sent, when every packet was sent once: so many that the packets in flight will most
    /// likely need no repair.
    pub(super) fn plan_parity(&mut self) {
        if self.parity.is_some() || !self.config.parity || !self.has_sent_all() {
            return;
        }
        let mut planned = VecDeque::new();
        let loss = self.loss();
        if loss > 0.0 && parity::is_possible(self.shape.packet_len) {
            let budget = (self.counters.needed as f64 * Self::PARITY_BUDGET) as usize + Self::PARITY_MIN;
            for (chunk, packets, missing) in self.chunks.open() {
                let expected = f64::from(missing) * loss;
                let of = (expected + 3.0 * expected.sqrt()).ceil() as u32;
                // The receiver knows the longest chunk only.
                let most = parity::most(packets).min(parity::most(self.shape.chunk_packets()));
                let of = of.min(most).min(budget.saturating_sub(planned.len()) as u32);
                planned.extend((0..of).map(|number| (chunk, ParityNumber { number, of })));
            }
        }
        self.parity = Some(planned);
    }

    /// The share of packets that are lost, as far as known. Packets that were sent within the last round trip are not judged
    /// yet.
    pub(super) fn loss(&self) -> f64 {
        let judged = self.counters.sent.saturating_sub(u64::from(self.log.in_flight()));
        if judged < Self::LOSS_KNOWN_FROM {
            return self.config.known_loss;
        }
        self.counters.lost as f64 / judged as f64
    }

    /// The next parity packet of a chunk that has not arrived meanwhile.
    pub(super) fn next_parity(&mut self) -> Option<(u64, ParityNumber)> {
        let parity = self.parity.as_mut()?;
        while parity.pop_front_if(|(chunk, _)| !self.chunks.is_open(*chunk)).is_some() {}
        parity.pop_front()
    }

    pub(super) fn transmit_parity(&mut self, now: Duration, chunk: u64, number: ParityNumber) -> Transmit {
        let packet = PacketNumber { chunk, index: number.to_index() };
        let transmission = self.log.end();
        self.log.push(packet, self.control.sent_beside(now));
        self.log.close(transmission);
        self.counters.sent += 1;
        self.counters.parity += 1;
        let header = Header { kind: Kind::Parity, transfer: self.shape.transfer, transmission, packet };
        Transmit { header, offset: 0, len: self.shape.packet_len as usize }
    }

    /// Whether this is the tail, there is no parity for it, and the budget is not used up.
    pub(super) fn may_repeat(&self) -> bool {
        if self.counters.parity > 0 {
            return false;
        }
        let budget = (self.counters.needed as f64 * self.config.tail_budget) as u64;
        self.is_finished && self.counters.repeats < budget.max(Self::REPEATS_MIN)
    }
}
