//! What `phoebus testbed` prints: text for people, JSON for programs.

use phoebus_wan::model::LinkCounters;
use phoebus_wan::testbed::{Error, LinkReport, Report};
use serde::Serialize;
use serde_json::json;
use std::io::Write;
use std::path::Path;

/// The conditions of an experiment, to print with its result. JSON takes one line.
pub(super) fn conditions(report: &Report, json: bool, to: &mut dyn Write) {
    let text =
        if json { serde_json::to_string(report).unwrap_or_default() } else { report.to_string().trim_end().to_owned() };
    // A closed pipe says that nobody wants to read it.
    let _ = writeln!(to, "{text}");
}

/// Says which gateways did not last as long as the testbed.
pub(super) fn ended_gateways(report: &Report) {
    for (gateway, ended) in report.gateways.iter().filter_map(|gateway| Some((gateway, gateway.ended.as_ref()?))) {
        eprintln!("phoebus: the gateway on {} ended before its testbed: {ended}", gateway.host);
    }
}

/// Writes a report to a file, as JSON.
pub(super) fn save(report: &Report, file: &Path) -> Result<(), Error> {
    let text = format!("{}\n", serde_json::to_string_pretty(report).unwrap_or_default());
    std::fs::write(file, text).map_err(|source| Error::State { path: file.into(), source })
}

/// Which testbeds were taken down.
pub(super) fn down(names: &[String], json: bool) {
    if json {
        say(&json!({ "down": names }).to_string());
    } else if names.is_empty() {
        say("no testbed was running");
    } else {
        names.iter().for_each(|name| say(&format!("testbed {name} is down")));
    }
}

/// What `status --json` prints.
#[derive(Serialize)]
struct Status<'a> {
    running: &'a [Report],
    stale: &'a [String],
}

/// Running testbeds with their counters, and what dead ones left.
pub(super) fn status(reports: &[Report], stale: &[String], json: bool) {
    if json {
        let found = Status { running: reports, stale };
        return say(&serde_json::to_string_pretty(&found).unwrap_or_default());
    }
    if reports.is_empty() && stale.is_empty() {
        say("no testbed is running");
    }
    for report in reports {
        say(report.to_string().trim_end());
        report.links.iter().for_each(|link| say(&link_counters(link)));
    }
    for name in stale {
        say(&format!(
            "testbed {name} is stale: its owner died; `phoebus testbed down --name {name}` removes what is left"
        ));
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

fn say(line: &str) {
    let _ = writeln!(std::io::stdout(), "{line}");
}
