//! Direct connections after a gateway that does not answer (`tests/c/fallback.c`).

use crate::common;
use common::{compile, plain, preloaded, run};
use std::path::PathBuf;
use std::sync::OnceLock;

fn program() -> &'static PathBuf {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| compile("fallback", &[]))
}

fn check(rule: &str, only: &str) {
    // The kernel alone defines the expected behaviour.
    run(plain(program()).arg(rule)).ok();
    for gateway in ["127.0.0.1/1", "[::1]/1"] {
        let mut command = preloaded(program(), gateway);
        command.env("PHOEBUS_ONLY", only).env("PHOEBUS_FALLBACK", "1");
        run(command.arg(rule)).ok();
    }
}

#[test]
fn ipv4_sockets() {
    check("four", "0.0.0.0/0,::/0");
}

#[test]
fn ipv6_sockets() {
    check("six", "0.0.0.0/0,::/0");
}

#[test]
fn mapped_addresses_before() {
    check("mapped", "127.0.0.2/32");
}
