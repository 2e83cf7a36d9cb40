//! The transports that a gateway can use.

use phoebus_net::Registry;
use phoebus_net::transport::Security;

/// Stands for a transport that is chosen from measurements.
pub(crate) const AUTO: &str = "auto";

/// The transports and credentials of this gateway.
pub(super) struct Carriage {
    /// Names of transports.
    pub(super) names: Vec<String>,
    pub(super) has_credentials: bool,
}

/// Names of the built-in transports.
pub fn transports() -> Vec<String> {
    Registry::standard().names().chain(["quic"]).map(str::to_owned).collect()
}

/// The part of an error that says how to get certificates.
pub(super) const MAKE: &str = "expected [tls] with certificate, key and authorities (phoebus cert init makes them)";

impl Carriage {
    /// With or without credentials, and with the transports of these drivers.
    pub(super) fn of(has_credentials: bool, drivers: impl Iterator<Item = String>) -> Self {
        Self { names: transports().into_iter().chain(drivers).collect(), has_credentials }
    }

    /// The kinds of protection that this transport supports, the strongest first.
    pub(super) fn can(transport: &str) -> &'static [Security] {
        match transport {
            // The other transports that `auto` chooses are always encrypted.
            "tcp" | AUTO => &[Security::Encrypt, Security::Auth, Security::None],
            "quic" => &[Security::Encrypt],
            // TLS works over all of them. But ending TLS after the handshake (`auth`) gains nothing on a transport that
            // is not a socket.
            _ => &[Security::Encrypt, Security::None],
        }
    }
}
