//! Limits how many bytes the streams of an accepted connection may receive before they are read.
//!
//! Each stream has a receive window for a long fast path, and a peer may open thousands of streams. So the
//! connection's window stays small until the owner of a stream [widens](crate::Stream::widen) it; then the
//! connection's window grows by that stream's. A granted window cannot be reduced (RFC 9000, section 4.1), so
//! it stays sized for the largest number of streams that were wide at one time, and streams that are not wide
//! may use it. quinn could withhold credit until a smaller window is reached, but it grants a later larger
//! window in full before that: a peer that opens and ends sessions without a byte would gain credit each
//! time.

use super::ready_signal::lock;
use super::settings::bounded;
use quinn::Connection;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex};

/// Number of handshake buffers in the window of a connection without a wide stream: it may have several
/// sessions in handshake at a time.
const HANDSHAKES: u64 = 4;
/// Bytes that all connections of one source share. A new connection gets at most an equal share, counted at
/// its arrival; earlier connections keep theirs.
const SOURCE: u64 = 16 << 20;
/// The smallest window, in bytes: enough for a handshake message.
const LEAST: u64 = 64 << 10;

/// The receive window of one connection; see the module documentation.
#[derive(Debug)]
pub(super) struct Ahead {
    base: u64,
    /// The window of one wide stream, in bytes.
    stream: u64,
    wide: Mutex<Wide>,
    _source: Source,
}

#[derive(Debug, Default)]
struct Wide {
    now: u64,
    most: u64,
}

impl Ahead {
    /// Creates the window of a connection from `source` whose wide streams have windows of `stream` bytes.
    pub(super) fn new(source: Source, stream: u64) -> Self {
        Self { base: source.share, stream, wide: Mutex::default(), _source: source }
    }

    /// The connection's initial window, in bytes.
    pub(super) fn begin(&self) -> u64 {
        self.base
    }

    /// Records that one more stream of `connection` is wide.
    pub(super) fn widen(&self, connection: &Connection) {
        let mut wide = lock(&self.wide);
        if let Some(window) = self.widened(&mut wide) {
            connection.set_receive_window(bounded(window));
        }
    }

    /// Counts a wide stream, and returns the connection's new window if it changes.
    fn widened(&self, wide: &mut Wide) -> Option<u64> {
        wide.now += 1;
        if wide.now <= wide.most {
            return None;
        }
        wide.most = wide.now;
        // quinn sends credit when an eighth of the window was read: with a quarter more, no stream waits for
        // the others.
        Some(self.base + wide.most.saturating_mul(self.stream + self.stream / 4))
    }

    /// Records that a wide stream has ended.
    pub(super) fn narrow(&self) {
        lock(&self.wide).now -= 1;
    }
}

/// Counts the connections of each source: an IPv4 address, or an IPv6 network of 64 bits.
#[derive(Debug, Default)]
pub(super) struct Sources(Mutex<HashMap<IpAddr, u64>>);

/// One counted connection of a source.
#[derive(Debug)]
pub(super) struct Source {
    of: Arc<Sources>,
    at: IpAddr,
    share: u64,
}

impl Sources {
    /// Counts one more connection from `from`; `handshake` is the size of its handshake buffer in bytes.
    pub(super) fn enter(self: &Arc<Self>, from: IpAddr, handshake: u64) -> Source {
        let at = match from.to_canonical() {
            IpAddr::V6(addr) => Ipv6Addr::from_bits(addr.to_bits() >> 64 << 64).into(),
            v4 => v4,
        };
        let mut all = lock(&self.0);
        let count = all.entry(at).or_default();
        *count += 1;
        let share = (SOURCE / *count).min(HANDSHAKES.saturating_mul(handshake)).max(LEAST);
        Source { of: self.clone(), at, share }
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        let mut all = lock(&self.of.0);
        if let Some(count) = all.get_mut(&self.at) {
            *count -= 1;
            if *count == 0 {
                all.remove(&self.at);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HANDSHAKE: u64 = 256 << 10;
    const MOST: u64 = 1 << 20;

    #[test]
    fn connections_of_one_source_share_a_bound() {
        let sources = Arc::new(Sources::default());
        let from = |n: u16| sources.enter(IpAddr::from([0x2001, 0xdb8, 0, 1, n, 0, 0, 1]), HANDSHAKE);
        let first: Vec<Source> = (0..1000).map(from).collect();
        assert!(first[..16].iter().all(|source| source.share == MOST));
        assert_eq!((first[31].share, first[999].share), (SOURCE / 32, LEAST));
        assert_eq!(sources.enter(IpAddr::from([192, 0, 2, 1]), HANDSHAKE).share, MOST);
        drop(first);
        assert!(lock(&sources.0).is_empty());
    }

    #[test]
    fn connection_window_grows_with_its_wide_streams() {
        let ahead = Ahead::new(Arc::new(Sources::default()).enter(IpAddr::from([192, 0, 2, 1]), HANDSHAKE), 4000);
        let widened = || ahead.widened(&mut lock(&ahead.wide));
        assert_eq!(widened(), Some(MOST + 5000));
        assert_eq!(widened(), Some(MOST + 10_000));
        ahead.narrow();
        assert_eq!(widened(), None);
        assert_eq!(widened(), Some(MOST + 15_000));
    }
}
