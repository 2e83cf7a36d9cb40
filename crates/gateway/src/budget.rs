//! How many sessions this process's descriptors allow.

use crate::choose;
use crate::config::{AUTO, Config, Peer};
use crate::pool::IDLE_BURST_MAX;
use crate::start_error::StartError;
use phoebus_net::limits;

/// Descriptors for everything but sessions and pipes: listeners, log, resolver, administration.
const SPARE: u64 = 64;

/// What the descriptors allow.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Budget {
    pub(crate) sessions: u32,
    /// Connections of hops, without the first of each, and sockets for datagrams.
    pub(crate) additional_connections: u32,
    /// How many times the maximum of a pool may be idle for a moment.
    pub(crate) idle_burst: u32,
    pub(crate) pipes: usize,
}

/// Checks that this process may open as many descriptors as the limits of `config` take. Binds no address.
///
/// # Errors
/// [`StartError::Descriptors`].
pub fn check(config: &Config) -> Result<(), StartError> {
    Budget::of(config).map(|_| ())
}

impl Budget {
    pub(crate) fn of(config: &Config) -> Result<Self, StartError> {
        // A program that merely embeds a gateway sets its own descriptor limit.
        let guest = config.inlet.is_some();
        Self::within(config, if guest { limits::descriptors() } else { limits::raise_descriptors() })
    }

    pub(crate) fn within(config: &Config, available: u64) -> Result<Self, StartError> {
        let limits = &config.limits;
        let pipes = limits.pipes.map_or((available / 16).clamp(8, 1024), |n| n.get().into());
        // `auto` may choose more streams than configured.
        let streams =
            |peer: &Peer| peer.profile.streams.max(if peer.transport == AUTO { choose::STREAMS_MAX } else { 1 });
        let ready = |peer: &Peer| u64::from(peer.pool.max) * u64::from(streams(peer));
        let pools: u64 = config.peers.values().map(ready).sum();
        // A session that finds none left continues with fewer connections.
        let additional_connections =
            match limits.streams.get() > 1 && !config.peers.is_empty() || !config.datagrams.is_empty() {
                true => available / 8,
                false => 0,
            };
        // A burst of strangers may be refused, but strangers never take all descriptors.
        let strangers = u64::from(limits.handshakes.get()).min(available / 8);
        let others = |factor: u32| SPARE + 2 * pipes + pools * u64::from(factor) + strangers + additional_connections;
        let room = |factor| available.saturating_sub(others(factor)) / 2;
        // Connections that are idle for a moment leave room for sessions.
        let wanted = limits.sessions.map_or(available / 8, |wanted| wanted.get().into());
        let idle_burst = (1..=IDLE_BURST_MAX).rev().find(|factor| room(*factor) >= wanted).unwrap_or(1);
        let (others, room) = (others(idle_burst), room(idle_burst));
        let place = || config.places.sessions.clone();
        let missing = |sessions, needed| StartError::Descriptors { place: place(), sessions, needed, available };
        let sessions = match limits.sessions {
            Some(wanted) if u64::from(wanted.get()) > room => {
                let needed = others + 2 * u64::from(wanted.get());
                return Err(missing(wanted.get(), needed));
            }
            Some(wanted) => wanted.get(),
            None if room == 0 => return Err(missing(1, others + 2)),
            None => u32::try_from(room).unwrap_or(u32::MAX),
        };
        let additional_connections = u32::try_from(additional_connections).unwrap_or(u32::MAX);
        Ok(Self { sessions, additional_connections, idle_burst, pipes: usize::try_from(pipes).unwrap_or(usize::MAX) })
    }
}
