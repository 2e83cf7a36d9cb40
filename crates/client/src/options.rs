//! The options of a session.

use crate::agent::Agents;
use crate::demands::Demands;
use phoebus_config::environment::variable;
use phoebus_config::logins::Logins;
use phoebus_config::settings::Settings;
use phoebus_net::credentials::Credentials;
use phoebus_net::{CongestionControl, Profile};
use phoebus_proto::endpoint::Endpoint;
use phoebus_proto::session::plan::{CONNECT_LIMIT, OPEN_LIMIT, REDIRECTS};
use phoebus_proto::units::BitRate;
use std::path::PathBuf;
use std::time::Duration;

/// How sessions are opened.
#[derive(Debug, Clone)]
pub struct Options {
    /// Gateways, the first hop first; a gateway may choose further ones. Empty: connections are direct.
    pub path: Vec<Endpoint>,
    /// E-mail address for gateways that ask for one (P26).
    pub user: Option<String>,
    /// The file of passwords that `phoebus login` keeps (P27): with one for the first gateway, the user logs in there.
    pub logins: Option<PathBuf>,
    /// Bandwidth to ask every gateway for; a session that does not get it is refused (P9, S17).
    pub bandwidth: Option<BitRate>,
    /// Further demands on every gateway (P9).
    pub demands: Demands,
    /// Mutual authentication with the first gateway before the request; the connection's data is not protected
    /// ([`phoebus_net::tls`], `auth`). `None`: no authentication. An agent always authenticates its gateway.
    pub auth: Option<Credentials>,
    /// Socket settings of the first hop.
    pub profile: Profile,
    /// Longest wait for the first gateway to accept a connection. 10 s: four SYNs; people wait no longer for a
    /// gateway that is meant to be near.
    pub connect_limit: Duration,
    /// Longest wait for the path to connect to the destination. 150 s: longer than a gateway's own connect, which
    /// takes Linux up to 127 s, so that the gateway reports the failure.
    pub open_limit: Duration,
    /// Longest time without an acknowledgement at the end of a session. 5 minutes, as the profile's user time-out.
    pub finish_limit: Duration,
    /// How many redirects to a better gateway (P10) are followed; 0: none. 4: gateways that share a load need one or
    /// two, and a session must not be redirected without end.
    pub redirects: u8,
    /// Destinations with a shorter measured round trip are connected directly (S26); zero: none.
    pub bypass_rtt: Duration,
    /// Whether to connect directly if the first gateway cannot be reached.
    pub fallback: bool,
    /// The file that remembers round trips.
    pub cache: Option<PathBuf>,
    /// Where to find an agent that carries the first hop. A running agent is used; a demanded agent must run.
    pub agents: Option<Agents>,
}

impl Default for Options {
    fn default() -> Self {
        Self::from(&Settings::default())
    }
}

impl From<&Settings> for Options {
    fn from(settings: &Settings) -> Self {
        // The system handles names that `net` does not know, and the report states what is in force.
        let congestion_control = match settings.congestion_control.as_deref() {
            None => CongestionControl::System,
            Some("bbr") => CongestionControl::Auto,
            Some(name) => name.parse().unwrap_or(CongestionControl::System),
        };
        Self {
            path: if settings.disabled { Vec::new() } else { settings.path.clone() },
            user: settings.user.clone(),
            logins: Logins::place(variable),
            bandwidth: settings.bandwidth,
            demands: Demands::default(),
            auth: None,
            profile: Profile { congestion_control, ..Profile::default() },
            connect_limit: CONNECT_LIMIT,
            open_limit: OPEN_LIMIT,
            finish_limit: Duration::from_secs(300),
            redirects: REDIRECTS,
            bypass_rtt: settings.bypass_rtt,
            fallback: settings.fallback,
            cache: settings.cache.clone(),
            agents: Agents::of(settings, variable),
        }
    }
}
