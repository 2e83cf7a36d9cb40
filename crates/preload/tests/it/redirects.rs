//! A gateway that refuses may name a better one, which is asked in its place (`docs/protocol/session.md`, REFUSED).

use crate::{common, epoll};
use common::peer::{self, ECHO, Peer};
use common::{Ended, compile, preloaded, run};
use phoebus_proto::endpoint::Endpoint;
use serde_json::Value;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

const FAR: &str = "192.0.2.1";
/// A port of loopback that is closed. The kernel never assigns it to a test.
const NOBODY: &str = "127.0.0.1:1";

fn client() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| compile("client", &[]))
}

/// Connects by `path`. Returns the outcome and its report.
fn connected(path: &str, port: u16, variables: &[(&str, &str)]) -> (Ended, Value) {
    let room = tempfile::tempdir().unwrap();
    let report = room.path().join("report");
    let mut command = preloaded(client(), "");
    command.env("PHOEBUS_PATH", path).env("PHOEBUS_REPORT", &report).env("PHOEBUS_VERBOSE", "1");
    command.envs(variables.iter().copied());
    let ended = run(command.args([FAR, &port.to_string()]));
    let report = std::fs::read_to_string(&report).unwrap();
    assert_eq!(report.lines().count(), 1, "{report}");
    (ended, serde_json::from_str(&report).unwrap())
}

/// The path that each session at `peer` requested from there.
fn paths(peer: &Peer) -> Vec<String> {
    let text = |path: &[Endpoint]| path.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
    peer.asked().iter().map(|asked| text(&asked.path)).collect()
}

fn naming(better: SocketAddr) -> Peer {
    Peer::naming(better.into())
}

#[test]
fn redirect_to_a_better_gateway_is_followed() {
    let third = Peer::start("127.0.0.1");
    let second = naming(third.address);
    let first = naming(second.address);
    // The last one is later on the path anyway, so it is not told to connect to itself.
    let path = format!("{},{},pg2", first.address, third.address);
    let (ended, report) = connected(&path, ECHO, &[]);
    assert_eq!(ended.out, "connected\n", "{}", ended.err);
    let note = format!("redirected from {} to {}", first.address, third.address);
    assert_eq!((&report["event"], report["note"].as_str()), (&"opened".into(), Some(&note[..])));
    assert!(ended.err.ends_with(&format!("; {note}\n")), "{}", ended.err);
    let rest = format!("{} pg2:5006", third.address);
    assert_eq!((paths(&first), paths(&second)), (vec![rest.clone()], vec![rest]));
    assert_eq!(paths(&third), ["pg2:5006"]);
    let mut sessions: Vec<_> = [&first, &second, &third].map(|peer| peer.asked()[0].session).to_vec();
    assert_eq!(report["session"], sessions[2].to_string());
    sessions.sort();
    sessions.dedup();
    assert_eq!(sessions.len(), 3, "each gateway is asked for a session of its own");
}

#[test]
fn better_gateway_may_have_another_address_family() {
    let six = Peer::start("::1");
    let first = naming(six.address);
    let (ended, _) = connected(&first.address.to_string(), ECHO, &[]);
    assert_eq!(ended.out, "connected\n", "{}", ended.err);
    let four = Peer::start("127.0.0.1");
    let between = Peer::with(TcpListener::bind("[::1]:0").unwrap(), Some(four.address.into()));
    let (ended, _) = connected(&naming(between.address).address.to_string(), ECHO, &[]);
    assert_eq!(ended.out, "connected\n", "{}", ended.err);
    assert_eq!((six.asked().len(), four.asked().len()), (1, 1));
}

#[test]
fn redirects_end_somewhere() {
    let closed = naming(NOBODY.parse().unwrap());
    // A fallback does not bypass a gateway that answers.
    let (ended, report) = connected(&closed.address.to_string(), ECHO, &[("PHOEBUS_FALLBACK", "1")]);
    let trail = format!("; redirected: {} → {NOBODY}", closed.address);
    let note = report["note"].as_str().unwrap();
    assert_eq!((&ended.out[..], &report["errno"]), ("Connection refused\n", &libc::ECONNREFUSED.into()));
    assert_eq!(note, format!("gateway {NOBODY} ({NOBODY}): cannot connect: connection refused{trail}"));

    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let own = listener.local_addr().unwrap();
    let circle = Peer::with(listener, Some(own.into()));
    let (ended, report) = connected(&own.to_string(), ECHO, &[]);
    let said = format!(
        "pg: it is full (it names a better gateway: {own}); gave up, for the redirects lead in a circle: {own} → {own}"
    );
    assert_eq!((&ended.out[..], report["note"].as_str()), ("No buffer space available\n", Some(&said[..])));
    assert_eq!(circle.asked().len(), 1);

    let mut chain = vec![closed];
    for _ in 0..5 {
        chain.push(naming(chain.last().unwrap().address));
    }
    chain.reverse();
    let (ended, report) = connected(&chain[0].address.to_string(), ECHO, &[]);
    let way: Vec<_> = chain.iter().map(|peer| peer.address.to_string()).collect();
    let trail = format!("; gave up, for the limit of redirects, 4, is reached: {}", way.join(" → "));
    let note = report["note"].as_str().unwrap();
    assert!(ended.out == "No buffer space available\n" && note.ends_with(&trail), "{note}");
    // One further gateway has named it, at the beginning of this test, and was not asked again.
    assert_eq!(chain.iter().map(|peer| peer.asked().len()).collect::<Vec<_>>(), [1, 1, 1, 1, 1, 1]);
}

#[test]
fn better_gateway_with_only_a_name_is_reported() {
    let peer = Peer::naming("localhost/5006".parse().unwrap());
    let (ended, report) = connected(&peer.address.to_string(), ECHO, &[("PHOEBUS_FALLBACK", "1")]);
    assert_eq!((&ended.out[..], &report["event"]), ("No buffer space available\n", &"failed".into()));
    assert_eq!(report["note"], "pg: it is full (it names a better gateway: localhost:5006)");
}

macro_rules! by_epoll {
    ($($name:ident)*) => {$(
        /// epoll in a program (`tests/c/epoll.c`) behaves the same as without a redirect.
        #[test]
        fn $name() {
            let peer = Peer::start("127.0.0.1");
            let direct = peer::echo([127, 0, 0, 1].into());
            let mut command = preloaded(epoll::program(), naming(peer.address).address);
            command.env("CONTROL", peer.control.to_string()).env("DIRECT", direct.port().to_string());
            run(command.arg(stringify!($name))).ok();
            assert!(!peer.asked().is_empty());
        }
    )*};
}

by_epoll! { level edge failure }
