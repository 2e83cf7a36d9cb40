//! The control connection while a task is carried out: what stops it, what waits for its end, and whether anybody is there.

use super::config::Limits;
use super::session::{Session, Step};
use super::waiting::Waiting;
use crate::control::Link;
use phoebus_net::OtherEnd;
use phoebus_proto::gridftp::line::Lines;
use phoebus_proto::gridftp::reply::Reply;
use std::io;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::watch;
use tokio::time::Instant;

/// How long a sum or a list that nothing but an answer comes of goes on for a client who cannot be heard to leave, as he has sent more
/// ahead than is read; or as long as he may say nothing, if that is less.
const UNHEARD: Duration = Duration::from_secs(60);

/// How many times as much as a client may send ahead is read while something goes on that he may stop, or that his end does.
const AT_MOST: u64 = 2;

/// How much is read from a control connection at once.
pub(super) const READ: usize = 4096;

/// The control connection while a task is carried out.
pub(super) struct Beside<'a> {
    pub(super) link: &'a mut Link,
    pub(super) lines: &'a mut Lines,
    pub(super) session: &'a mut Session,
    pub(super) waiting: &'a mut Waiting,
    pub(super) limits: &'a Limits,
    /// Tells the task to stop.
    pub(super) stop: watch::Sender<bool>,
    /// Whether ABOR is for this task.
    pub(super) stoppable: bool,
    /// Whether it goes on for a client who has said goodbye.
    pub(super) outlives: bool,
    /// Whether nothing more comes from the client.
    pub(super) gone: bool,
    /// Whether the connection has failed, so that nothing gets there either.
    pub(super) lost: bool,
    /// Whether a line is longer than may be, after which nothing more is read.
    pub(super) is_too_long: bool,
    pub(super) aborted: bool,
    /// Since when nothing more is read, though the client may be there.
    pub(super) unread_since: Option<Instant>,
    /// Whether that was for too long.
    pub(super) given_up: bool,
}

impl Beside<'_> {
    /// Says something, unless the client is gone; one that takes nothing is.
    pub(super) async fn say(&mut self, reply: &Reply) {
        let bytes = self.session.seal(reply);
        if !self.gone && self.link.write(&bytes, self.limits.idle.0).await.is_err() {
            self.gone = true;
            let _ = self.stop.send(true);
        }
    }

    /// Whether more is read: not of one that has sent enough ahead. What can be stopped may be so behind as much again.
    pub(super) fn listens(&self) -> bool {
        !self.gone && !self.is_too_long && self.waiting.has_room(self.limits, self.times())
    }

    fn times(&self) -> u64 {
        if self.stoppable { AT_MOST } else { 1 }
    }

    /// Asks the kernel who is there, where no more is read that would tell.
    pub(super) fn look(&mut self) {
        match self.link.other_end() {
            None | Some(OtherEnd::Open) => return self.doubt(),
            Some(OtherEnd::Ended) => {}
            Some(OtherEnd::Gone) => self.lost = true,
        }
        self.gone = true;
        if self.has_left() {
            let _ = self.stop.send(true);
        }
    }

    /// Waits no longer than a while for one whose end may be behind what is not read, where he has nothing but an answer of it. Where data
    /// moves, its connection tells of the end.
    fn doubt(&mut self) {
        // That others have used up the memory for all is no fault of his, and passes.
        if !self.is_too_long && self.waiting.has_own_room(self.limits, self.times()) {
            self.unread_since = None;
            return;
        }
        let since = *self.unread_since.get_or_insert_with(Instant::now);
        if self.stoppable && !self.outlives && since.elapsed() >= UNHEARD.min(self.limits.idle.0) {
            self.given_up = true;
            let _ = self.stop.send(true);
        }
    }

    /// Takes what has come, nothing being the end: what is for the task is done, and the rest waits.
    pub(super) async fn came(&mut self, bytes: &[u8]) {
        self.unread_since = None;
        self.lines.push(bytes);
        loop {
            let line = match self.lines.take() {
                Ok(Some(line)) => line,
                Ok(None) => break,
                Err(_) => {
                    // It stays, and is answered when the task has ended.
                    self.is_too_long = true;
                    break;
                }
            };
            match self.session.open(line) {
                Ok(line) if self.stoppable && is(&line, "ABOR") => {
                    self.aborted = true;
                    let _ = self.stop.send(true);
                }
                Ok(line) if is(&line, "STAT") => {
                    if let Step::Say(reply) = self.session.line(&line, now()) {
                        self.say(&reply).await;
                    }
                }
                Ok(line) => self.waiting.push(line),
                Err(refusal) => self.say(&refusal).await,
            }
        }
        if bytes.is_empty() {
            self.gone = true;
            if self.has_left() {
                let _ = self.stop.send(true);
            }
        }
    }

    /// Takes what has come already, and no more than a client that is there may send ahead: whether that is all.
    pub(super) async fn catch_up(&mut self) -> bool {
        let (mut room, mut left) = ([0; READ], self.limits.ahead_bytes.0.saturating_mul(AT_MOST));
        while !self.gone && !self.is_too_long && self.waiting.has_room(self.limits, AT_MOST) && left > 0 {
            match self.link.read_there(&mut room).await {
                Ok(len) => {
                    // What is answered at once does not wait, and may be as much as somebody likes to send.
                    left = left.saturating_sub(len.max(64) as u64);
                    self.came(&room[..len]).await;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return true,
                Err(_) => self.came(&[]).await,
            }
        }
        self.gone
    }

    /// Whether the client has ended his side without a goodbye (RFC 959, section 4.1.1, QUIT: who says it may, while a transfer goes on).
    /// What is there for its answer alone goes on as long as somebody may read it.
    pub(super) fn has_left(&self) -> bool {
        let goodbye = || self.waiting.lines.iter().any(|line| is(line, "QUIT"));
        self.gone && ((self.lost && !self.outlives) || !goodbye())
    }
}

/// Seconds since 1970.
pub(super) fn now() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
    i64::try_from(now).unwrap_or(i64::MAX)
}

/// Whether `line` is this command and no more.
fn is(line: &[u8], verb: &str) -> bool {
    line.trim_ascii().eq_ignore_ascii_case(verb.as_bytes())
}
