//! Watches the control connection during a task: commands that stop the task, commands that wait for its end, and
//! whether the client is still there.

use super::command_queue::CommandQueue;
use super::config::Limits;
use super::session::{Session, Step};
use crate::control::Link;
use phoebus_net::OtherEnd;
use phoebus_proto::gridftp::line::Lines;
use phoebus_proto::gridftp::reply::Reply;
use std::io;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::watch;
use tokio::time::Instant;

/// Longest run of a checksum or listing for a client whose end cannot be noticed, because it has sent more ahead than
/// the server reads. `limits.idle` holds if it is shorter.
const UNOBSERVED: Duration = Duration::from_secs(60);

/// During a task that the client can stop, the server reads this many times what clients may send ahead, to find ABOR
/// or the end.
const AHEAD_FACTOR: u64 = 2;

/// Most bytes of one read from a control connection.
pub(super) const READ: usize = 4096;

/// The control connection during a task.
pub(super) struct Monitor<'a> {
    pub(super) link: &'a mut Link,
    pub(super) lines: &'a mut Lines,
    pub(super) session: &'a mut Session,
    pub(super) queue: &'a mut CommandQueue,
    pub(super) limits: &'a Limits,
    /// Stops the task.
    pub(super) stop: watch::Sender<bool>,
    /// Whether ABOR stops this task.
    pub(super) stoppable: bool,
    /// Whether the task continues after the client sent QUIT and closed.
    pub(super) outlives: bool,
    /// Whether the client has ended its side of the connection.
    pub(super) gone: bool,
    /// Whether the connection has failed, so that replies do not arrive either.
    pub(super) lost: bool,
    /// Whether a line exceeds the limit. Nothing is read after it.
    pub(super) is_too_long: bool,
    pub(super) aborted: bool,
    /// Since when nothing is read although the client may be there.
    pub(super) unread_since: Option<Instant>,
    /// Whether that lasted too long, so that the task was stopped.
    pub(super) given_up: bool,
}

impl Monitor<'_> {
    /// Sends `reply`, unless the client is gone. A client that does not read within `limits.idle` counts as gone.
    pub(super) async fn send(&mut self, reply: &Reply) {
        let bytes = self.session.seal(reply);
        if !self.gone && self.link.write(&bytes, self.limits.idle.0).await.is_err() {
            self.gone = true;
            let _ = self.stop.send(true);
        }
    }

    /// Whether to read more: not from a client that has sent too much ahead.
    pub(super) fn wants_input(&self) -> bool {
        !self.gone && !self.is_too_long && self.queue.has_room(self.limits, self.ahead_factor())
    }

    fn ahead_factor(&self) -> u64 {
        if self.stoppable { AHEAD_FACTOR } else { 1 }
    }

    /// Asks the kernel whether the client is there, while no read would tell.
    pub(super) fn check_peer(&mut self) {
        match self.link.other_end() {
            None | Some(OtherEnd::Open) => return self.limit_unobserved(),
            Some(OtherEnd::Ended) => {}
            Some(OtherEnd::Gone) => self.lost = true,
        }
        self.gone = true;
        if self.has_left() {
            let _ = self.stop.send(true);
        }
    }

    /// Stops a task that gives nothing but a reply, once the client's end could not be observed for [`UNOBSERVED`]. A
    /// transfer goes on: its data connection shows the end.
    fn limit_unobserved(&mut self) {
        // A shortage that other clients cause does not count against this one.
        if !self.is_too_long && self.queue.has_own_room(self.limits, self.ahead_factor()) {
            self.unread_since = None;
            return;
        }
        let since = *self.unread_since.get_or_insert_with(Instant::now);
        if self.stoppable && !self.outlives && since.elapsed() >= UNOBSERVED.min(self.limits.idle.0) {
            self.given_up = true;
            let _ = self.stop.send(true);
        }
    }

    /// Handles received bytes; none mean the end. ABOR and STAT act at once, and other commands wait in the queue.
    pub(super) async fn received(&mut self, bytes: &[u8]) {
        self.unread_since = None;
        self.lines.push(bytes);
        loop {
            let line = match self.lines.take() {
                Ok(Some(line)) => line,
                Ok(None) => break,
                Err(_) => {
                    // The line stays, and is answered after the task.
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
                        self.send(&reply).await;
                    }
                }
                Ok(line) => self.queue.push(line),
                Err(refusal) => self.send(&refusal).await,
            }
        }
        if bytes.is_empty() {
            self.gone = true;
            if self.has_left() {
                let _ = self.stop.send(true);
            }
        }
    }

    /// Reads what has arrived already, up to what clients may send ahead. Returns whether that was all.
    pub(super) async fn catch_up(&mut self) -> bool {
        let (mut room, mut left) = ([0; READ], self.limits.ahead_bytes.0.saturating_mul(AHEAD_FACTOR));
        while !self.gone && !self.is_too_long && self.queue.has_room(self.limits, AHEAD_FACTOR) && left > 0 {
            match self.link.read_there(&mut room).await {
                Ok(len) => {
                    // Commands that are answered at once take no room in the queue, so bytes are counted here.
                    left = left.saturating_sub(len.max(64) as u64);
                    self.received(&room[..len]).await;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return true,
                Err(_) => self.received(&[]).await,
            }
        }
        self.gone
    }

    /// Whether the client has ended its side without QUIT, which it may send during a transfer (RFC 959, section
    /// 4.1.1). A task that gives only a reply needs somebody who can read it.
    pub(super) fn has_left(&self) -> bool {
        let has_quit = || self.queue.lines.iter().any(|line| is(line, "QUIT"));
        self.gone && ((self.lost && !self.outlives) || !has_quit())
    }
}

/// Seconds since 1970.
pub(super) fn now() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
    i64::try_from(now).unwrap_or(i64::MAX)
}

/// Whether `line` is the command `verb` without arguments.
fn is(line: &[u8], verb: &str) -> bool {
    line.trim_ascii().eq_ignore_ascii_case(verb.as_bytes())
}
