//! Finds the objects of a job ahead of their turn, and starts them in order.

use super::one::shown;
use super::{Event, Run};
use crate::error::{Error, ErrorKind};
use crate::key::{Key, KeyError};
use crate::plan::{Found, Walk};
use crate::store::{Kind, Meta, Store};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;

/// Most entries that are found ahead, so that totals are known early. Some twenty megabytes.
const FOUND: usize = 100_000;

/// How far ahead of its turn a directory is created at a remote destination, in entries.
const SOON: usize = 256;

impl Run<'_> {
    /// Starts a requested object. `last`: it is the last one.
    pub(super) async fn item(&mut self, from: Key, to: Key, meta: Meta, last: bool) {
        if meta.kind != Kind::Dir {
            if self.job.filter.bounds.take(&meta) {
                self.job.watcher.saw(&Event::Found { meta: &meta });
            }
            if last {
                self.job.watcher.saw(&Event::Counted);
            }
        }
        let taken = self.job.recursive || meta.kind != Kind::Dir;
        if self.job.parents
            && taken
            && let Err(error) = self.make_parents(&to).await
        {
            return self.failed(to, error);
        }
        match meta.kind {
            Kind::Device if self.job.how.length.is_some() => self.file(from, to, meta).await,
            // For a device the length is given; files are copied completely.
            kind if self.job.how.length.is_some() => {
                let name = shown(&*self.job.source, &from);
                self.failed(
                    from,
                    Error::Kind { name, is: kind.described(), expected: "a device, since a length is given" },
                );
            }
            Kind::File if !self.job.filter.bounds.take(&meta) => {}
            Kind::File => self.file(from, to, meta).await,
            Kind::Link if self.job.links => self.file(from, to, meta).await,
            Kind::Dir if self.job.recursive => self.tree(from, to, meta, last).await,
            kind => {
                let name = shown(&*self.job.source, &from);
                self.failed(from, Error::Kind { name, is: kind.described(), expected: "a file" });
            }
        }
    }

    async fn tree(&mut self, top: Key, to: Key, meta: Meta, last: bool) {
        if let Err(error) = self.make_dir(to.clone(), meta).await {
            return self.failed(to, error);
        }
        let (mut walk, mut queue) = (self.walk(&top, &to, last), VecDeque::new());
        // Another tree could have the same directories.
        let mut current = (last && self.trees.is_empty()).then(|| to.clone());
        while let Some(found) = self.next_of(&mut walk, &mut queue, &to).await {
            if self.report.stopped {
                return;
            }
            if let Ok(Found::Dir(key, _) | Found::File(key, _) | Found::Link(key, _)) = &found
                && let Ok(there) = to.beneath(key)
            {
                self.leave_dirs(&mut current, &there.parent());
            }
            match found {
                Err(error) => self.failed(top.clone(), error),
                Ok(Found::Other(key, kind)) => {
                    self.report.left += 1;
                    // A name that is too long for a key is told without its tree.
                    let key = top.beneath(&key).unwrap_or(key);
                    let leads = async { self.job.source.stat(&key).await.ok() };
                    let to_dir = kind == Kind::Link && leads.await.is_some_and(|meta| meta.kind == Kind::Dir);
                    self.job.watcher.saw(&Event::Left { key: &key, kind, to_dir });
                }
                Ok(Found::Dir(key, meta)) => {
                    let made = match to.beneath(&key) {
                        Ok(to) => self.make_dir(to.clone(), meta).await.map_err(|error| (to, error)),
                        Err(error) => Err((key, too_long(&*self.job.dest, &error))),
                    };
                    if let Err((key, error)) = made {
                        self.failed(key, error);
                    }
                }
                Ok(Found::File(key, meta)) => match top.beneath(&key).and_then(|from| Ok((from, to.beneath(&key)?))) {
                    Ok((from, to)) => self.file_of_tree(from, to, meta).await,
                    Err(error) => self.failed(key, too_long(&*self.job.dest, &error)),
                },
                Ok(Found::Link(key, meta)) => match top.beneath(&key).and_then(|from| Ok((from, to.beneath(&key)?))) {
                    Ok((from, to)) => self.file(from, to, meta).await,
                    Err(error) => self.failed(key, too_long(&*self.job.dest, &error)),
                },
            }
        }
        self.trees.push((top, to));
    }

    /// Forgets the names of the directories that the walk has left: it finishes everything below a directory before its siblings.
    /// `current` is the directory of the entry before, and becomes `dir`.
    fn leave_dirs(&mut self, current: &mut Option<Key>, dir: &Key) {
        let Some(current) = current else { return };
        let mut left = std::mem::replace(current, dir.clone());
        while dir.below(&left).is_none() {
            self.cases.leave(&left);
            left = left.parent();
        }
    }

    /// Walks through the tree `top` in a task, ahead of its turn.
    fn walk(&self, top: &Key, to: &Key, last: bool) -> mpsc::Receiver<Result<Found, Error>> {
        let job = self.job;
        let mut walk =
            Walk::new(job.source.clone(), top.clone(), job.filter.clone()).keeping_links(job.links).with_modes();
        if job.source.is_far() {
            let (watcher, to) = (job.watcher.clone(), to.clone());
            let tell = move |dir: &Key, error: &Error, wait: Duration| {
                let to = to.beneath(dir).unwrap_or_else(|_| to.clone());
                watcher.saw(&Event::Again { to: &to, error, wait });
            };
            walk = walk.listing_ahead(job.retry, Arc::new(tell));
        }
        let ((sender, receiver), watcher) = (mpsc::channel(FOUND), job.watcher.clone());
        tokio::spawn(async move {
            while let Some(found) = walk.next().await {
                if let Ok(Found::File(_, meta) | Found::Link(_, meta)) = &found {
                    watcher.saw(&Event::Found { meta });
                }
                // The job has stopped.
                if sender.send(found).await.is_err() {
                    return;
                }
            }
            if last {
                watcher.saw(&Event::Counted);
            }
        });
        receiver
    }

    /// The next entry of a walk. Directories that come soon start to be created.
    async fn next_of(
        &mut self,
        walk: &mut mpsc::Receiver<Result<Found, Error>>,
        queue: &mut VecDeque<Result<Found, Error>>,
        to: &Key,
    ) -> Option<Result<Found, Error>> {
        if queue.is_empty() && walk.is_empty() {
            self.begin_rest().await;
        }
        let first = if queue.is_empty() { Some(walk.recv().await?) } else { None };
        let mut next = first.or_else(|| walk.try_recv().ok());
        while let Some(found) = next {
            // A directory starts before its content, which waits for it.
            if let Ok(Found::Dir(key, meta)) = &found
                && let Ok(dir) = to.beneath(key)
            {
                self.begin_dir(dir, meta);
            }
            queue.push_back(found);
            next = if queue.len() < SOON { walk.try_recv().ok() } else { None };
        }
        queue.pop_front()
    }
}

fn too_long(store: &dyn Store, error: &KeyError) -> Error {
    Error::Store { name: store.name(), reason: error.to_string(), kind: ErrorKind::Request }
}
