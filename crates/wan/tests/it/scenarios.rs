//! Scenario files: the shipped ones parse, and errors of others name the place and what was expected.
#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

use phoebus_wan::testbed::Scenario;
use std::path::Path;

#[test]
fn shipped_scenarios_can_be_built() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios");
    let mut read = 0;
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        assert_eq!(path.extension().unwrap(), "toml", "{}", path.display());
        let scenario = Scenario::load(&path).unwrap();
        scenario.check().unwrap();
        assert!(scenario.hosts.iter().any(|host| host.gateway), "{} has no gateway", path.display());
        read += 1;
    }
    assert!(read >= 4, "only {read} scenarios were found");
}

#[test]
fn default_path_is_a_valid_scenario() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios/sc09.toml");
    assert_eq!(Scenario::load(&file).unwrap(), Scenario::sc09());
}

#[test]
fn errors_name_the_place_and_what_was_expected() {
    let two_hosts = "host = [{ name = \"a\" }, { name = \"b\" }]\n";
    for (text, expected) in [
        ("", "x.toml: a scenario needs at least one [[host]]"),
        ("sead = 1", "x.toml:1:1: unknown field `sead`, expected one of `seed`, `stock`, `host`, `link`"),
        (
            "[[host]]\nname = \"a\"\ncolour = 1",
            "x.toml:3:1: unknown field `colour`, expected one of `name`, `gateway`, `congestion_control`, `sysctl`",
        ),
        (
            "[[host]]\nname = \"a b\"",
            "x.toml:2:8: \"a b\" cannot name a host: expected up to 63 letters, digits and dashes, not \"localhost\"",
        ),
        (
            "[[host]]\nname = \"a\"\n[[host]]\nname = \"a\"",
            "x.toml:4:8: a second host is called \"a\"; expected a name of its own",
        ),
        (
            "[[host]]\nname = \"a\"\nsysctl = { \"kernel.panic\" = \"1\" }",
            "x.toml:2:8: \"kernel.panic\" is not a setting of a host's network: expected one below net., such as net.ipv4.tcp_sack",
        ),
        (
            "[[host]]\nname = \"a\"\nsysctl = { \"net../../kernel.panic\" = \"1\" }",
            "x.toml:2:8: \"net../../kernel.panic\" is not a setting of a host's network: expected one below net., such as net.ipv4.tcp_sack",
        ),
        (two_hosts, "x.toml:1:34: host \"b\" cannot be reached from \"a\": no links join them"),
        ("[[host]]\nname = ", "x.toml:2:8: string values must be quoted, expected literal string"),
    ] {
        assert_eq!(refusal(text), expected);
    }
    for (link, expected) in [
        ("ends = [\"a\", \"b\"]", "x.toml:2:1: missing field `name`"),
        (
            "name = \"l\"\nends = [\"a\", \"c\"]",
            "x.toml:4:8: link \"l\" ends at \"c\", which is no [[host]] of the scenario",
        ),
        ("name = \"l\"\nends = [\"a\", \"a\"]", "x.toml:4:8: both ends of link \"l\" are \"a\"; expected two hosts"),
        (
            "name = \"l\"\nends = [\"a\", \"b\"]\nmtu = 576",
            "x.toml:5:7: link \"l\" has an MTU of 576; expected at least 1280, which IPv6 needs",
        ),
        (
            "name = \"l\"\nends = [\"a\", \"b\"]\nrate = \"fast\"",
            "x.toml:5:8: \"fast\" is not a rate such as 500mbit or 1gbit, or unlimited",
        ),
        (
            "name = \"l\"\nends = [\"a\", \"b\"]\nforward = { delay = \"soon\" }",
            "x.toml:5:21: \"soon\" is not a duration such as 250us, 100ms, 30s, 2m, 1h, 7d or 2w",
        ),
        (
            "name = \"l\"\nends = [\"a\", \"b\"]\nforward = { lag = \"1s\" }",
            "x.toml:5:13: unknown field `lag`, expected one of `delay`, `jitter`, `reorder`, `loss`, `rate`, `queue`",
        ),
        (
            "name = \"a-very-long-name\"\nends = [\"a\", \"b\"]",
            "x.toml:3:8: \"a-very-long-name\" cannot name a link: expected up to 15 letters, digits and dashes, not \"lo\"",
        ),
        (
            "name = \"l\"\nends = [\"a\", \"b\"]\n[[link]]\nname = \"l\"\nends = [\"a\", \"b\"]",
            "x.toml:6:8: a second link is called \"l\"; expected a name of its own",
        ),
    ] {
        assert_eq!(refusal(&format!("{two_hosts}[[link]]\n{link}")), expected);
    }
}

#[test]
fn error_names_the_missing_file() {
    let error = Scenario::load(Path::new("/nonexistent/x.toml")).unwrap_err();
    assert_eq!(error.to_string(), "/nonexistent/x.toml: cannot be read: No such file or directory (os error 2)");
    assert!(error.is_bad_input());
}

fn refusal(text: &str) -> String {
    let error = Scenario::parse(text, "x.toml").unwrap_err();
    assert!(error.is_bad_input());
    error.to_string()
}
