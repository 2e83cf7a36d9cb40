//! What the names in a directory are that are listed as directories: directories themselves, or symbolic links.

use std::collections::HashMap;

/// What a name is that a store lists as a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Own {
    /// A directory itself.
    Yes,
    /// A directory itself, unless the server was told to hide links: [`Store::try_dir`](crate::store::Store::try_dir) tells, of one that has something in it.
    Likely,
    /// A symbolic link to a directory.
    Link,
    /// One of the two: nobody tells.
    Unknown,
}

/// What the names in one directory are that are listed as directories.
#[derive(Debug, Clone)]
pub struct OwnDirs {
    known: HashMap<Vec<u8>, Own>,
    others: Own,
}

impl OwnDirs {
    /// All of them are `own`, but those that are noted otherwise.
    pub fn all(own: Own) -> Self {
        Self { known: HashMap::new(), others: own }
    }

    /// Notes what `name` is. If it is said twice and not the same, it is not known.
    pub fn note(&mut self, name: Vec<u8>, own: Own) {
        let known = self.known.entry(name).or_insert(own);
        if *known != own {
            *known = Own::Unknown;
        }
    }

    /// What `name` is, which is listed as a directory.
    pub fn is(&self, name: &[u8]) -> Own {
        self.known.get(name).copied().unwrap_or(self.others)
    }

    /// How many names are noted.
    pub fn noted(&self) -> usize {
        self.known.len()
    }

    /// What those are that are not noted.
    pub fn others(&self) -> Own {
        self.others
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_twice_and_not_the_same_is_unknown() {
        let mut dirs = OwnDirs::all(Own::Unknown);
        for (name, own) in [("a", Own::Yes), ("l", Own::Link), ("b", Own::Likely), ("a", Own::Yes), ("l", Own::Yes)] {
            dirs.note(name.into(), own);
        }
        assert_eq!(
            ["a", "l", "b", "c"].map(|name| dirs.is(name.as_bytes())),
            [Own::Yes, Own::Unknown, Own::Likely, Own::Unknown]
        );
    }
}
