//! Converts refusals of servers to errors of the file engine.

use super::preliminary::Limit;
use phoebus_files::{Error, ErrorKind};
use phoebus_net::reason;
use phoebus_proto::gridftp::reply::Reply;
use std::io;
use std::time::Duration;

/// Longest quotation of a server's text, in characters.
const MAX_WORDS: usize = 400;

/// The error for `name`, after the server answered `command` with the refusal `reply`. `act` is a verb, as in "cannot
/// read".
pub(super) fn refused(name: &str, act: &'static str, command: &str, reply: &Reply) -> Error {
    let words = format!("the server answers {command} with {}", words(reply));
    let name = name.to_owned();
    let source = |words: String| io::Error::other(words);
    match kind(reply) {
        ErrorKind::NotFound => Error::NotFound { name },
        ErrorKind::Exists => Error::Exists { name },
        ErrorKind::NoSpace => Error::NoSpace { name, source: source(words) },
        ErrorKind::Denied => Error::Denied { name, act, source: source(words) },
        kind => Error::Store { name, reason: words, kind },
    }
}

/// Quotes a server's text in a sentence.
pub(super) fn words(reply: &Reply) -> String {
    let text = reply.text().replace(['\r', '\n'], " ");
    let shown: String = text.chars().take(MAX_WORDS).flat_map(char::escape_debug).collect();
    format!("{} {}", reply.code, shown.replace("\\'", "'").replace("\\\"", "\"").trim_end())
}

/// Classifies a refusal. Codes are coarse (550 is any failure about a file), so the known texts of systems and common
/// servers count too.
pub(super) fn kind(reply: &Reply) -> ErrorKind {
    let text = reply.text().to_lowercase();
    let says = |any: &[&str]| any.iter().any(|words| text.contains(words));
    if says(&["no such file", "not found", "does not exist", "doesn't exist", "cannot find", "not exist"]) {
        return ErrorKind::NotFound;
    }
    if says(&["no space", "disk full", "quota", "not enough space", "insufficient storage"]) {
        return ErrorKind::NoSpace;
    }
    if says(&["file exists", "already exists", "exists already"]) {
        return ErrorKind::Exists;
    }
    match reply.code {
        452 | 552 => ErrorKind::NoSpace,
        400..=499 => ErrorKind::Passing,
        530..=539 | 550 | 553 => ErrorKind::Denied,
        500 if says(&["denied", "not permitted", "read-only", "not allowed"]) => ErrorKind::Denied,
        _ => ErrorKind::Request,
    }
}

/// Whether the text of a refusal gives another reason than a missing file.
pub(super) fn says_otherwise(reply: &Reply) -> bool {
    const OTHERWISE: [&str; 13] = [
        "permission",
        "denied",
        "not allowed",
        "not permitted",
        "forbidden",
        "input/output",
        "i/o error",
        "stale",
        "timed out",
        "timeout",
        "too many",
        "busy",
        "unavailable",
    ];
    let text = reply.text().to_lowercase();
    OTHERWISE.iter().any(|words| text.contains(words))
}

/// The connection to the server failed.
pub(super) fn broken(name: &str, error: &io::Error) -> Error {
    let reason = match error.kind() {
        io::ErrorKind::UnexpectedEof => "the server closed the control connection".to_owned(),
        _ => format!("the control connection broke: {}", reason(error)),
    };
    passing(name, reason)
}

/// The server did not answer.
pub(super) fn silent(name: &str, after: Duration) -> Error {
    passing(name, format!("the server did not answer within {} s", after.as_secs_f32().ceil()))
}

/// The server gave no reply, or only preliminary ones, within `limit`.
pub(super) fn late(name: &str, limit: &Limit) -> Error {
    if !limit.is_without_progress() {
        return silent(name, limit.length());
    }
    let seconds = limit.length().as_secs_f32().ceil();
    passing(name, format!("the server sent only preliminary replies for {seconds} s, and made no progress"))
}

/// An error that may not occur again.
pub(super) fn passing(name: &str, reason: impl Into<String>) -> Error {
    Error::Store { name: name.to_owned(), reason: reason.into(), kind: ErrorKind::Passing }
}

/// The server's reply makes no sense.
pub(super) fn senseless(name: &str, reason: impl Into<String>) -> Error {
    Error::Store { name: name.to_owned(), reason: reason.into(), kind: ErrorKind::Request }
}

/// The sentence of an error without the name at its start.
pub(super) fn bare(error: &Error, name: &str) -> String {
    let text = error.to_string();
    text.strip_prefix(name).map_or(text.clone(), |rest| rest.trim_start_matches([':', ' ']).to_owned())
}

/// Converts an error of the data channel of `name`.
pub(super) fn data(name: &str, error: crate::data::Error) -> Error {
    match error {
        crate::data::Error::Store(error) => error,
        // It takes another configuration of the gateways.
        crate::data::Error::NotRelayed(reason) => senseless(name, reason),
        other => passing(name, other.to_string()),
    }
}

/// Whether a refusal means that the server has too many clients.
pub(super) fn is_crowd(words: &str) -> bool {
    let words = words.to_lowercase();
    // A server that counts failed attempts is not tried again.
    let tried = ["attempts", "failures"].iter().any(|tried| words.contains(tried));
    !tried && ["too many", "maximum"].iter().any(|full| words.contains(full))
}

/// Whether a login failed because the server has too many clients, by its text or by closing at once.
pub(super) fn is_crowded(error: &Error) -> bool {
    let text = error.to_string();
    let full = ["421 ", "closed the control connection"];
    matches!(error.kind(), ErrorKind::Passing | ErrorKind::Denied)
        && (is_crowd(&text) || full.iter().any(|words| text.contains(words)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unreadable_is_not_reported_as_absent() {
        for (text, otherwise) in [
            ("/x: Input/output error", true),
            ("x: Stale file handle", true),
            ("Permission denied.", true),
            ("Failed to change directory.", false),
            ("Could not get file size.", false),
        ] {
            assert_eq!(says_otherwise(&Reply::new(550, text)), otherwise, "{text}");
        }
    }

    #[test]
    fn replies_are_classified_by_code_and_text() {
        for (code, text, expected) in [
            (550, "Failed to open file.", ErrorKind::Denied),
            (550, "/x: No such file or directory", ErrorKind::NotFound),
            (500, "Command failed. : System error in stat: No such file or directory", ErrorKind::NotFound),
            (553, "Could not create file.", ErrorKind::Denied),
            (451, "Append/Restart not permitted, try again", ErrorKind::Passing),
            (552, "quota exceeded", ErrorKind::NoSpace),
            (550, "mkdir: File exists", ErrorKind::Exists),
            (530, "Login incorrect.", ErrorKind::Denied),
            (421, "too many", ErrorKind::Passing),
            (502, "not implemented", ErrorKind::Request),
            (500, "globus: Permission denied", ErrorKind::Denied),
        ] {
            assert_eq!(kind(&Reply::new(code, text)), expected, "{text}");
        }
        let error = refused("ftp://h/x", "read", "RETR", &Reply::of_lines(550, ["a\u{1b}[2J", "it's"]));
        let expected = "cannot read ftp://h/x: the server answers RETR with 550 a\\u{1b}[2J it's";
        assert_eq!(error.to_string(), expected);
    }
}
