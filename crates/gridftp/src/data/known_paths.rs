//! The rates that paths to other hosts have carried lately, so that a transfer as objects need not find out anew (RFC 9959).

use phoebus_proto::control::KnownPath;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// For how long a path is known: others may use it by then.
const LIFETIME: Duration = Duration::from_secs(600);
/// Most paths.
const MOST: usize = 1024;

/// The known paths of a process or a job. Clones are the same.
#[derive(Debug, Clone, Default)]
pub struct KnownPaths(Arc<Mutex<HashMap<IpAddr, (KnownPath, Instant)>>>);

impl KnownPaths {
    /// What is known of the path to `peer`.
    pub(super) fn get(&self, peer: IpAddr) -> Option<KnownPath> {
        let paths = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        paths.get(&peer.to_canonical()).filter(|(_, at)| at.elapsed() < LIFETIME).map(|(path, _)| *path)
    }

    /// Records what a transfer has found.
    pub(super) fn learn(&self, peer: IpAddr, path: KnownPath) {
        let mut paths = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if paths.len() >= MOST {
            paths.retain(|_, (_, at)| at.elapsed() < LIFETIME);
        }
        // Others have to wait until some are forgotten.
        if paths.len() < MOST || paths.contains_key(&peer.to_canonical()) {
            paths.insert(peer.to_canonical(), (path, Instant::now()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_known_by_address_and_are_few() {
        let (paths, path) = (
            KnownPaths::default(),
            KnownPath { bits_per_second: 9, rtt: Duration::from_millis(1), loss_per_million: 0 },
        );
        paths.learn("::ffff:192.0.2.1".parse().unwrap(), path);
        assert_eq!(paths.get("192.0.2.1".parse().unwrap()), Some(path));
        assert_eq!(paths.get("192.0.2.2".parse().unwrap()), None);
        (0..2000u32).for_each(|n| paths.learn(IpAddr::from(n.to_be_bytes()), path));
        assert_eq!(paths.0.lock().unwrap().len(), MOST);
        let newer = KnownPath { bits_per_second: 10, ..path };
        paths.learn("192.0.2.1".parse().unwrap(), newer);
        assert_eq!(paths.get("192.0.2.1".parse().unwrap()), Some(newer));
    }
}
