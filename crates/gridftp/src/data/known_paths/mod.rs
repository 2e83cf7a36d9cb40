//! The rates that paths to other hosts have carried lately, so that a transfer as objects need not find out anew (RFC 9959).
//!
//! What one user's transfers have found is no other user's: a peer can say of its own path what it likes. Transfers of a user to one
//! host at the same time have one control ([`SharedControl`]), so that they take no more of the path than one would.

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
    /// Whether transfers to one host may be those of several hosts behind address translation.
    is_public: bool,
    /// Where they outlive the program.
    file: Option<Arc<PathBuf>>,
}

/// Whose path, from which address of this host to which other host.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Route {
    user: Arc<str>,
    from: IpAddr,
    to: IpAddr,
}

/// The settings of a control: what sets the rate, the tolerated loss, and the highest rate.
type Settings = (RateControl, u32, Option<u64>);

#[derive(Debug)]
struct Found {
    path: KnownPath,
    /// By the system's clock, which goes on while a laptop sleeps.
    at: SystemTime,
}

/// What a transfer knows of its path, and the control that it has with others.
#[derive(Debug)]
pub(super) struct PathInUse {
    paths: KnownPaths,
    route: Route,
    known: Option<KnownPath>,
    control: SharedControl,
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

    /// The same store for the paths of users whom nobody knows: several of them may be behind one address, on paths of their own.
    #[must_use]
    pub fn of_the_public(&self, user: &str) -> Self {
        Self { is_public: true, ..self.of(user) }
    }

    /// For a transfer with these settings from the local address `from` to the host `to`.
    pub(super) fn take(&self, from: IpAddr, to: IpAddr, objects: &Objects) -> PathInUse {
        let route = Route { user: self.user.clone(), from: from.to_canonical(), to: to.to_canonical() };
        let known = self.lock().get(&route).filter(|found| found.is_new()).map(|found| found.path);
        let control = if self.is_public { SharedControl::default() } else { self.control(&route, objects) };
        PathInUse { paths: self.clone(), route, known, control }
    }

    /// The control of all transfers on `route` with these settings.
    fn control(&self, route: &Route, objects: &Objects) -> SharedControl {
        let settings = (objects.control, objects.loss_per_million, objects.rate.map(|rate| rate.0));
        let mut controls = self.controls.lock().unwrap_or_else(PoisonError::into_inner);
        controls.retain(|_, control| !control.is_unused());
        controls.entry((route.clone(), settings)).or_default().clone()
    }

    /// Adds what the file says and this program has not found itself since.
    fn read(&self) {
        let Some(path) = &self.file else { return };
        let lines = file::read(path);
        let mut all = self.lock();
        for Line { from, to, path, at } in lines.into_iter().take(MOST) {
            let route = Route { user: self.user.clone(), from, to };
            let found = Found { path, at };
            let is_older = all.get(&route).is_none_or(|known| known.at < at);
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
        let lines: Vec<Line> = self.lock().iter().filter(|(_, found)| found.is_new()).map(of).collect();
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

    /// The control that the transfer has with others.
    pub(super) fn control(&self) -> SharedControl {
        self.control.clone()
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
            all.insert(self.route.clone(), Found { path, at });
        }
        drop(all);
        self.paths.write();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use phoebus_proto::units::BitRate;

    const PATH: KnownPath = KnownPath { bits_per_second: 9, rtt: Duration::from_millis(1), loss_per_million: 0 };

    fn addr(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn paths_are_known_by_user_and_addresses_and_are_few() {
        let (paths, here) = (KnownPaths::default(), addr("198.51.100.1"));
        let known =
            |paths: &KnownPaths, from: IpAddr, to: &str| paths.take(from, addr(to), &Objects::default()).known();
        paths.take(here, addr("::ffff:192.0.2.1"), &Objects::default()).learn(PATH);
        assert_eq!(known(&paths, here, "192.0.2.1"), Some(PATH));
        assert_eq!(known(&paths, here, "192.0.2.2"), None);
        assert_eq!(known(&paths, addr("198.51.100.2"), "192.0.2.1"), None, "from another network");
        assert_eq!(known(&paths.of("alice"), here, "192.0.2.1"), None, "of another user");
        paths.of("alice").take(here, addr("192.0.2.9"), &Objects::default()).learn(PATH);
        assert_eq!(known(&paths.of("alice"), here, "192.0.2.9"), Some(PATH));
        (0..2000u32).for_each(|n| paths.take(here, IpAddr::from(n.to_be_bytes()), &Objects::default()).learn(PATH));
        assert_eq!(paths.lock().len(), MOST);
        let newer = KnownPath { bits_per_second: 10, ..PATH };
        paths.take(here, addr("192.0.2.1"), &Objects::default()).learn(newer);
        assert_eq!(known(&paths, here, "192.0.2.1"), Some(newer));
    }

    #[test]
    fn transfers_of_a_user_to_a_host_have_one_control() {
        let (paths, here) = (KnownPaths::default(), addr("198.51.100.1"));
        let take = |paths: &KnownPaths, to: &str, objects: &Objects| paths.take(here, addr(to), objects);
        let usual = Objects::default();
        let slow = Objects { rate: Some(BitRate(1_000_000)), ..usual };
        let same = |one: &PathInUse, other: &PathInUse| one.control.is(&other.control);
        let first = take(&paths, "192.0.2.1", &usual);
        assert!(same(&first, &take(&paths, "192.0.2.1", &usual)));
        assert!(!same(&first, &take(&paths, "192.0.2.2", &usual)), "another host");
        assert!(!same(&first, &take(&paths, "192.0.2.1", &slow)), "other settings");
        assert!(!same(&first, &take(&paths.of("alice"), "192.0.2.1", &usual)), "another user");
        let public = paths.of_the_public("anonymous");
        assert!(!same(&take(&public, "192.0.2.1", &usual), &take(&public, "192.0.2.1", &usual)), "strangers");
        // None is kept for nobody.
        drop(first);
        drop(take(&paths, "192.0.2.9", &usual));
        assert!(paths.controls.lock().unwrap().len() <= 1);
    }

    #[test]
    fn paths_outlive_the_program_for_a_while() {
        let dir = tempfile::tempdir().unwrap();
        let (file, here) = (dir.path().join("paths"), addr("198.51.100.1"));
        let known = |to: &str| KnownPaths::in_file(file.clone()).take(here, addr(to), &Objects::default()).known();
        // Two programs at the same time.
        let [one, other] = [(); 2].map(|()| KnownPaths::in_file(file.clone()));
        one.take(here, addr("192.0.2.1"), &Objects::default()).learn(PATH);
        other.take(here, addr("192.0.2.2"), &Objects::default()).learn(PATH);
        assert_eq!([known("192.0.2.1"), known("192.0.2.2"), known("192.0.2.3")], [Some(PATH), Some(PATH), None]);
        // Ten minutes later, and with a clock that was set back.
        let now = SystemTime::now();
        for at in [now - LIFETIME, now + LIFETIME] {
            file::write(&file, &[Line { from: here, to: addr("192.0.2.1"), path: PATH, at }]).unwrap();
            assert_eq!(known("192.0.2.1"), None);
        }
        // No place to keep them.
        let nowhere = KnownPaths::in_file(dir.path().join("paths/below a file"));
        nowhere.take(here, addr("192.0.2.1"), &Objects::default()).learn(PATH);
        assert_eq!(nowhere.take(here, addr("192.0.2.1"), &Objects::default()).known(), Some(PATH));
    }
}
