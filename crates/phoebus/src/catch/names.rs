//! Addresses of the names that settings mention. Programs under the filter look names up by themselves, and connect to
//! addresses. So this process looks up the names of `PHOEBUS_ONLY` and `PHOEBUS_EXCEPT`, and the first gateway's.

use phoebus_net::dial::resolve;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};
use tokio::sync::Mutex;

/// How long addresses are used. Names of services that move have times to live of about a minute.
const AGE_MAX: Duration = Duration::from_secs(60);
/// How long a connect waits for a lookup, at most, where the last result will do otherwise.
const PATIENCE: Duration = Duration::from_secs(5);

/// Names with their addresses, looked up when they are needed.
#[derive(Debug)]
pub(super) struct Names {
    names: Vec<String>,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    at: Option<Instant>,
    pairs: Vec<(String, IpAddr)>,
}

impl Names {
    /// Nothing is looked up yet.
    pub(super) fn new(names: impl Iterator<Item = String>) -> Self {
        Self { names: names.collect(), known: Mutex::default() }
    }

    /// The pairs of a name and one of its addresses.
    pub(super) async fn pairs(&self) -> Vec<(String, IpAddr)> {
        if self.names.is_empty() {
            return Vec::new();
        }
        let mut known = self.known.lock().await;
        if known.at.is_none_or(|at| at.elapsed() > AGE_MAX) {
            let mut pairs = Vec::new();
            for name in &self.names {
                match resolve(name, 0, PATIENCE).await {
                    Ok(found) => pairs.extend(found.iter().map(|addr: &SocketAddr| (name.clone(), addr.ip()))),
                    // Earlier addresses are better than none.
                    Err(_) => pairs.extend(known.pairs.iter().filter(|(known, _)| known == name).cloned()),
                }
            }
            *known = Known { at: Some(Instant::now()), pairs };
        }
        known.pairs.clone()
    }
}
