//! The resources that carry the bytes of all sessions: threads, pipes, and promised rates.

use crate::config::Config;
use crate::reserve::{ReservationRules, Reservations};
use crate::workers::Workers;
use phoebus_net::PipePool;
use phoebus_net::datagram_relay::DatagramRelay;
use std::sync::Arc;

/// The shared resources that carry sessions.
#[derive(Debug)]
pub(crate) struct DataPlane {
    pub(crate) workers: Arc<Workers>,
    /// For splicing.
    pub(crate) pipes: Arc<PipePool>,
    pub(crate) reservations: Arc<Reservations>,
    /// For datagrams beside sessions.
    pub(crate) datagrams: Option<DatagramRelay>,
}

impl DataPlane {
    /// At most `pipes` pipes, of the capacity in `config`.
    pub(crate) fn new(config: &Config, workers: Arc<Workers>, pipes: usize, datagrams: Option<DatagramRelay>) -> Self {
        let capacity = usize::try_from(config.limits.pipe.0).unwrap_or(usize::MAX);
        let reservations = Reservations::new(ReservationRules::of(config));
        Self { workers, pipes: PipePool::new(pipes, capacity), reservations, datagrams }
    }
}
