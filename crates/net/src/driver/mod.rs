//! Transports from shared libraries that the administrator has listed (U9, U11, U12). `include/phoebus_driver.h` is what such
//! a library is compiled against, `docs/guide/drivers.md` shows how to write, list and debug one.
//!
//! - [`Library::load`] checks a file and loads it; [`Library::transport`] makes the transport, by way of [`crate::wrapblock`].
//! - `file`: which files may be loaded; `options`: what a driver can be told; `table`: the functions of a loaded
//!   library; `calls`: calling them; `abi`: the header in Rust. The last three hold all `unsafe` of this module.
//!
//! A driver is code of this process: it is trusted as this program is. No client can name one (invariant 5).

mod abi;
mod calls;
mod fault;
mod file;
mod options;
mod table;

pub use options::{DriverOption, Kind};

use crate::wrapblock::{Limits, WrapBlock};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// Why a file cannot be used as a driver. One sentence that names the file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cannot use {} as a driver: {why}", file.display())]
pub struct LoadError {
    file: PathBuf,
    why: String,
}

impl LoadError {
    /// Why, without the file: for those who are not to know where files are.
    pub fn why(&self) -> &str {
        &self.why
    }

    fn new(file: &Path, why: impl Into<String>) -> Self {
        Self { file: file.into(), why: why.into() }
    }
}

/// A driver that was loaded. It is never unloaded, because its threads may outlive its connections.
#[derive(Debug, Clone)]
pub struct Library {
    file: PathBuf,
    table: Arc<table::Table>,
}

impl Library {
    /// Loads the driver in `file`. Its path is the administrator's; nothing is searched for.
    ///
    /// # Errors
    /// When others than root and this process's user could have written it, and when it is no driver for this program.
    pub fn load(file: &Path) -> Result<Self, LoadError> {
        let real = file::approved(file)?;
        let table = table::Table::load(&real).map_err(|why| LoadError::new(file, why))?;
        Ok(Self { file: file.into(), table: Arc::new(table) })
    }

    /// What the library calls itself, with its version.
    pub fn title(&self) -> &str {
        &self.table.title
    }

    /// The options that it has.
    pub fn options(&self) -> &[DriverOption] {
        &self.table.options
    }

    /// The transport `name`, with these options, as they stand in the configuration, on every connection.
    ///
    /// # Errors
    /// When the driver has no such option, or not with such a value.
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

/// The name for as long as the process lives. A configuration that is read again has the same few names.
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
