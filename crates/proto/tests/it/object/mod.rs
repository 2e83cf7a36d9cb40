//! Tests of objects over simulated links in virtual time.

mod crowd;
mod drops;
mod figures;
mod host;
mod relays;
mod survival;
mod transfer;

use crate::udt::link;
use phoebus_proto::object::Shape;
use std::time::Duration;

/// Packets for an MTU of 1500, and chunks of 1 MiB.
const SHAPE: Shape = Shape {
    transfer: 7,
    packet_len: 1438,
    chunk_len: 1 << 20,
    ack_packets: 64,
    ack_interval: Duration::from_millis(10),
};
