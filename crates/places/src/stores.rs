//! Opens the stores of places.

use super::error::{Error, Result};
use super::options::{Carried, ServerOptions};
use super::place::{Place, escaped, is_inside, pattern_of, whole_path};
use super::servers::{self, Caller, GatewayPath, Paths, RetryPolicy};
use super::url::{Far, Url};
use phoebus_files::key::Key;
use phoebus_files::local::Local;
use phoebus_files::plan::is_pattern;
use phoebus_files::store::Store;
use phoebus_files::{Links, Retry};
use phoebus_gridftp::client::{CarriedFiles, Remote};
use phoebus_gridftp::data::ObjectTotals;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Open stores, each opened once.
#[derive(Debug)]
pub struct Stores {
    local: Option<Arc<dyn Store>>,
    /// Servers, with the login of each.
    far: Vec<(Far, Remote, Arc<dyn Store>)>,
    options: ServerOptions,
    carried: Carried,
    caller: Arc<dyn Caller>,
    /// The path to servers, once configured.
    ways: Option<GatewayPath>,
    paths: Arc<Paths>,
    again: RetryPolicy,
}

impl Stores {
    /// No stores yet. `options` are of servers, `carried` of transfers.
    pub fn new(options: ServerOptions, carried: Carried, caller: Arc<dyn Caller>) -> Self {
        let (paths, again) = (Arc::new(Paths::default()), RetryPolicy::default());
        Self { local: None, far: Vec::new(), options, carried, caller, ways: None, paths, again }
    }

    /// The same with retries of unreachable servers. `tell` receives the reasons.
    pub fn trying(self, retry: Retry, tell: impl Fn(&phoebus_files::Error, Duration) + Send + Sync + 'static) -> Self {
        Self { again: RetryPolicy::new(retry, tell), ..self }
    }

    /// The round trip of the server `store`, if it is one.
    pub fn rtt(&self, store: &Arc<dyn Store>) -> Option<Duration> {
        let found = self.far.iter().find(|(.., known)| Arc::ptr_eq(known, store));
        found.map(|(_, remote, _)| remote.rtt())
    }

    /// The connected servers: name, round trip, and the bytes that this machine's kernel allows in flight to and from
    /// each.
    pub fn servers(&self) -> Vec<(String, Duration, (u64, u64))> {
        self.far.iter().map(|(_, remote, store)| (store.name(), remote.rtt(), remote.windows())).collect()
    }

    /// Files and directories whose modes servers refused to set: number, and first names.
    pub fn without_modes(&self) -> (u64, Vec<String>) {
        let each = self.far.iter().map(|(_, remote, _)| remote.without_modes());
        each.fold((0, Vec::new()), |all, one| (all.0 + one.0, [all.1, one.1].concat()))
    }

    /// Directories whose times servers refused to set: number, and first names.
    pub fn without_times(&self) -> (u64, Vec<String>) {
        let each = self.far.iter().map(|(_, remote, _)| remote.without_times());
        each.fold((0, Vec::new()), |all, one| (all.0 + one.0, [all.1, one.1].concat()))
    }

    /// The most connections of a file, if servers were used.
    pub fn most_streams(&self) -> Option<u32> {
        self.far.iter().map(|(_, remote, _)| remote.most_streams()).max()
    }

    /// What transfers as objects have cost.
    pub fn objects(&self) -> ObjectTotals {
        self.far.iter().fold(ObjectTotals::default(), |all, (_, remote, _)| all.and(remote.objects()))
    }

    /// What has carried files, where `--stack auto` left that to this end: by the name of the server.
    pub fn carriers(&self) -> Vec<(String, CarriedFiles)> {
        let each = self.far.iter().map(|(_, remote, store)| (store.name(), remote.carriers()));
        each.flat_map(|(name, all)| all.into_iter().map(move |carried| (name.clone(), carried))).collect()
    }

    /// Why files between servers went through this end, if any did.
    pub fn why_by_way(&self) -> Vec<String> {
        let mut all: Vec<String> = self.far.iter().flat_map(|(_, remote, _)| remote.why_by_way()).collect();
        all.sort();
        all.dedup();
        all
    }

    /// Why private files were public until they were complete, if any were.
    pub fn why_public(&self) -> Vec<String> {
        self.far.iter().flat_map(|(_, remote, _)| remote.why_public()).collect()
    }

    /// The paths that connections have taken.
    pub fn paths(&self) -> Arc<Paths> {
        self.paths.clone()
    }

    /// See [`ServerOptions::check_ssh`].
    ///
    /// # Errors
    /// As there.
    pub fn check_ssh<'a>(&self, urls: impl IntoIterator<Item = &'a Url>, asking: Option<&str>) -> Result<()> {
        self.options.check_ssh(urls, asking)
    }

    /// The place that `url` names.
    ///
    /// # Errors
    /// It is a stream, it is unreachable, or an option of servers is wrong.
    pub async fn find(&mut self, url: &Url) -> Result<Place> {
        match url {
            Url::Standard => Err(Error::request("\"-\" is no place for this: a path or a URL was expected")),
            Url::Local(path) => self.local(path),
            Url::Far(far) => self.far(far).await,
        }
    }

    async fn far(&mut self, far: &Far) -> Result<Place> {
        // URLs with different passwords are different servers.
        let server = Far { path: Vec::new(), home: false, ..far.clone() };
        let known = self.far.iter().position(|(known, ..)| *known == server);
        let (remote, store) = match known {
            Some(i) => (self.far[i].1.clone(), self.far[i].2.clone()),
            None => {
                let ways = match &mut self.ways {
                    Some(ways) => ways,
                    None => {
                        let ways = GatewayPath::said(&self.options, self.caller.clone(), self.paths.clone())?;
                        self.ways.insert(ways)
                    }
                };
                let remote = servers::connect(far, &self.options, &self.carried, ways, &self.again).await?;
                let store: Arc<dyn Store> = Arc::new(remote.clone());
                self.far.push((server, remote.clone(), store.clone()));
                (remote, store)
            }
        };
        let mut key = Key::parse(&far.path).map_err(Error::request)?;
        let mut pattern = str::from_utf8(&far.path).ok().filter(|text| is_pattern(text)).map(str::to_owned);
        if far.home {
            key = remote.home().beneath(&key).map_err(Error::request)?;
            pattern = pattern.map(|text| format!("{}/{text}", escaped(&remote.home().to_string())));
        }
        let inside = is_inside(Path::new(OsStr::from_bytes(&far.path)));
        Ok(Place { store, key, inside, pattern })
    }

    fn local(&mut self, path: &Path) -> Result<Place> {
        let store = match &self.local {
            Some(store) => store.clone(),
            None => {
                let store = Local::new("/", Links::Anywhere)?;
                let store: Arc<dyn Store> = Arc::new(match &self.carried.partial_dir {
                    Some(name) => store.with_partial_dir(name.clone()),
                    None => store,
                });
                self.local.insert(store).clone()
            }
        };
        let whole = whole_path(path).map_err(|error| {
            let reason = phoebus_client::reason(&error);
            Error::request(format!("{}: {reason}", path.display()))
        })?;
        let key = Key::parse(whole.as_os_str().as_bytes()).map_err(Error::request)?;
        let pattern = path.to_str().filter(|text| is_pattern(text)).and_then(|text| pattern_of(text, path));
        Ok(Place { store, key, inside: is_inside(path), pattern })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::servers::{AgentHandle, Variable};
    use phoebus_client::{Options, Report};
    use phoebus_config::settings::Settings;

    /// A program whose user has a wrong setting.
    #[derive(Debug)]
    struct Wrong;

    impl Caller for Wrong {
        fn settings(&self, _: &[Variable]) -> Result<Settings> {
            Err(Error::request("PHOEBUS_GW: a gateway was expected"))
        }

        fn check(&self, _: &Settings) -> Result<()> {
            Ok(())
        }

        fn agent(&self, _: &Settings, _: &[Variable]) -> Result<Option<AgentHandle>> {
            Ok(None)
        }

        fn sessions(&self, settings: &Settings) -> Options {
            Options::from(settings)
        }

        fn opened(&self, _: &Settings, _: &Report) {}
    }

    #[tokio::test]
    async fn settings_matter_once_a_server_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let mut stores = Stores::new(ServerOptions::default(), Carried::default(), Arc::new(Wrong));
        let here = stores.find(&Url::parse(dir.path().as_os_str()).unwrap()).await.unwrap();
        assert!(here.is_dir().await.unwrap() && stores.servers().is_empty());
        for (place, words) in [("-", "\"-\" is no place for this"), ("ftp://127.0.0.1/a", "PHOEBUS_GW: ")] {
            let error = stores.find(&Url::parse(place.as_ref()).unwrap()).await.unwrap_err();
            assert!(matches!(error, Error::Request(_)) && error.to_string().starts_with(words), "{error}");
        }
    }
}
