//! A gateway as a process: SIGTERM and SIGINT drain it, SIGHUP reloads its configuration.

use crate::config::Config;
use crate::gateway::Gateway;
use crate::start_error::StartError;
use std::path::Path;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing::{error, info};

/// How a gateway ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// All sessions finished.
    Drained,
    /// This many sessions were ended before they finished.
    Ended(usize),
}

/// Runs a gateway with `config`, which was read from `file`, until a signal stops it. The first SIGTERM or SIGINT
/// drains it, and a second one ends it at once. SIGHUP reads `file` again, and keeps the current configuration if the
/// new one is invalid.
///
/// # Errors
/// [`StartError`].
pub async fn serve(config: Config, file: &Path) -> Result<Outcome, StartError> {
    // Install handlers before the gateway is reachable: a signal may follow at once.
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

/// Waits for the next signal of a kind. Never returns if there is no handler.
async fn next(signal: &mut Option<Signal>) {
    match signal {
        Some(signal) => {
            signal.recv().await;
        }
        None => std::future::pending().await,
    }
}
