//! Permissions of uploaded files (`SITE CHMOD`), which are set as soon as all bytes have arrived. Before that, a draft
//! has the server's default permissions, or is private (`private`).

use super::error::{kind, refused};
use super::known::Refused;
use super::remote::Remote;
use phoebus_files::key::Key;
use phoebus_files::local::unmasked;
use phoebus_files::store::{Kind, Meta, STICKY, Spec};
use phoebus_files::{Error, ErrorKind};
use phoebus_proto::gridftp::reply::Reply;
use std::sync::atomic::Ordering;
use std::sync::{MutexGuard, PoisonError};

/// Mode of a file that everybody may read.
const READ_BY_ALL: u32 = 0o044;

/// The permissions that a file is to get.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Mode {
    bits: u32,
    /// Whether a refusal is reported.
    told: bool,
}

impl Mode {
    /// Whether they let the owner read.
    pub(super) fn is_readable(self) -> bool {
        self.bits & 0o400 != 0
    }

    /// The same if they let the owner read. A refusal is not reported, since the final mode follows.
    pub(super) fn readable(self) -> Self {
        if self.is_readable() { self } else { Self { bits: self.bits | 0o400, told: false } }
    }

    /// Whether they exclude other users from reading.
    pub(super) fn is_private(self) -> bool {
        self.bits & READ_BY_ALL != READ_BY_ALL
    }

    /// The mode.
    pub(super) fn asked(bits: u32) -> Self {
        Self { bits, told: true }
    }

    /// The permissions for a file under `spec`. `None` leaves the server's default. `before` is the existing file, if
    /// known; `in_place`: the file is overwritten.
    pub(super) fn of(spec: &Spec, before: Option<Option<Meta>>, in_place: bool) -> Option<Self> {
        if let Some(bits) = spec.attributes.mode {
            return Some(Self::asked(bits & 0o777));
        }
        let source = spec.at_most?;
        if in_place && !matches!(before, Some(None)) {
            // An overwritten file keeps its permissions.
            return None;
        }
        // A file that is private at its source stays private; the permissions of a replaced file are kept.
        let private = Some(source).filter(|mode| mode & READ_BY_ALL != READ_BY_ALL).map(unmasked);
        let own = before.flatten().filter(|meta| meta.kind == Kind::File).and_then(|meta| meta.mode);
        let bits = match (private, own) {
            (Some(private), Some(own)) => private & own,
            (private, own) => private.or(own)? & 0o777,
        };
        Some(Self { bits, told: bits & READ_BY_ALL != READ_BY_ALL })
    }
}

/// Whether the permissions depend on those of the replaced file.
pub(super) fn keeps_own(spec: &Spec) -> bool {
    spec.replace && spec.attributes.mode.is_none() && spec.at_most.is_some_and(|source| source & 0o077 != 0)
}

impl Remote {
    /// Adds the permissions of `key` to `meta`, if the server tells them.
    pub(super) async fn with_mode(&self, key: &Key, meta: Meta) -> Result<Meta, Error> {
        if meta.mode.is_some() || meta.kind != Kind::File {
            return Ok(meta);
        }
        // MLST may lack them.
        let stated = self.listed_by_stat(key).await?.filter(|stated| stated.kind == Kind::File);
        Ok(Meta { mode: stated.and_then(|stated| stated.mode), ..meta })
    }

    /// The command that sets the permissions of `key`, the draft of `named`. `None` if the server is known to refuse
    /// it.
    pub(super) fn mode_line(&self, key: &Key, named: &Key, mode: Option<Mode>) -> Result<Option<Vec<u8>>, Error> {
        let Some(mode) = mode else { return Ok(None) };
        if self.0.modeless.load(Ordering::Relaxed) {
            self.note_without_mode(named, mode);
            return Ok(None);
        }
        self.line(&format!("SITE CHMOD {:03o}", mode.bits & (0o777 | STICKY)), key).map(Some)
    }

    /// Handles the reply to that command. Returns why the permissions of this name were refused, if others may succeed.
    /// `is_ours`: this client has created the file.
    ///
    /// # Errors
    /// A temporary refusal (4xx), also on a second attempt.
    pub(super) async fn mode_answered(
        &self,
        key: &Key,
        named: &Key,
        mode: Mode,
        reply: Reply,
        is_ours: bool,
    ) -> Result<Option<Error>, Error> {
        let reply = match reply.is_transient_failure() {
            true => match self.mode_line(key, named, Some(mode))? {
                Some(line) => self.ask(line).await?,
                None => return Ok(None),
            },
            false => reply,
        };
        if reply.is_success() {
            return Ok(None);
        }
        let refusal = refused(&self.label(named), "set the mode of", "SITE CHMOD", &reply);
        if reply.is_transient_failure() {
            return Err(refusal);
        }
        if is_for_all(&reply, is_ours) {
            self.0.modeless.store(true, Ordering::Relaxed);
            self.note_without_mode(named, mode);
            return Ok(None);
        }
        Ok(Some(refusal))
    }

    /// The number of files and directories whose modes the server refused to set, and the names of the first ones.
    pub fn without_modes(&self) -> (u64, Vec<String>) {
        self.refused_modes().told()
    }

    /// Records that `key` did not get its permissions.
    pub(super) fn note_without_mode(&self, key: &Key, mode: Mode) {
        if mode.told {
            self.refused_modes().note(self.label(key));
        }
    }

    pub(super) fn refused_modes(&self) -> MutexGuard<'_, Refused> {
        self.0.without_modes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a refusal of `SITE CHMOD` holds for all files. Many servers lack the command, or forbid it even for files
/// that the client has just created (`is_ours`), as vsftpd with 550. GCT answers 500 also for reasons of a single file.
fn is_for_all(reply: &Reply, is_ours: bool) -> bool {
    match kind(reply) {
        ErrorKind::NotFound => false,
        ErrorKind::Request if (500..=504).contains(&reply.code) => true,
        _ => is_ours,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusal_of_one_name_implies_nothing_for_others() {
        for (code, text, of_any, of_ours) in [
            (500, "'SITE CHMOD' not understood", true, true),
            (502, "not implemented", true, true),
            (504, "no", true, true),
            (550, "Permission denied.", false, true),
            (550, "/x: Operation not permitted", false, true),
            (500, "Command failed. : System error in chmod: Operation not permitted", false, true),
            (550, "/x: No such file or directory", false, false),
        ] {
            let reply = Reply::new(code, text);
            assert_eq!((is_for_all(&reply, false), is_for_all(&reply, true)), (of_any, of_ours), "{code} {text}");
        }
    }

    #[test]
    fn mode_is_bounded_by_source_and_destination() {
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
