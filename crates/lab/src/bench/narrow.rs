//! The link between the gateways as a bottleneck or a circuit: its capacity, and its counters (S25, S32).

use super::bed::Bed;
use super::results::Metric;
use phoebus_net::wire;
use phoebus_proto::units::{BitRate, ByteSize, Span};
use phoebus_wan::model::{Direction, DirectionCounters, DirectionUpdate, Rate};
use std::num::NonZeroU64;
use std::time::Instant;

/// The link.
const LINK: &str = "wan";

/// Bits per second that the link delivered, including all headers and framing.
pub(super) const ON_LINK: Metric = Metric { name: "on the link", unit: "Mbit/s" };
/// Segments dropped for lack of room in the link's queue, in per cent of those that arrived at it.
pub(super) const OVERFLOW: Metric = Metric { name: "overflow", unit: "%" };

/// Gives the link between the gateways this capacity, and a queue of one round trip.
pub(super) fn narrow(bed: &Bed, rate: BitRate, rtt: Span) -> anyhow::Result<()> {
    let queue = (rate.0 as f64 / 8.0 * rtt.0.as_secs_f64()) as u64;
    let update = DirectionUpdate {
        rate: NonZeroU64::new(rate.0).map(Rate::Limited),
        queue: Some(ByteSize(queue.max(64 << 10))),
        ..DirectionUpdate::default()
    };
    let link = bed.testbed.link(LINK)?;
    [Direction::Forward, Direction::Backward].into_iter().for_each(|direction| link.update(direction, &update));
    Ok(())
}

/// The maximum goodput of TCP over an Ethernet link of `rate`, with packets of 1500 bytes, each with 1448 bytes of
/// data.
pub(super) fn goodput(rate: BitRate) -> f64 {
    rate.0 as f64 / 1e6 * 1448.0 / (1500 + wire::FRAMING) as f64
}

/// The counters of the link from `pg1` to `pg2` at one time.
#[derive(Debug, Clone, Copy)]
pub(super) struct LinkCounters {
    at: Instant,
    counters: DirectionCounters,
}

impl LinkCounters {
    /// The current counters.
    pub(super) fn now(bed: &Bed) -> anyhow::Result<Self> {
        Ok(Self { at: Instant::now(), counters: bed.testbed.link(LINK)?.counters().forward })
    }

    /// Mbit/s that arrived at the link since `before`, delivered or not.
    pub(super) fn entered_since(&self, before: &Self) -> f64 {
        self.per_second(before, self.counters.entered.bytes - before.counters.entered.bytes)
    }

    /// Mbit/s that the link delivered since `before`.
    pub(super) fn delivered_since(&self, before: &Self) -> f64 {
        self.per_second(before, self.counters.delivered.bytes - before.counters.delivered.bytes)
    }

    /// The share that did not fit in the queue since `before`, in per cent.
    pub(super) fn overflow_since(&self, before: &Self) -> f64 {
        let dropped = self.counters.queue_drops.segments - before.counters.queue_drops.segments;
        let all = self.counters.entered.segments - before.counters.entered.segments;
        100.0 * dropped as f64 / all.max(1) as f64
    }

    fn per_second(&self, before: &Self, bytes: u64) -> f64 {
        let seconds = self.at.saturating_duration_since(before.at).as_secs_f64();
        bytes as f64 * 8e-6 / seconds.max(1e-9)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use phoebus_wan::model::Amount;
    use std::time::Duration;

    #[test]
    fn rates_are_differences_of_counters() {
        let at = Instant::now();
        let counters = |bytes, segments, drops| DirectionCounters {
            entered: Amount { segments, bytes },
            delivered: Amount { segments: segments - drops, bytes: bytes / 2 },
            queue_drops: Amount { segments: drops, bytes: 0 },
            ..DirectionCounters::default()
        };
        let before = LinkCounters { at, counters: counters(1000, 10, 0) };
        let after = LinkCounters { at: at + Duration::from_secs(2), counters: counters(2_501_000, 110, 25) };
        assert!((after.entered_since(&before) - 10.0).abs() < 1e-9);
        assert!((after.delivered_since(&before) - 5.0).abs() < 1e-9);
        assert!((after.overflow_since(&before) - 25.0).abs() < 1e-9);
    }

    #[test]
    fn goodput_is_less_than_the_links_rate() {
        assert!((goodput(BitRate(500_000_000)) - 470.7).abs() < 0.1);
    }
}
