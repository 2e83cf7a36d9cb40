//! SITE WANT, SITE MGET and SITE MPUT: many short files over one data connection
//! ([`phoebus_proto::gridftp::batch`]).

use super::task::{DataEndpoint, Operation};
use super::{Session, Step};
use crate::data::Mode;
use phoebus_accounts::memory::Held;
use phoebus_files::key::Key;
use phoebus_proto::gridftp::batch::{MAX_FILES, MAX_WANTED};
use phoebus_proto::gridftp::marker::Restart;

/// The files that the next SITE MGET sends.
#[derive(Debug, Default)]
pub(super) struct BatchRequest {
    keys: Vec<Key>,
    bytes: usize,
    /// The memory that they take, if somebody counts it.
    held: Option<Held>,
}

/// Bytes of memory that a key takes besides its path.
const KEY: u64 = 64;

impl BatchRequest {
    /// Takes the files off the list.
    pub(super) fn take(&mut self) -> Vec<Key> {
        self.bytes = 0;
        if let Some(held) = &mut self.held {
            held.clear();
        }
        std::mem::take(&mut self.keys)
    }
}

impl Session {
    /// Charges the names of files that the client wants to `held`.
    pub(crate) fn charge_names(&mut self, held: Held) {
        self.wanted.held = Some(held);
    }

    pub(super) fn want(&mut self, paths: &[Vec<u8>]) -> Step {
        let bytes = paths.iter().map(Vec::len).sum::<usize>();
        if self.wanted.keys.len() + paths.len() > MAX_FILES || self.wanted.bytes + bytes > MAX_WANTED {
            let most =
                format!("a batch has at most {MAX_FILES} files, with {MAX_WANTED} bytes of paths; SITE MGET gets them");
            return Step::say(552, most);
        }
        let mut keys = Vec::with_capacity(paths.len());
        for path in paths {
            match self.key(path) {
                Ok(key) => keys.push(key),
                Err(refusal) => return refusal,
            }
        }
        let memory = bytes as u64 + KEY * paths.len() as u64;
        if self.wanted.held.as_mut().is_some_and(|held| !held.try_add(memory)) {
            return Step::say(452, "the server has no memory for more names now; SITE MGET gets those that it has");
        }
        self.wanted.keys.append(&mut keys);
        self.wanted.bytes += bytes;
        Step::say(250, format!("files that are wanted: {}", self.wanted.keys.len()))
    }

    pub(super) fn get_batch(&mut self) -> Step {
        if self.wanted.keys.is_empty() {
            return Step::say(503, "SITE WANT with the names of files has to come first");
        }
        if let Some(refusal) = self.no_batch() {
            return refusal;
        }
        let keys = self.wanted.take();
        self.transfer(b".", |_| Operation::SendBatch { keys })
    }

    pub(super) fn put_batch(&mut self) -> Step {
        self.no_batch().unwrap_or_else(|| self.transfer(b".", |_| Operation::ReceiveBatch))
    }

    /// Why no batch can go now.
    fn no_batch(&mut self) -> Option<Step> {
        if self.settings.mode != Mode::Stream || self.settings.ascii {
            return Some(Step::say(504, "batches go in MODE S and TYPE I"));
        }
        if self.restart.take().is_some_and(|restart| restart != Restart::At(0)) {
            return Some(Step::say(504, "REST cannot precede a batch, which has whole files"));
        }
        (self.aim == DataEndpoint::None).then(|| Step::say(425, "PASV, EPSV, PORT or EPRT has to come first"))
    }
}
