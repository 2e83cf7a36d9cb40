//! How fast packets are delivered, as the sender sees it: the estimator of draft-cheng-iccrg-delivery-rate-estimation, which
//! survives acknowledgements that stand still for a round trip and then jump, as UDT's do behind every loss. A packet counts
//! as delivered when it is known to have arrived: loss reports tell of those behind a gap, long before an acknowledgement.
//! Repairs do not count: when they arrived is not known.

use crate::udt::control::DeliverySample;
use std::time::Duration;

/// What a packet remembers of the time when it was sent.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Snapshot {
    pub(super) sent_at: Duration,
    delivered: u64,
    delivered_at: Duration,
    first_sent_at: Duration,
    app_limited: bool,
}

/// The estimator.
#[derive(Debug, Default)]
pub(super) struct Delivery {
    delivered: u64,
    delivered_at: Duration,
    first_sent_at: Duration,
    /// Samples of packets sent before so many were delivered show what the application had, not what the path gave.
    app_limited_until: u64,
}

impl Delivery {
    /// A packet goes; `idle` if none is under way.
    pub(super) fn sent(&mut self, now: Duration, idle: bool) -> Snapshot {
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

    /// `count` packets were delivered, of which `newest` was sent last.
    pub(super) fn acknowledged(&mut self, now: Duration, count: u32, newest: &Snapshot) -> DeliverySample {
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

    /// There is nothing to send though it might go, with `under_way` packets on their way. What goes next is limited, too, until
    /// the first of it is delivered: it shows how much there was at once, and not what the path carries.
    pub(super) fn app_limited(&mut self, under_way: u32) {
        self.app_limited_until = self.delivered + u64::from(under_way) + 1;
    }

    /// Packets delivered since the connection began.
    pub(super) fn delivered(&self) -> u64 {
        self.delivered
    }
}

impl Snapshot {
    /// Whether this packet was sent after `other`, as far as deliveries show.
    pub(super) fn is_newer(&self, other: &Self) -> bool {
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
    fn a_jump_after_a_loss_is_no_burst() {
        // One packet per millisecond, 50 ms of round trip; packet 100 is lost, and its repair acknowledged at 201 ms.
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
    fn what_the_application_limits_is_marked() {
        let mut delivery = Delivery::default();
        let first = delivery.sent(ms(0), true);
        delivery.app_limited(1);
        let second = delivery.sent(ms(1), false);
        delivery.app_limited(2);
        assert!(!delivery.acknowledged(ms(9), 1, &first).app_limited);
        assert!(delivery.acknowledged(ms(10), 1, &second).app_limited);
        // After an idle time, as many as come at once say no more.
        let flight = [11, 12, 13].map(|at| delivery.sent(ms(at), at == 11));
        assert!(delivery.acknowledged(ms(20), 1, &flight[0]).app_limited);
        let next = delivery.sent(ms(20), false);
        assert!(delivery.acknowledged(ms(21), 2, &flight[2]).app_limited);
        assert!(!delivery.acknowledged(ms(29), 1, &next).app_limited);
    }
}
