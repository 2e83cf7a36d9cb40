//! SCRAM-SHA-256 (RFC 5802, RFC 7677): a user proves a password without sending it, and the acceptor proves that it has the
//! password's verifier (P27). Inside TLS and QUIC, both proofs are bound to the connection by its exporter (RFC 9266).
//!
//! ```text
//!   initiator                                  acceptor
//!     AUTH       header, user, nonce      ──►
//!                                         ◄──  CHALLENGE  nonce, salt, rounds
//!     AUTH       nonce, proof             ──►
//!                                         ◄──  PROVED     the acceptor's proof
//! ```

mod acceptor;
mod initiator;
mod keys;
mod text;

pub use acceptor::{Acceptor, Verifiers};
pub use initiator::{Initiator, Login};
pub use keys::{KEY_LEN, Keys, ROUNDS_MAX, ROUNDS_MIN, SALT_MAX, Salting, Verifier, seed_of};

use super::AuthError;

/// The mechanism without channel binding, for connections without TLS.
pub const PLAIN: &str = "SCRAM-SHA-256";
/// The mechanism with channel binding.
pub const PLUS: &str = "SCRAM-SHA-256-PLUS";
/// The label of the TLS exporter whose 32 bytes, without a context, bind a proof to a connection (RFC 9266 §2).
pub const EXPORTER: &str = "EXPORTER-Channel-Binding";
/// What a TLS connection exports.
pub type Binding = [u8; 32];

/// Random bytes of one end's nonce.
pub const NONCE_LEN: usize = 18;
/// The same in base64.
const NONCE_TEXT: usize = 24;
/// Longest nonce of both ends together, in letters.
const NONCES_MAX: usize = 256;
/// Longest name of a user, in bytes.
pub const USER_MAX: usize = 255;

/// The header of the first message, and what the second one repeats in base64: the header, and the exported bytes.
fn header(binding: Option<&Binding>) -> &'static str {
    if binding.is_some() { "p=tls-exporter,," } else { "n,," }
}

/// The header and the exported bytes.
struct Bound {
    bytes: [u8; 48],
    len: usize,
}

impl Bound {
    fn of(binding: Option<&Binding>) -> Self {
        let header = header(binding).as_bytes();
        let mut bytes = [0; 48];
        bytes[..header.len()].copy_from_slice(header);
        let mut len = header.len();
        if let Some(binding) = binding {
            bytes[len..len + binding.len()].copy_from_slice(binding);
            len += binding.len();
        }
        Self { bytes, len }
    }

    fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

#[cfg(test)]
mod tests;
