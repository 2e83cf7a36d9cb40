//! Drafts: what is left of transfers that were cut.

use phoebus_proto::units::Span;
use serde::Deserialize;
use std::time::Duration;

/// What becomes of the drafts of transfers that were cut.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Drafts {
    /// How long nobody may have gone on with one until it is removed. 7 days by default: longer than a weekend with what broke before it.
    /// `0s` keeps them for ever.
    pub keep: Span,
}

impl Default for Drafts {
    fn default() -> Self {
        Self { keep: Span(Duration::from_secs(7 * 24 * 3600)) }
    }
}
