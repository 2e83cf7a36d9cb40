//! Data nodes.

use super::ConfigError;
use phoebus_proto::endpoint::Endpoint;
use serde::Deserialize;
use std::path::PathBuf;

/// Data nodes, which move data for the front end (S11).
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Stripes {
    /// Addresses of the nodes, as `host:port`. They may have the same configuration.
    pub nodes: Vec<String>,
    /// File with the secret of front end and nodes, which only the owner may read.
    pub secret: Option<PathBuf>,
}

impl Stripes {
    /// The nodes' endpoints. `None` without nodes.
    pub(in super::super) fn at(&self) -> Result<Option<Vec<Endpoint>>, ConfigError> {
        let at = self.nodes.iter().map(|node| node.parse());
        let at: Vec<_> = at.collect::<Result<_, _>>().map_err(|error| {
            ConfigError::Value(format!("stripes.nodes: addresses such as dn1.example:2812 were expected: {error}"))
        })?;
        Ok(Some(at).filter(|at| !at.is_empty()))
    }
}
