//! The configuration of a session-aware destination (S5): a gateway whose sessions end in its own process.

use super::{
    AccountLimits, ClientCertificate, Config, Limits, Listen, Log, Net, Pattern, Places, Proved, Rule, Rules, Source,
};
use crate::local_acceptor::LocalAcceptor;
use phoebus_net::Profile;
use phoebus_net::credentials::Credentials;
use phoebus_net::transport::Security;
use phoebus_proto::entry::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::sync::Arc;

/// The settings of a destination.
#[derive(Debug, Clone)]
pub struct Destination {
    /// Its name. Gateways that have it as a peer use the same name.
    pub name: String,
    /// Its listening addresses. With port 0 the kernel chooses a port.
    pub addresses: Vec<SocketAddr>,
    /// The transport of the last hop, in addition to TCP, which is always accepted.
    pub transport: String,
    /// The minimum protection of the last hop.
    pub security: Security,
    /// Its certificate and key, and the authorities that it trusts; required unless `security` is `Security::None`.
    pub credentials: Option<Credentials>,
    /// Who may bring sessions; empty means everyone who can connect.
    pub from: Vec<Origin>,
    /// The settings of its connections.
    pub profile: Profile,
    /// Takes the sessions.
    pub inlet: Arc<dyn LocalAcceptor>,
}

/// Who may bring sessions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// Connections from these addresses.
    Net(Net),
    /// Connections with a certificate for such a name.
    Certificate(Proved),
}

impl Config {
    /// The configuration of a destination, on one thread. It accepts a session whatever host the session names: the
    /// session has reached its destination.
    pub fn destination(destination: Destination) -> Self {
        let Destination { name, addresses, transport, security, credentials, from, profile, inlet } = destination;
        let profile = Arc::new(profile);
        let mut transports = vec![transport];
        // The beacon beside a hop over UDP is a TCP connection.
        if transports[0] != "tcp" {
            transports.push("tcp".to_owned());
        }
        let listen = |address: SocketAddr, transport: &String| Listen {
            address,
            transport: transport.clone(),
            security,
            profile: profile.clone(),
            auth: Vec::new(),
            client_certificate: ClientCertificate::Required,
            entries: vec![Entry::Session],
            proxy_from: Vec::new(),
        };
        let listeners = addresses.iter().flat_map(|address| transports.iter().map(|name| listen(*address, name)));
        let everywhere = ["0.0.0.0/0", "::/0", "127.0.0.0/8", "169.254.0.0/16", "::1/128", "fe80::/10"];
        let nets = || everywhere.iter().filter_map(|net| net.parse::<Net>().ok());
        let source = |origin| match origin {
            Origin::Net(net) => Source::Net(net),
            Origin::Certificate(proved) => Source::Certificate(proved),
        };
        let sources: Vec<Source> = match from.is_empty() {
            true => nets().map(Source::Net).collect(),
            false => from.into_iter().map(source).collect(),
        };
        Self {
            name,
            credentials,
            reset_key: None,
            drivers: Vec::new(),
            contact: None,
            logins: None,
            bearer: None,
            listeners: listeners.collect(),
            peers: BTreeMap::new(),
            routes: Vec::new(),
            direct: profile.clone(),
            rates: BTreeMap::new(),
            unused_profiles: Vec::new(),
            any_control: BTreeSet::new(),
            rules: Rules::new(vec![Rule::allow(
                vec![sources],
                nets().map(Pattern::Net).chain([Pattern::Any]).collect(),
            )]),
            datagrams: Vec::new(),
            users: Arc::default(),
            issuers: Vec::new(),
            grid: None,
            limits: Limits { threads: Some(NonZeroUsize::MIN), ..Limits::default() },
            admin: None,
            account_limits: AccountLimits::default(),
            audit: None,
            places: Places::default(),
            log: Log::default(),
            inlet: Some(inlet),
        }
    }
}
