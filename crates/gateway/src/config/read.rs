//! Validates the parsed file. Errors say where the mistake is and what was expected.

use super::carriage::Carriage;
use super::reader::Reader;
use super::rules::Nameable;
use super::{Audit, Config, ConfigError, Limits, Listen, Pattern, Peer, Places, Pool, Route, raw};
use phoebus_config::agent::AGENT;
use phoebus_net::{CongestionControl, Profile};
use phoebus_proto::endpoint::is_name;
use phoebus_proto::session::bundle::STREAMS_MAX;
use phoebus_proto::units::{BitRate, Span};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use toml::Spanned;

/// Upper limit of relay threads: more than the processors of any host, and few enough to start.
const THREADS_MAX: usize = 1024;
/// The bounds of `limits.receive_coalescing`, unless it is 0.
const RECEIVE_COALESCING: RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_millis(20);

/// Lower limit of a profile's idle time-out: some round trips of a long path.
const IDLE_MIN: Duration = Duration::from_secs(1);
/// The lowest rate: a packet takes a second. Sessions would not live much slower.
const RATE_MIN: BitRate = BitRate(10_000);

/// What clients may be known by.
#[derive(Debug, Clone, Copy)]
pub(super) struct MayBe {
    /// There is a users file.
    pub(super) has_users: bool,
    /// Somebody issues tokens.
    pub(super) has_issuers: bool,
    /// Grid certificates count.
    pub(super) has_grid: bool,
}

impl Reader<'_> {
    pub(super) fn config(&self, raw: raw::File) -> Result<Config, ConfigError> {
        let name = self.name(raw.name.as_ref())?;
        self.limits(&raw.limits)?;
        if let Some((name, _)) = raw.profile.iter().find(|(_, profile)| profile.idle_timeout.0 < IDLE_MIN) {
            let message = format!("profile.{name}.idle_timeout is too short; expected at least {}", Span(IDLE_MIN));
            return Err(self.at_key(&["profile", name, "idle_timeout"], message));
        }
        if let Some((name, _)) =
            raw.profile.iter().find(|(_, profile)| profile.rate.is_some_and(|rate| rate < RATE_MIN))
        {
            let message =
                format!("profile.{name}.rate is too low; expected at least {RATE_MIN}, or no rate for no limit");
            return Err(self.at_key(&["profile", name, "rate"], message));
        }
        let profiles =
            raw.profile.iter().map(|(name, profile)| (vec!["profile", name.as_str(), "streams"], profile.streams));
        for (key, streams) in profiles.chain([(vec!["limits", "streams"], raw.limits.streams.get())]) {
            if !(1..=STREAMS_MAX).contains(&streams) {
                let message = format!("{} is {streams}; expected 1 to {STREAMS_MAX}", key.join("."));
                return Err(self.at_key(&key, message));
            }
        }
        let profiles = self.profiles(raw.profile, &raw.limits);
        let credentials = raw.tls.as_ref().map(|tls| self.credentials(tls, &raw.peer)).transpose()?;
        let reset_key = raw.tls.as_ref().map(|tls| self.reset_key(tls));
        let drivers = self.drivers(&raw.driver)?;
        let carriage = Carriage::of(credentials.is_some(), drivers.iter().map(|driver| driver.name.clone()));
        let users = raw.users.as_ref().map(|users| self.users(&users.file)).transpose()?.unwrap_or_default();
        let issuers = self.issuers(&raw.issuer, &users)?;
        let grid = raw.grid.as_ref().map(|grid| self.grid(grid)).transpose()?;
        let (has_users, has_issuers, has_grid) = (raw.users.is_some(), !issuers.is_empty(), grid.is_some());
        let may_be = MayBe { has_users, has_issuers, has_grid };
        let listeners = self.listeners(&raw.listen, &profiles, &carriage, may_be)?;
        let peers = self.peers(&raw.peer, &profiles, &carriage, (&name, raw.limits.buffer.is_some()))?;
        let routes = self.routes(&raw.route, &profiles, &peers)?;
        let speaks = peers.values().any(|peer| !peer.speaks_for.is_empty());
        let has_users = has_users || has_issuers || has_grid || speaks;
        let nameable = Nameable { name: &name, listeners: &listeners, peers: &peers, carriage: &carriage, has_users };
        let rules = self.rules(&raw.rule, &raw.allow, &nameable)?;
        let account_limits = self.account_limits(&raw.limit, &nameable, &raw.limits)?;
        let direct = self.profile(None, &profiles)?;
        let rates = profiles.values().filter_map(|profile| Some((profile.name.clone(), profile.rate?))).collect();
        let any_control = profiles.values().filter(|profile| profile.congestion_control == CongestionControl::Auto);
        let any_control = any_control.map(|profile| profile.name.clone()).collect();
        let in_use: BTreeSet<&str> = (listeners.iter().map(|listen| &listen.profile))
            .chain(peers.values().map(|peer| &peer.profile))
            .chain(routes.iter().map(|route| &route.profile))
            .chain([&direct])
            .map(|profile| &*profile.name)
            .collect();
        let unused_profiles = profiles.keys().filter(|name| !in_use.contains(name.as_str())).cloned().collect();
        let places = Places {
            listeners: raw.listen.iter().map(|listen| self.place(listen.address.span())).collect(),
            datagrams: raw.datagrams.addresses.as_ref().map(|all| self.place(all.span())).unwrap_or_default(),
            admin: raw.admin.socket.as_ref().map(|socket| self.place(socket.span())).unwrap_or_default(),
            audit: raw.audit.as_ref().map(|audit| self.place(audit.file.span())).unwrap_or_default(),
            source: (raw.route.iter().find_map(|route| route.source.as_ref()))
                .map(|source| self.place(source.span()))
                .unwrap_or_default(),
            sessions: match self.span(&["limits", "sessions"]) {
                Some(span) => self.place(span),
                None => self.file.display().to_string(),
            },
        };
        let datagrams = self.datagrams(raw.datagrams, &listeners)?;
        let audit = raw.audit.map(|audit| Audit { file: self.folder().join(audit.file.get_ref()), queue: audit.queue });
        let admin = raw.admin.socket.map(|socket| self.admin(socket)).transpose()?;
        Ok(Config {
            name,
            credentials,
            reset_key,
            drivers,
            contact: raw.contact,
            logins: None,
            bearer: None,
            listeners,
            peers,
            routes,
            direct,
            rates,
            any_control,
            unused_profiles,
            rules,
            account_limits,
            limits: raw.limits,
            datagrams,
            users,
            issuers,
            grid,
            admin,
            audit,
            places,
            log: raw.log,
            inlet: None,
        })
    }

    fn name(&self, name: Option<&Spanned<String>>) -> Result<String, ConfigError> {
        let Some(given) = name else {
            let host = rustix::system::uname().nodename().to_string_lossy().to_ascii_lowercase();
            return if is_name(&host) {
                Ok(host)
            } else {
                Err(self.whole("the host has no usable name; expected name = \"…\""))
            };
        };
        let name = given.get_ref().to_ascii_lowercase();
        // Peers, paths and log lines use the name.
        if name == AGENT {
            Err(self.at(given, format!("\"{AGENT}\" is what agents call themselves; expected another name")))
        } else if is_name(&name) {
            Ok(name)
        } else {
            Err(self.at(given, format!("\"{name}\" is no name; expected one such as pg1 or pg1.example.org")))
        }
    }

    fn profiles(&self, mut raw: BTreeMap<String, Profile>, limits: &Limits) -> BTreeMap<String, Arc<Profile>> {
        let bounded = |profile: Profile| match limits.buffer {
            // Subtract the pipe's share first.
            Some(total) => profile.bounded(total.0 - limits.pipe.0.min(total.0 / 4)),
            None => profile,
        };
        raw.entry("default".to_owned()).or_default();
        let named = |(name, profile): (String, Profile)| {
            let profile = Profile { name: name.as_str().into(), ..bounded(profile) };
            (name, Arc::new(profile))
        };
        raw.into_iter().map(named).collect()
    }

    fn profile(
        &self,
        name: Option<&Spanned<String>>,
        profiles: &BTreeMap<String, Arc<Profile>>,
    ) -> Result<Arc<Profile>, ConfigError> {
        let wanted = name.map_or("default", |name| name.get_ref());
        match (profiles.get(wanted), name) {
            (Some(profile), _) => Ok(profile.clone()),
            (None, Some(name)) => Err(self.unknown(name, "profile", profiles.keys())),
            (None, None) => Err(self.whole("there is no profile \"default\"")),
        }
    }

    fn listeners(
        &self,
        raw: &[raw::Listen],
        profiles: &BTreeMap<String, Arc<Profile>>,
        carriage: &Carriage,
        may_be: MayBe,
    ) -> Result<Vec<Listen>, ConfigError> {
        if raw.is_empty() {
            return Err(self.whole("there is no [[listen]]; expected at least one with address = \"0.0.0.0:5006\""));
        }
        let mut listeners: Vec<Listen> = Vec::new();
        for listen in raw {
            let address = self.address(&listen.address)?;
            let transport = self.transport(listen.transport.as_ref(), carriage)?;
            let same = |other: &Listen| other.address == address && other.transport == transport;
            if address.port() != 0 && listeners.iter().any(same) {
                return Err(self.at(&listen.address, format!("{address} is listened on twice with {transport}")));
            }
            let security = self.least_security(listen, &transport, carriage)?;
            let profile = self.profile(listen.profile.as_ref(), profiles)?;
            let client_certificate = self.client_certificate(listen, &transport, security, carriage)?;
            let auth = self.mechanisms(listen, (&transport, security), carriage, may_be)?;
            let entries = self.entries(listen, (address, &transport), &auth, carriage)?;
            let proxy_from = self.proxy_from(listen, &transport)?;
            let listen =
                Listen { address, transport, security, profile, auth, client_certificate, entries, proxy_from };
            listeners.push(listen);
        }
        Ok(listeners)
    }

    /// An address and a port of this host.
    fn address(&self, given: &Spanned<String>) -> Result<SocketAddr, ConfigError> {
        let address: SocketAddr = given.get_ref().parse().map_err(|_| {
            let expected = "is not an address and port such as 0.0.0.0:5006 or [::]:5006";
            self.at(given, format!("\"{}\" {expected}", given.get_ref()))
        })?;
        if let IpAddr::V6(v6) = address.ip()
            && let Some(v4) = v6.to_ipv4_mapped()
        {
            let port = address.port();
            let message = format!("{address} is an IPv4 address in IPv6's form; expected {v4}:{port}");
            return Err(self.at(given, message));
        }
        let is_broadcast = address.ip() == Ipv4Addr::BROADCAST;
        if address.ip().is_multicast() || is_broadcast {
            let message =
                format!("{address} is an address of groups; expected one of this host, or 0.0.0.0 or [::] for all");
            return Err(self.at(given, message));
        }
        Ok(address)
    }

    fn datagrams(&self, raw: raw::Datagrams, listeners: &[Listen]) -> Result<Vec<SocketAddr>, ConfigError> {
        let mut addresses: Vec<SocketAddr> = Vec::new();
        let overlap = |one: SocketAddr, other: SocketAddr| {
            let is_any = one.ip().is_unspecified() || other.ip().is_unspecified();
            one.port() == other.port()
                && one.port() != 0
                && one.is_ipv4() == other.is_ipv4()
                && (is_any || one.ip() == other.ip())
        };
        for given in raw.addresses.map(Spanned::into_inner).unwrap_or_default() {
            let address = self.address(&given)?;
            if let Some(other) = addresses.iter().find(|other| overlap(address, **other)) {
                let message =
                    format!("datagrams.addresses has {address} beside {other}; expected another port or address");
                return Err(self.at(&given, message));
            }
            let takes = |listen: &&Listen| ["udt", "quic"].contains(&&*listen.transport);
            if let Some(listen) = listeners.iter().filter(takes).find(|listen| overlap(address, listen.address)) {
                let message = format!(
                    "the [[listen]] with {} at {} has the UDP port of {address}; expected another port",
                    listen.transport, listen.address
                );
                return Err(self.at(&given, message));
            }
            addresses.push(address);
        }
        Ok(addresses)
    }

    fn admin(&self, socket: Spanned<PathBuf>) -> Result<PathBuf, ConfigError> {
        let len = socket.get_ref().as_os_str().len();
        // The size of sun_path in sockaddr_un, less the terminating zero.
        if (1..=107).contains(&len) {
            Ok(socket.into_inner())
        } else {
            Err(self.at(&socket, format!("admin.socket is a name of {len} bytes; the system takes from 1 to 107")))
        }
    }

    fn peers(
        &self,
        raw: &[raw::Peer],
        profiles: &BTreeMap<String, Arc<Profile>>,
        carriage: &Carriage,
        (own_name, is_bounded): (&str, bool),
    ) -> Result<BTreeMap<String, Peer>, ConfigError> {
        let mut peers = BTreeMap::new();
        for peer in raw {
            let name = peer.name.get_ref().to_ascii_lowercase();
            if !is_name(&name) || name == "direct" || name == AGENT {
                return Err(self.at(&peer.name, format!("\"{name}\" is no name for a peer; expected one such as pg2")));
            }
            if name == own_name {
                return Err(self.at(&peer.name, format!("\"{name}\" is this gateway's own name; expected another's")));
            }
            let pool = peer.pool.as_ref().map_or_else(Pool::default, |pool| *pool.get_ref());
            if let Some(place) = &peer.pool
                && pool.min > pool.max
            {
                let message =
                    format!("pool.min is {} and pool.max {}; expected min to be at most max", pool.min, pool.max);
                return Err(self.at(place, message));
            }
            let mut profile = self.profile(peer.profile.as_ref(), profiles)?;
            if let Some(streams) = &peer.streams {
                if !(1..=STREAMS_MAX).contains(streams.get_ref()) {
                    let message = format!("streams is {}; expected 1 to {STREAMS_MAX}", streams.get_ref());
                    return Err(self.at(streams, message));
                }
                profile = Arc::new(Profile { streams: *streams.get_ref(), ..(*profile).clone() });
            }
            if is_bounded && profile.streams > 1 {
                profile = Arc::new((*profile).clone().divided());
            }
            let (transport, allowed) = self.carried_by(peer, &profile, carriage)?;
            let address = raw::endpoint(peer.address.get_ref()).map_err(|message| self.at(&peer.address, message))?;
            let security = self.peer_security(peer, &transport, carriage)?;
            let valid = Peer {
                name: name.clone(),
                address,
                security,
                fingerprint: self.pin(peer)?.map(|(_, fingerprint)| fingerprint),
                transport,
                allowed,
                in_order: false,
                profile,
                from: peer.from.iter().map(|net| self.parse(net)).collect::<Result<_, _>>()?,
                speaks_for: self.spoken_for(peer, security)?,
                pool,
            };
            let is_same = |other: &&Peer| valid.fingerprint.is_some() && other.fingerprint == valid.fingerprint;
            if let (Some(other), Some(given)) = (peers.values().find(is_same), &peer.fingerprint) {
                let message =
                    format!("peer \"{}\" has the same fingerprint; each would pass for the other", other.name);
                return Err(self.at(given, message));
            }
            if peers.insert(name.clone(), valid).is_some() {
                return Err(self.at(&peer.name, format!("peer \"{name}\" is configured twice")));
            }
        }
        Ok(peers)
    }

    fn routes(
        &self,
        raw: &[raw::Route],
        profiles: &BTreeMap<String, Arc<Profile>>,
        peers: &BTreeMap<String, Peer>,
    ) -> Result<Vec<Route>, ConfigError> {
        let mut routes: Vec<Route> = Vec::new();
        for route in raw {
            let to: Pattern = self.parse(&route.to)?;
            if routes.iter().any(|other| other.to == to) {
                return Err(self.at(&route.to, format!("there are two routes to {to}")));
            }
            let via = match route.via.get_ref().to_ascii_lowercase() {
                direct if direct == "direct" => None,
                peer if peers.contains_key(&peer) => Some(peer),
                _ => return Err(self.unknown(&route.via, "peer", peers.keys().chain([&"direct".to_owned()]))),
            };
            if let (Some(peer), Some(profile)) = (&via, &route.profile) {
                let message = format!(
                    "a route through a peer uses that peer's profile; expected none here, but in peer \"{peer}\""
                );
                return Err(self.at(profile, message));
            }
            let (proxy_header, from_client) = self.shown(route, via.is_none())?;
            let profile = self.profile(route.profile.as_ref(), profiles)?;
            routes.push(Route { to, via, profile, proxy_header, from_client });
        }
        Ok(routes)
    }

    fn limits(&self, limits: &Limits) -> Result<(), ConfigError> {
        let at_least = |name: &str, size: u64, least: u64| match size {
            size if size >= least => Ok(()),
            size => {
                let message = format!("limits.{name} is {size} bytes; expected at least {least}");
                Err(self.at_key(&["limits", name], message))
            }
        };
        at_least("pipe", limits.pipe.0, 64 << 10)?;
        // Room for four pages in each of the two sockets, and for the pipe.
        limits.buffer.map_or(Ok(()), |size| at_least("buffer", size.0, 64 << 10))?;
        match limits.threads {
            Some(threads) if threads.get() > THREADS_MAX => {
                let message = format!("limits.threads is {threads}; expected at most {THREADS_MAX}");
                return Err(self.at_key(&["limits", "threads"], message));
            }
            _ => {}
        }
        let coalescing = limits.receive_coalescing;
        if !coalescing.0.is_zero() && !RECEIVE_COALESCING.contains(&coalescing.0) {
            let message = format!("limits.receive_coalescing is {coalescing}; expected 0, or from 1ms to 20ms");
            return Err(self.at_key(&["limits", "receive_coalescing"], message));
        }
        for (name, span) in [
            ("handshake_timeout", limits.handshake_timeout),
            ("connect_timeout", limits.connect_timeout),
            ("resolve_timeout", limits.resolve_timeout),
            ("transport_timeout", limits.transport_timeout),
            ("transport_retry", limits.transport_retry),
            ("silence_timeout", limits.silence_timeout),
            ("probe_interval", limits.probe_interval),
            ("peer_idle_timeout", limits.peer_idle_timeout),
        ] {
            if span.0.is_zero() {
                let message = format!("limits.{name} is 0; expected a duration such as 10s");
                return Err(self.at_key(&["limits", name], message));
            }
        }
        Ok(())
    }
}
