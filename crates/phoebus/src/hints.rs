//! What to use instead of an option or a command that other programs have: clap knows only what this one has.

use clap::error::{ContextKind, ContextValue, ErrorKind};

/// Options that people know from cp, rsync, scp and curl.
const OPTIONS: [(&[&str], &str); 9] = [
    (
        &["-P"],
        "-P is the port of SSH, as in scp; rsync's -P needs no option: what was cut goes on, and a terminal shows how far it is",
    ),
    (&["--partial", "--append"], "what was cut goes on when the same command is run again, without an option"),
    (&["--inplace"], "a similar argument exists: '--in-place'"),
    (&["--progress", "--info"], "a terminal shows how far it is without an option; --json tells it to programs"),
    (
        &["-u", "--update"],
        "what is there and has not changed is skipped without an option; '--sync=time' copies only what is newer",
    ),
    (&["-c", "--checksum"], "'--sync=checksum' compares files by their bytes"),
    (&["-z", "--compress"], "nothing is compressed on the way; leave it out"),
    (
        &["-k", "--insecure"],
        "no server is trusted unseen; '--ca FILE' names the authority that has signed its certificate",
    ),
    (&["-t", "--times", "--perms"], "times and modes are kept without an option (--preserve)"),
];

/// Commands that people look for.
const COMMANDS: [(&[&str], &str); 4] = [
    (&["sync", "rsync"], "'phoebus cp -r' copies only what has changed"),
    (&["mirror"], "'phoebus cp -r --delete' makes a mirror"),
    (&["copy", "scp", "get", "put"], "'phoebus cp' copies, either way"),
    (&["du", "df"], "'phoebus ls -lR' tells sizes"),
];

/// Adds to `error`, for arguments that begin with the name of `command`, what to use instead.
pub(crate) fn add(error: &mut clap::Error, command: Option<&str>) {
    let given = |kind| match error.get(kind) {
        Some(ContextValue::String(given)) => given.split([' ', '=']).next().map(str::to_owned),
        _ => None,
    };
    let find = |known: &[(&[&str], &'static str)], given: &str| {
        known.iter().find(|(names, _)| names.contains(&given)).map(|(_, hint)| *hint)
    };
    let hint = match error.kind() {
        ErrorKind::InvalidSubcommand => given(ContextKind::InvalidSubcommand).and_then(|given| find(&COMMANDS, &given)),
        ErrorKind::UnknownArgument | ErrorKind::ValueValidation if command == Some("cp") => {
            given(ContextKind::InvalidArg).and_then(|given| find(&OPTIONS, &given))
        }
        _ => None,
    };
    if let Some(hint) = hint {
        // What is only spelled alike is no help.
        for kind in [ContextKind::SuggestedArg, ContextKind::SuggestedSubcommand, ContextKind::SuggestedCommand] {
            error.remove(kind);
        }
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![hint.into()]));
    }
}
