//! What servers refuse, as errors of files.

use phoebus_files::{Error, Sort};
use phoebus_net::reason;
use phoebus_proto::gridftp::reply::Reply;
use std::io;
use std::time::Duration;

/// How much of a server's words is repeated.
const MAX_WORDS: usize = 400;

/// The error for `name`, of which the server refused what `act` says (a verb, as in "cannot read"), answering `command` with
/// `reply`.
pub(super) fn refused(name: &str, act: &'static str, command: &str, reply: &Reply) -> Error {
    let words = format!("the server answers {command} with {}", words(reply));
    let name = name.to_owned();
    let source = |words: String| io::Error::other(words);
    match sort(reply) {
        Sort::NotFound => Error::NotFound { name },
        Sort::Exists => Error::Exists { name },
        Sort::NoSpace => Error::NoSpace { name, source: source(words) },
        Sort::Denied => Error::Denied { name, act, source: source(words) },
        sort => Error::Store { name, reason: words, sort },
    }
}

/// What a server says, as part of a sentence.
pub(super) fn words(reply: &Reply) -> String {
    let text = reply.text().replace(['\r', '\n'], " ");
    let shown: String = text.chars().take(MAX_WORDS).flat_map(char::escape_debug).collect();
    format!("{} {}", reply.code, shown.replace("\\'", "'").replace("\\\"", "\"").trim_end())
}

/// What sort of failure an answer is. Codes say little (550 is all that concerns a file), so that the words count, too, where
/// they are those of systems and of servers that many have.
pub(super) fn sort(reply: &Reply) -> Sort {
    let text = reply.text().to_lowercase();
    let says = |any: &[&str]| any.iter().any(|words| text.contains(words));
    if says(&["no such file", "not found", "does not exist", "doesn't exist", "cannot find", "not exist"]) {
        return Sort::NotFound;
    }
    if says(&["no space", "disk full", "quota", "not enough space", "insufficient storage"]) {
        return Sort::NoSpace;
    }
    if says(&["file exists", "already exists", "exists already"]) {
        return Sort::Exists;
    }
    match reply.code {
        452 | 552 => Sort::NoSpace,
        400..=499 => Sort::Passing,
        530..=539 | 550 | 553 => Sort::Denied,
        500 if says(&["denied", "not permitted", "read-only", "not allowed"]) => Sort::Denied,
        _ => Sort::Request,
    }
}

/// Whether a refusal has words for another reason than that something is not there: of systems, and of servers.
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

/// What may be otherwise the next time.
pub(super) fn passing(name: &str, reason: impl Into<String>) -> Error {
    Error::Store { name: name.to_owned(), reason: reason.into(), sort: Sort::Passing }
}

/// What makes no sense to this server.
pub(super) fn senseless(name: &str, reason: impl Into<String>) -> Error {
    Error::Store { name: name.to_owned(), reason: reason.into(), sort: Sort::Request }
}

/// An error's sentence without the name that it begins with.
pub(super) fn bare(error: &Error, name: &str) -> String {
    let text = error.to_string();
    text.strip_prefix(name).map_or(text.clone(), |rest| rest.trim_start_matches([':', ' ']).to_owned())
}

/// A failure of the data channel, told of the file that it carried.
pub(super) fn data(name: &str, error: crate::data::Error) -> Error {
    match error {
        crate::data::Error::Store(error) => error,
        other => passing(name, other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_read_is_not_called_absent() {
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
    fn answers_are_sorted_by_code_and_words() {
        for (code, text, expected) in [
            (550, "Failed to open file.", Sort::Denied),
            (550, "/x: No such file or directory", Sort::NotFound),
            (500, "Command failed. : System error in stat: No such file or directory", Sort::NotFound),
            (553, "Could not create file.", Sort::Denied),
            (451, "Append/Restart not permitted, try again", Sort::Passing),
            (552, "quota exceeded", Sort::NoSpace),
            (550, "mkdir: File exists", Sort::Exists),
            (530, "Login incorrect.", Sort::Denied),
            (421, "too many", Sort::Passing),
            (502, "not implemented", Sort::Request),
            (500, "globus: Permission denied", Sort::Denied),
        ] {
            assert_eq!(sort(&Reply::new(code, text)), expected, "{text}");
        }
        let error = refused("ftp://h/x", "read", "RETR", &Reply::of_lines(550, ["a\u{1b}[2J", "it's"]));
        let expected = "cannot read ftp://h/x: the server answers RETR with 550 a\\u{1b}[2J it's";
        assert_eq!(error.to_string(), expected);
    }
}
