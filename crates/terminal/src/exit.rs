//! Exit codes, the same for every subcommand, and how an error carries one.

use phoebus_files::Sort;
use std::fmt;
use std::process::ExitCode;

/// Something failed on the way.
pub const FAILED: u8 = 1;
/// Wrong arguments, variables or configuration; nothing was begun. Also clap's.
pub const USAGE: u8 = 2;
/// A session could not be opened.
pub const UNREACHABLE: u8 = 3;
/// Some of what was asked for is done, and some is not.
pub const PARTIAL: u8 = 4;
/// What was named is not there.
pub const ABSENT: u8 = 5;
/// It is not allowed, or the login was refused.
pub const DENIED: u8 = 6;
/// There is no space.
pub const NO_SPACE: u8 = 7;
/// The bytes that arrived are not those that were sent, or it could not be made sure.
pub const DAMAGED: u8 = 8;
/// There was nothing to do, and that was to be an error.
pub const NOTHING: u8 = 9;
/// Something is there already that was not to be replaced.
pub const EXISTS: u8 = 10;
/// The connection, the other end or the source failed in a way that may pass: the same may succeed later.
pub const PASSING: u8 = 11;
/// Interrupted, by the convention of shells; the signal's number is added.
pub const SIGNAL: u8 = 128;
/// `phoebus run` could not prepare the command, by the convention of env(1) and timeout(1).
pub const PREPARE: u8 = 125;
/// The command was found but cannot be executed.
pub const NOT_EXECUTABLE: u8 = 126;
/// The command was not found.
pub const NOT_FOUND: u8 = 127;

/// For `--help`.
pub const HELP: &str = "\
Exit codes: 0 success; 1 failed on the way; 2 wrong arguments, variables or configuration; 3 a session could not be \
opened. Commands about files also: 4 partly done; 5 not there; 6 not allowed; 7 no space; 8 damaged or not verifiable; \
9 nothing to do, where asked; 10 there already; 11 it may succeed later. Commands that run a program exit as it does, or with \
125 (it could not be prepared), 126 (it cannot be executed) or 127 (it was not found).";

/// An error with an exit code of its own.
#[derive(Debug)]
pub struct Exit {
    code: u8,
    message: String,
}

impl Exit {
    /// `error`, to end with `code`.
    pub fn with(code: u8, error: impl fmt::Display) -> anyhow::Error {
        anyhow::Error::new(Self { code, message: error.to_string() })
    }

    /// Whoever read standard output has gone, and wants no more: the end that the signal would have been.
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

/// The exit code for a failure of this sort.
pub fn code_of_sort(sort: Sort) -> u8 {
    match sort {
        Sort::NotFound => ABSENT,
        Sort::Exists => EXISTS,
        Sort::NoSpace => NO_SPACE,
        Sort::Denied => DENIED,
        Sort::Verification => DAMAGED,
        Sort::Changed | Sort::Passing => PASSING,
        Sort::Request | Sort::Other => FAILED,
    }
}

/// A failure with a file, with the exit code of its sort.
pub fn of_files(error: phoebus_files::Error) -> anyhow::Error {
    Exit::with(code_of_sort(error.sort()), error)
}

/// The code that `error` asks for.
pub fn code_of(error: &anyhow::Error) -> ExitCode {
    error.downcast_ref::<Exit>().map_or(FAILED, |exit| exit.code).into()
}

/// `error` and its causes as one sentence. Library errors already end with their cause, which is not said twice.
pub fn sentence(error: &anyhow::Error) -> String {
    error.chain().map(|cause| without_numbers(&cause.to_string())).fold(String::new(), |said, cause| {
        match said.is_empty() {
            true => cause,
            false if said.to_lowercase().contains(&cause.to_lowercase()) => said,
            false => format!("{said}: {cause}"),
        }
    })
}

/// `text` without the numbers of the system's errors, which say no more than the words before them.
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
    fn numbers_of_errors_are_left_out() {
        for (text, expected) in [
            ("a: b (os error 2)", "a: b"),
            ("b (os error 2): c (os error 11)", "b: c"),
            ("b (os error x) (os error", "b (os error x) (os error"),
        ] {
            assert_eq!(without_numbers(text), expected);
        }
    }

    #[test]
    fn a_cause_is_said_once() {
        let cause = || std::io::Error::from_raw_os_error(98);
        let silent = Err::<(), _>(cause()).context("cannot listen on [::]:5006").unwrap_err();
        assert_eq!(sentence(&silent), "cannot listen on [::]:5006: Address already in use");
        let explicit = Err::<(), _>(cause()).context("cannot listen on [::]:5006: address already in use").unwrap_err();
        assert_eq!(sentence(&explicit), "cannot listen on [::]:5006: address already in use");
    }
}
