//! Suggests replacements for options and commands of other programs. clap knows only this program's.

use clap::error::{ContextKind, ContextValue, ErrorKind};
use std::ffi::OsString;
use std::path::Path;

type Table = &'static [(&'static [&'static str], &'static str)];

const GOES_ON: &str = "run the same command again to resume; it needs no option";
const KEEPS: &str = "'--existing keep' leaves alone what is there, and '--existing refuse' fails because of it";
const FILES: &str = "'--list FILE' reads the names of sources, '--list -' from standard input";
const RULES: &str = "no patterns are read from files; give '--include PATTERN' and '--exclude PATTERN' once for each";
const DELETES: &str = "'--delete' deletes once all is copied; what --exclude leaves out stays";
const SSH: &str = "the environment's PHOEBUS_SSH names the command to use for ssh, as RSYNC_RSH does for rsync";
const QUIET: &str = "this command says nothing of what succeeds; leave it out";
const LAST: &str = "the destination stands at the end, after all sources";

/// Options that people know from cp, rsync, scp, curl and rclone, of `phoebus cp`.
const CP: Table = &[
    (
        &["-P"],
        "-P is the port of SSH, as in scp; rsync's -P needs no option: the same command resumes, and a terminal shows the progress",
    ),
    (&["--partial", "--append", "--append-verify", "-y", "--fuzzy"], GOES_ON),
    (&["--inplace"], "a similar argument exists: '--in-place'"),
    (
        &["--temp-dir"],
        "'--partial-dir NAME' keeps what is not complete in a directory of this name beside where it goes",
    ),
    (&["--progress", "--info"], "a terminal shows how far it is without an option; --json tells it to programs"),
    (
        &["--stats", "--itemize-changes"],
        "the last line says how much was copied; --json tells it to programs, and -v names each file",
    ),
    (
        &["-u", "--update"],
        "what is there and has not changed is skipped without an option; '--sync=time' copies only what is newer",
    ),
    (&["-c", "--checksum"], "'--sync=checksum' compares files by their bytes"),
    (&["--size-only"], "'--sync=size' compares files by their sizes alone"),
    (&["-I", "--ignore-times"], "'--existing replace' copies all, whatever is there"),
    (&["--ignore-existing", "--no-clobber", "--immutable"], KEEPS),
    (&["--interactive"], ASKING_CP),
    (&["--files-from", "--files-from-raw"], FILES),
    (&["--from0"], "'-0' beside '--list FILE' says that names end with NUL"),
    (&["--exclude-from", "--include-from", "--filter", "--filter-from", "-F"], RULES),
    (&["--mkpath"], "'--parents' makes the directories above a destination"),
    (
        &["-L", "--copy-links", "--dereference", "-H"],
        "symbolic links to files are followed without an option; those to directories are left out, or kept with '--links'",
    ),
    (
        &["-d", "--no-dereference", "-D", "--devices", "--specials"],
        "'--links' keeps symbolic links; devices and pipes are left out",
    ),
    (&["-x", "--one-file-system"], "what is mounted below is copied, too; '--exclude' leaves it out"),
    (&["-S", "--sparse"], "holes of sparse files stay holes on this machine without an option; leave it out"),
    (
        &["-b", "--backup", "--suffix", "--backup-dir"],
        "nothing keeps what is replaced; '--existing refuse' replaces nothing",
    ),
    (
        &[
            "-s",
            "--symbolic-link",
            "--link",
            "--link-dest",
            "--compare-dest",
            "--copy-dest",
            "--reflink",
            "--hard-links",
        ],
        "files are copied and not linked; ln(1) makes links",
    ),
    (
        &["--chmod", "-E", "--executability"],
        "modes are those of the source, or with '--preserve times' those of the umask",
    ),
    (
        &["-o", "-g", "--owner", "--group", "--chown", "--numeric-ids", "-A", "-X", "--acls", "--xattrs"],
        "owners, access lists and extended attributes are not copied; times and modes are, without an option",
    ),
    (&["-t", "--target-directory"], LAST),
    (&["-T", "--no-target-directory"], "\"dir/\" as a source becomes DEST itself, whether DEST is there or not"),
    (&["--times", "--perms"], "times and modes are kept without an option (--preserve)"),
    (
        &["--remove-source-files", "--remove-source"],
        "'phoebus mv' moves: each file is removed once its copy is verified",
    ),
    (
        &["--delete-before", "--delete-during", "--del", "--delete-delay", "--delete-after", "--delete-excluded"],
        DELETES,
    ),
    (&["-z", "--compress", "-C"], "nothing is compressed on the way; leave it out"),
    (&["-B"], "nothing asks for a password where nobody can answer; leave it out"),
    (
        &["-k", "--insecure"],
        "no server is trusted unseen; '--ca FILE' names the authority that has signed its certificate",
    ),
    (&["-e", "--rsh"], SSH),
    (&["--rsync-path"], "'--remote-command COMMAND' says what the far side's shell knows Phoebus as"),
    (&["--port"], "a port stands in the URL, as in ftp://HOST:PORT/PATH; '-P' is that of SSH"),
    (
        &["-W", "--whole-file", "--no-whole-file"],
        "files are copied whole, and what has not changed is skipped; leave it out",
    ),
    (&["--checkers"], "'--transfers N' says how many files are copied at a time"),
    (&["--multi-thread-streams", "--parallel"], "'--streams N' carries each file over so many connections"),
    (&["--bwlimit"], "'--limit-rate RATE' is the most that is carried in all, such as 5M or 500mbit"),
    (&["--retry", "--retries"], "'--attempts N' says how often a file is tried"),
    (
        &["--max-time", "--contimeout", "--connect-timeout"],
        "'--timeout DURATION' gives a file up when nothing moves for so long",
    ),
    (&["-m", "--prune-empty-dirs"], "directories with nothing in them are copied, too"),
    (&["--strip-trailing-slashes"], "\"dir\" becomes DEST/dir, and \"dir/\" becomes DEST itself"),
    (&["-O"], "data always goes by Phoebus's own protocols, never by scp's old one; leave it out"),
    (&["--human-readable"], "sizes are printed as 1.5 GB without an option"),
];

const LS: Table = &[
    (&["-x", "-C", "-m"], "each name has a line of its own; column(1) arranges them"),
    (
        &["-S", "-X", "-U", "-r", "--sort", "--reverse"],
        "names are sorted, or times with -t; '-l | sort' sorts by anything else",
    ),
];

const CHECK: Table = &[
    (&["-r", "-R", "--recursive", "-a"], "directories are compared with all that is in them without an option"),
    (&["-q", "--quiet", "--brief", "-s"], "the exit code says whether they are the same: 0, or 8"),
    (&["--checksum", "-c"], "checksums are compared without an option; '--by' says otherwise"),
    (&["--size-only"], "'--by size' compares sizes alone"),
];

const MV: Table = &[
    (&["-v", "--verbose"], "mv names what fails and says nothing of the rest; leave it out"),
    (
        &["--partial-dir", "--limit-rate"],
        "mv has no such option; 'phoebus cp' with it, 'phoebus check', then 'phoebus rm', which unlike mv removes a source that has changed since",
    ),
    (&["--interactive"], ASKING_MV),
    (&["--no-clobber"], "'-n' replaces nothing"),
    (&["-u", "--update"], "'-n' replaces nothing; 'phoebus cp --sync=time' copies only what is newer"),
    (&["-t", "--target-directory"], LAST),
    (&["-b", "--backup", "--suffix"], "nothing keeps what is replaced; '-n' replaces nothing"),
];

const RM: Table = &[
    (&["-v", "--verbose"], QUIET),
    (&["-I", "--interactive"], ASKING_RM),
    (&["-d", "--dir"], "'-r' removes directories, with all that is in them"),
    (&["-n", "--dry-run"], "'phoebus ls -aR' shows what there is"),
    (&["--preserve-root", "--no-preserve-root"], "the root is never removed; leave it out"),
];

const MKDIR: Table =
    &[(&["-v", "--verbose"], QUIET), (&["-m", "--mode"], "the mode is what the umask leaves, here or at the server")];

/// Commands that people look for.
const COMMANDS: Table = &[
    (&["sync", "rsync"], "'phoebus cp -r' copies only what has changed"),
    (
        &["md5sum", "sha1sum", "sha256sum", "cksum", "diff", "cmp", "verify", "compare"],
        "'phoebus check SOURCE DEST' compares two files or trees by checksums",
    ),
    (&["mirror"], "'phoebus cp -r --delete' makes a mirror"),
    (&["copy", "scp", "get", "put"], "'phoebus cp' copies, either way"),
    (&["du", "df"], "nothing adds up what is below a directory; 'phoebus ls -lRa' lists the size of each file"),
];

const ASKING_CP: &str = "phoebus does not ask: '--existing refuse' or '--existing keep' replaces nothing, and '--dry-run' says what would be done";
const ASKING_MV: &str = "phoebus does not ask: -n replaces nothing";
const ASKING_RM: &str = "phoebus does not ask: 'phoebus ls -R' shows what there is";

/// What `command` offers to users who expect `-i` to ask before files are replaced or removed.
pub(crate) fn asking(command: &str) -> Option<&'static str> {
    match command {
        "cp" => Some(ASKING_CP),
        "mv" => Some(ASKING_MV),
        "rm" => Some(ASKING_RM),
        _ => None,
    }
}

/// Adds a suggestion to `error`, for `arguments` of the whole program, and removes clap's guess if it is wrong.
pub(crate) fn add(error: &mut clap::Error, arguments: &[OsString]) {
    let command = arguments.get(1).and_then(|command| command.to_str()).unwrap_or_default();
    let given = |kind| match error.get(kind) {
        Some(ContextValue::String(given)) => given.split([' ', '=']).next().map(str::to_owned),
        _ => None,
    };
    let find =
        |known: Table, given: &str| known.iter().find(|(names, _)| names.contains(&given)).map(|(_, hint)| *hint);
    let hint = match error.kind() {
        ErrorKind::InvalidSubcommand if command == "gateway" => Some("'--config FILE' names the configuration file"),
        ErrorKind::InvalidSubcommand => given(ContextKind::InvalidSubcommand).and_then(|given| find(COMMANDS, &given)),
        ErrorKind::UnknownArgument | ErrorKind::ValueValidation => {
            let table = match command {
                "cp" => CP,
                "ls" => LS,
                "check" => CHECK,
                "mv" => MV,
                "rm" => RM,
                "mkdir" => MKDIR,
                _ => &[],
            };
            given(ContextKind::InvalidArg).and_then(|given| find(table, &given))
        }
        // It has taken a place for its value.
        ErrorKind::MissingRequiredArgument | ErrorKind::TooFewValues | ErrorKind::WrongNumberOfValues
            if has_letter(arguments, 'i') =>
        {
            asking(command)
        }
        _ => None,
    };
    let unknown = if error.kind() == ErrorKind::UnknownArgument { given(ContextKind::InvalidArg) } else { None };
    if let Some(hint) = hint {
        // A similar spelling is no help here.
        for kind in [ContextKind::SuggestedArg, ContextKind::SuggestedSubcommand, ContextKind::SuggestedCommand] {
            error.remove(kind);
        }
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![hint.into()]));
    } else if let Some(unknown) = unknown {
        let guess = match error.get(ContextKind::SuggestedArg) {
            Some(ContextValue::String(guess)) => Some(guess.clone()),
            _ => None,
        };
        if guess.is_some_and(|guess| !is_slip(&unknown, guess.split([' ', '=']).next().unwrap_or_default())) {
            error.remove(ContextKind::SuggestedArg);
        }
        // The advice about values only fits files that begin so.
        let begins = |text: &OsString| text.to_str().is_some_and(|text| text.starts_with(&unknown));
        if !arguments.iter().any(|text| begins(text) && Path::new(text).symlink_metadata().is_ok()) {
            error.remove(ContextKind::Suggested);
        }
    }
}

/// Whether one of `arguments` is a group of letters with `letter`.
fn has_letter(arguments: &[OsString], letter: char) -> bool {
    let mut texts = arguments.iter().skip(2).map_while(|text| text.to_str().filter(|text| *text != "--"));
    texts.any(|text| text.starts_with('-') && !text.starts_with("--") && text.contains(letter))
}

/// Whether `given` is `meant` with a slip or two of the pen: a letter too much, too few, or another one.
fn is_slip(given: &str, meant: &str) -> bool {
    let meant: Vec<char> = meant.chars().collect();
    // The edit distance between `given` and each prefix of `meant`.
    let mut far: Vec<usize> = (0..=meant.len()).collect();
    for (read, c) in given.chars().enumerate() {
        let mut before = std::mem::replace(&mut far[0], read + 1);
        for i in 0..meant.len() {
            let other = before + usize::from(meant[i] != c);
            before = far[i + 1];
            far[i + 1] = other.min(before + 1).min(far[i] + 1);
        }
    }
    far[meant.len()] <= 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misspellings_are_told_from_other_words() {
        for (given, meant) in
            [("--recursiv", "--recursive"), ("--recrusive", "--recursive"), ("--sink", "--sync"), ("--jsonn", "--json")]
        {
            assert!(is_slip(given, meant), "{given}");
        }
        for (given, meant) in [("--rsync-path", "--sync"), ("--sparse", "--parents"), ("--backup", "--stack")] {
            assert!(!is_slip(given, meant), "{given}");
        }
    }

    #[test]
    fn no_option_has_two_tips() {
        for table in [CP, LS, CHECK, MV, RM, MKDIR, COMMANDS] {
            let mut names: Vec<&str> = table.iter().flat_map(|(names, _)| *names).copied().collect();
            names.sort_unstable();
            assert!(names.windows(2).all(|pair| pair[0] != pair[1]), "{names:?}");
        }
    }
}
