//! What servers have said is safe of files that go to them as extended blocks, kept on this machine until they are complete: of
//! such a file, what is there has gaps, and its size says nothing.

use phoebus_files::range::Ranges;
use phoebus_proto::gridftp::marker::parse_ranges;
use std::path::{Path, PathBuf};
use std::{fs, io};

/// What a file of marks begins with.
const MAGIC: &str = "phoebus upload 1";

/// How long such a file may be.
const MAX_FILE: u64 = 1 << 20;

/// The marks of one draft.
#[derive(Debug, Clone)]
pub(super) struct Marks {
    file: PathBuf,
    /// The draft.
    label: String,
}

impl Marks {
    /// Those of the draft `label`, in the directory `dir`.
    pub(super) fn of(dir: &Path, label: String) -> Self {
        let digest = ring::digest::digest(&ring::digest::SHA256, label.as_bytes());
        let name: String = digest.as_ref()[..16].iter().map(|byte| format!("{byte:02x}")).collect();
        Self { file: dir.join(name), label }
    }

    /// What was noted; nothing, if what is there is of something else or makes no sense.
    pub(super) fn read(&self) -> Ranges {
        let known = || {
            let size = fs::metadata(&self.file).ok()?.len();
            let text = fs::read_to_string(&self.file).ok().filter(|_| size <= MAX_FILE)?;
            let mut lines = text.lines();
            let mine = lines.next() == Some(MAGIC) && lines.next() == Some(&self.shown());
            let ranges = lines.next().filter(|_| mine)?;
            // The last line says that the one before it is whole.
            (lines.next() == Some("end")).then(|| parse_ranges(ranges).ok())?
        };
        known().unwrap_or_default()
    }

    /// Notes that these are safe, in place of what was noted before.
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

    /// Forgets them.
    pub(super) fn remove(&self) {
        // If it stays, it speaks of a draft that is not there.
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
    fn what_is_noted_is_read_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let marks = Marks::of(&dir.path().join("deep/er"), "gsiftp://h/a\nb".into());
        assert!(marks.read().is_empty());
        let ranges: Ranges = [Extent::new(0, 5).unwrap(), Extent::new(9, 1).unwrap()].into_iter().collect();
        marks.write(&ranges).unwrap();
        assert_eq!(marks.read(), ranges);
        let other = Marks { label: "gsiftp://h/b".into(), ..marks.clone() };
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
