//! The audit: a line of JSON for each decision about a session or a login, in a file of its own (P8, P10).
//!
//! Sessions put lines into a bounded queue and never wait. A thread of its own writes them, so that a full or slow disk stalls
//! nothing. Lines that find no room, or cannot be written, are lost. They are counted for `phoebus status`, and the next line
//! that can be written is preceded by one that says how many are missing.

mod line;
mod writer;

pub(crate) use line::{Decision, Line, Outcome};

use crate::config::Audit as Settings;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How often the end of the writer is looked for.
const LOOK: Duration = Duration::from_millis(5);

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
    /// Lines that wait.
    lines: VecDeque<Vec<u8>>,
    /// The most of them.
    most: usize,
    /// The file in force; `None`: there is no audit.
    file: Option<PathBuf>,
    /// What the writer is to write to from now on; `Some(None)`: nothing.
    next: Option<Option<File>>,
    is_running: bool,
    is_ended: bool,
    written: u64,
    lost: u64,
    /// Lost lines that the file does not tell yet.
    untold: u64,
    failing: Option<String>,
}

/// A file for the audit, ready to be written.
#[derive(Debug)]
pub(crate) struct OpenFile {
    file: File,
    path: PathBuf,
    most: usize,
}

impl OpenFile {
    /// Opens the file, or makes it.
    ///
    /// # Errors
    /// It cannot be opened.
    pub(crate) fn open(settings: &Settings) -> io::Result<Self> {
        // A FIFO without a reader is an error at once, and one with a reader is as slow as that.
        let flags = rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::NOCTTY;
        let flags = i32::try_from(flags.bits()).unwrap_or(0);
        let file = File::options().append(true).create(true).mode(0o640).custom_flags(flags).open(&settings.file)?;
        let flags = rustix::fs::fcntl_getfl(&file)?;
        rustix::fs::fcntl_setfl(&file, flags - rustix::fs::OFlags::NONBLOCK)?;
        Ok(Self { file, path: settings.file.clone(), most: settings.queue.get() as usize })
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
        let Ok(mut text) = serde_json::to_vec(line) else { return };
        text.push(b'\n');
        let mut state = self.0.lock();
        if state.file.is_none() {
            return;
        }
        if state.lines.len() >= state.most {
            state.lose();
        } else {
            state.lines.push_back(text);
        }
        drop(state);
        self.0.changed.notify_one();
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
    fn lose(&mut self) {
        self.lost += 1;
        self.untold += 1;
    }
}
