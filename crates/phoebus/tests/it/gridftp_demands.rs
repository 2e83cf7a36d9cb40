//! Requirements in the XIO driver's options, with GridFTP's own programs: a user's address, connections for each hop, a
//! bandwidth (S8, S17). A requirement is met, or the error says what is available.

use crate::support;
use std::process::Stdio;
use support::gridftp::{Grid, Server, local, said};
use support::path::{HOSTS, Joined};
use support::wait_until;

const BLOCKS: usize = 32;
const BYTES: u64 = 32 << 16;

fn secure(grid: &Grid) -> Server {
    grid.secure("dst", 2811, &["-dc-whitelist", "tcp,gsi,phoebus"])
}

#[test]
fn user_and_connections_of_a_hop_are_honoured() {
    let grid = Grid::up(&Joined { security: "none", ..Joined::default() });
    let server = secure(&grid);
    let (from, to) = (grid.file("from", BLOCKS), grid.place("to"));
    let stack = grid.stack(";streams=3;user=ada@example.org");
    let urls = [server.url("gsiftp", &from), local(&to)];
    // One session from `src`, then two from `dst`.
    for mode in [&[][..], &["-p", "2"]] {
        let arguments = [&["-dcstack", &stack], mode, &[&urls[0], &urls[1]]].concat();
        grid.counting(BYTES, || grid.copies(&arguments, &from, &to));
    }
    grid.until_quiet(&[&server]);
    for host in HOSTS {
        let told = || grid.path.log(host).lines().filter(|line| line.contains("ada@example.org")).count();
        wait_until(|| told() == 3, || format!("{host} tells of {} sessions of ada's", told()));
        let log = grid.path.log(host);
        assert!(log.lines().all(|line| !line.contains("ada@example.org") || line.contains("tcp*3")), "{log}");
    }
    // More than gateways grant to anyone.
    let output = grid.copy(&["-dcstack", &grid.stack(";streams=500"), &urls[0], &urls[1]]);
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(said(&output).contains("500 connections for each hop were asked for; at most "), "{}", said(&output));
    let output = grid.copy(&["-dcstack", &grid.stack(";user=nobody"), &urls[0], &urls[1]]);
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(said(&output).contains("nobody"), "{}", said(&output));
}

#[test]
fn reserved_bandwidth_is_honoured() {
    let (profile, more) = ("rate = \"80mbit\"", "[profile.default]\nrate = \"90mbit\"");
    let grid = Grid::up(&Joined { security: "none", profile, more, ..Joined::default() });
    let server = secure(&grid);
    let (from, to) = (grid.file("from", BLOCKS), grid.place("to"));
    let urls = [server.url("gsiftp", &from), local(&to)];
    let stack = |rate: &str| grid.stack(&format!(";rate={rate}"));
    let fails = |rate: &str, expected: &str| {
        let output = grid.copy(&["-dcstack", &stack(rate), &urls[0], &urls[1]]);
        assert_eq!(output.status.code(), Some(1), "{}", said(&output));
        assert!(said(&output).contains(expected), "{}", said(&output));
    };
    fails("85mbit", "85mbit was asked for, but the hop to pg2 carries 80mbit");

    // A client that holds its reserved bandwidth until it is ended.
    let endless = server.url("gsiftp", &grid.endless("endless"));
    let mut holder = grid.bounded("src", "globus-url-copy");
    let mut holder =
        holder.args(["-dcstack", &stack("60mbit"), &endless, "file:///dev/null"]).stdin(Stdio::null()).spawn().unwrap();
    let open = |host| grid.path.status(host)["sessions"].as_array().is_some_and(|open| open.len() == 1);
    wait_until(|| HOSTS.iter().all(|host| open(host)), || "no session is open".to_owned());
    fails("30mbit", "30mbit was requested, but only 20mbit is not reserved yet");
    grid.copies(&["-dcstack", &stack("20mbit"), &urls[0], &urls[1]], &from, &to);
    // timeout(1) passes the signal on to its program.
    let pid = rustix::process::Pid::from_child(&holder);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    holder.wait().unwrap();
    grid.counting(BYTES, || grid.copies(&["-dcstack", &stack("80mbit"), &urls[0], &urls[1]], &from, &to));
    grid.until_quiet(&[&server]);
}
