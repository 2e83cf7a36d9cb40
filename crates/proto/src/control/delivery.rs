//! Delivery rate at the sender, estimated as in draft-cheng-iccrg-delivery-rate-estimation. The estimate tolerates
//! cumulative acknowledgements that stall for a round trip and then jump, as UDT's do after every loss.
//!
//! A packet counts as delivered as soon as its arrival is known. Loss reports imply the arrival of packets around a
//! gap, long before an acknowledgement covers them. Retransmissions do not count, because their time of arrival is not
//! known.

use super::DeliverySample;
use std::time::Duration;

/// The state of the estimator when a packet was sent, stored with the packet.
#[derive(Debug, Clone, Copy, Default)]
pub struct Snapshot {
    /// When the packet was sent.
    pub sent_at: Duration,
    delivered: u64,
    delivered_at: Duration,
    first_sent_at: Duration,
    app_limited: bool,
}

/// The estimator.
#[derive(Debug, Default)]
pub struct Delivery {
    delivered: u64,
    delivered_at: Duration,
    first_sent_at: Duration,
    /// Packets sent before this many were delivered are application-limited: their samples do not show the path's rate.
    app_limited_until: u64,
}

impl Delivery {
    /// Records the sending of a packet. `idle` means that no other packet is in flight.
    pub fn sent(&mut self, now: Duration, idle: bool) -> Snapshot {
        if idle {
            (self.delivered_at, self.first_sent_at) = (now, now);
        }
        Snapshot {
            sent_at: now,
            delivered: self.delivered,
            delivered_at: self.delivered_at,
            first_sent_at: self.first_sent_at,
            app_limited: self.delivered < self.app_limited_until,
        }
    }

    /// Records the delivery of `count` packets. `newest` belongs to the one that was sent last.
    pub fn acknowledged(&mut self, now: Duration, count: u32, newest: &Snapshot) -> DeliverySample {
        self.delivered += u64::from(count);
        self.delivered_at = now;
        self.first_sent_at = newest.sent_at;
        let sending = newest.sent_at.saturating_sub(newest.first_sent_at);
        DeliverySample {
            delivered: u32::try_from(self.delivered - newest.delivered).unwrap_or(u32::MAX),
            interval: now.saturating_sub(newest.delivered_at).max(sending),
            delivered_before: newest.delivered,
            app_limited: newest.app_limited,
        }
    }

    /// Records the delivery of `count` packets of which it is not known which transmission has arrived: they give no sample.
    pub fn arrived_late(&mut self, count: u32) {
        self.delivered += u64::from(count);
    }

    /// Records that the application has no more data to send while the window is open and `in_flight` packets are in
    /// flight. Packets sent next are limited, too, until the first of them is delivered: their number shows how much
    /// data the application had, and not the rate of the path.
    pub fn app_limited(&mut self, in_flight: u32) {
        self.app_limited_until = self.delivered + u64::from(in_flight) + 1;
    }

    /// Number of packets delivered since the connection began.
    pub fn delivered(&self) -> u64 {
        self.delivered
    }
}

impl Snapshot {
    /// Whether this packet was sent after `other`, by the delivery count at that time and then by time.
    pub fn is_newer(&self, other: &Self) -> bool {
        (self.delivered, self.sent_at) >= (other.delivered, other.sent_at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn acknowledgement_jump_after_a_loss_does_not_raise_the_rate() {
        // One packet per ms, round trip 50 ms. Packet 100 is lost, and its retransmission is acknowledged at 201 ms.
        let mut delivery = Delivery::default();
        let mut snapshots = vec![];
        for n in 0..202u64 {
            if (50..150).contains(&n) {
                delivery.acknowledged(ms(n), 1, &snapshots[n as usize - 50]);
            }
            if n == 201 {
                let sample = delivery.acknowledged(ms(n), 51, &snapshots[150]);
                assert_eq!((sample.delivered, sample.interval), (51, ms(52)));
            }
            snapshots.push(delivery.sent(ms(n), n == 0));
        }
        assert_eq!(delivery.delivered(), 151);
    }

    #[test]
    fn application_limited_samples_are_marked() {
        let mut delivery = Delivery::default();
        let first = delivery.sent(ms(0), true);
        delivery.app_limited(1);
        let second = delivery.sent(ms(1), false);
        delivery.app_limited(2);
        assert!(!delivery.acknowledged(ms(9), 1, &first).app_limited);
        assert!(delivery.acknowledged(ms(10), 1, &second).app_limited);
        // After an idle period, packets sent together are application-limited.
        let flight = [11, 12, 13].map(|at| delivery.sent(ms(at), at == 11));
        assert!(delivery.acknowledged(ms(20), 1, &flight[0]).app_limited);
        let next = delivery.sent(ms(20), false);
        assert!(delivery.acknowledged(ms(21), 2, &flight[2]).app_limited);
        assert!(!delivery.acknowledged(ms(29), 1, &next).app_limited);
    }
}
