//! Variables of the environment that nothing reads: most likely a name is misspelt, and what was meant does not happen.

use phoebus_proto::settings::Key;
use std::io::Write;

/// What else has names like settings: read by this command, its libraries and drivers, and by what builds and tests them.
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

/// The beginnings of what testbeds and tests tell their own processes.
const OF_TESTS: [&str; 2] = ["PHOEBUS_TEST", "PHOEBUS_FILES_TEST"];

/// Says which variables nothing reads.
pub(crate) fn warn() {
    for (name, _) in std::env::vars_os() {
        if let Some(sentence) = name.to_str().and_then(unread) {
            // Nobody has to listen.
            let _ = writeln!(std::io::stderr(), "phoebus: {sentence}");
        }
    }
}

/// What there is to say of a variable of this name, if nothing reads it.
fn unread(name: &str) -> Option<String> {
    let known = || Key::ALL.iter().map(|key| key.name()).chain(OTHERS);
    let ours = name.starts_with("PHOEBUS_") && !OF_TESTS.iter().any(|begin| name.starts_with(begin));
    if !ours || known().any(|one| one == name) {
        return None;
    }
    let nearest = known().min_by_key(|one| distance(one, name))?;
    Some(format!("the environment has {name}, which nothing reads; is {nearest} meant?"))
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

    #[test]
    fn misspelt_names_are_told_with_what_is_meant() {
        for (name, meant) in [
            ("PHOEBUS_ONY", "PHOEBUS_ONLY"),
            ("PHOEBUS_GWW", "PHOEBUS_GW"),
            ("PHOEBUS_EXEPT", "PHOEBUS_EXCEPT"),
            ("PHOEBUS_FTP_PASWORD", "PHOEBUS_FTP_PASSWORD"),
        ] {
            let said = unread(name).unwrap();
            assert!(said.contains(name) && said.ends_with(&format!("is {meant} meant?")), "{said}");
        }
        for name in ["PHOEBUS_GW", "PHOEBUS_SSH", "PHOEBUS_TESTBED_DIR", "PHOEBUS_SOAK", "HOME", "MY_PHOEBUS_ONY"] {
            assert_eq!(unread(name), None, "{name}");
        }
    }

    #[test]
    fn distances_are_those_of_letters() {
        assert_eq!((distance("", "abc"), distance("kitten", "sitting"), distance("a", "a")), (3, 3, 0));
    }
}
