//! Files that are written in place: those that others may not read are their owner's alone before the first byte comes, also where they are
//! new, which servers make readable to all.

use super::draft::RemoteDraft;
use super::given::Queue;
use super::modes::Mode;
use super::store::Upload;
use phoebus_files::Error;
use phoebus_files::key::Key;
use phoebus_files::store::{Boxed, Fallible, Flow, Meta};
use phoebus_files::{block::Block, range::Ranges};
use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;

/// The names that had nothing before this client wrote there in place.
#[derive(Debug, Default)]
pub(super) struct New(Mutex<HashSet<Key>>);

impl New {
    fn all(&self) -> MutexGuard<'_, HashSet<Key>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What was at `key` before this client, which now finds `before` there: what an earlier attempt has left is not what was there.
    pub(super) fn before(&self, key: &Key, before: Option<Option<Meta>>) -> Option<Option<Meta>> {
        if matches!(before, Some(None)) {
            self.all().insert(key.clone());
        }
        if self.all().contains(key) { Some(None) } else { before }
    }

    pub(super) fn forget(&self, key: &Key) {
        self.all().remove(key);
    }
}

impl RemoteDraft {
    /// Makes what is to be written in place its owner's alone, if others are not to read it, before any byte of it is sent; whether it was
    /// made, and is empty. Where that cannot be, it is so in the end.
    pub(super) async fn be_private(&self, mode: Option<Mode>) -> Result<bool, Error> {
        let is_private = mode.is_some_and(Mode::is_private) && self.part() == self.key();
        let remote = self.remote();
        if !is_private || remote.0.modeless.load(Ordering::Relaxed) {
            return Ok(false);
        }
        // Ours writes it under another name, so that there is nothing yet whose permissions could be set.
        let is_made = self.is_new() && remote.has("XDRAFTS");
        if is_made {
            let (queue, nothing) = Queue::new();
            drop(queue);
            let mut sending = self.sending()?;
            (sending.size, sending.kept, sending.marks, sending.first) = (Some(0), Ranges::new(), None, None);
            Upload::begin(remote.clone(), sending, Arc::new(nothing), Arc::default()).end().await?;
        }
        if is_made || !self.is_new() {
            // What is said of a refusal is said once all has come.
            remote.ask(self.private_line()?).await?;
        }
        Ok(is_made)
    }

    /// What has the file be its owner's alone as soon as it is there, before its first byte: of servers that write it where it is.
    pub(super) fn first(&self, mode: Option<Mode>) -> Result<Option<Vec<u8>>, Error> {
        let remote = self.remote();
        let comes = self.part() == self.key() && self.is_new() && mode.is_some_and(Mode::is_private);
        let asks = comes && !remote.has("XDRAFTS") && !remote.0.modeless.load(Ordering::Relaxed);
        asks.then(|| self.private_line()).transpose()
    }

    fn private_line(&self) -> Result<Vec<u8>, Error> {
        self.remote().line("SITE CHMOD 600", self.key())
    }
}

/// A flow that gives nothing before it is opened.
#[derive(Debug)]
pub(super) struct Gated {
    flow: Arc<dyn Flow>,
    open: watch::Receiver<bool>,
}

impl Gated {
    pub(super) fn new(flow: Arc<dyn Flow>, open: watch::Receiver<bool>) -> Self {
        Self { flow, open }
    }

    fn opened(&self) -> Boxed<'_, ()> {
        let mut open = self.open.clone();
        Box::pin(async move {
            // Who could open it has ended: then nobody takes from it.
            let _ = open.wait_for(|open| *open).await;
        })
    }
}

impl Flow for Gated {
    fn next(&self) -> Fallible<'_, Option<Block>> {
        if *self.open.borrow() {
            return self.flow.next();
        }
        Box::pin(async {
            self.opened().await;
            self.flow.next().await
        })
    }
}
