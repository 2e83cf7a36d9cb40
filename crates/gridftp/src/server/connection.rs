//! One client: its control connection, with time limits, and what goes on beside a transfer.

use super::amid::{Amid, over, told};
use super::beside::{Beside, READ, now};
use super::count::Counted;
use super::current::Shared;
use super::serve::Ending;
use super::session::task::{Outcome, Task};
use super::session::{Rules, Session, Step};
use super::waiting::Waiting;
use super::work::{Ask, Tell, Worker};
use crate::control::Link;
use phoebus_proto::gridftp::line::Lines;
use phoebus_proto::gridftp::reply::Reply;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until, timeout};

/// The longest round trip that the end of a control connection is waited for.
const LONGEST_TRIP: Duration = Duration::from_secs(2);

/// How often the kernel is asked whether the client is there, while nothing is read that would tell.
const LOOK: Duration = Duration::from_millis(500);

/// A client.
pub(super) struct Connection {
    server: Arc<Shared>,
    link: Link,
    lines: Lines,
    session: Session,
    worker: Worker,
    /// Lines that came while a task was carried out.
    waiting: Waiting,
    /// Of this user.
    counted: Option<Counted<String>>,
    /// Whether the server is about to end.
    ending: watch::Receiver<Ending>,
    /// What goes on until then.
    amid: Amid,
}

/// Why a connection came to its end.
enum End {
    /// Both sides know of it.
    Told,
    /// The client closed it, or it failed.
    Gone(Option<io::Error>),
}

impl From<io::Error> for End {
    fn from(error: io::Error) -> Self {
        Self::Gone(Some(error))
    }
}

impl Connection {
    /// Serves the client at the other end of `link` until one of the two has enough.
    pub(super) async fn serve(
        server: Arc<Shared>,
        link: Link,
        peer: SocketAddr,
        rules: Arc<Rules>,
        ending: watch::Receiver<Ending>,
    ) {
        let Ok(local) = link.local_addr() else { return };
        let (session, greeting) = Session::new(rules, peer, local);
        let worker = Worker {
            server: server.clone(),
            held: server.memory.held(peer.ip()),
            peer,
            local,
            served: None,
            channel: None,
            listens: None,
            stripes: None,
            sent: None,
        };
        let lines = Lines::new(server.config.limits.line.0 as usize);
        let waiting = Waiting::new(server.memory.held(peer.ip()));
        let amid = Amid::new(server.moving.clone(), peer.ip().to_canonical());
        let mut connection = Self { server, link, lines, session, worker, waiting, counted: None, ending, amid };
        tracing::debug!(%peer, "a client has connected");
        match connection.run(greeting).await {
            End::Told => tracing::debug!(%peer, "a client has left"),
            End::Gone(error) => {
                let reason = error.map_or("it closed the connection".to_owned(), |error| error.to_string());
                tracing::debug!(%peer, reason, "a client has gone");
            }
        }
        // What was said is delivered, whatever becomes of the rest.
        let _ = connection.link.close().await;
    }

    async fn run(&mut self, greeting: Reply) -> End {
        match self.converse(greeting).await {
            Ok(()) => End::Told,
            Err(end) => end,
        }
    }

    async fn converse(&mut self, greeting: Reply) -> Result<(), End> {
        self.say(&greeting).await?;
        let limits = self.server.config.limits.clone();
        // From here, or from when nobody is logged in again (REIN).
        let mut nobody_since = Instant::now();
        loop {
            if *self.ending.borrow() == Ending::Now {
                return self.last(421, "the server is ending").await;
            }
            if self.session.account().is_some() {
                nobody_since = Instant::now();
            }
            let line = match self.waiting.pop() {
                Some(line) => line,
                None => {
                    let patience = match self.session.account() {
                        Some(_) => limits.idle.0,
                        None => limits.login.0.saturating_sub(nobody_since.elapsed()).min(limits.idle.0),
                    };
                    let soon = *self.ending.borrow() != Ending::No;
                    let amid = soon.then(|| (self.amid.clone(), self.link.round_trip().min(LONGEST_TRIP)));
                    let over = over(self.ending.clone(), amid);
                    let next = tokio::select! {
                        biased;
                        () = over => None,
                        next = timeout(patience, self.next_line()) => Some(next),
                    };
                    match next {
                        None if !soon => continue,
                        None => return self.last(421, "the server is ending").await,
                        Some(Ok(line)) if !patience.is_zero() => line?,
                        Some(_) => return self.last(421, "nothing was said for too long").await,
                    }
                }
            };
            if let Some(own) = self.session.needs_authorities(&line) {
                own.look().await;
            }
            let mut step = self.session.line(&line, now());
            // A task may lead to another step, but to no other task.
            if let Step::Do(task) = step {
                if task.moves_data() && *self.ending.borrow() != Ending::No {
                    // What else is done over this connection about files may come to its end.
                    self.say(&Reply::new(450, "the server is ending, and begins no transfer")).await?;
                    self.worker.held.clear();
                    continue;
                }
                let _going_on = self.amid.begins(self.session.account(), &task);
                let outcome = self.perform(*task).await?;
                if let Some(bytes) = self.worker.sent.take() {
                    self.amid.sent(bytes);
                }
                let outcome = self.counted(outcome);
                step = self.session.done(outcome);
            }
            match step {
                Step::Say(reply) => self.say(&reply).await?,
                Step::Close(reply) => return Ok(self.say(&reply).await?),
                Step::Secure(reply, config) => {
                    // What came in clear behind it is nobody's.
                    let fresh = Lines::new(limits.line.0 as usize);
                    if !std::mem::replace(&mut self.lines, fresh).rest().is_empty() || !self.waiting.lines.is_empty() {
                        return self.last(503, "nothing may follow AUTH before TLS has begun").await;
                    }
                    self.say(&reply).await?;
                    self.link.protect_as_server(config, limits.login.0).await?;
                    self.session.secured();
                }
                Step::Do(_) => return self.last(451, "this cannot be done").await,
            }
            self.amid.answered(&line);
            self.worker.held.clear();
        }
    }

    /// Says why nothing more is.
    async fn last(&mut self, code: u16, text: &str) -> Result<(), End> {
        Ok(self.say(&Reply::new(code, text)).await?)
    }

    async fn say(&mut self, reply: &Reply) -> io::Result<()> {
        let bytes = self.session.seal(reply);
        let limits = &self.server.config.limits;
        // Who has not logged in has no longer for it by reading nothing.
        let stall = if self.session.account().is_some() { limits.idle.0 } else { limits.idle.0.min(limits.login.0) };
        self.link.write(&bytes, stall).await
    }

    /// The next line; cancel safe.
    async fn next_line(&mut self) -> Result<Vec<u8>, End> {
        loop {
            match self.lines.take() {
                Ok(Some(line)) => match self.session.open(line) {
                    Ok(line) => return Ok(line),
                    Err(refusal) => {
                        self.say(&refusal).await?;
                        continue;
                    }
                },
                Ok(None) => {}
                Err(long) => {
                    self.say(&Reply::new(500, long.to_string())).await?;
                    return Err(End::Told);
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

    /// Has `task` carried out, says what it has to say meanwhile, and listens for what stops it.
    async fn perform(&mut self, task: Task) -> Result<Outcome, End> {
        let (replies, mut said) = mpsc::channel(16);
        let (asks, mut asked) = mpsc::channel::<Ask>(1);
        let mut doubt: Option<(oneshot::Sender<bool>, Instant)> = None;
        let (stop, stopped) = watch::channel(false);
        let tell = Tell { replies, asks, stop: stopped };
        let mut cut = Box::pin(told(self.ending.clone(), Ending::Now));
        let Self { server, link, lines, session, worker, waiting, .. } = self;
        let limits = &server.config.limits;
        let (stoppable, outlives) = (task.is_stoppable(), task.outlives_a_goodbye());
        let mut beside = Beside {
            link,
            lines,
            session,
            waiting,
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
        let mut work = Box::pin(worker.perform(task, &tell));
        let (mut room, mut is_cut) = ([0; READ], false);
        let mut looks = interval(LOOK);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let outcome = loop {
            tokio::select! {
                biased;
                Some(reply) = said.recv() => beside.say(&reply).await,
                outcome = &mut work => break outcome,
                read = beside.link.read(&mut room), if beside.listens() => beside.came(&room[..read.unwrap_or(0)]).await,
                _ = looks.tick(), if !beside.listens() && !beside.lost => beside.look(),
                Some(Ask { answer, doubted_since }) = asked.recv() => match doubted_since {
                    Some(since) => {
                        // Nothing makes this shorter. A command that comes meanwhile may have been sent ahead by one who was killed since,
                        // and have taken longer than the data's end; a client answers nothing that it did not ask for; and behind an
                        // address of this machine may stand the end of a tunnel. Whoever sends ALLO does not wait.
                        let round_trip = beside.link.round_trip().min(LONGEST_TRIP);
                        doubt = Some((answer, Instant::from_std(since) + round_trip + server.config.data.quiet.0));
                    }
                    None => {
                        // What has come is read first, whichever of the two was seen first.
                        if !beside.catch_up().await {
                            beside.look();
                        }
                        let _ = answer.send(!beside.has_left());
                    }
                },
                () = until(doubt.as_ref().map(|(_, until)| *until)) => {
                    // Behind what nobody reads may be his end. A goodbye that was sent ahead tells nothing of what came after it.
                    let there = beside.catch_up().await && !beside.gone;
                    if let Some((answer, _)) = doubt.take() {
                        let _ = answer.send(there);
                    }
                }
                () = &mut cut, if !is_cut => {
                    is_cut = true;
                    let _ = beside.stop.send(true);
                }
            }
        };
        drop(work);
        while let Ok(reply) = said.try_recv() {
            beside.say(&reply).await;
        }
        if beside.given_up {
            let text = "more commands were sent ahead than are read (limits.ahead, limits.ahead_bytes), so that it cannot be seen whether \
                        anybody still waits for the answers";
            self.last(421, text).await?;
            return Err(End::Told);
        }
        if beside.aborted {
            // The transfer's answer, then that of ABOR.
            if let Outcome::Answer(reply) = &outcome {
                self.say(reply).await?;
            }
            return Ok(Outcome::Answer(Reply::new(226, "stopped")));
        }
        Ok(outcome)
    }

    /// Counts who has logged in, and refuses him if he has too many connections.
    fn counted(&mut self, outcome: Outcome) -> Outcome {
        let Outcome::Login(Some(account)) = &outcome else { return outcome };
        let counted = self.server.users_now.add(account.name.clone(), self.server.config.limits.per_user);
        if counted.is_none() {
            tracing::warn!(user = account.name, "has too many connections");
            self.worker.served = None;
            return Outcome::Login(None);
        }
        tracing::info!(user = account.name, peer = %self.worker.peer, "is logged in");
        self.counted = counted;
        outcome
    }
}

/// Returns at this moment; never, without one.
async fn until(moment: Option<Instant>) {
    match moment {
        Some(moment) => sleep_until(moment).await,
        None => std::future::pending().await,
    }
}
