//! What is known of objects beside their bytes.

use std::fmt;
use std::time::SystemTime;

/// What is set beside bytes; what is none stays what it is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Attributes {
    /// Permissions, the lower twelve bits; those above the lower nine are not given to anything (set-user-ID and the like).
    pub mode: Option<u32>,
    /// When it was modified.
    pub modified: Option<Time>,
}

/// What is known of an object or directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Meta {
    /// What it is.
    pub kind: Kind,
    /// How many bytes it has, if that can be said: devices and streams have no size.
    pub size: Option<u64>,
    /// When its bytes were last modified.
    pub modified: Option<Time>,
    /// Permissions, the lower twelve bits.
    pub mode: Option<u32>,
    /// Whether it is known to have holes: to take less space than it has bytes.
    pub sparse: bool,
    /// Which file it is, whatever its name, where that is known: on disks of this machine.
    pub identity: Option<FileId>,
}

/// Which file of a machine it is, whatever its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileId {
    /// The device that it is on.
    pub device: u64,
    /// Its number there. Another file may have it once this one is gone.
    pub number: u64,
    /// How many names it has.
    pub links: u64,
    /// When anything of it was changed last, its names among it, which nobody can set.
    pub changed: Time,
}

impl FileId {
    /// Whether both are one file.
    pub fn is(&self, other: &Self) -> bool {
        (self.device, self.number) == (other.device, other.number)
    }
}

/// What there is under a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Bytes.
    File,
    /// Other names.
    Dir,
    /// Another path.
    Link,
    /// A character device, such as `/dev/zero`: bytes without a size.
    Device,
    /// A socket, a pipe, a disk.
    Other,
}

impl Kind {
    /// As errors have it, with an article.
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
    /// Its last component.
    pub name: Vec<u8>,
    /// Of itself, not of what a link leads to.
    pub meta: Meta,
}

/// A moment, in seconds and nanoseconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time {
    /// Seconds, negative before 1970.
    pub seconds: i64,
    /// Nanoseconds, below 10^9.
    pub nanos: u32,
}

impl Time {
    /// Whether this is later than `other`, as far as can be told: where one of the two has whole seconds, as most protocols
    /// carry them, only seconds are compared.
    pub fn is_after(self, other: Self) -> bool {
        if self.nanos == 0 || other.nanos == 0 { self.seconds > other.seconds } else { self > other }
    }

    /// Whether the two are the same, as far as can be told.
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
