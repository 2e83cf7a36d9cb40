//! A walk through a tree, one entry at a time.

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

/// How deep trees may be. Paths have fewer components before they are too long for the system, unless they are made to annoy.
const MAX_DEPTH: usize = 512;

/// How many directories are listed at the same time in a walk that lists ahead: listing one over a network takes some four round
/// trips, and servers let a user have few connections.
const LISTED: usize = 4;

/// How many entries of a directory are read before they are given, in a walk that lists ahead: some ten megabytes of them.
const READ: usize = 100_000;

/// What a walk comes by. Keys are counted from the top of the tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    /// A directory, before what is in it.
    Dir(Key, Meta),
    /// An object, itself or where a symbolic link leads.
    File(Key, Meta),
    /// A symbolic link, in a walk that keeps them.
    Link(Key, Meta),
    /// What cannot be carried: a socket, a link to a directory or to nowhere.
    Other(Key, Kind),
}

/// A walk through a tree. Directories are read as they are come to, some entries at a time; symbolic links to files are
/// followed as far as the store allows, and those to directories are not, so that a walk ends; or none is followed.
#[derive(Debug)]
pub struct Walk {
    store: Arc<dyn Store>,
    top: Key,
    filter: Arc<Filter>,
    keeps_links: bool,
    /// Directories that are being read, the deepest last.
    open: Vec<Level>,
    /// One that is to be read next.
    next: Option<Key>,
    ahead: Option<Ahead>,
}

#[derive(Debug)]
struct Level {
    key: Key,
    /// What comes after the page, if there may be more.
    listing: Option<Box<dyn Listing>>,
    page: vec::IntoIter<Entry>,
    /// Directories of the page that nobody has begun to list.
    dirs: VecDeque<Key>,
}

/// Directories that are listed before their turn.
struct Ahead {
    retry: Retry,
    tell: Arc<Tell>,
    coming: HashMap<Key, Spawned<Result<Read, Error>>>,
}

/// Told which directory is listed again, why, and after how long.
type Tell = dyn Fn(&Key, &Error, Duration) + Send + Sync;

/// Entries, and where the others are if there may be more.
type Read = (Vec<Entry>, Option<Box<dyn Listing>>);

impl fmt::Debug for Ahead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Ahead").field(&self.coming.len()).finish()
    }
}

impl Walk {
    /// A walk through the directory `top`, which itself is not given, by way of what `filter` takes.
    pub fn new(store: Arc<dyn Store>, top: Key, filter: Arc<Filter>) -> Self {
        Self { store, top, filter, keeps_links: false, open: Vec::new(), next: Some(Key::ROOT), ahead: None }
    }

    /// The same, which gives symbolic links as such if `keep`, and follows none.
    #[must_use]
    pub fn keeping_links(self, keep: bool) -> Self {
        Self { keeps_links: keep, ..self }
    }

    /// The same, which lists some directories at the same time, before it is their turn, and again where that fails in a way that
    /// may pass; `tell` hears of it. The order of what is given stays the same.
    #[must_use]
    pub fn listing_ahead(self, retry: Retry, tell: Arc<Tell>) -> Self {
        Self { ahead: Some(Ahead { retry, tell, coming: HashMap::new() }), ..self }
    }

    /// What comes next; none at the end. After an error the walk goes on past what it was about.
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
                    if let Some(found) = self.look(key, entry.meta).await {
                        return Some(Ok(found));
                    }
                }
                // A far store said it, and nothing here can have such a name.
                Err(error) => {
                    let (name, reason) = (format!("{}/{}", self.store.name(), self.top), error.to_string());
                    return Some(Err(Error::Store { name, reason, sort: crate::Sort::Request }));
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
        // What nobody has begun to list is the next of the directory that it is in.
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

    /// Begins to list `key`, which is `full` in the store.
    fn begin(&self, key: &Key, full: Key) -> Option<Spawned<Result<Read, Error>>> {
        let ahead = self.ahead.as_ref()?;
        let (store, key, retry, tell) = (self.store.clone(), key.clone(), ahead.retry, ahead.tell.clone());
        Some(Spawned::new(async move { read_again(&*store, &key, &full, retry, &*tell).await }))
    }

    /// Begins to list those directories whose turn comes next: the deepest first.
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

    async fn look(&mut self, key: Key, mut meta: Meta) -> Option<Found> {
        if !self.filter.takes(&key, meta.kind == Kind::Dir) {
            return None;
        }
        if meta.kind == Kind::Link && self.keeps_links {
            return Some(Found::Link(key, meta));
        }
        if meta.kind == Kind::Link {
            let full = self.full(&key).ok()?;
            match self.store.stat(&full).await {
                Ok(target) if target.kind == Kind::File => meta = target,
                _ => return Some(Found::Other(key, Kind::Link)),
            }
        }
        if meta.kind == Kind::File && !self.filter.bounds.take(&meta) {
            return None;
        }
        Some(match meta.kind {
            Kind::Dir => {
                self.next = Some(key.clone());
                Found::Dir(key, meta)
            }
            Kind::File => Found::File(key, meta),
            kind => Found::Other(key, kind),
        })
    }

    fn full(&self, key: &Key) -> Result<Key, Error> {
        let error = |error: crate::key::KeyError| Error::Store {
            name: self.store.name(),
            reason: error.to_string(),
            sort: crate::Sort::Request,
        };
        self.top.beneath(key).map_err(error)
    }
}

/// Reads the directory `key`, which is `full` in `store`, and again where that fails in a way that may pass.
async fn read_again(store: &dyn Store, key: &Key, full: &Key, retry: Retry, tell: &Tell) -> Result<Read, Error> {
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

/// Reads the entries of `full`. What was listed before an error that cannot pass is given all the same, and then the error.
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

/// The rest of a listing that has failed: the error, once.
#[derive(Debug)]
struct Broken(Option<Error>);

impl Listing for Broken {
    fn more(&mut self) -> Fallible<'_, Vec<Entry>> {
        Box::pin(async { self.0.take().map_or(Ok(Vec::new()), Err) })
    }
}
