//! Permissions of source files on servers whose MLST lacks them: STAT and LIST have them in the form of `ls -l`.

use super::commands::{RECENT, facts_of};
use super::known::ListedModes;
use super::listing::{KeptNames, RemoteListing, is_name};
use super::ls_lines;
use super::remote::Remote;
use phoebus_files::key::Key;
use phoebus_files::store::{Entry, Kind, Meta};
use phoebus_files::{Error, ErrorKind};
use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// Most directories that are kept besides the last one.
const KEPT: usize = 100_000;

impl Remote {
    /// Adds the permissions of `key` to `meta`, if the server tells them in any way.
    pub(super) async fn mode_of(&self, key: &Key, meta: &Meta, among: bool) -> Result<Option<u32>, Error> {
        if meta.mode.is_some() || !matches!(meta.kind, Kind::File | Kind::Dir) {
            return Ok(meta.mode);
        }
        let found = match (meta.kind, among) {
            (Kind::File, false) => match self.listed_by_stat(key).await? {
                // A link, whose target's permissions are unknown.
                Some(stated) => return Ok(stated.mode.filter(|_| stated.kind == Kind::File)),
                None => None,
            },
            (Kind::Dir, false) => self.unless_refused(self.own_mode(key).await)?.flatten(),
            _ => None,
        };
        if found.is_some() || key.is_root() {
            return Ok(found);
        }
        self.listed_mode(key, meta.kind, among).await
    }

    /// What STAT lists as `key`. With a path, STAT lists on the control connection (RFC 959, section 4.1.3).
    pub(super) async fn listed_by_stat(&self, key: &Key) -> Result<Option<Meta>, Error> {
        if self.0.source_modes.statless.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let (reply, path) = (self.about("STAT", key).await?, self.path(key)?);
        if matches!(reply.code, 500..=504) {
            self.0.source_modes.statless.store(true, Ordering::Relaxed);
        }
        let entries = reply.lines.iter().filter_map(|line| ls_lines::parse(line).ok().flatten());
        let mut same = entries.filter(|entry| entry.name == key.name() || entry.name == path);
        Ok(same.next().filter(|_| reply.is_success()).map(|entry| entry.meta))
    }

    /// The permissions of the directory `key`, from its own entry.
    async fn own_mode(&self, key: &Key) -> Result<Option<u32>, Error> {
        if self.has("MLST") {
            let reply = self.about("MLST", key).await?;
            if let Some((facts, _)) = facts_of(&reply).filter(|_| reply.code == 250)
                && facts.mode.is_some()
            {
                return Ok(facts.mode);
            }
        }
        if self.0.source_modes.unlisted.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let mut listing = RemoteListing::by_list(self.clone(), key.clone()).await?;
        while listing.own_mode().is_none() && !listing.page().await?.is_empty() {}
        Ok(listing.own_mode())
    }

    /// The permissions of `key` from the listing of its directory. `among`: an earlier listing of the directory serves
    /// too.
    async fn listed_mode(&self, key: &Key, kind: Kind, among: bool) -> Result<Option<u32>, Error> {
        let (known, dir) = (&self.0.source_modes, key.parent());
        let mut listed = known.listed.lock().await;
        let serves = |listed: &ListedModes| {
            let has = among && listed.modes.contains_key(key.name());
            listed.dir == dir && (has || listed.at.elapsed() < RECENT)
        };
        // A walk through a tree returns to the parent.
        let used = listed.iter().position(serves).and_then(|at| listed.remove(at));
        let used = match used {
            Some(used) => used,
            None if known.unlisted.load(Ordering::Relaxed) => return Ok(None),
            None => {
                listed.retain(|listed| listed.dir != dir);
                let modes = match self.modes_in(&dir).await {
                    // One failure may be a coincidence. After two, the server counts as one that does not list.
                    Err(error) if error.kind() == ErrorKind::Passing && self.has("MLST") => {
                        let again = self.modes_in(&dir).await;
                        let is_silent = again.as_ref().is_err_and(|error| error.kind() == ErrorKind::Passing);
                        known.unlisted.fetch_or(is_silent, Ordering::Relaxed);
                        again
                    }
                    listed => listed,
                };
                let modes = self.unless_refused(modes)?;
                ListedModes { dir, at: Instant::now(), modes: modes.unwrap_or_default() }
            }
        };
        let found = used.modes.get(key.name()).filter(|(listed, _)| *listed == kind).map(|(_, mode)| *mode);
        listed.push_front(used);
        while listed.len() > 1 && listed.iter().map(|listed| listed.modes.len() + 1).sum::<usize>() > KEPT {
            listed.pop_back();
        }
        Ok(found)
    }

    async fn modes_in(&self, dir: &Key) -> Result<HashMap<Vec<u8>, (Kind, u32)>, Error> {
        let mut listing = RemoteListing::by_list(self.clone(), dir.clone()).await?;
        let (mut modes, mut kept) = (HashMap::new(), KeptNames::default());
        loop {
            let page = listing.page().await?;
            if page.is_empty() {
                return Ok(modes);
            }
            for Entry { name, meta } in page.into_iter().filter(|entry| is_name(&entry.name)) {
                if let Some(mode) = meta.mode {
                    kept.count(&name, || self.label(dir))?;
                    modes.insert(name, (meta.kind, mode));
                }
            }
        }
    }

    /// The result, or `None` if the server does not tell. A server with MLSD may lack LIST.
    fn unless_refused<T>(&self, told: Result<T, Error>) -> Result<Option<T>, Error> {
        match told {
            Ok(told) => Ok(Some(told)),
            Err(error) if error.kind() == ErrorKind::Passing && !self.has("MLST") => Err(error),
            Err(_) => Ok(None),
        }
    }
}
