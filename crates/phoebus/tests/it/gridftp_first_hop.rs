//! The first hop of GridFTP's data, if it is not a plain connection: authenticated by TLS at its beginning, or carried
//! by an agent on loopback over a transport that the driver lacks (S1, S8, S12).

use crate::support;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Stdio};
use support::gridftp::{Grid, Server, local, said};
use support::path::Joined;

const BLOCKS: usize = 32;
const BYTES: u64 = 32 << 16;

const USER: &str = "ada.users.example";

/// Gateways with protected hops between them, which know a user by a certificate.
fn grid(more: &str) -> Grid {
    let mut grid = Grid::up(&Joined { more, ..Joined::default() });
    let certificates = &grid.path.certificates;
    certificates.issue(USER);
    let authority = certificates.file("ca.pem");
    grid.environment = vec![
        ("PHOEBUS_CREDENTIALS", authority.parent().unwrap().to_owned()),
        ("PHOEBUS_CA", authority),
        ("XDG_RUNTIME_DIR", grid.place("")),
    ];
    grid.by_name = true;
    grid
}

fn server(grid: &Grid) -> Server {
    grid.secure("dst", 2811, &["-dc-whitelist", "tcp,gsi,phoebus"])
}

/// Gets and puts with this stack. Asserts the first hops of all sessions: user, transport, protection.
#[track_caller]
fn goes_by(grid: &Grid, server: &Server, stack: &str, expected: [&str; 3]) {
    let (from, to) = (grid.file("from", BLOCKS), grid.place("to"));
    let [get, put] = [[server.url("gsiftp", &from), local(&to)], [local(&from), server.url("gsiftp", &to)]];
    for (urls, mode, connects, gateway, sessions) in
        [(&get, &[][..], "src", "pg1", 1), (&get, &["-p", "8"], "dst", "pg2", 8), (&put, &["-p", "4"], "src", "pg1", 4)]
    {
        let arguments = [&["-dcstack", stack], mode, &[&urls[0], &urls[1]]].concat();
        grid.counting(BYTES, || grid.copies(&arguments, &from, &to));
        let mut reports = grid.reports(connects);
        // Reports of earlier transfers in which both ends took part.
        reports.retain(|report| report["event"] != "accepted");
        assert_eq!(reports.len(), sessions, "{reports:#?}");
        for report in reports {
            let hops = report["hops"].as_array().unwrap();
            let hop = hops.iter().find(|hop| hop["to"] == gateway).unwrap_or_else(|| panic!("{report:#}"));
            assert_eq!(["from", "transport", "security"].map(|key| hop[key].as_str().unwrap()), expected, "{report:#}");
        }
    }
    grid.until_quiet(&[server]);
}

#[test]
fn first_hop_authenticates_both_ends() {
    let grid = grid(FOR_AGENTS);
    let server = server(&grid);
    // An agent would show its own certificate.
    let _agents = ["src", "dst"].map(|host| Agent::start(&grid, host, "quic/5008"));
    for aware in [0, 1] {
        let stack = grid.stack(&format!(";security=auth;credential={USER};aware={aware}"));
        goes_by(&grid, &server, &stack, ["client", "tcp", "auth"]);
    }
}

#[test]
fn untrusted_gateway_gets_no_byte() {
    let mut grid = grid("");
    let server = server(&grid);
    let (from, to) = (grid.file("from", BLOCKS), grid.place("to"));
    let others = support::Certificates::new();
    others.issue(USER);
    // In stream mode, the client connects. From here on, it trusts another authority, or another one trusts it.
    let fails = |grid: &Grid, expected: &str| {
        let stack = grid.stack(&format!(";security=auth;credential={USER}"));
        grid.counting(0, || {
            let output = grid.copy(&["-dcstack", &stack, &server.url("gsiftp", &from), &local(&to)]);
            assert_eq!(output.status.code(), Some(1), "{}", said(&output));
            assert!(said(&output).contains(expected), "{expected}: {}", said(&output));
        });
        assert_eq!(fs::metadata(&to).map_or(0, |file| file.len()), 0, "bytes were copied all the same");
        grid.until_quiet(&[&server]);
    };
    let set = |grid: &mut Grid, name: &str, file: PathBuf| {
        grid.environment.iter_mut().find(|(own, _)| *own == name).unwrap().1 = file;
    };
    let directory = others.file("ca.pem").parent().unwrap().to_owned();
    set(&mut grid, "PHOEBUS_CREDENTIALS", directory);
    fails(&grid, "it does not accept this end's certificate");
    set(&mut grid, "PHOEBUS_CA", others.file("ca.pem"));
    fails(&grid, "cannot trust it: its certificate is not signed by an authority that is trusted here");
}

/// An agent on a host, for the gateway next to it.
struct Agent(Child);

impl Agent {
    fn start(grid: &Grid, host: &str, first_hop: &str) -> Self {
        let mut command = grid.program(host, "phoebus");
        command.args(["agent", "--first-hop", first_hop]).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let mut said = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut said).unwrap();
        let agent = Self(child);
        assert!(said.starts_with("an agent carries first hops to "), "the agent of {host}: {said}");
        agent
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Listeners for agents, which have no certificate.
const FOR_AGENTS: &str = r#"
[[listen]]
address = "0.0.0.0:5007"
transport = "udt"
security = "encrypt"
client_certificate = "optional"
[[listen]]
address = "0.0.0.0:5007"
security = "encrypt"
client_certificate = "optional"
[[listen]]
address = "0.0.0.0:5008"
transport = "quic"
client_certificate = "optional"
[[listen]]
address = "0.0.0.0:5008"
security = "encrypt"
client_certificate = "optional"
"#;

#[test]
fn agents_carry_the_first_hop() {
    let grid = grid(FOR_AGENTS);
    let server = server(&grid);
    for (first_hop, transport) in [("quic/5008", "quic"), ("udt/5007", "udt"), ("tls/5008", "tcp")] {
        let _agents = ["src", "dst"].map(|host| Agent::start(&grid, host, first_hop));
        let stack = grid.stack(&format!(";first_hop={first_hop}"));
        goes_by(&grid, &server, &stack, ["agent", transport, "encrypt"]);
    }
}

#[test]
fn dead_agent_fails_the_transfer() {
    let grid = grid(FOR_AGENTS);
    let server = server(&grid);
    let (from, to) = (grid.endless("from"), grid.place("to"));
    let mut agent = Agent::start(&grid, "src", "quic/5008");
    let stack = grid.stack(";first_hop=quic/5008");
    let output = std::thread::scope(|scope| {
        let urls = [local(&from), server.url("gsiftp", &to)];
        let (grid, stack) = (&grid, &stack);
        let copy = scope.spawn(move || grid.copy(&["-p", "2", "-dcstack", stack, &urls[0], &urls[1]]));
        let arrived = || fs::metadata(&to).map_or(0, |file| file.len());
        support::wait_until(|| arrived() > 0 || copy.is_finished(), || "nothing arrives".to_owned());
        agent.0.kill().unwrap();
        copy.join().unwrap()
    });
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    grid.until_quiet(&[&server]);
    // The next transfer finds no agent, and says so.
    let urls = [local(&from), server.url("gsiftp", &to)];
    let output = grid.copy(&["-dcstack", &stack, &urls[0], &urls[1]]);
    assert!(said(&output).contains("no agent carries the first hop"), "{}", said(&output));
}
