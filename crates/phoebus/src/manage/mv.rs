//! `phoebus mv`: renames; between stores, copies and removes ([`phoebus_places::moving`]).

use super::{CODES, Tally, block_on_and_part, find_to_take, printable, tell};
use crate::cp::{FAREWELL, Lost, interrupted};
use crate::exit::{self, Exit};
use crate::place::FarArgs;
use anyhow::Result;
use phoebus_files::job::{common_form, keeps_apart};
use phoebus_files::key::Key;
use phoebus_files::store::{Kind, Store};
use phoebus_files::{Error, ErrorKind, is_ours};
use phoebus_places::moving::{move_by_copy, must_not_lead_to, put_back_one};
use phoebus_places::{Carried, Outcomes, listing, shown};
use std::borrow::Cow;
use std::collections::HashSet;
use std::ffi::OsString;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::RwLock;

/// Rename files and directories, or move them from one place to another
///
/// Within a server or a file system, renames. Between two, copies everything with times and modes, and removes each
/// source file only after its copy is verified and has its name. Files that changed meanwhile, and what cannot be
/// copied (sockets, dangling links, links to directories, a link that is itself named), stay and are reported. Links to
/// files inside a directory become files. After an interrupted move of a directory to a new name, the same command with
/// -T resumes.
#[derive(clap::Args)]
#[command(override_usage = "phoebus mv [OPTIONS] SOURCE... DEST", after_help = CODES)]
pub(crate) struct Args {
    /// Sources, then the new name or a directory
    #[arg(value_name = "PLACE", required = true, num_args = 2..)]
    places: Vec<OsString>,
    /// Do not replace existing files
    #[arg(long, short = 'n')]
    no_replace: bool,
    /// Replace existing files, as in mv -f. This is the default
    #[arg(long, short = 'f', conflicts_with = "no_replace")]
    force: bool,
    /// Treat DEST as the new name even if it is a directory, and merge into it. This resumes an interrupted move
    #[arg(long, short = 'T')]
    no_target_directory: bool,
    #[command(flatten)]
    far: FarArgs,
}

/// Whether a name could not be changed since the new one is on another file system.
fn is_across(error: &Error) -> bool {
    let source = std::error::Error::source(error).and_then(|source| source.downcast_ref::<std::io::Error>());
    source.is_some_and(|source| source.kind() == std::io::ErrorKind::CrossesDevices)
}

/// Whether `to` is in the directory `from`.
async fn leads_into(store: &dyn Store, from: &Key, to: &Key) -> bool {
    to.below(from).is_some_and(|below| !below.is_root())
        && matches!(store.stat_link(from).await, Ok(meta) if meta.kind == Kind::Dir)
}

fn into_itself(store: &dyn Store, from: &Key, to: &Key) -> Error {
    Error::IntoItself { name: shown(store, from), to: shown(store, to) }
}

/// Explains a failed rename when the new name `to` is the cause. Systems and servers report it for the old name `from`.
async fn why(store: &dyn Store, from: &Key, to: &Key, error: Error) -> Error {
    if matches!(error.kind(), ErrorKind::Passing | ErrorKind::NoSpace | ErrorKind::Exists) {
        return error;
    }
    let Ok(source) = store.stat_link(from).await else { return error };
    match store.stat_link(to).await {
        Ok(there) if (source.kind == Kind::Dir) != (there.kind == Kind::Dir) => {
            let expected = if source.kind == Kind::Dir { "a directory" } else { "a file" };
            Error::Kind { name: shown(store, to), is: there.kind.described(), expected }
        }
        Err(absent) if absent.kind() == ErrorKind::NotFound => match store.stat(&to.parent()).await {
            Err(absent) if absent.kind() == ErrorKind::NotFound => Error::NoParent { name: shown(store, to) },
            _ => error,
        },
        _ => error,
    }
}

/// A name that a directory to be copied into another one has in common with it: then the destination may be the rest of
/// an interrupted move to that name.
async fn in_common(source: &dyn Store, from: &Key, dest: &dyn Store, to: &Key) -> Option<Vec<u8>> {
    if !matches!(source.stat_link(from).await, Ok(meta) if meta.kind == Kind::Dir) {
        return None;
    }
    // The move reports unreadable directories.
    let (ours, theirs) =
        (listing::entries(source, from, false).await.ok()?, listing::entries(dest, to, true).await.ok()?);
    let names: HashSet<Vec<u8>> = theirs.into_iter().map(|entry| entry.name).collect();
    let drafts: Vec<&Vec<u8>> = names.iter().filter(|name| is_ours(name)).collect();
    let is_there = |name: &Vec<u8>| {
        // The draft of a long name keeps only its beginning.
        let (begin, end) = name.split_at(name.len().min(LONG));
        let begin = [&b"."[..], begin, if end.is_empty() { b"." } else { b"" }].concat();
        names.contains(name) || drafts.iter().any(|draft| draft.starts_with(&begin))
    };
    ours.into_iter().map(|entry| entry.name).find(is_there)
}

/// Bytes of a name that its draft keeps.
const LONG: usize = 200;

/// The command that copies the directory `from` into `to`, which is there.
fn merging(source: &dyn Store, from: &Key, dest: &dyn Store, to: &Key) -> String {
    format!("phoebus mv -T {} {}", quoted(&shown(source, from)), quoted(&shown(dest, to)))
}

/// `word` as a shell takes it, and as a terminal can be shown it.
fn quoted(word: &str) -> Cow<'_, str> {
    let is_plain = |c: char| c.is_alphanumeric() || "/._-+:@%,=".contains(c);
    if word.chars().all(is_plain) {
        return word.into();
    }
    if !word.chars().any(char::is_control) {
        return format!("'{}'", word.replace('\'', "'\\''")).into();
    }
    let escaped = |c: char| match c {
        '\'' | '\\' => format!("\\{c}"),
        c if c.is_control() => {
            let mut bytes = [0; 4];
            c.encode_utf8(&mut bytes).bytes().map(|byte| format!("\\{byte:03o}")).collect()
        }
        c => c.to_string(),
    };
    format!("$'{}'", word.chars().map(escaped).collect::<String>()).into()
}

/// Whether both are directories, and something is in the second: systems give no directory the name of such a one.
async fn is_full_dir_pair(source: &dyn Store, from: &Key, dest: &dyn Store, to: &Key) -> bool {
    let is_dir = async |store: &dyn Store, key| matches!(store.stat(key).await, Ok(meta) if meta.kind == Kind::Dir);
    // The move reports the reason.
    is_dir(dest, to).await
        && is_dir(source, from).await
        && listing::entries(dest, to, true).await.is_ok_and(|entries| !entries.is_empty())
}

/// Why the directory `from` is not copied to the nonempty `to`.
fn full(source: &dyn Store, from: &Key, dest: &dyn Store, to: &Key) -> Error {
    let reason = format!(
        "it exists and is not empty: \"{}\" merges into it, or resumes an interrupted move",
        merging(source, from, dest, to)
    );
    Error::Store { name: shown(dest, to), reason, kind: ErrorKind::Exists }
}

/// Why `from` is not copied into `to`, with which it has `name` in common.
fn unclear(source: &dyn Store, from: &Key, dest: &dyn Store, to: &Key, name: &[u8]) -> Error {
    let (command, from, to) = (merging(source, from, dest, to), shown(source, from), shown(dest, to));
    let reason = format!(
        "it exists and has \"{}\", as {from} has: \"{command}\" resumes an interrupted move, and \"{to}/\" as the destination \
         moves all of it into that directory",
        printable(name)
    );
    Error::Store { name: to, reason, kind: ErrorKind::Exists }
}

pub(crate) fn run(args: Args) -> Result<ExitCode> {
    block_on_and_part(async {
        let under_way = UnderWay::default();
        let interrupted_by = tokio::select! {
            done = all(&args, &under_way) => return (done, Duration::MAX),
            number = interrupted() => number,
        };
        // Files that were just put aside would stay under unknown names. A second interruption does not wait.
        if under_way.leaving.try_write().is_err() {
            tell(
                "interrupted; the removal of sources under way is finished first (a second interrupt does not wait for it)",
            );
            tokio::select! {
                _ = under_way.leaving.write() => {}
                _ = interrupted() => {}
            }
        }
        tell(&format!("interrupted; {}", under_way.goes_on(args.has_options())));
        (interrupted_by.map(|number| ExitCode::from(exit::SIGNAL.saturating_add(number))), FAREWELL)
    })
}

/// State of the move for an interruption.
#[derive(Default)]
struct UnderWay {
    /// Taken for reading by each source that is just being removed.
    leaving: Arc<RwLock<()>>,
    /// The command that continues, if it differs from this one.
    command: Mutex<Option<String>>,
    /// Whether there are other sources.
    has_others: AtomicBool,
}

impl UnderWay {
    fn note(&self, command: Option<String>) {
        *self.command.lock().unwrap_or_else(PoisonError::into_inner) = command;
    }

    /// The command that resumes this one. `options` tells whether this one has options.
    fn goes_on(&self, options: bool) -> String {
        let (command, others) = (self.command.lock(), self.has_others.load(Ordering::Relaxed));
        let command = command.unwrap_or_else(PoisonError::into_inner);
        let with = if options { " with the same options" } else { "" };
        match command.as_deref() {
            None if others => "the same command with the remaining sources resumes it".to_owned(),
            None => "the same command resumes it".to_owned(),
            Some(SAME) => format!("{SAME} resumes it"),
            Some(command) if others => format!(
                "\"{command}\"{with} resumes it, and the same command with the other remaining sources moves those"
            ),
            Some(command) => format!("\"{command}\"{with} resumes it"),
        }
    }
}

/// The command that continues a move to a new name.
const SAME: &str = "the same command with -T";

impl Args {
    /// Whether there are options.
    fn has_options(&self) -> bool {
        // The program and the command are said, too.
        std::env::args_os().filter(|word| word != "--").count() > self.places.len() + 2
    }
}

async fn all(args: &Args, under_way: &UnderWay) -> Result<ExitCode> {
    let (mut stores, mut tally) = (args.far.stores(Carried::default()), Tally::default());
    tally.hint(" ('phoebus mkdir -p' makes it)", |error| matches!(error, Error::NoParent { .. }));
    let taken = args.places.len().saturating_sub(1);
    let mut places = find_to_take(&mut stores, &args.places, "mv", taken).await?;
    let Some(dest) = places.pop() else { return Err(Exit::usage("a source and a destination were expected")) };
    let is_dir = !args.no_target_directory && dest.is_dir().await.map_err(exit::of_files)?;
    if !args.no_target_directory && !is_dir {
        under_way.note(Some(SAME.to_owned()));
    }
    let several = |count: usize| match count {
        0 | 1 => Ok(()),
        _ if is_dir => Ok(()),
        _ if args.no_target_directory => Err(Exit::usage("-T: one source was expected")),
        _ => Err(Exit::with(exit::ABSENT, format!("{} is no directory, and one was expected", dest.name()))),
    };
    several(if dest.inside && !args.no_target_directory { 2 } else { places.len() })?;
    under_way.has_others.store(places.len() > 1, Ordering::Relaxed);
    let mut moves = Vec::new();
    for source in &places {
        let keys = tally.check(source.all().await).unwrap_or_default();
        several(keys.len())?;
        under_way.has_others.fetch_or(keys.len() > 1, Ordering::Relaxed);
        for key in keys {
            let to = if is_dir { dest.key.join(key.name()) } else { Ok(dest.key.clone()) };
            let failed = |error: &dyn std::fmt::Display| Error::Store {
                name: source.name(),
                reason: error.to_string(),
                kind: ErrorKind::Request,
            };
            let Some(to) = tally.check(to.map_err(|error| failed(&error))) else { continue };
            moves.push((source, key, to));
        }
    }
    let mut targets = HashSet::new();
    if let Some((_, _, to)) = moves.iter().find(|(_, _, to)| !targets.insert(to.clone())) {
        let name = shown(&*dest.store, to);
        let reason = "two sources go there, and one of the two would be lost; nothing was moved";
        return Err(Exit::usage(format!("{name}: {reason}")));
    }
    // Some destinations take several names for one.
    let mut forms = HashSet::new();
    for (source, key, to) in moves {
        if !forms.insert(common_form(to.as_bytes())) && tally.check(keeps_apart(&*dest.store, &to).await).is_none() {
            continue;
        }
        if Arc::ptr_eq(&source.store, &dest.store) {
            if leads_into(&*source.store, &key, &to).await {
                tally.check::<()>(Err(into_itself(&*source.store, &key, &to)));
                continue;
            }
            if !args.no_replace && tally.check(must_not_lead_to(&*source.store, &key, &to).await).is_none() {
                continue;
            }
            let mut renamed = source.store.rename(&key, &to, !args.no_replace).await;
            // A killed move may have left it aside.
            if matches!(&renamed, Err(error) if error.kind() == ErrorKind::NotFound)
                && put_back_one(&*source.store, &key, &mut tally).await
            {
                renamed = source.store.rename(&key, &to, !args.no_replace).await;
            }
            match renamed {
                Err(error) if is_across(&error) => {}
                renamed => {
                    tally.note(match renamed {
                        Err(error) => Err(why(&*dest.store, &key, &to, error).await),
                        Ok(()) => Ok(()),
                    });
                    continue;
                }
            }
        }
        if is_dir
            && !dest.inside
            && let Some(name) = in_common(&*source.store, &key, &*dest.store, &dest.key).await
        {
            tally.check::<()>(Err(unclear(&*source.store, &key, &*dest.store, &dest.key, &name)));
            continue;
        }
        if is_dir && is_full_dir_pair(&*source.store, &key, &*dest.store, &to).await {
            tally.check::<()>(Err(full(&*source.store, &key, &*dest.store, &to)));
            continue;
        }
        if is_dir && matches!(source.store.stat_link(&key).await, Ok(meta) if meta.kind == Kind::Dir) {
            under_way.note(Some(merging(&*source.store, &key, &*dest.store, &to)));
        }
        move_by_copy(&source.store, &key, &dest.store, &to, !args.no_replace, &under_way.leaving, &mut tally).await;
        if is_dir {
            under_way.note(None);
        }
    }
    tally.check(dest.store.settle().await);
    let (modes_refused, times_refused) = (stores.without_modes().0, stores.without_times().0);
    let lost = Lost { modes_refused, times_refused, modes_unknown: tally.modes_unknown, public: &stores.why_public() };
    lost.sentences().iter().for_each(|sentence| tell(sentence));
    Ok(tally.code())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_quoted_for_shells() {
        for (name, expected) in [
            ("/data/run-4_2.h5", "/data/run-4_2.h5"),
            ("ftp://jane@[::1]:21/d", "'ftp://jane@[::1]:21/d'"),
            ("/my dir/it's", "'/my dir/it'\\''s'"),
            ("/d/$(x)", "'/d/$(x)'"),
            ("/d/a\u{1b}[2J'\n", "$'/d/a\\033[2J\\'\\012'"),
        ] {
            assert_eq!(quoted(name), expected);
        }
    }

    #[test]
    fn command_to_resume_is_named() {
        let under_way = UnderWay::default();
        assert_eq!(under_way.goes_on(true), "the same command resumes it");
        under_way.note(Some("phoebus mv -T a b/a".to_owned()));
        assert_eq!(under_way.goes_on(true), "\"phoebus mv -T a b/a\" with the same options resumes it");
        under_way.has_others.store(true, Ordering::Relaxed);
        assert!(under_way.goes_on(false).contains("a b/a\" resumes it, and the same command with the other"));
        under_way.note(None);
        assert!(under_way.goes_on(false).starts_with("the same command with the remaining sources"));
    }
}
