//! The configuration of a client-side agent (S1): a gateway on loopback with one peer, for the programs of one user.
//!
//! If several transports may carry its hop, the first available one does, by the same mechanism as between gateways
//! (`crate::pool`) but without their rules. Those rules save processor time on a shared host, and wait for
//! measurements. A user's hop needs connections that cost no handshake, however many open at once, and QUIC streams are
//! such connections.

use super::range::Net;
use super::{
    AUTO, AccountLimits, Allowed, ClientCertificate, Config, Limits, Listen, Log, Mechanism, Pattern, Peer, Places,
    Pool, Route, Rule, Rules,
};
use phoebus_config::agent::{AGENT, Secret};
use phoebus_config::bearer::BearerPlaces;
use phoebus_net::credentials::Credentials;
use phoebus_net::transport::Security;
use phoebus_net::{CongestionControl, Profile};
use phoebus_proto::endpoint::Endpoint;
use phoebus_proto::entry::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

/// The settings of an agent.
#[derive(Debug, Clone)]
pub struct Agent {
    /// The first gateway, as programs name it in their paths. Its certificate must be for this host.
    pub gateway: Endpoint,
    /// The gateway's port for the hop (unless its transport has another) and for the beacon beside it.
    pub port: u16,
    /// The transports that may carry the hop, the preferred one first; at least one. All are encrypted, if there are
    /// credentials. A single one is
    /// never replaced. Of several, the first available one carries new sessions; those before it are tried again from
    /// time to time.
    pub allowed: Vec<Allowed>,
    /// The congestion control of the hop.
    pub congestion_control: CongestionControl,
    /// The authorities that the agent trusts, and its user's certificate. `None`: the hop is one by TCP without TLS.
    pub credentials: Option<Credentials>,
    /// The user's e-mail address, for gateways that ask for one.
    pub contact: Option<String>,
    /// The file with the user's passwords at gateways.
    pub logins: Option<PathBuf>,
    /// Where the user's token is.
    pub bearer: Option<BearerPlaces>,
    /// The secret that programs must present: by AUTH, or in hexadecimal digits as the password of SOCKS and HTTP. There, the
    /// user's name is the path.
    pub secret: Secret,
    /// Whether loopback has IPv6.
    pub ipv6: bool,
    /// The administration socket, which `phoebus status` queries.
    pub admin: Option<PathBuf>,
}

impl Config {
    /// The configuration of an agent. It listens on loopback, on ports that the kernel chooses; accepts sessions from
    /// programs that know the secret; passes all of them to its gateway; and connects to no destination itself.
    pub fn agent(agent: Agent) -> Self {
        let Agent { gateway, port, allowed, congestion_control, credentials, .. } = agent;
        let Agent { contact, logins, bearer, secret, ipv6, admin, .. } = agent;
        // Loopback has no path to model, and pacing only costs time there.
        let default = Arc::new(Profile { congestion_control: CongestionControl::System, ..Profile::default() });
        let profile = Arc::new(Profile { congestion_control, ..Profile::default() });
        let name = gateway.host.to_string();
        let (security, pool) = match credentials {
            Some(_) => (Security::Encrypt, Pool::default()),
            // Gateways do not keep idle connections that nothing protects.
            None => (Security::None, Pool { min: 0, ..Pool::default() }),
        };
        let listen = |address| Listen {
            address,
            transport: "tcp".to_owned(),
            security: Security::None,
            profile: default.clone(),
            auth: vec![Mechanism::Agent(secret)],
            client_certificate: ClientCertificate::Required,
            entries: Entry::ALL.to_vec(),
            proxy_from: Vec::new(),
        };
        let four = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let six = ipv6.then(|| SocketAddr::from((Ipv6Addr::LOCALHOST, 0)));
        let transport = match &allowed[..] {
            [only] => only.transport.clone(),
            _ => AUTO.to_owned(),
        };
        let peer = Peer {
            name: name.clone(),
            address: Endpoint { host: gateway.host.clone(), port },
            transport,
            allowed,
            in_order: true,
            security,
            fingerprint: None,
            profile,
            from: Vec::new(),
            speaks_for: Vec::new(),
            pool,
        };
        // The gateways decide which destinations are allowed: their loopback is not this host's.
        let everywhere = ["0.0.0.0/0", "::/0", "127.0.0.0/8", "169.254.0.0/16", "::1/128", "fe80::/10"];
        let everywhere = everywhere.iter().filter_map(|net| net.parse::<Net>().ok()).map(Pattern::Net);
        Self {
            name: AGENT.to_owned(),
            credentials,
            reset_key: None,
            drivers: Vec::new(),
            contact,
            logins: logins.map(|file| (file, gateway.clone())),
            bearer,
            listeners: [Some(four), six].into_iter().flatten().map(listen).collect(),
            routes: vec![Route {
                to: Pattern::Any,
                via: Some(name.clone()),
                profile: default.clone(),
                proxy_header: false,
                from_client: false,
            }],
            peers: BTreeMap::from([(name, peer)]),
            direct: default,
            rates: BTreeMap::new(),
            unused_profiles: Vec::new(),
            any_control: BTreeSet::new(),
            // A program reaches loopback from any address that it has bound its socket to.
            rules: Rules::new(vec![Rule::allow(Vec::new(), everywhere.chain([Pattern::Any]).collect())]),
            limits: Limits::default(),
            datagrams: [Some(four), six].into_iter().flatten().collect(),
            users: Arc::default(),
            issuers: Vec::new(),
            grid: None,
            admin,
            account_limits: AccountLimits::default(),
            audit: None,
            places: Places::default(),
            log: Log::default(),
            inlet: None,
        }
    }
}
