//! Flows of objects beside other flows: `phoebus cp` from memory to memory for a while.

use super::bed::Bed;
use super::gateway;
use super::process::{Background, NO_HOME};
use anyhow::Context;
use std::process::Command;
use std::time::{Duration, Instant};

/// The server's port.
const PORT: u16 = 2811;
/// More than any flow moves: a terabyte.
const ENDLESS: u64 = 1 << 40;

/// Starts a server in `host` for any number of flows.
pub(super) fn serve(bed: &Bed, host: &str) -> anyhow::Result<Background> {
    let mut server = bed.testbed.exec(host, gateway::program())?;
    server.args(["serve", "--anonymous", "--root", "/", "--listen", &format!("{}:{PORT}", bed.address(host)?)]);
    Background::start("phoebus serve", server)?.listening(PORT)
}

/// A command at `from` that puts as one object to the server in `to` without an end.
pub(super) fn client(bed: &Bed, from: &str, to: &str) -> anyhow::Result<Command> {
    let mut client = bed.testbed.exec(from, gateway::program())?;
    client.args(["cp", "--json", "--verify", "none", "--attempts", "1", "--gateways", "none"]);
    client.args(["--stack", "object", "--length", &ENDLESS.to_string()]);
    client.args(["file:///dev/zero".to_owned(), format!("ftp://{}:{PORT}/dev/null", bed.address(to)?)]);
    client.env("HOME", NO_HOME);
    Ok(client)
}

/// Runs such a command for `time`, and ends it. Returns the bytes of each second.
pub(super) fn run(command: Command, time: Duration) -> anyhow::Result<Vec<u64>> {
    let until = Instant::now() + time;
    let (mut flow, first) = Background::until_it_says("phoebus cp", command, time)?;
    let (mut intervals, mut before) = (Vec::new(), 0);
    let mut line = Ok(first);
    // It says what it has moved once a second.
    while let Ok(said) = line {
        let event: serde_json::Value = serde_json::from_str(&said).context("phoebus cp printed no JSON")?;
        if let Some(moved) = event["bytes_moved"].as_u64().filter(|_| event["event"] == "progress") {
            intervals.push(moved.saturating_sub(before));
            before = moved;
        }
        line = flow.next_line(until.saturating_duration_since(Instant::now()));
    }
    flow.check().map(|()| intervals)
}
