//! A running gateway: start, reload, drain.

use crate::admin;
use crate::audit::OpenFile;
use crate::budget::Budget;
use crate::config::{AUTO, Audit, Config, Listen};
use crate::issuers::Issuers;
use crate::listening::{ClosingListeners, Running, Settling, bind, run, run_when_address_is_free};
use crate::monitor;
use crate::pool::Pool;
use crate::sessions::Neighbour;
use crate::shared::{Phase, Setup, Shared};
use crate::start_error::StartError;
use crate::status::Status;
use crate::suspicion::Reset;
use crate::transports::Transports;
use crate::workers::Workers;
use phoebus_net::datagram_relay::DatagramRelay;
use phoebus_net::host::Host;
use phoebus_net::tcp;
use phoebus_proto::session::Code;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::net::UnixListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};
use tracing::{info, warn};

/// Longest time for the last resets after a drain.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// A running gateway. Dropping it ends it at once, and resets its sessions.
#[derive(Debug)]
pub struct Gateway {
    shared: Arc<Shared>,
    listeners: Mutex<Vec<Running>>,
    closing: Mutex<ClosingListeners>,
    tasks: Mutex<Vec<JoinHandle<()>>>,
    admin: Option<PathBuf>,
    /// The task that serves the administration socket.
    answering: Mutex<Option<JoinHandle<()>>>,
}

impl Gateway {
    /// Starts a gateway. All addresses are bound when this returns.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start(config: Config) -> Result<Self, StartError> {
        let budget = Budget::of(&config)?;
        check_sources(&config)?;
        let admin = config.admin.clone();
        let transports = Arc::new(Transports::new(&config, None)?);
        let bind = |listen| bind(&config, &transports, listen);
        let listeners = config.listeners.iter().map(bind).collect::<Result<Vec<_>, _>>()?;
        let datagrams = relay_datagrams(&config)?;
        let audit = open_audit(config.audit.as_ref(), &config.places.audit)?;
        let socket = admin.as_deref().map(|path| listen_admin(path, &config.places.admin)).transpose()?;
        advise(&config);
        let threads = config.limits.threads.or(std::thread::available_parallelism().ok()).unwrap_or(NonZeroUsize::MIN);
        let workers = Workers::start(threads).map_err(StartError::Threads)?;
        let issuers = Issuers::start(&config.issuers, None).map_err(StartError::Threads)?;
        let setup = Setup::new(config, (transports, issuers), budget, None);
        let shared = Shared::new(setup, budget.pipes, workers, datagrams);
        shared.audit.write_to(audit).map_err(StartError::Threads)?;
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
            closing: Mutex::default(),
            tasks: Mutex::new(vec![
                tokio::spawn(monitor::watch_sessions(shared.clone())),
                tokio::spawn(monitor::watch_revocations(shared.clone())),
                tokio::spawn(shared.data.reservations.clone().keep()),
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

    /// The addresses that it relays datagrams at.
    pub fn datagram_addresses(&self) -> Vec<SocketAddr> {
        self.shared.data.datagrams.as_ref().map(DatagramRelay::addresses).unwrap_or_default()
    }

    /// The gateway's current state.
    pub fn status(&self) -> Status {
        Status::of(&self.shared)
    }

    /// Whether it carries or is opening sessions.
    pub fn is_busy(&self) -> bool {
        self.shared.admission.sessions.total() > 0
    }

    /// Connects to `peer` ahead of need, to find out whether the peer is available.
    ///
    /// # Errors
    /// The transports that were tried, each with the reason of its failure; empty for a peer that is not configured.
    pub async fn try_peer(&self, peer: &str) -> Result<(), Vec<(String, String)>> {
        let pool = self.shared.setup().peers.get(peer).cloned().ok_or_else(Vec::new)?;
        pool.try_peer().await
    }

    /// Puts `config` in force for new sessions and connections. Open sessions keep their settings, except for rates.
    /// Connections made with certificates that `config` replaces finish their sessions and take no new ones. Returns
    /// when all listeners of `config` listen and the others are closed, or after some seconds if an address that was
    /// closed cannot be bound again; the gateway keeps trying. Dropping this future stops the wait, and reverts
    /// nothing.
    ///
    /// # Errors
    /// [`StartError`]. Nothing has changed then: every step that can fail comes first.
    pub async fn reload(&self, config: Config) -> Result<(), StartError> {
        // The file system may hang, and nobody else shall wait for it.
        let (opening, place, (tell, told)) = (config.audit.clone(), config.places.audit.clone(), oneshot::channel());
        let open = move || {
            // Whoever reloads may have gone.
            let _ = tell.send(open_audit(opening.as_ref(), &place));
        };
        std::thread::Builder::new().name("audit-open".to_owned()).spawn(open).map_err(StartError::Threads)?;
        let audit = told.await.map_err(|error| StartError::Threads(std::io::Error::other(error)))??;
        let missing = self.put_in_force(config, audit)?.settled().await;
        for address in &missing {
            warn!(%address, "the address is not listened on yet, and is tried again and again");
        }
        info!("the configuration was reloaded");
        Ok(())
    }

    /// Like [`Gateway::reload`], without the wait.
    fn put_in_force(&self, config: Config, audit: Option<OpenFile>) -> Result<Settling, StartError> {
        let budget = Budget::of(&config)?;
        check_sources(&config)?;
        let old = self.shared.setup();
        let same = old.transports.suit(&config);
        let transports = match same {
            true => old.transports.clone(),
            false => Arc::new(Transports::new(&config, Some(&old.transports))?),
        };
        let issuers = Issuers::start(&config.issuers, Some(&old.issuers)).map_err(StartError::Threads)?;
        let mut running = lock(&self.listeners);
        // An address whose settings change must be closed before it can be bound again, so try the new addresses first.
        let kept = |listen: &Listen| same && running.iter().any(|old| old.listen.listens_as(listen));
        let changed = |listen: &Listen| running.iter().any(|old| old.listen.is_at(listen));
        let (new, mut changed): (Vec<_>, Vec<_>) =
            config.listeners.iter().filter(|listen| !kept(listen)).partition(|listen| !changed(listen));
        let (mut fresh, mut closing) = (Vec::new(), lock(&self.closing));
        for listen in new {
            match bind(&config, &transports, listen) {
                Ok(bound) => fresh.push(bound),
                Err(error) if error.is_in_use() && closing.has(listen) => changed.push(listen),
                Err(error) => return Err(error),
            }
        }
        self.shared.audit.write_to(audit).map_err(StartError::Threads)?;
        // Nothing below can fail.
        if config.admin != self.admin {
            warn!("admin.socket has changed; it takes a restart to move it");
        }
        if config.datagrams != old.config.datagrams {
            warn!("datagrams.addresses has changed; it takes a restart to use others");
        }
        if same && transports.has_other_reset_key(&config) {
            warn!("tls.reset_key has changed; it takes a restart to use another file");
        }
        if !same {
            old.transports.retire();
        } else if transports.renew(&config) {
            info!("other certificates are in force: connections made with the old ones take no new sessions");
        }
        let setup = Arc::new(Setup::new(config.clone(), (transports.clone(), issuers), budget, Some(&old)));
        // Whatever starts below sees the new configuration.
        self.shared.replace(setup.clone());
        let closes = |old: &mut Running| !(same && config.listeners.iter().any(|listen| old.listen.listens_as(listen)));
        let mut settling = Settling { closing: closing.close(running.extract_if(.., closes)), pending: Vec::new() };
        running.extend(fresh.into_iter().map(|bound| run(&self.shared, bound)));
        for listen in changed {
            let again =
                run_when_address_is_free(&self.shared, transports.clone(), listen.clone(), closing.take(listen));
            settling.pending.push((again.bound, again.listener.clone()));
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
                Some(old) if Arc::ptr_eq(old, pool) => pool.check_idle(),
                _ => start_pool(pool, &self.shared),
            }
        }
        advise(&config);
        Ok(settling)
    }

    /// Refuses new sessions, waits for open ones up to `limits.drain_timeout`, and ends the rest. Dropping this future
    /// ends nothing. Returns how many sessions had to be ended.
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
        self.shared.audit.end(LAST_WORDS).await;
        if left > 0 {
            warn!(sessions = left, "ended sessions that did not finish");
        }
        info!("the gateway is closed");
        left
    }

    /// Closes all listeners. When this returns, connections to their addresses are refused.
    pub async fn stop_listening(&self) {
        let running: Vec<_> = lock(&self.listeners).drain(..).collect();
        for Running { task, listener, .. } in running {
            // Where streams share connections, new streams on existing connections would otherwise wait for an answer.
            listener.get().iter().for_each(|listener| listener.set_refusal_code(Code::Draining));
            drop(listener);
            task.abort();
            let _ = task.await;
        }
    }

    /// Closes the administration socket. When this returns, another gateway can use its name.
    pub fn close_admin(&self) {
        let Some(answering) = lock(&self.answering).take() else { return };
        answering.abort();
        // From here on, the name may belong to another gateway.
        let _ = self.admin.as_ref().map(std::fs::remove_file);
    }

    /// Waits until no session or connection is left, or `limit` has passed.
    async fn gone(&self, limit: Duration) {
        const LOOK: Duration = Duration::from_millis(20);
        let deadline = Instant::now() + limit;
        let busy = || self.shared.sessions.len() > 0 || self.shared.admission.connections.total() > 0;
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
        self.shared.data.workers.stop();
    }
}

/// Starts to relay datagrams, if the configuration has addresses for them.
fn relay_datagrams(config: &Config) -> Result<Option<DatagramRelay>, StartError> {
    if config.datagrams.is_empty() {
        return Ok(None);
    }
    let place = || config.places.datagrams.clone();
    let relay = DatagramRelay::start(&config.datagrams).map_err(|(address, source)| match address {
        Some(address) => StartError::Datagrams { place: place(), address, source },
        None => StartError::Threads(source),
    });
    let relay = relay?;
    relay.addresses().iter().for_each(|address| info!(%address, "relaying datagrams"));
    Ok(Some(relay))
}

/// Whether connections can come from where the routes say.
fn check_sources(config: &Config) -> Result<(), StartError> {
    if !config.routes.iter().any(|route| route.from_client) {
        return Ok(());
    }
    let place = config.places.source.clone();
    tcp::may_use_other_addresses().map_err(|source| StartError::ClientAddress { place, source })
}

/// Opens the file of the audit, which stands at `place` in the configuration, if there is one. The same file too: it may have
/// another name by now. Waits for at most some seconds.
fn open_audit(audit: Option<&Audit>, place: &str) -> Result<Option<OpenFile>, StartError> {
    let open = |audit: &Audit| {
        let failed = |source| StartError::Audit { place: place.to_owned(), path: audit.file.clone(), source };
        OpenFile::open(audit).map_err(failed)
    };
    audit.map(open).transpose()
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

/// Logs what the host's settings cost with this configuration.
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
    config.warnings().iter().for_each(|warning| warn!("{warning}"));
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
