//! Sockets in a program while a session is opened, and after. The programs are in C (`tests/c/rules.c`, `signals.c`,
//! `copies.c`, `races.c`), and the test controls the gateway.

use crate::common;
use common::peer::{self, Peer};
use common::{Ended, compile, preloaded, run};
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

/// One test for each rule of a program that needs only the usual gateway.
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

rules! { rules: blocking pending exact refused_later selects selects_many untouched given_up fast_open fortified }
rules! { signals: interrupted timed blocking_io jumps cancelled }
rules! { copies: duplicated forked vforked threads shared }

#[test]
fn refusals() {
    let peer = Peer::start("127.0.0.1");
    let ended = run(&mut command(rules(), &peer, "refusals"));
    // Without a setting, the shim reports only errors that no direct connection could have, and once.
    assert_eq!(ended.err, "phoebus: 192.0.2.1:17: peer: it is \"closed\"; the program gets EACCES\n");
    ended.ok();
    assert!(!peer.asked().is_empty());
}

fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| compile("races", &[]))
}

/// Runs a rule of `races.c`. Its destinations are on this host, so it sees connections that bypass the gateway.
fn race(rule: &str, more: impl FnOnce(&mut Command, &Peer)) -> Ended {
    let peer = Peer::start("127.0.0.1");
    let mut command = command(program(), &peer, rule);
    // 192.0.2.1 does not exist, so it can be reached only through the gateway.
    command.env("PHOEBUS_ONLY", "127.0.0.0/8,192.0.2.0/24");
    more(&mut command, &peer);
    let ended = run(&mut command);
    peer.wait_until_asked();
    ended
}

macro_rules! races {
    ($($name:ident)*) => {$(
        #[test]
        fn $name() {
            let ended = race(stringify!($name), |_, _| {});
            assert_eq!(ended.err, "", "the shim is silent unless asked");
            ended.ok();
        }
    )*};
}

races! {
    shut_down dissolved closed replaced closed_in_a_range closed_of_two read_elsewhere error_taken dissolved_elsewhere
    fast_open_of_several executed closed_in_a_table_of_its_own number_given_on
}

/// Runs a rule with a gateway whose name takes long to look up.
fn slow_lookup(rule: &str) {
    let slow = compile("slow", &["-shared", "-fPIC"]);
    let ended = race(rule, |command, peer| {
        command.env("PHOEBUS_GW", format!("localhost/{}", peer.address.port()));
        command.env("LD_PRELOAD", format!("{}:{}", common::library().display(), slow.display()));
    });
    assert_eq!(ended.err, "");
    ended.ok();
}

#[test]
fn closed_while_looking_up() {
    slow_lookup("closed_while_looking_up");
}

#[test]
fn jumped_out_of_lookup() {
    slow_lookup("jumped_out_of_lookup");
}

#[test]
fn without_descriptors() {
    let peer = Peer::start("::1");
    let mut command = command(program(), &peer, "without_descriptors");
    command.env("PHOEBUS_ONLY", "127.0.0.0/8").env("PHOEBUS_FALLBACK", "1");
    run(&mut command).ok();
}

#[test]
fn without_states() {
    let stateless = compile("stateless", &["-shared", "-fPIC"]);
    let mut command = preloaded(program(), "127.0.0.1/1");
    command.env("PHOEBUS_ONLY", "127.0.0.0/8").arg("without_states");
    command.env("LD_PRELOAD", format!("{}:{}", common::library().display(), stateless.display()));
    let ended = run(&mut command);
    let said = "phoebus: the kernel does not tell the state of the socket (TCP_INFO); connections fail\n";
    assert_eq!(ended.err, said);
    ended.ok();
}

#[test]
fn sent_while_it_begins() {
    let dialled = compile("dialled", &["-shared", "-fPIC"]);
    let ended = race("sent_while_it_begins", |command, _| {
        command.env("LD_PRELOAD", format!("{}:{}", common::library().display(), dialled.display()));
    });
    assert_eq!(ended.err, "");
    ended.ok();
}

#[test]
fn fell_back_elsewhere() {
    let mut command = preloaded(program(), "127.0.0.1/1");
    command.env("PHOEBUS_ONLY", "127.0.0.0/8").env("PHOEBUS_FALLBACK", "1");
    run(command.arg("fell_back_elsewhere")).ok();
}

#[test]
fn rings_are_refused_and_that_is_said_once() {
    let ended = race("rings", |_, _| {});
    let said = "phoebus: io_uring is refused to this program (races-";
    assert!(ended.err.starts_with(said) && ended.err.lines().count() == 1, "{ended:?}");
    ended.ok();
}
