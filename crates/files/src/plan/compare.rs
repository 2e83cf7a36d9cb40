//! Whether what the destination has will do (GCT's `-sync`, and what people expect beside it).

use crate::store::{Kind, Meta};
use std::fmt;

/// What is done about objects that the destination has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Existing {
    /// They are replaced.
    Replace,
    /// They stay.
    Keep,
    /// That is a failure.
    Refuse,
    /// They are replaced if they differ.
    Sync(By),
}

/// By size and time: what was carried is not carried again by the same command.
impl Default for Existing {
    fn default() -> Self {
        Self::Sync(By::Time)
    }
}

/// By what objects are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum By {
    /// Size alone.
    Size,
    /// Size, and whether the source was modified after the destination. A destination whose time was preserved is equal.
    Time,
    /// Size and time of modification, which are the same or the object is carried: for destinations whose times are preserved.
    Equal,
    /// Size, and then checksums.
    Checksum,
}

/// What is to be done with an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// It is carried.
    Carry(Reason),
    /// It is not, since that is so.
    Skip(Reason),
    /// It is carried if checksums differ.
    Compare,
    /// It cannot be carried without replacing something.
    Refuse,
}

/// Why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// The destination does not have it.
    New,
    /// Whatever is there is to be replaced.
    Asked,
    /// The destination's has another size.
    Size,
    /// The source was modified later.
    Newer,
    /// The source was modified at another time.
    Time,
    /// The checksums differ.
    Checksum,
    /// What is there is to stay.
    There,
    /// What is there is the same, as far as was to be looked.
    Same,
    /// The bytes are the same, and permissions are not.
    Mode,
}

impl Existing {
    /// What is to be done with an object that is `source`, where the destination has `dest`.
    pub fn decide(self, source: &Meta, dest: Option<&Meta>) -> Decision {
        let Some(dest) = dest else { return Decision::Carry(Reason::New) };
        // What is no file at the destination can only be met by trying, which says what is wrong.
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
    fn what_differs_is_carried_and_nothing_else() {
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
