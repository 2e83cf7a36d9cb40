//! Detects files of two sources that would get the same name, so that one would be lost.
//!
//! Directories may be merged, and then their contents are compared. Sources with destinations of their own cost
//! nothing.

use super::group::Group;
use crate::place::shown;
use phoebus_files::Error;
use phoebus_files::key::Key;
use phoebus_files::plan::Filter;
use phoebus_files::store::{Kind, Store};
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::Arc;

/// Two sources that would get the same name.
#[derive(Debug)]
pub(super) struct NameCollision {
    one: String,
    other: String,
    name: String,
}

impl fmt::Display for NameCollision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { one, other, name } = self;
        write!(f, "{one} and {other} would both be {name}, where one of the two would be lost; nothing was copied")
    }
}

/// A source of a destination.
#[derive(Debug, Clone)]
struct CollisionSource {
    store: Arc<dyn Store>,
    /// The source as named.
    top: Key,
    /// The part of it.
    below: Key,
    kind: Kind,
}

/// The sources of each destination in a store.
type Places<'a> = BTreeMap<&'a Key, Vec<CollisionSource>>;

impl CollisionSource {
    fn key(&self) -> Option<Key> {
        self.top.beneath(&self.below).ok()
    }

    fn name(&self) -> String {
        self.key().map_or_else(String::new, |key| shown(&*self.store, &key))
    }

    /// The entries of the directory. An unreadable one is reported by the copy.
    async fn contents(&self, filter: &Filter) -> Result<Vec<Self>, Error> {
        let Some(key) = self.key() else { return Ok(Vec::new()) };
        let (mut listing, mut found) = (self.store.list(&key).await?, Vec::new());
        loop {
            let page = listing.more().await?;
            if page.is_empty() {
                return Ok(found);
            }
            for entry in page {
                let Ok(below) = self.below.join(&entry.name) else { continue };
                if filter.takes(&below, entry.meta.kind == Kind::Dir) {
                    found.push(Self { below, kind: entry.meta.kind, ..self.clone() });
                }
            }
        }
    }

    /// The same for a symbolic link, which is followed to files only.
    async fn followed(self) -> Option<Self> {
        let leads = match self.kind {
            Kind::Link => self.store.stat(&self.key()?).await.ok().filter(|meta| meta.kind == Kind::File)?.kind,
            kind => kind,
        };
        matches!(leads, Kind::File | Kind::Dir).then_some(Self { kind: leads, ..self })
    }
}

/// The first collision of what is copied with its content, under `filter`.
pub(super) async fn find(groups: &[Group], filter: &Filter) -> Option<NameCollision> {
    let mut stores: Vec<(&Arc<dyn Store>, Places<'_>)> = Vec::new();
    for group in groups {
        let at = stores.iter().position(|(store, _)| Arc::ptr_eq(store, &group.dest)).unwrap_or(stores.len());
        if at == stores.len() {
            stores.push((&group.dest, BTreeMap::new()));
        }
        for (from, to) in &group.items {
            // The kind is looked up when it matters.
            let (store, top, below) = (group.source.clone(), from.clone(), Key::ROOT);
            stores[at].1.entry(to).or_default().push(CollisionSource { store, top, below, kind: Kind::Other });
        }
    }
    for (dest, places) in &stores {
        for (to, here) in places {
            let mut comers = here.clone();
            let mut above = (*to).clone();
            while !above.is_root() {
                above = above.parent();
                let rest = to.below(&above).unwrap_or_default();
                let others = places.get(&above).into_iter().flatten();
                comers.extend(
                    others
                        .filter(|_| filter.takes(&rest, true))
                        .map(|other| CollisionSource { below: rest.clone(), ..other.clone() }),
                );
            }
            if comers.len() < 2 {
                continue;
            }
            let mut there = Vec::new();
            for comer in comers {
                let meta = match comer.key() {
                    Some(key) => comer.store.stat(&key).await.ok(),
                    None => None,
                };
                there.extend(meta.map(|meta| CollisionSource { kind: meta.kind, ..comer }));
            }
            if let Some(meeting) = among(&***dest, (*to).clone(), there, filter).await {
                return Some(meeting);
            }
        }
    }
    None
}

/// The collision among the sources of `to`, if there is one.
async fn among(dest: &dyn Store, to: Key, comers: Vec<CollisionSource>, filter: &Filter) -> Option<NameCollision> {
    let mut open = VecDeque::from([(to, comers)]);
    while let Some((to, comers)) = open.pop_front() {
        let (dirs, others): (Vec<_>, Vec<_>) = comers.into_iter().partition(|comer| comer.kind == Kind::Dir);
        if let Some(one) = others.first() {
            let other = others.get(1).or(dirs.first())?;
            return Some(NameCollision { one: one.name(), other: other.name(), name: shown(dest, &to) });
        }
        let mut names: BTreeMap<Vec<u8>, Vec<CollisionSource>> = BTreeMap::new();
        for dir in dirs {
            for found in dir.contents(filter).await.unwrap_or_default() {
                names.entry(found.below.name().to_vec()).or_default().push(found);
            }
        }
        for (name, found) in names.into_iter().filter(|(_, found)| found.len() > 1) {
            let mut there = Vec::new();
            for comer in found {
                there.extend(comer.followed().await);
            }
            if let Some(to) = to.join(&name).ok().filter(|_| there.len() > 1) {
                open.push_back((to, there));
            }
        }
    }
    None
}
