//! A task that is aborted when its handle is dropped.

use tokio::task::{JoinError, JoinHandle};

/// The handle of a task. Dropping it aborts the task.
#[derive(Debug)]
pub(crate) struct Spawned<T>(JoinHandle<T>);

impl<T: Send + 'static> Spawned<T> {
    /// Begins `work`.
    pub(crate) fn new(work: impl Future<Output = T> + Send + 'static) -> Self {
        Self(tokio::spawn(work))
    }
}

impl<T> Spawned<T> {
    /// Whether the task has ended.
    pub(crate) fn is_over(&self) -> bool {
        self.0.is_finished()
    }

    /// Waits for the result.
    pub(crate) async fn end(mut self) -> Result<T, JoinError> {
        self.ended().await
    }

    /// The same for callers that may give up waiting and wait again later.
    pub(crate) async fn ended(&mut self) -> Result<T, JoinError> {
        (&mut self.0).await
    }
}

impl<T> Drop for Spawned<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}
