//! SIZE, MDTM, MFMT, CKSM, MLST, and listings on the control channel: attributes of files (RFC 3659, GFD.20).

use super::task::{Confirmation, FileTask, Format};
use super::{Session, Step};
use phoebus_files::store::{Attributes, Time};
use phoebus_files::sum::Algorithm;
use phoebus_proto::gridftp::command::Cksm;
use phoebus_proto::gridftp::time::Stamp;

impl Session {
    pub(super) fn size(&self, path: &[u8]) -> Step {
        self.with_file(path, |key| FileTask::Size { key, ascii: self.settings.ascii })
    }

    pub(super) fn mdtm(&self, path: &[u8]) -> Step {
        self.with_file(path, FileTask::Modified)
    }

    pub(super) fn mfmt(&self, time: Stamp, path: &[u8]) -> Step {
        let time = Time { seconds: time.seconds, nanos: time.nanos };
        self.set_time(time, path, Confirmation::Modify(time, path.to_vec()))
    }

    pub(super) fn set_time(&self, time: Time, path: &[u8], said: Confirmation) -> Step {
        let attributes = Attributes { mode: None, modified: Some(time) };
        self.with_file(path, |key| FileTask::Set { key, attributes, said })
    }

    pub(super) fn cksm(&self, cksm: &Cksm) -> Step {
        match cksm.algorithm.parse::<Algorithm>() {
            Ok(algorithm) => {
                let (offset, length) = (cksm.offset, cksm.length);
                self.with_file(&cksm.path, |key| FileTask::Checksum { key, algorithm, offset, length })
            }
            Err(error) => Step::say(504, error.to_string()),
        }
    }

    pub(super) fn mlst(&self, path: Option<&[u8]>) -> Step {
        let facts = self.settings.facts;
        let read_only = self.read_only();
        self.with_file(path.unwrap_or(b"."), |key| {
            let shown = path.map_or_else(|| Self::shown(&key), <[u8]>::to_vec);
            FileTask::Facts { key, shown, facts, read_only }
        })
    }

    pub(super) fn mlsc(&self, path: Option<&[u8]>) -> Step {
        let format = self.facts_format(false);
        self.with_file(path.unwrap_or(b"."), |key| FileTask::List { key, format, code: 250 })
    }

    pub(super) fn drafts(&self, path: Option<&[u8]>) -> Step {
        let format = Format::Drafts { names: self.settings.facts, read_only: self.read_only() };
        self.with_file(path.unwrap_or(b"."), |key| FileTask::List { key, format, code: 250 })
    }

    pub(super) fn stat_path(&self, path: &[u8]) -> Step {
        self.with_file(without_flags(path), |key| FileTask::List { key, format: Format::Long, code: 213 })
    }

    pub(super) fn facts_format(&self, deep: bool) -> Format {
        Format::Facts { names: self.settings.facts, read_only: self.read_only(), deep }
    }

    fn read_only(&self) -> bool {
        self.account().is_none_or(|account| account.read_only)
    }
}

/// Removes the flags of `ls` that many clients put before a path.
pub(super) fn without_flags(path: &[u8]) -> &[u8] {
    let mut rest = path.trim_ascii_start();
    while rest.starts_with(b"-") {
        let end = rest.iter().position(|&b| b == b' ').unwrap_or(rest.len());
        rest = rest[end..].trim_ascii_start();
    }
    if rest.is_empty() { b"." } else { rest }
}
