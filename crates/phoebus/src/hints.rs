//! What to use instead of an option or a command that other programs have: clap knows only what this one has.

use clap::error::{ContextKind, ContextValue, ErrorKind};
use std::path::Path;

/// Options that people know from cp, rsync, scp and curl.
const CP: [(&[&str], &str); 11] = [
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
    (&["-s", "--symbolic-link", "-l", "--link", "--link-dest"], "files are copied and not linked; ln(1) makes links"),
    (&["-x", "--one-file-system"], "what is mounted below is copied, too; '--exclude' leaves it out"),
    (&["-t", "--times", "--perms"], "times and modes are kept without an option (--preserve)"),
];

/// The same of ls.
const LS: [(&[&str], &str); 2] = [
    (&["-x", "-C", "-m"], "each name has a line of its own; column(1) arranges them"),
    (
        &["-S", "-X", "-U", "-r", "--sort", "--reverse"],
        "names are sorted, or times with -t; '-l | sort' sorts by anything else",
    ),
];

/// The same of mv.
const MV: [(&[&str], &str); 2] = [
    (&["-f", "--force"], "what has the new name is replaced without an option; -n keeps it"),
    (
        &["--partial-dir", "-v", "--verbose", "--limit-rate"],
        "mv has no such option; 'phoebus cp' with it, then 'phoebus rm', does the same",
    ),
];

/// Commands that people look for.
const COMMANDS: [(&[&str], &str); 4] = [
    (&["sync", "rsync"], "'phoebus cp -r' copies only what has changed"),
    (&["mirror"], "'phoebus cp -r --delete' makes a mirror"),
    (&["copy", "scp", "get", "put"], "'phoebus cp' copies, either way"),
    (&["du", "df"], "nothing adds up what is below a directory; 'phoebus ls -lRa' lists the size of each file"),
];

/// Adds to `error`, for arguments that begin with the name of `command`, what to use instead.
pub(crate) fn add(error: &mut clap::Error, command: Option<&str>) {
    let given = |error: &clap::Error, kind| match error.get(kind) {
        Some(ContextValue::String(given)) => given.split([' ', '=']).next().map(str::to_owned),
        _ => None,
    };
    let find = |known: &[(&[&str], &'static str)], given: &str| {
        known.iter().find(|(names, _)| names.contains(&given)).map(|(_, hint)| *hint)
    };
    let hint = match error.kind() {
        ErrorKind::InvalidSubcommand => {
            given(error, ContextKind::InvalidSubcommand).and_then(|given| find(&COMMANDS, &given))
        }
        ErrorKind::UnknownArgument | ErrorKind::ValueValidation => {
            let known: &[_] = match command {
                Some("cp") => &CP,
                Some("ls") => &LS,
                Some("mv") => &MV,
                _ => &[],
            };
            let given = given(error, ContextKind::InvalidArg);
            // That it may be a name is a help where something is called so.
            if given.as_ref().is_some_and(|given| !Path::new(given).exists())
                && error.get(ContextKind::SuggestedArg).is_none()
            {
                error.remove(ContextKind::Suggested);
            }
            given.and_then(|given| find(known, &given))
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
