//! What a session is asked for with.

use crate::agent::Agents;
use crate::demands::Demands;
use crate::environment::variable;
use phoebus_net::credentials::Credentials;
use phoebus_net::{CongestionControl, Profile};
use phoebus_proto::endpoint::Endpoint;
use phoebus_proto::settings::Settings;
use phoebus_proto::units::BitRate;
use std::path::PathBuf;
use std::time::Duration;

/// How sessions are to be made.
#[derive(Debug, Clone)]
pub struct Options {
    /// Gateways, the first hop first; one may choose further ones. Empty: connections are direct.
    pub path: Vec<Endpoint>,
    /// E-mail address for gateways that ask for one (P26).
    pub user: Option<String>,
    /// Bandwidth to ask every gateway for; a session that does not get it is refused (P9, S17).
    pub bandwidth: Option<BitRate>,
    /// What else to ask of every gateway (P9).
    pub demands: Demands,
    /// Proves this end to the first gateway and that to this end, before the session is asked for; what it carries is not
    /// protected ([`phoebus_net::tls`], `auth`). `None`: nobody proves anything. An agent proves its gateway in any case.
    pub auth: Option<Credentials>,
    /// The socket of the first hop.
    pub profile: Profile,
    /// How long the first gateway may take to accept a connection. 10 s: four SYNs, and no more patience than people have
    /// for something that is meant to be near.
    pub connect_limit: Duration,
    /// How long the path may take to say that the destination has connected. 150 s: longer than a gateway's own connect,
    /// for which Linux takes up to 127 s, so that it is the gateway that says what is wrong.
    pub open_limit: Duration,
    /// How long, at the end of a session, the far side may acknowledge nothing. 5 minutes, as the profile's user time-out.
    pub finish_limit: Duration,
    /// How many times a gateway that refuses may name a better one (P10), which is then asked in its place; 0: none is
    /// followed. 4: gateways that share a load need one or two, and a session is not to be sent around for ever.
    pub redirects: u8,
    /// Destinations whose path measured a shorter round trip go direct (S26); zero: none.
    pub bypass_rtt: Duration,
    /// Whether to go direct when the first gateway cannot be reached.
    pub fallback: bool,
    /// Where round trips are remembered.
    pub cache: Option<PathBuf>,
    /// Where an agent is found that carries the first hop. One that runs is used; one that is demanded has to.
    pub agents: Option<Agents>,
}

impl Default for Options {
    fn default() -> Self {
        Self::from(&Settings::default())
    }
}

impl From<&Settings> for Options {
    fn from(settings: &Settings) -> Self {
        // What `net` does not know by name is left to the system, and the report says what is in force.
        let congestion_control = match settings.congestion_control.as_deref() {
            None => CongestionControl::System,
            Some("bbr") => CongestionControl::Auto,
            Some(name) => name.parse().unwrap_or(CongestionControl::System),
        };
        Self {
            path: if settings.disabled { Vec::new() } else { settings.path.clone() },
            user: settings.user.clone(),
            bandwidth: settings.bandwidth,
            demands: Demands::default(),
            auth: None,
            profile: Profile { congestion_control, ..Profile::default() },
            connect_limit: Duration::from_secs(10),
            open_limit: Duration::from_secs(150),
            finish_limit: Duration::from_secs(300),
            redirects: 4,
            bypass_rtt: settings.bypass_rtt,
            fallback: settings.fallback,
            cache: settings.cache.clone(),
            agents: Agents::of(settings, variable),
        }
    }
}
