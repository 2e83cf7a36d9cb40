//! Checks that a remote destination keeps names unaltered. Servers may fold case, shorten names or replace characters;
//! two files may then have become one. Each directory is listed once ([`look`]), after the last object was carried to
//! it: when the walk has left its tree, or at the end of the job.

use super::arrived::Arrived;
use super::look::{CheckedNames, NameCheck};
use super::{Event, Run};
use crate::key::Key;
use crate::spawned::Spawned;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use tokio::sync::Semaphore;

/// Directories that are listed at a time.
const AT_ONCE: usize = 4;

/// Objects carried to each directory.
#[derive(Debug)]
pub(super) struct ArrivedObjects {
    dirs: HashMap<Key, Arrived>,
    /// Destination of the latest object of a tree.
    current: Option<Key>,
    looks: VecDeque<(Key, Spawned<CheckedNames>)>,
    places: Arc<Semaphore>,
    /// Whether the last look failed with a temporary error, after all retries.
    weary: Arc<AtomicBool>,
}

impl Default for ArrivedObjects {
    fn default() -> Self {
        let (dirs, current, looks, weary) = Default::default();
        Self { dirs, current, looks, places: Arc::new(Semaphore::new(AT_ONCE)), weary }
    }
}

impl ArrivedObjects {
    /// Records that an object starts to be carried to `to`, alone or in a tree. Returns directories that get nothing
    /// more of the tree.
    fn begin(&mut self, to: &Key, alone: bool) -> Vec<Key> {
        let (dir, mut over) = (to.parent(), Vec::new());
        let came = self.dirs.entry(dir.clone()).or_default();
        came.under_way += 1;
        came.alone |= alone;
        came.of_tree |= !alone;
        if alone {
            return over;
        }
        // A walk finishes everything below a directory before its siblings.
        let mut left = self.current.replace(dir.clone()).unwrap_or_else(|| dir.clone());
        while dir.below(&left).is_none() {
            if self.is_over(&left) {
                over.push(left.clone());
            }
            left = left.parent();
        }
        over
    }

    /// Records that the object at `to` is complete with `bytes`, or was not carried. Returns its directory if it gets
    /// nothing more.
    fn end(&mut self, to: &Key, carried: Option<u64>) -> Option<Key> {
        let dir = to.parent();
        let came = self.dirs.get_mut(&dir)?;
        came.under_way = came.under_way.saturating_sub(1);
        if let Some(size) = carried {
            came.add(to.name(), size);
        }
        self.is_over(&dir).then_some(dir)
    }

    fn is_over(&self, dir: &Key) -> bool {
        let stays = self.current.as_ref().is_some_and(|current| current.below(dir).is_some());
        !stays && self.dirs.get(dir).is_some_and(|came| came.under_way == 0 && !came.alone)
    }
}

impl Run<'_> {
    /// Records that an object starts to be carried to `to`, alone or in a tree.
    pub(super) async fn begins(&mut self, to: &Key, alone: bool) {
        if self.job.dest.is_far() && !self.job.dest.keeps_names() {
            for dir in self.kept.begin(to, alone) {
                self.look_for_names(dir);
            }
        }
    }

    /// Records that it is complete, or that nothing was carried.
    pub(super) async fn ends(&mut self, to: &Key, carried: Option<u64>) {
        if let Some(dir) = self.kept.end(to, carried) {
            self.look_for_names(dir);
        }
        while self.kept.looks.front().is_some_and(|(_, look)| look.is_over()) {
            self.looked().await;
        }
    }

    /// Checks all unchecked names, and waits for the results.
    pub(super) async fn look_for_all_names(&mut self) {
        let mut dirs: Vec<Key> = self.kept.dirs.keys().cloned().collect();
        dirs.sort();
        for dir in dirs {
            self.look_for_names(dir);
        }
        let stop = self.job.how.stop.clone();
        loop {
            tokio::select! {
                more = self.looked() => if !more { return },
                () = stop.asked() => return self.leave_names(),
            }
        }
    }

    /// Stops checking, and reports the unchecked directories.
    pub(super) fn leave_names(&mut self) {
        let dirs = std::mem::take(&mut self.kept.dirs).into_iter().filter(|(_, came)| came.len() > 0);
        for dir in dirs.map(|(dir, _)| dir).chain(self.kept.looks.drain(..).map(|(dir, _)| dir)) {
            self.job.watcher.saw(&Event::Unlisted { dir: &dir, reason: "it was interrupted" });
        }
    }

    fn look_for_names(&mut self, dir: Key) {
        let Some(came) = self.kept.dirs.remove(&dir).filter(|came| came.len() > 0) else { return };
        let (job, weary, places) = (self.job.clone(), self.kept.weary.clone(), self.kept.places.clone());
        let look = NameCheck { job, dir: dir.clone(), weary };
        let look = async move {
            let _place = places.acquire().await;
            look.run(&came).await
        };
        self.kept.looks.push_back((dir, Spawned::new(look)));
    }

    /// Takes the result of the first look. False if there is none.
    async fn looked(&mut self) -> bool {
        let Some((_, look)) = self.kept.looks.front_mut() else { return false };
        let failed = |error: tokio::task::JoinError| CheckedNames {
            unlisted: Some(error.to_string()),
            ..CheckedNames::default()
        };
        // It stays in the list until it has ended, since the wait may be dropped.
        let looked = look.ended().await.unwrap_or_else(failed);
        let Some((dir, _)) = self.kept.looks.pop_front() else { return false };
        for (key, error) in looked.missing {
            self.failed(key, error);
        }
        for key in looked.gone {
            self.job.watcher.saw(&Event::Gone { key: &key });
            self.report.gone += 1;
        }
        if let Some(reason) = looked.unlisted {
            self.job.watcher.saw(&Event::Unlisted { dir: &dir, reason: &reason });
            self.report.unlisted.get_or_insert(reason);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(path: &str) -> Key {
        Key::parse(path).unwrap()
    }

    #[test]
    fn directory_is_checked_once_after_its_tree_is_done() {
        let (mut kept, none) = (ArrivedObjects::default(), Vec::<Key>::new());
        for path in ["d/a", "d/sub/x", "d/b", "d/sub2/deep/x", "d/c"] {
            let left = match path {
                "d/b" => vec![key("d/sub")],
                "d/c" => vec![key("d/sub2/deep")],
                _ => none.clone(),
            };
            assert_eq!(kept.begin(&key(path), false), left, "{path}");
            assert_eq!(kept.end(&key(path), Some(1)), None, "{path}");
            left.iter().for_each(|dir| drop(kept.dirs.remove(dir)));
        }
        assert_eq!(kept.begin(&key("d/late"), false), none);
        assert_eq!(kept.begin(&key("e/x"), false), none);
        // What was under way is there.
        assert_eq!(kept.end(&key("d/late"), None), Some(key("d")));
        let names: Vec<_> = kept.dirs[&key("d")].all().collect();
        assert_eq!(names, [(&b"a"[..], 1), (b"b", 1), (b"c", 1)]);
    }

    #[test]
    fn single_names_are_checked_at_the_end() {
        let mut kept = ArrivedObjects::default();
        for path in ["a/x", "b/x", "a/y"] {
            assert_eq!((kept.begin(&key(path), true), kept.end(&key(path), Some(0))), (Vec::new(), None), "{path}");
        }
        assert_eq!((kept.dirs[&key("a")].len(), kept.dirs[&key("b")].len()), (2, 1));
    }
}
