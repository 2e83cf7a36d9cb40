//! The results as text.

use super::transfer::Outcome;
use super::{Act, Results};
use std::fmt::Write;

/// The path, the conditions, and a line for each program.
pub(super) fn print(results: &Results) -> String {
    let mut text = String::new();
    let [first, wan, last] = &results.links;
    let _ = writeln!(text, "\nPath     src ──({first})── pg1 ──({wan})── pg2 ──({last})── dst");
    for conditions in results.conditions.chunks(3) {
        let _ = writeln!(text, "         {}", conditions.join("; "));
    }
    let _ = writeln!(text, "Session  {}", results.session);
    let _ = writeln!(text, "Wire     {}\n", results.lost);
    let _ = writeln!(text, "{:<22}{:>16}{:>24}", "", "direct", "through pg1 and pg2");
    for act in &results.acts {
        let _ = writeln!(text, "{}", line(act).trim_end());
    }
    if results.acts.iter().filter_map(|act| act.session.as_ref()).any(|outcome| outcome.intact == Some(true)) {
        text.push_str("\nEvery file that arrived is the one that was sent (sha256).\n");
    }
    text
}

fn line(act: &Act) -> String {
    let cell = |outcome: &Option<Outcome>| outcome.as_ref().map_or_else(|| "–".to_owned(), figure);
    let gain = act.gain().map_or_else(String::new, |gain| format!("{gain:.1} times as fast"));
    let stopped = [("directly", &act.direct), ("through them", &act.session)]
        .into_iter()
        .filter_map(|(way, outcome)| outcome.as_ref().filter(|outcome| !outcome.complete).map(|outcome| (way, outcome)))
        .map(|(way, outcome)| format!("{way} stopped at {} MB", outcome.bytes / 1_000_000));
    let stopped: Vec<_> = stopped.collect();
    let parts = [gain, stopped.join(", "), act.note.to_owned()];
    let remark = parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("; ");
    format!("{:<22}{:>16}{:>24}   {remark}", act.title, cell(&act.direct), cell(&act.session))
}

/// The time of a file transfer, or the rate of a timed one.
fn figure(outcome: &Outcome) -> String {
    match (outcome.complete, outcome.intact) {
        (false, _) => format!("> {:.0} s", outcome.seconds),
        (true, Some(_)) => format!("{:.1} s", outcome.seconds),
        (true, None) => format!("{:.0} Mbit/s", outcome.bits_per_second / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(mbits: f64, seconds: f64, intact: Option<bool>, complete: bool) -> Option<Outcome> {
        let (command, bits_per_second, bytes) = (String::new(), mbits * 1e6, 250_000_000);
        Some(Outcome { command, seconds, complete, bytes, bits_per_second, intact, samples: Vec::new() })
    }

    #[test]
    fn table_line_compares_the_results() {
        let act = |direct, session, note| Act { title: "x".into(), direct, session, note };
        let session = || outcome(820.0, 11.0, Some(true), true);
        let cases = [
            (
                act(outcome(100.0, 90.0, Some(true), true), session(), "note"),
                "90.0 s                  11.0 s   8.2 times as fast; note",
            ),
            (
                act(outcome(10.0, 120.0, None, false), session(), ""),
                "> 120 s                  11.0 s   82.0 times as fast; directly stopped at 250 MB",
            ),
            (act(outcome(905.4, 10.0, None, true), None, ""), "905 Mbit/s                       –"),
        ];
        for (act, expected) in cases {
            assert!(line(&act).trim_end().ends_with(expected), "{}", line(&act));
        }
    }
}
