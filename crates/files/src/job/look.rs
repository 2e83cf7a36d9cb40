//! Checks the names in one directory of a remote destination against the carried objects.

use super::arrived::Arrived;
use super::one::shown;
use super::{AHEAD, Job};
use crate::error::{Error, ErrorKind};
use crate::key::Key;
use crate::spawned::Spawned;
use crate::store::Meta;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Up to this many individually named files are asked for one by one, instead of listing a possibly long directory.
const FEW: usize = 8;

/// A listed prefix of a name means that the name was shortened, if it has at least this many bytes.
const BEGINNING: usize = 8;

pub(super) struct NameCheck {
    pub(super) job: Job,
    pub(super) dir: Key,
    /// Whether an earlier look failed with a temporary error: then each is tried once, until one succeeds.
    pub(super) weary: Arc<AtomicBool>,
}

/// The result.
#[derive(Debug, Default)]
pub(super) struct CheckedNames {
    /// Objects that are missing under their names.
    pub(super) missing: Vec<(Key, Error)>,
    /// Missing objects without a sign that the server altered their names.
    pub(super) gone: Vec<Key>,
    /// Why the names were not checked, if they were not.
    pub(super) unlisted: Option<String>,
}

/// A carried object, its size, and the destination's metadata.
struct Asked {
    key: Key,
    size: u64,
    answer: Result<Meta, Error>,
}

/// The names in a directory, also in folded form.
struct There {
    names: HashSet<Vec<u8>>,
    folded: HashMap<Vec<u8>, Vec<u8>>,
}

impl NameCheck {
    /// Checks all of `came`.
    pub(super) async fn run(mut self, came: &Arrived) -> CheckedNames {
        if self.weary.load(Ordering::Relaxed) {
            self.job.retry.attempts = 1;
        }
        let all = came.all().filter_map(|(name, size)| Some((self.dir.join(name).ok()?, size)));
        let few = !came.of_tree && came.len() <= FEW;
        let (asked, there) = if few {
            let asked = self.ask(all.collect()).await;
            if are_sure(&asked) {
                return CheckedNames::default();
            }
            match self.names().await {
                Ok(there) => {
                    (asked.into_iter().filter(|asked| !there.names.contains(asked.key.name())).collect(), there)
                }
                Err(error) if asked.iter().all(|asked| asked.answer.is_ok()) => return unlisted(&error),
                // Missing names are missing, whatever else happens; the others have not been seen.
                Err(error) => {
                    let asked = asked.into_iter().filter(|asked| asked.answer.is_err()).collect();
                    let looked = self.judge(asked, &There::of(HashSet::new()), came).await;
                    return CheckedNames { unlisted: Some(error.to_string()), ..looked };
                }
            }
        } else {
            match self.names().await {
                Ok(there) => {
                    let unseen = all.filter(|(key, _)| !there.names.contains(key.name()));
                    (self.ask(unseen.collect()).await, there)
                }
                Err(error) => return unlisted(&error),
            }
        };
        self.judge(asked, &there, came).await
    }

    async fn names(&self) -> Result<There, Error> {
        let names = self.job.persist(&self.dir, || self.job.dest.kept_names(&self.dir)).await;
        self.weary.store(matches!(&names, Err(error) if error.may_pass()), Ordering::Relaxed);
        Ok(There::of(names?.unwrap_or_default()))
    }

    /// Asks for each name, several at a time.
    async fn ask(&self, all: Vec<(Key, u64)>) -> Vec<Asked> {
        let (mut asked, mut all) = (Vec::new(), all.into_iter());
        loop {
            let begin = |(key, size): (Key, u64)| {
                let (job, at) = (self.job.clone(), key.clone());
                (key, size, Spawned::new(async move { job.persist(&at, || job.dest.stat(&at)).await }))
            };
            let some: Vec<_> = all.by_ref().take(AHEAD).map(begin).collect();
            if some.is_empty() {
                return asked;
            }
            for (key, size, answer) in some {
                let failed = |error| Err(Error::io(self.job.dest.name(), "look at", std::io::Error::other(error)));
                asked.push(Asked { key, size, answer: answer.end().await.unwrap_or_else(failed) });
            }
        }
    }

    /// Decides about objects that are not listed.
    async fn judge(&self, asked: Vec<Asked>, there: &There, came: &Arrived) -> CheckedNames {
        // Finds them under another name.
        let (mut looked, mut claims) = (CheckedNames::default(), BTreeMap::<Vec<u8>, Vec<(Key, u64)>>::new());
        // Names that others may have become, with the sizes of those.
        let mut taken = BTreeMap::<Vec<u8>, Vec<u64>>::new();
        for Asked { key, size, answer } in asked {
            match (answer, there.called(key.name())) {
                (Ok(meta), Some(other)) if self.is_same(&meta, other).await => {
                    taken.entry(other.clone()).or_default().push(size);
                    looked.missing.push(self.altered(key, other));
                }
                // Listings may omit names.
                (Ok(_), _) if key.name().is_ascii() => {}
                (Ok(_), _) => {
                    let error =
                        self.failure(&key, "the server alters such names: it has none that is called so".to_owned());
                    looked.missing.push((key, error));
                }
                (Err(error), Some(other)) if error.kind() == ErrorKind::NotFound => {
                    claims.entry(other.clone()).or_default().push((key, size));
                }
                (Err(error), None) if error.kind() == ErrorKind::NotFound => self.note_gone(key, &mut looked),
                (Err(error), _) => looked.missing.push((key, error)),
            }
        }
        for (other, claims) in claims {
            let theirs = match self.at(&other).await {
                // Its size is that of another object, or not the carried one.
                Some(Ok(Meta { size: Some(has), .. })) => {
                    claims.iter().any(|(_, size)| *size == has)
                        || came.all().any(|(name, size)| name == other && size != has)
                }
                _ => true,
            };
            // Or two objects have become one, or only the case differs.
            let theirs =
                theirs || claims.len() > 1 || claims.iter().any(|(key, _)| folded(key.name()) == folded(&other));
            for (key, size) in claims {
                if theirs {
                    taken.entry(other.clone()).or_default().push(size);
                    looked.missing.push(self.altered(key, &other));
                } else {
                    self.note_gone(key, &mut looked);
                }
            }
        }
        self.note_replaced(taken, came, &mut looked).await;
        looked
    }

    /// Decides about an object under a name of these: it is there unless its size fits none.
    async fn note_replaced(&self, mut taken: BTreeMap<Vec<u8>, Vec<u64>>, came: &Arrived, looked: &mut CheckedNames) {
        if taken.is_empty() {
            return;
        }
        for (name, size) in came.all() {
            let Some(others) = taken.remove(name) else { continue };
            let has = match self.at(name).await {
                Some(Ok(meta)) => meta.size,
                _ => None,
            };
            let is_own = has == Some(size) && !others.contains(&size);
            if let Ok(key) = self.dir.join(name)
                && !is_own
            {
                let reason = "the server alters names, and another file has taken its place, or may have".to_owned();
                let error = self.failure(&key, reason);
                looked.missing.push((key, error));
            }
        }
    }

    /// Records an object that was removed: no server alters such a name, so somebody has removed it.
    fn note_gone(&self, key: Key, looked: &mut CheckedNames) {
        if is_plain(key.name()) {
            return looked.gone.push(key);
        }
        let error = self.failure(&key, "the server has taken it, and has nothing of that name".to_owned());
        looked.missing.push((key, error));
    }

    /// Whether `meta` may describe `other`.
    async fn is_same(&self, meta: &Meta, other: &[u8]) -> bool {
        match self.at(other).await {
            Some(Ok(at)) => (at.kind, at.size, at.modified) == (meta.kind, meta.size, meta.modified),
            Some(Err(error)) => error.kind() != ErrorKind::NotFound,
            None => true,
        }
    }

    async fn at(&self, name: &[u8]) -> Option<Result<Meta, Error>> {
        let key = self.dir.join(name).ok()?;
        Some(self.job.persist(&key, || self.job.dest.stat(&key)).await)
    }

    fn altered(&self, key: Key, other: &[u8]) -> (Key, Error) {
        let other = String::from_utf8_lossy(other).escape_debug().to_string();
        let reason =
            format!("the server alters such names: it calls it \"{other}\", and may have replaced another file by it");
        let error = self.failure(&key, reason);
        (key, error)
    }

    fn failure(&self, key: &Key, reason: String) -> Error {
        Error::Store { name: shown(&*self.job.dest, key), reason, kind: ErrorKind::Other }
    }
}

fn unlisted(error: &Error) -> CheckedNames {
    CheckedNames { unlisted: Some(error.to_string()), ..CheckedNames::default() }
}

/// Whether the answers describe as many files, each found under its own name.
fn are_sure(asked: &[Asked]) -> bool {
    asked.iter().enumerate().all(|(index, one)| {
        let Ok(meta) = &one.answer else { return false };
        let alike = || asked.iter().enumerate().filter(|(other, _)| *other != index).map(|(_, other)| other);
        let mut alike = alike().filter(|other| may_be_one(one.key.name(), other.key.name())).peekable();
        // If two objects have become one, one of them does not have its size.
        alike.peek().is_none() || (meta.size == Some(one.size) && alike.all(|other| other.size != one.size))
    })
}

/// Whether a server that folds or shortens names may confuse two names.
pub(super) fn may_be_one(one: &[u8], other: &[u8]) -> bool {
    let (one, other) = (folded(one), folded(other));
    one == other || one.iter().zip(&other).take_while(|(a, b)| a == b).count() >= BEGINNING
}

/// Whether servers that alter names keep this one, apart from folding and shortening.
fn is_plain(name: &[u8]) -> bool {
    // Some systems give these characters a meaning, or refuse them.
    name.iter().all(|byte| matches!(byte, b' '..=b'~') && !b"\\:*?\"<>|;".contains(byte))
        && !name.starts_with(b" ")
        && !matches!(name.last(), Some(b' ' | b'.'))
}

impl There {
    fn of(names: HashSet<Vec<u8>>) -> Self {
        let folded = names.iter().map(|name| (folded(name), name.clone())).filter(|(folded, name)| folded != name);
        Self { folded: folded.collect(), names }
    }

    /// The name that stands for the missing `name`: one of another case, or a prefix.
    fn called(&self, name: &[u8]) -> Option<&Vec<u8>> {
        let by_case = |name: &[u8]| {
            let folded = folded(name);
            self.names.get(&folded).or_else(|| self.folded.get(&folded))
        };
        let beginnings = || (BEGINNING..name.len()).rev().map(|len| &name[..len]);
        by_case(name)
            .or_else(|| beginnings().find_map(|beginning| self.names.get(beginning)))
            .or_else(|| beginnings().find_map(by_case))
    }
}

fn folded(name: &[u8]) -> Vec<u8> {
    name.to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn altered_names_are_found() {
        let there = There::of(["foo2", "a-name-that-is-", "LONG-AND-LO", "x"].map(|n| n.as_bytes().to_vec()).into());
        let called = |name: &str| there.called(name.as_bytes()).map(|name| String::from_utf8(name.clone()).unwrap());
        assert_eq!(called("FOO2").as_deref(), Some("foo2"));
        assert_eq!(called("a-name-that-is-long").as_deref(), Some("a-name-that-is-"));
        assert_eq!(called("long-and-longer").as_deref(), Some("LONG-AND-LO"));
        assert_eq!((called("xylophone"), called(".hidden")), (None, None));
    }
}
