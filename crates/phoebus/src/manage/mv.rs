//! `phoebus mv`: new names for what there is; from one store to another by a copy ([`moving`](super::moving)).

use super::moving::aside::put_back_one;
use super::moving::move_by_copy;
use super::{CODES, Tally, block_on, find_to_take, ls, printable, tell};
use crate::cp::interrupted;
use crate::exit::{self, Exit};
use crate::place::{Carried, FarArgs, Stores, shown};
use anyhow::Result;
use phoebus_files::key::Key;
use phoebus_files::store::{Kind, Store};
use phoebus_files::{Error, Sort, is_ours};
use std::collections::HashSet;
use std::ffi::OsString;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::RwLock;

/// Rename files and directories, or move them from one place to another
///
/// Within a server or a file system they are renamed. Between two, they are copied with all that is in them, with times and modes; each
/// file is removed at its source only once its copy has been verified and has its name. What changed meanwhile, and what cannot be
/// copied (sockets, links to nowhere or to directories, a link that is named itself), stays where it is and is named. Links to files inside
/// a directory become files. Where a move of a directory to a new name was cut, the same command with -T goes on with it.
#[derive(clap::Args)]
#[command(override_usage = "phoebus mv [OPTIONS] SOURCE... DEST", after_help = CODES)]
pub(crate) struct Args {
    /// What is moved, and at the end its new name or the directory that it goes to
    #[arg(value_name = "PLACE", required = true, num_args = 2..)]
    places: Vec<OsString>,
    /// Do not replace what has the new name
    #[arg(long, short = 'n')]
    no_replace: bool,
    /// Take the last place for the new name itself, also where it is a directory: what is copied is merged into that, which goes on with a
    /// move that was cut
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

/// Why `from` did not get the name `to`, where it is the new name that is wrong: systems and servers speak of the old one.
async fn why(store: &dyn Store, from: &Key, to: &Key, error: Error) -> Error {
    if matches!(error.sort(), Sort::Passing | Sort::NoSpace | Sort::Exists) {
        return error;
    }
    let Ok(source) = store.stat_link(from).await else { return error };
    match store.stat_link(to).await {
        Ok(there) if (source.kind == Kind::Dir) != (there.kind == Kind::Dir) => {
            let expected = if source.kind == Kind::Dir { "a directory" } else { "a file" };
            Error::Kind { name: shown(store, to), is: there.kind.described(), expected }
        }
        Err(absent) if absent.sort() == Sort::NotFound => match store.stat(&to.parent()).await {
            Err(absent) if absent.sort() == Sort::NotFound => Error::NoParent { name: shown(store, to) },
            _ => error,
        },
        _ => error,
    }
}

/// What a directory that has to be copied, and goes into another one, has in common with that: then it may be the rest of what was to get that
/// one's name.
async fn in_common(source: &dyn Store, from: &Key, dest: &dyn Store, to: &Key) -> Option<Vec<u8>> {
    if !matches!(source.stat_link(from).await, Ok(meta) if meta.kind == Kind::Dir) {
        return None;
    }
    // Whoever cannot list one of them is told so by the move.
    let (ours, theirs) = (ls::entries(source, from, false).await.ok()?, ls::entries(dest, to, true).await.ok()?);
    let names: HashSet<Vec<u8>> = theirs.into_iter().map(|entry| entry.name).collect();
    let drafts: Vec<&Vec<u8>> = names.iter().filter(|name| is_ours(name)).collect();
    let is_there = |name: &Vec<u8>| {
        // Of a long name the draft has the beginning.
        let (begin, end) = name.split_at(name.len().min(LONG));
        let begin = [&b"."[..], begin, if end.is_empty() { b"." } else { b"" }].concat();
        names.contains(name) || drafts.iter().any(|draft| draft.starts_with(&begin))
    };
    ours.into_iter().map(|entry| entry.name).find(is_there)
}

/// As many bytes of names their drafts have.
const LONG: usize = 200;

/// The command that copies the directory `from` into `to`, which is there.
fn merging(source: &dyn Store, from: &Key, dest: &dyn Store, to: &Key) -> String {
    format!("phoebus mv -T {} {}", shown(source, from), shown(dest, to))
}

/// Whether both are directories, and something is in the second: systems give no directory the name of such a one.
async fn is_full_dir_pair(source: &dyn Store, from: &Key, dest: &dyn Store, to: &Key) -> bool {
    let is_dir = async |store: &dyn Store, key| matches!(store.stat(key).await, Ok(meta) if meta.kind == Kind::Dir);
    // Of one that cannot be listed the move says why.
    is_dir(dest, to).await
        && is_dir(source, from).await
        && ls::entries(dest, to, true).await.is_ok_and(|entries| !entries.is_empty())
}

/// Why the directory `from` is not copied to `to`, which is one that has something in it.
fn full(source: &dyn Store, from: &Key, dest: &dyn Store, to: &Key) -> Error {
    let reason = format!(
        "it is there and not empty: \"{}\" merges into it, as it goes on with a move that was cut",
        merging(source, from, dest, to)
    );
    Error::Store { name: shown(dest, to), reason, sort: Sort::Exists }
}

fn note(under_way: &UnderWay, command: String) {
    *under_way.command.lock().unwrap_or_else(PoisonError::into_inner) = Some(command);
}

/// Why `from` is not copied into `to`, with which it has `name` in common.
fn unclear(source: &dyn Store, from: &Key, dest: &dyn Store, to: &Key, name: &[u8]) -> Error {
    let (from, to) = (shown(source, from), shown(dest, to));
    let reason = format!(
        "it is there and has \"{}\", as {from} has: \"phoebus mv -T {from} {to}\" goes on with a move that was cut, and \"{to}/\" as \
         the destination moves all of it into that directory",
        printable(name)
    );
    Error::Store { name: to, reason, sort: Sort::Exists }
}

pub(crate) fn run(args: Args) -> Result<ExitCode> {
    block_on(async {
        let under_way = UnderWay::default();
        let number = tokio::select! {
            done = all(&args, &under_way) => return done,
            number = interrupted() => number?,
        };
        // Sources that have just been put aside would stay under names that nobody looks for. Whoever says it once more does not wait.
        tokio::select! {
            _ = under_way.leaving.write() => {}
            _ = interrupted() => {}
        }
        let command = under_way.command.lock().unwrap_or_else(PoisonError::into_inner);
        let how = command.as_deref().unwrap_or("the same command");
        tell(&format!("interrupted; {how} goes on where this one was"));
        Ok(ExitCode::from(exit::SIGNAL.saturating_add(number)))
    })
}

/// What is under way when somebody interrupts it.
#[derive(Default)]
struct UnderWay {
    /// Taken for reading by each source that is just being removed.
    leaving: Arc<RwLock<()>>,
    /// What goes on with it, if that is not the same command.
    command: Mutex<Option<String>>,
}

async fn all(args: &Args, under_way: &UnderWay) -> Result<ExitCode> {
    let (mut stores, mut tally) = (Stores::new(&args.far, Carried::default()), Tally::default());
    let taken = args.places.len().saturating_sub(1);
    let mut places = find_to_take(&mut stores, &args.places, "mv", taken).await?;
    let Some(dest) = places.pop() else { return Err(Exit::usage("a source and a destination were expected")) };
    let is_dir = !args.no_target_directory && dest.is_dir().await.map_err(exit::of_files)?;
    if !args.no_target_directory && !is_dir {
        note(under_way, "the same command with -T".to_owned());
    }
    let several = |count: usize| match count {
        0 | 1 => Ok(()),
        _ if is_dir => Ok(()),
        _ if args.no_target_directory => Err(Exit::usage("-T: one source was expected")),
        _ => Err(Exit::with(exit::ABSENT, format!("{} is no directory, and one was expected", dest.name()))),
    };
    several(if dest.inside && !args.no_target_directory { 2 } else { places.len() })?;
    for source in places {
        let keys = tally.check(source.all().await).unwrap_or_default();
        several(keys.len())?;
        for key in keys {
            let to = if is_dir { dest.key.join(key.name()) } else { Ok(dest.key.clone()) };
            let failed = |error: &dyn std::fmt::Display| Error::Store {
                name: source.name(),
                reason: error.to_string(),
                sort: Sort::Request,
            };
            let Some(to) = tally.check(to.map_err(|error| failed(&error))) else { continue };
            if Arc::ptr_eq(&source.store, &dest.store) {
                if leads_into(&*source.store, &key, &to).await {
                    tally.check::<()>(Err(into_itself(&*source.store, &key, &to)));
                    continue;
                }
                let mut renamed = source.store.rename(&key, &to, !args.no_replace).await;
                // One that was killed may have left it aside.
                if matches!(&renamed, Err(error) if error.sort() == Sort::NotFound)
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
                note(under_way, format!("\"{}\"", merging(&*source.store, &key, &*dest.store, &to)));
            }
            move_by_copy(&source.store, &key, &dest.store, &to, !args.no_replace, &under_way.leaving, &mut tally).await;
        }
    }
    tally.check(dest.store.settle().await);
    Ok(tally.code())
}
