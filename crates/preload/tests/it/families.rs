//! Gateways of the other address family (`tests/c/families.c`).

use crate::common;
use common::peer;
use common::{compile, preloaded, run};
use std::path::PathBuf;
use std::sync::OnceLock;

fn program() -> &'static PathBuf {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| compile("families", &[]))
}

fn check(rule: &str, gateway: &str) {
    let peer = peer::check(program(), rule, gateway);
    assert!(!peer.asked().is_empty());
}

#[test]
fn ipv4_sockets_and_an_ipv4_gateway() {
    check("four", "127.0.0.1");
}

#[test]
fn ipv4_sockets_and_an_ipv6_gateway() {
    check("four", "::1");
}

#[test]
fn ipv6_sockets_and_an_ipv4_gateway() {
    check("six", "127.0.0.1");
}

#[test]
fn ipv6_sockets_and_an_ipv6_gateway() {
    check("six", "::1");
}

#[test]
fn sockets_connect_again_after_sessions() {
    for gateway in ["127.0.0.1", "::1"] {
        check("four_again", gateway);
        check("six_again_after_sessions", gateway);
    }
}

#[test]
fn replacement_shows_nothing_to_a_waiting_thread() {
    check("four_in_silence", "::1");
    check("six_in_silence", "127.0.0.1");
}

#[test]
fn fallback_reaches_ipv6_after_an_ipv4_gateway() {
    let mut command = preloaded(program(), "127.0.0.1/1");
    command.env("PHOEBUS_ONLY", "127.0.0.0/8,::1").env("PHOEBUS_FALLBACK", "1");
    run(command.arg("six_falls_back")).ok();
}
