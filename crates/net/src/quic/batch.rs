//! Collects datagrams to hand to the kernel in one call (UDP segmentation offload).
//!
//! quinn passes ten datagrams at a time, and many times in a row when it sends fast. The kernel accepts about
//! forty at a time, up to a full IPv4 packet. Most of the cost of sending is per call: the system call,
//! route, buffers, and the packet's path through the host, which it takes in one piece until the interface
//! segments it.

use quinn::udp::{EcnCodepoint, Transmit};
use std::net::{IpAddr, SocketAddr};

/// The properties that datagrams of one batch share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct BatchPath {
    destination: SocketAddr,
    ecn: Option<EcnCodepoint>,
    src_ip: Option<IpAddr>,
    segment: usize,
}

/// A batch; see the module documentation.
#[derive(Debug, Default)]
pub(super) struct Batch {
    way: Option<BatchPath>,
    bytes: Vec<u8>,
}

impl Batch {
    /// Adds `transmit` if it matches the batch and the total stays within `most` bytes. A single datagram is
    /// never added: it is urgent, or the last for now.
    pub(super) fn add(&mut self, transmit: &Transmit<'_>, most: usize) -> bool {
        let Some(segment) = transmit.segment_size.filter(|segment| *segment < transmit.contents.len()) else {
            return false;
        };
        let &Transmit { destination, ecn, src_ip, contents, .. } = transmit;
        let way = BatchPath { destination, ecn, src_ip, segment };
        // Only the last datagram may be shorter than the others.
        let fits = self.bytes.len().is_multiple_of(segment) && self.bytes.len() + contents.len() <= most;
        if !fits || self.way.is_some_and(|this| this != way) {
            return false;
        }
        self.way = Some(way);
        self.bytes.extend_from_slice(contents);
        true
    }

    /// The collected datagrams, if any.
    pub(super) fn transmit(&self) -> Option<Transmit<'_>> {
        let BatchPath { destination, ecn, src_ip, segment } = self.way?;
        Some(Transmit { destination, ecn, contents: &self.bytes, segment_size: Some(segment), src_ip })
    }

    /// Empties the batch.
    pub(super) fn clear(&mut self) {
        self.way = None;
        self.bytes.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn transmit(contents: &[u8], segment: usize) -> Transmit<'_> {
        let destination = SocketAddr::from(([127, 0, 0, 1], 1));
        Transmit { destination, ecn: None, contents, segment_size: Some(segment), src_ip: None }
    }

    #[test]
    fn datagrams_of_one_destination_and_size_are_batched() {
        let mut batch = Batch::default();
        assert!(batch.transmit().is_none());
        assert!(batch.add(&transmit(&[1; 3000], 1000), 10_000));
        assert!(!batch.add(&transmit(&[2; 2400], 1200), 10_000), "another size");
        let elsewhere = Transmit { destination: SocketAddr::from(([127, 0, 0, 1], 2)), ..transmit(&[2; 2000], 1000) };
        assert!(!batch.add(&elsewhere, 10_000));
        assert!(!batch.add(&transmit(&[2; 1000], 1000), 10_000), "a single one");
        assert!(batch.add(&transmit(&[2; 2500], 1000), 10_000));
        assert!(!batch.add(&transmit(&[3; 2000], 1000), 10_000), "behind a short one");
        let all = batch.transmit().unwrap();
        assert_eq!((all.contents.len(), all.segment_size), (5500, Some(1000)));
        batch.clear();
        assert!(batch.transmit().is_none());
        assert!(batch.add(&elsewhere, 10_000));
        assert!(!batch.add(&elsewhere, 3000), "too much");
    }
}
