//! Finds transports by name.

use crate::transport::Transport;
use std::sync::Arc;

/// A list of transports with unique names.
#[derive(Debug, Clone, Default)]
pub struct Registry(Vec<Arc<dyn Transport>>);

impl Registry {
    /// The transports that need no setup.
    pub fn standard() -> Self {
        let mut registry = Self::default();
        registry.add(Arc::new(crate::tcp::Tcp));
        registry.add(Arc::new(crate::udt::Udt::default()));
        registry
    }

    /// Adds a transport; it replaces one of the same name.
    pub fn add(&mut self, transport: Arc<dyn Transport>) {
        self.0.retain(|other| other.name() != transport.name());
        self.0.push(transport);
    }

    /// The transport with this name.
    pub fn get(&self, name: &str) -> Option<&Arc<dyn Transport>> {
        self.0.iter().find(|transport| transport.name() == name)
    }

    /// All names, in the order of addition.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.0.iter().map(|transport| transport.name())
    }
}
