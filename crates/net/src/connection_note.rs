//! What the owner of the streams of one connection notes about it, for the next of them.

use std::any::Any;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

/// A note on a connection that carries several streams ([`Stream::connection_note`](crate::Stream::connection_note)). It lives as long
/// as the connection.
#[derive(Default)]
pub struct ConnectionNote(Mutex<Option<Arc<dyn Any + Send + Sync>>>);

impl ConnectionNote {
    /// The note, if there is one of this type.
    pub fn get<T: Any + Send + Sync>(&self) -> Option<Arc<T>> {
        let note = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        note.clone()?.downcast().ok()
    }

    /// Replaces the note.
    pub fn set<T: Any + Send + Sync>(&self, note: T) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(note));
    }
}

impl fmt::Debug for ConnectionNote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ConnectionNote")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn note_is_kept_by_its_type() {
        let note = ConnectionNote::default();
        assert!(note.get::<u32>().is_none());
        note.set(7_u32);
        assert_eq!(note.get::<u32>().as_deref(), Some(&7));
        assert!(note.get::<String>().is_none());
        note.set("ada".to_owned());
        assert!(note.get::<u32>().is_none() && note.get::<String>().is_some());
    }
}
