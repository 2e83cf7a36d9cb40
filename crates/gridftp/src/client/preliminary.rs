//! The bound on waiting for a server that sends only preliminary replies (1xx).
//!
//! GFD.20, section 6, has servers send markers during a transfer, and GCT's and ours go on sending them while they
//! write what has come to a disk. So each reply shows that the server is alive. It does not show that the server will
//! ever finish: only bytes that the server tells for the first time do.

use phoebus_files::range::{Extent, Ranges};
use phoebus_proto::gridftp::marker::{Perf, find_ranges};
use phoebus_proto::gridftp::reply::Reply;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;

/// How many times the usual limit a server may take that sends preliminary replies and makes no progress.
const FACTOR: u32 = 10;

/// Used if the clock cannot represent a time.
const FAR: Duration = Duration::from_secs(86400 * 365 * 30);

/// Most stripes whose bytes are counted. GCT's largest servers have some hundreds.
const MAX_STRIPES: usize = 1024;

/// The end of a wait: after `silence` without a reply, or `most` without progress.
#[derive(Debug)]
pub(super) struct Limit {
    silence: Duration,
    most: Duration,
    heard: Instant,
    progress: Instant,
}

impl Limit {
    /// Begins now. The limit without progress is ten times `silence`, or `work` if that is longer.
    pub(super) fn new(silence: Duration, work: Duration) -> Self {
        let now = Instant::now();
        Self { silence, most: work.max(silence.saturating_mul(FACTOR)), heard: now, progress: now }
    }

    /// Records a reply.
    pub(super) fn heard(&mut self) {
        self.heard = Instant::now();
    }

    /// Records progress.
    pub(super) fn progressed(&mut self) {
        self.heard = Instant::now();
        self.progress = self.heard;
    }

    /// The time at which the wait ends.
    pub(super) fn end(&self) -> Instant {
        let after = |at: Instant, limit| at.checked_add(limit).unwrap_or(at + FAR);
        after(self.heard, self.silence).min(after(self.progress, self.most))
    }

    /// Whether the wait has ended. Also to be asked after each reply, since a server that sends without a pause keeps
    /// timers from running.
    pub(super) fn is_over(&self) -> bool {
        Instant::now() >= self.end()
    }

    /// The length of the wait that has ended.
    pub(super) fn length(&self) -> Duration {
        if self.heard.elapsed() >= self.silence { self.silence } else { self.most }
    }

    /// Whether replies came without progress.
    pub(super) fn is_without_progress(&self) -> bool {
        self.heard.elapsed() < self.silence
    }
}

/// Progress of an upload, as markers report it.
#[derive(Debug)]
pub(super) struct UploadProgress {
    size: u64,
    stored: Ranges,
    stripes: BTreeMap<u32, u64>,
}

impl UploadProgress {
    /// No progress, of a file of `size` bytes.
    pub(super) fn of(size: u64) -> Self {
        Self { size, stored: Ranges::new(), stripes: BTreeMap::new() }
    }

    /// Handles a preliminary reply. True if it reports bytes for the first time.
    pub(super) fn take(&mut self, reply: &Reply) -> bool {
        let before = self.total();
        match reply.code {
            111 => {
                if let Ok(ranges) = find_ranges(&reply.text()) {
                    self.stored.extend(ranges.iter().filter_map(|extent| extent.common(Extent::first(self.size))));
                }
            }
            112 => {
                let lines: Vec<_> = reply.lines.iter().map(|line| String::from_utf8_lossy(line)).collect();
                if let Ok(perf) = Perf::parse(lines.iter().map(AsRef::as_ref))
                    && (self.stripes.len() < MAX_STRIPES || self.stripes.contains_key(&perf.stripe))
                {
                    let most = self.stripes.entry(perf.stripe).or_default();
                    *most = perf.bytes.max(*most);
                }
            }
            _ => {}
        }
        self.total() > before
    }

    /// Bytes of both kinds of markers, bounded by the size of the file.
    fn total(&self) -> u128 {
        let moved: u128 = self.stripes.values().map(|bytes| u128::from(*bytes)).sum();
        u128::from(self.stored.total()) + moved.min(self.size.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn perf(stripe: u32, bytes: u64) -> Reply {
        Reply::of_lines(112, Perf { tenths: 0, stripe, bytes, stripes: 2 }.lines())
    }

    #[test]
    fn only_new_bytes_are_progress() {
        let mut told = UploadProgress::of(100);
        let ranges = |text: &str| Reply::new(111, format!("Range Marker {text}"));
        for (reply, is_progress) in [
            (perf(0, 0), false),
            (perf(0, 10), true),
            (perf(0, 10), false),
            (perf(0, 5), false),
            (perf(1, 10), true),
            (Reply::new(150, "wait"), false),
            (Reply::new(113, "still at it 7"), false),
            (ranges("0-10"), true),
            (ranges("0-10"), false),
            (ranges("5-20,200-300"), true),
            (ranges("500-600"), false),
            (ranges("0-100"), true),
            (perf(0, 1000), true),
            (perf(0, 2000), false),
            (Reply::new(112, "no marker"), false),
        ] {
            assert_eq!(told.take(&reply), is_progress, "{reply:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn replies_extend_a_wait_ten_times_and_progress_without_end() {
        let second = Duration::from_secs(1);
        let mut limit = Limit::new(second * 2, Duration::ZERO);
        let begin = Instant::now();
        assert_eq!(limit.end(), begin + second * 2);
        for _ in 0..19 {
            tokio::time::advance(second).await;
            limit.heard();
        }
        assert_eq!(limit.end(), begin + second * 20);
        assert!(!limit.is_over());
        limit.progressed();
        assert_eq!(limit.end(), begin + second * 21);
        tokio::time::advance(second * 2).await;
        assert!(limit.is_over() && !limit.is_without_progress());
        assert_eq!(Limit::new(second, second * 60).most, second * 60);
        assert_eq!(Limit::new(second, second * 3).most, second * 10);
    }
}
