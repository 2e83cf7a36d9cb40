//! The circumstances of a throughput measurement.

use crate::bench::engine::Label;
use crate::bench::wan::percent;
use phoebus_proto::units::{Probability, Span};
use phoebus_wan::model::Rate;

/// The circumstances of a measurement.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Point {
    pub(super) rate: Rate,
    pub(super) loss: Probability,
    pub(super) rtt: Span,
}

impl Point {
    /// Its label.
    pub(super) fn label(&self) -> Label {
        let (loss, rate) = (percent(self.loss), self.rate);
        Label::new(format!("{} {loss} {rate}", self.rtt), format!("{}, loss {loss}, {rate}", self.rtt))
    }

    /// Parses the identifier of a label.
    pub(super) fn read(id: &str) -> Option<Self> {
        let mut words = id.split(' ');
        let mut next = || words.next();
        Some(Self { rtt: next()?.parse().ok()?, loss: next()?.parse().ok()?, rate: next()?.parse().ok()? })
    }

    /// The sort key of the rate.
    pub(super) fn rate_key(&self) -> u64 {
        match self.rate {
            Rate::Unlimited => u64::MAX,
            Rate::Limited(bits) => bits.get(),
        }
    }
}
