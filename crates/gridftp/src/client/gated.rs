//! A flow that waits for permission, and an empty flow.

use super::error::passing;
use phoebus_files::block::Block;
use phoebus_files::store::{Fallible, Flow};
use std::sync::Arc;
use tokio::sync::watch;

/// State of a gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Gate {
    /// Closed.
    Closed,
    /// Open.
    Open,
    /// The flow ends without a byte.
    Nothing,
}

/// A flow that gives nothing before its gate opens.
#[derive(Debug)]
pub(super) struct Gated {
    flow: Arc<dyn Flow>,
    gate: watch::Receiver<Gate>,
}

impl Gated {
    pub(super) fn new(flow: Arc<dyn Flow>, gate: watch::Receiver<Gate>) -> Self {
        Self { flow, gate }
    }
}

impl Flow for Gated {
    fn next(&self) -> Fallible<'_, Option<Block>> {
        if *self.gate.borrow() == Gate::Open {
            return self.flow.next();
        }
        Box::pin(async {
            let said = self.gate.clone().wait_for(|gate| *gate != Gate::Closed).await.map(|gate| *gate);
            match said {
                Ok(Gate::Open) => self.flow.next().await,
                Ok(_) => Ok(None),
                Err(_) => Err(passing("upload", "the transfer was given up")),
            }
        })
    }
}

/// An empty flow.
#[derive(Debug)]
pub(super) struct Nothing;

impl Flow for Nothing {
    fn next(&self) -> Fallible<'_, Option<Block>> {
        Box::pin(async { Ok(None) })
    }
}
