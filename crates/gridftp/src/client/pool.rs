//! The control connections of a server: those that are in use, those that are kept, and the one for commands about many files.

use super::error::passing;
use super::login::{is_crowd, login};
use super::pipe::Pipe;
use super::places::Places;
use super::remote::Remote;
use super::session::{Meeting, Session};
use phoebus_files::{Error, Sort};
use phoebus_proto::gridftp::reply::Reply;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

/// How many control connections are kept for later.
const MAX_IDLE: usize = 16;

/// After how long a connection that was kept is asked whether it still stands.
const FRESH: Duration = Duration::from_secs(20);

/// Pauses before a server that has too many connections is asked again: the first, and the longest, each twice the one before.
const CROWDED_PAUSE: Duration = Duration::from_millis(200);
const CROWDED_PAUSE_MAX: Duration = Duration::from_secs(4);

impl Remote {
    fn idle(&self) -> MutexGuard<'_, Vec<Session>> {
        self.0.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A control connection for what is read: one that was kept, or a new one. Waits while too many are in use.
    pub(super) async fn session(&self) -> Result<Session, Error> {
        self.in_place(&self.0.reading, None).await
    }

    /// The same for what is written.
    pub(super) async fn session_to_write(&self) -> Result<Session, Error> {
        self.in_place(&self.0.writing, None).await
    }

    /// The same for what another server sends: rather one that has `met` its session.
    pub(super) async fn session_to_write_from(&self, met: Option<&Arc<Meeting>>) -> Result<Session, Error> {
        self.in_place(&self.0.writing, met).await
    }

    async fn in_place(&self, places: &Places, met: Option<&Arc<Meeting>>) -> Result<Session, Error> {
        loop {
            let place = places.wait().await.ok_or_else(|| passing(&self.0.name, "the store was closed"))?;
            let mut session = match self.rather(met).await {
                // The others go on, and this one waits for one of them.
                Err(error) if is_crowded(&error) && places.one_less() => {
                    place.forget();
                    continue;
                }
                // The last one waits for those that list or carry the other way, of which one ends in time.
                Err(error) if is_crowded(&error) => self.beside_in_time().await?,
                other => other?,
            };
            session.place = Some(place);
            return Ok(session);
        }
    }

    /// The same without waiting: for listings, whose readers may wait for others.
    pub(super) async fn beside(&self) -> Result<Session, Error> {
        self.rather(None).await
    }

    /// The same, if it can be one that was at the meeting.
    async fn rather(&self, met: Option<&Arc<Meeting>>) -> Result<Session, Error> {
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

    /// The same, where the server has too many at the moment, once it has fewer. Those of others, and those that have ended but
    /// are not gone yet, count for it, too.
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

    /// Keeps a control connection for whatever comes next.
    pub(super) fn keep(&self, mut session: Session) {
        let mut idle = self.idle();
        let place = session.place.take();
        session.moving = false;
        if session.in_step && idle.len() < MAX_IDLE {
            idle.push(session);
            drop(idle);
            // Whoever gets the place finds the session.
            return drop(place);
        }
        drop(idle);
        session.quit();
    }

    /// Prepares the next transfer while one begins, if another waits for the session. Servers of GridFTP put what comes meanwhile
    /// off until its end, on which pipelining clients depend; others may refuse it then, out of turn.
    pub(super) async fn prepare_next(&self, session: &mut Session) -> Result<(), Error> {
        let wanted = self.is_waited_for() && self.0.ahead.is_taken() && self.has("SPAS");
        if wanted { self.plan().ask_ahead(session).await } else { Ok(()) }
    }

    /// Keeps a session after a transfer. If another waits for it, that is prepared.
    pub(super) async fn keep_after(&self, mut session: Session) {
        let wanted = self.is_waited_for() && self.0.ahead.is_taken() && session.in_step;
        if !wanted || self.plan().ask_ahead(&mut session).await.is_ok() {
            self.keep(session);
        }
    }

    /// The answers to `lines`, which follow each other on one control connection: on one that nobody needs, or, while transfers have
    /// all that there are, on one for such lines of all files.
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
        // One that has ended before it took them is replaced.
        for _ in 0..2 {
            let pipe = {
                let mut pipe = self.0.pipe.lock().await;
                match pipe.as_ref().filter(|pipe| pipe.is_open()) {
                    Some(pipe) => pipe.clone(),
                    None => {
                        let session = match login(&self.0.options, &self.0.name, &self.0.ahead).await {
                            Ok(session) => session,
                            // Then it takes turns with the others. A server that is ending lets these end, and takes nobody new.
                            Err(error) if is_crowded(&error) || (busy && error.sort() == Sort::Passing) => {
                                drop(pipe);
                                let mut session = self.session().await?;
                                let replies = session.ask_all(&lines, &self.0.ahead).await?;
                                self.keep(session);
                                return Ok(replies);
                            }
                            Err(error) => return Err(error),
                        };
                        pipe.insert(Pipe::begin(session, self.0.ahead.clone(), self.0.options.patience)).clone()
                    }
                }
            };
            if let Some(answered) = pipe.ask(lines.clone()).await {
                return answered;
            }
        }
        Err(passing(&self.0.name, "the server closed the control connection"))
    }

    /// Shows the server that this end is still there, on the connections that are kept.
    pub(super) fn speak(&self) {
        self.idle().retain_mut(Session::speak);
    }

    /// Parts with what was kept: under TLS, a session whose data connections were refused may have nothing left that they could
    /// resume, and others may have as little.
    pub(super) fn forget_idle(&self) {
        let idle = std::mem::take(&mut *self.idle());
        idle.into_iter().for_each(Session::quit);
    }

    /// Whether a transfer waits for a control connection.
    fn is_waited_for(&self) -> bool {
        self.0.reading.waiting() + self.0.writing.waiting() > 0
    }

    /// The answer to one line.
    pub(super) async fn ask(&self, line: Vec<u8>) -> Result<Reply, Error> {
        let replies = self.ask_all(vec![line]).await?;
        replies.into_iter().next().ok_or_else(|| passing(&self.0.name, "the server did not answer"))
    }
}

/// Whether a login failed because the server has too many already, as it says or by closing at once.
fn is_crowded(error: &Error) -> bool {
    let text = error.to_string();
    let full = ["421 ", "closed the control connection"];
    matches!(error.sort(), Sort::Passing | Sort::Denied)
        && (is_crowd(&text) || full.iter().any(|words| text.contains(words)))
}
