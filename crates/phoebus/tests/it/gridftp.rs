//! GridFTP's own programs through two gateways by the XIO driver (S4–S11): every direction, mode and number of streams,
//! over every transport between the gateways and directly, and the gateway at which each end enters.

use crate::support;
use support::gridftp::{Grid, Server, local};
use support::path::Joined;
use support::works::works;

/// Blocks of a file: 2 MiB.
const BLOCKS: usize = 32;
const BYTES: u64 = 32 << 16;

const WHITELIST: &[&str] = &["-dc-whitelist", "tcp,gsi,phoebus"];

/// A transfer: its two ends, its options, the host that connects, and how many sessions it opens.
type Way<'a> = (&'a (String, String), &'a [&'a str], &'a str, usize);

/// Moves a file through the gateways in every way that a client on `src` and servers on both ends allow.
fn every_way(grid: &Grid, servers: [&Server; 2], more: &[&str]) {
    let stack = grid.stack("");
    every_way_by(grid, servers, &[&["-dcstack", &stack], more].concat(), true);
}

/// The same with these options. Data goes `through` the gateways or past them. Asserts where each host entered.
fn every_way_by(grid: &Grid, [here, there]: [&Server; 2], options: &[&str], through: bool) {
    let (from, to) = (grid.file("from", BLOCKS), grid.place("to"));
    let [get, put] = [(there.url("gsiftp", &from), local(&to)), (local(&from), there.url("gsiftp", &to))];
    let third = (there.url("gsiftp", &from), here.url("gsiftp", &to));
    // In MODE E, the sender connects; in stream mode, the side that did not listen.
    let ways: [Way<'_>; 6] = [
        (&get, &[], "src", 1),
        (&get, &["-p", "8"], "dst", 8),
        (&put, &[], "src", 1),
        (&put, &["-p", "8"], "src", 8),
        (&third, &[], "dst", 1),
        (&third, &["-p", "8"], "dst", 8),
    ];
    for ((source, target), mode, connects, streams) in ways {
        let arguments = [options, mode, &[source, target]].concat();
        grid.counting(if through { BYTES } else { 0 }, || grid.copies(&arguments, &from, &to));
        grid.entered_at(connects, if through { streams } else { 0 });
    }
    grid.until_quiet(&[here, there]);
}

fn both(grid: &Grid, arguments: &[&str]) -> [Server; 2] {
    ["src", "dst"].map(|host| grid.secure(host, 2811, arguments))
}

fn over(transport: &str, security: &str) {
    let grid = Grid::up(&Joined { transport, security, ..Joined::default() });
    let [here, there] = both(&grid, WHITELIST);
    every_way(&grid, [&here, &there], &[]);
}

#[test]
fn every_way_over_tcp() {
    over("tcp", "none");
}

#[test]
fn every_way_over_tls() {
    over("tcp", "encrypt");
}

#[test]
fn every_way_over_quic() {
    over("quic", "encrypt");
}

#[test]
fn every_way_over_udt() {
    over("udt", "encrypt");
}

#[test]
fn data_is_protected_from_end_to_end() {
    let grid = Grid::up(&Joined { security: "none", ..Joined::default() });
    let [here, there] = both(&grid, WHITELIST);
    every_way(&grid, [&here, &there], &["-dcpriv"]);
    let features = "get put parallel private gateways third:globus-gridftp-server";
    works("globus-url-copy", "globus-gridftp-server", "certificate", features);
}

#[test]
fn transfer_without_the_driver_goes_directly() {
    let grid = Grid::up(&Joined { security: "none", ..Joined::default() });
    let [here, there] = both(&grid, WHITELIST);
    every_way_by(&grid, [&here, &there], &[], false);
    assert_eq!(grid.counted(), [0, 0], "the gateways carried something");
}

/// Stock clients, and a server without the driver at the other end.
#[test]
fn server_alone_sends_data_through_gateways() {
    let grid = Grid::up(&Joined { security: "none", ..Joined::default() });
    let default = format!("tcp,{},gsi", grid.stack(""));
    let sender = grid.anonymous("dst", 2811, &["-dc-whitelist", "tcp,gsi,phoebus", "-dc-default", &default]);
    let receiver = grid.anonymous("src", 2811, &[]);
    let (from, to) = (grid.file("from", BLOCKS), grid.place("to"));
    let (get, third) = ((sender.url("ftp", &from), local(&to)), (sender.url("ftp", &from), receiver.url("ftp", &to)));
    let ways: [(&(String, String), &[&str], usize); 3] =
        [(&get, &["-p", "8"], 8), (&third, &[], 1), (&third, &["-p", "8"], 8)];
    for ((source, target), mode, streams) in ways {
        let arguments = [mode, &[source, target]].concat();
        grid.counting(BYTES, || grid.copies(&arguments, &from, &to));
        grid.entered_at("dst", streams);
    }
    // A client that requests authenticated data channels. The last driver of the default authenticates them.
    let secured = grid.secure("dst", 2812, &["-dc-whitelist", "tcp,gsi,phoebus", "-dc-default", &default]);
    grid.counting(BYTES, || grid.copies(&["-p", "8", &secured.url("gsiftp", &from), &local(&to)], &from, &to));
    grid.entered_at("dst", 8);
    grid.until_quiet(&[&sender, &receiver, &secured]);
}

#[test]
fn options_of_tcp_reach_the_socket() {
    let grid = Grid::up(&Joined { security: "none", ..Joined::default() });
    let [_here, there] = both(&grid, WHITELIST);
    let (from, to) = (grid.file("from", BLOCKS), grid.place("to"));
    let stack = grid.stack("");
    let get = [there.url("gsiftp", &from), local(&to)];
    let arguments = ["-tcp-bs", "262144", "-p", "2", "-dcstack", &stack, &get[0], &get[1]];
    grid.counting(BYTES, || grid.copies(&arguments, &from, &to));
    let buffers: Vec<_> =
        grid.reports("dst").iter().map(|report| report["hops"][0]["send_buffer"].as_u64().unwrap()).collect();
    // The kernel doubles the requested size.
    assert_eq!(buffers, [2 * 262_144; 2]);
    grid.until_logged("dst", 2811, &format!("BUFFER={}", 2 * 262_144));
}

#[test]
fn congestion_control_is_requested_and_reported() {
    let grid = Grid::up(&Joined { security: "none", ..Joined::default() });
    let [_here, there] = both(&grid, WHITELIST);
    let (from, to) = (grid.file("from", BLOCKS), grid.place("to"));
    let put = [local(&from), there.url("gsiftp", &to)];
    let said = |options: &str| {
        grid.copies(&["-p", "2", "-dcstack", &grid.stack(options), &put[0], &put[1]], &from, &to);
        let said = |report: &serde_json::Value| {
            let control = report["hops"][0]["congestion_control"].as_str().unwrap();
            format!("{control} {}", report["hops"][0]["note"].as_str().unwrap())
        };
        grid.reports("src").iter().map(said).collect::<Vec<_>>()
    };
    assert_eq!(said(";cc=reno"), ["reno "; 2]);
    // A host that permits only reno. By default, the driver requests bbr.
    let lock = "ip -4 route show | while read -r route; do ip route replace $route congctl lock reno || exit 1; done";
    grid.path.run("src", "sh", &["-c", lock]);
    assert_eq!(said(""), ["reno asked for bbr, in force is reno"; 2]);
}
