//! The XIO driver with gateways that are down or silent, with wrong options and with requirements: a clear error of
//! GridFTP's own programs, in time, and never an unrequested direct transfer.

use crate::support;
use std::path::PathBuf;
use support::gridftp::{Grid, Server, local, said};
use support::path::Joined;

const BLOCKS: usize = 16;
const BYTES: u64 = 16 << 16;

/// A server on `dst`, and a file to copy to `src`.
struct Case {
    grid: Grid,
    server: Server,
    from: PathBuf,
    to: PathBuf,
}

impl Case {
    fn new() -> Self {
        let grid = Grid::up(&Joined { security: "none", ..Joined::default() });
        let server = grid.secure("dst", 2811, &["-dc-whitelist", "tcp,gsi,phoebus"]);
        let (from, to) = (grid.file("from", BLOCKS), grid.place("to"));
        Self { grid, server, from, to }
    }

    fn arguments(&self, stack: &str, mode: &[&str]) -> Vec<String> {
        let urls = [self.server.url("gsiftp", &self.from), local(&self.to)];
        ["-dcstack", stack].iter().chain(mode).map(|text| (*text).to_owned()).chain(urls).collect()
    }

    /// Asserts that a copy with this stack fails, that its error contains these words, and that no byte was
    /// transferred.
    #[track_caller]
    fn fails(&self, stack: &str, mode: &[&str], expected: &str) {
        let arguments = self.arguments(stack, mode);
        self.grid.counting(0, || {
            let output = self.grid.copy(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
            assert_eq!(output.status.code(), Some(1), "{stack}: {}: {}", output.status, said(&output));
            assert!(said(&output).contains(expected), "{stack}: expected \"{expected}\" in: {}", said(&output));
        });
        let copied = std::fs::metadata(&self.to).map_or(0, |file| file.len());
        assert_eq!(copied, 0, "{stack}: bytes were copied all the same");
        let direct =
            ["src", "dst"].into_iter().flat_map(|host| self.grid.reports(host)).find(|r| r["event"] != "failed");
        assert_eq!(direct, None, "{stack}");
        self.grid.until_quiet(&[&self.server]);
    }

    /// The same in stream mode, where the client connects, and in MODE E, where the server does.
    #[track_caller]
    fn fails_on_both_ends(&self, stack: &str, expected: &str) {
        self.fails(stack, &[], expected);
        self.fails(stack, &["-p", "4"], expected);
    }

    fn gateway(&self, host: &str, port: u16) -> String {
        self.grid.path.address(host, port).to_string()
    }
}

#[test]
fn misspelt_option_never_means_a_direct_transfer() {
    let case = Case::new();
    case.fails_on_both_ends("phoebus:gww=pg1/5006", "\"gww\" is no option; expected one of gw, path");
    case.fails_on_both_ends("phoebus:gw=pg1/99999", "an endpoint with a port from 1 to 65535");
    case.fails_on_both_ends("phoebus:streams=some", "\"some\" is not a number");
    case.fails_on_both_ends("phoebus:fallback=yes;gw=pg1/5006", "fallback is \"yes\"; expected direct or none");
    case.fails_on_both_ends("phoebus:aware=yes", "option aware: \"yes\" is not 0 or 1");
    case.fails_on_both_ends("phoebus:gw=pg1/5006;path=pg1/5006", "gw and path are both given");
    case.fails_on_both_ends("phoebus:user=50%25", "a percent sign");
    case.fails_on_both_ends("phoebus:credential=site", "names no directory of credentials");
    // The same stack at both ends: each end's own gateway is inside the path.
    let inside = format!("phoebus:path=a/1|{}|{}|b/2", case.gateway("pg1", 5006), case.gateway("pg2", 5006));
    case.fails_on_both_ends(&inside, "is inside the path; expected it at one of its ends");
}

#[test]
fn no_gateway_is_an_error_unless_direct_was_allowed() {
    let case = Case::new();
    let output = |stack: &str| {
        let arguments = case.arguments(stack, &[]);
        let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
        case.grid.copy_with(&arguments, |command| {
            command.env_remove("PHOEBUS_GW");
        })
    };
    let refused = output("phoebus");
    assert!(!refused.status.success() && said(&refused).contains("no gateway is set"), "{}", said(&refused));
    let direct = output("phoebus:fallback=direct");
    assert!(direct.status.success(), "{}", said(&direct));
    assert!(std::fs::read(&case.to).unwrap() == std::fs::read(&case.from).unwrap());
}

#[test]
fn gateway_that_is_down_is_a_clear_error() {
    let case = Case::new();
    let down = case.gateway("pg1", 5999);
    case.fails_on_both_ends(&format!("phoebus:gw={down}"), &format!("cannot connect to {down}: connection refused"));
}

#[test]
fn unreachable_gateway_is_an_error_in_time() {
    let case = Case::new();
    // Packets to this port are dropped, as by a firewall. The kernel would try for two minutes.
    let rules = "table inet filter { chain input { type filter hook input priority 0; tcp dport 5998 drop; }; }";
    case.grid.path.run("pg1", "nft", &[rules]);
    let silent = case.gateway("pg1", 5998);
    case.fails_on_both_ends(&format!("phoebus:gw={silent};connect_timeout=1s"), &format!("{silent}: "));
}

#[test]
fn silent_gateway_is_an_error_in_time() {
    let case = Case::new();
    case.grid.path.signal(0, libc::SIGSTOP);
    let stopped = case.gateway("pg1", 5006);
    let arguments = case.arguments(&format!("phoebus:gw={stopped};open_timeout=1s"), &[]);
    let output = case.grid.copy(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
    case.grid.path.signal(0, libc::SIGCONT);
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(said(&output).contains("did not say within 1s"), "{}", said(&output));
    case.grid.until_quiet(&[&case.server]);
}

#[test]
fn refusal_is_a_sentence_with_the_hop_at_fault() {
    let case = Case::new();
    let path = format!("phoebus:path={}|192.0.2.1/5006", case.gateway("pg1", 5006));
    case.fails(&path, &[], "is no peer of this gateway");
    let stack = case.grid.stack(";transport=udt");
    case.fails(
        &stack,
        &[],
        "transport udt was asked for between gateways, but the hop from pg1 to pg2 has transport tcp",
    );
    // The first hop is the program's own connection. Only an agent can carry it over another transport.
    case.fails(&case.grid.stack(";first_hop=quic"), &[], "no agent");
}

#[test]
fn fallback_is_reported_and_keeps_options_of_tcp() {
    let case = Case::new();
    let buffer = ["-tcp-bs", "262144"];
    for (mode, host) in [(&buffer[..], "src"), (&[&buffer[..], &["-p", "2"]].concat(), "dst")] {
        let stack = format!("phoebus:gw={};fallback=direct", case.gateway("pg1", 5999));
        let arguments = case.arguments(&stack, mode);
        let _ = std::fs::remove_file(&case.to);
        case.grid.counting(0, || {
            let output = case.grid.copy(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
            assert!(output.status.success(), "{}", said(&output));
            if host == "src" {
                assert!(said(&output).contains("goes direct"), "{}", said(&output));
            }
        });
        assert!(std::fs::read(&case.to).unwrap() == std::fs::read(&case.from).unwrap());
        let reports = case.grid.reports(host);
        assert_eq!(reports.len(), if host == "src" { 1 } else { 2 }, "{reports:#?}");
        for report in reports {
            assert_eq!(report["event"], "direct", "{report:#}");
            assert!(report["note"].as_str().unwrap().contains("connection refused"), "{report:#}");
            // The kernel doubles the requested size.
            assert_eq!(report["hops"][0]["send_buffer"], 2 * 262_144, "{report:#}");
        }
    }
}

#[test]
fn unselected_destinations_go_directly() {
    let case = Case::new();
    let (src, dst) = (case.grid.path.address("src", 0).ip(), case.grid.path.address("dst", 0).ip());
    let copied = |options: &str, bytes| {
        let stack = case.grid.stack(options);
        let arguments = case.arguments(&stack, &["-p", "2"]);
        let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
        case.grid.counting(bytes, || case.grid.copies(&arguments, &case.from, &case.to));
    };
    // The server connects to the client.
    copied(&format!(";except={src}|192.0.2.0/24"), 0);
    copied(&format!(";only={src}:1-65535|192.0.2.0/24"), BYTES);
    copied(&format!(";only={dst}"), 0);
}
