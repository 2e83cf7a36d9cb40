//! Directories, and symbolic links that a store calls directories: who removes or takes away what is in a tree must not go behind those.

use std::collections::{HashMap, HashSet};

/// What a directory has in it where links are told from what they lead to, which listings of some servers do not do.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OwnDirs {
    /// What is called a directory, and how many names (hard links) each has, if that is told.
    pub dirs: HashMap<Vec<u8>, Option<u64>>,
    /// What is known to be a symbolic link.
    pub links: HashSet<Vec<u8>>,
    /// How many names the directory has that all of this is in, if that is told.
    pub names: Option<u64>,
    /// How many the directory above it has, if that is told beside.
    pub above: Option<u64>,
}

/// Whether a directory is one itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Own {
    /// It is.
    Yes,
    /// It is a symbolic link to one.
    Link,
    /// Nobody tells: it may be a symbolic link.
    Unknown,
}

impl OwnDirs {
    /// What the directory `name` is. `names` is how many names the directory has that it is in, as that above it tells.
    pub fn is(&self, name: &[u8], names: Option<u64>) -> Own {
        // Lists of lines lose the blanks at the ends of names: then both of two such names are what one of them is.
        let trimmed = name.trim_ascii();
        if self.links.contains(name) || self.links.contains(trimmed) {
            return Own::Link;
        }
        if !self.dirs.contains_key(name) && !self.dirs.contains_key(trimmed) {
            return Own::Unknown;
        }
        match self.most(names).is_some_and(|most| self.dirs.len() as u64 > most) {
            true => Own::Unknown,
            false => Own::Yes,
        }
    }

    /// How many directories there can be in the directory, if that is told: on most file systems a directory has a name in the one above, one
    /// in itself, and one in each directory in it. Where there are more that are called so, some are links, which are shown as what they
    /// lead to. Other file systems say one, or count files, too.
    fn most(&self, names: Option<u64>) -> Option<u64> {
        let names = self.names.or(names)?;
        if let Some(above) = self.above {
            // Whatever has a directory in it has three names. What is not so, or the same of all, is made up, as mounts of SMB have it.
            if above < 3 || (above == names && self.dirs.values().all(|count| *count == Some(names))) {
                return None;
            }
        }
        names.checked_sub(2)
    }

    /// How many names the directory `name` in it has, if that is told.
    pub fn names_of(&self, name: &[u8]) -> Option<u64> {
        self.dirs.get(name).copied().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_directories_than_there_can_be_are_not_all_directories() {
        let own = |dirs: &[&str], names| OwnDirs {
            dirs: dirs.iter().map(|name| (name.as_bytes().to_vec(), Some(3))).collect(),
            links: [b"l".to_vec()].into(),
            names,
            above: None,
        };
        assert_eq!(own(&["a", "b"], Some(4)).is(b"a", None), Own::Yes);
        assert_eq!(own(&["a", "b"], None).is(b"a", Some(4)), Own::Yes);
        assert_eq!(own(&["a", "b"], Some(3)).is(b"a", None), Own::Unknown);
        assert_eq!(own(&["a"], None).is(b"a", Some(2)), Own::Unknown);
        // As btrfs has it, and what counts files.
        assert_eq!(own(&["a", "b"], Some(1)).is(b"a", Some(3)), Own::Yes);
        assert_eq!(own(&["a", "b"], Some(40)).is(b"a", None), Own::Yes);
        assert_eq!(own(&["a"], None).is(b"a", None), Own::Yes);
        assert_eq!((own(&[], None).is(b"l", None), own(&[], None).is(b"a", None)), (Own::Link, Own::Unknown));
        assert_eq!(own(&["a"], None).names_of(b"a"), Some(3));
        let blank = own(&["a"], None);
        assert_eq!(
            (blank.is(b"a ", None), blank.is(b" l\t", None), blank.is(b" ", None)),
            (Own::Yes, Own::Link, Own::Unknown)
        );
        // Numbers that are made up.
        let beside = |count, names, above| OwnDirs {
            dirs: ["a", "b"].map(|name| (name.as_bytes().to_vec(), Some(count))).into(),
            links: HashSet::new(),
            names: Some(names),
            above: Some(above),
        };
        for made_up in [beside(2, 2, 2), beside(3, 3, 3), beside(1, 2, 2)] {
            assert_eq!(made_up.is(b"a", None), Own::Yes, "{made_up:?}");
        }
        for real in [beside(2, 3, 3), beside(3, 3, 4), beside(2, 2, 3)] {
            assert_eq!(real.is(b"a", None), Own::Unknown, "{real:?}");
        }
    }
}
