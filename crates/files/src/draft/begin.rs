//! Begins a draft: new, resumed from an earlier attempt, or not at all because that attempt was complete.

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

/// Smallest object, in bytes, whose draft can be resumed. A journal costs three syncs, more than sending a shorter
/// object.
pub(crate) const JOURNAL_FROM: u64 = 16 << 20;

/// Smallest object for which space is reserved, so that a lack of space fails at once.
const RESERVE_FROM: u64 = 1 << 20;

/// Most attempts at an unpredictable name. A collision is as likely as a guess.
const NAMES: usize = 4;

/// A draft that has begun, or an object that is complete.
pub(crate) enum Start<D: Disk> {
    /// With this.
    Work(Box<Work<D>>),
    /// An earlier attempt had published it.
    Done,
}

impl<D: Disk> Work<D> {
    /// Begins the draft of `key`, or resumes one of the same `spec`. `label` is the destination's name in errors.
    /// Objects of fewer bytes than `journal_from`, or of unknown size, are not resumed. A new file whose permissions
    /// `spec` leaves open gets those of `mode`. The draft's names are those of `home`, on the same file system.
    ///
    /// # Errors
    /// [`Error::Busy`] at once if another holds the lock. Others are final.
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
        let request = DraftRequest { key, home, place, label: &label, spec: &spec };
        let Some(owned) = own(&**disk, &request, journalled)? else { return Ok(Start::Done) };
        let LockedDraft { names, file, mut left } = owned;
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
            // Its records belong to earlier bytes, not to those that will be written.
            disk.unlink(&names.journal).map_err(failed("remove the old journal of"))?;
            disk.sync_dir(&home.parent()).map_err(failed("sync the directory of"))?;
        }
        let afresh = kept.ranges.is_empty();
        if let Err(error) = make_room(&file, afresh && stat.size > 0, &spec) {
            if afresh {
                // A lack of space leaves nothing behind.
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
            // Without a journal, nobody could resume a new draft. A resumed one still has its journal.
            let journal = work.start_journal(&kept);
            if journal.is_err() && afresh {
                work.discard();
            }
            *lock(&work.journal) = Some(journal?);
        }
        Ok(Start::Work(Box::new(work)))
    }
}

/// The file that the draft `file` replaces, if there is one. Checks that the draft can take over its attributes.
/// Concurrent writers of one name may find that another has just replaced it.
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

/// Empties the draft's file, and sets its final length.
fn make_room(file: &impl DiskFile, old: bool, spec: &Spec) -> io::Result<()> {
    if old {
        file.set_len(0)?;
    }
    let Some(size) = spec.size else { return Ok(()) };
    file.set_len(size)?;
    if size >= RESERVE_FROM && !spec.sparse { file.reserve(size) } else { Ok(()) }
}

/// Whether the existing destination may be replaced.
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

/// A locked draft.
struct LockedDraft<F> {
    names: Names,
    file: F,
    /// Its journal.
    left: Option<Left>,
}

/// Opens or creates the draft's file, and locks it. `None` if a journal says that the destination is already the
/// complete object.
///
/// Where only this user makes names, the draft's name is fixed, and the lock excludes concurrent writers. Where others
/// make names too, they could make that name first, so the name is unpredictable, and an earlier draft is searched if
/// that is worth it.
fn own<D: Disk>(disk: &D, request: &DraftRequest<'_>, journalled: bool) -> Result<Option<LockedDraft<D::File>>, Error> {
    let (home, label) = (request.home, request.label);
    let failed = |act| move |error| Error::io(label, act, error);
    let shared = disk.is_shared(&home.parent()).map_err(failed("look at the directory of"))?;
    let usual = Names::of(home).map_err(|error| Error::io(label, "name", io::Error::other(error)))?;
    let candidates = match (shared, journalled) {
        (false, _) => vec![usual],
        (true, false) => Vec::new(),
        (true, true) => match disk.names_in(&home.parent()) {
            Ok(names) => Names::found(home, &names),
            // Where uploads go that others do not see, nobody finds a draft again.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Vec::new(),
            Err(error) => return Err(failed("list the directory of")(error)),
        },
    };
    let (mut mine, mut swept) = (None, false);
    for names in candidates {
        let taken = take(disk, request, names, shared);
        if taken.is_err() && swept {
            // The next attempt does not see what is swept already.
            disk.sync_dir(&home.parent()).map_err(failed("sync the directory of"))?;
        }
        match taken? {
            Taken::Mine(owned) if mine.is_none() => mine = Some(owned),
            Taken::Mine(LockedDraft { names, file, .. }) => {
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
        // A journal that reappeared after power loss would describe another file.
        disk.sync_dir(&home.parent()).map_err(failed("sync the directory of"))?;
    }
    if mine.is_some() {
        return Ok(mine);
    }
    for _ in 0..NAMES {
        let names = Names::random(home).map_err(failed("name the draft of"))?;
        match disk.create(&names.part, 0o600) {
            Ok(file) if file.lock().map_err(failed("lock the draft of"))? => {
                return Ok(Some(LockedDraft { names, file, left: None }));
            }
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(failed("begin")(error)),
        }
    }
    Err(Error::Busy { name: label.to_owned() })
}

/// The subject of a draft.
struct DraftRequest<'a> {
    key: &'a Key,
    /// The key that names the draft: the same, unless drafts have their own directory.
    home: &'a Key,
    /// The existing destination.
    place: Option<Stat>,
    label: &'a str,
    spec: &'a Spec,
}

/// The result of looking at one name of a draft.
enum Taken<F> {
    Mine(LockedDraft<F>),
    Published,
    /// It is of another source, or empty; nobody will resume it. Its file, if any, is locked.
    Old(Names, Option<F>),
    /// Another user has made it.
    Foreign,
}

/// Removes this user's files with these names, where others make names too. `_locked` keeps others from writing what is
/// removed.
fn sweep<D: Disk>(disk: &D, names: &Names, _locked: Option<D::File>) -> io::Result<()> {
    for name in [&names.journal, &names.next, &names.part] {
        if let Some(Some(_)) = absent_ok(disk.adopt(name, true))? {
            absent_ok(disk.unlink(name))?;
        }
    }
    Ok(())
}

/// Opens the draft with these `names` if it is this user's. Creates it unless others can make names there.
fn take<D: Disk>(disk: &D, request: &DraftRequest<'_>, names: Names, shared: bool) -> Result<Taken<D::File>, Error> {
    let (key, label, spec) = (request.key, request.label, request.spec);
    let failed = |act| move |error| Error::io(label, act, error);
    loop {
        let part = open_locked(disk, &names.part, shared).map_err(failed("open the draft of"))?;
        let left = Left::read(disk, &names.journal, shared).map_err(failed("read the journal of"))?;
        match part {
            Part::Mine(file) if !shared => return Ok(Taken::Mine(LockedDraft { names, file, left })),
            Part::Mine(file) => {
                let stat = file.stat().map_err(failed("look at the draft of"))?;
                if left.as_ref().is_some_and(|left| left.is_of(spec, &stat)) {
                    return Ok(Taken::Mine(LockedDraft { names, file, left }));
                }
                return Ok(Taken::Old(names, Some(file)));
            }
            Part::None => {
                if left.as_ref().zip(request.place).is_some_and(|(left, place)| left.became(spec, &place)) {
                    disk.sync_dir(&key.parent()).map_err(failed("sync the directory of"))?;
                    absent_ok(disk.unlink(&names.journal)).map_err(failed("remove the journal of"))?;
                    return Ok(Taken::Published);
                }
                if shared {
                    return Ok(Taken::Old(names, None));
                }
                match disk.create(&names.part, 0o600) {
                    Ok(file) if file.lock().map_err(failed("lock the draft of"))? => {
                        return Ok(Taken::Mine(LockedDraft { names, file, left }));
                    }
                    Ok(_) => {}
                    Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                    Err(error) => return Err(failed("begin")(error)),
                }
            }
            Part::Foreign => return Ok(Taken::Foreign),
            Part::Theirs => return Err(Error::Busy { name: label.to_owned() }),
        }
    }
}

/// The journal of an earlier attempt. `None` inside if it cannot be read.
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

    /// Whether the journal is of `spec`, and describes the draft `part`.
    fn is_of(&self, spec: &Spec, part: &Stat) -> bool {
        self.0.as_ref().is_some_and(|journal| {
            let end = journal.parts.ranges.iter().next_back().map_or(0, Extent::end);
            is_of(&journal.header, spec) && journal.header.draft == part.id && part.size >= end
        })
    }

    /// Whether the journal is of `spec`, and its draft is now `place`.
    fn became(&self, spec: &Spec, place: &Stat) -> bool {
        let header = self.0.as_ref().map(|journal| &journal.header);
        header.is_some_and(|header| is_of(header, spec) && header.draft == place.id && header.size == place.size)
    }
}

/// Whether a header matches `spec`.
fn is_of(header: &Header, spec: &Spec) -> bool {
    let source = spec.source.as_ref().map(|(name, modified)| (name.as_str(), *modified));
    Some(header.size) == spec.size && source == Some((&header.source, header.modified)) && header.sum == spec.sum
}

/// The result of locking a draft.
enum Part<F> {
    None,
    Mine(F),
    /// It is being written.
    Theirs,
    /// Another user has, or may have, made it.
    Foreign,
}

/// Opens and locks the draft `key`, and checks that it still has that name.
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
    fn old_draft_is_locked_until_removed() {
        let disk = Sim::new(1);
        let key = Key::parse("f").unwrap();
        let names = Names::random(&key).unwrap();
        drop(disk.create(&names.part, 0o600).unwrap());
        let request = DraftRequest { key: &key, home: &key, place: None, label: "f", spec: &Spec::default() };
        let old = take(&disk, &request, names.clone(), true).unwrap();
        assert!(matches!(old, Taken::Old(..)));
        assert!(matches!(open_locked(&disk, &names.part, true).unwrap(), Part::Theirs));
        let Taken::Old(names, file) = old else { return };
        sweep(&disk, &names, file).unwrap();
        assert!(matches!(open_locked(&disk, &names.part, true).unwrap(), Part::None));
    }
}
