//! What a program sees of epoll while a session is opened, and after (`tests/c/epoll.c`).

use crate::common;
use common::peer::{self, Peer};
use common::{compile, preloaded, run};
use std::path::PathBuf;
use std::sync::OnceLock;

pub fn program() -> &'static PathBuf {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| compile("epoll", &[]))
}

fn check(rule: &str, gateway: &str) {
    let peer = Peer::start(gateway);
    let direct = peer::echo([127, 0, 0, 1].into());
    let mut command = preloaded(program(), peer.address);
    command.env("CONTROL", peer.control.to_string()).env("DIRECT", direct.port().to_string());
    run(command.arg(rule)).ok();
}

macro_rules! rules {
    ($($name:ident)*) => {$(
        #[test]
        fn $name() {
            check(stringify!($name), "127.0.0.1");
        }
    )*};
}

rules! { level edge once exclusive failure changed others threads many failed_and_closed again copied_set reused_set }

#[test]
fn again_through_a_gateway_of_ipv6() {
    check("again", "::1");
    check("reused_set", "::1");
}
