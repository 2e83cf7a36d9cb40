//! `--log-file`: a line with its time for each message, whatever is displayed.

use crate::exit::Exit;
use crate::human;
use anyhow::Result;
use phoebus_files::store::Time;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

/// The file, opened for appending.
#[derive(Debug)]
pub(crate) struct Log {
    path: PathBuf,
    /// `None` after a failed write.
    file: Mutex<Option<File>>,
}

impl Log {
    /// Opens or creates `path`.
    ///
    /// # Errors
    /// It cannot be written (exit code 2).
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let opened = phoebus_files::append_to(path);
        let file = opened.map_err(|error| {
            Exit::usage(format!("--log-file: cannot write {}: {}", path.display(), phoebus_client::reason(&error)))
        })?;
        Ok(Self { path: path.to_owned(), file: Mutex::new(Some(file)) })
    }

    /// Appends `text` as one line. A failure is reported once, and the copy continues.
    pub(crate) fn line(&self, text: &str) {
        let now = Time { nanos: 0, ..Time::from(SystemTime::now()) };
        let line = format!("{} {}\n", human::time(now).1, text.replace('\n', " "));
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(open) = file.as_mut()
            && let Err(error) = open.write_all(line.as_bytes())
        {
            *file = None;
            super::tell(&format!("phoebus: cannot write {}: {}", self.path.display(), phoebus_client::reason(&error)));
        }
    }
}
