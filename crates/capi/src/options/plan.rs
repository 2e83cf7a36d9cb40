//! The meaning of options for the accepting side.

use super::SessionOptions;
use crate::failure::Failure;
use phoebus_client::{AcceptOptions, Options};
use phoebus_config::settings::Settings;
use phoebus_gateway::config::Origin;
use phoebus_net::Profile;
use phoebus_net::credentials::Credentials;
use phoebus_net::transport::Security;
use phoebus_proto::endpoint::is_name;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::time::Duration;

/// The settings of a listening destination.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) name: String,
    pub(crate) addresses: Vec<SocketAddr>,
    pub(crate) transport: String,
    pub(crate) security: Security,
    pub(crate) credentials: Option<Credentials>,
    pub(crate) from: Vec<Origin>,
    pub(crate) profile: Profile,
    pub(crate) finish_limit: Duration,
}

impl SessionOptions {
    /// How to listen on `address` with these options; empty: on all addresses of this host.
    pub(crate) fn listening(&self, address: &str, port: u16) -> Result<Plan, Failure> {
        if let Some(failure) = &self.failure {
            return Err(failure.clone());
        }
        let transport = self.demands.transport.clone().unwrap_or_else(|| "tcp".to_owned());
        let credentials = self.credentials()?;
        if !["tcp", "udt", "quic"].contains(&transport.as_str()) {
            let why = format!(
                "option transport: \"{transport}\" is not what a destination listens with; expected tcp, udt or quic"
            );
            return Err(Failure::argument(why));
        }
        if transport != "tcp" && port == 0 {
            let why = format!("{transport} and the TCP beside it have the same port, so that it cannot be 0");
            return Err(Failure::argument(why));
        }
        let own = self.settings.certificate.is_some();
        if (self.security != Security::None || transport == "quic") && !(credentials.is_some() && own) {
            let why = "a destination that is to be proved shows a certificate; set certificate, key and authorities";
            return Err(Failure::argument(why));
        }
        let addresses: Vec<IpAddr> = match address {
            // With port 0, two addresses would get two different ports.
            "" if port != 0 && TcpListener::bind((Ipv6Addr::UNSPECIFIED, 0)).is_ok() => {
                vec![Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()]
            }
            "" => vec![Ipv4Addr::UNSPECIFIED.into()],
            address => {
                let wrong = |_| format!("\"{address}\" is not an address of this host such as 192.0.2.1");
                vec![address.trim_matches(['[', ']']).parse().map_err(wrong).map_err(Failure::argument)?]
            }
        };
        let Options { profile, finish_limit, .. } = Options::from(&Settings::default());
        Ok(Plan {
            name: self.name.clone().unwrap_or_else(host_name),
            addresses: addresses.into_iter().map(|address| SocketAddr::new(address, port)).collect(),
            transport,
            security: self.security,
            credentials: credentials.filter(|_| own),
            from: self.from.clone(),
            profile: Profile { send_buffer: self.send_buffer, receive_buffer: self.receive_buffer, ..profile },
            finish_limit: self.finish_limit.map_or(finish_limit, |span| span.0),
        })
    }

    /// The terms for a session on a connection from `from`, if that is known.
    pub(crate) fn terms(&self, from: Option<SocketAddr>) -> Result<AcceptOptions, Failure> {
        if let Some(failure) = &self.failure {
            return Err(failure.clone());
        }
        if self.security != Security::None {
            let why = "option security: who connects to a program's own connection proves nothing there; expected none, or a \
                       listener";
            return Err(Failure::argument(why));
        }
        let fits = |origin: &Origin| match (origin, from) {
            (Origin::Net(net), Some(from)) => net.contains(from.ip().to_canonical()),
            // No certificate is presented on such a connection.
            (Origin::Certificate(_), _) | (Origin::Net(_), None) => false,
        };
        Ok(AcceptOptions {
            name: self.name.clone().unwrap_or_else(host_name),
            from,
            admitted: self.from.is_empty() || self.from.iter().any(fits),
            limit: self.connect_limit.map_or(Options::default().connect_limit, |span| span.0),
        })
    }
}

/// The host's name, if gateways accept it as a name.
fn host_name() -> String {
    let name = rustix::system::uname().nodename().to_string_lossy().to_ascii_lowercase();
    if is_name(&name) { name } else { "destination".to_owned() }
}
