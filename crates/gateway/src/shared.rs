//! What all tasks of a gateway share.

use crate::bundle::Bundles;
use crate::config::{Config, Peer};
use crate::counters::Counters;
use crate::gateway::Budget;
use crate::live::Sessions;
use crate::pool::{Own, Pool, Timeouts};
use crate::quota::{Quota, Slot};
use crate::reserve::{Reservations, Terms};
use crate::seen::Seen;
use crate::suspicion::Suspects;
use crate::transports::Transports;
use crate::workers::Workers;
use phoebus_net::PipePool;
use phoebus_net::host::Host;
use phoebus_net::names::Names;
use std::collections::BTreeMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::IpAddr;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Instant;
use tokio::sync::watch;

/// What a gateway is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    /// Taking sessions.
    Open,
    /// Taking no more, letting the old ones finish.
    Draining,
    /// Ending the old ones.
    Ending,
}

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) since: Instant,
    setup: RwLock<Arc<Setup>>,
    pub(crate) workers: Arc<Workers>,
    pub(crate) pipes: Arc<PipePool>,
    pub(crate) sessions: Arc<Sessions>,
    pub(crate) reservations: Arc<Reservations>,
    /// Sessions, from the moment they are asked for.
    pub(crate) admitted: Arc<Quota>,
    /// Connections that have asked for nothing yet.
    pub(crate) greeting: Arc<Quota>,
    /// Connections of clients that are kept between sessions.
    pub(crate) clients: Arc<Quota>,
    /// All accepted connections.
    pub(crate) connected: Arc<Quota>,
    pub(crate) seen: Seen,
    /// Neighbours that may have died.
    pub(crate) suspects: Arc<Suspects>,
    /// Sessions that others may bring connections for.
    pub(crate) bundles: Arc<Bundles>,
    /// Connections of hops beside the first of each.
    beside: Arc<Quota>,
    pub(crate) counters: Counters,
    pub(crate) phase: watch::Sender<Phase>,
}

/// A configuration and what hangs on it; replaced as a whole by a reload.
#[derive(Debug)]
pub(crate) struct Setup {
    pub(crate) config: Config,
    pub(crate) transports: Arc<Transports>,
    pub(crate) peers: BTreeMap<String, Arc<Pool>>,
    /// Resolves the names of destinations.
    pub(crate) names: Arc<Names>,
    /// Sessions at a time, and from one source.
    pub(crate) sessions: u32,
    pub(crate) sessions_per_source: u32,
    /// The most that is buffered of one direction of a session.
    pub(crate) buffer: u64,
    /// Which process this is, of those that ever had its name.
    pub(crate) instance: u64,
    /// Connections of hops beside the first of each, at a time.
    beside: u32,
}

impl Setup {
    /// For `config`, within `budget`; pools of `old` whose peers have not changed are kept, with their connections.
    pub(crate) fn new(config: Config, transports: Arc<Transports>, budget: Budget, old: Option<&Self>) -> Self {
        let Budget { sessions, beside, .. } = budget;
        let limits = &config.limits;
        let timeouts = Timeouts {
            greeting: limits.handshake_timeout.0,
            // The next gateway gets its time to fail first, and so to say why.
            opening: limits.connect_timeout.0 + limits.handshake_timeout.0,
            resolving: limits.resolve_timeout.0,
            transport: limits.transport_timeout.0.min(limits.handshake_timeout.0),
            retry: limits.transport_retry.0,
            probe: limits.probe_interval.0,
            silence: limits.silence_timeout.0,
        };
        let same = |old: &&Self| {
            let named = |config: &Config| (config.name.clone(), config.contact.clone());
            named(&old.config) == named(&config) && Arc::ptr_eq(&old.transports, &transports)
        };
        let kept = |peer: &Peer| old.filter(same)?.peers.values().find(|pool| pool.peer.connects_as(peer)).cloned();
        // Keys of the standard library's hash tables are random.
        let instance = old.map_or_else(|| RandomState::new().build_hasher().finish(), |old| old.instance);
        let pool = |peer: &Peer| {
            let own = Own { name: config.name.clone(), contact: config.contact.clone(), instance };
            // A segment stays what it is, and so does the process at its other end.
            let before = old.and_then(|old| old.peers.get(&peer.name));
            let before = before.filter(|pool| pool.peer.address == peer.address);
            // Every transport of a valid configuration is there.
            let new = || {
                let ways = (transports.ways(peer)?, transports.beside(peer));
                Some(Pool::new(peer.clone(), ways, before.map(|pool| &**pool), own, timeouts))
            };
            kept(peer).or_else(new).map(|pool| (peer.name.clone(), pool))
        };
        let peers = config.peers.values().filter_map(pool).collect();
        let per_source = limits.sessions_per_source.map_or(sessions.div_ceil(2), |n| n.get());
        let buffer = config.buffer().unwrap_or_else(|| Host::read().buffer_max());
        let [lookups, from_one] = [limits.lookups, limits.lookups_per_source].map(|n| n.get() as usize);
        let names = old.map(|old| old.names.clone()).filter(|names| names.is_for(lookups, from_one));
        let names = names.unwrap_or_else(|| Arc::new(Names::new(lookups, from_one)));
        Self { peers, names, sessions, sessions_per_source: per_source, buffer, beside, instance, config, transports }
    }
}

impl Shared {
    pub(crate) fn new(setup: Setup, pipes: usize, workers: Arc<Workers>) -> Arc<Self> {
        let capacity = usize::try_from(setup.config.limits.pipe.0).unwrap_or(usize::MAX);
        let sessions = Arc::<Sessions>::default();
        Arc::new(Self {
            since: Instant::now(),
            workers,
            pipes: PipePool::new(pipes, capacity),
            reservations: Reservations::new(Terms::of(&setup.config)),
            setup: RwLock::new(Arc::new(setup)),
            suspects: Suspects::of(sessions.clone()),
            sessions,
            admitted: Arc::default(),
            greeting: Arc::default(),
            clients: Arc::default(),
            connected: Arc::default(),
            seen: Seen::default(),
            bundles: Arc::default(),
            beside: Arc::default(),
            counters: Counters::default(),
            phase: watch::Sender::new(Phase::Open),
        })
    }

    /// The configuration in force.
    pub(crate) fn setup(&self) -> Arc<Setup> {
        self.setup.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Puts another in force, its rates for open sessions too.
    pub(crate) fn replace(&self, setup: Arc<Setup>) {
        self.reservations.change(Terms::of(&setup.config));
        // Those that had none until now join.
        for live in self.sessions.all() {
            let _ = live.hold(&self.reservations, None);
        }
        *self.setup.write().unwrap_or_else(PoisonError::into_inner) = setup;
    }

    pub(crate) fn phase(&self) -> Phase {
        *self.phase.borrow()
    }

    /// The right to up to `most` further connections for a session of `source`. No source has more than half of all.
    pub(crate) fn lanes(&self, setup: &Setup, source: IpAddr, most: u16) -> Vec<Slot> {
        let (total, per_source) = (setup.beside, setup.beside.div_ceil(2));
        (0..most).map_while(|_| self.beside.take(source, total, per_source).ok()).collect()
    }

    /// Waits until the gateway is at least in `phase`.
    pub(crate) async fn reached(&self, phase: Phase) {
        let mut receiver = self.phase.subscribe();
        // The sender lives as long as `self`.
        let _ = receiver.wait_for(|now| *now >= phase).await;
    }
}
