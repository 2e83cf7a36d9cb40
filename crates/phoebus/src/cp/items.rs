//! What goes where: sources and a destination, as they were written, become keys of stores.
//!
//! The rule is rsync's, since it does not depend on what is there already, so that the same command means the same when it is
//! run again: a directory becomes DEST/NAME, and with a slash at its end DEST itself. A file becomes DEST, unless that is a
//! directory, is to be one, or there are several: then DEST/NAME.

use super::meeting;
use crate::exit::{self, Exit};
use crate::place::{Place, Stores, Url};
use anyhow::Result;
use phoebus_files::key::Key;
use phoebus_files::plan::Filter;
use phoebus_files::store::{Kind, Store};
use phoebus_files::{Error, Sort};
use std::collections::HashSet;
use std::sync::Arc;

/// What was asked for.
#[derive(Debug)]
pub(super) struct Wanted {
    /// What is copied to [`Self::dest`].
    pub(super) sources: Vec<Url>,
    /// Where to.
    pub(super) dest: Option<Url>,
    /// What is copied to a place of its own.
    pub(super) pairs: Vec<(Url, Url)>,
}

/// What is copied between the same two stores.
#[derive(Debug)]
pub(super) struct Group {
    /// Where it comes from.
    pub(super) source: Arc<dyn Store>,
    /// Where it goes.
    pub(super) dest: Arc<dyn Store>,
    /// Each source with its destination.
    pub(super) items: Vec<(Key, Key)>,
}

impl Group {
    /// Whether symbolic links can be carried as such.
    pub(super) fn has_links(&self) -> bool {
        self.without_links().is_none()
    }

    /// The store that has no symbolic links, if one of the two has none.
    pub(super) fn without_links(&self) -> Option<&Arc<dyn Store>> {
        [&self.source, &self.dest].into_iter().find(|store| !store.has_links())
    }
}

/// How many pairs are looked at at the same time: as many as a server's client has commands under way.
const AHEAD: usize = 32;

/// Something that cannot be copied, by name.
pub(super) type Failure = (String, Error);

/// What goes where.
#[derive(Debug)]
pub(super) struct Planned {
    pub(super) groups: Vec<Group>,
    pub(super) failures: Vec<Failure>,
    /// The directory that everything goes to, if it is not there and nobody else makes it.
    missing: Option<Place>,
    recursive: bool,
}

impl Planned {
    /// Makes the directory that everything goes to, if there is anything that can be copied to it.
    ///
    /// # Errors
    /// It cannot be made.
    pub(super) async fn make_missing(&self) -> Result<()> {
        let Some(dest) = &self.missing else { return Ok(()) };
        for (group, from) in self.groups.iter().flat_map(|group| group.items.iter().map(move |(from, _)| (group, from)))
        {
            if can_be_copied(&*group.source, from, self.recursive).await {
                dest.store.make_dir(&dest.key).await.map_err(|error| without_parent(dest, error))?;
                break;
            }
        }
        Ok(())
    }
}

/// Whether `key` is there, and not a directory unless these are copied. What cannot be known is seen when it is copied.
async fn can_be_copied(source: &dyn Store, key: &Key, recursive: bool) -> bool {
    let found = match source.stat(key).await {
        // A link that leads nowhere may be carried as such.
        Err(error) if error.sort() == Sort::NotFound => source.stat_link(key).await,
        found => found,
    };
    match found {
        Ok(meta) => recursive || meta.kind != Kind::Dir,
        Err(error) => !matches!(error.sort(), Sort::NotFound | Sort::Denied),
    }
}

/// Finds out what goes where; nothing is made. What one source lacks is told beside what can be copied. `recursive`: with all that is in
/// directories, as far as that is taken.
///
/// # Errors
/// The whole makes no sense, as where files of two sources would get the same name, or the destination cannot be looked at.
pub(super) async fn plan(
    wanted: &Wanted,
    stores: &mut Stores,
    recursive: Option<&Filter>,
    parents: bool,
    dry_run: bool,
) -> Result<Planned> {
    let taken = HashSet::new();
    let mut plan =
        Plan { groups: Vec::new(), failures: Vec::new(), recursive: recursive.is_some(), taken, twice: None };
    let mut missing = None;
    if let Some(dest) = &wanted.dest {
        let dest = stores.find(dest).await?;
        let there = dest.meta().await.map_err(exit::of_files)?.map(|meta| meta.kind);
        let several = wanted.sources.len() > 1 || dest.inside;
        for source in &wanted.sources {
            let source = stores.find(source).await?;
            let named = (there == Some(Kind::Dir)).then_some(true);
            plan.add(&source, &dest, several, named).await;
        }
        let needed = plan.needs(&dest.key);
        missing = Some(dest).filter(|_| needed && there.is_none() && !parents && !dry_run);
    }
    for pairs in wanted.pairs.chunks(AHEAD) {
        let mut looking = Vec::new();
        for (source, dest) in pairs {
            let (source, dest) = (stores.find(source).await?, stores.find(dest).await?);
            looking.push(tokio::spawn(look(source, dest)));
        }
        for looked in looking {
            let (source, dest, named) = looked.await?.map_err(exit::of_files)?;
            plan.add(&source, &dest, dest.inside, named).await;
        }
    }
    if let Some(name) = plan.twice {
        return Err(Exit::usage(format!(
            "{name}: two sources go there, and one of the two would be lost; nothing was copied"
        )));
    }
    if let Some(filter) = recursive
        && let Some(meeting) = meeting::find(&plan.groups, filter).await
    {
        return Err(Exit::usage(meeting));
    }
    Ok(Planned { groups: plan.groups, failures: plan.failures, missing, recursive: recursive.is_some() })
}

/// Two places, and whether what goes to the second gets a name in it, as far as that is known: whether it is a directory, or the
/// source, unless that is a pattern.
async fn look(source: Place, dest: Place) -> Result<(Place, Place, Option<bool>), Error> {
    let there = dest.is_dir().await?;
    let named = match there || dest.inside {
        true => Some(there),
        false if source.is_pattern() => None,
        false => Some(is_a_dir(&source, &source.key).await),
    };
    Ok((source, dest, named))
}

struct Plan {
    groups: Vec<Group>,
    failures: Vec<Failure>,
    recursive: bool,
    /// Where files go, and in which store.
    taken: HashSet<(usize, Key)>,
    /// Where two files go.
    twice: Option<String>,
}

impl Plan {
    /// Adds all that `source` stands for. `several`: more than one thing goes to `dest`, or it was written as a directory;
    /// `named`: whether something that goes there gets a name in it all the same, if that is known.
    async fn add(&mut self, source: &Place, dest: &Place, several: bool, named: Option<bool>) {
        let keys = match source.all().await {
            Ok(keys) => keys,
            Err(error) => return self.failures.push((source.name(), error)),
        };
        // What looks like a pattern may be a name.
        let several = several || keys != [source.key.clone()];
        for key in keys {
            // What is in a directory goes to the destination itself.
            let contents = source.inside && self.recursive;
            let named = match named {
                _ if several => true,
                Some(named) => named,
                None => is_a_dir(source, &key).await,
            };
            let to = match (contents, named) {
                (true, _) | (false, false) => Ok(dest.key.clone()),
                (false, true) if key.is_root() => Err("it has no name of its own, which -r would need; \
                     with a slash at its end, -r copies what is in it"
                    .to_owned()),
                (false, true) => dest.key.join(key.name()).map_err(|error| error.to_string()),
            };
            let added = match to {
                Err(_) if key.is_root() && !self.recursive => {
                    Err(Error::Kind { name: source.name(), is: "a directory", expected: "a file" })
                }
                Err(reason) => Err(Error::Store { name: source.name(), reason, sort: Sort::Request }),
                Ok(to) => self.item(source, dest, key.clone(), to),
            };
            if let Err(error) = added {
                self.failures.push((crate::place::shown(&*source.store, &key), error));
            }
        }
    }

    fn item(&mut self, source: &Place, dest: &Place, from: Key, to: Key) -> Result<(), Error> {
        let same = Arc::ptr_eq(&source.store, &dest.store);
        if same && from != to && to.below(&from).is_some_and(|below| !below.is_root()) && self.recursive {
            let reason = format!("it cannot be copied into itself, as {}", crate::place::shown(&*dest.store, &to));
            let name = crate::place::shown(&*source.store, &from);
            return Err(Error::Store { name, reason, sort: Sort::Request });
        }
        // Directories may come together in one, but of two files one would be lost.
        if !self.recursive && !self.taken.insert((Arc::as_ptr(&dest.store).addr(), to.clone())) {
            self.twice.get_or_insert_with(|| crate::place::shown(&*dest.store, &to));
            return Ok(());
        }
        let alike =
            |group: &&mut Group| Arc::ptr_eq(&group.source, &source.store) && Arc::ptr_eq(&group.dest, &dest.store);
        match self.groups.iter_mut().find(alike) {
            Some(group) => group.items.push((from, to)),
            None => self.groups.push(Group {
                source: source.store.clone(),
                dest: dest.store.clone(),
                items: vec![(from, to)],
            }),
        }
        Ok(())
    }

    /// Whether anything goes below `dir`.
    fn needs(&self, dir: &Key) -> bool {
        self.groups.iter().flat_map(|group| &group.items).any(|(_, to)| to != dir)
    }
}

/// Whether `key` is a directory; what cannot be looked at fails later, with its reason.
async fn is_a_dir(source: &Place, key: &Key) -> bool {
    source.store.stat(key).await.is_ok_and(|meta| meta.kind == Kind::Dir)
}

fn without_parent(dest: &Place, error: Error) -> anyhow::Error {
    match error {
        Error::NotFound { .. } => {
            Exit::with(exit::ABSENT, format!("the directory above {} does not exist (--parents makes it)", dest.name()))
        }
        error => exit::of_files(error),
    }
}
