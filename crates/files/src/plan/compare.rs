//! Decides whether an existing object at the destination suffices (GCT's `-sync`, and what users expect besides it).

use crate::store::{Kind, Meta};
use std::fmt;

/// What to do about existing objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Existing {
    /// Replace them.
    Replace,
    /// Keep them.
    Keep,
    /// Fail.
    Refuse,
    /// Replace them if they differ.
    Sync(By),
}

/// By size and time, so that a repeated command carries nothing.
impl Default for Existing {
    fn default() -> Self {
        Self::Sync(By::Time)
    }
}

/// How objects are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum By {
    /// By size.
    Size,
    /// By size; and the source must not be newer. A destination with preserved time is equal.
    Time,
    /// By size and time of modification, which must be equal: for destinations whose times are preserved.
    Equal,
    /// By size, then by checksum.
    Checksum,
}

/// The decision about an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// Carry it.
    Carry(Reason),
    /// Do not carry it.
    Skip(Reason),
    /// Carry it if checksums differ.
    Compare,
    /// Carrying it would replace something, which is a failure.
    Refuse,
}

/// The reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// The destination does not have it.
    New,
    /// Existing objects are replaced.
    Asked,
    /// The sizes differ.
    Size,
    /// The source is newer.
    Newer,
    /// The times differ.
    Time,
    /// The checksums differ.
    Checksum,
    /// Existing objects are kept.
    There,
    /// They are equal, as far as compared.
    Same,
    /// The content is equal, but not the permissions.
    Mode,
}

impl Existing {
    /// Decides about the object `source`, where the destination has `dest`.
    pub fn decide(self, source: &Meta, dest: Option<&Meta>) -> Decision {
        let Some(dest) = dest else { return Decision::Carry(Reason::New) };
        // If the destination has something else than a file, the attempt shows what is wrong.
        let same_size = dest.kind == Kind::File && source.size.is_some() && source.size == dest.size;
        match self {
            Self::Replace => Decision::Carry(Reason::Asked),
            Self::Keep => Decision::Skip(Reason::There),
            Self::Refuse => Decision::Refuse,
            Self::Sync(_) if !same_size => Decision::Carry(Reason::Size),
            Self::Sync(By::Size) => Decision::Skip(Reason::Same),
            Self::Sync(By::Time) => match (source.modified, dest.modified) {
                (Some(source), Some(dest)) if !source.is_after(dest) => Decision::Skip(Reason::Same),
                _ => Decision::Carry(Reason::Newer),
            },
            Self::Sync(By::Equal) => match (source.modified, dest.modified) {
                (Some(source), Some(dest)) if source.is_about(dest) => Decision::Skip(Reason::Same),
                _ => Decision::Carry(Reason::Time),
            },
            Self::Sync(By::Checksum) => Decision::Compare,
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::New => "not there",
            Self::Asked => "to be replaced",
            Self::Size => "another size",
            Self::Newer => "newer",
            Self::Time => "another time",
            Self::Checksum => "another checksum",
            Self::There => "there already",
            Self::Same => "the same",
            Self::Mode => "another mode",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Time;

    #[test]
    fn only_differences_are_transferred() {
        let file = |size, seconds| Meta {
            kind: Kind::File,
            size: Some(size),
            modified: Some(Time { seconds, nanos: 0 }),
            mode: None,
            sparse: false,
            identity: None,
        };
        let (source, old, new, long) = (file(5, 10), file(5, 9), file(5, 11), file(6, 11));
        let undated = Meta { modified: None, ..source };
        use Decision::{Carry, Compare, Refuse, Skip};
        for (existing, dest, decision) in [
            (Existing::Refuse, None, Carry(Reason::New)),
            (Existing::Refuse, Some(&old), Refuse),
            (Existing::Keep, Some(&long), Skip(Reason::There)),
            (Existing::Replace, Some(&source), Carry(Reason::Asked)),
            (Existing::Sync(By::Size), Some(&old), Skip(Reason::Same)),
            (Existing::Sync(By::Size), Some(&long), Carry(Reason::Size)),
            (Existing::Sync(By::Time), Some(&old), Carry(Reason::Newer)),
            (Existing::Sync(By::Time), Some(&source), Skip(Reason::Same)),
            (Existing::Sync(By::Time), Some(&new), Skip(Reason::Same)),
            (Existing::Sync(By::Time), Some(&long), Carry(Reason::Size)),
            (Existing::Sync(By::Time), Some(&undated), Carry(Reason::Newer)),
            (Existing::Sync(By::Equal), Some(&source), Skip(Reason::Same)),
            (Existing::Sync(By::Equal), Some(&new), Carry(Reason::Time)),
            (Existing::Sync(By::Equal), Some(&undated), Carry(Reason::Time)),
            (Existing::Sync(By::Checksum), Some(&new), Compare),
            (Existing::Sync(By::Checksum), Some(&long), Carry(Reason::Size)),
        ] {
            assert_eq!(existing.decide(&source, dest), decision, "{existing:?} {dest:?}");
        }
    }
}
