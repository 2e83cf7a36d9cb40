//! `-`: standard input as a source, standard output as a destination.

use super::args::Kept;
use super::report::Outcome;
use super::watch::Watch;
use crate::exit::{self, Exit};
use crate::human;
use crate::standard;
use anyhow::Result;
use phoebus_files::range::Extent;
use phoebus_files::store::{Begun, Kind, Spec};
use phoebus_files::{Check, Done, Error, Side, TransferOptions, drain, pour};
use phoebus_places::plan::CopyRequest;
use phoebus_places::{Place, Stores, Url, shown};
use std::io::ErrorKind;
use std::sync::Arc;

/// What to do with a stream.
pub(super) enum End<'a> {
    /// Write standard input to a file.
    In(&'a Url),
    /// Write files to standard output, one after the other.
    Out(&'a [Url]),
}

/// The requested stream, if there is one.
///
/// # Errors
/// It is one of several sources, or both ends (exit code 2); or it cannot be read or written.
pub(super) fn find(wanted: &CopyRequest, list: bool) -> Result<Option<End<'_>>> {
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

/// Carries it, and records the result in `outcome`.
pub(super) async fn carry(
    end: End<'_>,
    stores: &mut Stores,
    how: &TransferOptions,
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
                        note(shown(&*source.store, &key), done, watch, outcome);
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

async fn from_standard_input(dest: &Place, how: &TransferOptions, replace: bool) -> Result<Done, Error> {
    if dest.inside || dest.is_dir().await? {
        let reason = "it is a directory, and what comes from standard input needs the name of a file".to_owned();
        return Err(Error::Store { name: dest.name(), reason, kind: phoebus_files::ErrorKind::Request });
    }
    let source = stream("standard input");
    let check = Check::choose(how.verify, &source, &(&*dest.store).into())
        .map_err(|reason| Error::Unverifiable { name: dest.name(), reason })?;
    let spec = Spec { sum: check.as_ref().and_then(Check::kept), replace, ..Spec::default() };
    let done = async {
        let draft = match dest.store.create(&dest.key, spec).await? {
            Begun::Draft(draft) => draft,
            // Without a source, nothing can be resumed.
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

/// The wanted part of an object.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Part {
    /// First byte.
    pub(crate) offset: u64,
    /// Length. `None`: to the end.
    pub(crate) length: Option<u64>,
}

/// Writes `part` of an object to standard output. Remote bytes are verified at the end.
///
/// # Errors
/// Nobody reads standard output, which ends the command. Inside: reading or writing fails; or the written bytes were
/// wrong, which their reader must learn.
pub(crate) async fn to_standard_output(
    store: &dyn phoebus_files::store::Store,
    key: &phoebus_files::key::Key,
    part: Part,
    how: &TransferOptions,
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
    how: &TransferOptions,
) -> Result<Done, Error> {
    let object = store.open(key).await?;
    let meta = *object.meta();
    let asked = part.length.and_then(|length| Extent::new(part.offset, length));
    let all = match (meta.kind, meta.size, asked) {
        (Kind::File, Some(size), _) => Extent::first(size),
        (_, _, Some(extent)) => extent,
        _ => return Err(Error::Unsupported { name: object.name(), what: "copying an object of unknown size" }),
    };
    let beyond = |what: String| {
        let reason = format!("bytes {what} were asked for, and it has {}", human::bytes(all.len()));
        Error::Store { name: object.name(), reason, kind: phoebus_files::ErrorKind::Request }
    };
    let rest = || Extent::new(part.offset, all.end().checked_sub(part.offset)?);
    let wanted = match part.length {
        Some(_) => asked.unwrap_or(all),
        None => rest().ok_or_else(|| beyond(format!("from {} on", part.offset)))?,
    };
    if wanted.common(all) != Some(wanted) && !wanted.is_empty() {
        return Err(beyond(wanted.to_string()));
    }
    // Locally read bytes need no verification; only a network can change them.
    let check = match store.is_far() {
        true => Check::choose(how.verify, &store.into(), &stream("standard output"))
            .map_err(|reason| Error::Unverifiable { name: object.name(), reason })?,
        false => None,
    };
    drain(&object, wanted, &mut tokio::io::stdout(), "standard output", check, how).await
}
