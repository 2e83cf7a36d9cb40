//! Quotas: how much a user may have beneath his root.
//!
//! What counts is what `find` sees there: every file and directory below the root is one file, and the bytes are the lengths of the
//! regular files, whoever put them there; the drafts of transfers that were cut and can go on are among them. It is counted when
//! somebody first wants to write, again after ten minutes, and after whatever cannot be told by adding and subtracting; between, what
//! this server does is added and subtracted. A tree that takes long to count is counted at most for a tenth of the time. What is being received has its room from the beginning, if its length was announced,
//! and otherwise as it arrives; a file that is being replaced counts until it is.
//!
//! The tree is counted by the process itself, as a file system counts: a user could hide from himself what he has in directories that
//! nobody may read. All else is done as the user.
//!
//! A file system's own quotas need no counting and hold for everybody; these are for where there are none.

mod fill;

use fill::{Filling, Growing};
use phoebus_files::key::Key;
use phoebus_files::local::Local;
use phoebus_files::store::{Attributes, Begun, Draft, Fallible, Listing, Meta, Object, Spec, Store, Time};
use phoebus_files::sum::Algorithm;
use phoebus_files::{Error, Sort, draft_of};
use phoebus_proto::units::ByteSize;
use serde::Deserialize;
use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// For how long a count holds, if nothing but this server changes anything.
const HOLDS: Duration = Duration::from_secs(600);

/// For how many times as long as counting took a count holds, whatever may have changed: counting costs a disk a tenth of its time at
/// most.
const REST: u32 = 9;

/// What takes less than this is counted whenever it helps.
const QUICK: Duration = Duration::from_millis(100);

/// How much a user may have. Without either of the two there is no bound to it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Quota {
    /// The lengths of his files, all together.
    pub bytes: Option<ByteSize>,
    /// How many files and directories they are.
    pub files: Option<u64>,
}

/// A store of which no more is filled than the quota says.
#[derive(Debug, Clone)]
pub(super) struct Limited(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    store: Local,
    root: PathBuf,
    quota: Quota,
    used: Arc<Mutex<Used>>,
    /// Held by whoever counts.
    counting: Arc<tokio::sync::Mutex<()>>,
}

#[derive(Debug, Default)]
struct Used {
    bytes: u64,
    files: u64,
    /// What transfers in progress have room for.
    claimed: (u64, u64),
    /// Their drafts, which are not counted beside that.
    drafts: HashSet<PathBuf>,
    /// When they were last counted, and how long that took.
    counted: Option<(Instant, Duration)>,
    /// Whether something has changed since that was not added or subtracted.
    stale: bool,
}

impl Used {
    /// Whether the last count still holds.
    fn holds(&self, now: Instant) -> bool {
        self.counted.is_some_and(|(at, took)| {
            let age = now.saturating_duration_since(at);
            let rests = took >= QUICK && age < took.saturating_mul(REST);
            rests || (age < HOLDS && !self.stale)
        })
    }
}

/// Room that a transfer has.
#[derive(Debug)]
struct Claim {
    of: Arc<Inner>,
    size: Mutex<(u64, u64)>,
    draft: Mutex<Option<PathBuf>>,
    /// Whether what it was for has been added to what is used.
    settled: AtomicBool,
}

impl Limited {
    /// One with this `quota`; what is counted is shared with the one `before`, if it is of the same directory.
    pub(super) fn new(store: Local, root: &Path, quota: Quota, before: Option<&Self>) -> Self {
        let before = before.filter(|before| before.0.root == root);
        let (used, counting) =
            before.map_or_else(Default::default, |before| (before.0.used.clone(), before.0.counting.clone()));
        Self(Arc::new(Inner { store, root: root.to_owned(), quota, used, counting }))
    }

    /// The same over `store`, which is the same directory.
    pub(super) fn of(&self, store: Local) -> Self {
        let Inner { root, quota, used, counting, .. } = &*self.0;
        let (root, quota, used, counting) = (root.clone(), *quota, used.clone(), counting.clone());
        Self(Arc::new(Inner { store, root, quota, used, counting }))
    }

    /// Whether so many bytes more have room.
    pub(super) async fn room(&self, bytes: u64) -> Result<(), Error> {
        self.0.count().await?;
        self.0.claim(bytes, 0, None).map(drop)
    }
}

impl Inner {
    fn used(&self) -> MutexGuard<'_, Used> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn path(&self, key: &Key) -> PathBuf {
        self.root.join(OsStr::from_bytes(key.as_bytes()))
    }

    /// Counts, unless the last count still holds.
    async fn count(&self) -> Result<(), Error> {
        let _alone = self.counting.lock().await;
        if self.used().holds(Instant::now()) {
            return Ok(());
        }
        let (root, drafts) = (self.root.clone(), self.used().drafts.clone());
        let begun = Instant::now();
        let counted = tokio::task::spawn_blocking(move || counted(&root, &drafts)).await;
        let counted = counted.unwrap_or_else(|_| Err(io::ErrorKind::Interrupted.into()));
        let error = |source| Error::Io { name: "/".to_owned(), act: "count what is in", source };
        let (bytes, files) = counted.map_err(error)?;
        let mut used = self.used();
        (used.bytes, used.files, used.stale) = (bytes, files, false);
        used.counted = Some((Instant::now(), begun.elapsed()));
        Ok(())
    }

    /// Room for so much more.
    fn claim(self: &Arc<Self>, bytes: u64, files: u64, draft: Option<PathBuf>) -> Result<Claim, Error> {
        let draft = Mutex::new(draft);
        let claim = Claim { of: self.clone(), size: Mutex::default(), draft, settled: AtomicBool::default() };
        claim.grow(bytes, files)?;
        Ok(claim)
    }

    fn over(&self, what: &str, most: String) -> Error {
        let reason = format!("the quota of {most} for {what} is used up");
        Error::Store { name: "quota".to_owned(), reason, sort: Sort::NoSpace }
    }

    /// What is under a name itself, as the count has it.
    async fn there(&self, key: &Key) -> Option<u64> {
        // Where it cannot be looked at nothing can be done to it either.
        let meta = self.store.itself(key).await.ok()??;
        Some(meta.size.unwrap_or(0))
    }

    /// Has `removal` remove the file `key`, and counts it no more.
    async fn take_away(&self, key: &Key, removal: Fallible<'_, ()>) -> Result<(), Error> {
        let bytes = self.there(key).await.unwrap_or(0);
        removal.await?;
        let mut used = self.used();
        (used.bytes, used.files) = (used.bytes.saturating_sub(bytes), used.files.saturating_sub(1));
        Ok(())
    }

    /// What is under the name of a draft that a transfer goes on with counts with that from here on.
    async fn taken_over(&self, place: &Key) {
        if let Some(bytes) = self.there(place).await {
            let mut used = self.used();
            (used.bytes, used.files) = (used.bytes.saturating_sub(bytes), used.files.saturating_sub(1));
        }
    }
}

impl Claim {
    fn size(&self) -> MutexGuard<'_, (u64, u64)> {
        self.size.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says that what it is for is in the file `place`.
    fn is_in(&self, place: Option<PathBuf>) {
        let mut draft = self.draft.lock().unwrap_or_else(PoisonError::into_inner);
        if *draft == place {
            return;
        }
        let mut used = self.of.used();
        if let Some(old) = draft.take() {
            used.drafts.remove(&old);
        }
        used.drafts.extend(place.clone());
        *draft = place;
    }

    /// Takes so much more, if there is room.
    fn grow(&self, bytes: u64, files: u64) -> Result<(), Error> {
        let mut size = self.size();
        let mut used = self.of.used();
        let quota = self.of.quota;
        let wanted = used.bytes.saturating_add(used.claimed.0).saturating_add(bytes);
        if let Some(most) = quota.bytes.filter(|most| bytes > 0 && wanted > most.0) {
            return Err(self.of.over("bytes", most.to_string()));
        }
        let wanted = used.files.saturating_add(used.claimed.1).saturating_add(files);
        if let Some(most) = quota.files.filter(|most| files > 0 && wanted > *most) {
            return Err(self.of.over("files", most.to_string()));
        }
        used.claimed = (used.claimed.0 + bytes, used.claimed.1 + files);
        *size = (size.0 + bytes, size.1 + files);
        Ok(())
    }

    /// Takes as much as makes it `bytes` long.
    fn reach(&self, bytes: u64) -> Result<(), Error> {
        let has = self.size().0;
        if bytes > has { self.grow(bytes - has, 0) } else { Ok(()) }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let (bytes, files) = *self.size();
        let of = self.of.clone();
        let mut used = of.used();
        used.claimed = (used.claimed.0.saturating_sub(bytes), used.claimed.1.saturating_sub(files));
        if let Some(draft) = self.draft.get_mut().unwrap_or_else(PoisonError::into_inner) {
            used.drafts.remove(draft);
            if !*self.settled.get_mut() && bytes > 0 {
                // What is left of it, if anything is, counts.
                used.stale = true;
            }
        }
    }
}

/// The bytes and files below `root`, but for these drafts.
fn counted(root: &Path, but: &HashSet<PathBuf>) -> io::Result<(u64, u64)> {
    let (mut bytes, mut files) = (0u64, 0u64);
    let mut below = vec![root.to_owned()];
    while let Some(dir) = below.pop() {
        let entries = match fs::read_dir(&dir) {
            // It was removed meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound && dir != root => continue,
            entries => entries?,
        };
        for entry in entries {
            let entry = entry?;
            let meta = match entry.metadata() {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                meta => meta?,
            };
            let path = entry.path();
            if but.contains(&path) {
                continue;
            }
            files += 1;
            if meta.is_dir() {
                below.push(path);
            } else if meta.is_file() {
                bytes += meta.len();
            }
        }
    }
    Ok((bytes, files))
}

impl Store for Limited {
    fn name(&self) -> String {
        self.0.store.name()
    }

    fn is_far(&self) -> bool {
        self.0.store.is_far()
    }

    fn algorithms(&self) -> &[Algorithm] {
        self.0.store.algorithms()
    }

    fn sets_times(&self) -> bool {
        self.0.store.sets_times()
    }

    fn stat<'a>(&'a self, key: &'a Key) -> Fallible<'a, Meta> {
        self.0.store.stat(key)
    }

    fn list<'a>(&'a self, key: &'a Key) -> Fallible<'a, Box<dyn Listing>> {
        self.0.store.list(key)
    }

    fn list_all<'a>(&'a self, key: &'a Key) -> Fallible<'a, Box<dyn Listing>> {
        self.0.store.list_all(key)
    }

    fn open<'a>(&'a self, key: &'a Key) -> Fallible<'a, Arc<dyn Object>> {
        self.0.store.open(key)
    }

    fn create<'a>(&'a self, key: &'a Key, spec: Spec) -> Fallible<'a, Begun> {
        Box::pin(async move {
            let key = self.0.store.resolve(key).await?;
            let place = draft_of(&key).ok();
            let draft = place.as_ref().map(|draft| self.0.path(draft));
            if let (Some(place), Some(draft)) = (&place, &draft)
                && self.0.used().drafts.insert(draft.clone())
            {
                // What an earlier attempt left is counted with this one.
                self.0.taken_over(place).await;
            }
            let counted = self.0.count().await;
            let claim = self.0.claim(spec.size.unwrap_or(0), 1, draft);
            counted?;
            let claim = Arc::new(claim?);
            Ok(match self.0.store.create(&key, spec).await? {
                Begun::Draft(draft) => {
                    let at = draft.place();
                    if let Some(at) = at.as_ref().filter(|at| place.as_ref() != Some(at) && !draft.kept().is_empty()) {
                        self.0.taken_over(at).await;
                    }
                    claim.is_in(at.map(|at| self.0.path(&at)));
                    Begun::Draft(Arc::new(Filling { draft, claim, key }))
                }
                Begun::Done => Begun::Done,
            })
        })
    }

    fn edit<'a>(&'a self, key: &'a Key) -> Fallible<'a, Arc<dyn Draft>> {
        Box::pin(async move {
            self.0.count().await?;
            let there = self.0.there(key).await;
            let claim = self.0.claim(0, u64::from(there.is_none()), None)?;
            let draft = self.0.store.edit(key).await?;
            // What it has already is counted already.
            let had = there.unwrap_or(0);
            Ok(Arc::new(Growing { draft, had, claim: Arc::new(claim) }) as _)
        })
    }

    fn make_dir<'a>(&'a self, key: &'a Key) -> Fallible<'a, ()> {
        Box::pin(async move {
            self.0.count().await?;
            let _claim = self.0.claim(0, 1, None)?;
            self.0.store.make_dir(key).await?;
            self.0.used().files += 1;
            Ok(())
        })
    }

    fn remove<'a>(&'a self, key: &'a Key) -> Fallible<'a, ()> {
        Box::pin(self.0.take_away(key, self.0.store.remove(key)))
    }

    fn discard<'a>(&'a self, key: &'a Key, before: Option<Time>) -> Fallible<'a, ()> {
        Box::pin(self.0.take_away(key, self.0.store.discard(key, before)))
    }

    fn remove_dir<'a>(&'a self, key: &'a Key) -> Fallible<'a, ()> {
        Box::pin(async move {
            self.0.store.remove_dir(key).await?;
            let mut used = self.0.used();
            used.files = used.files.saturating_sub(1);
            Ok(())
        })
    }

    fn rename<'a>(&'a self, from: &'a Key, to: &'a Key, replace: bool) -> Fallible<'a, ()> {
        Box::pin(async move {
            let replaced = self.0.there(to).await;
            self.0.store.rename(from, to, replace).await?;
            if let Some(bytes) = replaced.filter(|_| from != to) {
                let mut used = self.0.used();
                (used.bytes, used.files) = (used.bytes.saturating_sub(bytes), used.files.saturating_sub(1));
            }
            Ok(())
        })
    }

    fn set<'a>(&'a self, key: &'a Key, attributes: Attributes) -> Fallible<'a, ()> {
        self.0.store.set(key, attributes)
    }

    fn settle(&self) -> Fallible<'_, ()> {
        self.0.store.settle()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use phoebus_files::Links;
    use phoebus_files::block::Block;

    fn key(text: &str) -> Key {
        Key::parse(text).unwrap()
    }

    async fn put(store: &Limited, name: &str, len: usize, size: Option<u64>) -> Result<(), String> {
        let text = |error: Error| error.to_string();
        let spec = Spec { size, replace: true, ..Spec::default() };
        let Begun::Draft(draft) = store.create(&key(name), spec).await.map_err(text)? else {
            panic!("{name} is there")
        };
        for at in (0..len).step_by(10) {
            let block = Block::new(at as u64, vec![7; 10.min(len - at)]);
            if let Err(error) = draft.write(block).await {
                draft.abandon(true).await;
                return Err(text(error));
            }
        }
        draft.publish(len as u64).await.map_err(text)
    }

    #[tokio::test]
    async fn no_more_is_filled_than_there_is_room_for() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("there"), [0; 40]).unwrap();
        let local = Local::new(dir.path(), Links::Beneath).unwrap();
        let store = Limited::new(local, dir.path(), Quota { bytes: Some(ByteSize(100)), files: Some(4) }, None);
        let used = || {
            let used = store.0.used();
            (used.bytes, used.files, used.claimed)
        };
        put(&store, "a", 30, Some(30)).await.unwrap();
        assert_eq!(used(), (70, 2, (0, 0)));
        // Neither what is announced nor what comes fits.
        for size in [Some(31), None] {
            let error = put(&store, "b", 31, size).await.unwrap_err();
            assert!(error.contains("quota of 100"), "{error}");
            assert!(!dir.path().join("b").exists());
        }
        assert_eq!(used().2, (0, 0));
        store.room(30).await.unwrap();
        assert!(store.room(31).await.is_err());
        // What is replaced counts until it is.
        put(&store, "a", 25, Some(25)).await.unwrap();
        assert_eq!(used(), (65, 2, (0, 0)));
        // What may have changed is counted again, but for what takes long.
        fs::write(dir.path().join("unseen"), [0; 3]).unwrap();
        let rests = Some((Instant::now(), Duration::from_secs(3600)));
        (store.0.used().counted, store.0.used().stale) = (rests, true);
        store.room(0).await.unwrap();
        assert_eq!(used().0, 65);
        store.0.used().counted = Some((Instant::now(), Duration::ZERO));
        store.room(0).await.unwrap();
        assert_eq!(used().0, 68);
        fs::remove_file(dir.path().join("unseen")).unwrap();
        store.0.used().stale = true;
        store.room(0).await.unwrap();
        // What goes makes room, and a file that grows takes it.
        store.remove(&key("there")).await.unwrap();
        let draft = store.edit(&key("a")).await.unwrap();
        draft.write(Block::new(20, vec![1; 80])).await.unwrap();
        assert!(draft.write(Block::new(100, vec![1; 1])).await.is_err());
        drop(draft);
        assert_eq!(used(), (100, 1, (0, 0)));
        for name in ["d", "d/e", "f"] {
            store.make_dir(&key(name)).await.unwrap();
        }
        assert!(store.make_dir(&key("g")).await.unwrap_err().to_string().contains("quota of 4 for files"));
        assert!(put(&store, "g", 0, Some(0)).await.is_err());
        store.remove_dir(&key("f")).await.unwrap();
        store.rename(&key("a"), &key("d/e/a"), true).await.unwrap();
        put(&store, "g", 0, Some(0)).await.unwrap();
        let (bytes, files, _) = used();
        assert_eq!(counted(dir.path(), &HashSet::new()).unwrap(), (bytes, files));
    }
}
