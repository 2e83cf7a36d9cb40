//! Warns about variables of the environment that nothing reads, which are most likely misspelt.

use phoebus_config::settings::Key;
use std::io::Write;

/// Other known variables: of this command, its libraries and drivers, and of builds and tests.
const OTHERS: [&str; 9] = [
    "PHOEBUS_ADMIN_SOCKET",
    "PHOEBUS_CREDENTIALS",
    "PHOEBUS_FTP_PASSWORD",
    "PHOEBUS_FTP_USER",
    "PHOEBUS_PRELOAD_LIB",
    "PHOEBUS_SSH",
    "PHOEBUS_CFLAGS",
    "PHOEBUS_LIBS",
    "PHOEBUS_SOAK",
];

/// Prefixes of variables that testbeds and tests set for their processes.
const OF_TESTS: [&str; 2] = ["PHOEBUS_TEST", "PHOEBUS_FILES_TEST"];

/// Suffixes of variables that container platforms set for a service, whose name may begin with phoebus.
const OF_SERVICES: [&str; 2] = ["_SERVICE_", "_PORT_"];

/// Names that people expect, and the real ones.
const EXPECTED: [(&str, Key); 2] = [("PHOEBUS_GATEWAY", Key::Gateway), ("PHOEBUS_GATEWAYS", Key::Gateway)];

/// How many letters of a name may be wrong for another one to be meant: three, and of a short name one in three.
fn near(name: &str) -> usize {
    (name.len().saturating_sub("PHOEBUS_".len()) / 3).clamp(1, 3)
}

/// How many of them are told.
const MOST: usize = 5;

/// Says which variables nothing reads.
pub(crate) fn warn() {
    for sentence in sentences(std::env::vars_os().filter_map(|(name, _)| name.into_string().ok())) {
        // The message may go nowhere.
        let _ = writeln!(std::io::stderr(), "phoebus: {sentence}");
    }
}

/// The warnings about these names.
fn sentences(names: impl Iterator<Item = String>) -> Vec<String> {
    let mut all: Vec<String> = names.filter(|name| is_unread(name)).collect();
    all.sort_unstable();
    let more = all.len().saturating_sub(MOST);
    let told = all.iter().take(MOST).map(|name| {
        let nearest = known().map(|one| (distance(one, name), one)).min();
        let nearest = nearest.filter(|(distance, one)| *distance <= near(one)).map(|(_, one)| one);
        let meant = EXPECTED.iter().find(|(expected, _)| expected == name).map(|(_, key)| key.name()).or(nearest);
        let meant = meant.map(|one| format!("; is {one} meant?")).unwrap_or_default();
        // A name may have anything in it, but not all of it is for a terminal.
        format!("the environment has {}, which nothing reads{meant}", name.escape_debug())
    });
    let more =
        (more > 0).then(|| format!("the environment has {more} more variables of such names, which nothing reads"));
    told.chain(more).collect()
}

/// The names that something reads.
fn known() -> impl Iterator<Item = &'static str> {
    Key::ALL.iter().map(|key| key.name()).chain(OTHERS)
}

/// Whether a variable of this name looks as if it were read, and is not.
fn is_unread(name: &str) -> bool {
    let is_of_tests = OF_TESTS.iter().any(|begin| name.starts_with(begin));
    let is_of_service = name.ends_with("_PORT") || OF_SERVICES.iter().any(|part| name.contains(part));
    name.starts_with("PHOEBUS_") && !is_of_tests && !is_of_service && !known().any(|one| one == name)
}

/// How many letters have to be put in, left out or replaced to make `other` of `one`.
fn distance(one: &str, other: &str) -> usize {
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (i, a) in one.bytes().enumerate() {
        let mut above = std::mem::replace(&mut row[0], i + 1);
        for (j, b) in other.bytes().enumerate() {
            let replaced = above + usize::from(a != b);
            above = row[j + 1];
            row[j + 1] = replaced.min(above + 1).min(row[j] + 1);
        }
    }
    row[other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(names: &[&str]) -> Vec<String> {
        sentences(names.iter().map(|name| (*name).to_owned()))
    }

    #[test]
    fn misspelt_names_get_a_suggestion() {
        for (name, meant) in [
            ("PHOEBUS_ONY", "PHOEBUS_ONLY"),
            ("PHOEBUS_GWW", "PHOEBUS_GW"),
            ("PHOEBUS_GATEWAY", "PHOEBUS_GW"),
            ("PHOEBUS_GATEWAYS", "PHOEBUS_GW"),
            ("PHOEBUS_EXEPT", "PHOEBUS_EXCEPT"),
            ("PHOEBUS_FTP_PASWORD", "PHOEBUS_FTP_PASSWORD"),
        ] {
            let said = of(&[name]);
            assert!(said.len() == 1 && said[0].contains(name), "{said:?}");
            assert!(said[0].ends_with(&format!("is {meant} meant?")), "{said:?}");
        }
        for name in ["PHOEBUS_GW", "PHOEBUS_SSH", "PHOEBUS_TESTBED_DIR", "PHOEBUS_SOAK", "HOME", "MY_PHOEBUS_ONY"] {
            assert_eq!(of(&[name]), Vec::<String>::new(), "{name}");
        }
    }

    #[test]
    fn unlike_names_get_no_suggestion() {
        assert_eq!(
            of(&["PHOEBUS_SOMETHING_ELSE"]),
            ["the environment has PHOEBUS_SOMETHING_ELSE, which nothing reads"]
        );
        assert_eq!(of(&["PHOEBUS_ABC"]), ["the environment has PHOEBUS_ABC, which nothing reads"]);
    }

    #[test]
    fn variables_of_kubernetes_services_cause_no_warning() {
        let names = [
            "PHOEBUS_SERVICE_HOST",
            "PHOEBUS_SERVICE_PORT",
            "PHOEBUS_SERVICE_PORT_SESSIONS",
            "PHOEBUS_PORT",
            "PHOEBUS_PORT_5006_TCP",
            "PHOEBUS_PORT_5006_TCP_ADDR",
            "PHOEBUS_GW_SERVICE_HOST",
            "PHOEBUS_GW_PORT_5006_TCP",
        ];
        assert_eq!(of(&names), Vec::<String>::new());
    }

    #[test]
    fn names_are_escaped_for_terminals() {
        let said = of(&["PHOEBUS_A\nB\u{1b}[2J"]);
        assert!(said.len() == 1 && !said[0].chars().any(char::is_control), "{said:?}");
    }

    #[test]
    fn long_lists_of_names_are_shortened() {
        let names: Vec<String> = (0..300).map(|i| format!("PHOEBUS_NUMBER_{i:03}")).collect();
        let said = sentences(names.into_iter());
        assert_eq!(said.len(), MOST + 1);
        assert!(said[MOST].contains("has 295 more"), "{said:?}");
    }

    #[test]
    fn edit_distances_are_correct() {
        assert_eq!((distance("", "abc"), distance("kitten", "sitting"), distance("a", "a")), (3, 3, 0));
    }
}
