//! Whether a far destination has what was carried by the names that were said: servers may fold the case of names, shorten them, or
//! write other characters, and then two files may have become one. When the files of a directory are there, its names are read once.

use super::Run;
use crate::error::{Error, Sort};
use crate::key::Key;
use crate::spawned::Spawned;
use crate::store::Store;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

/// How many directories are read at the same time.
const AT_ONCE: usize = 4;

/// A name that lists as its own beginning was shortened; below so many bytes that says nothing.
const BEGINNING: usize = 8;

/// What is not there by its name, and what is known of it.
type Missing = Vec<(Key, Error)>;

/// What came to each directory.
#[derive(Debug, Default)]
pub(super) struct Kept {
    dirs: HashMap<Key, Came>,
    /// Where the last object goes.
    current: Option<Key>,
    looks: VecDeque<Spawned<Result<Missing, Error>>>,
}

#[derive(Debug, Default)]
struct Came {
    names: Vec<Vec<u8>>,
    under_way: usize,
}

impl Kept {
    /// An object begins to be carried to `to`; the directory of which no more is expected, if there is one.
    fn begin(&mut self, to: &Key) -> Option<Key> {
        let dir = to.parent();
        self.dirs.entry(dir.clone()).or_default().under_way += 1;
        let left = self.current.replace(dir.clone()).filter(|left| *left != dir)?;
        self.is_over(&left).then_some(left)
    }

    /// It is there, or was not carried; its directory, if no more of that is expected.
    fn end(&mut self, to: &Key, carried: bool) -> Option<Key> {
        let dir = to.parent();
        let came = self.dirs.get_mut(&dir)?;
        came.under_way = came.under_way.saturating_sub(1);
        if carried {
            came.names.push(to.name().to_vec());
        }
        (self.current.as_ref() != Some(&dir) && self.is_over(&dir)).then_some(dir)
    }

    fn is_over(&self, dir: &Key) -> bool {
        self.dirs.get(dir).is_some_and(|came| came.under_way == 0)
    }
}

impl Run<'_> {
    /// Notes that an object begins to be carried to `to`.
    pub(super) async fn begins(&mut self, to: &Key) {
        if self.job.dest.is_far()
            && let Some(dir) = self.kept.begin(to)
        {
            self.look_for_names(dir).await;
        }
    }

    /// Notes that it has come, or that nothing was carried.
    pub(super) async fn ends(&mut self, to: &Key, carried: bool) {
        if let Some(dir) = self.kept.end(to, carried) {
            self.look_for_names(dir).await;
        }
    }

    /// Looks for all names that were not looked for, and waits for what comes of it.
    pub(super) async fn look_for_all_names(&mut self) {
        let mut dirs: Vec<Key> = self.kept.dirs.keys().cloned().collect();
        dirs.sort();
        for dir in dirs {
            self.look_for_names(dir).await;
        }
        while self.looked().await {}
    }

    async fn look_for_names(&mut self, dir: Key) {
        let names = self.kept.dirs.remove(&dir).map_or_else(Vec::new, |came| came.names);
        // A server that cannot list is asked once.
        if names.is_empty() || self.report.unlisted.is_some() {
            return;
        }
        while self.kept.looks.len() >= AT_ONCE {
            self.looked().await;
        }
        let dest = self.job.dest.clone();
        self.kept.looks.push_back(Spawned::new(async move { missing(&dest, &dir, names).await }));
    }

    async fn looked(&mut self) -> bool {
        let Some(look) = self.kept.looks.pop_front() else { return false };
        let failed = |error| Err(Error::io(self.job.dest.name(), "list", std::io::Error::other(error)));
        match look.end().await.unwrap_or_else(failed) {
            Ok(missing) => {
                for (key, error) in missing {
                    self.failed(key, error);
                }
            }
            Err(error) => drop(self.report.unlisted.get_or_insert(error.to_string())),
        }
        true
    }
}

/// Those of `names`, all of which `dest` has taken, that it does not have in `dir`.
async fn missing(dest: &Arc<dyn Store>, dir: &Key, names: Vec<Vec<u8>>) -> Result<Missing, Error> {
    let (mut missing, mut alike) = (Vec::new(), None);
    let Some(there) = dest.kept_names(dir).await? else { return Ok(missing) };
    for name in names.into_iter().filter(|name| !there.contains(name)) {
        let Ok(key) = dir.join(&name) else { continue };
        let alike = alike.get_or_insert_with(|| there.iter().map(|name| (folded(name), name)).collect());
        let reason = match called(&name, &there, alike) {
            Some(other) => {
                let other = String::from_utf8_lossy(other).escape_debug().to_string();
                format!(
                    "the server alters such names: it calls it \"{other}\", and may have replaced another file by it"
                )
            }
            None => match dest.stat(&key).await {
                // Listings may leave out what is there.
                Ok(_) if name.is_ascii() => continue,
                Ok(_) => "the server alters such names: it has none that is called so".to_owned(),
                Err(error) if error.sort() == Sort::NotFound => {
                    "the server has taken it, and has nothing of that name".to_owned()
                }
                Err(error) => return Err(error),
            },
        };
        missing.push((key.clone(), Error::Store { name: super::shown(&**dest, &key), reason, sort: Sort::Other }));
    }
    Ok(missing)
}

/// Which of the names that are `there` stands for `name`, which is not: one of another case, or its beginning.
fn called<'a>(name: &[u8], there: &'a HashSet<Vec<u8>>, alike: &HashMap<Vec<u8>, &'a Vec<u8>>) -> Option<&'a Vec<u8>> {
    let beginnings = || (BEGINNING..name.len()).rev().map(|len| &name[..len]);
    alike
        .get(&folded(name))
        .copied()
        .or_else(|| beginnings().find_map(|beginning| there.get(beginning)))
        .or_else(|| beginnings().find_map(|beginning| alike.get(&folded(beginning)).copied()))
}

fn folded(name: &[u8]) -> Vec<u8> {
    name.to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn altered_names_are_found() {
        let there: HashSet<Vec<u8>> =
            ["foo2", "a-name-that-is-", "LONG-AND-LO", "x"].map(|n| n.as_bytes().to_vec()).into();
        let alike = there.iter().map(|name| (folded(name), name)).collect();
        let called =
            |name: &str| called(name.as_bytes(), &there, &alike).map(|name| String::from_utf8(name.clone()).unwrap());
        assert_eq!(called("FOO2").as_deref(), Some("foo2"));
        assert_eq!(called("a-name-that-is-long").as_deref(), Some("a-name-that-is-"));
        assert_eq!(called("long-and-longer").as_deref(), Some("LONG-AND-LO"));
        assert_eq!((called("xylophone"), called(".hidden")), (None, None));
    }

    #[test]
    fn a_directory_is_looked_at_once_when_nothing_more_is_on_its_way() {
        let key = |path: &str| Key::parse(path).unwrap();
        let mut kept = Kept::default();
        assert_eq!((kept.begin(&key("a/x")), kept.begin(&key("a/y"))), (None, None));
        assert_eq!(kept.end(&key("a/x"), true), None);
        assert_eq!(kept.begin(&key("b/x")), None);
        assert_eq!(kept.end(&key("a/y"), true), Some(key("a")));
        assert_eq!(kept.end(&key("b/x"), true), None);
        assert_eq!(kept.begin(&key("c/x")), Some(key("b")));
    }
}
