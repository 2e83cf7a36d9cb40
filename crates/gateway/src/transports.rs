//! The transports of this gateway's connections, by name and protection. A reload keeps them while the credential files
//! stay the same. Each hop has its own transport, independent of the others (P2). The configurations of its two
//! gateways decide which; clients neither take part nor need to know (P36).

use crate::config::{AUTO, Allowed, ClientCertificate, Config, Driver, Listen, Mechanism, Peer};
use crate::grid::GridJudge;
use crate::start_error::StartError;
use phoebus_net::Error;
use phoebus_net::Registry;
use phoebus_net::credentials::Credentials;
use phoebus_net::proxied;
use phoebus_net::quic::{Options, Quic, ResetKey};
use phoebus_net::tls::{self, Offer, Tls};
use phoebus_net::transport::{Listener, Security, Transport};
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

/// All transports that a configuration uses.
#[derive(Debug)]
pub(crate) struct Transports {
    registry: Registry,
    /// Also in the registry, if the configuration names it.
    quic: Option<Arc<Quic>>,
    /// QUIC of an earlier configuration, if this one does not name it: its connections continue, and hold their
    /// addresses.
    earlier: Option<Arc<Quic>>,
    /// The file with the secret of its stateless resets.
    reset_key: Option<PathBuf>,
    drivers: Vec<Driver>,
    pub(crate) credentials: Option<Credentials>,
    /// Judges clients of listeners that take Grid certificates.
    pub(crate) grid: Arc<GridJudge>,
}

impl Transports {
    /// The transports for `config`. They can take over the addresses of `before`, the transports of the previous
    /// configuration. QUIC has threads and a secret of its own, and exists only if the configuration names it.
    pub(crate) fn new(config: &Config, before: Option<&Self>) -> Result<Self, StartError> {
        let (mut registry, mut quic) = (Registry::standard(), None);
        let earlier = before.and_then(|before| before.quic.as_ref().or(before.earlier.as_ref()));
        if let Some(udt) = before.and_then(|before| before.registry.get("udt")) {
            registry.add(udt.clone());
        }
        if let Some(credentials) = config.credentials.as_ref().filter(|_| names_quic(config)) {
            let reset_key = config.reset_key.as_deref().map(ResetKey::load_or_create).transpose();
            let reset_key = reset_key.map_err(StartError::ResetKey)?;
            let options = Options { reset_key, ..Options::default() };
            let made = Arc::new(match earlier {
                Some(earlier) => earlier.successor(credentials.clone(), options),
                None => Quic::new(credentials.clone(), options).map_err(StartError::Threads)?,
            });
            registry.add(made.clone());
            quic = Some(made);
        }
        for driver in &config.drivers {
            registry.add(driver.transport.clone());
        }
        let earlier = earlier.filter(|_| quic.is_none()).cloned();
        let (reset_key, drivers) = (config.reset_key.clone(), config.drivers.clone());
        let (credentials, grid) = (config.credentials.clone(), Arc::new(GridJudge::new(config.grid.clone())));
        Ok(Self { registry, quic, earlier, reset_key, drivers, credentials, grid })
    }

    /// Tells all peers that connections have closed which they would otherwise take for alive.
    pub(crate) async fn close(&self) {
        if let Some(quic) = self.quic.as_ref().or(self.earlier.as_ref()) {
            quic.close().await;
        }
    }

    /// Whether these transports also serve `config`: nothing that connections depend on has changed.
    pub(crate) fn suit(&self, config: &Config) -> bool {
        if self.drivers != config.drivers || self.quic.is_none() && names_quic(config) {
            return false;
        }
        match (&self.credentials, &config.credentials) {
            (Some(own), Some(other)) => own.same_files(other),
            (own, other) => own.is_none() && other.is_none(),
        }
    }

    /// Adopts the credentials of `config`, which come from the same files, and its `[grid]`. Returns whether the former have changed.
    pub(crate) fn renew(&self, config: &Config) -> bool {
        self.grid.replace(config.grid.clone());
        self.credentials.as_ref().zip(config.credentials.as_ref()).is_some_and(|(own, new)| own.adopt(new))
    }

    /// Connections made with these transports take no new sessions from now on, because others replace them.
    pub(crate) fn retire(&self) {
        self.credentials.iter().for_each(Credentials::retire);
    }

    /// Whether `config` names another file for the secret of stateless resets, which is read only at start.
    pub(crate) fn has_other_reset_key(&self, config: &Config) -> bool {
        self.quic.is_some() && self.reset_key != config.reset_key
    }

    /// A warning about the certificate, if it expires soon.
    pub(crate) fn expiry(&self) -> Option<String> {
        self.credentials.as_ref()?.warning(SystemTime::now())
    }

    /// The transports to reach `peer`, in the order of its configuration.
    pub(crate) fn options_for(&self, peer: &Peer) -> Option<Vec<TransportOption>> {
        let option = |allowed: &Allowed| {
            let over = self.get(&allowed.transport, security_by(peer, &allowed.transport))?;
            Some(TransportOption::new(&allowed.transport, over, allowed.port))
        };
        peer.allowed.iter().map(option).collect()
    }

    /// The transport of the beacon to `peer`, if any of its transports needs one: the kernel resets only TCP
    /// connections of a dead process. The beacon is as well protected as the best protected of those transports.
    pub(crate) fn beside(&self, peer: &Peer) -> Option<TransportOption> {
        let hidden = peer.allowed.iter().map(|allowed| &*allowed.transport).filter(|transport| !shows_death(transport));
        let security = hidden.map(|transport| security_by(peer, transport)).max()?;
        let port = peer.allowed.iter().find(|allowed| allowed.transport == "tcp").and_then(|allowed| allowed.port);
        Some(TransportOption::new("tcp", self.get("tcp", security)?, port))
    }

    /// Listens as `listen` says. Must be called within the runtime that polls the socket.
    pub(crate) fn listen(&self, listen: &Listen) -> Result<Box<dyn Listener>, Error> {
        let unknown = || Error::Listen { addr: listen.address, source: io::ErrorKind::Unsupported.into() };
        let credentials = self.credentials.as_ref().map(|own| match listen.client_certificate {
            ClientCertificate::Required => own.clone(),
            ClientCertificate::Optional => own.open(),
        });
        let takes_grid = listen.auth.contains(&Mechanism::Grid);
        let judged = |own: Credentials| if takes_grid { own.judged_by(self.grid.clone()) } else { own };
        let credentials = credentials.map(judged);
        if let ("quic", Some(quic), Some(credentials)) = (listen.transport.as_str(), &self.quic, &credentials) {
            return quic.listen_as(listen.address, &listen.profile, credentials);
        }
        let transport = self.registry.get(&listen.transport).ok_or_else(unknown)?;
        let mut plain = transport.listen(listen.address, &listen.profile)?;
        if !listen.proxy_from.is_empty() {
            plain = proxied::listener(plain);
        }
        let least = listen.security;
        let offer = match listen.transport.as_str() {
            // Programs and peers connect to the same port, programs without encryption.
            "tcp" => Offer {
                encrypt: true,
                auth: least <= Security::Auth,
                none: least == Security::None,
                others: listen.takes_others(),
            },
            _ if least == Security::None => return Ok(plain),
            _ => Offer { encrypt: true, auth: false, none: false, others: false },
        };
        Ok(match &credentials {
            Some(credentials) => tls::listener(plain, credentials, offer),
            None => plain,
        })
    }

    fn get(&self, transport: &str, security: Security) -> Option<Arc<dyn Transport>> {
        let plain = self.registry.get(transport)?.clone();
        let credentials = || self.credentials.clone();
        Some(match (transport, security) {
            ("quic", _) | (_, Security::None) => plain,
            ("tcp", Security::Auth) => Arc::new(Tls::auth(credentials()?)),
            ("tcp", Security::Encrypt) => Arc::new(Tls::encrypt(credentials()?)),
            (_, Security::Encrypt) => {
                let name = plain.name();
                Arc::new(Tls::encrypt(credentials()?).over(plain, name))
            }
            (_, Security::Auth) => return None,
        })
    }
}

/// The protection of connections to `peer` over this transport.
fn security_by(peer: &Peer, transport: &str) -> Security {
    match (peer.transport.as_str(), transport) {
        // QUIC has no other.
        (_, "quic") => Security::Encrypt,
        // Only an explicit configuration uses UDT without TLS.
        (AUTO, "udt") => Security::Encrypt,
        _ => peer.security,
    }
}

fn names_quic(config: &Config) -> bool {
    let listeners = config.listeners.iter().map(|listen| &listen.transport);
    let peers = config.peers.values().flat_map(|peer| &peer.allowed).map(|allowed| &allowed.transport);
    listeners.chain(peers).any(|name| name == "quic")
}

/// Whether sessions over this transport are streams of one connection. For a driver, only its first connection shows
/// that.
pub(crate) fn has_streams(transport: &str) -> Option<bool> {
    match transport {
        "quic" => Some(true),
        "tcp" | "udt" => Some(false),
        _ => None,
    }
}

/// Whether a connection of this transport fails at once when the process at its other end dies.
pub(crate) fn shows_death(transport: &str) -> bool {
    transport == "tcp"
}

/// A transport to a peer.
#[derive(Debug)]
pub(crate) struct TransportOption {
    pub(crate) transport: Box<str>,
    pub(crate) over: Arc<dyn Transport>,
    /// The peer's port, if it is not the one of its address.
    pub(crate) port: Option<u16>,
    /// Whether sessions are streams of one connection, once known.
    pub(crate) has_streams: OnceLock<bool>,
}

impl TransportOption {
    pub(crate) fn new(transport: &str, over: Arc<dyn Transport>, port: Option<u16>) -> Self {
        let known = has_streams(transport).map(OnceLock::from).unwrap_or_default();
        Self { transport: transport.into(), over, port, has_streams: known }
    }
}
