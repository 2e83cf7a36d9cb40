//! Names of files in answers and in the log.

use super::failure::Failure;
use phoebus_files::is_engines;
use phoebus_files::key::Key;

/// Refuses the names of the server's own drafts: what a client stored there could be taken for what another client
/// sends.
///
/// # Errors
/// The reply.
pub(super) fn nobodys(key: &Key) -> Result<(), Failure> {
    match is_engines(key.name()) {
        true => Err(Failure::say(553, format!("{} is a name of the server's own drafts", quoted(key)))),
        false => Ok(()),
    }
}

/// Quotes a path for the log, so that no name looks like anything else or spans lines.
pub(super) fn quoted(key: &Key) -> String {
    format!("\"/{}\"", key.to_string().replace('"', "\\\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_forge_log_lines() {
        let key = |text: &str| Key::parse(text).unwrap();
        assert_eq!(quoted(&key("a b/c")), "\"/a b/c\"");
        assert_eq!(quoted(&key("x\" bytes=5\n\\")), "\"/x\\\" bytes=5\\u{a}\\\\\"");
    }
}
