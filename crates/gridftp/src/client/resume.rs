//! Resuming cut uploads: which, and from where.

use super::begun::tag;
use super::error::senseless;
use super::known::RESUME_FROM;
use super::remote::Remote;
use super::upload_journal::UploadJournal;
use phoebus_files::key::{Key, KeyError};
use phoebus_files::range::{Extent, Ranges};
use phoebus_files::store::Spec;
use phoebus_files::{Error, draft_home, part_of};
use std::sync::atomic::Ordering;

/// Bytes of a stream that are sent again, because the server's last writes may not have reached its disk.
const AGAIN: u64 = 1 << 20;

impl Remote {
    /// Records that the server does not resume uploads.
    pub(super) fn begin_afresh(&self) {
        self.0.restartless.store(true, Ordering::Relaxed);
    }

    /// Whether uploads can be resumed.
    pub(super) fn restarts(&self) -> bool {
        self.has("REST") && self.has("SIZE") && !self.0.restartless.load(Ordering::Relaxed)
    }

    /// Whether a download can begin in the middle, as far as known.
    pub(super) fn begins_amid(&self) -> bool {
        // A server without features may support it.
        (self.has("REST") || self.0.features.is_empty()) && !self.0.whole_alone.load(Ordering::Relaxed)
    }

    /// Records that the server sends whole files only.
    pub(super) fn begin_reading_afresh(&self) {
        self.0.whole_alone.store(true, Ordering::Relaxed);
    }
}

/// Whether a cut upload of this file can be resumed.
pub(super) fn is_resumable(remote: &Remote, spec: &Spec, streams: Option<u32>) -> bool {
    is_long(spec) && streams.is_none() && remote.restarts()
}

/// Whether resuming is worth it.
pub(super) fn is_long(spec: &Spec) -> bool {
    // Without a modification time, the draft may be of another version of the source.
    let dated = spec.source.as_ref().is_some_and(|(_, modified)| modified.is_some());
    dated && spec.size.is_some_and(|size| size >= RESUME_FROM)
}

/// The draft of an upload: connections of extended blocks (if it uses them), name, and record of what is synced.
/// Extended blocks leave gaps that the size does not show, so a stream cannot resume them, and the two have different
/// names. If this end chooses, it resumes the form of the existing draft. With `run`, no other run has a draft of that
/// name.
pub(super) async fn way(
    remote: &Remote,
    key: &Key,
    spec: &Spec,
    run: &str,
) -> Result<(Option<u32>, Key, Option<UploadJournal>), Error> {
    let named = |in_blocks| {
        let failed = |error: KeyError| senseless(&remote.label(key), error.to_string());
        let home = draft_home(key, remote.options().partial_dir.as_ref());
        let state = remote.options().state.as_deref();
        let tag = tag(&format!("{}{run}", remote.label(key)), spec, in_blocks, state);
        home.and_then(|home| part_of(&home, &tag)).map_err(failed)
    };
    let (stream, blocks) = (named(false)?, named(true)?);
    let marks = marks_of(remote, &blocks, spec);
    let mut streams = remote.streams_to_write(spec.size);
    if remote.may_choose() {
        let marked = marks.as_ref().is_some_and(|marks| !marks.read().is_empty());
        if streams.is_none() && marked {
            streams = Some(1);
        } else if streams.is_some() && !marked && is_resumable(remote, spec, None) {
            let left = remote.size(&stream).await?.unwrap_or(0);
            streams = streams.filter(|_| left <= AGAIN);
        }
    }
    Ok(match streams {
        Some(_) => (streams, blocks, marks),
        None => (None, stream, None),
    })
}

/// The record of what the server has of the draft `part`.
pub(super) fn marks_of(remote: &Remote, part: &Key, spec: &Spec) -> Option<UploadJournal> {
    let dir = remote.options().state.as_ref().filter(|_| is_long(spec))?;
    Some(UploadJournal::of(dir, remote.label(part)))
}

/// What the server has of the draft.
pub(super) async fn kept(
    remote: &Remote,
    part: &Key,
    spec: &Spec,
    streams: Option<u32>,
    marks: Option<&UploadJournal>,
) -> Result<Ranges, Error> {
    if let Some(marks) = marks.filter(|_| !remote.options().in_place) {
        let mut noted = marks.read();
        let end = noted.iter().next_back().map_or(0, Extent::end);
        // `phoebus serve` refuses to resume what it does not have; another server would leave a gap.
        let there = end > 0 && (remote.has("XDRAFTS") || remote.size(part).await?.is_some_and(|size| size >= end));
        // If everything is there, no command follows that could be refused, and the draft may have been removed since.
        if let Some(last) =
            Extent::new(end.saturating_sub(AGAIN), AGAIN.min(end)).filter(|_| there && Some(end) == spec.size)
            && remote.size(part).await? != Some(end)
        {
            noted.remove(last);
        }
        return Ok(if there && Some(end) <= spec.size { noted } else { Ranges::new() });
    }
    if !is_resumable(remote, spec, streams) || remote.options().in_place {
        return Ok(Ranges::new());
    }
    // A stream is written from its start, so its size shows what is there.
    let there = remote.size(part).await?.unwrap_or(0).min(spec.size.unwrap_or(0));
    let kept = if Some(there) == spec.size { there } else { there.saturating_sub(AGAIN) };
    Ok(Extent::first(kept).into())
}
