//! What `--explain` prints, of `phoebus gateway` and `phoebus status`.

use anyhow::Result;
use phoebus_gateway::Explanation;
use phoebus_gateway::config::RulePlace;
use std::fmt::Write as _;
use std::path::Path;

/// Prints an explanation, for people or as JSON. `file` is the configuration, if it is known.
pub(crate) fn show(explanation: &Explanation, file: Option<&Path>, json: bool) -> Result<()> {
    let text = if json { serde_json::to_string_pretty(explanation)? + "\n" } else { describe(explanation, file) };
    crate::standard::print(&text)
}

fn describe(explanation: &Explanation, file: Option<&Path>) -> String {
    let Explanation { asks, to, next, decision, rule, reason, gateway, addresses, limits, notes } = explanation;
    let done = |decision: &str| match decision {
        "allow" => "allowed",
        "redirect" => "redirected",
        "undecided" => "undecided",
        _ => "denied",
    };
    let by = |rule: &Option<RulePlace>| match rule {
        Some(RulePlace { table, number, line }) => match file {
            Some(file) => format!("by [[{}]] {number} ({}:{line})", table.name(), file.display()),
            None => format!("by [[{}]] {number} (line {line})", table.name()),
        },
        None => "because no rule fits".to_owned(),
    };
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = match (decision.as_str(), rule) {
        ("undecided", None) => writeln!(text, "undecided"),
        _ => writeln!(text, "{} {}", done(decision), by(rule)),
    };
    if let Some(gateway) = gateway {
        let _ = writeln!(text, "  to ask: {gateway}");
    }
    let _ = writeln!(text, "  reason: {reason}");
    let _ = writeln!(text, "  asked: {asks}");
    let _ = writeln!(text, "  to: {to}, next hop: {next}");
    for address in addresses {
        let _ = writeln!(text, "  {}: {} {}", address.address, done(&address.decision), by(&address.rule));
    }
    for limit in limits {
        let _ = writeln!(text, "  limit: {limit}");
    }
    for note in notes {
        let _ = writeln!(text, "  note: {note}");
    }
    text
}
