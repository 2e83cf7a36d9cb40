//! The thread that writes the audit.

use super::Queue;
use super::line::Lost;
use std::fs::File;
use std::io::{self, Write};
use std::sync::PoisonError;
use tracing::{info, warn};

/// Writes lines until the audit ends.
pub(super) fn run(queue: &Queue) {
    let mut output = Output::default();
    while let Some(line) = next(queue, &mut output) {
        let untold = std::mem::take(&mut queue.lock().untold);
        let told = if untold > 0 { output.write(&Lost::line(untold)) } else { Ok(()) };
        let is_told = told.is_ok();
        let written = told.and_then(|()| output.write(&line));
        let mut state = queue.lock();
        if !is_told {
            state.untold += untold;
        }
        let failing = match written {
            Ok(()) => {
                state.written += 1;
                None
            }
            Err(error) => {
                state.lose();
                Some(phoebus_net::reason(&error))
            }
        };
        let (before, lost) = (std::mem::replace(&mut state.failing, failing.clone()), state.lost);
        let file = state.file.clone().unwrap_or_default();
        drop(state);
        match (before, failing) {
            (None, Some(why)) => warn!(file = %file.display(), "the audit loses lines: {why}"),
            (Some(_), None) => info!(file = %file.display(), lost, "the audit is written again"),
            _ => {}
        }
    }
    queue.lock().is_running = false;
}

/// Waits for the next line. Changes to another file before that, if there is one; to none when no line waits any more. `None`
/// at the end.
fn next(queue: &Queue, output: &mut Output) -> Option<Vec<u8>> {
    let mut state = queue.lock();
    loop {
        let is_drained = state.lines.is_empty();
        if let Some(file) = state.next.take_if(|next| next.is_some() || is_drained) {
            *output = Output { file, is_torn: false };
        }
        if let Some(line) = state.lines.pop_front() {
            return Some(line);
        }
        if state.is_ended {
            return None;
        }
        state = queue.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
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
    fn write(&mut self, line: &[u8]) -> io::Result<()> {
        let Some(file) = &mut self.file else { return Ok(()) };
        if self.is_torn {
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
