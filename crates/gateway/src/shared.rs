//! The state that all tasks of a gateway share.

use crate::admission::Admission;
use crate::audit::Audit;
use crate::budget::Budget;
use crate::bundle::Bundles;
use crate::config::{Config, Peer};
use crate::counters::Counters;
use crate::data_plane::DataPlane;
use crate::guesses::Guesses;
use crate::handshake_slots::HandshakeSlot;
use crate::issuers::Issuers;
use crate::passwords::Passwords;
use crate::pool::{LocalIdentity, Pool, Timeouts};
use crate::quota::Accounts;
use crate::reserve::ReservationRules;
use crate::sessions::Sessions;
use crate::slots::{Full, Slot};
use crate::suspicion::Suspects;
use crate::transports::Transports;
use crate::workers::Workers;
use phoebus_net::datagram_relay::DatagramRelay;
use phoebus_net::host::Host;
use phoebus_net::names::Names;
use std::collections::BTreeMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Instant;
use tokio::sync::{Notify, watch};

/// The phase of a gateway's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    /// It accepts sessions.
    Open,
    /// It refuses new sessions and lets open ones finish.
    Draining,
    /// It ends the open sessions.
    Ending,
}

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) since: Instant,
    setup: RwLock<Arc<Setup>>,
    pub(crate) admission: Admission,
    pub(crate) data: DataPlane,
    /// Open sessions.
    pub(crate) sessions: Arc<Sessions>,
    /// Neighbours that may have died.
    pub(crate) suspects: Arc<Suspects>,
    /// Sessions that more connections may join.
    pub(crate) bundles: Arc<Bundles>,
    pub(crate) counters: Counters,
    pub(crate) audit: Audit,
    /// What users, groups, sources and peers use.
    pub(crate) accounts: Arc<Accounts>,
    /// Wrong passwords.
    pub(crate) guesses: Arc<Guesses>,
    /// Checks of passwords that are not proved by SCRAM.
    pub(crate) passwords: Passwords,
    pub(crate) phase: watch::Sender<Phase>,
}

/// A configuration and the state that depends on it. A reload replaces it as a whole.
#[derive(Debug)]
pub(crate) struct Setup {
    pub(crate) config: Config,
    pub(crate) transports: Arc<Transports>,
    pub(crate) peers: BTreeMap<String, Arc<Pool>>,
    /// Who issues tokens, and with which keys.
    pub(crate) issuers: Arc<Issuers>,
    /// Resolves the names of destinations.
    pub(crate) names: Arc<Names>,
    /// The most concurrent sessions, in total and from one source.
    pub(crate) sessions: u32,
    pub(crate) sessions_per_source: u32,
    /// The most bytes buffered for one direction of a session.
    pub(crate) buffer: u64,
    /// Identifies this process among all that ever had the gateway's name.
    pub(crate) instance: u64,
    /// The most connections of hops, without the first of each.
    additional_connections: u32,
}

impl Setup {
    /// The setup for `config`, within `budget`. Keeps the pools of `old` whose peers have not changed, with their
    /// connections.
    pub(crate) fn new(
        config: Config,
        (transports, issuers): (Arc<Transports>, Issuers),
        budget: Budget,
        old: Option<&Self>,
    ) -> Self {
        let Budget { sessions, additional_connections, idle_burst, .. } = budget;
        let limits = &config.limits;
        let timeouts = Timeouts {
            greeting: limits.handshake_timeout.0,
            // The next gateway must time out first, so that it can say why.
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
        // The standard library seeds its hash tables randomly.
        let instance = old.map_or_else(|| RandomState::new().build_hasher().finish(), |old| old.instance);
        let pool = |peer: &Peer| {
            let own = LocalIdentity {
                name: config.name.clone(),
                contact: config.contact.clone(),
                logins: config.logins.clone(),
                bearer: config.bearer.clone(),
                is_asked_for_token: Arc::default(),
                instance,
            };
            // The segment and the process at its other end stay the same.
            let before = old.and_then(|old| old.peers.get(&peer.name));
            let before = before.filter(|pool| pool.peer.address == peer.address);
            // Every transport of a valid configuration exists.
            let new = || {
                let options = (transports.options_for(peer)?, transports.beside(peer));
                Some(Pool::new(peer.clone(), options, before.map(|pool| &**pool), own, timeouts))
            };
            kept(peer).or_else(new).map(|pool| (peer.name.clone(), pool))
        };
        let peers: BTreeMap<String, Arc<Pool>> = config.peers.values().filter_map(pool).collect();
        peers.values().for_each(|pool| pool.set_idle_burst(idle_burst));
        let per_source = limits.sessions_per_source.map_or(sessions.div_ceil(2), |n| n.get());
        let buffer = config.buffer().unwrap_or_else(|| Host::read().buffer_max());
        let [lookups, from_one] = [limits.lookups, limits.lookups_per_source].map(|n| n.get() as usize);
        let names = old.map(|old| old.names.clone()).filter(|names| names.is_for(lookups, from_one));
        let names = names.unwrap_or_else(|| Arc::new(Names::new(lookups, from_one)));
        Self {
            peers,
            issuers: Arc::new(issuers),
            names,
            sessions,
            sessions_per_source: per_source,
            buffer,
            additional_connections,
            instance,
            config,
            transports,
        }
    }

    /// A slot for a connection from `from` that has not requested a session yet.
    /// `gives_way` is told when it has to make room for another; without, it does not.
    pub(crate) fn handshake_slot(
        &self,
        shared: &Shared,
        from: SocketAddr,
        gives_way: Option<Arc<Notify>>,
    ) -> Result<HandshakeSlot, Full> {
        let is_peer = self.peers.values().any(|pool| pool.is_at(from.ip()));
        shared.admission.handshake(&self.config.limits, from.ip(), is_peer, gives_way)
    }
}

impl Shared {
    pub(crate) fn new(
        setup: Setup,
        pipes: usize,
        workers: Arc<Workers>,
        datagrams: Option<DatagramRelay>,
    ) -> Arc<Self> {
        let sessions = Arc::<Sessions>::default();
        Arc::new(Self {
            since: Instant::now(),
            data: DataPlane::new(&setup.config, workers, pipes, datagrams),
            admission: Admission::default(),
            setup: RwLock::new(Arc::new(setup)),
            suspects: Suspects::of(sessions.clone()),
            sessions,
            bundles: Arc::default(),
            counters: Counters::default(),
            audit: Audit::default(),
            accounts: Arc::default(),
            guesses: Arc::default(),
            passwords: Passwords::default(),
            phase: watch::Sender::new(Phase::Open),
        })
    }

    /// The configuration in force.
    pub(crate) fn setup(&self) -> Arc<Setup> {
        self.setup.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Puts another configuration in force; its rates apply to open sessions too.
    pub(crate) fn replace(&self, setup: Arc<Setup>) {
        self.data.reservations.change(ReservationRules::of(&setup.config));
        // Open sessions whose segment had no rate until now get one.
        for live in self.sessions.all() {
            let _ = live.hold(&self.data.reservations, None);
            live.end_if_datagrams_pass_a_rate_by();
        }
        *self.setup.write().unwrap_or_else(PoisonError::into_inner) = setup;
    }

    pub(crate) fn phase(&self) -> Phase {
        *self.phase.borrow()
    }

    /// Slots for up to `most` more connections of a session of `source`.
    pub(crate) fn additional_connections(&self, setup: &Setup, source: IpAddr, most: u16) -> Vec<Slot> {
        self.admission.additional_connections(source, setup.additional_connections, most)
    }

    /// Waits until the gateway is at least in `phase`.
    pub(crate) async fn reached(&self, phase: Phase) {
        let mut receiver = self.phase.subscribe();
        // The sender lives as long as `self`.
        let _ = receiver.wait_for(|now| *now >= phase).await;
    }
}
