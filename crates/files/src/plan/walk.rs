//! Walks a tree, one entry at a time.

use super::Filter;
use crate::error::Error;
use crate::key::Key;
use crate::retry::Retry;
use crate::spawned::Spawned;
use crate::store::{Entry, Fallible, Kind, Listing, Meta, Store};
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use std::vec;

/// Deepest tree. System limits on paths are lower, except for hostile trees.
const MAX_DEPTH: usize = 512;

/// Directories that a walk with look-ahead lists at a time. A remote listing takes some four round trips, and servers
/// limit connections per user.
const LISTED: usize = 4;

/// Entries of a directory that a walk with look-ahead reads before it returns them. Some ten megabytes.
const READ: usize = 100_000;

/// An entry of a walk. Keys are relative to the top of the tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    /// A directory, before its content.
    Dir(Key, Meta),
    /// An object, or the target of a symbolic link.
    File(Key, Meta),
    /// A symbolic link, in a walk that keeps links.
    Link(Key, Meta),
    /// Something that cannot be carried: a socket, a dangling link, a link to a directory.
    Other(Key, Kind),
}

/// A walk through a tree. Directories are read in batches when their turn comes. Links to files are followed as far as
/// the store allows, links to directories never, so that a walk ends; or no links are followed.
#[derive(Debug)]
pub struct Walk {
    store: Arc<dyn Store>,
    top: Key,
    filter: Arc<Filter>,
    keeps_links: bool,
    /// Whether to ask for permissions that listings lack.
    modes: bool,
    /// Directories in progress, the deepest last.
    open: Vec<Level>,
    /// The directory to read next.
    next: Option<Key>,
    ahead: Option<Ahead>,
}

#[derive(Debug)]
struct Level {
    key: Key,
    /// The rest of the listing.
    listing: Option<Box<dyn Listing>>,
    page: vec::IntoIter<Entry>,
    /// Directories of the batch that are not being listed yet.
    dirs: VecDeque<Key>,
}

/// Directories that are listed ahead.
struct Ahead {
    retry: Retry,
    tell: Arc<OnRetry>,
    coming: HashMap<Key, Spawned<Result<Read, Error>>>,
}

/// Called before a listing is retried, with directory, error and pause.
type OnRetry = dyn Fn(&Key, &Error, Duration) + Send + Sync;

/// A batch, and the rest of the listing.
type Read = (Vec<Entry>, Option<Box<dyn Listing>>);

impl fmt::Debug for Ahead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Ahead").field(&self.coming.len()).finish()
    }
}

impl Walk {
    /// A walk through the directory `top`, which is not returned itself, with `filter`.
    pub fn new(store: Arc<dyn Store>, top: Key, filter: Arc<Filter>) -> Self {
        Self {
            store,
            top,
            filter,
            keeps_links: false,
            modes: false,
            open: Vec::new(),
            next: Some(Key::ROOT),
            ahead: None,
        }
    }

    /// The same; with `keep`, links are returned as links, and none is followed.
    #[must_use]
    pub fn keeping_links(self, keep: bool) -> Self {
        Self { keeps_links: keep, ..self }
    }

    /// The same with permissions for every entry, if available.
    #[must_use]
    pub fn with_modes(self) -> Self {
        Self { modes: true, ..self }
    }

    /// The same with look-ahead, and with retries after temporary errors, of which `tell` hears. The order of entries
    /// is unchanged.
    #[must_use]
    pub fn listing_ahead(self, retry: Retry, tell: Arc<OnRetry>) -> Self {
        Self { ahead: Some(Ahead { retry, tell, coming: HashMap::new() }), ..self }
    }

    /// The next entry. `None` at the end. After an error, the walk continues behind its subject.
    pub async fn next(&mut self) -> Option<Result<Found, Error>> {
        loop {
            if let Some(key) = self.next.take()
                && let Err(error) = self.enter(key).await
            {
                return Some(Err(error));
            }
            let level = self.open.last_mut()?;
            let Some(entry) = level.page.next() else {
                let page = match &mut level.listing {
                    Some(listing) => listing.more().await,
                    None => Ok(Vec::new()),
                };
                match page {
                    Ok(page) if page.is_empty() => drop(self.open.pop()),
                    Ok(page) => level.page = page.into_iter(),
                    Err(error) => {
                        self.open.pop();
                        return Some(Err(error));
                    }
                }
                continue;
            };
            match level.key.join(&entry.name) {
                Ok(key) => {
                    if let Some(found) = self.look(key, entry.meta).await.transpose() {
                        return Some(found);
                    }
                }
                // A remote store may list it, but no local name can be like that.
                Err(error) => {
                    let (name, reason) = (format!("{}/{}", self.store.name(), self.top), error.to_string());
                    return Some(Err(Error::Store { name, reason, kind: crate::ErrorKind::Request }));
                }
            }
        }
    }

    async fn enter(&mut self, key: Key) -> Result<(), Error> {
        let full = self.full(&key)?;
        if self.open.len() >= MAX_DEPTH {
            let name = format!("{}/{full}", self.store.name());
            return Err(Error::Limit { name, what: "the depth of the tree", limit: MAX_DEPTH as u64 });
        }
        if self.ahead.is_none() {
            let listing = Some(self.store.list(&full).await?);
            self.open.push(Level { key, listing, page: Vec::new().into_iter(), dirs: VecDeque::new() });
            return Ok(());
        }
        // An unlisted directory is the next one of its parent.
        if let Some(above) = self.open.last_mut() {
            above.dirs.pop_front_if(|next| *next == key);
        }
        let coming = match self.ahead.as_mut().and_then(|ahead| ahead.coming.remove(&key)) {
            Some(coming) => Some(coming),
            None => self.begin(&key, full),
        };
        let Some(coming) = coming else { return Ok(()) };
        let failed = |error| Error::io(self.store.name(), "list a directory of", std::io::Error::other(error));
        let (entries, listing) = coming.end().await.map_err(failed)??;
        let is_entered = |entry: &&Entry| entry.meta.kind == Kind::Dir;
        let dirs = entries.iter().filter(is_entered).filter_map(|entry| key.join(&entry.name).ok());
        let dirs = dirs.filter(|dir| self.filter.takes(dir, true)).collect();
        self.open.push(Level { key, listing, page: entries.into_iter(), dirs });
        self.begin_some();
        Ok(())
    }

    /// Starts to list `key`, which is `full` in the store.
    fn begin(&self, key: &Key, full: Key) -> Option<Spawned<Result<Read, Error>>> {
        let ahead = self.ahead.as_ref()?;
        let (store, key, retry, tell) = (self.store.clone(), key.clone(), ahead.retry, ahead.tell.clone());
        Some(Spawned::new(async move { read_again(&*store, &key, &full, retry, &*tell).await }))
    }

    /// Starts to list the directories whose turn comes next: the deepest first.
    fn begin_some(&mut self) {
        for level in (0..self.open.len()).rev() {
            while self.ahead.as_ref().is_some_and(|ahead| ahead.coming.len() < LISTED)
                && let Some(dir) = self.open[level].dirs.pop_front()
            {
                let coming = self.full(&dir).ok().and_then(|full| self.begin(&dir, full));
                if let (Some(ahead), Some(coming)) = (&mut self.ahead, coming) {
                    ahead.coming.insert(dir, coming);
                }
            }
        }
    }

    async fn look(&mut self, key: Key, mut meta: Meta) -> Result<Option<Found>, Error> {
        if !self.filter.takes(&key, meta.kind == Kind::Dir) {
            return Ok(None);
        }
        if meta.kind == Kind::Link && self.keeps_links {
            return Ok(Some(Found::Link(key, meta)));
        }
        if meta.kind == Kind::Link {
            let Ok(full) = self.full(&key) else { return Ok(None) };
            match self.store.stat(&full).await {
                Ok(target) if target.kind == Kind::File => meta = target,
                _ => return Ok(Some(Found::Other(key, Kind::Link))),
            }
        }
        if meta.kind == Kind::File && !self.filter.bounds.take(&meta) {
            return Ok(None);
        }
        if self.modes && meta.mode.is_none() {
            meta = with_mode(&*self.store, &self.full(&key)?, meta, true).await?;
        }
        Ok(Some(match meta.kind {
            Kind::Dir => {
                self.next = Some(key.clone());
                Found::Dir(key, meta)
            }
            Kind::File => Found::File(key, meta),
            kind => Found::Other(key, kind),
        }))
    }

    fn full(&self, key: &Key) -> Result<Key, Error> {
        let error = |error: crate::key::KeyError| Error::Store {
            name: self.store.name(),
            reason: error.to_string(),
            kind: crate::ErrorKind::Request,
        };
        self.top.beneath(key).map_err(error)
    }
}

/// Adds permissions to `meta` of `key`, if available ([`Store::mode`]).
pub(crate) async fn with_mode(store: &dyn Store, key: &Key, meta: Meta, among: bool) -> Result<Meta, Error> {
    if meta.mode.is_some() || !matches!(meta.kind, Kind::File | Kind::Dir) {
        return Ok(meta);
    }
    Ok(Meta { mode: store.mode(key, &meta, among).await?, ..meta })
}

/// Lists the directory `key`, which is `full` in `store`, with retries after temporary errors.
async fn read_again(store: &dyn Store, key: &Key, full: &Key, retry: Retry, tell: &OnRetry) -> Result<Read, Error> {
    let mut attempt = 1;
    loop {
        match read(store, full).await {
            Err(error) if error.may_pass() && attempt < retry.attempts => {
                let wait = retry.wait(attempt);
                tell(key, &error, wait);
                tokio::time::sleep(wait).await;
                attempt += 1;
            }
            other => return other,
        }
    }
}

/// Lists `full`. After a permanent error, the entries so far are returned, then the error.
async fn read(store: &dyn Store, full: &Key) -> Result<Read, Error> {
    let (mut listing, mut entries) = (store.list(full).await?, Vec::new());
    while entries.len() < READ {
        match listing.more().await {
            Ok(page) if page.is_empty() => return Ok((entries, None)),
            Ok(page) => entries.extend(page),
            Err(error) if error.may_pass() => return Err(error),
            Err(error) => return Ok((entries, Some(Box::new(Broken(Some(error)))))),
        }
    }
    Ok((entries, Some(listing)))
}

/// The rest of a failed listing: the error, once.
#[derive(Debug)]
struct Broken(Option<Error>);

impl Listing for Broken {
    fn more(&mut self) -> Fallible<'_, Vec<Entry>> {
        Box::pin(async { self.0.take().map_or(Ok(Vec::new()), Err) })
    }
}
