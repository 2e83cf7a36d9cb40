//! Exit codes, which all subcommands share, and the error type that carries one.

use phoebus_files::ErrorKind;
use std::fmt;
use std::process::ExitCode;

/// The command failed while it worked.
pub const FAILED: u8 = 1;
/// Wrong arguments, variables or configuration; the command started no work. clap uses this code too.
pub const USAGE: u8 = 2;
/// A session could not be opened.
pub const UNREACHABLE: u8 = 3;
/// Part of the request is done, part is not.
pub const PARTIAL: u8 = 4;
/// The named object does not exist.
pub const ABSENT: u8 = 5;
/// Permission denied, or the server refused the login.
pub const DENIED: u8 = 6;
/// No space left.
pub const NO_SPACE: u8 = 7;
/// The received bytes differ from those sent, or verification was not possible.
pub const DAMAGED: u8 = 8;
/// There was nothing to do, and the user asked for an error in that case.
pub const NOTHING: u8 = 9;
/// The target exists, and the user asked not to replace it.
pub const EXISTS: u8 = 10;
/// A transient failure of the connection, the peer or the source: a retry may succeed.
pub const PASSING: u8 = 11;
/// Base for interrupted commands: the code is this plus the signal's number, as in shells.
pub const SIGNAL: u8 = 128;
/// `phoebus run` could not prepare the command. env(1) and timeout(1) use the same code.
pub const PREPARE: u8 = 125;
/// The command was found but cannot be executed.
pub const NOT_EXECUTABLE: u8 = 126;
/// The command was not found.
pub const NOT_FOUND: u8 = 127;

/// For `--help`.
pub const HELP: &str = "\
Exit codes: 0 success; 1 failure; 2 wrong arguments, variables or configuration; 3 a session could not be opened. \
Commands about files also: 4 partly done; 5 not found; 6 permission denied; 7 no space; 8 verification failed; 9 nothing to do, \
on request; 10 file exists; 11 temporary failure. Commands that run a program exit as it does, or with 125 (it could not be \
prepared), 126 (it cannot be executed) or 127 (it was not found).";

/// An error with an exit code of its own.
#[derive(Debug)]
pub struct Exit {
    code: u8,
    message: String,
}

impl Exit {
    /// Wraps `error` so that the process exits with `code`.
    pub fn with(code: u8, error: impl fmt::Display) -> anyhow::Error {
        anyhow::Error::new(Self { code, message: error.to_string() })
    }

    /// The reader of standard output has closed it. Exits quietly, with the code that SIGPIPE would give.
    pub fn unread() -> anyhow::Error {
        Self::with(SIGNAL + 13, "")
    }

    /// A wrong argument, variable or configuration.
    pub fn usage(error: impl fmt::Display) -> anyhow::Error {
        Self::with(USAGE, error)
    }
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Exit {}

/// The exit code for this kind of failure.
pub fn code_of_kind(kind: ErrorKind) -> u8 {
    match kind {
        ErrorKind::NotFound => ABSENT,
        ErrorKind::Exists => EXISTS,
        ErrorKind::NoSpace => NO_SPACE,
        ErrorKind::Denied => DENIED,
        ErrorKind::Verification => DAMAGED,
        ErrorKind::Changed | ErrorKind::Passing => PASSING,
        ErrorKind::Request | ErrorKind::Other => FAILED,
    }
}

/// A file error, with the exit code of its kind.
pub fn of_files(error: phoebus_files::Error) -> anyhow::Error {
    Exit::with(code_of_kind(error.kind()), error)
}

/// The exit code that `error` carries; [`FAILED`] without one.
pub fn code_of(error: &anyhow::Error) -> ExitCode {
    error.downcast_ref::<Exit>().map_or(FAILED, |exit| exit.code).into()
}

/// `error` and its causes as one sentence. A library error already ends with its cause, which is not repeated.
pub fn sentence(error: &anyhow::Error) -> String {
    error.chain().map(|cause| without_numbers(&cause.to_string())).fold(String::new(), |said, cause| {
        match said.is_empty() {
            true => cause,
            false if said.to_lowercase().contains(&cause.to_lowercase()) => said,
            false => format!("{said}: {cause}"),
        }
    })
}

/// `text` without "(os error N)", which adds nothing to the words before it.
pub fn without_numbers(text: &str) -> String {
    const OPEN: &str = " (os error ";
    let mut parts = text.split(OPEN);
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        match part.trim_start_matches(|c: char| c.is_ascii_digit() || c == '-').strip_prefix(')') {
            Some(rest) => plain.push_str(rest),
            None => plain.extend([OPEN, part]),
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context;

    #[test]
    fn without_numbers_removes_os_error_numbers() {
        for (text, expected) in [
            ("a: b (os error 2)", "a: b"),
            ("b (os error 2): c (os error 11)", "b: c"),
            ("b (os error x) (os error", "b (os error x) (os error"),
        ] {
            assert_eq!(without_numbers(text), expected);
        }
    }

    #[test]
    fn sentence_states_each_cause_once() {
        let cause = || std::io::Error::from_raw_os_error(98);
        let silent = Err::<(), _>(cause()).context("cannot listen on [::]:5006").unwrap_err();
        assert_eq!(sentence(&silent), "cannot listen on [::]:5006: Address already in use");
        let explicit = Err::<(), _>(cause()).context("cannot listen on [::]:5006: address already in use").unwrap_err();
        assert_eq!(sentence(&explicit), "cannot listen on [::]:5006: address already in use");
    }
}
