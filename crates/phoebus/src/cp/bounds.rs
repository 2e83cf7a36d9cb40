//! Limits of size and age: `--min-size`, `--max-size`, `--min-age` and `--max-age`, as in rclone.

use phoebus_places::choose::Choice;
use phoebus_proto::units::{ByteSize, Span};

/// Bounds of size and age. Files beyond them are left alone at both ends.
#[derive(Debug, Clone, Copy, Default, clap::Args)]
pub(super) struct Bounds {
    /// Copy only files of at least this size, such as 1M
    #[arg(long, value_name = "SIZE")]
    min_size: Option<ByteSize>,
    /// Copy only files of at most this size
    #[arg(long, value_name = "SIZE")]
    max_size: Option<ByteSize>,
    /// Copy only files last modified at least this long ago, such as 10m, to skip files that are being written
    #[arg(long, value_name = "DURATION")]
    min_age: Option<Span>,
    /// Copy only files last modified at most this long ago, such as 7d
    #[arg(long, value_name = "DURATION")]
    max_age: Option<Span>,
}

impl From<Bounds> for Choice {
    fn from(bounds: Bounds) -> Self {
        let Bounds { min_size, max_size, min_age, max_age } = bounds;
        let (min_size, max_size) = (min_size.map(|size| size.0), max_size.map(|size| size.0));
        Self { min_size, max_size, min_age: min_age.map(|age| age.0), max_age: max_age.map(|age| age.0) }
    }
}
