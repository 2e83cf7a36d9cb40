//! The result of taking bytes from one end of a relay.

/// What an end delivered.
pub(crate) enum Taken {
    /// The carrier now holds bytes.
    Bytes,
    /// The peer's stream has ended.
    End,
}
