//! The permissions that files get on a server: as soon as all bytes have come (`SITE CHMOD`), since until then a draft has what the server
//! gives to whatever it is sent.

use super::orders::Refused;
use super::remote::Remote;
use super::unix;
use phoebus_files::Error;
use phoebus_files::key::Key;
use phoebus_files::local::unmasked;
use phoebus_files::store::{Kind, Meta, Spec};
use phoebus_proto::gridftp::reply::Reply;
use std::sync::atomic::Ordering;
use std::sync::{MutexGuard, PoisonError};

/// Of a file that everybody may read.
const READ_BY_ALL: u32 = 0o044;

/// The permissions that a file is to have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Mode {
    bits: u32,
    /// Whether it is told if the server refuses them.
    told: bool,
}

impl Mode {
    /// Whether the owner may read what has them.
    pub(super) fn is_readable(self) -> bool {
        self.bits & 0o400 != 0
    }

    /// The same, if its owner may read what has them. A refusal of these is not told: those that are meant come after them.
    pub(super) fn readable(self) -> Self {
        if self.is_readable() { self } else { Self { bits: self.bits | 0o400, told: false } }
    }

    /// Whether there are users who may not read what has them.
    pub(super) fn is_private(self) -> bool {
        self.bits & READ_BY_ALL != READ_BY_ALL
    }

    /// That which was asked for.
    pub(super) fn asked(bits: u32) -> Self {
        Self { bits, told: true }
    }

    /// That of a file as `spec` says; none, if it is left as the server makes it. `before` is what has its name, if that is known; `in_place`
    /// says that this is written to where it stands.
    pub(super) fn of(spec: &Spec, before: Option<Option<Meta>>, in_place: bool) -> Option<Self> {
        if let Some(bits) = spec.attributes.mode {
            return Some(Self::asked(bits));
        }
        let source = spec.at_most?;
        if in_place && !matches!(before, Some(None)) {
            // It keeps its own.
            return None;
        }
        // What others cannot read at its source they do not read there, and what was there keeps its own.
        let private = Some(source).filter(|mode| mode & READ_BY_ALL != READ_BY_ALL).map(unmasked);
        let own = before.flatten().filter(|meta| meta.kind == Kind::File).and_then(|meta| meta.mode);
        let bits = match (private, own) {
            (Some(private), Some(own)) => private & own,
            (private, own) => private.or(own)? & 0o777,
        };
        Some(Self { bits, told: bits & READ_BY_ALL != READ_BY_ALL })
    }
}

/// Whether the permissions of the file whose place it takes are those that it gets, or part of them.
pub(super) fn keeps_own(spec: &Spec) -> bool {
    spec.replace && spec.attributes.mode.is_none() && spec.at_most.is_some_and(|source| source & 0o077 != 0)
}

impl Remote {
    /// `meta`, which is of `key`, with its permissions, if the server tells them.
    pub(super) async fn with_mode(&self, key: &Key, meta: Meta) -> Result<Meta, Error> {
        if meta.mode.is_some() || meta.kind != Kind::File {
            return Ok(meta);
        }
        // MLST need not tell them. With a path STAT lists on the control connection (RFC 959, section 4.1.3).
        let reply = self.about("STAT", key).await?;
        let path = self.path(key)?;
        let entries = reply.lines.iter().filter_map(|line| unix::parse(line).ok().flatten());
        let mut same = entries.filter(|entry| entry.name == key.name() || entry.name == path);
        let mode = same.next().filter(|entry| reply.is_success() && entry.meta.kind == Kind::File);
        Ok(Meta { mode: mode.and_then(|entry| entry.meta.mode), ..meta })
    }

    /// The line that gives `key`, which is to be called `named`, its permissions; none, if the server is known to refuse that.
    pub(super) fn mode_line(&self, key: &Key, named: &Key, mode: Option<Mode>) -> Result<Option<Vec<u8>>, Error> {
        let Some(mode) = mode else { return Ok(None) };
        if self.0.modeless.load(Ordering::Relaxed) {
            self.note_without_mode(named, mode);
            return Ok(None);
        }
        self.line(&format!("SITE CHMOD {:03o}", mode.bits & 0o777), key).map(Some)
    }

    /// Takes the answer to that.
    pub(super) fn mode_answered(&self, named: &Key, mode: Mode, reply: &Reply) {
        // Many servers have no such command, or let nobody use it.
        if !reply.is_success() {
            self.0.modeless.store(true, Ordering::Relaxed);
            self.note_without_mode(named, mode);
        }
    }

    /// Of how many files and directories the server refused to set the modes, and the names of the first of them.
    pub fn without_modes(&self) -> (u64, Vec<String>) {
        self.refused_modes().told()
    }

    fn note_without_mode(&self, key: &Key, mode: Mode) {
        if mode.told {
            self.refused_modes().note(self.label(key));
        }
    }

    fn refused_modes(&self) -> MutexGuard<'_, Refused> {
        self.0.without_modes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_gets_more_than_source_and_place_allow() {
        let there = |mode| {
            Some(Some(Meta {
                kind: Kind::File,
                size: Some(1),
                modified: None,
                mode: Some(mode),
                sparse: false,
                identity: None,
            }))
        };
        let of = |source, before, in_place| {
            let spec = Spec { at_most: Some(source), replace: true, ..Spec::default() };
            Mode::of(&spec, before, in_place).map(|mode| (mode.bits, mode.told))
        };
        for (source, before, expected) in [
            (0o644, None, None),
            (0o644, Some(None), None),
            (0o600, None, Some((0o600, true))),
            (0o600, there(0o644), Some((0o600, true))),
            (0o644, there(0o600), Some((0o600, true))),
            (0o640, there(0o604), Some((0o600, true))),
            (0o644, there(0o755), Some((0o755, false))),
        ] {
            assert_eq!(of(source, before, false), expected, "{source:o} {before:?}");
        }
        assert_eq!((of(0o600, there(0o644), true), of(0o600, None, true)), (None, None));
        assert_eq!(of(0o600, Some(None), true), Some((0o600, true)));
        let spec = Spec {
            attributes: phoebus_files::store::Attributes { mode: Some(0o644), modified: None },
            ..Spec::default()
        };
        assert_eq!(Mode::of(&spec, there(0o600), true), Some(Mode::asked(0o644)));
    }
}
