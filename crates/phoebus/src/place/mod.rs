//! Places as this command has them: their options, the environment, and the exit codes of what fails
//! (`phoebus_places`).

mod args;
mod caller;

pub(crate) use args::FarArgs;

use anyhow::Result;
use phoebus_places::{Error, Url};
use phoebus_terminal::exit;
use std::ffi::OsStr;

/// Parses a place of a list or an argument.
///
/// # Errors
/// It is none (exit code 2).
pub(crate) fn parse(written: &OsStr) -> Result<Url> {
    Url::parse(written).map_err(|error| Error::from(error).into())
}

/// The exit code for a failure to find places, or to use them as was asked.
pub(crate) fn code_of(error: &Error) -> u8 {
    match error {
        Error::Request(_) => exit::USAGE,
        Error::Absent(_) => exit::ABSENT,
        Error::Denied(_) => exit::DENIED,
        Error::Passing(_) => exit::PASSING,
        Error::Files(error) => exit::code_of_kind(error.kind()),
        Error::Lost(_) => exit::FAILED,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_failure_has_its_exit_code_and_its_sentence() {
        let no_space = || phoebus_files::Error::Store {
            name: "ftp://h/a".to_owned(),
            reason: "it is full".to_owned(),
            kind: phoebus_files::ErrorKind::NoSpace,
        };
        let text = || "a file was expected".to_owned();
        for (error, code, sentence) in [
            (Error::Request(text()), exit::USAGE, text()),
            (Error::Absent(text()), exit::ABSENT, text()),
            (Error::Denied(text()), exit::DENIED, text()),
            (Error::Passing(text()), exit::PASSING, text()),
            (Error::Files(no_space()), exit::NO_SPACE, no_space().to_string()),
        ] {
            assert_eq!(code_of(&error), code, "{error:?}");
            assert_eq!(exit::sentence(&error.into()), sentence);
        }
    }
}
