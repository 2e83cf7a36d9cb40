//! The thread that writes the audit.

use super::line::Missing;
use super::{Element, Queue};
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::PoisonError;
use std::time::{Duration, Instant};
use tracing::{info, warn};

/// How long a file that could not be written is left alone, if no line comes.
const RETRY: Duration = Duration::from_secs(10);

/// What the writer does next.
enum Step {
    /// Write to another file from now on, or to none.
    Change(Option<Opened>),
    Write(Element),
    /// Tell of lines that could not be written.
    Tell,
    /// The same, and end.
    TellAndEnd,
    End,
}

/// Writes lines until the audit ends.
pub(super) fn run(queue: &Queue) {
    let (mut output, mut untold) = (Output::default(), 0);
    loop {
        let (element, is_last) = match next(queue, untold) {
            // Looks into the file, and closes the old one, which may take long.
            Step::Change(file) => {
                output = Output::new(file);
                if untold == 0 || output.file.is_none() {
                    continue;
                }
                (None, false)
            }
            Step::Write(element) => (Some(element), false),
            Step::Tell => (None, false),
            Step::TellAndEnd => (None, true),
            Step::End => break,
        };
        let told = match untold {
            0 => Ok(()),
            lost => output.write(&Missing::Lost(lost).line()),
        };
        if told.is_ok() {
            untold = 0;
        }
        let (line, own, lost) = match element {
            Some(Element::Line(line)) => (line, 1, 1),
            Some(Element::Missing(missing)) => match missing {
                Missing::Lost(lost) => (missing.line(), 0, lost),
                Missing::LeftOut(_) => (missing.line(), 1, 1),
            },
            None => (Vec::new(), 0, 0),
        };
        let written = told.and_then(|()| output.write(&line));
        let mut state = queue.lock();
        let failing = match written {
            Ok(()) => {
                state.written += own;
                None
            }
            Err(error) => {
                state.lost += own;
                untold += lost;
                Some(phoebus_net::reason(&error))
            }
        };
        let (before, lost) = (std::mem::replace(&mut state.failing, failing.clone()), state.lost);
        let file = state.file.clone().unwrap_or_default();
        let keeps_up = state.queue.is_empty() && std::mem::take(&mut state.is_overrun);
        drop(state);
        match (before, failing) {
            (None, Some(why)) => warn!(file = %file.display(), "the audit loses lines: {why}"),
            (Some(_), None) => info!(file = %file.display(), lost, "the audit is written again"),
            _ => {}
        }
        if keeps_up {
            info!(file = %file.display(), lost, "lines of the audit find room again");
        }
        if is_last {
            break;
        }
    }
    queue.lock().is_running = false;
}

/// Waits for something to do. Another file comes before that, if there is one; none, when nothing waits any more. `untold`: lines
/// that could not be written.
fn next(queue: &Queue, untold: u64) -> Step {
    let retry = Instant::now() + RETRY;
    let mut state = queue.lock();
    loop {
        state.tell_left_out(Instant::now());
        let is_drained = state.queue.is_empty();
        if let Some(file) = state.next.take_if(|next| next.is_some() || is_drained) {
            return Step::Change(file);
        }
        if let Some(element) = state.queue.pop_front() {
            if let Element::Line(line) = &element {
                state.bytes -= line.len();
            }
            return Step::Write(element);
        }
        if state.is_ended {
            return match (state.strangers.end(), untold) {
                (Some(left_out), _) => Step::Write(Element::Missing(Missing::LeftOut(left_out))),
                (None, 0) => Step::End,
                (None, _) => Step::TellAndEnd,
            };
        }
        let now = Instant::now();
        if untold > 0 && now >= retry {
            return Step::Tell;
        }
        let due = state.strangers.due().into_iter().chain((untold > 0).then_some(retry)).min();
        state = match due {
            None => queue.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            Some(due) => {
                let wait = queue.changed.wait_timeout(state, due.saturating_duration_since(now));
                wait.unwrap_or_else(PoisonError::into_inner).0
            }
        };
    }
}

/// An open file.
#[derive(Debug)]
pub(super) struct Opened {
    file: File,
    /// The same, to look at its end; `None` if it is not a regular file, or cannot be read.
    readable: Option<File>,
}

impl Opened {
    /// Opens the file at `path`, or makes it.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        // A FIFO without a reader is an error at once, and one with a reader is as slow as that.
        let flags = rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::NOCTTY;
        let flags = i32::try_from(flags.bits()).unwrap_or(0);
        let file = File::options().append(true).create(true).mode(0o640).custom_flags(flags).open(path)?;
        let flags = rustix::fs::fcntl_getfl(&file)?;
        rustix::fs::fcntl_setfl(&file, flags - rustix::fs::OFlags::NONBLOCK)?;
        let is_regular = file.metadata()?.is_file();
        let readable = if is_regular { File::open(path).ok() } else { None };
        Ok(Self { file, readable })
    }

    /// Whether the last line lacks its end, such as after a full disk. It is not asked twice.
    fn is_torn(&self) -> bool {
        let Some(readable) = &self.readable else { return false };
        let Some(last) = readable.metadata().ok().and_then(|all| all.len().checked_sub(1)) else { return false };
        let mut byte = [0];
        readable.read_exact_at(&mut byte, last).is_ok() && byte != *b"\n"
    }
}

/// Where lines go.
#[derive(Default)]
struct Output {
    file: Option<File>,
    /// The last line was cut short.
    is_torn: bool,
}

impl Output {
    fn new(file: Option<Opened>) -> Self {
        let is_torn = file.as_ref().is_some_and(Opened::is_torn);
        Self { file: file.map(|opened| opened.file), is_torn }
    }

    fn write(&mut self, line: &[u8]) -> io::Result<()> {
        let Some(file) = &mut self.file else { return Ok(()) };
        if self.is_torn && !line.is_empty() {
            file.write_all(b"\n")?;
            self.is_torn = false;
        }
        let mut rest = line;
        while !rest.is_empty() {
            match file.write(rest) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => {
                    rest = &rest[n..];
                    self.is_torn = !rest.is_empty();
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
