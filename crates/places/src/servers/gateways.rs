//! Connections to servers: direct, or through gateways by `--gateways` and the common variables (P29, P30).

use super::caller::{AgentHandle, Caller, Variable};
use super::paths::{Channel, Paths, is_direct};
use super::stack::Stack;
use crate::error::{self, Result};
use crate::options::ServerOptions;
use phoebus_client::{Report, Sessions};
use phoebus_config::first_hop::FirstHop;
use phoebus_config::settings::{Key, Settings};
use phoebus_gridftp::client::{ControlStream, Route};
use phoebus_net::Error;
use phoebus_net::transport::{Boxed, Transport};
use phoebus_proto::endpoint::{Endpoint, Host};
use phoebus_proto::session::Code;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// The configured path.
pub(crate) struct GatewayPath {
    settings: Settings,
    /// Whether an option selected it, which counts for all servers; variables may exclude some.
    asked: bool,
    variables: Vec<Variable>,
    /// Keeps the agent running while there may be sessions.
    agent: Option<AgentHandle>,
    caller: Arc<dyn Caller>,
    paths: Arc<Paths>,
}

impl fmt::Debug for GatewayPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GatewayPath").field("path", &self.settings.path).finish_non_exhaustive()
    }
}

impl GatewayPath {
    /// The gateways in `options`: from `--gateways` or the stack.
    ///
    /// # Errors
    /// See [`Self::new`]; or both are given.
    pub(crate) fn said(options: &ServerOptions, caller: Arc<dyn Caller>, paths: Arc<Paths>) -> Result<Self> {
        let via = options.gateways.as_deref();
        match (via, options.stack.as_deref().map(Stack::parse).transpose()?) {
            (None, Some(Stack::Gateways { path, first_hop })) => {
                let path: Vec<String> = path.iter().map(Endpoint::to_string).collect();
                Self::new(Some(&path.join(",")), first_hop, caller, paths)
            }
            (Some(_), Some(Stack::Gateways { .. })) => {
                Err(error::Error::request("--gateways and --stack phoebus: one of the two was expected"))
            }
            (via, _) => Self::new(via, None, caller, paths),
        }
    }

    /// By `via`, or else by the caller's settings. `first_hop` overrides theirs.
    ///
    /// # Errors
    /// An invalid value ([`error::Error::Request`]).
    fn new(via: Option<&str>, first_hop: Option<FirstHop>, caller: Arc<dyn Caller>, paths: Arc<Paths>) -> Result<Self> {
        let mut variables: Vec<Variable> = match via {
            Some("none") => vec![(Key::Disable, Some("1".to_owned()))],
            Some(via) => {
                let check = Settings::default().apply(Key::Path, via);
                check.map_err(|why| error::Error::request(format!("--gateways: {why}")))?;
                vec![(Key::Path, Some(via.to_owned()))]
            }
            None => Vec::new(),
        };
        variables.extend(first_hop.map(|hop| (Key::FirstHop, Some(hop.to_string()))));
        let settings = caller.settings(&variables)?;
        let asked = via.is_some_and(|via| via != "none");
        if asked && settings.disabled {
            return Err(error::Error::request(
                "--gateways asks for gateways, and PHOEBUS_DISABLE says that there are none",
            ));
        }
        caller.check(&settings)?;
        Ok(Self { settings, asked, variables, agent: None, caller, paths })
    }

    /// The path to `server`, called `name` in errors and reports. `None` if it is the network's; then reports have the
    /// `note`.
    ///
    /// # Errors
    /// A requested agent is missing.
    pub(super) fn to(&mut self, server: &Endpoint, name: &str, note: &str) -> Result<Option<Arc<dyn Route>>> {
        if !self.goes_through(server) {
            self.paths.direct(name, Channel::Both, note);
            return Ok(None);
        }
        if self.agent.is_none() {
            let (settings, variables) = (&self.settings, &self.variables);
            self.agent = self.caller.agent(settings, variables)?;
        }
        let (settings, caller, paths) = (self.settings.clone(), self.caller.clone(), self.paths.clone());
        Ok(Some(Arc::new(Gateways { settings, caller, paths, name: name.to_owned() })))
    }

    /// For servers that another program connects to, which knows no gateways.
    ///
    /// # Errors
    /// Gateways were requested.
    pub(super) fn are_not_asked_for(&self, server: &str) -> Result<()> {
        match self.asked {
            true => Err(error::Error::request(format!(
                "{}: ssh connects by itself, and not through gateways (--gateways); phoebus run carries a command's \
                 connections through them, ssh's too",
                server.trim_end_matches(':')
            ))),
            false => Ok(()),
        }
    }

    /// Records that another program has connected to `server`.
    pub(super) fn beside(&self, server: &str, note: &str) {
        self.paths.direct(server, Channel::Both, note);
    }

    fn goes_through(&self, server: &Endpoint) -> bool {
        let settings = &self.settings;
        match &server.host {
            _ if settings.path.is_empty() => false,
            _ if self.asked => true,
            Host::Addr(addr) => settings.selects((*addr, server.port).into(), std::iter::empty()),
            Host::Name(name) => settings.selects_name(name, server.port),
        }
    }
}

/// Gateways between this end and a server.
struct Gateways {
    settings: Settings,
    caller: Arc<dyn Caller>,
    paths: Arc<Paths>,
    name: String,
}

impl fmt::Debug for Gateways {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gateways").field("path", &self.settings.path).finish_non_exhaustive()
    }
}

impl Gateways {
    /// Sessions for `channel`. If commands go through gateways, data must too: servers accept it only from the address
    /// of the control connection.
    fn sessions(&self, channel: Channel) -> Sessions {
        self.noted_sessions(channel, "")
    }

    /// The same with this note in reports.
    fn noted_sessions(&self, channel: Channel, note: &'static str) -> Sessions {
        let mut options = self.caller.sessions(&self.settings);
        if channel == Channel::Both {
            (options.fallback, options.bypass_rtt) = (false, Duration::ZERO);
        }
        let (paths, name) = (self.paths.clone(), self.name.clone());
        let (caller, settings) = (self.caller.clone(), self.settings.clone());
        let channel = if channel == Channel::Both { Channel::Data } else { channel };
        Sessions::new(options, move |report| {
            let said = report.note.as_str();
            let both = [said, note].iter().filter(|note| !note.is_empty()).copied().collect::<Vec<_>>().join("; ");
            paths.add(&name, channel, &Report { note: both, ..report.clone() });
            caller.opened(&settings, report);
        })
    }
}

impl Route for Gateways {
    fn reach<'a>(&'a self, server: &'a Endpoint, limit: Duration) -> Boxed<'a, Result<ControlStream, Error>> {
        Box::pin(async move {
            let (stream, report) = self.sessions(Channel::Control).open(server, limit).await?;
            if is_direct(&report) {
                self.paths.direct(&self.name, Channel::Data, &report.note);
                let peer = stream.peer_addr().map_err(|error| lost(server, &phoebus_net::reason(&error)))?;
                return Ok(ControlStream { stream, server: peer, data: None });
            }
            // The last hop leads to the server, and the last gateway reports its address.
            let last = report.hops.last().and_then(|hop| hop.to.parse::<SocketAddr>().ok());
            let known = || match server.host {
                Host::Addr(addr) => Some((addr, server.port).into()),
                Host::Name(_) => None,
            };
            let peer = last.or_else(known).ok_or_else(|| lost(server, "the last gateway does not say where it is"))?;
            Ok(ControlStream { stream, server: peer, data: Some(Arc::new(self.sessions(Channel::Both))) })
        })
    }

    fn objects(&self) -> Option<Arc<dyn Transport>> {
        let mut sessions = self.noted_sessions(Channel::Both, "as objects");
        sessions.ask_for_datagrams();
        Some(Arc::new(sessions))
    }

    fn data(&self) -> Arc<dyn Transport> {
        self.paths.direct(&self.name, Channel::Control, "data connections prove who they are");
        Arc::new(self.sessions(Channel::Data))
    }
}

fn lost(server: &Endpoint, why: &str) -> Error {
    Error::Carrier { code: Code::ConnectFailed, reason: format!("cannot reach {server} through gateways: {why}") }
}
