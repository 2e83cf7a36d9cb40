//! The output of `phoebus testbed`: text for people, JSON for programs.

use phoebus_wan::model::LinkCounters;
use phoebus_wan::testbed::{Error, Found, LinkReport, Report, State};
use serde::Serialize;
use serde_json::json;
use std::path::Path;

/// The conditions of an experiment, for its report. JSON takes one line.
pub(super) fn conditions(report: &Report, json: bool) -> String {
    if json { serde_json::to_string(report).unwrap_or_default() } else { report.to_string().trim_end().to_owned() }
}

/// Prints to standard error which hosts did not get the requested congestion control.
pub(super) fn refused(report: &Report) {
    for host in &report.hosts {
        if let Some(why) = &host.conditions.congestion_control_refused {
            eprintln!("phoebus: host {}: congestion control {why}", host.name);
        }
    }
}

/// Prints to standard error which gateways ended before the testbed.
pub(super) fn ended_gateways(report: &Report) {
    for (gateway, ended) in report.gateways.iter().filter_map(|gateway| Some((gateway, gateway.ended.as_ref()?))) {
        eprintln!("phoebus: the gateway on {} ended before its testbed: {ended}", gateway.host);
    }
}

/// Checks that a report can be written to a file, without changing its contents.
pub(super) fn create(file: &Path) -> Result<(), Error> {
    let open = std::fs::OpenOptions::new().append(true).create(true).open(file);
    open.map(drop).map_err(|source| Error::State { path: file.into(), source })
}

/// Writes a report to a file, as JSON.
pub(super) fn save(report: &Report, file: &Path) -> Result<(), Error> {
    let text = format!("{}\n", serde_json::to_string_pretty(report).unwrap_or_default());
    std::fs::write(file, text).map_err(|source| Error::State { path: file.into(), source })
}

/// Prints which testbeds were taken down.
pub(super) fn down(found: &[Found], json: bool) {
    if json {
        let names: Vec<_> = found.iter().map(|found| &found.name).collect();
        say(&json!({ "down": names }).to_string());
    } else if found.is_empty() {
        say("no testbed was running");
    } else {
        found.iter().for_each(|found| say(&format!("testbed {} is down", found.name)));
    }
}

/// The output of `status --json`.
#[derive(Serialize)]
struct Status<'a> {
    running: &'a [Report],
    others: &'a [Found],
}

/// Prints running testbeds with their counters, and those that do not answer.
pub(super) fn status(running: &[Report], others: &[Found], json: bool) {
    if json {
        let status = Status { running, others };
        return say(&serde_json::to_string_pretty(&status).unwrap_or_default());
    }
    if running.is_empty() && others.is_empty() {
        say("no testbed is running");
    }
    for report in running {
        say(report.to_string().trim_end());
        report.links.iter().for_each(|link| say(&link_counters(link)));
    }
    for Found { name, state, .. } in others {
        say(&match state {
            State::Stale => format!(
                "testbed {name} is stale: its owner died; `phoebus testbed down --name {name}` removes what is left"
            ),
            State::Private | State::Running => format!("testbed {name} is private to the process that built it"),
        });
    }
}

fn link_counters(link: &LinkReport) -> String {
    let LinkCounters { forward, backward, cut } = &link.counters;
    let mut lines = vec![format!("  {}{}", link.name, if *cut { " (cut)" } else { "" })];
    let [a, b] = &link.ends;
    for (from, to, counters) in [(a, b, forward), (b, a, backward)] {
        lines.push(format!(
            "    {from} to {to}: {} packets, {} segments, {} bytes delivered; {} lost at random, {} in the queue, {} in a cut; \
             queue {} bytes, at most {}",
            counters.packets_out,
            counters.delivered.segments,
            counters.delivered.bytes,
            counters.random_drops.segments,
            counters.queue_drops.segments,
            counters.cut_drops.segments,
            counters.queue_bytes,
            counters.queue_bytes_max,
        ));
    }
    lines.join("\n")
}

pub(super) fn say(line: &str) {
    crate::standard::note(line);
}
