//! `-`: standard input as a source, standard output as a destination.

use super::args::Kept;
use super::human;
use super::items::Wanted;
use super::report::Outcome;
use super::watch::Watch;
use crate::exit::{self, Exit};
use crate::place::{Stores, Url};
use crate::standard;
use anyhow::Result;
use phoebus_files::range::Extent;
use phoebus_files::store::{Begun, Kind, Spec};
use phoebus_files::{Check, Done, Error, How, Side, drain, pour};
use std::io::ErrorKind;
use std::sync::Arc;

/// What a stream is asked for.
pub(super) enum End<'a> {
    /// Standard input goes to a file.
    In(&'a Url),
    /// Files go to standard output, one after the other.
    Out(&'a [Url]),
}

/// The stream that is asked for, if there is one.
///
/// # Errors
/// It is one of several sources, or both ends (exit code 2); or it cannot be read or written.
pub(super) fn find(wanted: &Wanted, list: bool) -> Result<Option<End<'_>>> {
    let pairs = wanted.pairs.iter().flat_map(|(source, dest)| [source, dest]);
    if pairs.chain(wanted.sources.iter().filter(|_| list)).any(|url| *url == Url::Standard) {
        return Err(Exit::usage("\"-\" in a list: files were expected"));
    }
    let input = wanted.sources.contains(&Url::Standard);
    Ok(match (&wanted.dest, input) {
        (Some(Url::Standard), true) => return Err(Exit::usage("\"-\" is both source and destination; use cat")),
        (Some(dest), true) if wanted.sources.len() == 1 => {
            standard::check_input()?;
            Some(End::In(dest))
        }
        (_, true) => return Err(Exit::usage("\"-\" is one of several sources, and was expected to be the only one")),
        (Some(Url::Standard), false) => {
            standard::check_output()?;
            Some(End::Out(&wanted.sources))
        }
        _ => None,
    })
}

/// Carries it, and notes in `outcome` what came of it.
pub(super) async fn carry(
    end: End<'_>,
    stores: &mut Stores,
    how: &How,
    existing: Option<Kept>,
    watch: &Arc<Watch>,
    outcome: &mut Outcome,
) -> Result<()> {
    let work = async {
        match end {
            End::In(dest) => {
                let dest = stores.find(dest).await?;
                let done = from_standard_input(&dest, how, existing != Some(Kept::Refuse)).await;
                if done.is_ok() {
                    outcome.not_verified(how.verify, &stream("standard input"), &(&*dest.store).into());
                }
                note(dest.name(), done, watch, outcome);
            }
            End::Out(sources) => {
                for source in sources {
                    let source = stores.find(source).await?;
                    for key in source.all().await.map_err(exit::of_files)? {
                        let done = to_standard_output(&*source.store, &key, Part::default(), how).await?;
                        if done.is_ok() && source.store.is_far() {
                            outcome.not_verified(how.verify, &(&*source.store).into(), &stream("standard output"));
                        }
                        note(crate::place::shown(&*source.store, &key), done, watch, outcome);
                    }
                }
            }
        }
        Ok(())
    };
    tokio::select! {
        done = work => done,
        () = watch.clone().show(Vec::new()) => Ok(()),
    }
}

fn note(name: String, done: Result<Done, Error>, watch: &Watch, outcome: &mut Outcome) {
    match done {
        Ok(done) => outcome.carried(done.size),
        Err(error) => {
            watch.failed(&name, &error);
            outcome.fail(name, &error);
        }
    }
}

fn stream(name: &str) -> Side {
    Side { name: name.to_owned(), far: false, algorithms: Vec::new() }
}

async fn from_standard_input(dest: &crate::place::Place, how: &How, replace: bool) -> Result<Done, Error> {
    if dest.inside || dest.is_dir().await? {
        return Err(Error::Kind { name: dest.name(), is: "a directory", expected: "a file" });
    }
    let source = stream("standard input");
    let check = Check::choose(how.verify, &source, &(&*dest.store).into())
        .map_err(|reason| Error::Unverifiable { name: dest.name(), reason })?;
    let spec = Spec { sum: check.as_ref().and_then(Check::kept), replace, ..Spec::default() };
    let done = async {
        let draft = match dest.store.create(&dest.key, spec).await? {
            Begun::Draft(draft) => draft,
            // Without a source nothing is remembered that could have been done.
            Begun::Done => return Err(Error::Unsupported { name: dest.name(), what: "going on with a stream" }),
        };
        pour(&mut tokio::io::stdin(), "standard input", &draft, check, how).await
    };
    let done = done.await;
    dest.store.remove_draft_dirs().await;
    let done = done?;
    dest.store.settle().await?;
    Ok(done)
}

/// What is wanted of an object.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Part {
    /// From which byte on.
    pub(crate) offset: u64,
    /// How many bytes, if not all to its end.
    pub(crate) length: Option<u64>,
}

/// Writes `part` of an object to standard output. What came over a network is verified at the end.
///
/// # Errors
/// Nobody reads standard output any more, which ends the command. Inside: it cannot be read or written; or what was written was
/// wrong, which whoever reads it has to be told.
pub(crate) async fn to_standard_output(
    store: &dyn phoebus_files::store::Store,
    key: &phoebus_files::key::Key,
    part: Part,
    how: &How,
) -> Result<Result<Done, Error>> {
    match send(store, key, part, how).await {
        Err(Error::Io { source, act: "write", .. }) if source.kind() == ErrorKind::BrokenPipe => Err(Exit::unread()),
        done => Ok(done),
    }
}

async fn send(
    store: &dyn phoebus_files::store::Store,
    key: &phoebus_files::key::Key,
    part: Part,
    how: &How,
) -> Result<Done, Error> {
    let object = store.open(key).await?;
    let meta = *object.meta();
    let asked = part.length.and_then(|length| Extent::new(part.offset, length));
    let all = match (meta.kind, meta.size, asked) {
        (Kind::File, Some(size), _) => Extent::first(size),
        (_, _, Some(extent)) => extent,
        _ => return Err(Error::Unsupported { name: object.name(), what: "carrying all of what has no size" }),
    };
    let beyond = |what: String| {
        let reason = format!("bytes {what} were asked for, and it has {}", human::bytes(all.len()));
        Error::Store { name: object.name(), reason, sort: phoebus_files::Sort::Request }
    };
    let rest = || Extent::new(part.offset, all.end().checked_sub(part.offset)?);
    let wanted = match part.length {
        Some(_) => asked.unwrap_or(all),
        None => rest().ok_or_else(|| beyond(format!("from {} on", part.offset)))?,
    };
    if wanted.common(all) != Some(wanted) && !wanted.is_empty() {
        return Err(beyond(wanted.to_string()));
    }
    // What is read here is what is there: only a network can change it on the way.
    let check = match store.is_far() {
        true => Check::choose(how.verify, &store.into(), &stream("standard output"))
            .map_err(|reason| Error::Unverifiable { name: object.name(), reason })?,
        false => None,
    };
    drain(&object, wanted, &mut tokio::io::stdout(), "standard output", check, how).await
}
