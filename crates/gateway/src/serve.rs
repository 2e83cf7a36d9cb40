//! A gateway as a process: SIGTERM and SIGINT drain it, SIGHUP reloads its configuration.

use crate::config::Config;
use crate::gateway::{Gateway, StartError};
use std::path::Path;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing::{error, info};

/// How a gateway ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// All sessions had finished.
    Drained,
    /// This many sessions were ended before they had.
    Ended(usize),
}

/// Runs a gateway with `config`, which was read from `file`, until it is told to stop. The first SIGTERM or SIGINT drains
/// it, a second one ends it at once; SIGHUP reads `file` again, and keeps what is in force if that cannot be used.
///
/// # Errors
/// [`StartError`].
pub async fn serve(config: Config, file: &Path) -> Result<Outcome, StartError> {
    // Before it can be reached: whoever sees that it can may send one.
    let mut signals = Signals { term: listen(SignalKind::terminate()), int: listen(SignalKind::interrupt()) };
    let mut hangup = listen(SignalKind::hangup());
    let gateway = Gateway::start(config)?;
    loop {
        tokio::select! {
            () = signals.stop() => break,
            () = next(&mut hangup) => tokio::select! {
                () = signals.stop() => break,
                () = reload(&gateway, file) => {}
            },
        }
    }
    let ended = tokio::select! {
        ended = gateway.drain() => ended,
        () = signals.stop() => {
            info!("told to stop again: ending now");
            gateway.end().await
        }
    };
    Ok(if ended == 0 { Outcome::Drained } else { Outcome::Ended(ended) })
}

async fn reload(gateway: &Gateway, file: &Path) {
    match Config::read(file) {
        Ok(config) => {
            if let Err(why) = gateway.reload(config).await {
                error!("the new configuration cannot be used, the old one stays in force: {why}");
            }
        }
        Err(why) => error!("the new configuration cannot be used, the old one stays in force: {why}"),
    }
}

struct Signals {
    term: Option<Signal>,
    int: Option<Signal>,
}

impl Signals {
    async fn stop(&mut self) {
        tokio::select! {
            () = next(&mut self.term) => {}
            () = next(&mut self.int) => {}
        }
    }
}

fn listen(kind: SignalKind) -> Option<Signal> {
    signal(kind).inspect_err(|why| error!("a signal cannot be waited for: {why}")).ok()
}

/// The next signal of a kind; never, where it cannot be waited for.
async fn next(signal: &mut Option<Signal>) {
    match signal {
        Some(signal) => {
            signal.recv().await;
        }
        None => std::future::pending().await,
    }
}
