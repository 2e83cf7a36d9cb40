//! Tests of UDT over simulated links in virtual time.

mod bbr;
mod cubic;
mod damage;
mod figures;
mod host;
mod hostile;
mod messages;
mod neighbours;
mod opening;
mod survival;
mod tcp;
mod tiny;
mod transfer;

use phoebus_wan::model::{DirectionConfig, LinkConfig};

/// A link with equal properties in both directions.
pub(crate) fn link(seed: u64, delay: &str, rate: &str, loss: &str) -> LinkConfig {
    let (delay, rate, loss) = (delay.parse().unwrap(), rate.parse().unwrap(), loss.parse().unwrap());
    LinkConfig::symmetric(seed, DirectionConfig { delay, rate, loss, ..Default::default() })
}
