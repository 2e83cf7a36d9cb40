//! A short `phoebus demo`: every program really runs, in both directions, and nothing is left behind.

#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

use serde_json::Value;
use std::process::{Command, Stdio};

fn demo() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_phoebus"));
    command.arg("demo").stdin(Stdio::null());
    command
}

#[test]
fn demo_moves_verifies_compares_and_draws() {
    let directory = tempfile::tempdir().unwrap();
    let picture = directory.path().join("picture.svg");
    let data = directory.path().join("data");
    std::fs::create_dir(&data).unwrap();
    let mut command = demo();
    command.args(["--size", "16MiB", "--time", "1s", "--wan-rtt", "20ms", "--json", "--picture"]).arg(&picture);
    let output = command.arg("--directory").arg(&data).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");

    let results: Value = serde_json::from_slice(&output.stdout).unwrap();
    let acts = results["acts"].as_array().unwrap();
    let titles: Vec<_> = acts.iter().map(|act| act["title"].as_str().unwrap()).collect();
    let expected = ["iperf3, 1s", "  with bbr on src", "  with cubic on src", "curl, 16MiB", "scp, 512KiB"];
    assert_eq!(titles, expected, "scp needs root; {said}");
    for act in acts {
        let outcomes = ["direct", "session"].map(|way| &act[way]);
        assert!(outcomes.iter().any(|outcome| !outcome.is_null()), "{act}");
        for outcome in outcomes.into_iter().filter(|outcome| !outcome.is_null()) {
            assert!(outcome["bits_per_second"].as_f64().unwrap() > 0.0, "{outcome}");
            let of_a_file = !outcome["command"].as_str().unwrap().contains("iperf3");
            assert_eq!(outcome["intact"].as_bool(), of_a_file.then_some(true), "{outcome}");
        }
    }
    // Through both gateways to the server, with each hop named.
    let session = results["session"].as_str().unwrap();
    for host in ["client ", "→ pg1 ", "→ pg2 ", ":80"] {
        assert!(session.contains(host), "{session}");
    }
    let svg = std::fs::read_to_string(picture).unwrap();
    assert!(svg.starts_with("<svg ") && svg.trim_end().ends_with("</svg>"), "{svg}");
    assert_eq!(svg.matches("<polyline ").count(), 2, "{svg}");
    assert_eq!(std::fs::read_dir(&data).unwrap().count(), 0, "the demo left files behind");
}

#[test]
fn demo_reports_problems_before_it_begins() {
    let complains = |command: &mut Command, expected: &str| {
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(expected), "{said}");
    };
    complains(demo().args(["--size", "5"]), "phoebus: --size: 5 is too little to measure; expected at least 1MiB");
    complains(
        demo().args(["--limit", "0"]),
        "phoebus: --limit: 0s is too short to move anything; expected at least 1s",
    );
    complains(
        demo().args(["--picture", "/no/such/x.svg"]),
        "phoebus: --picture: cannot write /no/such/x.svg: no such file",
    );
    complains(
        demo().args(["--size", "1MiB", "--directory", "/dev/null"]),
        "phoebus: --directory: cannot create /dev/null/",
    );
    complains(demo().args(["--time", "1ms"]), "phoebus: --time: 1ms is too short to measure; expected at least 1s");
    complains(demo().args(["--wan-rtt", "far"]), "\"far\" is not a duration such as 250us");
    complains(demo().args(["--directory", "/no/such"]), "phoebus: --directory: /no/such: ");
    complains(demo().args(["--size", "4000TB"]), "choose another --directory or a smaller --size");
    complains(demo().env("PATH", "/no/such"), "phoebus: the demo needs programs that are not here: iperf3, curl, ");
}
