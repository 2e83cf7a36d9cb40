//! How a draft begins: afresh, where an earlier attempt was cut, or not at all because that one had come to its end.

use super::names::Names;
use super::{LOOKS, State, Work, absent_ok, lock, never_the_same};
use crate::disk::{Disk, DiskFile, Stat};
use crate::error::Error;
use crate::journal::{self, Header, Journal, MAX_JOURNAL, Parts};
use crate::key::Key;
use crate::range::Extent;
use crate::store::{Kind, Spec};
use std::io;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Objects of at least this many bytes are continued where an earlier attempt was cut; shorter ones begin again, since what a
/// journal costs (three syncs) is more than sending them.
pub(crate) const JOURNAL_FROM: u64 = 16 << 20;

/// For at least this many bytes space is taken beforehand, so that what cannot fit fails before it is sent.
const RESERVE_FROM: u64 = 1 << 20;

/// How long a lock is waited for: tasks that were dropped let go of theirs as soon as their last write returns.
const LOCK_PATIENCE: Duration = Duration::from_secs(2);

/// How many names are tried that nobody can know: one that exists already is as likely as a guess.
const NAMES: usize = 4;

/// How often it is asked for meanwhile.
const LOCK_AGAIN: Duration = Duration::from_millis(20);

/// How a draft begins.
pub(crate) enum Start<D: Disk> {
    /// With this.
    Work(Box<Work<D>>),
    /// It had been published before.
    Done,
}

impl<D: Disk> Work<D> {
    /// Begins the draft of `key`, or goes on with an earlier one of the same `spec`. `label` is what errors call the
    /// destination; objects of fewer bytes than `journal_from`, or of unknown size, are not continued later. A file that takes nobody's
    /// place, and whose permissions `spec` does not say, gets those of `mode`. The draft has the names of drafts of `home`, which is on the
    /// same file system.
    pub(crate) fn begin(
        disk: &Arc<D>,
        (key, home): (&Key, &Key),
        (label, mode): (String, u32),
        spec: Spec,
        journal_from: u64,
    ) -> Result<Start<D>, Error> {
        let name = &label;
        let failed = |act| move |error| Error::io(name, act, error);
        let place = absent_ok(disk.stat(key, false)).map_err(failed("look at"))?;
        check_place(place, &label, spec.replace)?;
        let journalled = spec.source.is_some() && spec.size.is_some_and(|size| size >= journal_from);
        let wanted = Wanted { key, home, place, label: &label, spec: &spec };
        let Some(owned) = own(&**disk, &wanted, journalled)? else { return Ok(Start::Done) };
        let Owned { names, file, mut left } = owned;
        let old = match inheritable(&**disk, &file, key, place) {
            Ok(old) => old,
            Err(error) => {
                if left.is_none() {
                    absent_ok(disk.unlink(&names.part)).map_err(failed("remove the draft of"))?;
                }
                return Err(failed("keep the owner of")(error));
            }
        };
        let stat = file.stat().map_err(failed("look at the draft of"))?;
        let kept = left.take_if(|left| journalled && left.is_of(&spec, &stat)).and_then(|left| left.0);
        let kept = kept.map_or_else(|| Parts::new(spec.sum), |journal| journal.parts);
        if left.is_some() {
            // It speaks of other bytes than those that will be written from here on.
            disk.unlink(&names.journal).map_err(failed("remove the old journal of"))?;
            disk.sync_dir(&home.parent()).map_err(failed("sync the directory of"))?;
        }
        let afresh = kept.ranges.is_empty();
        if let Err(error) = make_room(&file, afresh && stat.size > 0, &spec) {
            if afresh {
                // What there is no space for leaves nothing behind.
                let _ = disk.unlink(&names.part);
            }
            return Err(failed("make room for")(error));
        }
        let claimed = kept.ranges.clone();
        let state = State { claimed, fresh: Parts::new(spec.sum), safe: kept, over: None };
        let sparse = spec.sparse && afresh && spec.size.is_some();
        let work = Self {
            disk: disk.clone(),
            key: key.clone(),
            names,
            label,
            spec,
            mode,
            old,
            sparse,
            file,
            journalled,
            state: Mutex::new(state),
            journal: Mutex::new(None),
        };
        if journalled {
            let kept = work.state().safe.clone();
            *lock(&work.journal) = Some(work.start_journal(&kept)?);
        }
        Ok(Start::Work(Box::new(work)))
    }
}

/// The file whose place the draft `file` takes, if there is one, after it was seen that the draft can get what that has beside its bytes.
/// Where several write the same name, each may find that another has put his file there meanwhile.
fn inheritable<D: Disk>(disk: &D, file: &D::File, key: &Key, mut place: Option<Stat>) -> io::Result<Option<Stat>> {
    for _ in 0..LOOKS {
        let Some(old) = place.filter(|old| old.kind == Kind::File) else { return Ok(None) };
        if disk.may_inherit(file, key, &old)? {
            return Ok(Some(old));
        }
        place = absent_ok(disk.stat(key, false))?;
    }
    Err(never_the_same())
}

/// Empties a draft's file if it has old bytes, and makes it as long as it will be.
fn make_room(file: &impl DiskFile, old: bool, spec: &Spec) -> io::Result<()> {
    if old {
        file.set_len(0)?;
    }
    let Some(size) = spec.size else { return Ok(()) };
    file.set_len(size)?;
    if size >= RESERVE_FROM && !spec.sparse { file.reserve(size) } else { Ok(()) }
}

/// Whether what has the destination's name now can be replaced.
fn check_place(place: Option<Stat>, label: &str, replace: bool) -> Result<(), Error> {
    match place {
        None => Ok(()),
        Some(Stat { kind: Kind::File | Kind::Link, .. }) if replace => Ok(()),
        Some(Stat { kind: Kind::File | Kind::Link, .. }) => Err(Error::Exists { name: label.to_owned() }),
        Some(Stat { kind, .. }) => {
            Err(Error::Kind { name: label.to_owned(), is: kind.described(), expected: "a file" })
        }
    }
}

/// A draft that is locked.
struct Owned<F> {
    names: Names,
    file: F,
    /// The journal that lies beside it.
    left: Option<Left>,
}

/// Opens or makes the draft's file, and locks it; none if a journal says that what now has the destination's name is what was to be
/// written.
///
/// Where only this user makes names, the draft's name is always the same, and who has it locked writes the same file. Where others do,
/// they could make that name first, so that it is one that nobody can know; what an earlier attempt left is looked for if it is worth it.
fn own<D: Disk>(disk: &D, wanted: &Wanted<'_>, journalled: bool) -> Result<Option<Owned<D::File>>, Error> {
    let (home, label) = (wanted.home, wanted.label);
    let failed = |act| move |error| Error::io(label, act, error);
    let shared = disk.is_shared(&home.parent()).map_err(failed("look at the directory of"))?;
    let usual = Names::of(home).map_err(|error| Error::io(label, "name", io::Error::other(error)))?;
    let candidates = match (shared, journalled) {
        (false, _) => vec![usual],
        (true, false) => Vec::new(),
        (true, true) => Names::found(home, &disk.names_in(&home.parent()).map_err(failed("list the directory of"))?),
    };
    let (mut mine, mut swept) = (None, false);
    for names in candidates {
        match take(disk, wanted, names, shared)? {
            Taken::Mine(owned) if mine.is_none() => mine = Some(owned),
            Taken::Mine(Owned { names, file, .. }) => {
                sweep(disk, &names, Some(file)).map_err(failed("remove an old draft of"))?;
                swept = true;
            }
            Taken::Old(names, file) => {
                sweep(disk, &names, file).map_err(failed("remove an old draft of"))?;
                swept = true;
            }
            Taken::Published => return Ok(None),
            Taken::Foreign => {}
        }
    }
    if swept {
        // An old journal that came back after a loss of power would speak of a file that is another one by then.
        disk.sync_dir(&home.parent()).map_err(failed("sync the directory of"))?;
    }
    if mine.is_some() {
        return Ok(mine);
    }
    for _ in 0..NAMES {
        let names = Names::random(home).map_err(failed("name the draft of"))?;
        match disk.create(&names.part, 0o600) {
            Ok(file) if file.lock().map_err(failed("lock the draft of"))? => {
                return Ok(Some(Owned { names, file, left: None }));
            }
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(failed("begin")(error)),
        }
    }
    Err(Error::Busy { name: label.to_owned() })
}

/// What a draft is to be of.
struct Wanted<'a> {
    key: &'a Key,
    /// Beside what the draft is: the same, unless drafts have a directory of their own.
    home: &'a Key,
    /// What has the destination's name.
    place: Option<Stat>,
    label: &'a str,
    spec: &'a Spec,
}

/// What became of the attempt to have the draft of certain names.
enum Taken<F> {
    Mine(Owned<F>),
    Published,
    /// It is of another source by now, or never came to hold anything; nobody will look for it again. Its file is locked, if it has one.
    Old(Names, Option<F>),
    /// Somebody else has made what has the name.
    Foreign,
}

/// Removes what of these names this user has made, where others can make names, too. Until that is done the lock of `_locked` is held:
/// nobody can begin to write what is removed.
fn sweep<D: Disk>(disk: &D, names: &Names, _locked: Option<D::File>) -> io::Result<()> {
    for name in [&names.journal, &names.next, &names.part] {
        if let Some(Some(_)) = absent_ok(disk.adopt(name, true))? {
            absent_ok(disk.unlink(name))?;
        }
    }
    Ok(())
}

/// Has the draft of these `names` if it is this user's, and makes it unless others can make names, too.
fn take<D: Disk>(disk: &D, wanted: &Wanted<'_>, names: Names, shared: bool) -> Result<Taken<D::File>, Error> {
    let (key, label, spec) = (wanted.key, wanted.label, wanted.spec);
    let failed = |act| move |error| Error::io(label, act, error);
    let give_up = Instant::now() + LOCK_PATIENCE;
    loop {
        let part = open_locked(disk, &names.part, shared).map_err(failed("open the draft of"))?;
        let left = Left::read(disk, &names.journal, shared).map_err(failed("read the journal of"))?;
        match part {
            Part::Mine(file) if !shared => return Ok(Taken::Mine(Owned { names, file, left })),
            Part::Mine(file) => {
                let stat = file.stat().map_err(failed("look at the draft of"))?;
                if left.as_ref().is_some_and(|left| left.is_of(spec, &stat)) {
                    return Ok(Taken::Mine(Owned { names, file, left }));
                }
                return Ok(Taken::Old(names, Some(file)));
            }
            Part::None => {
                if left.as_ref().zip(wanted.place).is_some_and(|(left, place)| left.became(spec, &place)) {
                    disk.sync_dir(&key.parent()).map_err(failed("sync the directory of"))?;
                    absent_ok(disk.unlink(&names.journal)).map_err(failed("remove the journal of"))?;
                    return Ok(Taken::Published);
                }
                if shared {
                    return Ok(Taken::Old(names, None));
                }
                match disk.create(&names.part, 0o600) {
                    Ok(file) if file.lock().map_err(failed("lock the draft of"))? => {
                        return Ok(Taken::Mine(Owned { names, file, left }));
                    }
                    Ok(_) => {}
                    Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                    Err(error) => return Err(failed("begin")(error)),
                }
            }
            Part::Foreign => return Ok(Taken::Foreign),
            Part::Theirs if Instant::now() > give_up => return Err(Error::Busy { name: label.to_owned() }),
            Part::Theirs => std::thread::sleep(LOCK_AGAIN),
        }
    }
}

/// A journal that an earlier attempt left; none in it if it cannot be read.
struct Left(Option<Journal>);

impl Left {
    fn read<D: Disk>(disk: &D, key: &Key, shared: bool) -> io::Result<Option<Self>> {
        let Some(file) = absent_ok(disk.adopt(key, shared))? else { return Ok(None) };
        let Some(file) = file else { return Ok(Some(Self(None))) };
        let size = file.stat()?.size;
        if size > MAX_JOURNAL {
            return Ok(Some(Self(None)));
        }
        let mut bytes = vec![0; usize::try_from(size).unwrap_or(0)];
        let len = file.read_at(&mut bytes, 0)?;
        Ok(Some(Self(journal::read(&bytes[..len]))))
    }

    /// Whether it is of `spec`, and its bytes are in the draft `part`.
    fn is_of(&self, spec: &Spec, part: &Stat) -> bool {
        self.0.as_ref().is_some_and(|journal| {
            let end = journal.parts.ranges.iter().next_back().map_or(0, Extent::end);
            is_of(&journal.header, spec) && journal.header.draft == part.id && part.size >= end
        })
    }

    /// Whether it is of `spec`, and its draft is now `place`.
    fn became(&self, spec: &Spec, place: &Stat) -> bool {
        let header = self.0.as_ref().map(|journal| &journal.header);
        header.is_some_and(|header| is_of(header, spec) && header.draft == place.id && header.size == place.size)
    }
}

/// Whether a journal with this header is of what `spec` asks for.
fn is_of(header: &Header, spec: &Spec) -> bool {
    let source = spec.source.as_ref().map(|(name, modified)| (name.as_str(), *modified));
    Some(header.size) == spec.size && source == Some((&header.source, header.modified)) && header.sum == spec.sum
}

/// What became of the attempt to have a draft for oneself.
enum Part<F> {
    None,
    Mine(F),
    /// It is being written.
    Theirs,
    /// Somebody else has made it, or may have.
    Foreign,
}

/// Opens and locks the draft `key`, and makes sure that it still has that name.
fn open_locked<D: Disk>(disk: &D, key: &Key, shared: bool) -> io::Result<Part<D::File>> {
    let Some(file) = absent_ok(disk.adopt(key, shared))? else { return Ok(Part::None) };
    let Some(file) = file else { return Ok(Part::Foreign) };
    if !file.lock()? {
        return Ok(Part::Theirs);
    }
    let (open, named) = (file.stat()?, absent_ok(disk.stat(key, false))?);
    Ok(if named.is_some_and(|named| named.is(&open)) { Part::Mine(file) } else { Part::Theirs })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::sim::Sim;

    #[test]
    fn an_old_draft_is_locked_until_it_is_removed() {
        let disk = Sim::new(1);
        let key = Key::parse("f").unwrap();
        let names = Names::random(&key).unwrap();
        drop(disk.create(&names.part, 0o600).unwrap());
        let wanted = Wanted { key: &key, home: &key, place: None, label: "f", spec: &Spec::default() };
        let old = take(&disk, &wanted, names.clone(), true).unwrap();
        assert!(matches!(old, Taken::Old(..)));
        assert!(matches!(open_locked(&disk, &names.part, true).unwrap(), Part::Theirs));
        let Taken::Old(names, file) = old else { return };
        sweep(&disk, &names, file).unwrap();
        assert!(matches!(open_locked(&disk, &names.part, true).unwrap(), Part::None));
    }
}
