//! The account of a client.

/// An account, and its permissions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Account {
    /// The name in the configuration.
    pub name: String,
    /// Read-only.
    pub read_only: bool,
    /// Data may go to and come from other hosts than the client's.
    pub third_party: bool,
    /// The same, but only between pinned keys, and not in clear.
    pub keyed_third_party: bool,
}
