//! What carries this gateway's connections: transports by name and protection, the same before and after a reload as long as
//! their credentials are.

use crate::config::{AUTO, Allowed, ClientCertificate, Config, Driver, Listen, Peer};
use crate::gateway::StartError;
use crate::pool::Way;
use phoebus_net::Error;
use phoebus_net::credentials::{Credentials, CredentialsError};
use phoebus_net::quic::{Options, Quic, ResetKey};
use phoebus_net::tls::{self, Offer, Tls};
use phoebus_net::transport::{Listener, Registry, Security, Transport};
use std::io;
use std::sync::Arc;
use std::time::SystemTime;

/// All that a configuration makes use of.
#[derive(Debug)]
pub(crate) struct Transports {
    registry: Registry,
    /// Also in the registry, if the configuration names it.
    quic: Option<Arc<Quic>>,
    drivers: Vec<Driver>,
    pub(crate) credentials: Option<Credentials>,
}

impl Transports {
    /// All that `config` may use. QUIC has threads and a secret of its own, and is only there where it is named.
    pub(crate) fn new(config: &Config) -> Result<Self, StartError> {
        let (mut registry, mut quic) = (Registry::standard(), None);
        if let Some(credentials) = config.credentials.as_ref().filter(|_| names_quic(config)) {
            let reset_key = config.reset_key.as_deref().map(ResetKey::load_or_create).transpose();
            let options = Options { reset_key: reset_key.map_err(StartError::ResetKey)? };
            let made = Arc::new(Quic::new(credentials.clone(), options).map_err(StartError::Threads)?);
            registry.add(made.clone());
            quic = Some(made);
        }
        for driver in &config.drivers {
            registry.add(driver.transport.clone());
        }
        Ok(Self { registry, quic, drivers: config.drivers.clone(), credentials: config.credentials.clone() })
    }

    /// Tells all peers that connections are gone which would be taken for alive otherwise.
    pub(crate) async fn close(&self) {
        if let Some(quic) = &self.quic {
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

    /// Reads the files of the credentials again.
    pub(crate) fn reload(&self) -> Result<bool, CredentialsError> {
        self.credentials.as_ref().map_or(Ok(false), Credentials::reload)
    }

    /// What to tell the owner about the certificate, if it is not valid for much longer.
    pub(crate) fn expiry(&self) -> Option<String> {
        self.credentials.as_ref()?.warning(SystemTime::now())
    }

    /// The ways to reach `peer`, in the order of its configuration.
    pub(crate) fn ways(&self, peer: &Peer) -> Option<Vec<Way>> {
        let way = |allowed: &Allowed| {
            let security = match (peer.transport.as_str(), allowed.transport.as_str()) {
                // Bare UDT is for those who ask for it.
                (AUTO, "udt") => Security::Encrypt,
                _ => peer.security,
            };
            Some(Way::new(&allowed.transport, self.get(&allowed.transport, security)?, allowed.port))
        };
        peer.allowed.iter().map(way).collect()
    }

    /// What tells that `peer` has died, where the connections themselves do not: the kernel resets those of TCP alone.
    pub(crate) fn beside(&self, peer: &Peer) -> Option<Way> {
        if peer.allowed.iter().all(|allowed| shows_death(&allowed.transport)) {
            return None;
        }
        let port = peer.allowed.iter().find(|allowed| allowed.transport == "tcp").and_then(|allowed| allowed.port);
        Some(Way::new("tcp", self.get("tcp", peer.security)?, port))
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

fn names_quic(config: &Config) -> bool {
    let listeners = config.listeners.iter().map(|listen| &listen.transport);
    let peers = config.peers.values().flat_map(|peer| &peer.allowed).map(|allowed| &allowed.transport);
    listeners.chain(peers).any(|name| name == "quic")
}

/// Whether a connection of this transport fails at once when the process at its other end dies.
pub(crate) fn shows_death(transport: &str) -> bool {
    transport == "tcp"
}
