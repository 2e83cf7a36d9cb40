//! Records which drafts this machine has begun on servers. A source that has changed gets a draft with another name,
//! and the earlier draft would stay for ever. Nothing on the server shows the owner of a draft, so only recorded drafts
//! are removed.

use super::listing::drafts_in;
use super::remote::Remote;
use super::upload_journal::UploadJournal;
use phoebus_files::key::Key;
use phoebus_files::store::{Spec, Store};
use phoebus_files::{Error, ErrorKind, is_engines};
use phoebus_proto::hex::{hex, unhex};
use ring::rand::SecureRandom;
use std::path::{Path, PathBuf};
use std::{fs, io};

/// First line of a record.
const MAGIC: &str = "phoebus begun 1";

/// Longest record, in bytes.
const MAX_FILE: u64 = 64 << 10;

/// Most drafts that are remembered because they could not be removed.
const MOST: usize = 8;

/// The drafts from one source to one destination, for any modification time of the source.
#[derive(Debug, Clone)]
pub(super) struct Begun {
    file: PathBuf,
    /// Identifies the source and the destination.
    what: String,
}

impl Begun {
    /// The drafts from `source` to `dest`, recorded in the directory `dir`.
    fn of(dir: &Path, source: &str, dest: &str) -> Self {
        let what = format!("{} {}", source.escape_debug(), dest.escape_debug());
        let digest = ring::digest::digest(&ring::digest::SHA256, what.as_bytes());
        Self { file: dir.join(format!("{}.begun", hex(&digest.as_ref()[..16]))), what }
    }

    /// The record for the draft of the current source, if records are kept.
    pub(super) fn of_draft(remote: &Remote, key: &Key, spec: &Spec) -> Option<Self> {
        let (dir, (source, _)) = (remote.options().state.as_ref()?, spec.source.as_ref()?);
        Some(Self::of(dir, source, &remote.label(key)))
    }

    /// Records that `part` is begun, and removes earlier drafts. Drafts that cannot be removed now are tried again the
    /// next time.
    pub(super) async fn begin(&self, remote: &Remote, part: &Key) {
        let mut noted = vec![part.clone()];
        noted.extend(self.forget_others(remote, part, self.read()).await);
        noted.truncate(MOST);
        if let Err(error) = self.write(&noted) {
            tracing::debug!(path = %self.file.display(), %error, "the names of drafts cannot be recorded");
        }
    }

    /// Removes earlier drafts before `part`, which is too short to be resumed and is not recorded.
    pub(super) async fn clear(&self, remote: &Remote, part: &Key) {
        let known = self.read();
        if known.is_empty() {
            return;
        }
        let left = self.forget_others(remote, part, known).await;
        // A record that stays names drafts that do not exist, which does no harm.
        let _ = if left.is_empty() { fs::remove_file(&self.file) } else { self.write(&left) };
    }

    /// Removes the drafts in `known` except `part`. Returns those that could not be removed.
    async fn forget_others(&self, remote: &Remote, part: &Key, known: Vec<Key>) -> Vec<Key> {
        let mut left = Vec::new();
        for before in known.into_iter().filter(|before| before != part) {
            match forget(remote, &before).await {
                Ok(()) => {}
                Err(error) => {
                    tracing::debug!(%error, "an earlier version's draft cannot be removed yet");
                    left.push(before);
                }
            }
        }
        left
    }

    /// Removes the record after the draft is complete.
    pub(super) fn end(&self, part: &Key) {
        let left: Vec<Key> = self.read().into_iter().filter(|one| one != part).collect();
        // A record that stays names a draft that does not exist, which does no harm.
        let _ = if left.is_empty() { fs::remove_file(&self.file) } else { self.write(&left) };
    }

    /// Reads the record, the last draft first. Empty if the record is invalid or of another transfer.
    fn read(&self) -> Vec<Key> {
        let known = || {
            let size = fs::metadata(&self.file).ok()?.len();
            let text = fs::read_to_string(&self.file).ok().filter(|_| size <= MAX_FILE)?;
            let mut lines = text.lines();
            let mine = lines.next() == Some(MAGIC) && lines.next() == Some(&self.what);
            let keys: Vec<&str> = lines.collect();
            // The last line marks a complete record.
            let (last, keys) = keys.split_last().filter(|_| mine)?;
            (*last == "end").then(|| keys.iter().map(|key| Key::parse(unhex(key)?).ok()).collect::<Option<Vec<_>>>())?
        };
        known().unwrap_or_default()
    }

    fn write(&self, parts: &[Key]) -> io::Result<()> {
        if let Some(dir) = self.file.parent() {
            fs::create_dir_all(dir)?;
        }
        let keys: String = parts.iter().map(|part| hex(part.as_bytes()) + "\n").collect();
        let next = self.file.with_extension(format!("{}.new", std::process::id()));
        fs::write(&next, format!("{MAGIC}\n{}\n{keys}end\n", self.what))?;
        fs::rename(&next, &self.file)
    }
}

/// Removes the draft `part` and its journals.
async fn forget(remote: &Remote, part: &Key) -> Result<(), Error> {
    if let Some(dir) = &remote.options().state {
        UploadJournal::of(dir, remote.label(part)).remove();
    }
    let gone = |removed: Result<(), Error>| match removed {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        removed => removed,
    };
    if remote.has("XDRAFTS") {
        let (dir, stem) = (part.parent(), [b".", part.name(), b"."].concat());
        // Removing the draft itself comes first: it is refused while somebody writes it.
        let mut names: Vec<_> = drafts_in(remote, &dir).await?.into_iter().map(|entry| entry.name).collect();
        names.sort();
        for name in names.iter().filter(|name| is_engines(name) && name.starts_with(&stem)) {
            let Ok(key) = dir.join(name) else { continue };
            gone(remote.discard(&key, None).await)?;
        }
    }
    gone(remote.discard(part, None).await)
}

/// The tag in the name of a draft of `dest`. It differs for each source, user of this machine, directory `state` of the
/// user's records, spelling of the destination, and for uploads in extended blocks: two uploads with the same tag
/// exclude each other by their lock, which is among the records.
pub(super) fn tag(dest: &str, spec: &Spec, in_blocks: bool, state: Option<&Path>) -> String {
    let Some((source, modified)) = &spec.source else {
        // Such a draft cannot be resumed, and others may write one at the same time.
        let mut random = [0; 8];
        let _ = ring::rand::SystemRandom::new().fill(&mut random);
        return hex(&random);
    };
    let here = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let blocks = if in_blocks { "\nin blocks" } else { "" };
    let user = rustix::process::geteuid().as_raw();
    let what = format!("{source}\n{modified:?}\n{:?}\n{here}\n{user}\n{state:?}\n{dest}{blocks}", spec.size);
    hex(&ring::digest::digest(&ring::digest::SHA256, what.as_bytes()).as_ref()[..8])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drafts_without_a_common_lock_have_names_of_their_own() {
        let spec = Spec { source: Some(("file:///x".to_owned(), None)), ..Spec::default() };
        let tags: std::collections::HashSet<String> =
            [(false, Some("/home/a")), (true, Some("/home/a")), (false, Some("/home/b")), (false, None)]
                .map(|(in_blocks, state)| tag("ftp://h/x", &spec, in_blocks, state.map(Path::new)))
                .into();
        assert_eq!(tags.len(), 4);
    }

    #[test]
    fn journal_reads_back_exactly_what_was_noted() {
        let dir = tempfile::tempdir().unwrap();
        let begun = Begun::of(&dir.path().join("deep/er"), "file:///a\nb", "ftp://h/x");
        assert!(begun.read().is_empty());
        let keys = ["a/.x.1.phoebus-part", "\u{e9}"].map(|key| Key::parse(key).unwrap());
        begun.write(&keys).unwrap();
        assert_eq!(begun.read(), keys);
        let other = Begun { what: "other".into(), ..begun.clone() };
        assert!(other.read().is_empty());
        let text = fs::read_to_string(&begun.file).unwrap();
        for len in 0..text.len() {
            fs::write(&begun.file, &text[..len]).unwrap();
            assert!(begun.read().is_empty() || len == text.len() - 1, "{len}");
        }
        begun.write(&keys).unwrap();
        begun.end(&keys[0]);
        assert_eq!(begun.read(), keys[1..]);
        begun.end(&keys[1]);
        assert!(!begun.file.exists());
    }
}
