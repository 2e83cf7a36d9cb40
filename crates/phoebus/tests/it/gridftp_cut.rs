//! Faults of the WAN during a GridFTP transfer over QUIC or UDT. A fault that heals costs nothing; another one is an
//! error of GridFTP's own programs, in time (invariant 1, P21, P23).

use crate::support;
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
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

    /// A put on two streams. `meanwhile` runs once something has arrived, and gets the client's process.
    fn put(&self, from: &Path, meanwhile: impl FnOnce(&Grid, Pid)) -> Output {
        let urls = [local(from), self.server.url("gsiftp", &self.to)];
        let mut copy = self.grid.bounded("src", "globus-url-copy");
        copy.args(["-p", "2", "-dcstack", &self.grid.stack(""), &urls[0], &urls[1]]);
        let mut copy = copy.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let arrived = || fs::metadata(&self.to).map_or(0, |file| file.len());
        wait_until(|| arrived() > 0 || copy.try_wait().unwrap().is_some(), || "nothing arrives".to_owned());
        if copy.try_wait().unwrap().is_some() {
            panic!("it has ended before: {}", said(&copy.wait_with_output().unwrap()));
        }
        meanwhile(&self.grid, Pid::from_child(&copy));
        copy.wait_with_output().unwrap()
    }

    /// A long put fails after this event.
    #[track_caller]
    fn fails(&self, meanwhile: impl FnOnce(&Grid, Pid)) {
        let output = self.put(&self.grid.endless("from"), meanwhile);
        assert!(!output.status.success(), "{}: {}", output.status, said(&output));
        self.grid.until_quiet(&[&self.server]);
    }
}

fn survives_a_cut(transport: &str) {
    let case = Case::new(transport);
    let from = case.grid.file("from", BLOCKS);
    let output = case.put(&from, |grid, _| {
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

/// The network under the sessions vanishes between the gateways. (A link that is cut would also hold GridFTP's control
/// connection, on which GCT's programs wait for ever.)
fn a_black_hole_is_an_error(transport: &str) {
    let rules = "table inet hole { chain in { type filter hook input priority 0; meta l4proto udp drop; }; \
                 chain out { type filter hook output priority 0; meta l4proto udp drop; }; }";
    let case = Case::new(transport);
    case.fails(|grid, _| grid.path.run("pg2", "nft", &[rules]));
}

fn the_first_gateways_death_is_an_error(transport: &str) {
    Case::new(transport).fails(|grid, _| grid.path.signal(0, libc::SIGKILL));
}

/// Both ends learn of it at once: the server from its kernel, the client from the first gateway. GCT's client waits for
/// ever if the server's reply about the failure precedes the reset of its own connections, over plain TCP as well
/// (`docs/guide/gridftp.md`). The test may have to end it.
fn the_last_gateways_death_is_an_error(transport: &str) {
    let case = Case::new(transport);
    case.fails(|grid, client| {
        grid.path.signal(1, libc::SIGKILL);
        let failed = || grid.path.status("pg1")["totals"]["sessions_failed"] == 2;
        wait_until(failed, || "the client's sessions go on".to_owned());
        let heard = || case.server.log().contains("Failure attempting to transfer");
        wait_until(heard, || "the server's transfer goes on".to_owned());
        // It may have ended by itself.
        let _ = kill_process(client, Signal::TERM);
    });
}

#[test]
fn healed_cut_costs_no_transfer_over_quic() {
    survives_a_cut("quic");
}

#[test]
fn healed_cut_costs_no_transfer_over_udt() {
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
fn death_of_the_first_gateway_fails_a_transfer_over_quic() {
    the_first_gateways_death_is_an_error("quic");
}

#[test]
fn death_of_the_last_gateway_fails_a_transfer_over_quic() {
    the_last_gateways_death_is_an_error("quic");
}

#[test]
fn death_of_the_first_gateway_fails_a_transfer_over_udt() {
    the_first_gateways_death_is_an_error("udt");
}

#[test]
fn death_of_the_last_gateway_fails_a_transfer_over_udt() {
    the_last_gateways_death_is_an_error("udt");
}
