//! Gateways on the gateway hosts of a testbed: their configurations, and the processes.
//!
//! Every gateway host gets a `phoebus gateway` that is a peer of all others, listens on the session port, and admits sessions
//! from every end (a host that is no gateway) to every other end. A session whose path the client leaves open goes to the
//! gateway nearest its destination.

use super::route::{self, addresses};
use super::{Error, GatewayReport, Scenario, Testbed, state};
use phoebus_proto::endpoint::DEFAULT_PORT;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

/// What gateways to start.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct GatewayOptions {
    /// The `phoebus` program.
    pub program: PathBuf,
    /// Settings of the profile towards other gateways, by their keys in a gateway's configuration, such as
    /// `congestion_control`.
    pub wan: BTreeMap<String, String>,
    /// The same towards the ends.
    pub lan: BTreeMap<String, String>,
    /// Where the gateways' logs go; otherwise into the testbed's directory, which goes with the testbed.
    pub logs: Option<PathBuf>,
}

/// Running gateways. Dropping it kills them.
#[derive(Debug, Default)]
pub struct Gateways(Vec<Gateway>);

/// One of them.
#[derive(Debug)]
pub struct Gateway {
    /// The host that it runs in.
    pub host: String,
    /// Its process.
    pub child: Child,
    /// Its configuration.
    pub config: PathBuf,
    /// Its administration socket.
    pub admin: PathBuf,
    /// What it says on its outputs.
    pub log: PathBuf,
}

/// How long a gateway may take until it accepts connections: thousands of times what it needs on an idle machine.
const START_TIME: Duration = Duration::from_secs(20);

impl Testbed {
    /// Starts a gateway on every gateway host and waits until each accepts connections.
    ///
    /// # Errors
    ///
    /// [`Error::Gateway`], with what it said, if one ends or does not accept.
    pub fn start_gateways(&self, options: &GatewayOptions) -> Result<Gateways, Error> {
        let scenario = self.scenario();
        if !scenario.hosts.iter().any(|host| host.gateway) {
            return Err(Error::scenario(
                "gateways were asked for, but no [[host]] of the scenario says `gateway = true`",
            ));
        }
        let logs = options.logs.as_deref().unwrap_or(self.directory());
        fs::create_dir_all(logs).map_err(Error::state(logs))?;
        let mut gateways = Gateways::default();
        for (index, host) in scenario.hosts.iter().enumerate().filter(|(_, host)| host.gateway) {
            let name = &host.name;
            let admin = state::admin_socket(self.directory(), name);
            let text = configuration(scenario, index, self.addresses(name)?, &admin, options);
            let config = self.state.write(&format!("{name}.toml"), &text)?;
            let log = logs.join(format!("{name}.log"));
            let output = File::create(&log).map_err(Error::state(&log))?;
            let errors = output.try_clone().map_err(Error::state(&log))?;
            let mut command = self.exec(name, &options.program)?;
            command.arg("gateway").arg("--config").arg(&config);
            command.stdin(Stdio::null()).stdout(output).stderr(errors);
            let what = format!("cannot start {} on {name}", options.program.display());
            let child = command.spawn().map_err(Error::system(what))?;
            gateways.0.push(Gateway { host: name.clone(), child, config, admin, log });
        }
        for gateway in &mut gateways.0 {
            gateway.await_listening(self)?;
        }
        Ok(gateways)
    }
}

impl Gateways {
    /// The gateway on `host`.
    pub fn get(&mut self, host: &str) -> Option<&mut Gateway> {
        self.0.iter_mut().find(|gateway| gateway.host == host)
    }

    /// Which there are, and which have ended.
    pub fn report(&mut self) -> Vec<GatewayReport> {
        self.0.iter_mut().map(Gateway::report).collect()
    }
}

impl Drop for Gateways {
    fn drop(&mut self) {
        for gateway in &mut self.0 {
            // One that has ended needs neither.
            let _ = gateway.child.kill();
            let _ = gateway.child.wait();
        }
    }
}

impl Gateway {
    fn report(&mut self) -> GatewayReport {
        let ended = self.child.try_wait().ok().flatten().map(|status| format!("{status}{}", self.last_words()));
        GatewayReport { host: self.host.clone(), pid: self.child.id(), ended }
    }

    fn await_listening(&mut self, testbed: &Testbed) -> Result<(), Error> {
        let deadline = Instant::now() + START_TIME;
        // Looked up rather than tried: the gateway would count an attempt as a failed handshake.
        while testbed.run_in(&self.host, listeners)? < testbed.addresses(&self.host)?.len() {
            let failed = |what: String| Error::Gateway { host: self.host.clone(), what };
            if let Ok(Some(status)) = self.child.try_wait() {
                return Err(failed(format!("ended at its start, {status}{}", self.last_words())));
            }
            if Instant::now() > deadline {
                let waited = START_TIME.as_secs();
                return Err(failed(format!("accepts no connections after {waited} s{}", self.last_words())));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// The end of what it said, for a sentence.
    fn last_words(&self) -> String {
        let text = fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<_> = text.lines().filter(|line| !line.trim().is_empty()).collect();
        match &lines[lines.len().saturating_sub(5)..] {
            [] => "; it said nothing".into(),
            last => format!("; it said: {}", last.join(" | ")),
        }
    }
}

/// How many sockets listen on the session port in the calling thread's network namespace (`proc_pid_net(5)`).
fn listeners() -> usize {
    let port = format!(":{DEFAULT_PORT:04X}");
    let listens = |line: &str| {
        let mut fields = line.split_whitespace().skip(1);
        // Local address, remote address, state; 0A is LISTEN.
        fields.next().is_some_and(|local| local.ends_with(&port)) && fields.nth(1) == Some("0A")
    };
    let tables =
        ["tcp", "tcp6"].map(|table| fs::read_to_string(format!("/proc/thread-self/net/{table}")).unwrap_or_default());
    tables.iter().flat_map(|table| table.lines()).filter(|line| listens(line)).count()
}

/// The configuration of the gateway on the host at `own`.
fn configuration(scenario: &Scenario, own: usize, listen: &[IpAddr], admin: &Path, options: &GatewayOptions) -> String {
    let hosts = || scenario.hosts.iter().enumerate();
    let peers: Vec<_> = hosts().filter(|(index, host)| host.gateway && *index != own).collect();
    let ends: Vec<_> = hosts().filter(|(_, host)| !host.gateway).collect();
    // What an end may be called in a session, its addresses alone as a source.
    let called = |index: usize, name: &str, by_name: bool| -> Vec<String> {
        let text = addresses(index).into_iter().map(|address| address.to_string());
        text.chain(by_name.then(|| name.to_owned())).collect()
    };
    let routes = ends.iter().filter_map(|&(index, end)| {
        let nearest = nearest_gateway(scenario, index)?;
        let via = (nearest != own).then(|| scenario.hosts[nearest].name.clone())?;
        Some(called(index, &end.name, true).into_iter().map(move |to| Route { to, via: via.clone() }))
    });
    let allow = ends.iter().flat_map(|&(index, end)| {
        let from_end = Allow {
            from: called(index, &end.name, false),
            to: ends.iter().filter(|(to, _)| *to != index).flat_map(|&(to, end)| called(to, &end.name, true)).collect(),
        };
        let from_peers = Allow {
            from: peers.iter().map(|(_, peer)| peer.name.clone()).collect(),
            to: called(index, &end.name, true),
        };
        [from_end, from_peers]
    });
    let file = Configuration {
        name: &scenario.hosts[own].name,
        admin: Admin { socket: admin },
        profile: BTreeMap::from([("default", &options.lan), ("wan", &options.wan)]),
        listen: listen
            .iter()
            .map(|&address| Listen { address: SocketAddr::new(address, DEFAULT_PORT).to_string() })
            .collect(),
        peer: peers
            .iter()
            .map(|(_, peer)| Peer {
                name: &peer.name,
                address: format!("{}/{DEFAULT_PORT}", peer.name),
                profile: "wan",
            })
            .collect(),
        route: routes.flatten().collect(),
        allow: allow.filter(|allow| !allow.from.is_empty() && !allow.to.is_empty()).collect(),
    };
    // Text, lists and tables in an order that TOML takes, so this cannot fail; an empty file would be refused at start.
    toml::to_string(&file).unwrap_or_default()
}

/// The gateway with the least delay to the host at `to`, among equals the one that the fewest links part from it.
fn nearest_gateway(scenario: &Scenario, to: usize) -> Option<usize> {
    let distances = route::distances(scenario, to);
    let gateways = scenario.hosts.iter().enumerate().filter(|(_, host)| host.gateway);
    gateways.filter_map(|(index, _)| Some((distances[index]?, index))).min().map(|(_, index)| index)
}

#[derive(Serialize)]
struct Configuration<'a> {
    name: &'a str,
    admin: Admin<'a>,
    profile: BTreeMap<&'a str, &'a BTreeMap<String, String>>,
    listen: Vec<Listen>,
    peer: Vec<Peer<'a>>,
    route: Vec<Route>,
    allow: Vec<Allow>,
}

#[derive(Serialize)]
struct Admin<'a> {
    socket: &'a Path,
}

#[derive(Serialize)]
struct Listen {
    address: String,
}

#[derive(Serialize)]
struct Peer<'a> {
    name: &'a str,
    address: String,
    profile: &'a str,
}

#[derive(Serialize)]
struct Route {
    to: String,
    via: String,
}

#[derive(Serialize)]
struct Allow {
    from: Vec<String>,
    to: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::LinkConfig;

    #[test]
    fn each_end_is_reached_by_the_gateway_next_to_it() {
        let mut scenario = Scenario::sc09();
        for without_delay in [false, true] {
            if without_delay {
                scenario.links.iter_mut().for_each(|link| link.config = LinkConfig::default());
            }
            let nearest = |name| nearest_gateway(&scenario, scenario.host(name).unwrap());
            assert_eq!((nearest("src"), nearest("dst")), (scenario.host("pg1"), scenario.host("pg2")));
        }
    }

    #[test]
    fn the_configuration_of_one_side() {
        let options = GatewayOptions {
            wan: BTreeMap::from([("congestion_control".into(), "bbr".into())]),
            ..GatewayOptions::default()
        };
        let text = configuration(&Scenario::sc09(), 1, &addresses(1), Path::new("/run/pg1.socket"), &options);
        let file: toml::Table = text.parse().unwrap();
        let expected: toml::Table = r#"
            name = "pg1"
            admin = { socket = "/run/pg1.socket" }
            profile = { default = {}, wan = { congestion_control = "bbr" } }
            listen = [{ address = "10.9.0.2:5006" }, { address = "[fd09::2]:5006" }]
            peer = [{ name = "pg2", address = "pg2/5006", profile = "wan" }]
            route = [{ to = "10.9.0.4", via = "pg2" }, { to = "fd09::4", via = "pg2" }, { to = "dst", via = "pg2" }]
            allow = [
                { from = ["10.9.0.1", "fd09::1"], to = ["10.9.0.4", "fd09::4", "dst"] },
                { from = ["pg2"], to = ["10.9.0.1", "fd09::1", "src"] },
                { from = ["10.9.0.4", "fd09::4"], to = ["10.9.0.1", "fd09::1", "src"] },
                { from = ["pg2"], to = ["10.9.0.4", "fd09::4", "dst"] },
            ]
        "#
        .parse()
        .unwrap();
        assert_eq!(file, expected, "{text}");
    }
}
