//! The handshake when a process that shares it is killed (`tests/c/killed.c`).

use crate::common;
use common::peer::Peer;
use common::{compile, preloaded, run};
use std::path::PathBuf;
use std::sync::OnceLock;

fn check(rule: &str) {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    let program = PROGRAM.get_or_init(|| compile("killed", &[]));
    let peer = Peer::start("127.0.0.1");
    let ended = run(preloaded(program, peer.address).arg(rule).env("CONTROL", peer.control.to_string()));
    assert_eq!(ended.err, "", "the shim is silent unless asked");
    ended.ok();
    assert!(!peer.asked().is_empty());
}

#[test]
fn stops_nobody_while_it_waits() {
    check("idle");
}

#[test]
fn spoils_no_session_at_any_system_call() {
    check("anywhere");
}

#[test]
fn spoils_no_session_while_bytes_move() {
    check("moving");
}

#[test]
fn holds_the_lock_of_the_namesake_in_another_pid_namespace() {
    check("namesake");
}
