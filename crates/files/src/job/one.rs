//! One object of a job: whether it is carried, with retries.

use super::{Event, Job};
use crate::error::{Error, ErrorKind};
use crate::key::Key;
use crate::plan::{Decision, Existing, Reason};
use crate::range::Extent;
use crate::store::{Attributes, Kind, Meta, Store};
use crate::sum::Algorithm;
use crate::transfer::{Check, Done, TransferOptions, transfer};
use std::sync::Arc;

pub(super) struct One {
    pub(super) job: Job,
    pub(super) from: Key,
    pub(super) to: Key,
    pub(super) meta: Meta,
    /// Metadata at the destination, if known.
    pub(super) known: Option<Option<Meta>>,
    /// Whether its directory is not created.
    pub(super) needs_parent: bool,
}

/// The result.
pub(super) enum ObjectOutcome {
    /// It was carried; whether its permissions were known.
    Carried(Done, bool),
    Skipped,
    /// Only its permissions differed; whether they were set.
    Mode {
        set: bool,
    },
    /// It would be carried, with so many bytes.
    Planned(u64),
}

impl One {
    pub(super) async fn run(self) -> (Key, Result<ObjectOutcome, Error>) {
        let came = self.decide_and_carry().await;
        (self.to, came)
    }

    async fn decide_and_carry(&self) -> Result<ObjectOutcome, Error> {
        let watcher = &self.job.watcher;
        if self.meta.kind == Kind::Link {
            return self.persist(|| self.link()).await;
        }
        match self.persist(|| self.decide()).await? {
            Ok(reason) => {
                self.must_not_be_one(reason).await?;
                watcher.saw(&Event::Carry { from: &self.from, to: &self.to, meta: &self.meta, reason });
                if self.job.dry_run {
                    self.foresee().await?;
                    return Ok(ObjectOutcome::Planned(self.meta.size.unwrap_or(0)));
                }
                self.carry_on().await
            }
            Err(Reason::Mode) => {
                let set = self.job.dry_run || self.set_mode().await?;
                if !self.job.dest.sets_modes() {
                    // The store counts what it could not set.
                    watcher.saw(&Event::Skipped { to: &self.to, meta: &self.meta, reason: Reason::Same });
                    return Ok(ObjectOutcome::Skipped);
                }
                watcher.saw(&Event::Mode { to: &self.to, meta: &self.meta, set });
                Ok(ObjectOutcome::Mode { set })
            }
            Err(reason) => {
                watcher.saw(&Event::Skipped { to: &self.to, meta: &self.meta, reason });
                Ok(ObjectOutcome::Skipped)
            }
        }
    }

    /// Carries it, after it was decided that it is to be carried.
    pub(super) async fn carry_alone(self) -> (Key, Result<ObjectOutcome, Error>) {
        let came = self.carry_on().await;
        (self.to, came)
    }

    async fn carry_on(&self) -> Result<ObjectOutcome, Error> {
        let done = self.persist(|| self.carry()).await?;
        self.job.watcher.saw(&Event::Carried { to: &self.to, done: &done });
        let is_known = self.meta.mode.is_some() || self.meta.kind != Kind::File;
        Ok(ObjectOutcome::Carried(done, is_known))
    }

    /// Refuses to overwrite the source with itself.
    async fn must_not_be_one(&self, reason: Reason) -> Result<(), Error> {
        let (source, dest) = (&self.job.source, &self.job.dest);
        if reason == Reason::New || !dest.writes_in_place() {
            return Ok(());
        }
        let there = match dest.stat(&self.to).await {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            there => there?,
        };
        let is_alike = (there.size, there.modified) == (self.meta.size, self.meta.modified);
        let is_one = match Arc::ptr_eq(source, dest) {
            true if self.from == self.to => Some(true),
            // A file that is being written changes between looks.
            true => dest.are_one(&self.from, &self.to).await?.or((!is_alike).then_some(false)),
            // The same server may have two addresses.
            false if source.is_far() && is_alike => None,
            false => return Ok(()),
        };
        let name = shown(&**dest, &self.to);
        let reason = match is_one {
            Some(false) => return Ok(()),
            Some(true) => format!("{} is the same file: nothing was written", shown(&**source, &self.from)),
            None => format!(
                "{} may be the same file, which --in-place would write over while it is read: they are alike; nothing was written",
                shown(&**source, &self.from)
            ),
        };
        Err(Error::Store { name, reason, kind: ErrorKind::Request })
    }

    async fn persist<T, F: Future<Output = Result<T, Error>>>(&self, work: impl Fn() -> F) -> Result<T, Error> {
        self.job.persist(&self.to, work).await
    }

    /// The reason to carry it, or not to.
    async fn decide(&self) -> Result<Result<Reason, Reason>, Error> {
        let dest = match self.known {
            Some(known) => known,
            None => match self.job.dest.stat_to_write(&self.to).await {
                Ok(meta) => Some(meta),
                Err(Error::NotFound { .. }) => None,
                Err(error) => return Err(error),
            },
        };
        Ok(match self.job.existing.decide(&self.meta, dest.as_ref()) {
            Decision::Carry(reason) => Ok(reason),
            Decision::Skip(Reason::Same) => Err(self.same_or_mode(dest)),
            Decision::Skip(reason) => Err(reason),
            Decision::Refuse => {
                return Err(Error::Exists { name: shown(&*self.job.dest, &self.to) });
            }
            Decision::Compare if self.same().await? => Err(self.same_or_mode(dest)),
            Decision::Compare => Ok(Reason::Checksum),
        })
    }

    /// Why an object of the same content is not carried: with equal permissions, as far as both are known, or not.
    fn same_or_mode(&self, dest: Option<Meta>) -> Reason {
        let wanted = self.meta.mode.filter(|_| self.job.how.modes);
        match (wanted, dest.and_then(|dest| dest.mode)) {
            (Some(wanted), Some(has)) if (wanted ^ has) & 0o777 != 0 => Reason::Mode,
            _ => Reason::Same,
        }
    }

    /// Sets the source's permissions. False if that is refused, as for files of others.
    async fn set_mode(&self) -> Result<bool, Error> {
        let attributes = Attributes { mode: self.meta.mode.map(|mode| mode & 0o777), modified: None };
        match self.persist(|| self.job.dest.set(&self.to, attributes)).await {
            Ok(()) => Ok(true),
            Err(error) if is_refused(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Carries a symbolic link as a link, unless the destination has the same.
    async fn link(&self) -> Result<ObjectOutcome, Error> {
        let (source, dest, watcher) = (&self.job.source, &self.job.dest, &self.job.watcher);
        let target = source.read_link(&self.from).await?;
        let there = match dest.stat_link(&self.to).await {
            Ok(meta) => Some(meta.kind),
            Err(Error::NotFound { .. }) => None,
            Err(error) => return Err(error),
        };
        let name = || shown(&**dest, &self.to);
        let same = there == Some(Kind::Link) && dest.read_link(&self.to).await? == target;
        let reason = match (there, self.job.existing) {
            (None, _) => Reason::New,
            (Some(_), Existing::Refuse) => return Err(Error::Exists { name: name() }),
            (Some(_), Existing::Keep) => {
                watcher.saw(&Event::Skipped { to: &self.to, meta: &self.meta, reason: Reason::There });
                return Ok(ObjectOutcome::Skipped);
            }
            _ if same => {
                watcher.saw(&Event::Skipped { to: &self.to, meta: &self.meta, reason: Reason::Same });
                return Ok(ObjectOutcome::Skipped);
            }
            (Some(Kind::Dir), _) => {
                return Err(Error::Kind { name: name(), is: "a directory", expected: "a symbolic link" });
            }
            (Some(_), _) => Reason::Asked,
        };
        watcher.saw(&Event::Carry { from: &self.from, to: &self.to, meta: &self.meta, reason });
        if self.job.dry_run {
            return Ok(ObjectOutcome::Planned(0));
        }
        let modified = self.meta.modified.filter(|_| self.job.how.times);
        dest.make_link(&self.to, &target, modified, there.is_some()).await?;
        let done = Done { size: 0, moved: 0, verified: None };
        watcher.saw(&Event::Carried { to: &self.to, done: &done });
        // Links have no permissions.
        Ok(ObjectOutcome::Carried(done, true))
    }

    /// Fails if carrying it would, as far as that shows without writing.
    async fn foresee(&self) -> Result<(), Error> {
        let (source, dest) = (&*self.job.source, &*self.job.dest);
        let name = || shown(dest, &self.to);
        let there = match self.known {
            Some(known) => known.ok_or_else(|| Error::NotFound { name: name() }),
            None => dest.stat_to_write(&self.to).await,
        };
        match there {
            Ok(meta) if !matches!(meta.kind, Kind::File | Kind::Link | Kind::Device) => {
                return Err(Error::Kind { name: name(), is: meta.kind.described(), expected: "a file" });
            }
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::NotFound => {
                if self.needs_parent && !self.job.parents && self.has_no_parent().await {
                    return Err(Error::NoParent { name: name() });
                }
            }
            Err(error) => return Err(error),
        }
        // Asking a server about each file would take as long as carrying short ones.
        if !source.is_far() {
            source.open(&self.from).await?;
        }
        let checked = Check::choose(self.job.how.verify, &source.into(), &dest.into());
        checked.map(drop).map_err(|reason| Error::Unverifiable { name: name(), reason })
    }

    /// Whether its directory does not exist.
    async fn has_no_parent(&self) -> bool {
        let dir = self.to.parent();
        !dir.is_root() && matches!(self.job.dest.stat(&dir).await, Err(error) if error.kind() == ErrorKind::NotFound)
    }

    /// Whether both ends have the same content.
    async fn same(&self) -> Result<bool, Error> {
        let (source, dest) = (&*self.job.source, &*self.job.dest);
        same_bytes(source, &self.from, dest, &self.to, self.meta.size.unwrap_or(0)).await
    }

    async fn carry(&self) -> Result<Done, Error> {
        let job = &self.job;
        let how = TransferOptions {
            replace: job.existing != Existing::Refuse && job.existing != Existing::Keep,
            known_mode: self.meta.mode,
            ..job.how.clone()
        };
        match transfer(&*job.source, &self.from, &*job.dest, &self.to, &how).await {
            Err(error) if self.lacks_parent(&error).await => Err(Error::NoParent { name: shown(&*job.dest, &self.to) }),
            done => done,
        }
    }

    /// Whether `error` means that the object's directory does not exist. Servers report this in many ways, and some
    /// only say that the file cannot be created.
    async fn lacks_parent(&self, error: &Error) -> bool {
        let may_be =
            matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Denied | ErrorKind::Request | ErrorKind::Other);
        may_be && !matches!(error, Error::Stopped { .. }) && self.has_no_parent().await
    }
}

impl Job {
    /// Does `work` for `to`, with retries after temporary errors.
    pub(super) async fn persist<T, F: Future<Output = Result<T, Error>>>(
        &self,
        to: &Key,
        work: impl Fn() -> F,
    ) -> Result<T, Error> {
        let stopped = || Err(Error::Stopped { name: shown(&*self.dest, to) });
        if self.halt.is_halted() {
            return stopped();
        }
        let mut attempt = 1;
        loop {
            match work().await {
                Err(error) if error.may_pass() && attempt < self.retry.attempts => {
                    if self.how.stop.is_asked() {
                        return stopped();
                    }
                    let wait = self.retry.wait(attempt);
                    self.watcher.saw(&Event::Again { to, error: &error, wait });
                    tokio::select! {
                        () = tokio::time::sleep(wait) => {}
                        () = self.how.stop.asked() => return stopped(),
                    }
                    attempt += 1;
                }
                done => {
                    self.halt.ended(done.as_ref().err());
                    return done;
                }
            }
        }
    }
}

/// Whether `error` is a lack of permission.
pub(super) fn is_refused(error: &Error) -> bool {
    let not_permitted = |source: &std::io::Error| source.kind() == std::io::ErrorKind::PermissionDenied;
    error.kind() == ErrorKind::Denied || matches!(error, Error::Io { source, .. } if not_permitted(source))
}

/// Whether the first `size` bytes of `from` and `to` are equal, by the first checksum that both compute.
pub(super) async fn same_bytes(
    source: &dyn Store,
    from: &Key,
    dest: &dyn Store,
    to: &Key,
    size: u64,
) -> Result<bool, Error> {
    let knows = |store: &dyn Store, a: &Algorithm| store.algorithms().contains(a);
    let common = Algorithm::ALL.into_iter().find(|a| knows(source, a) && knows(dest, a));
    let Some(algorithm) = common else {
        let reason = "the two ends compute no checksum in common".to_owned();
        return Err(Error::Unverifiable { name: format!("{}/{to}", dest.name()), reason });
    };
    let (ours, theirs) = (source.open(from).await?, dest.open(to).await?);
    let whole = Extent::first(size);
    let (ours, theirs) = tokio::join!(ours.checksum(algorithm, whole), theirs.checksum(algorithm, whole));
    Ok(ours? == theirs?)
}

/// The name in users' errors: a path, if it is local.
pub(super) fn shown(store: &dyn Store, key: &Key) -> String {
    let name = store.name();
    format!("{}/{key}", name.strip_prefix("file://").unwrap_or(&name))
}
