//! Gateways joined by a path that loses and reorders packets: every byte arrives, in order (S22).

use crate::support;
use support::path::{Path, transfer};

#[test]
fn quic_survives_loss_and_reordering() {
    survives("quic");
}

#[test]
fn udt_survives_loss_and_reordering() {
    survives("udt");
}

fn survives(transport: &str) {
    let path = Path::by(transport, "");
    path.until_ready(transport, 1);
    path.lose_and_reorder();
    transfer(path.session(), 96, || {});
    let counters = path.testbed.link("wan").unwrap().counters();
    assert!(counters.forward.random_drops.segments > 100, "nothing was lost: {counters:?}");
}
