//! The look at the names of one directory of a far destination, for what was carried there.

use super::kept::Came;
use super::one::shown;
use super::{AHEAD, Job};
use crate::error::{Error, Sort};
use crate::key::Key;
use crate::spawned::Spawned;
use crate::store::Meta;
use std::collections::{BTreeMap, HashMap, HashSet};

/// So few files that were named by themselves are asked for one by one: the directory may be a long one, and nobody has listed it.
const FEW: usize = 8;

/// A name that lists as its own beginning was shortened; below so many bytes that says nothing.
const BEGINNING: usize = 8;

pub(super) struct Look {
    pub(super) job: Job,
    pub(super) dir: Key,
}

/// What came of it.
#[derive(Debug, Default)]
pub(super) struct Looked {
    /// What is not there by its name.
    pub(super) missing: Vec<(Key, Error)>,
    /// What is not there, and of which nothing says that the server has altered its name.
    pub(super) gone: Vec<Key>,
    /// Why the names were not looked for, if they were not.
    pub(super) unlisted: Option<String>,
}

/// Something that was carried, its size, and what the destination says of it.
struct Asked {
    key: Key,
    size: u64,
    answer: Result<Meta, Error>,
}

/// The names of a directory, also by what they are folded.
struct There {
    names: HashSet<Vec<u8>>,
    folded: HashMap<Vec<u8>, Vec<u8>>,
}

impl Look {
    /// Looks for all of `came`.
    pub(super) async fn run(self, came: &Came) -> Looked {
        let all = came.all().filter_map(|(name, size)| Some((self.dir.join(name).ok()?, size)));
        let few = !came.of_tree() && came.len() <= FEW;
        let (asked, there) = if few {
            let asked = self.ask(all.collect()).await;
            if are_sure(&asked) {
                return Looked::default();
            }
            match self.names().await {
                Ok(there) => {
                    (asked.into_iter().filter(|asked| !there.names.contains(asked.key.name())).collect(), there)
                }
                Err(error) if asked.iter().all(|asked| asked.answer.is_ok()) => return unlisted(&error),
                // What is not there is not there, whatever else is.
                Err(_) => (asked, There::of(HashSet::new())),
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
        let names = self.job.persist(&self.dir, || self.job.dest.kept_names(&self.dir)).await?;
        Ok(There::of(names.unwrap_or_default()))
    }

    /// Asks for each, some at the same time.
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

    /// What became of those that are not listed by their names.
    async fn judge(&self, asked: Vec<Asked>, there: &There, came: &Came) -> Looked {
        // By the other name that may be theirs.
        let (mut looked, mut claims) = (Looked::default(), BTreeMap::<Vec<u8>, Vec<(Key, u64)>>::new());
        for Asked { key, size, answer } in asked {
            match (answer, there.called(key.name())) {
                (Ok(meta), Some(other)) if self.is_same(&meta, other).await => {
                    looked.missing.push(self.altered(key, other));
                }
                // Listings may leave out what is there.
                (Ok(_), _) if key.name().is_ascii() => {}
                (Ok(_), _) => {
                    let error =
                        self.failure(&key, "the server alters such names: it has none that is called so".to_owned());
                    looked.missing.push((key, error));
                }
                (Err(error), Some(other)) if error.sort() == Sort::NotFound => {
                    claims.entry(other.clone()).or_default().push((key, size));
                }
                (Err(error), None) if error.sort() == Sort::NotFound => self.note_gone(key, &mut looked),
                (Err(error), _) => looked.missing.push((key, error)),
            }
        }
        for (other, claims) in claims {
            let theirs = match self.at(&other).await {
                // It has the size of one of them, or not the one that it was put there with.
                Some(Ok(Meta { size: Some(has), .. })) => {
                    claims.iter().any(|(_, size)| *size == has)
                        || came.all().any(|(name, size)| name == other && size != has)
                }
                _ => true,
            };
            // Or two have become one, whichever of them it is, or it has another case alone.
            let theirs =
                theirs || claims.len() > 1 || claims.iter().any(|(key, _)| folded(key.name()) == folded(&other));
            for (key, _) in claims {
                match theirs {
                    true => looked.missing.push(self.altered(key, &other)),
                    false => self.note_gone(key, &mut looked),
                }
            }
        }
        looked
    }

    /// Notes what was taken and is not there: where no server alters such a name, somebody else has taken it away.
    fn note_gone(&self, key: Key, looked: &mut Looked) {
        if is_plain(key.name()) {
            return looked.gone.push(key);
        }
        let error = self.failure(&key, "the server has taken it, and has nothing of that name".to_owned());
        looked.missing.push((key, error));
    }

    /// Whether what is `meta` seems to be what is called `other`.
    async fn is_same(&self, meta: &Meta, other: &[u8]) -> bool {
        match self.at(other).await {
            Some(Ok(at)) => (at.kind, at.size, at.modified) == (meta.kind, meta.size, meta.modified),
            Some(Err(error)) => error.sort() != Sort::NotFound,
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
        Error::Store { name: shown(&*self.job.dest, key), reason, sort: Sort::Other }
    }
}

fn unlisted(error: &Error) -> Looked {
    Looked { unlisted: Some(error.to_string()), ..Looked::default() }
}

/// Whether these answers tell of as many files, all by names by which they are found.
fn are_sure(asked: &[Asked]) -> bool {
    asked.iter().enumerate().all(|(index, one)| {
        let Ok(meta) = &one.answer else { return false };
        let alike = || asked.iter().enumerate().filter(|(other, _)| *other != index).map(|(_, other)| other);
        let mut alike = alike().filter(|other| may_be_one(one.key.name(), other.key.name())).peekable();
        // Of two that have become one, one does not have its size.
        alike.peek().is_none() || (meta.size == Some(one.size) && alike.all(|other| other.size != one.size))
    })
}

/// Whether a server that folds or shortens names may take two for one.
fn may_be_one(one: &[u8], other: &[u8]) -> bool {
    let (one, other) = (folded(one), folded(other));
    one == other || one.iter().zip(&other).take_while(|(a, b)| a == b).count() >= BEGINNING
}

/// Whether servers that alter names leave this one as it is, unless they fold or shorten it.
fn is_plain(name: &[u8]) -> bool {
    name.iter().all(|byte| matches!(byte, b' '..=b'~'))
        && !name.starts_with(b" ")
        && !matches!(name.last(), Some(b' ' | b'.'))
}

impl There {
    fn of(names: HashSet<Vec<u8>>) -> Self {
        let folded = names.iter().map(|name| (folded(name), name.clone())).filter(|(folded, name)| folded != name);
        Self { folded: folded.collect(), names }
    }

    /// Which name stands for `name`, which is not there: one of another case, or its beginning.
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
