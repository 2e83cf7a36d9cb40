//! Plans which source goes to which destination: from arguments to keys of stores.
//!
//! The rule is rsync's, because it does not depend on what exists, so that a repeated command means the same: a
//! directory becomes DEST/NAME; with a trailing slash it becomes DEST. A file becomes DEST, unless DEST is or will be a
//! directory, or there are several sources: then it becomes DEST/NAME.

mod collision;
mod group;
mod mirror;

pub use group::Group;
pub use mirror::check as check_delete;

use crate::error::{self, Result};
use crate::place::{Place, shown};
use crate::stores::Stores;
use crate::url::Url;
use phoebus_files::key::Key;
use phoebus_files::plan::Filter;
use phoebus_files::store::{Kind, Store};
use phoebus_files::{Error, ErrorKind};
use std::collections::HashSet;
use std::sync::Arc;

/// The request.
#[derive(Debug)]
pub struct CopyRequest {
    /// Sources that are copied to [`Self::dest`].
    pub sources: Vec<Url>,
    /// The destination.
    pub dest: Option<Url>,
    /// Sources with destinations of their own.
    pub pairs: Vec<(Url, Url)>,
}

/// Pairs that are looked up at a time: as many as a client has commands in flight.
const AHEAD: usize = 32;

/// A source that cannot be copied.
pub type Failure = (String, Error);

/// The plan.
#[derive(Debug)]
pub struct Planned {
    /// What can be copied.
    pub groups: Vec<Group>,
    /// What cannot.
    pub failures: Vec<Failure>,
    /// The directory that everything goes to, if it does not exist and nobody else creates it.
    missing: Option<Place>,
    recursive: bool,
}

impl Planned {
    /// Creates the directory that everything goes to, if anything can be copied to it.
    ///
    /// # Errors
    /// It cannot be created.
    pub async fn make_missing(&self) -> Result<()> {
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

/// Checks that `key` exists, and is no directory unless these are copied. Other errors show during the copy.
async fn can_be_copied(source: &dyn Store, key: &Key, recursive: bool) -> bool {
    let found = match source.stat(key).await {
        // A dangling link may be carried as a link.
        Err(error) if error.kind() == ErrorKind::NotFound => source.stat_link(key).await,
        found => found,
    };
    match found {
        Ok(meta) => recursive || meta.kind != Kind::Dir,
        Err(error) => !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Denied),
    }
}

/// Makes the plan, without any change. Sources that cannot be copied are reported besides. `recursive`: with the
/// content of directories under the filter; `parents`: the copy creates ancestors of destinations; `dry_run`: nothing
/// is created.
///
/// # Errors
/// The whole is invalid, such as two files with one destination; or the destination cannot be looked up.
pub async fn plan(
    wanted: &CopyRequest,
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
        let there = dest.meta().await?.map(|meta| meta.kind);
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
            let (source, dest, named) = looked.await??;
            plan.add(&source, &dest, dest.inside, named).await;
        }
    }
    if let Some(name) = plan.twice {
        return Err(error::Error::request(format!(
            "{name}: two sources go there, and one of the two would be lost; nothing was copied"
        )));
    }
    if let Some(filter) = recursive
        && let Some(collision) = collision::find(&plan.groups, filter).await
    {
        return Err(error::Error::request(collision));
    }
    Ok(Planned { groups: plan.groups, failures: plan.failures, missing, recursive: recursive.is_some() })
}

/// A source and a destination. As far as known: whether the destination is a directory; or the source, unless it is a
/// pattern.
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
    /// The destination and its store.
    taken: HashSet<(usize, Key)>,
    /// The destinations in use.
    twice: Option<String>,
}

impl Plan {
    /// Adds everything that `source` stands for. `several`: more than one source goes to `dest`, or `dest` was written
    /// as a directory. `named`: whether names are added all the same, if known.
    async fn add(&mut self, source: &Place, dest: &Place, several: bool, named: Option<bool>) {
        let keys = match source.all().await {
            Ok(keys) => keys,
            Err(error) => return self.failures.push((source.name(), error)),
        };
        // A name may look like a pattern.
        let several = several || keys != [source.key.clone()];
        for key in keys {
            // The content of a directory goes to the destination itself.
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
                Err(reason) => Err(Error::Store { name: source.name(), reason, kind: ErrorKind::Request }),
                Ok(to) => self.item(source, dest, key.clone(), to),
            };
            if let Err(error) = added {
                self.failures.push((shown(&*source.store, &key), error));
            }
        }
    }

    fn item(&mut self, source: &Place, dest: &Place, from: Key, to: Key) -> Result<(), Error> {
        let same = Arc::ptr_eq(&source.store, &dest.store);
        if same && from != to && to.below(&from).is_some_and(|below| !below.is_root()) && self.recursive {
            let reason = format!("it cannot be copied into itself, as {}", shown(&*dest.store, &to));
            let name = shown(&*source.store, &from);
            return Err(Error::Store { name, reason, kind: ErrorKind::Request });
        }
        // Directories may be merged; of two files one would be lost.
        if !self.recursive && !self.taken.insert((Arc::as_ptr(&dest.store).addr(), to.clone())) {
            self.twice.get_or_insert_with(|| shown(&*dest.store, &to));
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

/// Whether `key` is a directory. Errors show later.
async fn is_a_dir(source: &Place, key: &Key) -> bool {
    source.store.stat(key).await.is_ok_and(|meta| meta.kind == Kind::Dir)
}

fn without_parent(dest: &Place, error: Error) -> error::Error {
    match error {
        Error::NotFound { .. } => {
            error::Error::Absent(format!("the directory above {} does not exist (--parents makes it)", dest.name()))
        }
        error => error.into(),
    }
}
