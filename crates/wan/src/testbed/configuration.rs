//! The configurations of a testbed's gateways: they are peers of each other, and admit sessions between the
//! ends.

use super::environment::certificate_files;
use super::gateway_options::GatewayOptions;
use super::route::{self, addresses};
use super::scenario::Scenario;
use phoebus_proto::endpoint::DEFAULT_PORT;
use serde::Serialize;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

/// UDP port for UDT, because QUIC uses the session port.
const UDT_PORT: u16 = DEFAULT_PORT + 1;
/// UDP port for datagrams beside sessions.
const DATAGRAM_PORT: u16 = DEFAULT_PORT + 2;

/// The configuration of the gateway on the host at `own`.
pub(super) fn configuration(
    scenario: &Scenario,
    own: usize,
    listen: &[IpAddr],
    admin: &Path,
    options: &GatewayOptions,
) -> String {
    let hosts = || scenario.hosts.iter().enumerate();
    let peers: Vec<_> = hosts().filter(|(index, host)| host.gateway && *index != own).collect();
    let ends: Vec<_> = hosts().filter(|(_, host)| !host.gateway).collect();
    // The names of an end in a session's destination; as a source, only its addresses.
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
    let transport = options.transport.as_deref().unwrap_or("tcp");
    let security = options.security.as_deref().unwrap_or("none");
    let is_auto = transport == "auto";
    let port = if transport == "udt" { UDT_PORT } else { DEFAULT_PORT };
    let has_certificates = options.certificates.is_some();
    let udt = if transport == "udt" { Some(security) } else { has_certificates.then_some("encrypt") };
    let quic = has_certificates || transport == "quic";
    // TCP on the session port comes last: once it listens, all others do.
    let sockets = [
        quic.then_some((DEFAULT_PORT, "quic", None)),
        udt.map(|security| (UDT_PORT, "udt", Some(security))),
        // For the beacons of UDT.
        udt.map(|_| (UDT_PORT, "tcp", None)),
        Some((DEFAULT_PORT, "tcp", None)),
    ];
    let file = Configuration {
        name: &scenario.hosts[own].name,
        admin: Admin { socket: admin },
        datagrams: Datagrams {
            addresses: listen.iter().map(|address| SocketAddr::new(*address, DATAGRAM_PORT).to_string()).collect(),
        },
        profile: BTreeMap::from([("default", &options.lan), ("wan", &options.wan)]),
        tls: options.certificates.as_ref().map(|_| Tls::of(&scenario.hosts[own].name)),
        listen: sockets
            .into_iter()
            .flatten()
            .flat_map(|(port, transport, security)| {
                let listen = listen.iter().map(move |address| SocketAddr::new(*address, port).to_string());
                listen.map(move |address| Listen { address, transport, security })
            })
            .collect(),
        peer: peers
            .iter()
            .map(|(_, peer)| Peer {
                name: &peer.name,
                address: format!("{}/{port}", peer.name),
                transport,
                allowed: is_auto.then(|| vec!["tcp".to_owned(), "quic".to_owned(), format!("udt/{UDT_PORT}")]),
                security,
                profile: "wan",
                streams: options.streams,
            })
            .collect(),
        route: routes.flatten().collect(),
        allow: allow.filter(|allow| !allow.from.is_empty() && !allow.to.is_empty()).collect(),
    };
    // The structure orders lists and tables as TOML requires, so this cannot fail; a gateway would refuse an
    // empty file.
    toml::to_string(&file).unwrap_or_default()
}

/// The gateway with the least delay to the host at `to`; among equals, the one with the fewest links in
/// between.
fn nearest_gateway(scenario: &Scenario, to: usize) -> Option<usize> {
    let distances = route::distances(scenario, to);
    let gateways = scenario.hosts.iter().enumerate().filter(|(_, host)| host.gateway);
    gateways.filter_map(|(index, _)| Some((distances[index]?, index))).min().map(|(_, index)| index)
}

#[derive(Serialize)]
struct Configuration<'a> {
    name: &'a str,
    admin: Admin<'a>,
    datagrams: Datagrams,
    #[serde(skip_serializing_if = "Option::is_none")]
    tls: Option<Tls>,
    profile: BTreeMap<&'a str, &'a BTreeMap<String, String>>,
    listen: Vec<Listen<'a>>,
    peer: Vec<Peer<'a>>,
    route: Vec<Route>,
    allow: Vec<Allow>,
}

#[derive(Serialize)]
struct Datagrams {
    addresses: Vec<String>,
}

#[derive(Serialize)]
struct Admin<'a> {
    socket: &'a Path,
}

#[derive(Serialize)]
struct Tls {
    certificate: String,
    key: String,
    authorities: String,
}

impl Tls {
    fn of(host: &str) -> Self {
        let [certificate, key, authorities] = certificate_files(host);
        Self { certificate, key, authorities }
    }
}

#[derive(Serialize)]
struct Listen<'a> {
    address: String,
    transport: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    security: Option<&'a str>,
}

#[derive(Serialize)]
struct Peer<'a> {
    name: &'a str,
    address: String,
    transport: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    allowed: Option<Vec<String>>,
    security: &'a str,
    profile: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    streams: Option<u16>,
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
    use super::super::Certificates;
    use super::*;
    use crate::model::LinkConfig;

    #[test]
    fn nearest_gateway_serves_each_end() {
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
    fn configuration_contains_peers_routes_and_rules() {
        let options = GatewayOptions {
            wan: BTreeMap::from([("congestion_control".into(), "bbr".into())]),
            ..GatewayOptions::default()
        };
        let text = configuration(&Scenario::sc09(), 1, &addresses(1), Path::new("/run/pg1.socket"), &options);
        let file: toml::Table = text.parse().unwrap();
        let expected: toml::Table = r#"
            name = "pg1"
            admin = { socket = "/run/pg1.socket" }
            datagrams = { addresses = ["10.9.0.2:5008", "[fd09::2]:5008"] }
            profile = { default = {}, wan = { congestion_control = "bbr" } }
            listen = [
                { address = "10.9.0.2:5006", transport = "tcp" },
                { address = "[fd09::2]:5006", transport = "tcp" },
            ]
            peer = [{ name = "pg2", address = "pg2/5006", transport = "tcp", security = "none", profile = "wan" }]
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

    #[test]
    fn each_transport_has_its_listeners() {
        let options = GatewayOptions {
            transport: Some("quic".into()),
            security: Some("encrypt".into()),
            certificates: Some(Certificates::default()),
            streams: Some(8),
            ..GatewayOptions::default()
        };
        let text = configuration(&Scenario::sc09(), 2, &addresses(2), Path::new("/run/pg2.socket"), &options);
        let file: toml::Table = text.parse().unwrap();
        let listeners = |file: &toml::Table| -> Vec<String> {
            let one = |one: &toml::Value| {
                let text = |key: &str| one.get(key).and_then(|value| value.as_str()).unwrap_or("-");
                let port = text("address").rsplit(':').next().unwrap();
                format!("{}/{port} {}", text("transport"), text("security"))
            };
            // IPv4 and IPv6 have the same listeners.
            file["listen"].as_array().unwrap().iter().step_by(2).map(one).collect()
        };
        assert_eq!(listeners(&file), ["quic/5006 -", "udt/5007 encrypt", "tcp/5007 -", "tcp/5006 -"], "{text}");
        assert_eq!(file["peer"][0]["security"].as_str(), Some("encrypt"), "{text}");
        assert_eq!(file["peer"][0]["streams"].as_integer(), Some(8), "{text}");
        assert!(file["peer"][0].get("allowed").is_none(), "{text}");
        assert_eq!(file["tls"]["key"].as_str(), Some("pg2.key"), "{text}");
        let options = GatewayOptions { transport: Some("udt".into()), security: Some("none".into()), ..options };
        let text = configuration(&Scenario::sc09(), 2, &addresses(2), Path::new("/run/pg2.socket"), &options);
        let file: toml::Table = text.parse().unwrap();
        assert_eq!(listeners(&file), ["quic/5006 -", "udt/5007 none", "tcp/5007 -", "tcp/5006 -"], "{text}");
        assert_eq!(file["peer"][0]["address"].as_str(), Some("pg1/5007"), "{text}");
    }

    #[test]
    fn auto_allows_all_transports() {
        let options = GatewayOptions {
            transport: Some("auto".into()),
            certificates: Some(Certificates::default()),
            ..GatewayOptions::default()
        };
        let text = configuration(&Scenario::sc09(), 2, &addresses(2), Path::new("/run/pg2.socket"), &options);
        let file: toml::Table = text.parse().unwrap();
        let allowed: Vec<_> =
            file["peer"][0]["allowed"].as_array().unwrap().iter().filter_map(|one| one.as_str()).collect();
        assert_eq!(allowed, ["tcp", "quic", "udt/5007"], "{text}");
    }
}
