//! Limits on concurrent connections and sessions, and detection of duplicate sessions (P25, invariant 7).

use crate::config::Limits;
use crate::handshake_slots::{HandshakeSlot, HandshakeSlots};
use crate::replay::ReplayFilter;
use crate::slots::{Full, Slot, SlotCounter};
use std::net::IpAddr;
use std::sync::Arc;
use tokio::sync::Notify;

/// The counters for the admission of connections and sessions.
#[derive(Debug, Default)]
pub(crate) struct Admission {
    /// All accepted connections.
    pub(crate) connections: Arc<SlotCounter>,
    /// Connections that have not requested a session yet.
    pub(crate) handshakes: Arc<HandshakeSlots>,
    /// Clients' connections that are kept between sessions.
    clients: Arc<SlotCounter>,
    /// Sessions, from their request on.
    pub(crate) sessions: Arc<SlotCounter>,
    /// Identifiers of recent sessions.
    pub(crate) seen: ReplayFilter,
    /// Connections of hops, without the first of each.
    additional_connections: Arc<SlotCounter>,
}

impl Admission {
    /// A slot for a connection, for as long as it is open. Connections are counted without a limit.
    pub(crate) fn connection(&self, from: IpAddr) -> Option<Slot> {
        self.connections.take(from, u32::MAX, u32::MAX).ok()
    }

    /// A slot for a connection that has not requested a session yet. A peer opens many, so there is no limit for its
    /// address. If there is no room, one that waits and `gives_way` does.
    pub(crate) fn handshake(
        &self,
        limits: &Limits,
        from: IpAddr,
        is_peer: bool,
        gives_way: Option<Arc<Notify>>,
    ) -> Result<HandshakeSlot, Full> {
        let per_source = if is_peer { u32::MAX } else { limits.handshakes_per_source.get() };
        self.handshakes.take(from, (limits.handshakes.get(), per_source), gives_way)
    }

    /// A slot for a client's connection that is kept between sessions, if there is room.
    pub(crate) fn client(&self, limits: &Limits, from: IpAddr) -> Option<Slot> {
        self.clients.take(from, limits.clients, limits.clients_per_source).ok()
    }

    /// Slots for up to `most` more connections of a session of `source`, within `total` for all sources. No source gets
    /// more than half of the total.
    pub(crate) fn additional_connections(&self, source: IpAddr, total: u32, most: u16) -> Vec<Slot> {
        let per_source = total.div_ceil(2);
        (0..most).map_while(|_| self.additional_connections.take(source, total, per_source).ok()).collect()
    }
}
