//! Datagrams of one flow that leave with one system call (UDP_SEGMENT).

use super::flow::Flow;
use crate::datagram::{Route, Sent, Socket};
use std::sync::Arc;

/// Most datagrams of a batch: what the kernel segments at once.
const DATAGRAMS_MAX: usize = 64;
/// Most bytes of a batch: the payload of the largest IPv4 packet.
const BYTES_MAX: usize = 65_507;

/// Where a batch goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    Up,
    Down,
}

/// Datagrams that go to the same neighbour, all of the same length but the last, which may be shorter.
#[derive(Debug, Default)]
pub(super) struct Batch {
    bytes: Vec<u8>,
    /// Length of its datagrams.
    segment: usize,
    count: usize,
    /// Bytes of datagrams in it, without their prefixes.
    content: usize,
    /// Whether the last one was shorter, so that no other can follow.
    is_closed: bool,
    target: Option<(Arc<Flow>, Direction)>,
}

impl Batch {
    /// Adds a datagram with its prefix. Sends what was there before if the two cannot go together.
    pub(super) fn push(
        &mut self,
        (flow, direction): (&Arc<Flow>, Direction),
        prefix: &[u8],
        datagram: &[u8],
        listeners: &[Socket],
    ) {
        let len = prefix.len() + datagram.len();
        let is_same = self.target.as_ref().is_some_and(|(other, way)| Arc::ptr_eq(other, flow) && *way == direction);
        let fits = is_same
            && !self.is_closed
            && len <= self.segment
            && self.count < DATAGRAMS_MAX
            && self.bytes.len() + len <= BYTES_MAX;
        if !fits {
            self.send(listeners);
            (self.segment, self.target) = (len, Some((flow.clone(), direction)));
        }
        self.bytes.extend_from_slice(prefix);
        self.bytes.extend_from_slice(datagram);
        self.count += 1;
        self.content += datagram.len();
        self.is_closed = len < self.segment;
    }

    /// Sends the batch. As in a router, what the socket has no room for is lost; the two ends know how to repair that.
    pub(super) fn send(&mut self, listeners: &[Socket]) {
        if let Some((flow, direction)) = self.target.take() {
            let sent = match direction {
                Direction::Up => flow.socket.send(Route { to: flow.to(), from: None }, &self.bytes, self.segment),
                Direction::Down => match flow.client() {
                    Some((to, from)) => listeners[flow.listener].send(Route { to, from }, &self.bytes, self.segment),
                    None => Sent::Full,
                },
            };
            let is_up = direction == Direction::Up;
            match sent {
                Sent::Gone => flow.count(is_up, self.count, self.content),
                _ => flow.count_dropped(is_up, self.count),
            }
        }
        self.bytes.clear();
        (self.count, self.content, self.is_closed) = (0, 0, false);
    }
}
