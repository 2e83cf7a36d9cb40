//! The configuration of a client-side agent (S1): a gateway on loopback with one peer, for the programs of one user.
//!
//! Where several transports may carry its hop, the first that is to be had does, by the same means as between gateways
//! (`crate::pool`), but without their rules: those save a shared host processor time, and wait for measurements; a user's hop
//! wants connections that cost no handshake however many come at once, which the streams of QUIC are.

use super::pattern::Net;
use super::{
    AUTO, Allowed, Auth, ClientCertificate, Config, Limits, Listen, Log, Pattern, Peer, Places, Pool, Route, Rule,
    Source,
};
use phoebus_net::credentials::Credentials;
use phoebus_net::transport::Security;
use phoebus_net::{CongestionControl, Profile};
use phoebus_proto::agent::{AGENT, Secret};
use phoebus_proto::endpoint::Endpoint;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

/// What an agent is made of.
#[derive(Debug, Clone)]
pub struct Agent {
    /// The first gateway, as programs name it in their paths. Its certificate has to be for this host.
    pub gateway: Endpoint,
    /// The port that takes the hop, where its transport has none of its own, and the beacon beside it.
    pub port: u16,
    /// What may carry the hop, the preferred first, at least one; all of it is encrypted. A single one is never replaced. Of
    /// several, the first that is to be had carries new sessions; those before it are tried again from time to time.
    pub ways: Vec<Allowed>,
    /// How it is set up.
    pub congestion_control: CongestionControl,
    /// Whom the agent trusts, and who its user is.
    pub credentials: Credentials,
    /// The user's e-mail address, for gateways that ask for one.
    pub contact: Option<String>,
    /// What programs have to know.
    pub secret: Secret,
    /// Whether loopback has IPv6.
    pub ipv6: bool,
    /// Where `phoebus status` asks.
    pub admin: Option<PathBuf>,
}

impl Config {
    /// The configuration of an agent. It listens on ports of loopback that the kernel chooses, takes sessions from whoever
    /// knows the secret, hands all of them to its gateway, and connects to nothing itself.
    pub fn agent(agent: Agent) -> Self {
        let Agent { gateway, port, ways, congestion_control, credentials, contact, secret, ipv6, admin } = agent;
        // A path of loopback has nothing to model, and pacing only costs there.
        let default = Arc::new(Profile { congestion_control: CongestionControl::System, ..Profile::default() });
        let profile = Arc::new(Profile { congestion_control, ..Profile::default() });
        let name = gateway.host.to_string();
        let listen = |address| Listen {
            address,
            transport: "tcp".to_owned(),
            security: Security::None,
            profile: default.clone(),
            auth: Auth::Secret(secret),
            client_certificate: ClientCertificate::Required,
        };
        let four = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let six = ipv6.then(|| SocketAddr::from((Ipv6Addr::LOCALHOST, 0)));
        let transport = match &ways[..] {
            [only] => only.transport.clone(),
            _ => AUTO.to_owned(),
        };
        let peer = Peer {
            name: name.clone(),
            address: Endpoint { host: gateway.host.clone(), port },
            transport,
            allowed: ways,
            in_order: true,
            security: Security::Encrypt,
            profile,
            from: Vec::new(),
            pool: Pool::default(),
        };
        // What may be reached is for the gateways to say: their own loopback is not this host's.
        let everywhere = ["0.0.0.0/0", "::/0", "127.0.0.0/8", "169.254.0.0/16", "::1/128", "fe80::/10"];
        let everywhere = everywhere.iter().filter_map(|net| net.parse::<Net>().ok()).map(Pattern::Net);
        Self {
            name: AGENT.to_owned(),
            credentials: Some(credentials),
            reset_key: None,
            drivers: Vec::new(),
            contact,
            listeners: [Some(four), six].into_iter().flatten().map(listen).collect(),
            routes: vec![Route { to: Pattern::Any, via: Some(name.clone()), profile: default.clone() }],
            peers: BTreeMap::from([(name, peer)]),
            direct: default,
            rates: BTreeMap::new(),
            any_control: BTreeSet::new(),
            rules: vec![Rule {
                // Loopback is reached from any address that a program has bound its socket to.
                from: ["0.0.0.0/0", "::/0"].iter().filter_map(|net| net.parse().ok()).map(Source::Net).collect(),
                to: everywhere.chain([Pattern::Any]).collect(),
                ports: Vec::new(),
            }],
            limits: Limits::default(),
            admin,
            places: Places::default(),
            log: Log::default(),
            inlet: None,
        }
    }
}
