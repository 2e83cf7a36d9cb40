//! Records what servers have synced of uploads in extended blocks, until they are complete: such a draft has gaps that
//! its size does not show.

use phoebus_files::range::Ranges;
use phoebus_proto::gridftp::marker::parse_ranges;
use phoebus_proto::hex::hex;
use std::path::{Path, PathBuf};
use std::{fs, io};

/// First line of a record.
const MAGIC: &str = "phoebus upload 1";

/// Longest record, in bytes.
const MAX_FILE: u64 = 1 << 20;

/// The record of one draft.
#[derive(Debug, Clone)]
pub(super) struct UploadJournal {
    file: PathBuf,
    /// Identifies the draft.
    label: String,
}

impl UploadJournal {
    /// The record of the draft `label`, in the directory `dir`.
    pub(super) fn of(dir: &Path, label: String) -> Self {
        let digest = ring::digest::digest(&ring::digest::SHA256, label.as_bytes());
        Self { file: dir.join(hex(&digest.as_ref()[..16])), label }
    }

    /// Reads the record. Empty if it is invalid or of another draft.
    pub(super) fn read(&self) -> Ranges {
        let known = || {
            let size = fs::metadata(&self.file).ok()?.len();
            let text = fs::read_to_string(&self.file).ok().filter(|_| size <= MAX_FILE)?;
            let mut lines = text.lines();
            let mine = lines.next() == Some(MAGIC) && lines.next() == Some(&self.shown());
            let ranges = lines.next().filter(|_| mine)?;
            // The last line marks the one before as complete.
            (lines.next() == Some("end")).then(|| parse_ranges(ranges).ok())?
        };
        known().unwrap_or_default()
    }

    /// Replaces the record.
    pub(super) fn write(&self, ranges: &Ranges) -> io::Result<()> {
        if ranges.is_empty() {
            return Ok(());
        }
        if let Some(dir) = self.file.parent() {
            fs::create_dir_all(dir)?;
        }
        let next = self.file.with_extension(format!("{}.new", std::process::id()));
        fs::write(&next, format!("{MAGIC}\n{}\n{ranges}\nend\n", self.shown()))?;
        fs::rename(&next, &self.file)
    }

    /// Removes the record.
    pub(super) fn remove(&self) {
        // A record that stays names a draft that does not exist, which does no harm.
        let _ = fs::remove_file(&self.file);
    }

    fn shown(&self) -> String {
        self.label.escape_debug().to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use phoebus_files::range::Extent;

    #[test]
    fn journal_reads_back_exactly_what_was_noted() {
        let dir = tempfile::tempdir().unwrap();
        let marks = UploadJournal::of(&dir.path().join("deep/er"), "gsiftp://h/a\nb".into());
        assert!(marks.read().is_empty());
        let ranges: Ranges = [Extent::new(0, 5).unwrap(), Extent::new(9, 1).unwrap()].into_iter().collect();
        marks.write(&ranges).unwrap();
        assert_eq!(marks.read(), ranges);
        let other = UploadJournal { label: "gsiftp://h/b".into(), ..marks.clone() };
        assert!(other.read().is_empty());
        let text = fs::read_to_string(&marks.file).unwrap();
        for len in 0..text.len() {
            fs::write(&marks.file, &text[..len]).unwrap();
            assert!(marks.read().is_empty() || len == text.len() - 1, "{len}");
        }
        marks.remove();
        assert!(marks.read().is_empty());
    }
}
