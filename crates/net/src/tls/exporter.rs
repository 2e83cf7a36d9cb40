//! What a TLS 1.3 connection exports to bind other proofs to it (RFC 8446 §7.5, RFC 9266).
//!
//! rustls has exporters on its buffered connections only. The engine uses unbuffered ones, so it takes the exporter's secret where
//! rustls offers it for logs, computes the binding at once, and keeps nothing else.

use phoebus_proto::session::auth::scram::{Binding, EXPORTER};
use ring::{digest, hmac};
use rustls::KeyLog;
use std::sync::OnceLock;

/// rustls's name for the exporter's secret.
const SECRET: &str = "EXPORTER_SECRET";

/// The binding of one connection, once its handshake is complete.
#[derive(Default)]
pub(super) struct Exported(OnceLock<Binding>);

impl Exported {
    /// The binding.
    pub(super) fn binding(&self) -> Option<Binding> {
        self.0.get().copied()
    }
}

impl std::fmt::Debug for Exported {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Exported")
    }
}

impl KeyLog for Exported {
    fn log(&self, label: &str, _: &[u8], secret: &[u8]) {
        if label == SECRET
            && let Some(binding) = binding(secret)
        {
            let _ = self.0.set(binding);
        }
    }

    fn will_log(&self, label: &str) -> bool {
        label == SECRET
    }
}

/// The binding of a connection with this exporter's secret. `None` if the secret has not the length of a hash that TLS 1.3 uses.
fn binding(secret: &[u8]) -> Option<Binding> {
    let (mac, hash) = match secret.len() {
        32 => (hmac::HMAC_SHA256, &digest::SHA256),
        48 => (hmac::HMAC_SHA384, &digest::SHA384),
        _ => return None,
    };
    let of_nothing = digest::digest(hash, &[]);
    let derived = expand(mac, secret, EXPORTER, of_nothing.as_ref(), secret.len());
    // The context is empty.
    let exported = expand(mac, &derived, "exporter", of_nothing.as_ref(), size_of::<Binding>());
    exported.try_into().ok()
}

/// HKDF-Expand-Label for at most as many bytes as the hash has (RFC 8446 §7.1, RFC 5869 §2.3).
fn expand(mac: hmac::Algorithm, secret: &[u8], label: &str, context: &[u8], len: usize) -> Vec<u8> {
    let label = ["tls13 ", label].concat();
    let mut info = vec![(len >> 8) as u8, len as u8, label.len() as u8];
    info.extend_from_slice(label.as_bytes());
    info.push(context.len() as u8);
    info.extend_from_slice(context);
    // The number of the first block, which is enough.
    info.push(1);
    let block = hmac::sign(&hmac::Key::new(mac, secret), &info);
    block.as_ref()[..len].to_vec()
}
