//! What carries this gateway's connections: transports by name and protection, the same before and after a reload as long as
//! their credentials are. Each hop has its own, whatever the others have (P2), and which one is a matter of two gateways'
//! configurations: no client takes part in it, or has to know (P36).

use crate::config::{AUTO, Allowed, ClientCertificate, Config, Driver, Listen, Peer};
use crate::gateway::StartError;
use crate::pool::Way;
use phoebus_net::Error;
use phoebus_net::Registry;
use phoebus_net::credentials::Credentials;
use phoebus_net::quic::{Options, Quic, ResetKey};
use phoebus_net::tls::{self, Offer, Tls};
use phoebus_net::transport::{Listener, Security, Transport};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

/// All that a configuration makes use of.
#[derive(Debug)]
pub(crate) struct Transports {
    registry: Registry,
    /// Also in the registry, if the configuration names it.
    quic: Option<Arc<Quic>>,
    /// The one of an earlier configuration, where this one names none: its connections go on, and hold their addresses.
    earlier: Option<Arc<Quic>>,
    /// Where the secret of its stateless resets was read.
    reset_key: Option<PathBuf>,
    drivers: Vec<Driver>,
    pub(crate) credentials: Option<Credentials>,
}

impl Transports {
    /// All that `config` may use, instead of those of the configuration `before`, whose addresses can be taken over. QUIC has
    /// threads and a secret of its own, and is only there where it is named.
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
        Ok(Self { registry, quic, earlier, reset_key, drivers, credentials: config.credentials.clone() })
    }

    /// Tells all peers that connections are gone which would be taken for alive otherwise.
    pub(crate) async fn close(&self) {
        if let Some(quic) = self.quic.as_ref().or(self.earlier.as_ref()) {
            quic.close().await;
        }
    }

    /// Whether these do for `config` too: nothing that connections are made of is different.
    pub(crate) fn suit(&self, config: &Config) -> bool {
        if self.drivers != config.drivers || self.quic.is_none() && names_quic(config) {
            return false;
        }
        match (&self.credentials, &config.credentials) {
            (Some(own), Some(other)) => own.same_files(other),
            (own, other) => own.is_none() && other.is_none(),
        }
    }

    /// Puts the credentials of `config` in force, which come from the same files, and says whether they are others.
    pub(crate) fn renew(&self, config: &Config) -> bool {
        self.credentials.as_ref().zip(config.credentials.as_ref()).is_some_and(|(own, new)| own.adopt(new))
    }

    /// What was made with these takes nothing new from now on: there are others.
    pub(crate) fn retire(&self) {
        self.credentials.iter().for_each(Credentials::retire);
    }

    /// Whether `config` names another file for the secret of stateless resets, which is read only at the start.
    pub(crate) fn has_other_reset_key(&self, config: &Config) -> bool {
        self.quic.is_some() && self.reset_key != config.reset_key
    }

    /// What to tell the owner about the certificate, if it is not valid for much longer.
    pub(crate) fn expiry(&self) -> Option<String> {
        self.credentials.as_ref()?.warning(SystemTime::now())
    }

    /// The ways to reach `peer`, in the order of its configuration.
    pub(crate) fn ways(&self, peer: &Peer) -> Option<Vec<Way>> {
        let way = |allowed: &Allowed| {
            let over = self.get(&allowed.transport, security_by(peer, &allowed.transport))?;
            Some(Way::new(&allowed.transport, over, allowed.port))
        };
        peer.allowed.iter().map(way).collect()
    }

    /// What tells that `peer` has died, where the connections themselves do not: the kernel resets those of TCP alone. It is
    /// protected as the best of them is.
    pub(crate) fn beside(&self, peer: &Peer) -> Option<Way> {
        let hidden = peer.allowed.iter().map(|allowed| &*allowed.transport).filter(|transport| !shows_death(transport));
        let security = hidden.map(|transport| security_by(peer, transport)).max()?;
        let port = peer.allowed.iter().find(|allowed| allowed.transport == "tcp").and_then(|allowed| allowed.port);
        Some(Way::new("tcp", self.get("tcp", security)?, port))
    }

    /// Listens as `listen` says. Called within the runtime that is to watch the socket.
    pub(crate) fn listen(&self, listen: &Listen) -> Result<Box<dyn Listener>, Error> {
        let unknown = || Error::Listen { addr: listen.address, source: io::ErrorKind::Unsupported.into() };
        let credentials = self.credentials.as_ref().map(|own| match listen.client_certificate {
            ClientCertificate::Required => own.clone(),
            ClientCertificate::Optional => own.open(),
        });
        if let ("quic", Some(quic), Some(credentials)) = (listen.transport.as_str(), &self.quic, &credentials) {
            return quic.listen_as(listen.address, &listen.profile, credentials);
        }
        let transport = self.registry.get(&listen.transport).ok_or_else(unknown)?;
        let plain = transport.listen(listen.address, &listen.profile)?;
        let least = listen.security;
        let offer = match listen.transport.as_str() {
            // Programs and peers come to the same port, the ones in the clear.
            "tcp" => Offer { encrypt: true, auth: least <= Security::Auth, none: least == Security::None },
            _ if least == Security::None => return Ok(plain),
            _ => Offer { encrypt: true, auth: false, none: false },
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

/// What protects connections to `peer` by this transport.
fn security_by(peer: &Peer, transport: &str) -> Security {
    match (peer.transport.as_str(), transport) {
        // It has no other.
        (_, "quic") => Security::Encrypt,
        // Bare UDT is for those who ask for it.
        (AUTO, "udt") => Security::Encrypt,
        _ => peer.security,
    }
}

fn names_quic(config: &Config) -> bool {
    let listeners = config.listeners.iter().map(|listen| &listen.transport);
    let peers = config.peers.values().flat_map(|peer| &peer.allowed).map(|allowed| &allowed.transport);
    listeners.chain(peers).any(|name| name == "quic")
}

/// Whether sessions of this transport are streams of one connection; of a driver only its first connection tells.
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
