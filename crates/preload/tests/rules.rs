//! What a program sees of its sockets while a session is opened, and after. The programs are in C
//! (`tests/c/rules.c`, `signals.c`, `copies.c`), the gateway is under the test's control.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![allow(unreachable_pub, reason = "tests share a module")]

mod common;

use common::peer::{self, Peer};
use common::{compile, preloaded, run};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

fn command(program: &Path, peer: &Peer, rule: &str) -> Command {
    let mut command = preloaded(program, peer.address);
    let direct = peer::echo([127, 0, 0, 1].into());
    command.arg(rule).env("CONTROL", peer.control.to_string());
    command.env("DIRECT", direct.port().to_string()).env("GATEWAY_PORT", peer.address.port().to_string());
    command
}

/// One test for each rule of a program that needs no more than the usual gateway.
macro_rules! rules {
    ($program:ident: $($name:ident)*) => {
        fn $program() -> &'static Path {
            static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
            PROGRAM.get_or_init(|| compile(stringify!($program), &[]))
        }
        $(
            #[test]
            fn $name() {
                let peer = Peer::start("127.0.0.1");
                let ended = run(&mut command($program(), &peer, stringify!($name)));
                assert_eq!(ended.err, "", "the shim is silent unless asked");
                ended.ok();
                assert!(!peer.asked().is_empty());
            }
        )*
    };
}

rules! { rules: blocking pending exact refusals refused_later selects selects_many untouched given_up fast_open fortified }
rules! { signals: interrupted timed blocking_io jumps cancelled }
rules! { copies: duplicated forked vforked threads shared }
