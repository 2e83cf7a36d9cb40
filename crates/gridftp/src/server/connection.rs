//! Serves one client: its control connection with time limits, and the tasks of its session.

use super::command_queue::CommandQueue;
use super::current::Shared;
use super::drain::{Drain, over, reached};
use super::monitor::{Monitor, READ, now};
use super::session::task::{Outcome, Task};
use super::session::{Rules, Session, Step};
use super::shutdown::Shutdown;
use super::worker::{PresenceQuestion, TaskClient, Worker};
use crate::control::Link;
use phoebus_accounts::count::Counted;
use phoebus_proto::gridftp::line::Lines;
use phoebus_proto::gridftp::reply::Reply;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until, timeout};

/// Longest round trip that is allowed for when waiting for the end of a control connection.
const LONGEST_TRIP: Duration = Duration::from_secs(2);

/// Interval of asking the kernel whether the client is there, while no read would tell.
const PEER_CHECK: Duration = Duration::from_millis(500);

/// A client that is being served.
pub(super) struct Connection {
    server: Arc<Shared>,
    link: Link,
    lines: Lines,
    session: Session,
    worker: Worker,
    /// Commands that came during a task.
    queue: CommandQueue,
    /// This connection in the count of the user's.
    counted: Option<Counted<String>>,
    shutdown: watch::Receiver<Shutdown>,
    drain: Drain,
}

/// Why a connection ended.
enum End {
    /// The last reply was sent.
    Closed,
    /// The client closed the connection, or it failed.
    Gone(Option<io::Error>),
}

impl From<io::Error> for End {
    fn from(error: io::Error) -> Self {
        Self::Gone(Some(error))
    }
}

impl Connection {
    /// Serves the client at the other end of `link` until either side closes the connection.
    pub(super) async fn serve(
        server: Arc<Shared>,
        link: Link,
        peer: SocketAddr,
        rules: Arc<Rules>,
        shutdown: watch::Receiver<Shutdown>,
    ) {
        let Ok(local) = link.local_addr() else { return };
        let (mut session, greeting) = Session::new(rules, peer, local);
        session.charge_names(server.memory.held(peer.ip()));
        let worker = Worker {
            server: server.clone(),
            held: server.memory.held(peer.ip()),
            peer,
            local,
            served: None,
            channel: None,
            listens: None,
            stripes: None,
            unsynced: 0,
            sent: None,
        };
        let lines = Lines::new(server.config.limits.line.0 as usize);
        let queue = CommandQueue::new(server.memory.held(peer.ip()));
        let drain = Drain::new(server.file_tasks.clone(), peer.ip().to_canonical());
        let mut connection = Self { server, link, lines, session, worker, queue, counted: None, shutdown, drain };
        tracing::debug!(%peer, "a client has connected");
        match connection.run(greeting).await {
            End::Closed => tracing::debug!(%peer, "a client has left"),
            End::Gone(error) => {
                let reason = error.map_or("it closed the connection".to_owned(), |error| error.to_string());
                tracing::debug!(%peer, reason, "a client has gone");
            }
        }
        // Replies that were sent are delivered before the connection closes.
        let _ = connection.link.close().await;
        connection.worker.sync_rest().await;
    }

    async fn run(&mut self, greeting: Reply) -> End {
        match self.converse(greeting).await {
            Ok(()) => End::Closed,
            Err(end) => end,
        }
    }

    async fn converse(&mut self, greeting: Reply) -> Result<(), End> {
        self.send(&greeting).await?;
        let limits = self.server.config.limits.clone();
        // The login limit runs from the greeting, and again after REIN.
        let mut logged_out_since = Instant::now();
        loop {
            tokio::task::consume_budget().await;
            if *self.shutdown.borrow() == Shutdown::Now {
                return self.last(421, "the server is ending").await;
            }
            match self.session.account() {
                Some(_) => logged_out_since = Instant::now(),
                // After REIN, or before another login, the connection is nobody's.
                None => self.counted = None,
            }
            let line = match self.queue.pop() {
                Some(line) => line,
                None => {
                    let limit = match self.session.account() {
                        Some(_) => limits.idle.0,
                        None => limits.login.0.saturating_sub(logged_out_since.elapsed()).min(limits.idle.0),
                    };
                    let drains = *self.shutdown.borrow() != Shutdown::None;
                    let drain = drains.then(|| (self.drain.clone(), self.link.round_trip().min(LONGEST_TRIP)));
                    let over = over(self.shutdown.clone(), drain);
                    let next = tokio::select! {
                        biased;
                        () = over => None,
                        next = timeout(limit, self.next_line()) => Some(next),
                    };
                    match next {
                        None if !drains => continue,
                        None => return self.last(421, "the server is ending").await,
                        Some(Ok(line)) if !limit.is_zero() => line?,
                        Some(_) => return self.last(421, "nothing was said for too long").await,
                    }
                }
            };
            if let Some(identity) = self.session.needs_authorities(&line) {
                identity.refresh().await;
            }
            let mut step = self.session.line(&line, now());
            // A task may lead to another step, but to no other task.
            if let Step::Do(task) = step {
                if task.moves_data() && *self.shutdown.borrow() != Shutdown::None {
                    // Commands that complete an earlier transfer are still carried out.
                    self.send(&Reply::new(450, "the server is ending, and begins no transfer")).await?;
                    self.worker.held.clear();
                    continue;
                }
                let _going_on = self.drain.begins(self.session.account(), &task);
                let outcome = self.perform(*task).await?;
                if let Some(bytes) = self.worker.sent.take() {
                    self.drain.sent(bytes);
                }
                let outcome = self.counted(outcome);
                step = self.session.done(outcome);
                // A client whose commands never run dry must not keep the thread: each may take a while.
                tokio::task::yield_now().await;
            }
            match step {
                Step::Say(reply) => self.send(&reply).await?,
                Step::Close(reply) => return Ok(self.send(&reply).await?),
                Step::Secure(reply, config) => {
                    // Commands in clear after AUTH may be an attacker's.
                    let fresh = Lines::new(limits.line.0 as usize);
                    if !std::mem::replace(&mut self.lines, fresh).rest().is_empty() || !self.queue.lines.is_empty() {
                        return self.last(503, "nothing may follow AUTH before TLS has begun").await;
                    }
                    self.send(&reply).await?;
                    self.link.protect_as_server(config, limits.login.0).await?;
                    self.session.secured();
                }
                Step::Do(_) => return self.last(451, "this cannot be done").await,
            }
            self.drain.answered(&line);
            self.worker.held.clear();
        }
    }

    /// Sends the last reply.
    async fn last(&mut self, code: u16, text: &str) -> Result<(), End> {
        Ok(self.send(&Reply::new(code, text)).await?)
    }

    async fn send(&mut self, reply: &Reply) -> io::Result<()> {
        let bytes = self.session.seal(reply);
        let limits = &self.server.config.limits;
        // A client that does not read gains no time for its login.
        let stall_timeout =
            if self.session.account().is_some() { limits.idle.0 } else { limits.idle.0.min(limits.login.0) };
        self.link.write(&bytes, stall_timeout).await
    }

    /// Returns the next command. Cancel safe.
    async fn next_line(&mut self) -> Result<Vec<u8>, End> {
        loop {
            match self.lines.take() {
                Ok(Some(line)) => match self.session.open(line) {
                    Ok(line) => return Ok(line),
                    Err(refusal) => {
                        self.send(&refusal).await?;
                        continue;
                    }
                },
                Ok(None) => {}
                Err(long) => {
                    self.send(&Reply::new(500, long.to_string())).await?;
                    return Err(End::Closed);
                }
            }
            if self.read().await? == 0 {
                return Err(End::Gone(None));
            }
        }
    }

    async fn read(&mut self) -> io::Result<usize> {
        let mut room = [0; READ];
        let len = self.link.read(&mut room).await?;
        self.lines.push(&room[..len]);
        Ok(len)
    }

    /// Carries out `task`. Meanwhile sends its preliminary replies, and handles commands that stop it.
    async fn perform(&mut self, task: Task) -> Result<Outcome, End> {
        let (replies, mut preliminary) = mpsc::channel(16);
        let (questions, mut asked) = mpsc::channel::<PresenceQuestion>(1);
        let mut doubted: Option<(oneshot::Sender<bool>, Instant)> = None;
        let (stop, stopped) = watch::channel(false);
        let client = TaskClient { replies, questions, stop: stopped };
        let mut stopping = Box::pin(reached(self.shutdown.clone(), Shutdown::Now));
        let Self { server, link, lines, session, worker, queue, .. } = self;
        let limits = &server.config.limits;
        let (stoppable, outlives) = (task.is_stoppable(), task.outlives_a_goodbye());
        let mut monitor = Monitor {
            link,
            lines,
            session,
            queue,
            limits,
            stop,
            stoppable,
            outlives,
            gone: false,
            lost: false,
            is_too_long: false,
            aborted: false,
            unread_since: None,
            given_up: false,
        };
        let mut work = Box::pin(worker.perform(task, &client));
        let (mut room, mut is_stopped) = ([0; READ], false);
        let mut checks = interval(PEER_CHECK);
        checks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let outcome = loop {
            tokio::select! {
                biased;
                Some(reply) = preliminary.recv() => monitor.send(&reply).await,
                outcome = &mut work => break outcome,
                Some(PresenceQuestion { answer, doubted_since }) = asked.recv() => match doubted_since {
                    Some(since) => {
                        // Nothing can shorten this wait. A command that arrives meanwhile may have been sent before the
                        // client was killed; there is no command that a client answers; and a client with an address of
                        // this machine may be the end of a tunnel. A client that sends ALLO does not wait.
                        let round_trip = monitor.link.round_trip().min(LONGEST_TRIP);
                        doubted = Some((answer, Instant::from_std(since) + round_trip + server.config.data.quiet.0));
                    }
                    None => {
                        // Input that has arrived is handled before the question.
                        if !monitor.catch_up().await {
                            monitor.check_peer();
                        }
                        let _ = answer.send(!monitor.has_left());
                    }
                },
                () = until(doubted.as_ref().map(|(_, until)| *until)) => {
                    // The end may be behind unread input, and a QUIT that was sent ahead says nothing of what came
                    // after it.
                    let there = monitor.catch_up().await && !monitor.gone;
                    if let Some((answer, _)) = doubted.take() {
                        let _ = answer.send(there);
                    }
                }
                () = &mut stopping, if !is_stopped => {
                    is_stopped = true;
                    let _ = monitor.stop.send(true);
                }
                // Last, since a client that never pauses keeps it ready.
                read = monitor.link.read(&mut room), if monitor.wants_input() => monitor.received(&room[..read.unwrap_or(0)]).await,
                _ = checks.tick(), if !monitor.wants_input() && !monitor.lost => monitor.check_peer(),
            }
        };
        drop(work);
        while let Ok(reply) = preliminary.try_recv() {
            monitor.send(&reply).await;
        }
        if monitor.given_up {
            let text = "more commands were sent ahead than are read (limits.ahead, limits.ahead_bytes), so that it cannot be seen whether \
                        anybody still waits for the answers";
            self.last(421, text).await?;
            return Err(End::Closed);
        }
        if monitor.aborted {
            // The reply to the transfer comes first, then the reply to ABOR.
            if let Outcome::Answer(reply) = &outcome {
                self.send(reply).await?;
            }
            return Ok(Outcome::Answer(Reply::new(226, "stopped")));
        }
        Ok(outcome)
    }

    /// Counts the connection for its user, and refuses the login if the user has too many.
    fn counted(&mut self, outcome: Outcome) -> Outcome {
        let Outcome::Login(Some(account)) = &outcome else { return outcome };
        let counted = self.server.users_now.add(account.name.clone(), self.server.config.limits.per_user);
        if counted.is_none() {
            tracing::warn!(user = account.name, "has too many connections");
            self.worker.served = None;
            // Clients that move several files at a time read from these words that they have to use fewer.
            return Outcome::Answer(Reply::new(
                530,
                "this user has too many connections; try again with fewer, or later",
            ));
        }
        tracing::info!(user = account.name, peer = %self.worker.peer, "is logged in");
        self.counted = counted;
        outcome
    }
}

/// Returns at `moment`, or never without one.
async fn until(moment: Option<Instant>) {
    match moment {
        Some(moment) => sleep_until(moment).await,
        None => std::future::pending().await,
    }
}
