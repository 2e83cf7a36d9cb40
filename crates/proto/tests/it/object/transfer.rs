//! Transfers that complete: under loss, reordering, duplication and damage.

use super::host::{Faults, Host, Pair};
use super::{SHAPE, link};
use phoebus_proto::control::{Factory, Fixed, KnownPath, Model, Resumed};
use phoebus_proto::object::SendConfig;
use std::time::Duration;

#[test]
fn transfers_complete_under_loss() {
    for (seed, loss) in ["0%", "0.1%", "1%", "5%", "10%", "30%"].into_iter().enumerate() {
        // What is known of the path is wrong by a factor of ten.
        let known = KnownPath { bits_per_second: 1_000_000_000, rtt: Duration::from_millis(100), loss_per_million: 0 };
        let controls: [&dyn Factory; 3] = [&Model, &Fixed { bits_per_second: 90_000_000 }, &Resumed { known }];
        for control in controls {
            let bytes = 20_000_000;
            let sender =
                Host::sends(SHAPE, SendConfig { seed: seed as u64, ..Default::default() }, control, (bytes, 64));
            let faults = Faults { duplicate: 0.001, corrupt: 0.001 };
            let receiver = Host::receives(SHAPE, 64, Duration::from_millis(5));
            let mut pair =
                Pair::new(sender.with(faults), receiver.with(faults), &link(seed as u64, "50ms", "100mbit", loss));
            pair.complete(Duration::from_secs(600));
            let (counters, received) = (pair.sending().sender.counters(), pair.receiving());
            let done = received.complete_at.unwrap().as_secs_f64();
            let waste = (counters.sent - counters.needed) as f64 / counters.needed as f64;
            println!(
                "{loss} {}: {:.1} Mbit/s, waste {:.2} %, {counters:?}",
                control.name(),
                bytes as f64 * 8e-6 / done,
                100.0 * waste
            );
            assert_eq!(received.bytes, bytes);
        }
    }
}
