//! Which files are copied by their size and age: `--min-size`, `--max-size`, `--min-age` and `--max-age`, as rclone has them.

use phoebus_files::plan::Bounds;
use phoebus_files::store::Time;
use phoebus_proto::units::{ByteSize, Span};
use std::time::SystemTime;

/// Bounds of size and age. Files beyond them are left alone at both ends.
#[derive(Debug, Clone, Copy, Default, clap::Args)]
pub(super) struct Choice {
    /// Copy only files of at least this size, such as 1M
    #[arg(long, value_name = "SIZE")]
    min_size: Option<ByteSize>,
    /// Copy only files of at most this size
    #[arg(long, value_name = "SIZE")]
    max_size: Option<ByteSize>,
    /// Copy only files that were modified at least so long ago, such as 10m: files that nobody is writing
    #[arg(long, value_name = "DURATION")]
    min_age: Option<Span>,
    /// Copy only files that were modified at most so long ago, such as 7d
    #[arg(long, value_name = "DURATION")]
    max_age: Option<Span>,
}

impl Choice {
    /// Whether there are any.
    pub(super) fn is_some(&self) -> bool {
        self.min_size.or(self.max_size).is_some() || self.min_age.or(self.max_age).is_some()
    }

    /// The bounds that they are at the time `now`.
    pub(super) fn bounds(&self, now: SystemTime) -> Bounds {
        // What lies before all times that can be told bounds nothing.
        let ago = |span: Option<Span>| span.and_then(|span| now.checked_sub(span.0)).map(Time::from);
        Bounds {
            min_size: self.min_size.map(|size| size.0),
            max_size: self.max_size.map(|size| size.0),
            from: ago(self.max_age),
            to: ago(self.min_age),
        }
    }
}
