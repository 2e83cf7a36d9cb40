//! A server as a store.

use super::draft::RemoteDraft;
use super::error::{passing, refused};
use super::listing::RemoteListing;
use super::object::RemoteObject;
use super::remote::Remote;
use phoebus_files::key::Key;
use phoebus_files::store::{
    Attributes, Batches, Begun, Boxed, Draft, Fallible, Kind, Listing, Meta, Object, Spec, Store, Time, TriedDir,
};
use phoebus_files::sum::Algorithm;
use phoebus_files::{Error, OwnDirs, is_engines};
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Store for Remote {
    fn name(&self) -> String {
        self.0.name.to_string()
    }

    fn is_far(&self) -> bool {
        true
    }

    fn algorithms(&self) -> &[Algorithm] {
        &self.0.algorithms
    }

    fn sets_times(&self) -> bool {
        self.has("MFMT")
    }

    fn sets_modes(&self) -> bool {
        !self.0.modeless.load(Ordering::Relaxed)
    }

    fn is_without_mode(&self, key: &Key) -> bool {
        self.refused_modes().may_have(&self.label(key))
    }

    fn stat<'a>(&'a self, key: &'a Key) -> Fallible<'a, Meta> {
        Box::pin(async move {
            self.sayable(key).await?;
            self.look_and_remember(key).await
        })
    }

    fn mode<'a>(&'a self, key: &'a Key, meta: &'a Meta, among: bool) -> Fallible<'a, Option<u32>> {
        Box::pin(async move {
            self.sayable(key).await?;
            self.mode_of(key, meta, among).await
        })
    }

    fn stat_link<'a>(&'a self, key: &'a Key) -> Fallible<'a, Meta> {
        Box::pin(async move {
            self.sayable(key).await?;
            self.look_at_link(key).await
        })
    }

    fn is_absent<'a>(&'a self, key: &'a Key) -> Fallible<'a, bool> {
        Box::pin(self.says_gone(key))
    }

    fn list<'a>(&'a self, key: &'a Key) -> Fallible<'a, Box<dyn Listing>> {
        Box::pin(async move {
            self.sayable(key).await?;
            Ok(Box::new(RemoteListing::begin(self.clone(), key.clone()).await?) as _)
        })
    }

    fn keeps_names(&self) -> bool {
        self.has("XDRAFTS")
    }

    fn kept_names<'a>(&'a self, key: &'a Key) -> Fallible<'a, Option<HashSet<Vec<u8>>>> {
        Box::pin(self.names_in(key))
    }

    fn tells_links(&self) -> bool {
        self.tells_links_by_facts()
    }

    fn writes_in_place(&self) -> bool {
        self.options().in_place
    }

    fn is_link<'a>(&'a self, key: &'a Key) -> Fallible<'a, Option<bool>> {
        Box::pin(self.is_link_at(key))
    }

    fn are_one<'a>(&'a self, one: &'a Key, other: &'a Key) -> Fallible<'a, Option<bool>> {
        Box::pin(async move {
            let found = self.uniques(one, other).await?;
            Ok(found.0.zip(found.1).map(|(one, other)| one == other))
        })
    }

    fn own_dirs<'a>(&'a self, key: &'a Key) -> Fallible<'a, OwnDirs> {
        Box::pin(self.own_dirs_in(key))
    }

    fn try_dir<'a>(&'a self, key: &'a Key) -> Fallible<'a, TriedDir> {
        Box::pin(async move {
            self.is_there_as_said(key).await?;
            self.try_dir_at(key).await
        })
    }

    fn list_all<'a>(&'a self, key: &'a Key) -> Fallible<'a, Box<dyn Listing>> {
        Box::pin(async move {
            self.sayable(key).await?;
            Ok(Box::new(RemoteListing::with_drafts(self.clone(), key.clone()).await?) as _)
        })
    }

    fn open<'a>(&'a self, key: &'a Key) -> Fallible<'a, Arc<dyn Object>> {
        Box::pin(async move {
            self.sayable(key).await?;
            let meta = self.recall(key).await?;
            if !matches!(meta.kind, Kind::File | Kind::Device) {
                return Err(Error::Kind { name: self.label(key), is: meta.kind.described(), expected: "a file" });
            }
            if meta.size.is_none() && meta.kind == Kind::File {
                let what = "reading a file of which the server does not tell the size";
                return Err(Error::Unsupported { name: self.label(key), what });
            }
            Ok(Arc::new(RemoteObject { remote: self.clone(), key: key.clone(), meta }) as _)
        })
    }

    fn create<'a>(&'a self, key: &'a Key, spec: Spec) -> Fallible<'a, Begun> {
        Box::pin(async move {
            self.keeps_name(key).await?;
            if self.was_published(key, &spec).await? {
                return Ok(Begun::Done);
            }
            Ok(Begun::Draft(Arc::new(RemoteDraft::begin(self.clone(), key.clone(), spec).await?)))
        })
    }

    fn edit<'a>(&'a self, key: &'a Key) -> Fallible<'a, Arc<dyn Draft>> {
        let name = self.label(key);
        Box::pin(async { Err(Error::Unsupported { name, what: "changing a server's file where it stands" }) })
    }

    fn append<'a>(&'a self, key: &'a Key) -> Fallible<'a, (Arc<dyn Draft>, u64)> {
        let name = self.label(key);
        Box::pin(async { Err(Error::Unsupported { name, what: "appending to a server's file" }) })
    }

    fn make_dir<'a>(&'a self, key: &'a Key) -> Fallible<'a, ()> {
        Box::pin(async move {
            self.keeps_name(key).await?;
            let asked = self.order("MKD", key, "make the directory").await;
            self.made(key, asked).await
        })
    }

    fn remove<'a>(&'a self, key: &'a Key) -> Fallible<'a, ()> {
        Box::pin(async move {
            self.is_there_as_said(key).await?;
            let asked = self.order("DELE", key, "remove").await;
            match self.removed(key, asked).await {
                Err(error) => Err(self.why(key, error, true).await),
                removed => removed,
            }
        })
    }

    fn discard<'a>(&'a self, key: &'a Key, _: Option<Time>) -> Fallible<'a, ()> {
        Box::pin(async move {
            self.is_there_as_said(key).await?;
            let reply = self.about("DELE", key).await?;
            // `phoebus serve` knows which of its drafts are being written.
            if reply.code == 450 && is_engines(key.name()) {
                return Err(Error::Busy { name: self.label(key) });
            }
            if reply.is_success() { Ok(()) } else { Err(refused(&self.label(key), "remove", "DELE", &reply)) }
        })
    }

    fn remove_dir<'a>(&'a self, key: &'a Key) -> Fallible<'a, ()> {
        Box::pin(async move {
            self.is_there_as_said(key).await?;
            let asked = self.order("RMD", key, "remove the directory").await;
            match self.removed(key, asked).await {
                Err(error) => Err(self.why(key, error, false).await),
                removed => removed,
            }
        })
    }

    fn rename<'a>(&'a self, from: &'a Key, to: &'a Key, replace: bool) -> Fallible<'a, ()> {
        Box::pin(async move {
            self.sayable(from).await?;
            // Names that no command can carry are refused before anything is sent.
            self.path(from)?;
            self.path(to)?;
            self.keeps_name(to).await?;
            // The metadata show later whether the file was moved, if the reply is lost.
            let moved = self.recall(from).await?;
            if !replace {
                self.must_be_free(to).await?;
            }
            self.move_to(from, to, &moved, replace).await
        })
    }

    fn set<'a>(&'a self, key: &'a Key, attributes: Attributes) -> Fallible<'a, ()> {
        Box::pin(async move {
            self.is_there_as_said(key).await?;
            self.attribute(key, attributes).await
        })
    }

    fn batches(&self) -> Option<&dyn Batches> {
        self.takes_batches().then_some(self)
    }

    fn note_draft_dir(&self, dir: &Key) {
        self.0.partial_dirs.note(dir);
    }

    fn remove_draft_dirs(&self) -> Boxed<'_, ()> {
        Box::pin(self.remove_partial_dirs())
    }

    /// `phoebus serve` syncs the names that were changed. What other servers do cannot be told.
    fn settle(&self) -> Fallible<'_, ()> {
        Box::pin(async {
            if !self.has("XSYNC") {
                return Ok(());
            }
            let reply = self.ask_all(vec![b"SITE SYNC".to_vec()]).await?.pop();
            match reply {
                Some(reply) if reply.is_success() => Ok(()),
                Some(reply) => Err(refused(&self.name(), "make durable what was changed at", "SITE SYNC", &reply)),
                None => Err(passing(&self.name(), "the server did not answer")),
            }
        })
    }
}
