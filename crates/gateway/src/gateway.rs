//! A running gateway: started from a configuration, reloaded, drained.

use crate::admin;
use crate::choose;
use crate::config::{AUTO, Config, Listen, Peer};
use crate::keeper;
use crate::listening::{Going, Running, Settling, bind, run, run_when_free};
use crate::live::Neighbour;
use crate::pool::Pool;
use crate::shared::{Phase, Setup, Shared};
use crate::status::Status;
use crate::suspicion::Reset;
use crate::transports::Transports;
use crate::workers::Workers;
use phoebus_net::host::Host;
use phoebus_net::{Error, limits, reason};
use phoebus_proto::session::Code;
use std::io;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::net::UnixListener;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};
use tracing::{info, warn};

/// Descriptors for what is neither a session nor a pipe: listeners, log, resolver, administration.
const SPARE: u64 = 64;
/// How long the last resets may take after a drain.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// Why a gateway cannot start, or cannot take another configuration.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A listener's address cannot be had.
    #[error("{place}: {source}; expected an address of this host and a port that is free")]
    Listen {
        /// `FILE:LINE:COLUMN` of the address.
        place: String,
        /// Why.
        source: phoebus_net::Error,
    },
    /// The administration socket cannot be had.
    #[error("{place}: cannot listen on the administration socket {}: {}", path.display(), admin::reason(source))]
    Admin {
        /// `FILE:LINE:COLUMN` of its name.
        place: String,
        /// The socket.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The secret of QUIC's stateless resets cannot be read or made.
    #[error("cannot use the file for tls.reset_key: {}; expected one that this gateway can make", reason(.0))]
    ResetKey(io::Error),
    /// A thread cannot be started.
    #[error("cannot start a thread: {}", reason(.0))]
    Threads(io::Error),
    /// The limits do not fit the process.
    #[error(
        "{place}{}limits.sessions is {sessions}, which with pipes, pools and handshakes takes {needed} descriptors; this \
         process may have {available} (ulimit -n)",
        if place.is_empty() { "" } else { ": " }
    )]
    Descriptors {
        /// `FILE:LINE:COLUMN` of that limit, the file alone where it does not say, nothing without a file.
        place: String,
        /// Sessions asked for.
        sessions: u32,
        /// What they take.
        needed: u64,
        /// What there is.
        available: u64,
    },
}

impl StartError {
    /// Whether another socket has an address that is to be listened on.
    fn is_in_use(&self) -> bool {
        matches!(self, Self::Listen { source: Error::Listen { source, .. }, .. } if source.kind() == io::ErrorKind::AddrInUse)
    }
}

/// A running gateway. Dropped, it ends at once, and resets its sessions.
#[derive(Debug)]
pub struct Gateway {
    shared: Arc<Shared>,
    listeners: Mutex<Vec<Running>>,
    going: Mutex<Going>,
    tasks: Mutex<Vec<JoinHandle<()>>>,
    admin: Option<PathBuf>,
    /// Whoever answers there.
    answering: Mutex<Option<JoinHandle<()>>>,
}

impl Gateway {
    /// Starts a gateway: all addresses are bound when this returns.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start(config: Config) -> Result<Self, StartError> {
        let budget = Budget::of(&config)?;
        let admin = config.admin.clone();
        let transports = Arc::new(Transports::new(&config, None)?);
        let bind = |listen| bind(&config, &transports, listen);
        let listeners = config.listeners.iter().map(bind).collect::<Result<Vec<_>, _>>()?;
        let socket = admin.as_deref().map(|path| listen_admin(path, &config.places.admin)).transpose()?;
        advise(&config);
        let threads = config.limits.threads.or(std::thread::available_parallelism().ok()).unwrap_or(NonZeroUsize::MIN);
        let workers = Workers::start(threads).map_err(StartError::Threads)?;
        let shared = Shared::new(Setup::new(config, transports, budget, None), budget.pipes, workers);
        let setup = shared.setup();
        info!(
            name = setup.config.name,
            sessions = setup.sessions,
            threads = threads.get(),
            pipes = budget.pipes,
            peers = setup.peers.len(),
            rules = setup.config.rules.len(),
            "the gateway is open"
        );
        let gateway = Self {
            listeners: Mutex::new(listeners.into_iter().map(|bound| run(&shared, bound)).collect()),
            going: Mutex::default(),
            tasks: Mutex::new(vec![
                tokio::spawn(keeper::keep(shared.clone())),
                tokio::spawn(shared.reservations.clone().keep()),
            ]),
            answering: Mutex::new(socket.map(|socket| tokio::spawn(admin::serve(shared.clone(), socket)))),
            shared,
            admin,
        };
        setup.peers.values().for_each(|pool| start_pool(pool, &gateway.shared));
        Ok(gateway)
    }

    /// The addresses that it listens on.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        lock(&self.listeners).iter().map(|running| running.bound).collect()
    }

    /// The gateway at this moment.
    pub fn status(&self) -> Status {
        Status::of(&self.shared)
    }

    /// Whether it carries sessions, or is about to.
    pub fn is_busy(&self) -> bool {
        self.shared.admitted.total() > 0
    }

    /// Connects to `peer` ahead of need, so that it shows whether it can be had.
    ///
    /// # Errors
    /// The transports that were tried, and of each why it led nowhere; none of a peer that is not configured.
    pub async fn try_peer(&self, peer: &str) -> Result<(), Vec<(String, String)>> {
        let pool = self.shared.setup().peers.get(peer).cloned().ok_or_else(Vec::new)?;
        pool.try_peer().await
    }

    /// Puts `config` in force for what comes from now on; open sessions keep what they have, but for rates. Connections that were
    /// made with other certificates than those of `config` carry what they carry to its end, and nothing more. Returns when all
    /// listeners of `config` listen and the others do not, or after some seconds if an address that was given up cannot be had
    /// again; that is tried for as long as it takes. Whoever drops this future amid it waits no longer, and takes nothing back.
    ///
    /// # Errors
    /// [`StartError`], and then all stays as it was: whatever can fail is done before anything else.
    pub async fn reload(&self, config: Config) -> Result<(), StartError> {
        let missing = self.put_in_force(config)?.settled().await;
        for address in &missing {
            warn!(%address, "the address is not listened on yet, and is tried again and again");
        }
        info!("the configuration was reloaded");
        Ok(())
    }

    /// The same, but for waiting.
    fn put_in_force(&self, config: Config) -> Result<Settling, StartError> {
        let budget = Budget::of(&config)?;
        let old = self.shared.setup();
        let same = old.transports.suit(&config);
        let transports = match same {
            true => old.transports.clone(),
            false => Arc::new(Transports::new(&config, Some(&old.transports))?),
        };
        let mut running = lock(&self.listeners);
        // An address whose settings change must be given up before it can be had again, so that the ones that are new
        // altogether are tried first.
        let kept = |listen: &Listen| same && running.iter().any(|old| old.listen.listens_as(listen));
        let changed = |listen: &Listen| running.iter().any(|old| old.listen.is_at(listen));
        let (new, mut changed): (Vec<_>, Vec<_>) =
            config.listeners.iter().filter(|listen| !kept(listen)).partition(|listen| !changed(listen));
        let (mut fresh, mut going) = (Vec::new(), lock(&self.going));
        for listen in new {
            match bind(&config, &transports, listen) {
                Ok(bound) => fresh.push(bound),
                Err(error) if error.is_in_use() && going.has(listen) => changed.push(listen),
                Err(error) => return Err(error),
            }
        }
        // From here on nothing can fail.
        if config.admin != self.admin {
            warn!("admin.socket has changed; it takes a restart to move it");
        }
        if same && transports.has_other_reset_key(&config) {
            warn!("tls.reset_key has changed; it takes a restart to use another file");
        }
        if !same {
            old.transports.retire();
        } else if transports.renew(&config) {
            info!("other certificates are in force: connections made with the old ones take no new sessions");
        }
        let setup = Arc::new(Setup::new(config.clone(), transports.clone(), budget, Some(&old)));
        // What begins from here on finds the configuration in force that it belongs to.
        self.shared.replace(setup.clone());
        let goes = |old: &mut Running| !(same && config.listeners.iter().any(|listen| old.listen.listens_as(listen)));
        let mut settling = Settling { going: going.tell(running.extract_if(.., goes)), coming: Vec::new() };
        running.extend(fresh.into_iter().map(|bound| run(&self.shared, bound)));
        for listen in changed {
            let again = run_when_free(&self.shared, transports.clone(), listen.clone(), going.take(listen));
            settling.coming.push((again.bound, again.listener.clone()));
            running.push(again);
        }
        for (name, pool) in &old.peers {
            if setup.peers.get(name).is_none_or(|new| !Arc::ptr_eq(new, pool)) {
                pool.close();
                pool.retire();
            }
        }
        for (name, pool) in &setup.peers {
            match old.peers.get(name) {
                Some(old) if Arc::ptr_eq(old, pool) => pool.look_again(),
                _ => start_pool(pool, &self.shared),
            }
        }
        advise(&config);
        Ok(settling)
    }

    /// Takes no more sessions, waits for the old ones up to `limits.drain_timeout`, and ends the rest; dropping this future
    /// ends nothing. Returns how many had to be ended.
    pub async fn drain(&self) -> usize {
        let setup = self.shared.setup();
        let limit = setup.config.limits.drain_timeout.0;
        info!(sessions = self.shared.sessions.len(), limit_s = limit.as_secs(), "draining: no new sessions");
        self.stop_listening().await;
        self.shared.phase.send_replace(Phase::Draining);
        self.gone(limit).await;
        self.end().await
    }

    /// Ends all sessions at once, as failures. Returns how many there were.
    pub async fn end(&self) -> usize {
        self.stop_listening().await;
        let left = self.shared.sessions.len();
        self.shared.phase.send_replace(Phase::Ending);
        self.shared.setup().peers.values().for_each(|pool| pool.close());
        self.gone(LAST_WORDS).await;
        let transports = self.shared.setup().transports.clone();
        let _ = timeout(LAST_WORDS, transports.close()).await;
        self.close_admin();
        if left > 0 {
            warn!(sessions = left, "ended sessions that did not finish");
        }
        info!("the gateway is closed");
        left
    }

    /// Gives all addresses up; when this returns, connecting to them is refused.
    pub async fn stop_listening(&self) {
        let running: Vec<_> = lock(&self.listeners).drain(..).collect();
        for Running { task, listener, .. } in running {
            // Where streams share connections, further ones on those that there are would wait for an answer.
            listener.get().iter().for_each(|listener| listener.part(Code::Draining));
            drop(listener);
            task.abort();
            let _ = task.await;
        }
    }

    /// Gives the administration socket up: another gateway can have its name when this returns.
    pub fn close_admin(&self) {
        let Some(answering) = lock(&self.answering).take() else { return };
        answering.abort();
        // Its name may be another's from here on.
        let _ = self.admin.as_ref().map(std::fs::remove_file);
    }

    /// Waits until no session and no connection is left, or `limit` has passed.
    async fn gone(&self, limit: Duration) {
        const LOOK: Duration = Duration::from_millis(20);
        let deadline = Instant::now() + limit;
        let busy = || self.shared.sessions.len() > 0 || self.shared.connected.total() > 0;
        while busy() && Instant::now() < deadline {
            sleep(LOOK).await;
        }
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        lock(&self.listeners).drain(..).for_each(|running| running.task.abort());
        lock(&self.tasks).drain(..).chain(lock(&self.answering).take()).for_each(|task| task.abort());
        self.shared.phase.send_replace(Phase::Ending);
        self.shared.sessions.all().iter().for_each(|live| {
            live.end(Code::Terminated, "the gateway has shut down");
        });
        self.shared.setup().peers.values().for_each(|pool| pool.close());
        self.shared.workers.stop();
    }
}

/// What the descriptors are enough for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Budget {
    pub(crate) sessions: u32,
    /// Connections of hops beside the first of each.
    pub(crate) beside: u32,
    pipes: usize,
}

/// Whether this process could run a gateway of `config`: it may have as many descriptors as the limits take. Nothing is
/// listened on.
///
/// # Errors
/// [`StartError::Descriptors`].
pub fn check(config: &Config) -> Result<(), StartError> {
    Budget::of(config).map(|_| ())
}

impl Budget {
    fn of(config: &Config) -> Result<Self, StartError> {
        // In a program that is not a gateway's own, that is the program's to decide.
        let guest = config.inlet.is_some();
        Self::within(config, if guest { limits::descriptors() } else { limits::raise_descriptors() })
    }

    fn within(config: &Config, available: u64) -> Result<Self, StartError> {
        let limits = &config.limits;
        let pipes = limits.pipes.map_or((available / 16).clamp(8, 1024), |n| n.get().into());
        // More than are configured may be chosen.
        let streams =
            |peer: &Peer| peer.profile.streams.max(if peer.transport == AUTO { choose::STREAMS_MAX } else { 1 });
        let ready = |peer: &Peer| u64::from(peer.pool.max) * u64::from(streams(peer));
        let pools: u64 = config.peers.values().map(ready).sum();
        // Sessions that find none left have fewer connections, and go on.
        let beside = if limits.streams.get() > 1 && !config.peers.is_empty() { available / 8 } else { 0 };
        // A burst of strangers may meet a full house and be turned away; but not all of the house is for strangers.
        let strangers = u64::from(limits.handshakes.get()).min(available / 8);
        let others = SPARE + 2 * pipes + pools + strangers + beside;
        let room = available.saturating_sub(others) / 2;
        let place = || config.places.sessions.clone();
        let missing = |sessions, needed| StartError::Descriptors { place: place(), sessions, needed, available };
        let sessions = match limits.sessions {
            Some(wanted) if u64::from(wanted.get()) > room => {
                let needed = others + 2 * u64::from(wanted.get());
                return Err(missing(wanted.get(), needed));
            }
            Some(wanted) => wanted.get(),
            None if room == 0 => return Err(missing(1, others + 2)),
            None => u32::try_from(room).unwrap_or(u32::MAX),
        };
        let beside = u32::try_from(beside).unwrap_or(u32::MAX);
        Ok(Self { sessions, beside, pipes: usize::try_from(pipes).unwrap_or(usize::MAX) })
    }
}

fn listen_admin(path: &std::path::Path, place: &str) -> Result<UnixListener, StartError> {
    let failed = |source| StartError::Admin { place: place.to_owned(), path: path.to_owned(), source };
    admin::listen(path).map_err(failed)
}

fn start_pool(pool: &Arc<Pool>, shared: &Shared) {
    tokio::spawn(pool.clone().maintain());
    let (own, suspects, silence) =
        (pool.clone(), shared.suspects.clone(), shared.setup().config.limits.silence_timeout.0);
    tokio::spawn(pool.clone().watch(move |beacon| {
        let neighbour = Neighbour::Peer(own.peer.name.clone());
        suspects.look_into(Reset { neighbour, pool: Some(own.clone()), beacon, is_own: true, silence });
    }));
}

/// What the host's settings cost this configuration.
fn advise(config: &Config) {
    let host = Host::read();
    let mut said = Vec::new();
    for advice in config.listeners.iter().flat_map(|listen| host.advice_for_listener(&listen.profile)) {
        if !said.contains(&advice) {
            warn!("{advice}");
            said.push(advice);
        }
    }
    for peer in config.peers.values().filter(|peer| peer.transport == AUTO && peer.allowed.len() == 1) {
        let only = &peer.allowed[0].transport;
        info!(
            peer = peer.name,
            "auto has {only} alone to choose from: quic and udt need certificates, and to be allowed"
        );
    }
    if config.rules.is_empty() {
        warn!("there are no [[allow]] rules: every session will be refused");
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
