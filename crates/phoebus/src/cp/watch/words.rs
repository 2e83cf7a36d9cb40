//! Errors as people are told of them, with the option that helps.

use phoebus_files::Error;

/// The error in one line, which names the file, at either end: most errors do, but not those of a server that is not there.
pub(super) fn about(name: &str, error: &Error) -> String {
    let (text, last) = (sentence(error), name.rsplit('/').next().unwrap_or_default());
    if text.contains(last) { text } else { format!("{name}: {text}") }
}

/// The error in one line, as the rest of the command says errors.
fn sentence(error: &Error) -> String {
    let text = crate::exit::without_numbers(&error.to_string());
    let hint = match error {
        Error::Kind { is: "a directory", expected: "a file", .. } => "directories are copied with -r",
        Error::NoParent { .. } => "--parents makes it",
        // Some servers let nobody make hidden names, or set times.
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
    use phoebus_files::Sort;

    #[test]
    fn what_servers_refuse_comes_with_what_helps() {
        for (reason, hint) in [
            ("the server answers STOR with 553 Prohibited file name: /.zz.522c.phoebus-part", "(--in-place "),
            ("the server answers MFMT with 550 Anonymous users can not change perms", "(--preserve none "),
            ("the server answers STOR with 553 no", "no"),
        ] {
            let error = Error::Store { name: "ftp://h/zz".into(), reason: reason.into(), sort: Sort::Denied };
            let said = about("zz", &error);
            assert!(said.contains(hint) && said.contains(reason), "{said}");
        }
    }
}
