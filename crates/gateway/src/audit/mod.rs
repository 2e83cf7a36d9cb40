//! The audit: a line of JSON for each decision about a session or a login, in a file of its own (P8, P10).
//!
//! Sessions put lines into a queue, which is bounded by number and bytes, and never wait. A thread of its own writes them, so that a
//! full or slow disk stalls nothing. Lines that find no room, or cannot be written, are lost. They are counted for `phoebus status`,
//! and a line says in their place how many are missing. Of lines about strangers, only so many are written in a minute
//! (`strangers`); another line counts the rest.

mod line;
mod strangers;
mod writer;

pub(crate) use line::{Claimed, Decision, Line, Outcome};

use crate::config::Audit as Settings;
use line::Missing;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};
use strangers::Strangers;
use tracing::warn;
use writer::Opened;

/// How often the end of the writer is looked for.
const LOOK: Duration = Duration::from_millis(5);
/// The most bytes that wait, whatever the number of lines.
const BYTES_MAX: usize = 8 << 20;
/// The longest wait for a file to be opened.
const OPENING: Duration = Duration::from_secs(5);

/// The audit of a gateway.
#[derive(Debug, Default)]
pub(crate) struct Audit(Arc<Queue>);

/// The state of the audit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditStatus {
    /// The file.
    pub file: PathBuf,
    /// Lines written since the start.
    pub written: u64,
    /// Lines lost since the start.
    pub lost: u64,
    /// Why the last line could not be written, if so.
    pub failing: Option<String>,
}

#[derive(Debug, Default)]
struct Queue {
    state: Mutex<State>,
    /// Notified when there is something for the writer.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// What waits.
    queue: VecDeque<Element>,
    /// The bytes of lines in it.
    bytes: usize,
    /// The most lines.
    most: usize,
    strangers: Strangers,
    /// Lines find no room.
    is_overrun: bool,
    /// The file in force; `None`: there is no audit.
    file: Option<PathBuf>,
    /// What the writer is to write to from now on; `Some(None)`: nothing.
    next: Option<Option<Opened>>,
    is_running: bool,
    is_ended: bool,
    written: u64,
    lost: u64,
    failing: Option<String>,
}

/// What waits to be written.
#[derive(Debug)]
enum Element {
    Line(Vec<u8>),
    /// Here so many lines are missing.
    Missing(Missing),
}

/// A file for the audit, ready to be written.
#[derive(Debug)]
pub(crate) struct OpenFile {
    file: Opened,
    path: PathBuf,
    most: usize,
}

impl OpenFile {
    /// Opens the file, or makes it. Waits for at most some seconds: the file system may hang.
    ///
    /// # Errors
    /// It cannot be opened, or not in time.
    pub(crate) fn open(settings: &Settings) -> io::Result<Self> {
        let (path, most) = (settings.file.clone(), settings.queue.get() as usize);
        let (tell, told) = mpsc::channel();
        let own = path.clone();
        let open = move || {
            // Nobody waits any more if it took too long.
            let _ = tell.send(Opened::open(&own));
        };
        std::thread::Builder::new().name("audit-open".to_owned()).spawn(open)?;
        let late = |_| io::Error::new(io::ErrorKind::TimedOut, format!("it did not open in {} s", OPENING.as_secs()));
        let file = told.recv_timeout(OPENING).map_err(late)??;
        Ok(Self { file, path, most })
    }
}

impl Audit {
    /// Puts a file in force, or none. Lines that wait go to it.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(crate) fn write_to(&self, file: Option<OpenFile>) -> io::Result<()> {
        let mut state = self.0.lock();
        if file.is_some() && !state.is_running {
            let queue = self.0.clone();
            std::thread::Builder::new().name("audit".to_owned()).spawn(move || writer::run(&queue))?;
            state.is_running = true;
        }
        state.most = file.as_ref().map_or(0, |file| file.most);
        state.file = file.as_ref().map(|file| file.path.clone());
        state.next = Some(file.map(|file| file.file));
        drop(state);
        self.0.changed.notify_one();
        Ok(())
    }

    /// Whether decisions are written. If not, their lines need not be made.
    pub(crate) fn is_on(&self) -> bool {
        self.0.lock().file.is_some()
    }

    /// Adds a line. Never waits for the disk.
    pub(crate) fn add(&self, line: &Line<'_>) {
        let text = line::text(line);
        let mut state = self.0.lock();
        state.tell_left_out(Instant::now());
        self.put(state, text);
    }

    /// Adds a line about a stranger at `from`, unless there were too many.
    pub(crate) fn add_of_stranger(&self, from: IpAddr, line: &Line<'_>) {
        let (text, now) = (line::text(line), Instant::now());
        let mut state = self.0.lock();
        state.tell_left_out(now);
        if state.strangers.take(from, now) {
            self.put(state, text);
        } else {
            drop(state);
            // The writer tells of it at the end of the minute.
            self.0.changed.notify_one();
        }
    }

    fn put(&self, mut state: MutexGuard<'_, State>, text: Vec<u8>) {
        if state.file.is_none() {
            return;
        }
        let has_room = state.put(text);
        let begins = !has_room && !std::mem::replace(&mut state.is_overrun, true);
        let file = state.file.clone().unwrap_or_default();
        drop(state);
        self.0.changed.notify_one();
        if begins {
            warn!(file = %file.display(), "the audit loses lines: they are written more slowly than they come");
        }
    }

    /// The state; `None` if there is no audit.
    pub(crate) fn status(&self) -> Option<AuditStatus> {
        let state = self.0.lock();
        let State { file, written, lost, failing, .. } = &*state;
        Some(AuditStatus { file: file.clone()?, written: *written, lost: *lost, failing: failing.clone() })
    }

    /// Writes what waits, and ends; gives up after `limit`.
    pub(crate) async fn end(&self, limit: Duration) {
        self.tell_to_end();
        let ended = async {
            while self.0.lock().is_running {
                tokio::time::sleep(LOOK).await;
            }
        };
        let _ = tokio::time::timeout(limit, ended).await;
    }

    fn tell_to_end(&self) {
        self.0.lock().is_ended = true;
        self.0.changed.notify_one();
    }
}

impl Drop for Audit {
    fn drop(&mut self) {
        self.tell_to_end();
    }
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Puts a line into the queue; false if it has no room.
    fn put(&mut self, line: Vec<u8>) -> bool {
        let has_room = self.queue.len() < self.most && self.bytes + line.len() <= BYTES_MAX;
        if has_room {
            self.bytes += line.len();
            self.queue.push_back(Element::Line(line));
        } else {
            self.lost += 1;
            match self.queue.back_mut() {
                Some(Element::Missing(Missing::Lost(lost))) => *lost += 1,
                _ => self.queue.push_back(Element::Missing(Missing::Lost(1))),
            }
        }
        has_room
    }

    /// Puts into the queue how many lines about strangers were left out, if their minute is over.
    fn tell_left_out(&mut self, now: Instant) {
        if let Some(left_out) = self.strangers.over(now) {
            match self.queue.back_mut() {
                Some(Element::Missing(Missing::LeftOut(before))) => *before += left_out,
                _ => self.queue.push_back(Element::Missing(Missing::LeftOut(left_out))),
            }
        }
    }
}
