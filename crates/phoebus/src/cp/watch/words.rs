//! Error messages for people, with the option that helps.

use phoebus_files::Error;

/// The error in one line that names the file: most errors do, except those of unreachable servers.
pub(super) fn about(name: &str, error: &Error) -> String {
    let (text, last) = (sentence(error), name.rsplit('/').next().unwrap_or_default());
    if text.contains(last) { text } else { format!("{name}: {text}") }
}

/// The error in one line, in the style of the command.
fn sentence(error: &Error) -> String {
    let text = crate::exit::without_numbers(&error.to_string());
    let hint = match error {
        Error::Kind { is: "a directory", expected: "a file", .. } => "directories are copied with -r",
        Error::NoParent { .. } => "--parents makes it",
        // Some servers forbid hidden names, or setting times.
        _ if text.contains("answers STOR with 553") && text.contains(".phoebus-part") => {
            "--in-place writes files under their own names"
        }
        _ if text.contains("answers MFMT with 5") => "--preserve none leaves times alone",
        _ => return text,
    };
    format!("{text} ({hint})")
}

#[cfg(test)]
mod tests {
    use super::*;
    use phoebus_files::ErrorKind;

    #[test]
    fn refusals_of_servers_come_with_advice() {
        for (reason, hint) in [
            ("the server answers STOR with 553 Prohibited file name: /.zz.522c.phoebus-part", "(--in-place "),
            ("the server answers MFMT with 550 Anonymous users can not change perms", "(--preserve none "),
            ("the server answers STOR with 553 no", "no"),
        ] {
            let error = Error::Store { name: "ftp://h/zz".into(), reason: reason.into(), kind: ErrorKind::Denied };
            let said = about("zz", &error);
            assert!(said.contains(hint) && said.contains(reason), "{said}");
        }
    }
}
