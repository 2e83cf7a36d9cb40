//! Transports from shared libraries that the administrator has listed (U9, U11, U12). Such a library compiles
//! against `include/phoebus_driver.h`; `docs/guide/drivers.md` explains how to write, list and debug one.
//!
//! - [`Library::load`] checks and loads a file; [`Library::transport`] makes the transport, through [`crate::wrapblock`].
//! - `file` decides which files may be loaded; `options` are a driver's settings; `table` holds the functions of a loaded
//!   library; `calls` calls them; `abi` is the header in Rust. The last three contain all `unsafe` of this module.
//!
//! A driver runs as code of this process and is trusted like it. No client can name one (invariant 5).

mod abi;
mod calls;
mod fault;
mod file;
mod options;
mod table;

pub use options::{DriverOption, ValueType};

use crate::wrapblock::{Limits, WrapBlock};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// The reason why a file cannot be used as a driver. The message is one sentence that names the file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cannot use {} as a driver: {why}", file.display())]
pub struct LoadError {
    file: PathBuf,
    why: String,
}

impl LoadError {
    /// The reason without the file's name, for readers who may not learn where files are.
    pub fn why(&self) -> &str {
        &self.why
    }

    fn new(file: &Path, why: impl Into<String>) -> Self {
        Self { file: file.into(), why: why.into() }
    }
}

/// A loaded driver. It is never unloaded, because its threads may outlive its connections.
#[derive(Debug, Clone)]
pub struct Library {
    file: PathBuf,
    table: Arc<table::Table>,
}

impl Library {
    /// Loads the driver in `file`, an absolute path from the administrator; no directory is searched.
    ///
    /// # Errors
    /// When users other than root and this process's user could have written the file, or it is no driver for
    /// this program.
    pub fn load(file: &Path) -> Result<Self, LoadError> {
        let real = file::approved(file)?;
        let table = table::Table::load(&real).map_err(|why| LoadError::new(file, why))?;
        Ok(Self { file: file.into(), table: Arc::new(table) })
    }

    /// The library's own name and version.
    pub fn title(&self) -> &str {
        &self.table.title
    }

    /// The options that the driver supports.
    pub fn options(&self) -> &[DriverOption] {
        &self.table.options
    }

    /// Makes the transport `name`, with these options from the configuration on every connection.
    ///
    /// # Errors
    /// When the driver has no such option, or does not accept the value.
    pub fn transport(
        &self,
        name: &str,
        options: &BTreeMap<String, String>,
        limits: Limits,
    ) -> Result<WrapBlock, LoadError> {
        let settings =
            options::settings(&self.table.options, options).map_err(|why| LoadError::new(&self.file, why))?;
        let driver = calls::Loaded::new(kept(name), self.table.clone());
        Ok(WrapBlock::new(Arc::new(driver), settings, limits))
    }
}

/// Interns a name for the life of the process. Reloaded configurations reuse the same few names.
fn kept(name: &str) -> &'static str {
    static NAMES: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(kept) = names.get(name) {
        return kept;
    }
    let kept: &'static str = Box::leak(name.into());
    names.insert(kept);
    kept
}
