//! `--log-file`: a line for all that is told, with its time, whatever is shown.

use crate::exit::Exit;
use crate::manage::time_of;
use anyhow::Result;
use phoebus_files::store::Time;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

/// The file, to which lines are appended.
#[derive(Debug)]
pub(crate) struct Log {
    path: PathBuf,
    /// None once it could not be written.
    file: Mutex<Option<File>>,
}

impl Log {
    /// Opens `path`, or makes it.
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

    /// Appends `text` as one line. Where that fails it is said once, and the copy goes on.
    pub(crate) fn line(&self, text: &str) {
        let now = Time { nanos: 0, ..Time::from(SystemTime::now()) };
        let line = format!("{} {}\n", time_of(now).1, text.replace('\n', " "));
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(open) = file.as_mut()
            && let Err(error) = open.write_all(line.as_bytes())
        {
            *file = None;
            super::tell(&format!("phoebus: cannot write {}: {}", self.path.display(), phoebus_client::reason(&error)));
        }
    }
}
