//! What a transfer's owner and its thread share.

use super::super::path::Failure;
use super::super::port::Port;
use bytes::Bytes;
use phoebus_proto::object::Sender;
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) port: Port,
    pub(super) state: Mutex<State>,
    /// Datagrams get through, chunks have arrived, or the transfer has ended.
    pub(super) progress: Notify,
    pub(super) chunks: u64,
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) sender: Sender,
    /// The bytes of the chunks in flight, the first first.
    pub(super) chunks: VecDeque<Bytes>,
    /// Number of the first of these.
    pub(super) first: u64,
    /// The parity packets of the chunk that was last asked for some.
    pub(super) parity: Option<(u64, Vec<Vec<u8>>)>,
    /// When an acknowledgement last told of an arrival, or packets went out while none was in flight.
    pub(super) heard_at: Duration,
    /// Since when the peer has had no buffer for the next chunk.
    pub(super) starved_since: Option<Duration>,
    /// Whether datagrams get through.
    pub(super) is_open: bool,
    pub(super) failure: Option<Failure>,
    pub(super) stop: bool,
}

impl Shared {
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        // The state machine stays consistent even if a panic interrupted the holder.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Raises the credit, and returns whether it was less. A peer that gives some is not out of buffers.
    pub(super) fn raise_credit(&mut self, credit: u64) -> bool {
        let is_more = credit > self.sender.credit();
        if is_more {
            self.sender.raise_credit(credit);
            self.starved_since = None;
        }
        is_more
    }
}
