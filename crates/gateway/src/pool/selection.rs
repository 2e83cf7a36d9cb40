//! How new connections to a peer are made.

use crate::choose::Decision;
use phoebus_net::Profile;
use std::sync::Arc;
use std::time::Instant;

/// The settings of new connections.
#[derive(Debug)]
pub(crate) struct Selection {
    /// Index of the transport in the pool's `transports`.
    pub(super) transport_index: usize,
    pub(super) profile: Arc<Profile>,
    /// The reason, if `auto` chose.
    pub(super) decision: Option<Decision>,
    /// What session reports say about it.
    pub(super) note: Option<Box<str>>,
    pub(super) since: Instant,
}

impl Selection {
    /// The configured settings.
    pub(super) fn configured(profile: Arc<Profile>) -> Self {
        Self { transport_index: 0, profile, decision: None, note: None, since: Instant::now() }
    }

    /// Whether connections made with either are interchangeable.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        let like = |chosen: &Self| (chosen.transport_index, chosen.profile.congestion_control);
        like(self) == like(other)
    }
}
