//! How far the shutdown of the server has come, as its sessions see it.

/// Whether sessions may go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shutdown {
    /// The server is running.
    None,
    /// Sessions finish what they are doing.
    Draining,
    /// Sessions stop at once, and keep what they have received as drafts.
    Now,
}
