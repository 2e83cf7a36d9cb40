//! `[[driver]]`: transports from shared libraries that the administrator lists (docs/guide/drivers.md, invariant 5).

use super::carriage::{AUTO, transports};
use super::reader::Reader;
use super::{ConfigError, raw};
use phoebus_net::driver::Library;
use phoebus_net::wrapblock::{Limits, WrapBlock};
use phoebus_proto::endpoint::is_name;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

/// A transport from a loaded shared library.
#[derive(Debug, Clone)]
pub struct Driver {
    /// Its name as a transport.
    pub name: String,
    /// The library.
    pub library: PathBuf,
    /// The options of all its connections.
    pub options: BTreeMap<String, String>,
    /// Limits on the host's resources that it may use.
    pub limits: Limits,
    pub(crate) transport: Arc<WrapBlock>,
}

impl PartialEq for Driver {
    fn eq(&self, other: &Self) -> bool {
        let told = |driver: &Self| (driver.name.clone(), driver.library.clone(), driver.options.clone(), driver.limits);
        told(self) == told(other)
    }
}

impl Reader<'_> {
    /// Loads all listed drivers.
    pub(super) fn drivers(&self, raw: &[raw::Driver]) -> Result<Vec<Driver>, ConfigError> {
        let mut drivers: Vec<Driver> = Vec::new();
        for driver in raw {
            let name = driver.name.get_ref();
            if !is_name(name) || name == AUTO {
                let message = format!("\"{name}\" is no name for a transport; expected one such as libudt");
                return Err(self.at(&driver.name, message));
            }
            if transports().contains(name) || drivers.iter().any(|other| other.name == *name) {
                return Err(
                    self.at(&driver.name, format!("there is a transport \"{name}\" already; expected another name"))
                );
            }
            let mut options = BTreeMap::new();
            for (key, value) in &driver.options {
                let text = match value.get_ref() {
                    toml::Value::String(text) => text.clone(),
                    toml::Value::Integer(number) => number.to_string(),
                    toml::Value::Boolean(yes) => yes.to_string(),
                    _ => return Err(self.at(value, format!("option {key} is not a text, a number, true or false"))),
                };
                options.insert(key.clone(), text);
            }
            let defaults = Limits::default();
            let limits = Limits {
                connections: driver.connections.map_or(defaults.connections, Into::into),
                buffer: driver.buffer.unwrap_or(defaults.buffer),
            };
            let library = driver.library.get_ref();
            let transport = Library::load(library)
                .and_then(|loaded| loaded.transport(name, &options, limits))
                .map_err(|error| self.at(&driver.library, error.to_string()))?;
            let (name, library, transport) = (name.clone(), library.clone(), Arc::new(transport));
            drivers.push(Driver { name, library, options, limits, transport });
        }
        Ok(drivers)
    }
}
