//! Sources and destinations of one pair of stores.

use phoebus_files::key::Key;
use phoebus_files::store::Store;
use std::sync::Arc;

/// Sources and destinations of one pair of stores.
#[derive(Debug)]
pub struct Group {
    /// The source store.
    pub source: Arc<dyn Store>,
    /// The destination store.
    pub dest: Arc<dyn Store>,
    /// Each source with its destination.
    pub items: Vec<(Key, Key)>,
}

impl Group {
    /// Whether symbolic links can be carried as links.
    pub fn has_links(&self) -> bool {
        self.without_links().is_none()
    }

    /// A store without symbolic links, if one of the two is.
    pub fn without_links(&self) -> Option<&Arc<dyn Store>> {
        [&self.source, &self.dest].into_iter().find(|store| !store.has_links())
    }
}
