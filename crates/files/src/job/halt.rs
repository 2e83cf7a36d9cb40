//! Failures that affect all objects of a job: no space, or a server that is gone. What has not begun by then is not begun.

use crate::error::{Error, ErrorKind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

/// Objects in a row that did not reach a server, each as often as it is tried, after which the server counts as gone.
const UNREACHED: usize = 4;

/// Whether a job goes on. Clones are the same.
#[derive(Debug, Clone, Default)]
pub struct Halt(Arc<State>);

#[derive(Debug, Default)]
struct State {
    is_halted: AtomicBool,
    unreached: AtomicUsize,
}

impl Halt {
    /// Whether nothing more is begun.
    pub fn is_halted(&self) -> bool {
        self.0.is_halted.load(Relaxed)
    }

    /// An object has come to its end.
    pub(super) fn ended(&self, error: Option<&Error>) {
        let is_halted = match error {
            Some(Error::Unreached { .. }) => self.0.unreached.fetch_add(1, Relaxed) + 1 >= UNREACHED,
            Some(error) if error.kind() == ErrorKind::NoSpace => true,
            // The server has answered.
            _ => {
                self.0.unreached.store(0, Relaxed);
                false
            }
        };
        if is_halted {
            self.0.is_halted.store(true, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_is_gone_after_some_objects_in_a_row() {
        let halt = Halt::default();
        let unreached = Error::Unreached { name: "h".into(), reason: "connection refused".into() };
        let refused = Error::Busy { name: "h".into() };
        for error in [Some(&unreached), Some(&unreached), Some(&unreached), None, Some(&unreached), Some(&refused)] {
            halt.ended(error);
        }
        (0..3).for_each(|_| halt.ended(Some(&unreached)));
        assert!(!halt.is_halted());
        halt.ended(Some(&unreached));
        assert!(halt.is_halted());
    }

    #[test]
    fn lack_of_space_affects_all() {
        let halt = Halt::default();
        halt.ended(Some(&Error::Store { name: "x".into(), reason: "full".into(), kind: ErrorKind::NoSpace }));
        assert!(halt.is_halted());
    }
}
