//! One object of a job: whether it is carried, and how often that is tried.

use super::{Event, Job};
use crate::error::{Error, Sort};
use crate::key::Key;
use crate::plan::{Decision, Existing, Reason};
use crate::range::Extent;
use crate::store::{Attributes, Kind, Meta, Store};
use crate::sum::Algorithm;
use crate::transfer::{Check, Done, How, transfer};

pub(super) struct One {
    pub(super) job: Job,
    pub(super) from: Key,
    pub(super) to: Key,
    pub(super) meta: Meta,
    /// What the destination has, if that is known already.
    pub(super) known: Option<Option<Meta>>,
    /// Whether nobody makes the directory that it is to be in.
    pub(super) needs_parent: bool,
}

/// What came of it.
pub(super) enum Came {
    Carried(Done),
    Skipped,
    /// Only its permissions differed; whether they were set, or the system refused that.
    Mode {
        set: bool,
    },
    /// It would be carried: so many bytes.
    Planned(u64),
}

impl One {
    pub(super) async fn run(self) -> (Key, Result<Came, Error>) {
        let came = self.decide_and_carry().await;
        (self.to, came)
    }

    async fn decide_and_carry(&self) -> Result<Came, Error> {
        let watcher = &self.job.watcher;
        if self.meta.kind == Kind::Link {
            return self.persist(|| self.link()).await;
        }
        match self.persist(|| self.decide()).await? {
            Ok(reason) => {
                watcher.saw(&Event::Carry { from: &self.from, to: &self.to, meta: &self.meta, reason });
                if self.job.dry_run {
                    self.foresee().await?;
                    return Ok(Came::Planned(self.meta.size.unwrap_or(0)));
                }
                let done = self.persist(|| self.carry()).await?;
                watcher.saw(&Event::Carried { to: &self.to, done: &done });
                Ok(Came::Carried(done))
            }
            Err(Reason::Mode) => {
                let set = self.job.dry_run || self.set_mode().await?;
                if !self.job.dest.sets_modes() {
                    // The store counts by itself what it could not set.
                    watcher.saw(&Event::Skipped { to: &self.to, meta: &self.meta, reason: Reason::Same });
                    return Ok(Came::Skipped);
                }
                watcher.saw(&Event::Mode { to: &self.to, meta: &self.meta, set });
                Ok(Came::Mode { set })
            }
            Err(reason) => {
                watcher.saw(&Event::Skipped { to: &self.to, meta: &self.meta, reason });
                Ok(Came::Skipped)
            }
        }
    }

    async fn persist<T, F: Future<Output = Result<T, Error>>>(&self, work: impl Fn() -> F) -> Result<T, Error> {
        self.job.persist(&self.to, work).await
    }

    /// Why it is to be carried, or why not.
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

    /// Why what has the same bytes is not carried: whether its permissions are the source's, as far as both are known.
    fn same_or_mode(&self, dest: Option<Meta>) -> Reason {
        let wanted = self.meta.mode.filter(|_| self.job.how.modes);
        match (wanted, dest.and_then(|dest| dest.mode)) {
            (Some(wanted), Some(has)) if (wanted ^ has) & 0o777 != 0 => Reason::Mode,
            _ => Reason::Same,
        }
    }

    /// Gives what is there the source's permissions; false if that is refused, as it is to whoever does not own the file.
    async fn set_mode(&self) -> Result<bool, Error> {
        let attributes = Attributes { mode: self.meta.mode, modified: None };
        match self.persist(|| self.job.dest.set(&self.to, attributes)).await {
            Ok(()) => Ok(true),
            Err(error) if is_refused(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Carries a symbolic link as such, unless the destination has the same one.
    async fn link(&self) -> Result<Came, Error> {
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
                return Ok(Came::Skipped);
            }
            _ if same => {
                watcher.saw(&Event::Skipped { to: &self.to, meta: &self.meta, reason: Reason::Same });
                return Ok(Came::Skipped);
            }
            (Some(Kind::Dir), _) => {
                return Err(Error::Kind { name: name(), is: "a directory", expected: "a symbolic link" });
            }
            (Some(_), _) => Reason::Asked,
        };
        watcher.saw(&Event::Carry { from: &self.from, to: &self.to, meta: &self.meta, reason });
        if self.job.dry_run {
            return Ok(Came::Planned(0));
        }
        let modified = self.meta.modified.filter(|_| self.job.how.times);
        dest.make_link(&self.to, &target, modified, there.is_some()).await?;
        let done = Done { size: 0, moved: 0, verified: None };
        watcher.saw(&Event::Carried { to: &self.to, done: &done });
        Ok(Came::Carried(done))
    }

    /// Fails where carrying it would: as far as that can be known without writing.
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
            Err(error) if error.sort() == Sort::NotFound => {
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

    /// Whether the directory is not there that it is to be in.
    async fn has_no_parent(&self) -> bool {
        let dir = self.to.parent();
        !dir.is_root() && matches!(self.job.dest.stat(&dir).await, Err(error) if error.sort() == Sort::NotFound)
    }

    /// Whether both ends have the same bytes.
    async fn same(&self) -> Result<bool, Error> {
        let (source, dest) = (&*self.job.source, &*self.job.dest);
        same_bytes(source, &self.from, dest, &self.to, self.meta.size.unwrap_or(0)).await
    }

    async fn carry(&self) -> Result<Done, Error> {
        let job = &self.job;
        let how =
            How { replace: job.existing != Existing::Refuse && job.existing != Existing::Keep, ..job.how.clone() };
        match transfer(&*job.source, &self.from, &*job.dest, &self.to, &how).await {
            Err(error) if self.lacks_parent(&error).await => Err(Error::NoParent { name: shown(&*job.dest, &self.to) }),
            done => done,
        }
    }

    /// Whether `error` came because the directory is not there that the object is to be in. Servers have many words for that, and
    /// some say no more than that the file cannot be made.
    async fn lacks_parent(&self, error: &Error) -> bool {
        let may_be = matches!(error.sort(), Sort::NotFound | Sort::Denied | Sort::Request | Sort::Other);
        may_be && !matches!(error, Error::Stopped { .. }) && self.has_no_parent().await
    }
}

impl Job {
    /// Does `work` for `to`, and where it fails in a way that may pass, again, as often as that is tried.
    pub(super) async fn persist<T, F: Future<Output = Result<T, Error>>>(
        &self,
        to: &Key,
        work: impl Fn() -> F,
    ) -> Result<T, Error> {
        let mut attempt = 1;
        loop {
            match work().await {
                Err(error) if error.may_pass() && attempt < self.retry.attempts => {
                    let wait = self.retry.wait(attempt);
                    self.watcher.saw(&Event::Again { to, error: &error, wait });
                    tokio::time::sleep(wait).await;
                    attempt += 1;
                }
                other => return other,
            }
        }
    }
}

/// Whether `error` says that the system does not let this user do it.
pub(super) fn is_refused(error: &Error) -> bool {
    let not_permitted = |source: &std::io::Error| source.kind() == std::io::ErrorKind::PermissionDenied;
    error.sort() == Sort::Denied || matches!(error, Error::Io { source, .. } if not_permitted(source))
}

/// Whether the first `size` bytes of `from` in `source` are those of `to` in `dest`, by the first checksum that both compute.
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

/// As errors of users name it: a path, where it is of this machine.
pub(super) fn shown(store: &dyn Store, key: &Key) -> String {
    let name = store.name();
    format!("{}/{key}", name.strip_prefix("file://").unwrap_or(&name))
}
