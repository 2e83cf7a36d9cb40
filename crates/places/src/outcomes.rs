//! Reporting the outcome of an operation on several files.

use phoebus_files::Error;

/// Receives the outcome of each item of an operation.
pub trait Outcomes {
    /// `count` more items are done.
    fn done(&mut self, count: u64);

    /// An item, or a step on the way to one, failed.
    fn failed(&mut self, error: Error);

    /// The sources of `count` more copies do not tell their permissions.
    fn modes_unknown(&mut self, count: u64);

    /// Whether anything has failed so far.
    fn has_failed(&self) -> bool;

    /// Reports the result of an item.
    fn note<T>(&mut self, result: Result<T, Error>) -> Option<T> {
        let value = self.check(result);
        self.done(u64::from(value.is_some()));
        value
    }

    /// Reports the failure of a step; its success counts as nothing done.
    fn check<T>(&mut self, result: Result<T, Error>) -> Option<T> {
        result.map_err(|error| self.failed(error)).ok()
    }
}
