//! Totals since the gateway started.

use phoebus_proto::session::Code;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// Totals that only grow.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) connections: AtomicU64,
    pub(crate) opened: AtomicU64,
    pub(crate) clean: AtomicU64,
    pub(crate) failed: AtomicU64,
    pub(crate) bytes_up: AtomicU64,
    pub(crate) bytes_down: AtomicU64,
    /// Connections that ended before they requested a session: scans, garbage, slow clients.
    pub(crate) handshakes_failed: AtomicU64,
    /// Connections refused at once because too many handshakes were pending.
    pub(crate) handshakes_shed: AtomicU64,
    refusals: Mutex<BTreeMap<u16, u64>>,
}

/// Totals since the gateway started, at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Totals {
    /// Connections accepted.
    pub connections: u64,
    /// Sessions opened.
    pub sessions_opened: u64,
    /// Sessions that ended with all bytes delivered.
    pub sessions_clean: u64,
    /// Sessions that ended otherwise.
    pub sessions_failed: u64,
    /// Bytes from clients to destinations, of sessions that have ended.
    pub bytes_up: u64,
    /// Bytes from destinations to clients, of sessions that have ended.
    pub bytes_down: u64,
    /// Connections that ended before they requested a session.
    pub handshakes_failed: u64,
    /// Connections refused because too many handshakes were pending.
    pub handshakes_shed: u64,
    /// Refused sessions, by the number of their code (`docs/protocol/session.md` §7).
    pub refusals: BTreeMap<u16, u64>,
}

impl Counters {
    pub(crate) fn refused(&self, code: Code) {
        *self.refusals.lock().unwrap_or_else(PoisonError::into_inner).entry(code.number()).or_insert(0) += 1;
    }

    pub(crate) fn totals(&self) -> Totals {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Totals {
            connections: get(&self.connections),
            sessions_opened: get(&self.opened),
            sessions_clean: get(&self.clean),
            sessions_failed: get(&self.failed),
            bytes_up: get(&self.bytes_up),
            bytes_down: get(&self.bytes_down),
            handshakes_failed: get(&self.handshakes_failed),
            handshakes_shed: get(&self.handshakes_shed),
            refusals: self.refusals.lock().unwrap_or_else(PoisonError::into_inner).clone(),
        }
    }
}

/// Adds one.
pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}
