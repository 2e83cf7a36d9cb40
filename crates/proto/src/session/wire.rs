//! Framing of messages on a connection: preface, length prefix, limits, and protocol errors.

/// The first bytes of each side. No TLS record (20–24), SSH banner or HTTP request begins with the first byte, so that
/// one port can serve several protocols. The line ends reveal a middlebox that rewrites text.
pub const PREFACE: [u8; 8] = [0x89, b'P', b'H', b'B', b'\r', b'\n', 0x1a, b'\n'];
/// Bytes of the big-endian length before each message.
pub const PREFIX_LEN: usize = 4;
/// Longest message, in bytes without its prefix: room for a proxy certificate chain in AUTH, and a bound on the memory
/// that an unauthenticated peer can make a gateway hold.
pub const MESSAGE_MAX: usize = 64 * 1024;
/// Longest text field of a message, in bytes.
pub(super) const TEXT_MAX: usize = 1024;

/// How a peer broke the session protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// The first bytes are not [`PREFACE`].
    #[error("the peer does not speak the Phoebus session protocol (it began with \"{}\")", .0.escape_ascii())]
    Preface([u8; 8]),
    /// A length prefix above [`MESSAGE_MAX`].
    #[error("a message of {0} bytes was announced; at most {MESSAGE_MAX} are allowed")]
    TooLong(u32),
    /// A message of this many bytes that does not fit into the local buffer.
    #[error("a message of {0} bytes does not fit into the buffer of this end")]
    NoRoom(usize),
    /// A message that is not a valid CBOR map of its type: the message's name, and what is wrong.
    #[error("malformed {0}: {1}")]
    Malformed(&'static str, &'static str),
    /// A valid message that is not allowed in the current state.
    #[error("unexpected {got}; expected {expected}")]
    Unexpected {
        /// The message received, or the caller's action.
        got: &'static str,
        /// What was expected instead.
        expected: &'static str,
    },
    /// The peer does not support this end's version.
    #[error("the peer speaks versions {min} to {max} of the session protocol, this end version {}", super::VERSION)]
    Version {
        /// The peer's lowest version.
        min: u16,
        /// The peer's highest version.
        max: u16,
    },
    /// The peer requires features (a bit set) that this end does not know.
    #[error("the peer requires features that this end does not have (bits {0:#x})")]
    Feature(u64),
    /// OPENED carries another session identifier than the request.
    #[error("the peer answered for another session")]
    WrongSession,
    /// The peer went on before it had proved itself.
    #[error("the peer sent {0} before it had proved that it knows the user")]
    Unproved(&'static str),
    /// OPENED grants another mode than the one requested.
    #[error("the peer granted another mode than the one asked for")]
    WrongMode,
}
