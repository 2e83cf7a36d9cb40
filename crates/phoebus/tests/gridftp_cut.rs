//! Faults of the WAN under a GridFTP transfer that goes over QUIC or UDT: what heals costs nothing, what does not is an error of GridFTP's
//! own programs, in time, and nobody is left hanging (invariant 1, P21, P23).

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::Duration;
use support::gridftp::{Grid, Server, local, said};
use support::path::Joined;
use support::wait_until;

/// Blocks of a file that arrives: 32 MiB, which take the path some 3 s.
const BLOCKS: usize = 512;

/// A server on `dst`, and a place for a file there.
struct Case {
    grid: Grid,
    server: Server,
    to: PathBuf,
}

impl Case {
    fn new(transport: &str) -> Self {
        let profile = "idle_timeout = \"10s\"";
        let joined = Joined { transport, profile, wan_rtt: Duration::from_millis(20), ..Joined::default() };
        let grid = Grid::up(&joined);
        let server = grid.secure("dst", 2811, &["-dc-whitelist", "tcp,gsi,phoebus"]);
        let to = grid.place("to");
        Self { grid, server, to }
    }

    /// A put on two streams, during which `meanwhile` happens once something has arrived.
    fn put(&self, from: &Path, meanwhile: impl FnOnce(&Grid)) -> Output {
        std::thread::scope(|scope| {
            let stack = self.grid.stack("");
            let urls = [local(from), self.server.url("gsiftp", &self.to)];
            let copy = scope.spawn(move || self.grid.copy(&["-p", "2", "-dcstack", &stack, &urls[0], &urls[1]]));
            let arrived = || fs::metadata(&self.to).map_or(0, |file| file.len());
            wait_until(|| arrived() > 0 || copy.is_finished(), || "nothing arrives".to_owned());
            assert!(!copy.is_finished(), "it has ended before: {}", said(&copy.join().unwrap()));
            meanwhile(&self.grid);
            copy.join().unwrap()
        })
    }

    /// A put that would go on for long fails once this has happened.
    #[track_caller]
    fn fails(&self, meanwhile: impl FnOnce(&Grid)) {
        let output = self.put(&self.grid.endless("from"), meanwhile);
        assert_eq!(output.status.code(), Some(1), "{}: {}", output.status, said(&output));
        self.grid.until_quiet(&[&self.server]);
    }
}

fn survives_a_cut(transport: &str) {
    let case = Case::new(transport);
    let from = case.grid.file("from", BLOCKS);
    let output = case.put(&from, |grid| {
        let wan = grid.path.testbed.link("wan").unwrap();
        wan.cut();
        wait_until(|| wan.counters().forward.cut_drops.segments > 0, || "the cut has met no packet".to_owned());
        std::thread::sleep(Duration::from_secs(3));
        wan.heal();
    });
    assert!(output.status.success(), "{}", said(&output));
    assert!(fs::read(&from).unwrap() == fs::read(&case.to).unwrap(), "the copy differs");
    case.grid.until_quiet(&[&case.server]);
}

/// What carries the sessions vanishes between the gateways. (A link that is cut would hold GridFTP's control connection as well, on which
/// GCT's programs wait for ever.)
fn a_black_hole_is_an_error(transport: &str) {
    let rules = "table inet hole { chain in { type filter hook input priority 0; meta l4proto udp drop; }; \
                 chain out { type filter hook output priority 0; meta l4proto udp drop; }; }";
    let case = Case::new(transport);
    case.fails(|grid| grid.path.run("pg2", "nft", &[rules]));
}

fn a_death_is_an_error(transport: &str, gateway: usize) {
    let case = Case::new(transport);
    case.fails(|grid| grid.path.signal(gateway, libc::SIGKILL));
}

#[test]
fn a_cut_that_heals_costs_no_transfer_over_quic() {
    survives_a_cut("quic");
}

#[test]
fn a_cut_that_heals_costs_no_transfer_over_udt() {
    survives_a_cut("udt");
}

#[test]
fn a_black_hole_fails_a_transfer_over_quic() {
    a_black_hole_is_an_error("quic");
}

#[test]
fn a_black_hole_fails_a_transfer_over_udt() {
    a_black_hole_is_an_error("udt");
}

#[test]
fn the_first_gateway_s_death_fails_a_transfer_over_quic() {
    a_death_is_an_error("quic", 0);
}

#[test]
fn the_last_gateway_s_death_fails_a_transfer_over_quic() {
    a_death_is_an_error("quic", 1);
}

#[test]
fn the_first_gateway_s_death_fails_a_transfer_over_udt() {
    a_death_is_an_error("udt", 0);
}

#[test]
fn the_last_gateway_s_death_fails_a_transfer_over_udt() {
    a_death_is_an_error("udt", 1);
}
