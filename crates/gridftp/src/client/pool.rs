//! The control connections of a server: those in use, idle ones, and the pipe for short commands.

use super::connection_limit::ConnectionLimit;
use super::error::{is_crowded, passing};
use super::login::login;
use super::pipe::Pipe;
use super::remote::Remote;
use super::session::{KeyExchange, Session};
use phoebus_files::{Error, ErrorKind};
use phoebus_proto::gridftp::reply::Reply;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

/// Most idle connections.
const MAX_IDLE: usize = 16;

/// Idle time after which a connection is tested before use.
const FRESH: Duration = Duration::from_secs(20);

/// First and longest pause before a server with too many connections is asked again. Each pause doubles.
const CROWDED_PAUSE: Duration = Duration::from_millis(200);
const CROWDED_PAUSE_MAX: Duration = Duration::from_secs(4);

impl Remote {
    fn idle(&self) -> MutexGuard<'_, Vec<Session>> {
        self.0.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A control connection for reading, idle or new. Waits while too many are in use.
    pub(super) async fn session(&self) -> Result<Session, Error> {
        self.in_place(&self.0.reading, None).await
    }

    /// The same for writing.
    pub(super) async fn session_to_write(&self) -> Result<Session, Error> {
        self.in_place(&self.0.writing, None).await
    }

    /// The same for sending to another server. Prefers the session of the exchange of keys `met`.
    pub(super) async fn session_to_write_from(&self, met: Option<&Arc<KeyExchange>>) -> Result<Session, Error> {
        self.in_place(&self.0.writing, met).await
    }

    async fn in_place(&self, places: &ConnectionLimit, met: Option<&Arc<KeyExchange>>) -> Result<Session, Error> {
        loop {
            let place = places.wait().await.ok_or_else(|| passing(&self.0.name, "the store was closed"))?;
            let mut session = match self.rather(met).await {
                // The others continue, and this task waits for one of them.
                Err(error) if is_crowded(&error) && places.one_less() => {
                    place.forget();
                    continue;
                }
                // The last task waits for listings and transfers of the other direction, which end in time.
                Err(error) if is_crowded(&error) => self.beside_in_time().await?,
                other => other?,
            };
            session.place = Some(place);
            return Ok(session);
        }
    }

    /// The same without waiting, for listings: their readers may wait for others.
    pub(super) async fn beside(&self) -> Result<Session, Error> {
        self.rather(None).await
    }

    /// The same, preferring the session that took part in the exchange of keys.
    async fn rather(&self, met: Option<&Arc<KeyExchange>>) -> Result<Session, Error> {
        loop {
            let kept = {
                let mut idle = self.idle();
                let at = idle.iter().rposition(|kept| kept.was_at(met)).or(idle.len().checked_sub(1));
                at.map(|at| idle.remove(at))
            };
            let Some(mut session) = kept else { return login(&self.0.options, &self.0.name, &self.0.ahead).await };
            let fresh = session.used.elapsed() < FRESH;
            if session.is_ahead() && fresh {
                return Ok(session);
            }
            if !session.is_ahead() && !session.is_quiet() {
                continue;
            }
            if fresh || session.ask("NOOP").await.is_ok() {
                return Ok(session);
            }
        }
    }

    /// The same; if the server has too many connections, waits until it has fewer. Connections of others, and ones that
    /// are still closing, count too.
    pub(super) async fn beside_in_time(&self) -> Result<Session, Error> {
        let mut pause = CROWDED_PAUSE;
        loop {
            match self.beside().await {
                Err(error) if is_crowded(&error) && pause <= CROWDED_PAUSE_MAX => {
                    tokio::time::sleep(pause).await;
                    pause *= 2;
                }
                other => return other,
            }
        }
    }

    /// Keeps a connection for the next task.
    pub(super) fn keep(&self, mut session: Session) {
        let mut idle = self.idle();
        let place = session.place.take();
        session.is_transferring = false;
        if session.in_step && idle.len() < MAX_IDLE {
            idle.push(session);
            drop(idle);
            // The next holder of the place takes the session.
            return drop(place);
        }
        drop(idle);
        session.quit();
    }

    /// Prepares the next transfer while one begins, if another task waits for the session. GridFTP servers queue these
    /// commands, on which pipelining relies; others may refuse them.
    pub(super) async fn prepare_next(&self, session: &mut Session) -> Result<(), Error> {
        let wanted = self.is_waited_for() && self.0.ahead.is_taken() && self.has("SPAS");
        if wanted { self.plan().ask_ahead(session).await } else { Ok(()) }
    }

    /// Keeps a session after a transfer, prepared for the next one if another task waits.
    pub(super) async fn keep_after(&self, mut session: Session) {
        let wanted = self.is_waited_for() && self.0.ahead.is_taken() && session.in_step;
        if !wanted || self.plan().ask_ahead(&mut session).await.is_ok() {
            self.keep(session);
        }
    }

    /// Sends `lines` as one sequence, and returns the replies: on an idle connection, or on the pipe while transfers
    /// use all connections.
    pub(super) async fn ask_all(&self, lines: Vec<Vec<u8>>) -> Result<Vec<Reply>, Error> {
        let busy = self.0.reading.in_use() + self.0.writing.in_use() > 0;
        let needed = self.is_waited_for() || (busy && self.idle().is_empty());
        if let Some(place) = self.0.reading.take().filter(|_| !needed) {
            let mut session = self.beside().await?;
            session.place = Some(place);
            let replies = session.ask_all(&lines, &self.0.ahead).await?;
            self.keep(session);
            return Ok(replies);
        }
        // A pipe that ended before the lines were taken is replaced.
        for _ in 0..2 {
            let pipe = {
                let mut pipe = self.0.pipe.lock().await;
                match pipe.as_ref().filter(|pipe| pipe.is_open()) {
                    Some(pipe) => pipe.clone(),
                    None => {
                        let session = match login(&self.0.options, &self.0.name, &self.0.ahead).await {
                            Ok(session) => session,
                            // Then lines take turns with transfers. A server that shuts down finishes these, and
                            // accepts no new connection.
                            Err(error) if is_crowded(&error) || (busy && error.kind() == ErrorKind::Passing) => {
                                drop(pipe);
                                let mut session = self.session().await?;
                                let replies = session.ask_all(&lines, &self.0.ahead).await?;
                                self.keep(session);
                                return Ok(replies);
                            }
                            Err(error) => return Err(error),
                        };
                        pipe.insert(Pipe::begin(session, self.0.ahead.clone(), self.0.options.reply_timeout)).clone()
                    }
                }
            };
            if let Some(answered) = pipe.ask(lines.clone()).await {
                return answered;
            }
        }
        Err(passing(&self.0.name, "the server closed the control connection"))
    }

    /// Keeps idle connections alive.
    pub(super) fn speak(&self) {
        self.idle().retain_mut(Session::speak);
    }

    /// Closes idle connections. Under TLS, a session whose data connections were refused may have no tickets left, and
    /// so may the others.
    pub(super) fn forget_idle(&self) {
        let idle = std::mem::take(&mut *self.idle());
        idle.into_iter().for_each(Session::quit);
    }

    /// Whether a transfer waits for a control connection.
    fn is_waited_for(&self) -> bool {
        self.0.reading.waiting() + self.0.writing.waiting() > 0
    }

    /// The reply to one line.
    pub(super) async fn ask(&self, line: Vec<u8>) -> Result<Reply, Error> {
        let replies = self.ask_all(vec![line]).await?;
        replies.into_iter().next().ok_or_else(|| passing(&self.0.name, "the server did not answer"))
    }
}
