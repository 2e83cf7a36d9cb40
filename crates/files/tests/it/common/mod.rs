//! A remote store: a directory that behaves as over a network, with injected faults.

#![allow(dead_code, reason = "each test is a crate that uses some of it")]

use phoebus_files::block::Block;
use phoebus_files::key::Key;
use phoebus_files::local::Local;
use phoebus_files::range::{Extent, Ranges};
use phoebus_files::store::*;
use phoebus_files::sum::{Algorithm, Sum};
use phoebus_files::{Error, ErrorKind, Links};
use std::collections::HashSet;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex};

pub fn key(path: &str) -> Key {
    Key::parse(path).unwrap()
}

/// Bytes that do not repeat where blocks do.
pub fn content(len: usize, seed: u64) -> Vec<u8> {
    (0..len as u64).map(|i| (i.wrapping_add(seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
}

pub fn local(dir: &Path) -> Local {
    Local::new(dir, Links::Beneath).unwrap().with_journal_from(1)
}

/// A directory over a network that returns blocks in an order and of sizes of its own.
#[derive(Debug, Clone)]
pub struct Far {
    pub inner: Local,
    pub algorithms: Vec<Algorithm>,
    pub faults: Arc<Faults>,
}

/// Faults, each after so many blocks. Negative numbers mean never.
#[derive(Debug)]
pub struct Faults {
    pub fail: AtomicI64,
    pub damage: AtomicI64,
    pub stall: AtomicI64,
    /// Listings end after one entry: 1 with an error, 2 as if they were complete.
    pub cut_listings: AtomicI64,
    /// So many listings and creations of directories fail with a passing error.
    pub passing: AtomicI64,
    /// The number of concurrent listings, and its maximum.
    pub listing: AtomicI64,
    pub most_listing: AtomicI64,
    /// 1: names are found whatever their case, and are stored in lower case. 2: é is found in composed and decomposed
    /// form, and is listed decomposed.
    pub folds: AtomicI64,
    /// So many attempts to set attributes fail with a passing error.
    pub unset: AtomicI64,
    /// The directories that were made, each with the mode of its parent.
    pub made: Mutex<Vec<(Key, Option<u32>)>>,
    /// The number of lookups.
    pub stats: AtomicI64,
    /// Whether the server may alter names, so that they have to be checked, and how many listings for it fail with a
    /// passing error.
    pub alters: AtomicI64,
    pub unlisted: AtomicI64,
    /// How many times nothing can be made durable.
    pub unsettled: AtomicI64,
}

impl Faults {
    /// The name under which `key` is stored.
    fn called(&self, key: &Key) -> Key {
        match self.folds.load(Ordering::Relaxed) {
            0 => key.clone(),
            2 => Key::parse(key.to_string().replace('\u{e9}', "e\u{301}")).unwrap(),
            _ => Key::parse(key.as_bytes().to_ascii_lowercase()).unwrap(),
        }
    }

    fn passes(&self) -> Result<(), Error> {
        Self::passes_for(&self.passing)
    }

    fn passes_for(times: &AtomicI64) -> Result<(), Error> {
        let error = || Error::Store { name: "far".into(), reason: "busy".into(), kind: ErrorKind::Passing };
        let left = times.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| (n > 0).then(|| n - 1));
        if left.is_ok() { Err(error()) } else { Ok(()) }
    }
}

#[derive(Debug)]
struct Cut {
    inner: Box<dyn Listing>,
    silent: bool,
    given: bool,
}

impl Listing for Cut {
    fn more(&mut self) -> Fallible<'_, Vec<Entry>> {
        Box::pin(async move {
            if std::mem::replace(&mut self.given, true) {
                let error = Error::Store { name: "far".into(), reason: "cut".into(), kind: ErrorKind::Other };
                return if self.silent { Ok(Vec::new()) } else { Err(error) };
            }
            let mut page = self.inner.more().await?;
            page.truncate(1);
            Ok(page)
        })
    }
}

impl Far {
    pub fn new(dir: &Path) -> Self {
        let faults = Faults {
            fail: (-1).into(),
            damage: (-1).into(),
            stall: (-1).into(),
            cut_listings: 0.into(),
            passing: 0.into(),
            listing: 0.into(),
            most_listing: 0.into(),
            folds: 0.into(),
            unset: 0.into(),
            made: Mutex::default(),
            stats: 0.into(),
            alters: 0.into(),
            unlisted: 0.into(),
            unsettled: 0.into(),
        };
        Self { inner: local(dir), algorithms: vec![Algorithm::Adler32, Algorithm::Md5], faults: Arc::new(faults) }
    }
}

/// Whether the fault is due.
fn comes(fault: &AtomicI64) -> bool {
    fault.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| Some(if n < 0 { n } else { n - 1 })) == Ok(0)
}

impl Store for Far {
    fn name(&self) -> String {
        "far://test".into()
    }
    fn is_far(&self) -> bool {
        true
    }
    fn algorithms(&self) -> &[Algorithm] {
        &self.algorithms
    }
    fn stat<'a>(&'a self, key: &'a Key) -> Fallible<'a, Meta> {
        self.faults.stats.fetch_add(1, Ordering::Relaxed);
        Box::pin(async { self.inner.stat(&self.faults.called(key)).await })
    }
    fn stat_link<'a>(&'a self, key: &'a Key) -> Fallible<'a, Meta> {
        self.faults.stats.fetch_add(1, Ordering::Relaxed);
        Box::pin(async { self.inner.stat_link(&self.faults.called(key)).await })
    }
    fn has_links(&self) -> bool {
        true
    }
    fn read_link<'a>(&'a self, key: &'a Key) -> Fallible<'a, Vec<u8>> {
        Box::pin(async { self.inner.read_link(&self.faults.called(key)).await })
    }
    fn make_link<'a>(
        &'a self,
        key: &'a Key,
        target: &'a [u8],
        modified: Option<Time>,
        replace: bool,
    ) -> Fallible<'a, ()> {
        Box::pin(async move { self.inner.make_link(&self.faults.called(key), target, modified, replace).await })
    }
    fn keeps_names(&self) -> bool {
        self.faults.alters.load(Ordering::Relaxed) == 0
    }
    fn kept_names<'a>(&'a self, key: &'a Key) -> Fallible<'a, Option<HashSet<Vec<u8>>>> {
        Box::pin(async move {
            Faults::passes_for(&self.faults.unlisted)?;
            Ok(Some(self.inner.list(key).await?.more().await?.into_iter().map(|entry| entry.name).collect()))
        })
    }
    fn list<'a>(&'a self, key: &'a Key) -> Fallible<'a, Box<dyn Listing>> {
        Box::pin(async move {
            self.faults.passes()?;
            let now = self.faults.listing.fetch_add(1, Ordering::Relaxed) + 1;
            self.faults.most_listing.fetch_max(now, Ordering::Relaxed);
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            self.faults.listing.fetch_sub(1, Ordering::Relaxed);
            let inner = self.inner.list(key).await?;
            Ok(match self.faults.cut_listings.load(Ordering::Relaxed) {
                0 => inner,
                cut => Box::new(Cut { inner, silent: cut == 2, given: false }),
            })
        })
    }
    fn open<'a>(&'a self, key: &'a Key) -> Fallible<'a, Arc<dyn Object>> {
        Box::pin(async move {
            let inner = self.inner.open(key).await?;
            Ok(Arc::new(FarObject { inner, faults: self.faults.clone() }) as _)
        })
    }
    fn create<'a>(&'a self, key: &'a Key, spec: Spec) -> Fallible<'a, Begun> {
        Box::pin(async { self.inner.create(&self.faults.called(key), spec).await })
    }
    fn edit<'a>(&'a self, key: &'a Key) -> Fallible<'a, Arc<dyn Draft>> {
        self.inner.edit(key)
    }
    fn append<'a>(&'a self, key: &'a Key) -> Fallible<'a, (Arc<dyn Draft>, u64)> {
        self.inner.append(key)
    }
    fn make_dir<'a>(&'a self, key: &'a Key) -> Fallible<'a, ()> {
        Box::pin(async move {
            self.faults.passes()?;
            let above = self.inner.stat(&key.parent()).await.ok().and_then(|above| above.mode);
            self.faults.made.lock().unwrap().push((key.clone(), above));
            self.inner.make_dir(key).await
        })
    }
    fn remove<'a>(&'a self, key: &'a Key) -> Fallible<'a, ()> {
        self.inner.remove(key)
    }
    fn remove_dir<'a>(&'a self, key: &'a Key) -> Fallible<'a, ()> {
        self.inner.remove_dir(key)
    }
    fn rename<'a>(&'a self, from: &'a Key, to: &'a Key, replace: bool) -> Fallible<'a, ()> {
        self.inner.rename(from, to, replace)
    }
    fn set<'a>(&'a self, key: &'a Key, attributes: Attributes) -> Fallible<'a, ()> {
        Box::pin(async move {
            Faults::passes_for(&self.faults.unset)?;
            self.inner.set(key, attributes).await
        })
    }
    fn settle(&self) -> Fallible<'_, ()> {
        Box::pin(async move {
            Faults::passes_for(&self.faults.unsettled)?;
            self.inner.settle().await
        })
    }
}

#[derive(Debug)]
struct FarObject {
    inner: Arc<dyn Object>,
    faults: Arc<Faults>,
}

impl Object for FarObject {
    fn name(&self) -> String {
        self.inner.name()
    }
    fn meta(&self) -> &Meta {
        self.inner.meta()
    }
    fn flow(&self, wanted: Ranges, shape: Shape) -> Fallible<'_, Arc<dyn Flow>> {
        Box::pin(async move {
            // As parallel streams deliver them: out of order, of other sizes than the pool's, and some of them twice.
            let mut parts: Vec<Extent> = wanted.iter().flat_map(|e| e.blocks(10_007)).collect();
            parts.sort_by_key(|part| part.start().wrapping_mul(0x9e37_79b9_7f4a_7c15));
            parts.extend(parts.iter().step_by(7).copied().collect::<Vec<_>>());
            let _ = shape;
            Ok(Arc::new(FarFlow {
                inner: self.inner.clone(),
                faults: self.faults.clone(),
                is_cut: AtomicBool::new(false),
                parts: tokio::sync::Mutex::new(parts.into_iter()),
            }) as _)
        })
    }
    fn read<'a>(&'a self, wanted: &'a [Extent]) -> Fallible<'a, Vec<bytes::Bytes>> {
        self.inner.read(wanted)
    }
    fn checksum(&self, algorithm: Algorithm, extent: Extent) -> Fallible<'_, Sum> {
        self.inner.checksum(algorithm, extent)
    }
    fn unchanged(&self) -> Fallible<'_, ()> {
        self.inner.unchanged()
    }
}

#[derive(Debug)]
struct FarFlow {
    inner: Arc<dyn Object>,
    faults: Arc<Faults>,
    is_cut: AtomicBool,
    parts: tokio::sync::Mutex<std::vec::IntoIter<Extent>>,
}

impl Flow for FarFlow {
    fn next(&self) -> Fallible<'_, Option<Block>> {
        Box::pin(async move {
            let mut parts = self.parts.lock().await;
            // A connection that was cut stays cut for every reader.
            if self.is_cut.load(Ordering::Relaxed) || comes(&self.faults.fail) {
                self.is_cut.store(true, Ordering::Relaxed);
                let reason = "the connection was cut".into();
                return Err(Error::Store { name: self.inner.name(), reason, kind: ErrorKind::Passing });
            }
            if comes(&self.faults.stall) {
                std::future::pending::<()>().await;
            }
            let Some(part) = parts.next() else { return Ok(None) };
            let mut bytes = self.inner.read(&[part]).await?.remove(0).to_vec();
            if comes(&self.faults.damage) {
                bytes[0] ^= 1;
            }
            Ok(Some(Block::new(part.start(), bytes)))
        })
    }
}
