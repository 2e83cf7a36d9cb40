//! Whether names that a store lists as directories are directories or symbolic links.

use std::collections::HashMap;

/// The nature of a name that a store lists as a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DirNature {
    /// A directory.
    Yes,
    /// A directory, unless the server was configured to hide links. [`Store::try_dir`](crate::store::Store::try_dir)
    /// tells for a nonempty one.
    Likely,
    /// A symbolic link to a directory.
    Link,
    /// Unknown.
    Unknown,
}

/// The nature of the listed directories in one directory.
#[derive(Debug, Clone)]
pub struct OwnDirs {
    known: HashMap<Vec<u8>, DirNature>,
    others: DirNature,
}

impl OwnDirs {
    /// All are `own`, except recorded ones.
    pub fn all(own: DirNature) -> Self {
        Self { known: HashMap::new(), others: own }
    }

    /// Records the nature of `name`. Contradictory records make it unknown.
    pub fn note(&mut self, name: Vec<u8>, own: DirNature) {
        let known = self.known.entry(name).or_insert(own);
        if *known != own {
            *known = DirNature::Unknown;
        }
    }

    /// The nature of `name`.
    pub fn is(&self, name: &[u8]) -> DirNature {
        self.known.get(name).copied().unwrap_or(self.others)
    }

    /// The number of recorded names.
    pub fn noted(&self) -> usize {
        self.known.len()
    }

    /// The nature of names without a record.
    pub fn others(&self) -> DirNature {
        self.others
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contradictory_listings_are_unknown() {
        let mut dirs = OwnDirs::all(DirNature::Unknown);
        for (name, own) in [
            ("a", DirNature::Yes),
            ("l", DirNature::Link),
            ("b", DirNature::Likely),
            ("a", DirNature::Yes),
            ("l", DirNature::Yes),
        ] {
            dirs.note(name.into(), own);
        }
        assert_eq!(
            ["a", "l", "b", "c"].map(|name| dirs.is(name.as_bytes())),
            [DirNature::Yes, DirNature::Unknown, DirNature::Likely, DirNature::Unknown]
        );
    }
}
