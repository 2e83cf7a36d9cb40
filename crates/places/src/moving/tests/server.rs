//! A store that fails to keep what it was given, or does not show it.

use super::super::*;
use phoebus_files::Links;
use phoebus_files::local::Local;
use phoebus_files::store::{Attributes, Begun, Draft, Entry, Fallible, FileId, Listing, Object, Spec};
use phoebus_files::{DirNature, OwnDirs};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::Barrier;

/// A directory of this machine as a server has it.
#[derive(Debug)]
pub(super) struct Server {
    pub(super) inner: Local,
    /// Whether its listings leave out names that begin with a dot.
    pub(super) hides: bool,
    /// Whether nothing can be made durable in it.
    pub(super) loses: bool,
    /// Whether files can be renamed, but not removed.
    pub(super) keeps: bool,
    /// Whether it tells when files were modified.
    pub(super) dates: bool,
    /// Whether it is a file system of this machine, and tells all that one does.
    pub(super) is_local: bool,
    /// Whether its names can be looked at, and what is made of them.
    pub(super) names: Names,
    /// Whether it finds files that were put aside by the names that they had, as from a cache.
    pub(super) remembers: bool,
    /// For which file there is no room. A directory of this name cannot be made.
    pub(super) full_at: Option<&'static str>,
    /// Symbolic links that listings show as directories. For a name that ends in `?`, the server cannot tell.
    /// `None`: listings show symbolic links as such.
    pub(super) links: Option<&'static [&'static str]>,
    /// Readers of files that were put aside wait for each other here.
    pub(super) together: Option<Arc<Barrier>>,
    /// The file with this name is rewritten just before it is renamed.
    pub(super) changes: Option<&'static str>,
    /// Whether a file has another number whenever it is looked at.
    pub(super) renumbers: bool,
    /// The next of these.
    pub(super) numbers: AtomicU64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Names {
    Kept,
    /// Directories of such a name cannot be listed.
    Unlisted(&'static str),
    /// Of more than ten bytes it takes the first ten.
    Short,
    /// The same, and it finds nothing by the others.
    Cut,
}

impl Server {
    pub(super) fn of(dir: &Path) -> Self {
        Self {
            inner: Local::new(dir, Links::Beneath).unwrap(),
            hides: false,
            loses: false,
            keeps: false,
            dates: true,
            is_local: false,
            names: Names::Kept,
            remembers: false,
            full_at: None,
            links: None,
            together: None,
            changes: None,
            renumbers: false,
            numbers: AtomicU64::new(1),
        }
    }

    /// What it calls `key`.
    fn called(&self, key: &Key) -> Key {
        match matches!(self.names, Names::Short | Names::Cut) && key.name().len() > 10 {
            true => key.parent().join(&key.name()[..10]).unwrap(),
            false => key.clone(),
        }
    }

    /// Where the bytes of `key` are.
    fn inner_path(&self, key: &Key) -> PathBuf {
        Path::new(self.inner.name().strip_prefix("file://").unwrap()).join(key.to_string())
    }

    fn lists(&self, key: &Key) -> Result<(), Error> {
        if matches!(self.names, Names::Unlisted(dir) if key.name() == dir.as_bytes()) {
            let (name, reason) = (self.name(), "no data connection".to_owned());
            return Err(Error::Store { name, reason, kind: ErrorKind::Other });
        }
        Ok(())
    }

    fn told(&self, meta: Meta) -> Meta {
        if self.is_local { meta } else { told(meta, self.dates) }
    }
}

/// What a server tells of it.
fn told(meta: Meta, dates: bool) -> Meta {
    let whole = |time: Time| Time { nanos: 0, ..time };
    Meta { modified: meta.modified.map(whole).filter(|_| dates), identity: None, ..meta }
}

/// A listing that tells whole seconds.
#[derive(Debug)]
struct Whole(Box<dyn Listing>, bool);

impl Listing for Whole {
    fn more(&mut self) -> Fallible<'_, Vec<Entry>> {
        Box::pin(async {
            let mut page = self.0.more().await?;
            page.iter_mut().for_each(|entry| entry.meta = told(entry.meta, self.1));
            Ok(page)
        })
    }
}

/// A listing in which what is hidden is not.
#[derive(Debug)]
struct Hiding(Box<dyn Listing>);

impl Listing for Hiding {
    fn more(&mut self) -> Fallible<'_, Vec<Entry>> {
        Box::pin(async {
            loop {
                let page = self.0.more().await?;
                let shown: Vec<Entry> = page.iter().filter(|entry| !entry.name.starts_with(b".")).cloned().collect();
                if page.is_empty() || !shown.is_empty() {
                    return Ok(shown);
                }
            }
        })
    }
}

impl Store for Server {
    fn name(&self) -> String {
        "ftp://server".to_owned()
    }
    fn is_far(&self) -> bool {
        !self.is_local
    }
    fn algorithms(&self) -> &[Algorithm] {
        self.inner.algorithms()
    }
    fn stat<'a>(&'a self, key: &'a Key) -> Fallible<'a, Meta> {
        Box::pin(async {
            let key_there = if self.names == Names::Cut { key.clone() } else { self.called(key) };
            let found = match self.inner.stat(&key_there).await {
                Err(error) if self.remembers => {
                    let start = [b".", key.name(), b"."].concat();
                    let there = self.inner.list(&key.parent()).await?.more().await?;
                    let mut moved = there.iter().filter(|entry| entry.name.ends_with(b".phoebus-moved"));
                    return moved.find(|entry| entry.name.starts_with(&start)).map(|entry| entry.meta).ok_or(error);
                }
                found => found,
            };
            let meta = self.told(found?);
            let number = self.numbers.fetch_add(1, Ordering::Relaxed);
            let identity = FileId { device: 1, number, links: 1, changed: Time { seconds: 1, nanos: 0 } };
            Ok(if self.renumbers { Meta { identity: Some(identity), ..meta } } else { meta })
        })
    }
    fn list<'a>(&'a self, key: &'a Key) -> Fallible<'a, Box<dyn Listing>> {
        Box::pin(async {
            self.lists(key)?;
            let listing: Box<dyn Listing> = Box::new(Whole(self.inner.list(key).await?, self.dates));
            Ok(if self.hides { Box::new(Hiding(listing)) } else { listing })
        })
    }
    fn keeps_names(&self) -> bool {
        self.names == Names::Kept
    }
    fn kept_names<'a>(&'a self, key: &'a Key) -> Fallible<'a, Option<HashSet<Vec<u8>>>> {
        Box::pin(async {
            self.lists(key)?;
            Ok(Some(self.inner.list(key).await?.more().await?.into_iter().map(|entry| entry.name).collect()))
        })
    }
    fn tells_links(&self) -> bool {
        self.links.is_none()
    }
    fn own_dirs<'a>(&'a self, key: &'a Key) -> Fallible<'a, OwnDirs> {
        Box::pin(async {
            let Some(links) = self.links else { return Ok(OwnDirs::all(DirNature::Yes)) };
            let mut own = OwnDirs::all(DirNature::Unknown);
            for entry in self.inner.list(key).await?.more().await? {
                let name = String::from_utf8(entry.name).unwrap();
                match links {
                    _ if links.contains(&&*name) => own.note(name.into_bytes(), DirNature::Link),
                    _ if links.contains(&&*format!("{name}?")) => {}
                    _ => own.note(name.into_bytes(), DirNature::Yes),
                }
            }
            Ok(own)
        })
    }
    fn open<'a>(&'a self, key: &'a Key) -> Fallible<'a, Arc<dyn Object>> {
        Box::pin(async {
            if let Some(together) = self.together.as_ref().filter(|_| key.name().ends_with(b".phoebus-moved")) {
                // One that waits alone would do so for ever.
                let waited = tokio::time::timeout(Duration::from_secs(60), together.wait()).await;
                waited.map_err(|_| Error::Store {
                    name: key.to_string(),
                    reason: "alone".into(),
                    kind: ErrorKind::Other,
                })?;
            }
            self.inner.open(key).await
        })
    }
    fn create<'a>(&'a self, key: &'a Key, spec: Spec) -> Fallible<'a, Begun> {
        Box::pin(async move {
            if self.full_at.is_some_and(|name| key.name() == name.as_bytes()) {
                let source = io::Error::from(io::ErrorKind::StorageFull);
                return Err(Error::NoSpace { name: self.name(), source });
            }
            self.inner.create(&self.called(key), spec).await
        })
    }
    fn edit<'a>(&'a self, key: &'a Key) -> Fallible<'a, Arc<dyn Draft>> {
        self.inner.edit(key)
    }
    fn append<'a>(&'a self, key: &'a Key) -> Fallible<'a, (Arc<dyn Draft>, u64)> {
        self.inner.append(key)
    }
    fn make_dir<'a>(&'a self, key: &'a Key) -> Fallible<'a, ()> {
        if self.full_at.is_some_and(|name| key.name() == name.as_bytes()) {
            let (name, reason) = (self.name(), "refused".to_owned());
            return Box::pin(async { Err(Error::Store { name, reason, kind: ErrorKind::Denied }) });
        }
        self.inner.make_dir(key)
    }
    fn remove<'a>(&'a self, key: &'a Key) -> Fallible<'a, ()> {
        match self.keeps {
            true => Box::pin(async {
                Err(Error::Store { name: self.name(), reason: "refused".to_owned(), kind: ErrorKind::Denied })
            }),
            false => self.inner.remove(key),
        }
    }
    fn list_all<'a>(&'a self, key: &'a Key) -> Fallible<'a, Box<dyn Listing>> {
        Box::pin(async {
            self.lists(key)?;
            self.inner.list_all(key).await
        })
    }
    fn remove_dir<'a>(&'a self, key: &'a Key) -> Fallible<'a, ()> {
        self.inner.remove_dir(key)
    }
    fn rename<'a>(&'a self, from: &'a Key, to: &'a Key, replace: bool) -> Fallible<'a, ()> {
        Box::pin(async move {
            if self.changes.is_some_and(|name| from.name() == name.as_bytes()) {
                fs::write(self.inner_path(from), "changed since it was looked at").unwrap();
            }
            self.inner.rename(from, to, replace).await
        })
    }
    fn set<'a>(&'a self, key: &'a Key, attributes: Attributes) -> Fallible<'a, ()> {
        self.inner.set(key, attributes)
    }
    fn settle(&self) -> Fallible<'_, ()> {
        match self.loses {
            true => Box::pin(async {
                let source = io::Error::from_raw_os_error(5);
                Err(Error::Io { name: self.name(), act: "sync the directory", source })
            }),
            false => self.inner.settle(),
        }
    }
}
