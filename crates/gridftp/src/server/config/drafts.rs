//! Drafts of cut transfers.

use phoebus_proto::units::Span;
use serde::Deserialize;
use std::time::Duration;

/// How long drafts of cut transfers stay.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Drafts {
    /// Time without progress after which a draft is removed. 7 days by default, which covers a weekend. `0s` keeps
    /// drafts for ever.
    pub keep: Span,
}

impl Default for Drafts {
    fn default() -> Self {
        Self { keep: Span(Duration::from_secs(7 * 24 * 3600)) }
    }
}
