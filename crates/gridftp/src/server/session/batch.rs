//! SITE WANT, SITE MGET and SITE MPUT: many short files over one data connection
//! ([`phoebus_proto::gridftp::batch`]).

use super::task::{DataEndpoint, Operation};
use super::{Session, Step};
use crate::data::Mode;
use phoebus_files::key::Key;
use phoebus_proto::gridftp::batch::{MAX_FILES, MAX_WANTED};
use phoebus_proto::gridftp::marker::Restart;

/// The files that the next SITE MGET sends.
#[derive(Debug, Default)]
pub(super) struct BatchRequest {
    keys: Vec<Key>,
    bytes: usize,
}

impl Session {
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
        let keys = std::mem::take(&mut self.wanted).keys;
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
