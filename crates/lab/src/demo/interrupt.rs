//! SIGINT and SIGTERM, checked between the steps.

use anyhow::{Result, bail};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether the user has asked to stop. Then everything is taken down in order, including files.
pub(super) struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Watches for SIGINT and SIGTERM.
    pub(super) fn watch() -> Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        let flag = Arc::new(AtomicBool::new(false));
        let raised = Arc::clone(&flag);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let guard = runtime.enter();
        let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
        drop(guard);
        std::thread::spawn(move || {
            runtime.block_on(async {
                tokio::select! { _ = interrupt.recv() => {}, _ = terminate.recv() => {} }
                raised.store(true, Ordering::Relaxed);
            });
        });
        Ok(Self(flag))
    }

    /// Fails if a signal has arrived.
    pub(super) fn check(&self) -> Result<()> {
        if self.0.load(Ordering::Relaxed) {
            bail!("interrupted");
        }
        Ok(())
    }
}
