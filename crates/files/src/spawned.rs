//! A task that ends with whoever waits for it.

use tokio::task::{JoinError, JoinHandle};

/// A task that is under way. Dropped, it is ended.
#[derive(Debug)]
pub(crate) struct Spawned<T>(JoinHandle<T>);

impl<T: Send + 'static> Spawned<T> {
    /// Begins `work`.
    pub(crate) fn new(work: impl Future<Output = T> + Send + 'static) -> Self {
        Self(tokio::spawn(work))
    }
}

impl<T> Spawned<T> {
    /// Whether it has ended.
    pub(crate) fn is_over(&self) -> bool {
        self.0.is_finished()
    }

    /// What it comes to.
    pub(crate) async fn end(mut self) -> Result<T, JoinError> {
        self.ended().await
    }

    /// The same, once: whoever does not wait for it to the end may wait again.
    pub(crate) async fn ended(&mut self) -> Result<T, JoinError> {
        (&mut self.0).await
    }
}

impl<T> Drop for Spawned<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}
