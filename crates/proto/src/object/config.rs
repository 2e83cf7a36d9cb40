//! What both ends of a transfer agree on.

use super::packet::{HEADER_LEN, INDEX_END};
use std::time::Duration;

/// The shape of a transfer, as HELLO gives it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Number of the transfer, the same in all its datagrams.
    pub transfer: u32,
    /// Bytes of a packet, without header and seal.
    pub packet_len: u32,
    /// Longest chunk, in bytes.
    pub chunk_len: u32,
    /// The receiver acknowledges after so many packets (L6).
    pub ack_packets: u32,
    /// The receiver acknowledges a packet after this time at the latest (L6).
    pub ack_interval: Duration,
}

/// A shape that cannot be used: the field, its value, and what was expected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field} is {value}; {expected} was expected")]
pub struct ShapeError {
    /// The field.
    pub field: &'static str,
    /// Its value.
    pub value: u64,
    /// What was expected.
    pub expected: String,
}

impl Shape {
    /// Shortest packet, in bytes: below it, headers outweigh data.
    pub const PACKET_MIN: u32 = 64;
    /// Longest packet, in bytes: what a UDP datagram over IPv4 holds, less header and a seal of 16 bytes.
    pub const PACKET_MAX: u32 = 65_507 - HEADER_LEN as u32 - 16;
    /// Longest chunk, in bytes.
    pub const CHUNK_MAX: u32 = 1 << 30;
    /// Shortest time to an acknowledgement that is not due by its packets.
    pub const ACK_INTERVAL_MIN: Duration = Duration::from_millis(1);
    /// Longest time to an acknowledgement.
    pub const ACK_INTERVAL_MAX: Duration = Duration::from_secs(1);

    /// Checks all bounds.
    ///
    /// # Errors
    /// The first field that is out of bounds.
    pub fn check(&self) -> Result<(), ShapeError> {
        let error = |field, value: u64, expected: String| Err(ShapeError { field, value, expected });
        let Self { packet_len, chunk_len, ack_packets, ack_interval, .. } = *self;
        if !(Self::PACKET_MIN..=Self::PACKET_MAX).contains(&packet_len) {
            let expected = format!("from {} to {} bytes", Self::PACKET_MIN, Self::PACKET_MAX);
            return error("packet", packet_len.into(), expected);
        }
        let most = Self::CHUNK_MAX.min(packet_len.saturating_mul(INDEX_END - 1));
        if !(packet_len..=most).contains(&chunk_len) {
            return error(
                "chunk",
                chunk_len.into(),
                format!("from the size of a packet, {packet_len}, to {most} bytes"),
            );
        }
        if ack_packets == 0 {
            return error("ack", 0, "one packet or more".to_owned());
        }
        if !(Self::ACK_INTERVAL_MIN..=Self::ACK_INTERVAL_MAX).contains(&ack_interval) {
            let millis = u64::try_from(ack_interval.as_millis()).unwrap_or(u64::MAX);
            let [least, most] = [Self::ACK_INTERVAL_MIN, Self::ACK_INTERVAL_MAX].map(|limit| limit.as_millis());
            return error("ack interval", millis, format!("from {least} to {most} ms"));
        }
        Ok(())
    }

    /// Number of packets of the longest chunk.
    pub fn chunk_packets(&self) -> u32 {
        self.chunk_len.div_ceil(self.packet_len.max(1))
    }
}
