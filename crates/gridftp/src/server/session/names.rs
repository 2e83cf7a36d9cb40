//! CWD, CDUP, PWD, MKD, RMD, DELE, RNFR, RNTO: names (RFC 959).

use super::task::{FileTask, Task};
use super::{Session, Step};
use phoebus_files::key::Key;
use phoebus_proto::gridftp::reply::Reply;

impl Session {
    /// Resolves `path` against the current directory. `/~` and `~` are the directory in which sessions begin.
    ///
    /// # Errors
    /// The reply to a path that leads nowhere.
    pub(super) fn key(&self, path: &[u8]) -> Result<Key, Step> {
        let home = path.strip_prefix(b"/").unwrap_or(path).strip_prefix(b"~");
        let whole = match home {
            Some(rest) if rest.is_empty() || rest.starts_with(b"/") => [self.rules.home.as_bytes(), rest].concat(),
            _ if path.starts_with(b"/") => path.to_vec(),
            _ => [self.place.as_bytes(), path].join(&b'/'),
        };
        Key::parse(whole).map_err(|error| Step::say(553, error.to_string()))
    }

    /// A path as clients see it.
    pub(super) fn shown(key: &Key) -> Vec<u8> {
        [b"/", key.as_bytes()].concat()
    }

    pub(super) fn with_key(&self, path: &[u8], task: impl FnOnce(Key) -> Task) -> Step {
        self.key(path).map_or_else(|refusal| refusal, |key| Step::task(task(key)))
    }

    pub(super) fn with_file(&self, path: &[u8], task: impl FnOnce(Key) -> FileTask) -> Step {
        self.with_key(path, |key| Task::File(task(key)))
    }

    /// Like [`Self::with_key`], for a task that removes or changes the name itself, which the root does not have.
    fn with_name(&self, path: &[u8], task: impl FnOnce(Key) -> Task) -> Step {
        match self.key(path) {
            Ok(key) if key.is_root() => Step::say(550, "the root directory cannot be removed or renamed"),
            Ok(key) => Step::task(task(key)),
            Err(refusal) => refusal,
        }
    }

    pub(super) fn cwd(&self, path: &[u8]) -> Step {
        // The parent of the root is the root.
        let path = if path == b".." && self.place.is_root() { b"/" } else { path };
        self.with_key(path, Task::Enter)
    }

    pub(super) fn pwd(&self) -> Step {
        Step::Say(self.here(257))
    }

    /// The current directory, with quotes doubled (RFC 959, appendix II).
    pub(super) fn here(&self, code: u16) -> Reply {
        Reply::new(code, [b"\"", &doubled(&Self::shown(&self.place))[..], b"\" is the current directory"].concat())
    }

    pub(super) fn mkd(&self, path: &[u8]) -> Step {
        self.with_file(path, FileTask::MakeDir)
    }

    pub(super) fn rmd(&self, path: &[u8]) -> Step {
        self.with_name(path, |key| Task::File(FileTask::RemoveDir(key)))
    }

    pub(super) fn dele(&self, path: &[u8]) -> Step {
        self.with_name(path, |key| Task::File(FileTask::Remove(key)))
    }

    pub(super) fn rnfr(&self, path: &[u8]) -> Step {
        self.with_name(path, Task::Find)
    }

    pub(super) fn rnto(&self, path: &[u8], from: Option<Key>) -> Step {
        match from {
            Some(from) => self.with_name(path, |to| Task::File(FileTask::Rename(from, to))),
            None => Step::say(503, "RNFR has to come first"),
        }
    }
}

/// Doubles the quotes in `path`.
pub(in super::super) fn doubled(path: &[u8]) -> Vec<u8> {
    path.iter().flat_map(|&byte| if byte == b'"' { vec![byte; 2] } else { vec![byte] }).collect()
}
