//! From what was written to a store and a key in it.

mod far;
mod netrc;
mod ssh;
mod stack;
mod url;
mod way;

pub(crate) use far::{Carried, FarArgs};
pub(crate) use url::{Far, Url, UrlError};
pub(crate) use way::Paths;

use crate::exit::{self, Exit};
use anyhow::Result;
use phoebus_files::Retry;
use phoebus_files::key::Key;
use phoebus_files::local::Local;
use phoebus_files::plan::{Pattern, expand, is_pattern};
use phoebus_files::store::{Kind, Meta, Store};
use phoebus_files::{Error, Links};
use phoebus_gridftp::client::Remote;
use phoebus_proto::endpoint::Endpoint;
use stack::Stack;
use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use way::Ways;

/// A place in a store.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    /// The store. Two places are in the same one exactly if these are the same pointer.
    pub(crate) store: Arc<dyn Store>,
    /// What is meant in it.
    pub(crate) key: Key,
    /// Whether it was written with a slash at its end, or as `.`: then a directory is meant, and what is in it.
    pub(crate) inside: bool,
    /// What the key was written as where it may be a pattern, from the store's root.
    pattern: Option<String>,
}

/// The stores that places are in, each opened once.
#[derive(Debug, Default)]
pub(crate) struct Stores {
    local: Option<Arc<dyn Store>>,
    /// Servers, each with what was said of it.
    far: Vec<(Far, Remote, Arc<dyn Store>)>,
    args: FarArgs,
    carried: Carried,
    /// The way to servers, once there is one.
    ways: Option<Ways>,
    paths: Arc<Paths>,
    again: Again,
}

/// How often it is tried to reach a server, and who is told each time that it is not there.
#[derive(Default)]
struct Again {
    retry: Option<Retry>,
    tell: Option<Box<Tell>>,
}

/// Told why, and after how long it is tried again.
type Tell = dyn Fn(&Error, Duration) + Send + Sync;

impl fmt::Debug for Again {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Again").field(&self.retry).finish()
    }
}

impl Again {
    /// How long is to be waited before another attempt, after so many of which the last ended with `error`; none, if that is of no use.
    fn wait(&self, attempt: u32, error: &Error) -> Option<Duration> {
        let retry = self.retry.filter(|retry| attempt < retry.attempts)?;
        // A name that nobody knows is not known a second later.
        let may = error.may_pass() && !error.to_string().contains("not known");
        may.then(|| retry.wait(attempt)).inspect(|wait| {
            if let Some(tell) = &self.tell {
                tell(error, *wait);
            }
        })
    }
}

impl Stores {
    /// None yet; `args` is what is said of servers, `carried` how files go there.
    pub(crate) fn new(args: &FarArgs, carried: Carried) -> Self {
        Self { args: args.clone(), carried, ..Self::default() }
    }

    /// The same, which try again to reach a server that is not there, and `tell` why.
    pub(crate) fn trying(self, retry: Retry, tell: impl Fn(&Error, Duration) + Send + Sync + 'static) -> Self {
        Self { again: Again { retry: Some(retry), tell: Some(Box::new(tell)) }, ..self }
    }

    /// How long the server that is `store` takes to answer, if it is one.
    pub(crate) fn rtt(&self, store: &Arc<dyn Store>) -> Option<Duration> {
        let found = self.far.iter().find(|(.., known)| Arc::ptr_eq(known, store));
        found.map(|(_, remote, _)| remote.rtt())
    }

    /// The servers that were reached: as errors call them, how long they take to answer, and what this machine's kernel lets be under
    /// way to and from them.
    pub(crate) fn servers(&self) -> Vec<(String, Duration, (u64, u64))> {
        self.far.iter().map(|(_, remote, store)| (store.name(), remote.rtt(), remote.windows())).collect()
    }

    /// Of how many files and directories servers refused to set the modes, and the names of the first of them.
    pub(crate) fn without_modes(&self) -> (u64, Vec<String>) {
        let each = self.far.iter().map(|(_, remote, _)| remote.without_modes());
        each.fold((0, Vec::new()), |all, one| (all.0 + one.0, [all.1, one.1].concat()))
    }

    /// Of how many directories servers refused to set the times, and the names of the first of them.
    pub(crate) fn without_times(&self) -> (u64, Vec<String>) {
        let each = self.far.iter().map(|(_, remote, _)| remote.without_times());
        each.fold((0, Vec::new()), |all, one| (all.0 + one.0, [all.1, one.1].concat()))
    }

    /// Over how many connections a file went at the most, if servers were used.
    pub(crate) fn most_streams(&self) -> Option<u32> {
        self.far.iter().map(|(_, remote, _)| remote.most_streams()).max()
    }

    /// Why files of one server came to another by way of this end, if any did.
    pub(crate) fn why_by_way(&self) -> Vec<String> {
        let mut all: Vec<String> = self.far.iter().flat_map(|(_, remote, _)| remote.why_by_way()).collect();
        all.sort();
        all.dedup();
        all
    }

    /// The ways that connections to servers have taken.
    pub(crate) fn paths(&self) -> Arc<Paths> {
        self.paths.clone()
    }

    /// See [`FarArgs::check_ssh`].
    pub(crate) fn check_ssh<'a>(&self, urls: impl IntoIterator<Item = &'a Url>, asking: Option<&str>) -> Result<()> {
        self.args.check_ssh(urls, asking)
    }

    /// The place that `url` names.
    ///
    /// # Errors
    /// With the exit code that says what is wrong: it is a stream, it cannot be reached.
    pub(crate) async fn find(&mut self, url: &Url) -> Result<Place> {
        match url {
            Url::Standard => Err(Exit::usage("\"-\" is no place for this: a path or a URL was expected")),
            Url::Local(path) => self.local(path),
            Url::Far(far) => self.far(far).await,
        }
    }

    async fn far(&mut self, far: &Far) -> Result<Place> {
        // Passwords are looked at, too: who has said two is two.
        let server = Far { path: Vec::new(), home: false, ..far.clone() };
        let known = self.far.iter().position(|(known, ..)| *known == server);
        let (remote, store) = match known {
            Some(i) => (self.far[i].1.clone(), self.far[i].2.clone()),
            None => {
                let ways = match &mut self.ways {
                    Some(ways) => ways,
                    None => {
                        let ways = self.ways()?;
                        self.ways.insert(ways)
                    }
                };
                let remote = far::connect(far, &self.args, &self.carried, ways, &self.again).await?;
                let store: Arc<dyn Store> = Arc::new(remote.clone());
                self.far.push((server, remote.clone(), store.clone()));
                (remote, store)
            }
        };
        let mut key = Key::parse(&far.path).map_err(Exit::usage)?;
        let mut pattern = str::from_utf8(&far.path).ok().filter(|text| is_pattern(text)).map(str::to_owned);
        if far.home {
            key = remote.home().beneath(&key).map_err(Exit::usage)?;
            pattern = pattern.map(|text| format!("{}/{text}", escaped(&remote.home().to_string())));
        }
        let inside = is_inside(Path::new(OsStr::from_bytes(&far.path)));
        Ok(Place { store, key, inside, pattern })
    }

    /// The way to servers, as was said.
    fn ways(&self) -> Result<Ways> {
        let (via, paths) = (self.args.gateways.as_deref(), self.paths.clone());
        match (via, self.args.stack.as_deref().map(Stack::parse).transpose()?) {
            (None, Some(Stack::Gateways { path, first_hop })) => {
                let path: Vec<String> = path.iter().map(Endpoint::to_string).collect();
                Ways::new(Some(&path.join(",")), first_hop, paths)
            }
            (Some(_), Some(Stack::Gateways { .. })) => {
                Err(Exit::usage("--gateways and --stack phoebus: one of the two was expected"))
            }
            (via, _) => Ways::new(via, None, paths),
        }
    }

    fn local(&mut self, path: &Path) -> Result<Place> {
        let store = match &self.local {
            Some(store) => store.clone(),
            None => {
                let store = Local::new("/", Links::Anywhere).map_err(exit::of_files)?;
                let store: Arc<dyn Store> = Arc::new(match &self.carried.partial_dir {
                    Some(name) => store.with_partial_dir(name.clone()),
                    None => store,
                });
                self.local.insert(store).clone()
            }
        };
        let whole = whole_path(path).map_err(|error| {
            let reason = phoebus_client::reason(&error);
            Exit::usage(format!("{}: {reason}", path.display()))
        })?;
        let key = Key::parse(whole.as_os_str().as_bytes()).map_err(Exit::usage)?;
        let pattern = path.to_str().filter(|text| is_pattern(text)).and_then(|text| pattern_of(text, path));
        Ok(Place { store, key, inside: is_inside(path), pattern })
    }
}

impl Place {
    /// What is there; nothing, if nothing is.
    pub(crate) async fn meta(&self) -> Result<Option<Meta>, Error> {
        match self.store.stat(&self.key).await {
            Ok(meta) => Ok(Some(meta)),
            Err(Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Whether it is a directory that is there.
    pub(crate) async fn is_dir(&self) -> Result<bool, Error> {
        Ok(self.meta().await?.is_some_and(|meta| meta.kind == Kind::Dir))
    }

    /// What it stands for: itself, or if nothing has that very name and it is a pattern, all that matches.
    ///
    /// # Errors
    /// Nothing matches, or a directory cannot be read.
    pub(crate) async fn all(&self) -> Result<Vec<Key>, Error> {
        let Some(pattern) = &self.pattern else { return Ok(vec![self.key.clone()]) };
        if self.meta().await?.is_some() {
            return Ok(vec![self.key.clone()]);
        }
        let request = |reason: String| Error::Store { name: self.name(), reason, sort: phoebus_files::Sort::Request };
        let pattern = Pattern::parse(pattern).map_err(|error| request(error.to_string()))?;
        let found = expand(&*self.store, &pattern).await?;
        if found.is_empty() {
            let reason = "nothing matches".to_owned();
            return Err(Error::Store { name: self.name(), reason, sort: phoebus_files::Sort::NotFound });
        }
        Ok(found.into_iter().map(|(key, _)| key).collect())
    }

    /// As messages have it.
    pub(crate) fn name(&self) -> String {
        shown(&*self.store, &self.key)
    }

    /// Whether it was written as a pattern.
    pub(crate) fn is_pattern(&self) -> bool {
        self.pattern.is_some()
    }
}

/// `key` of `store` as messages have it: a path of this machine, or a URL.
pub(crate) fn shown(store: &dyn Store, key: &Key) -> String {
    let store = store.name();
    format!("{}/{key}", store.strip_prefix("file://").unwrap_or(&store))
}

/// From the root, with what `..` leads to where the path really leads, as the system sees it.
fn whole_path(path: &Path) -> std::io::Result<PathBuf> {
    if path.as_os_str().is_empty() {
        return Err(std::io::Error::new(std::io::ErrorKind::InvalidInput, "a path was expected that is not empty"));
    }
    let whole = std::path::absolute(path)?;
    let parts: Vec<Component<'_>> = whole.components().collect();
    let Some(last) = parts.iter().rposition(|part| *part == Component::ParentDir) else { return Ok(whole) };
    let begin: PathBuf = parts[..=last].iter().collect();
    let rest: PathBuf = parts[last + 1..].iter().collect();
    Ok(begin.canonicalize()?.join(rest))
}

/// `text`, which is `path`, as a pattern from the root: what the directory's own name has of a pattern's characters is
/// meant as it stands.
fn pattern_of(text: &str, path: &Path) -> Option<String> {
    if path.is_absolute() {
        return Some(text.to_owned());
    }
    let here = std::env::current_dir().ok()?.into_os_string().into_string().ok()?;
    Some(format!("{}/{text}", escaped(&here)))
}

/// `text` as a pattern that matches nothing else.
fn escaped(text: &str) -> String {
    text.chars().flat_map(|c| "*?[]{}\\".contains(c).then_some('\\').into_iter().chain(Some(c))).collect()
}

fn is_inside(path: &Path) -> bool {
    let bytes = path.as_os_str().as_bytes();
    let last = bytes.rsplit(|&b| b == b'/').next().unwrap_or_default();
    [&b""[..], b".", b".."].contains(&last)
}

/// What a list or an argument has for a place.
///
/// # Errors
/// It is none (exit code 2).
pub(crate) fn parse(written: &OsStr) -> Result<Url> {
    Url::parse(written).map_err(|error: UrlError| Exit::usage(error))
}
