//! Metadata of objects.

use std::fmt;
use std::time::SystemTime;

/// Attributes to set. `None` leaves one unchanged.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Attributes {
    /// Permissions, the lower twelve bits. Only the lower nine are ever set, and [`STICKY`] of directories: set-user-ID
    /// and set-group-ID mean an owner, and owners are not copied.
    pub mode: Option<u32>,
    /// When it was modified.
    pub modified: Option<Time>,
}

/// The bit of a directory's permissions with which nobody can remove what belongs to others (`/tmp`).
pub const STICKY: u32 = 0o1000;

/// Metadata of an object or directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Meta {
    /// Its kind.
    pub kind: Kind,
    /// Size in bytes. `None` for devices and streams.
    pub size: Option<u64>,
    /// When its bytes were last modified.
    pub modified: Option<Time>,
    /// Permissions, the lower twelve bits.
    pub mode: Option<u32>,
    /// Whether it is known to have holes.
    pub sparse: bool,
    /// Identity of the file, for files of this machine.
    pub identity: Option<FileId>,
}

/// The identity of a file of this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileId {
    /// Its device.
    pub device: u64,
    /// Its inode number. A later file may have the same.
    pub number: u64,
    /// Its number of names (hard links).
    pub links: u64,
    /// Time of its last change of any kind (ctime), which nobody can set.
    pub changed: Time,
}

impl FileId {
    /// Whether both are the same file.
    pub fn is(&self, other: &Self) -> bool {
        (self.device, self.number) == (other.device, other.number)
    }
}

/// The kind of a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A file.
    File,
    /// A directory.
    Dir,
    /// A symbolic link.
    Link,
    /// A character device, such as `/dev/zero`: bytes without a size.
    Device,
    /// A socket, a pipe, a disk.
    Other,
}

impl Kind {
    /// Description for errors, with an article.
    pub fn described(self) -> &'static str {
        match self {
            Self::File => "a file",
            Self::Dir => "a directory",
            Self::Link => "a symbolic link",
            Self::Device => "a device",
            Self::Other => "neither a file nor a directory",
        }
    }
}

/// An entry of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its name.
    pub name: Vec<u8>,
    /// Its own metadata, not those of a link's target.
    pub meta: Meta,
}

/// A time in seconds and nanoseconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time {
    /// Seconds, negative before 1970.
    pub seconds: i64,
    /// Nanoseconds, below 10^9.
    pub nanos: u32,
}

impl Time {
    /// Whether this is later than `other`. If one of them has whole seconds, as in most protocols, only seconds are
    /// compared.
    pub fn is_after(self, other: Self) -> bool {
        if self.nanos == 0 || other.nanos == 0 { self.seconds > other.seconds } else { self > other }
    }

    /// Whether the two are equal, in the same way.
    pub fn is_about(self, other: Self) -> bool {
        !self.is_after(other) && !other.is_after(self)
    }
}

impl From<SystemTime> for Time {
    fn from(time: SystemTime) -> Self {
        // Seconds since 1970 fit an i64 as long as SystemTime, which holds them in one, does.
        match time.duration_since(SystemTime::UNIX_EPOCH) {
            Ok(after) => Self { seconds: after.as_secs() as i64, nanos: after.subsec_nanos() },
            Err(error) => {
                let before = error.duration();
                let nanos = (1_000_000_000 - before.subsec_nanos()) % 1_000_000_000;
                Self { seconds: -(before.as_secs() as i64) - i64::from(nanos > 0), nanos }
            }
        }
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:09}", self.seconds, self.nanos)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn times_are_compared_as_finely_as_both_are_known() {
        let at = |seconds, nanos| Time { seconds, nanos };
        assert!(at(5, 2).is_after(at(5, 1)) && !at(5, 2).is_after(at(5, 0)) && at(6, 0).is_after(at(5, 9)));
        assert!(at(5, 9).is_about(at(5, 0)) && !at(5, 9).is_about(at(5, 8)));
        let half_before = SystemTime::UNIX_EPOCH - Duration::from_millis(500);
        assert_eq!(Time::from(half_before), at(-1, 500_000_000));
        assert_eq!(Time::from(SystemTime::UNIX_EPOCH + Duration::from_millis(1500)), at(1, 500_000_000));
        assert_eq!(Time::from(SystemTime::UNIX_EPOCH - Duration::from_secs(2)), at(-2, 0));
    }
}
