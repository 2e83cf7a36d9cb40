//! Errors about the users of a configuration.

/// A user, root or system account that cannot be used: one sentence, which names it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unusable(pub String);
