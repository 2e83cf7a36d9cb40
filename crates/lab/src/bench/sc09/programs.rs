//! The programs that move the bytes: GCT's server and client, sshd and scp, iperf3. Each measurement starts new
//! servers.

use super::rows::{Program, Row, RowRoute};
use super::site::{Grid, route};
use crate::bench::bed::{self, Bed, Service};
use crate::bench::flows::GOODPUT;
use crate::bench::iperf;
use crate::bench::process::{self, Background};
use crate::bench::results::Reading;
use crate::bench::transfer::{Client, Receiver, watch};
use anyhow::{Context, bail};
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// GridFTP's own port.
const PORT: u16 = 2811;
/// More than any transfer moves: a terabyte.
const ENDLESS: &str = "1099511627776";
/// Time limit for generating a key.
const KEY: Duration = Duration::from_secs(10);

/// Measures `row` once on its path; data must arrive within `limit`.
pub(super) fn measure(
    bed: &mut Bed,
    grid: &Grid,
    row: &Row,
    seconds: u64,
    limit: Duration,
) -> anyhow::Result<Vec<Reading>> {
    bed.check()?;
    let readings = match row.program {
        Program::Gridftp(streams) => gridftp(bed, grid, row, streams, seconds, limit),
        Program::GridftpUdt => gridftp(bed, grid, row, 1, seconds, limit),
        Program::Scp => scp(bed, grid, seconds, limit),
        Program::Iperf => through_iperf(bed, seconds, limit),
    };
    bed.check()?;
    readings
}

fn gridftp(
    bed: &mut Bed,
    grid: &Grid,
    row: &Row,
    streams: u32,
    seconds: u64,
    limit: Duration,
) -> anyhow::Result<Vec<Reading>> {
    let udt = row.program == Program::GridftpUdt;
    let server = server(bed, grid, udt)?;
    let report = grid.file("sessions.json");
    let _ = fs::remove_file(&report);
    let mut client = bed.command("src", "globus-url-copy")?;
    grid.as_user(&mut client);
    let streams_text = streams.to_string();
    // MODE E with one stream too, as in the paper.
    client.args(["-dbg", "-p", &streams_text, "-len", ENDLESS]);
    let stack = match row.way {
        RowRoute::Direct if udt => Some("udt"),
        RowRoute::Direct => None,
        RowRoute::Through(_) | RowRoute::ByAgent(..) => Some("phoebus"),
    };
    client.args(stack.iter().flat_map(|stack| ["-dcstack", stack]));
    client.args(["file:///dev/zero", &format!("gsiftp://dst:{PORT}/dev/null")]);
    if udt {
        // GCT's UDT driver blocks in its calls, so it needs threads.
        client.env("GLOBUS_THREAD_MODEL", "pthread");
    }
    client.env("PHOEBUS_REPORT", &report);
    let on_the_way = route(bed, &mut client, row)?;
    let began = Instant::now();
    let mut client = Client::start(client, &grid.file("client.log"))?;
    let receiver = Receiver::Children { of: server.pid(), name: "globus-gridftp-" };
    let readings = watch(&mut client, began, receiver, seconds, &on_the_way, limit)?;
    // A transfer over the wrong stack must not count.
    if let Some(stack) = stack {
        stack_was_taken(&client.said(), stack)?;
    }
    if row.way != RowRoute::Direct {
        sessions_were(&report, streams, row.transport())?;
    }
    Ok(readings)
}

/// A server at `dst`; with threads, which GCT's UDT driver needs.
fn server(bed: &Bed, grid: &Grid, threads: bool) -> anyhow::Result<Background> {
    let mut server = bed.command("dst", "globus-gridftp-server")?;
    grid.as_server(&mut server);
    let ip = bed.address("dst")?.to_string();
    server.args(["-p", &PORT.to_string(), "-control-interface", &ip, "-data-interface", &ip, "-c", "/dev/null"]);
    server.args(["-allow-root", "-dc-whitelist", "tcp,gsi,udt,phoebus", "-l"]).arg(grid.file("server.log"));
    if threads {
        server.args(["-threads", "2"]);
    }
    Background::start("the GridFTP server", server)?.listening(PORT)
}

/// Checks that the server uses the client's stack: it silently replaces a stack that it refuses, or never received,
/// by TCP.
pub(in crate::bench) fn stack_was_taken(dialogue: &str, stack: &str) -> anyhow::Result<()> {
    let asked = dialogue.find(&format!("SITE SETNETSTACK {stack}"));
    let Some(asked) = asked else {
        bail!("the client did not ask for the stack {stack} (SITE SETNETSTACK), so that this was TCP");
    };
    let is_answer = |line: &&str| line.len() > 3 && line.as_bytes()[..3].iter().all(u8::is_ascii_digit);
    match dialogue[asked..].lines().find(is_answer) {
        Some(answer) if answer.starts_with("250") => Ok(()),
        answer => bail!("the server did not take the stack {stack}: {}", answer.unwrap_or("no answer").trim()),
    }
}

/// Checks that the data went through gateways, each stream in its own session, with `transport` between the gateways.
fn sessions_were(report: &Path, streams: u32, transport: &str) -> anyhow::Result<()> {
    let text = fs::read_to_string(report).context("the driver has reported no session, so that none was opened")?;
    let (mut opened, mut seen) = (0, String::new());
    for line in text.lines() {
        let session: serde_json::Value = serde_json::from_str(line).with_context(|| format!("no report: {line}"))?;
        if session["event"] != "opened" {
            bail!("a connection did not go through the gateways: {}", session["note"]);
        }
        let hops = session["hops"].as_array().map(Vec::as_slice).unwrap_or_default();
        let between = hops.iter().find(|hop| hop["from"] == "pg1").map(|hop| hop["transport"].as_str());
        seen = between.flatten().unwrap_or("nothing").to_owned();
        if seen != transport {
            bail!("between the gateways went {seen} and not {transport}");
        }
        opened += 1;
    }
    if opened != streams {
        bail!("{opened} sessions were opened for {streams} streams, the last one by {seen}");
    }
    Ok(())
}

/// scp of a sparse file of zeros, with temporary keys.
fn scp(bed: &Bed, grid: &Grid, seconds: u64, limit: Duration) -> anyhow::Result<Vec<Reading>> {
    let file = |name: &str| grid.file(name).display().to_string();
    if !grid.file("sshd_config").exists() {
        prepare_ssh(grid)?;
    }
    // sshd needs a directory in /run that its service creates: mount a private /run.
    let run = format!(
        "mount -t tmpfs tmpfs /run && mkdir /run/sshd && exec \"$(command -v sshd)\" -De -f '{}'",
        file("sshd_config")
    );
    let mut server = bed.command("dst", "unshare")?;
    server.args(["-m", "sh", "-c", &run]);
    let server = Background::start("sshd", server)?.listening(22)?;
    let mut client = bed.command("src", "scp")?;
    client.args(["-q", "-B", "-i", &file("ssh-user"), "-o", &format!("UserKnownHostsFile={}", file("known"))]);
    client.args(["-o", "IdentitiesOnly=yes", "-F", "/dev/null", &file("zeros"), "root@dst:/dev/null"]);
    let began = Instant::now();
    let mut client = Client::start(client, &grid.file("client.log"))?;
    let receiver = Receiver::Children { of: server.pid(), name: "sftp-server" };
    watch(&mut client, began, receiver, seconds, &[], limit)
}

fn prepare_ssh(grid: &Grid) -> anyhow::Result<()> {
    for key in ["ssh-host", "ssh-user"] {
        let mut keygen = Command::new("ssh-keygen");
        keygen.args(["-q", "-t", "ed25519", "-N", "", "-C", "phoebus-bench", "-f"]).arg(grid.file(key));
        process::run("ssh-keygen", keygen, KEY)?;
    }
    let host = fs::read_to_string(grid.file("ssh-host.pub"))?;
    fs::write(grid.file("known"), format!("dst {host}"))?;
    // A hole of a terabyte.
    fs::File::create(grid.file("zeros"))?.set_len(ENDLESS.parse()?)?;
    // Without PAM, sshd treats an account with a locked password as a locked account.
    let shadow = fs::read_to_string("/etc/shadow").unwrap_or_default();
    let pam = if shadow.lines().any(|line| line.starts_with("root:!")) { "yes" } else { "no" };
    let own = grid.file("").display().to_string();
    let own = own.trim_end_matches('/');
    // For commands of sshd, bash runs its user's ~/.bashrc, which may take long, unless it counts as a nested shell.
    let text = format!(
        "Port 22\nHostKey {own}/ssh-host\nAuthorizedKeysFile {own}/ssh-user.pub\nStrictModes no\nUsePAM {pam}\n\
         PidFile none\nPermitRootLogin yes\nPasswordAuthentication no\nKbdInteractiveAuthentication no\n\
         Subsystem sftp /usr/lib/openssh/sftp-server\nSetEnv SHLVL=2\n"
    );
    fs::write(grid.file("sshd_config"), text).context("no configuration for sshd")
}

/// One stream of iperf3 on the same path, with the shim, which requests the same congestion control as the driver.
fn through_iperf(bed: &mut Bed, seconds: u64, limit: Duration) -> anyhow::Result<Vec<Reading>> {
    let server = iperf::serve(bed.command("dst", iperf::PROGRAM)?, Service::Iperf.port())?;
    let mut client = bed.command("src", iperf::PROGRAM)?;
    bed.route(&mut client, bed::BedRoute::Phoebus, Some("bbr"))?;
    let test = iperf::Test { seconds, streams: 1, reverse: false, congestion_control: None };
    let outcome = test.run(client, bed.entrance(bed::BedRoute::Phoebus, Service::Iperf)?, limit)?;
    drop(server);
    Ok(vec![(GOODPUT, outcome.goodput)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stack_check_requires_the_servers_acceptance() {
        let said = "debug: sending command to gsiftp://dst:2811/dev/null:\nSITE SETNETSTACK udt,gsi\n\n\
                    debug: response from gsiftp://dst:2811/dev/null:\n";
        stack_was_taken(&format!("{said}250 OK.\n\n"), "udt").unwrap();
        let refused = format!("{said}500-Setting data channel driver stack failed.\n500 End.\n");
        let error = stack_was_taken(&refused, "udt").unwrap_err().to_string();
        assert_eq!(error, "the server did not take the stack udt: 500-Setting data channel driver stack failed.");
        assert!(stack_was_taken(said, "udt").unwrap_err().to_string().ends_with("no answer"));
        let silent = stack_was_taken("SITE BUFSIZE 1\n250 OK.\n", "udt").unwrap_err().to_string();
        assert!(silent.contains("so that this was TCP"), "{silent}");
    }

    #[test]
    fn session_check_requires_streams_and_transport() {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("report");
        let line = |event: &str, transport: &str| {
            format!(
                "{{\"event\":\"{event}\",\"note\":\"why\",\"hops\":[{{\"from\":\"pg1\",\"transport\":\"{transport}\"}}]}}\n"
            )
        };
        let check = |lines: &[String], streams| {
            fs::write(&file, lines.concat()).unwrap();
            sessions_were(&file, streams, "udt").map_err(|error| error.to_string())
        };
        check(&[line("opened", "udt"), line("opened", "udt")], 2).unwrap();
        assert!(check(&[line("opened", "udt")], 2).unwrap_err().starts_with("1 sessions were opened for 2 streams"));
        assert!(check(&[line("direct", "udt")], 1).unwrap_err().contains("did not go through the gateways"));
        assert!(check(&[line("opened", "tcp")], 1).unwrap_err().contains("tcp and not udt"));
    }
}
