//! What a program sees of its sockets while a session is opened, and after. The programs are in C (`tests/c/rules.c`), the
//! gateway is under the test's control.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![allow(unreachable_pub, reason = "tests share a module")]

mod common;

use common::peer::{self, Peer};
use common::{compile, preloaded, run};
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

fn command(peer: &Peer, rule: &str) -> Command {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    let program = PROGRAM.get_or_init(|| compile("rules", &[]));
    let mut command = preloaded(program, peer.address);
    let direct = peer::echo([127, 0, 0, 1].into());
    command.arg(rule).env("CONTROL", peer.control.to_string());
    command.env("DIRECT", direct.port().to_string()).env("GATEWAY_PORT", peer.address.port().to_string());
    command
}

/// One test for each rule that needs no more than the usual gateway.
macro_rules! rules {
    ($($name:ident)*) => {$(
        #[test]
        fn $name() {
            let peer = Peer::start("127.0.0.1");
            let ended = run(&mut command(&peer, stringify!($name)));
            assert_eq!(ended.err, "", "the shim is silent unless asked");
            ended.ok();
            assert!(!peer.asked().is_empty());
        }
    )*};
}

rules! {
    blocking pending exact refusals refused_later selects selects_many interrupted timed blocking_io jumps cancelled
    duplicated forked vforked untouched given_up fast_open threads shared fortified
}
