//! The names that drafts have on servers, and which of them this machine has begun: the draft of a source that has changed since has
//! another name, and the one before it would lie there for ever. Nothing on the server tells whose a draft is, so that none is taken away
//! but those that were noted here.

use super::listing::drafts_in;
use super::marks::Marks;
use super::remote::Remote;
use phoebus_files::key::Key;
use phoebus_files::store::{Spec, Store};
use phoebus_files::{Error, Sort, is_engines};
use ring::rand::SecureRandom;
use std::path::{Path, PathBuf};
use std::{fs, io};

/// What such a note begins with.
const MAGIC: &str = "phoebus begun 1";

/// How long one may be.
const MAX_FILE: u64 = 64 << 10;

/// How many drafts are remembered that could not be taken away.
const MOST: usize = 8;

/// The drafts of one destination that were begun from one source, whenever that was modified.
#[derive(Debug, Clone)]
pub(super) struct Begun {
    file: PathBuf,
    /// The source and the destination.
    what: String,
}

impl Begun {
    /// Those from `source` to `dest`, noted in the directory `dir`.
    fn of(dir: &Path, source: &str, dest: &str) -> Self {
        let what = format!("{} {}", source.escape_debug(), dest.escape_debug());
        let digest = ring::digest::digest(&ring::digest::SHA256, what.as_bytes());
        Self { file: dir.join(format!("{}.begun", hex(&digest.as_ref()[..16]))), what }
    }

    /// Those that are begun as this one, if that can be noted.
    pub(super) fn of_draft(remote: &Remote, key: &Key, spec: &Spec) -> Option<Self> {
        let (dir, (source, _)) = (remote.options().state.as_ref()?, spec.source.as_ref()?);
        Some(Self::of(dir, source, &remote.label(key)))
    }

    /// Notes that `part` is begun, and takes away what was begun before it; what cannot be taken away now is tried again the next time.
    pub(super) async fn begin(&self, remote: &Remote, part: &Key) {
        let mut noted = vec![part.clone()];
        for before in self.read().into_iter().filter(|before| before != part) {
            match forget(remote, &before).await {
                Ok(()) => {}
                Err(error) => {
                    tracing::debug!(%error, "the draft of what the source was before stays for now");
                    noted.push(before);
                }
            }
        }
        noted.truncate(MOST);
        if let Err(error) = self.write(&noted) {
            tracing::debug!(path = %self.file.display(), %error, "what is begun cannot be noted");
        }
    }

    /// Notes that nothing is left of it.
    pub(super) fn end(&self, part: &Key) {
        let left: Vec<Key> = self.read().into_iter().filter(|one| one != part).collect();
        // If it stays, it speaks of a draft that is not there.
        let _ = if left.is_empty() { fs::remove_file(&self.file) } else { self.write(&left) };
    }

    /// What was begun, the last first; nothing, if what is there is of something else or makes no sense.
    fn read(&self) -> Vec<Key> {
        let known = || {
            let size = fs::metadata(&self.file).ok()?.len();
            let text = fs::read_to_string(&self.file).ok().filter(|_| size <= MAX_FILE)?;
            let mut lines = text.lines();
            let mine = lines.next() == Some(MAGIC) && lines.next() == Some(&self.what);
            let keys: Vec<&str> = lines.collect();
            // The last line says that those before it are whole.
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

/// Takes away the draft `part`, with what a server of ours keeps of it.
async fn forget(remote: &Remote, part: &Key) -> Result<(), Error> {
    if let Some(dir) = &remote.options().state {
        Marks::of(dir, remote.label(part)).remove();
    }
    let gone = |removed: Result<(), Error>| match removed {
        Err(error) if error.sort() == Sort::NotFound => Ok(()),
        removed => removed,
    };
    if remote.has("XDRAFTS") {
        let (dir, stem) = (part.parent(), [b".", part.name(), b"."].concat());
        // The draft itself comes before its journals, and says whether somebody writes it.
        let mut names: Vec<_> = drafts_in(remote, &dir).await?.into_iter().map(|entry| entry.name).collect();
        names.sort();
        for name in names.iter().filter(|name| is_engines(name) && name.starts_with(&stem)) {
            let Ok(key) = dir.join(name) else { continue };
            gone(remote.discard(&key, None).await)?;
        }
    }
    gone(remote.discard(part, None).await)
}

/// What tells drafts of different sources apart, and those that are sent in blocks from others.
pub(super) fn tag(spec: &Spec, in_blocks: bool) -> String {
    let Some((source, modified)) = &spec.source else {
        // It cannot be gone on with, and others may write the same.
        let mut random = [0; 8];
        let _ = ring::rand::SystemRandom::new().fill(&mut random);
        return hex(&random);
    };
    let here = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let blocks = if in_blocks { "\nin blocks" } else { "" };
    let what = format!("{source}\n{modified:?}\n{:?}\n{here}{blocks}", spec.size);
    hex(&ring::digest::digest(&ring::digest::SHA256, what.as_bytes()).as_ref()[..8])
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes().chunks(2).map(|pair| str::from_utf8(pair).ok().filter(|pair| pair.len() == 2));
    digits.map(|pair| u8::from_str_radix(pair?, 16).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_noted_is_read_and_nothing_else() {
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
