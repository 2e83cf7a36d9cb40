//! The rates that paths to other hosts have carried lately, so that a transfer as objects need not find out anew (RFC 9959).
//!
//! What one user's transfers have found is no other user's: a peer can say of its own path what it likes. One transfer at a time
//! begins with a known rate; others beside it would each take all of it.
//!
//! Transfers that this end has connected to one host at the same time have one control ([`SharedControl`]), so that they take no more
//! of the path than one would. Those that others have connected do not: several hosts, on paths of their own, may be behind one
//! address, of a gateway or a translator.

mod file;

use super::objects::{Objects, RateControl};
use file::Line;
use phoebus_proto::control::{KnownPath, SharedControl};
use std::collections::HashMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

/// For how long a path is known: others may use it by then.
const LIFETIME: Duration = Duration::from_secs(600);
/// Most paths.
const MOST: usize = 1024;

/// The known paths of a process or of a user. Clones are the same.
#[derive(Debug, Clone, Default)]
pub struct KnownPaths {
    all: Arc<Mutex<HashMap<Route, Found>>>,
    /// The controls of transfers that have not ended. Those with other settings have others.
    controls: Arc<Mutex<HashMap<(Route, Settings), SharedControl>>>,
    user: Arc<str>,
    /// Where they outlive the program.
    file: Option<Arc<PathBuf>>,
}

/// Whose path, from which address of this host to which other host, and through which gateway.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Route {
    user: Arc<str>,
    from: IpAddr,
    to: IpAddr,
    via: Option<IpAddr>,
}

/// The ends of a transfer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ends {
    pub(super) from: IpAddr,
    pub(super) to: IpAddr,
    /// The gateway that relays its datagrams.
    pub(super) via: Option<IpAddr>,
    /// Whether this end has connected.
    pub(super) is_own: bool,
}

/// The settings of a control: what sets the rate, the tolerated loss, the highest rate, and the length of packets, by which it counts.
type Settings = (RateControl, u32, Option<u64>, u32);

#[derive(Debug)]
struct Found {
    path: KnownPath,
    /// By the system's clock, which goes on while a laptop sleeps.
    at: SystemTime,
    /// Whether a transfer has begun with this rate and has not ended.
    is_in_use: bool,
}

/// What a transfer knows of its path. Dropping it lets the next one begin with the known rate.
#[derive(Debug)]
pub(super) struct PathInUse {
    paths: KnownPaths,
    route: Route,
    known: Option<KnownPath>,
    /// Whether this transfer may begin with the known rate.
    is_first: bool,
    is_own: bool,
}

impl KnownPaths {
    /// The known paths of one user, in a file that outlives the program.
    pub fn in_file(file: PathBuf) -> Self {
        let paths = Self { file: Some(Arc::new(file)), ..Self::default() };
        paths.read();
        paths
    }

    /// The same store for the paths of `user`.
    #[must_use]
    pub fn of(&self, user: &str) -> Self {
        Self { user: user.into(), ..self.clone() }
    }

    /// For a transfer between these ends.
    pub(super) fn take(&self, ends: Ends) -> PathInUse {
        let Ends { from, to, via, is_own } = ends;
        let route = Route {
            user: self.user.clone(),
            from: from.to_canonical(),
            to: to.to_canonical(),
            via: via.map(|via| via.to_canonical()),
        };
        let mut all = self.lock();
        let found = all.get_mut(&route).filter(|found| found.is_new());
        let (known, is_first) = match found {
            Some(found) => (Some(found.path), !std::mem::replace(&mut found.is_in_use, true)),
            None => (None, false),
        };
        drop(all);
        PathInUse { paths: self.clone(), route, known, is_first, is_own }
    }

    /// The control of all transfers on `route` with these settings.
    fn control(&self, route: &Route, objects: &Objects, packet_len: u32) -> SharedControl {
        let settings = (objects.control, objects.loss_per_million, objects.rate.map(|rate| rate.0), packet_len);
        let mut controls = self.controls.lock().unwrap_or_else(PoisonError::into_inner);
        controls.retain(|_, control| !control.is_only_clone());
        controls.entry((route.clone(), settings)).or_default().clone()
    }

    /// Adds what the file says and this program has not found itself since.
    fn read(&self) {
        let Some(path) = &self.file else { return };
        let lines = file::read(path);
        let mut all = self.lock();
        for Line { from, to, path, at } in lines.into_iter().take(MOST) {
            let route = Route { user: self.user.clone(), from, to, via: None };
            let found = Found { path, at, is_in_use: false };
            let is_older = all.get(&route).is_none_or(|known| known.at < at && !known.is_in_use);
            if found.is_new() && is_older {
                all.insert(route, found);
            }
        }
    }

    /// Writes what is known to the file, with what other programs have written there.
    fn write(&self) {
        let Some(path) = &self.file else { return };
        self.read();
        let of =
            |(route, found): (&Route, &Found)| Line { from: route.from, to: route.to, path: found.path, at: found.at };
        let lines: Vec<Line> =
            self.lock().iter().filter(|(route, found)| found.is_new() && route.via.is_none()).map(of).collect();
        if let Err(error) = file::write(path, &lines) {
            tracing::debug!(path = %path.display(), %error, "what is known of paths cannot be kept");
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Route, Found>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Found {
    /// Whether it still holds. A clock that was set back says nothing.
    fn is_new(&self) -> bool {
        self.at.elapsed().is_ok_and(|age| age < LIFETIME)
    }
}

impl PathInUse {
    /// What is known.
    pub(super) fn known(&self) -> Option<KnownPath> {
        self.known
    }

    /// The same if the transfer may begin with the known rate.
    pub(super) fn to_resume(&self) -> Option<KnownPath> {
        self.known.filter(|_| self.is_first)
    }

    /// The control of the transfer, whose packets have this length: that of others between the same ends, if this end has connected.
    pub(super) fn control(&self, objects: &Objects, packet_len: u32) -> SharedControl {
        match self.is_own {
            true => self.paths.control(&self.route, objects, packet_len),
            false => SharedControl::default(),
        }
    }

    /// Records what the transfer has found.
    pub(super) fn learn(&self, path: KnownPath) {
        let mut all = self.paths.lock();
        if all.len() >= MOST {
            all.retain(|_, found| found.is_new());
        }
        let (at, has_room) = (SystemTime::now(), all.len() < MOST);
        if let Some(found) = all.get_mut(&self.route) {
            (found.path, found.at) = (path, at);
        } else if has_room {
            // Others have to wait until some are forgotten.
            all.insert(self.route.clone(), Found { path, at, is_in_use: false });
        }
        drop(all);
        self.paths.write();
    }
}

impl Drop for PathInUse {
    fn drop(&mut self) {
        if let Some(found) = self.paths.lock().get_mut(&self.route).filter(|_| self.is_first) {
            found.is_in_use = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use phoebus_proto::units::BitRate;

    const PATH: KnownPath = KnownPath { bits_per_second: 9, rtt: Duration::from_millis(1), loss_per_million: 0 };

    fn ends(from: IpAddr, to: IpAddr) -> Ends {
        Ends { from, to, via: None, is_own: true }
    }

    fn addr(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn paths_are_known_by_user_and_addresses_and_are_few() {
        let (paths, here) = (KnownPaths::default(), addr("198.51.100.1"));
        let known = |paths: &KnownPaths, from: IpAddr, to: &str| paths.take(ends(from, addr(to))).known();
        paths.take(ends(here, addr("::ffff:192.0.2.1"))).learn(PATH);
        assert_eq!(known(&paths, here, "192.0.2.1"), Some(PATH));
        assert_eq!(known(&paths, here, "192.0.2.2"), None);
        assert_eq!(known(&paths, addr("198.51.100.2"), "192.0.2.1"), None, "from another network");
        assert_eq!(known(&paths.of("alice"), here, "192.0.2.1"), None, "of another user");
        paths.of("alice").take(ends(here, addr("192.0.2.9"))).learn(PATH);
        assert_eq!(known(&paths.of("alice"), here, "192.0.2.9"), Some(PATH));
        (0..2000u32).for_each(|n| paths.take(ends(here, IpAddr::from(n.to_be_bytes()))).learn(PATH));
        assert_eq!(paths.lock().len(), MOST);
        let newer = KnownPath { bits_per_second: 10, ..PATH };
        paths.take(ends(here, addr("192.0.2.1"))).learn(newer);
        assert_eq!(known(&paths, here, "192.0.2.1"), Some(newer));
    }

    #[test]
    fn one_transfer_at_a_time_begins_with_the_known_rate() {
        let (paths, here, to) = (KnownPaths::default(), addr("198.51.100.1"), addr("192.0.2.1"));
        paths.take(ends(here, to)).learn(PATH);
        let first = paths.take(ends(here, to));
        let second = paths.take(ends(here, to));
        assert_eq!((first.to_resume(), second.to_resume()), (Some(PATH), None));
        assert_eq!(second.known(), Some(PATH), "its loss, for one");
        let via = Ends { via: Some(addr("203.0.113.1")), ..ends(here, to) };
        assert_eq!(paths.take(via).known(), None, "through a gateway");
        drop(second);
        assert_eq!(paths.take(ends(here, to)).to_resume(), None, "the first one goes on");
        drop(first);
        assert_eq!(paths.take(ends(here, to)).to_resume(), Some(PATH));
    }

    #[test]
    fn own_transfers_to_a_host_have_one_control() {
        let (paths, here, to) = (KnownPaths::default(), addr("198.51.100.1"), addr("192.0.2.1"));
        let usual = Objects::default();
        let slow = Objects { rate: Some(BitRate(1_000_000)), ..usual };
        let control = |ends, objects: &Objects, packet| paths.take(ends).control(objects, packet);
        let first = control(ends(here, to), &usual, 1438);
        assert!(first.is(&control(ends(here, to), &usual, 1438)));
        assert!(!first.is(&control(ends(here, addr("192.0.2.2")), &usual, 1438)), "another host");
        assert!(!first.is(&control(ends(here, to), &slow, 1438)), "other settings");
        assert!(!first.is(&control(ends(here, to), &usual, 1400)), "other packets");
        let via = Ends { via: Some(addr("203.0.113.1")), ..ends(here, to) };
        assert!(!first.is(&control(via, &usual, 1438)), "through a gateway");
        let accepted = Ends { is_own: false, ..ends(here, to) };
        assert!(!control(accepted, &usual, 1438).is(&control(accepted, &usual, 1438)), "accepted ones");
        // None is kept for nobody.
        drop(first);
        control(ends(here, addr("192.0.2.9")), &usual, 1438);
        assert!(paths.controls.lock().unwrap().len() <= 1);
    }

    #[test]
    fn paths_outlive_the_program_for_a_while() {
        let dir = tempfile::tempdir().unwrap();
        let (file, here) = (dir.path().join("paths"), addr("198.51.100.1"));
        let known = |to: &str| KnownPaths::in_file(file.clone()).take(ends(here, addr(to))).known();
        // Two programs at the same time.
        let [one, other] = [(); 2].map(|()| KnownPaths::in_file(file.clone()));
        one.take(ends(here, addr("192.0.2.1"))).learn(PATH);
        other.take(ends(here, addr("192.0.2.2"))).learn(PATH);
        assert_eq!([known("192.0.2.1"), known("192.0.2.2"), known("192.0.2.3")], [Some(PATH), Some(PATH), None]);
        // Ten minutes later, and with a clock that was set back.
        let now = SystemTime::now();
        for at in [now - LIFETIME, now + LIFETIME] {
            file::write(&file, &[Line { from: here, to: addr("192.0.2.1"), path: PATH, at }]).unwrap();
            assert_eq!(known("192.0.2.1"), None);
        }
        // No place to keep them.
        let nowhere = KnownPaths::in_file(dir.path().join("paths/below a file"));
        nowhere.take(ends(here, addr("192.0.2.1"))).learn(PATH);
        assert_eq!(nowhere.take(ends(here, addr("192.0.2.1"))).known(), Some(PATH));
    }
}
