//! The way to servers: directly, or through gateways by `--gateways` and the variables that all programs of Phoebus know (P29, P30),
//! and what was taken of it, for reports (S20).

use crate::agent;
use crate::exit::{self, Exit};
use crate::options::{self, Variable, append_report};
use anyhow::Result;
use phoebus_client::{Options, Report, Sessions};
use phoebus_gridftp::client::{Reached, Way};
use phoebus_net::Error;
use phoebus_net::transport::{Boxed, Transport};
use phoebus_proto::endpoint::{Endpoint, Host};
use phoebus_proto::first_hop::FirstHop;
use phoebus_proto::session::Code;
use phoebus_proto::settings::{Key, Settings};
use serde_json::{Value, json};
use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// What is said of the way.
pub(crate) struct Ways {
    settings: Settings,
    /// Whether the way was asked for by an option, which counts for all servers; variables leave some out.
    asked: bool,
    variables: Vec<Variable>,
    /// Held for as long as there may be sessions.
    agent: Option<agent::Held>,
    paths: Arc<Paths>,
}

impl fmt::Debug for Ways {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ways").field("path", &self.settings.path).finish_non_exhaustive()
    }
}

impl Ways {
    /// By the option `--gateways`, or else by the environment and the user's and the administrator's files; by `first_hop`, if that is
    /// said, whatever they say of it.
    ///
    /// # Errors
    /// One sentence, exit code 2.
    pub(crate) fn new(via: Option<&str>, first_hop: Option<FirstHop>, paths: Arc<Paths>) -> Result<Self> {
        let mut variables: Vec<Variable> = match via {
            Some("none") => vec![(Key::Disable, Some("1".to_owned()))],
            Some(via) => {
                let check = Settings::default().apply(Key::Path, via);
                check.map_err(|why| Exit::usage(format!("--gateways: {why}")))?;
                vec![(Key::Path, Some(via.to_owned()))]
            }
            None => Vec::new(),
        };
        variables.extend(first_hop.map(|hop| (Key::FirstHop, Some(hop.to_string()))));
        let settings = options::settings(&variables)?;
        let asked = via.is_some_and(|via| via != "none");
        if asked && settings.disabled {
            return Err(Exit::usage("--gateways asks for gateways, and PHOEBUS_DISABLE says that there are none"));
        }
        options::check_report(&settings)?;
        Ok(Self { settings, asked, variables, agent: None, paths })
    }

    /// The way to `server`, which errors and reports call `name`; none, if it is the network's own, of which
    /// reports have the `note`.
    ///
    /// # Errors
    /// There is no agent that was asked for.
    pub(super) fn to(&mut self, server: &Endpoint, name: &str, note: &str) -> Result<Option<Arc<dyn Way>>> {
        if !self.goes_through(server) {
            self.paths.direct(name, Channel::Both, note);
            return Ok(None);
        }
        if self.agent.is_none() {
            let (settings, variables) = (&self.settings, &self.variables);
            self.agent = tokio::task::block_in_place(|| agent::ensure(settings, variables, exit::PASSING))?;
        }
        let (settings, paths) = (self.settings.clone(), self.paths.clone());
        Ok(Some(Arc::new(Gateways { settings, paths, name: name.to_owned() })))
    }

    /// For servers that another program connects to, which knows of no gateways.
    ///
    /// # Errors
    /// Gateways were asked for.
    pub(super) fn are_not_asked_for(&self, server: &str) -> Result<()> {
        match self.asked {
            true => {
                Err(Exit::usage(format!("{server}: ssh connects by itself, and not through gateways (--gateways)")))
            }
            false => Ok(()),
        }
    }

    /// Notes that another program has connected to `server`.
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
    paths: Arc<Paths>,
    name: String,
}

impl fmt::Debug for Gateways {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gateways").field("path", &self.settings.path).finish_non_exhaustive()
    }
}

impl Gateways {
    /// Sessions for `channel`. Beside commands that go through gateways, data does too, or not at all: servers take it only from
    /// where commands come from.
    fn sessions(&self, channel: Channel) -> Sessions {
        let mut options = Options::from(&self.settings);
        if channel == Channel::Both {
            (options.fallback, options.bypass_rtt) = (false, Duration::ZERO);
        }
        let (paths, name, settings) = (self.paths.clone(), self.name.clone(), self.settings.clone());
        Sessions::new(options, move |report| {
            paths.add(&name, if channel == Channel::Both { Channel::Data } else { channel }, report);
            if settings.verbose {
                eprintln!("phoebus: {report}");
            }
            append_report(&settings, report);
        })
    }
}

impl Way for Gateways {
    fn reach<'a>(&'a self, server: &'a Endpoint, limit: Duration) -> Boxed<'a, Result<Reached, Error>> {
        Box::pin(async move {
            let (stream, report) = self.sessions(Channel::Control).open(server, limit).await?;
            if is_direct(&report) {
                self.paths.direct(&self.name, Channel::Data, &report.note);
                let peer = stream.peer_addr().map_err(|error| lost(server, &phoebus_net::reason(&error)))?;
                return Ok(Reached { stream, server: peer, data: None });
            }
            // The last hop leads to the server, and the last gateway says where that is.
            let last = report.hops.last().and_then(|hop| hop.to.parse::<SocketAddr>().ok());
            let known = || match server.host {
                Host::Addr(addr) => Some((addr, server.port).into()),
                Host::Name(_) => None,
            };
            let peer = last.or_else(known).ok_or_else(|| lost(server, "the last gateway does not say where it is"))?;
            Ok(Reached { stream, server: peer, data: Some(Arc::new(self.sessions(Channel::Both))) })
        })
    }

    fn data(&self) -> Arc<dyn Transport> {
        self.paths.direct(&self.name, Channel::Control, "data connections prove who they are");
        Arc::new(self.sessions(Channel::Data))
    }
}

fn lost(server: &Endpoint, why: &str) -> Error {
    Error::Carrier { code: Code::ConnectFailed, reason: format!("cannot reach {server} through gateways: {why}") }
}

fn is_direct(report: &Report) -> bool {
    report.session.is_empty()
}

/// What goes a way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Channel {
    Control,
    Data,
    Both,
}

/// The ways that connections have taken.
#[derive(Debug, Default)]
pub(crate) struct Paths(Mutex<Vec<Taken>>);

/// A way that was taken.
#[derive(Debug, PartialEq, Eq)]
struct Taken {
    server: String,
    channel: Channel,
    /// The gateways; none, if it was direct.
    by: Vec<String>,
    /// What is to be said of it.
    note: String,
    /// The report of its first session.
    first: Option<Report>,
    sessions: u64,
}

impl Paths {
    fn all(&self) -> MutexGuard<'_, Vec<Taken>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes connections that go directly.
    fn direct(&self, server: &str, channel: Channel, note: &str) {
        self.note(Taken {
            server: server.to_owned(),
            channel,
            by: Vec::new(),
            note: note.to_owned(),
            first: None,
            sessions: 0,
        });
    }

    fn add(&self, server: &str, channel: Channel, report: &Report) {
        let between = report.hops.split_last().map_or(&[][..], |(_, between)| between);
        let by = if is_direct(report) { Vec::new() } else { between.iter().map(|hop| hop.to.clone()).collect() };
        let (note, first) = (report.note.clone(), Some(report.clone()));
        self.note(Taken { server: server.to_owned(), channel, by, note, first, sessions: 1 });
    }

    fn note(&self, taken: Taken) {
        let mut all = self.all();
        let same = |known: &&mut Taken| {
            (&known.server, known.channel, &known.by, &known.note)
                == (&taken.server, taken.channel, &taken.by, &taken.note)
        };
        match all.iter_mut().find(same) {
            Some(known) => known.sessions += taken.sessions,
            None => all.push(taken),
        }
    }

    /// For machines: each way that was taken.
    pub(crate) fn json(&self) -> Value {
        let one = |taken: &Taken| {
            let channel = match taken.channel {
                Channel::Control => "control",
                Channel::Data => "data",
                Channel::Both => "all",
            };
            json!({
                "server": taken.server,
                "channel": channel,
                "path": if taken.by.is_empty() { json!("direct") } else { json!(taken.by) },
                "sessions": taken.sessions,
                "note": taken.note,
                "first_session": taken.first,
            })
        };
        Value::Array(self.all().iter().map(one).collect())
    }

    /// Whether no server was used.
    pub(crate) fn is_empty(&self) -> bool {
        self.all().is_empty()
    }
}

/// For people: `direct`, `by pg1, pg2`, `commands direct, data by pg1`; of several servers that differ, each.
impl fmt::Display for Paths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = self.all();
        let mut servers: Vec<&str> = Vec::new();
        for taken in all.iter() {
            if !servers.contains(&taken.server.as_str()) {
                servers.push(&taken.server);
            }
        }
        let of = |server: &str| of_server(&all.iter().filter(|taken| taken.server == server).collect::<Vec<_>>());
        let said: Vec<String> = servers.iter().map(|server| of(server)).collect();
        match &said[..] {
            [first, rest @ ..] if rest.iter().all(|other| other == first) => f.write_str(first),
            _ => {
                let each = servers.iter().zip(&said).map(|(server, said)| format!("{server} {said}"));
                f.write_str(&each.collect::<Vec<_>>().join("; "))
            }
        }
    }
}

fn of_server(taken: &[&Taken]) -> String {
    let mut parts: Vec<(&str, String)> = Vec::new();
    for Taken { channel, by, note, .. } in taken {
        let way = if by.is_empty() { "direct".to_owned() } else { format!("by {}", by.join(", ")) };
        // Direct is said of the note already where that says why.
        let way = match (note.strip_prefix("direct: "), by.is_empty()) {
            (Some(why), true) => format!("direct ({why})"),
            _ if note.is_empty() => way,
            _ => format!("{way} ({note})"),
        };
        let what = match channel {
            Channel::Control => "commands",
            Channel::Data => "data",
            Channel::Both => "",
        };
        parts.push((what, way));
    }
    match &parts[..] {
        [(_, first), rest @ ..] if rest.iter().all(|(_, other)| other == first) => first.clone(),
        _ => parts.iter().map(|(what, way)| format!("{what} {way}").trim().to_owned()).collect::<Vec<_>>().join(", "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use phoebus_client::Hop;

    fn report(by: &[&str], note: &str) -> Report {
        let hop = |to: &str| Hop { to: to.to_owned(), ..Hop::default() };
        let hops = by.iter().copied().chain(["10.0.0.4:21"]).map(hop).collect();
        let session = if by.is_empty() { "" } else { "5" }.to_owned();
        Report { session, hops, note: note.to_owned(), ..Report::default() }
    }

    #[test]
    fn ways_are_told_in_a_few_words() {
        let paths = Paths::default();
        paths.direct("ftp://a", Channel::Both, "");
        assert_eq!(paths.to_string(), "direct");
        let paths = Paths::default();
        for channel in [Channel::Control, Channel::Data, Channel::Data] {
            paths.add("ftp://a", channel, &report(&["pg1", "pg2"], ""));
        }
        assert_eq!(paths.to_string(), "by pg1, pg2");
        assert_eq!((paths.json()[1]["sessions"].as_u64(), paths.json()[1]["path"][1].as_str()), (Some(2), Some("pg2")));
        paths.direct("ftp://b", Channel::Both, "");
        assert_eq!(paths.to_string(), "ftp://a by pg1, pg2; ftp://b direct");
        let paths = Paths::default();
        paths.direct("gsiftp://a", Channel::Control, "why");
        paths.add("gsiftp://a", Channel::Data, &report(&["pg1"], ""));
        assert_eq!(paths.to_string(), "commands direct (why), data by pg1");
        let paths = Paths::default();
        paths.add("ftp://a", Channel::Control, &report(&[], "direct: gateway pg1: no answer"));
        paths.direct("ftp://a", Channel::Data, "direct: gateway pg1: no answer");
        assert_eq!(paths.to_string(), "direct (gateway pg1: no answer)");
    }
}
