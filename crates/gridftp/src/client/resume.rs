//! Files that were cut while a server was written to: which of them are gone on with, and from where.

use super::begun::tag;
use super::error::senseless;
use super::marks::Marks;
use super::remote::Remote;
use phoebus_files::key::{Key, KeyError};
use phoebus_files::range::{Extent, Ranges};
use phoebus_files::store::Spec;
use phoebus_files::{Error, draft_home, part_of};
use std::sync::atomic::Ordering;

/// Files of at least this many bytes are gone on with.
pub(super) const RESUME_FROM: u64 = 16 << 20;

/// How much of what a server has of a stream is sent again: what it had written last may not have come to its disk.
const AGAIN: u64 = 1 << 20;

impl Remote {
    /// Notes that the server does not go on with what it has of a file.
    pub(super) fn begin_afresh(&self) {
        self.0.restartless.store(true, Ordering::Relaxed);
    }

    /// Whether a file can be gone on with.
    pub(super) fn restarts(&self) -> bool {
        self.has("REST") && self.has("SIZE") && !self.0.restartless.load(Ordering::Relaxed)
    }

    /// Whether a file can be read from another byte than its first, as far as is known.
    pub(super) fn begins_amid(&self) -> bool {
        // One that tells nothing of itself may do so.
        (self.has("REST") || self.0.features.is_empty()) && !self.0.whole_alone.load(Ordering::Relaxed)
    }

    /// Notes that the server sends whole files alone.
    pub(super) fn begin_reading_afresh(&self) {
        self.0.whole_alone.store(true, Ordering::Relaxed);
    }
}

/// Whether what is cut of it can be gone on with.
pub(super) fn is_resumable(remote: &Remote, spec: &Spec, streams: Option<u32>) -> bool {
    is_long(spec) && streams.is_none() && remote.restarts()
}

/// Whether it is worth it.
pub(super) fn is_long(spec: &Spec) -> bool {
    // Where it is not known when the source was modified, what is cut may be of other bytes.
    let dated = spec.source.as_ref().is_some_and(|(_, modified)| modified.is_some());
    dated && spec.size.is_some_and(|size| size >= RESUME_FROM)
}

/// Over how many connections it goes as extended blocks, if it does, the name that it has until it is complete, and where what is safe
/// of it is noted. What blocks left has gaps that its size does not show, so that no stream goes on with it: the two have names of their
/// own. Where this end chooses, it goes on with what there is, as that was begun.
pub(super) async fn way(remote: &Remote, key: &Key, spec: &Spec) -> Result<(Option<u32>, Key, Option<Marks>), Error> {
    let named = |in_blocks| {
        let failed = |error: KeyError| senseless(&remote.label(key), error.to_string());
        let home = draft_home(key, remote.options().partial_dir.as_ref());
        home.and_then(|home| part_of(&home, &tag(spec, in_blocks))).map_err(failed)
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

/// Where what the server has of the draft `part` is noted.
pub(super) fn marks_of(remote: &Remote, part: &Key, spec: &Spec) -> Option<Marks> {
    let dir = remote.options().state.as_ref().filter(|_| is_long(spec))?;
    Some(Marks::of(dir, remote.label(part)))
}

/// What the server has of it.
pub(super) async fn kept(
    remote: &Remote,
    part: &Key,
    spec: &Spec,
    streams: Option<u32>,
    marks: Option<&Marks>,
) -> Result<Ranges, Error> {
    if let Some(marks) = marks.filter(|_| !remote.options().in_place) {
        let mut noted = marks.read();
        let end = noted.iter().next_back().map_or(0, Extent::end);
        // A server that keeps drafts to itself refuses to go on with what it does not have; others would leave a gap.
        let there = end > 0 && (remote.has("XDRAFTS") || remote.size(part).await?.is_some_and(|size| size >= end));
        // Where all is there, nothing would be asked for that it could refuse, and the draft may have been removed since.
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
    // A stream is written from its beginning on: what is there is what came first.
    let there = remote.size(part).await?.unwrap_or(0).min(spec.size.unwrap_or(0));
    let kept = if Some(there) == spec.size { there } else { there.saturating_sub(AGAIN) };
    Ok(Extent::first(kept).into())
}
