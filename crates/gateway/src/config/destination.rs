//! The configuration of a session-aware destination (S5): a gateway whose sessions end in its own process.

use super::{Auth, ClientCertificate, Config, Limits, Listen, Log, Net, Pattern, Places, Proved, Rule, Source};
use crate::inlet::Inlet;
use phoebus_net::Profile;
use phoebus_net::credentials::Credentials;
use phoebus_net::transport::Security;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::sync::Arc;

/// What a destination is made of.
#[derive(Debug, Clone)]
pub struct Destination {
    /// What it calls itself: gateways that have it for a peer call it so too.
    pub name: String,
    /// Where it listens. With port 0 the kernel chooses one.
    pub addresses: Vec<SocketAddr>,
    /// What carries the last hop, beside TCP, which is always taken.
    pub transport: String,
    /// The least protection of it.
    pub security: Security,
    /// Who it is, and whom it trusts; needed for all but `Security::None`.
    pub credentials: Option<Credentials>,
    /// Whom it takes sessions from; empty: everyone who can connect.
    pub from: Vec<Origin>,
    /// How connections are set up.
    pub profile: Profile,
    /// What takes the sessions.
    pub inlet: Arc<dyn Inlet>,
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
    /// The configuration of a destination, on one thread. Whatever host a session names, it has come to where it was to go.
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
            auth: Auth::default(),
            client_certificate: ClientCertificate::Required,
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
            listeners: listeners.collect(),
            peers: BTreeMap::new(),
            routes: Vec::new(),
            direct: profile.clone(),
            rates: BTreeMap::new(),
            any_control: BTreeSet::new(),
            rules: vec![Rule {
                from: sources,
                to: nets().map(Pattern::Net).chain([Pattern::Any]).collect(),
                ports: Vec::new(),
            }],
            limits: Limits { threads: Some(NonZeroUsize::MIN), ..Limits::default() },
            admin: None,
            places: Places::default(),
            log: Log::default(),
            inlet: Some(inlet),
        }
    }
}
