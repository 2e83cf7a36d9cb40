//! The names of methods in rules and in `speaks_for`: how a principal is known.

use phoebus_proto::session::Principal;
use phoebus_proto::session::auth::{agent, anonymous, scram, token};

/// The name of all SCRAM mechanisms.
const SCRAM: &str = "scram";
/// All names. `password` is that of programs by SOCKS and HTTP, which send a password as it is.
const KNOWN: [&str; 9] =
    [SCRAM, scram::PLAIN, scram::PLUS, token::NAME, "password", "certificate", "grid", anonymous::NAME, agent::NAME];

/// Reads a name of a method.
///
/// # Errors
/// There is no such method: a rule about it would never fit, in silence.
pub(in super::super) fn read(name: &str) -> Result<String, String> {
    match KNOWN.contains(&name) {
        true => Ok(name.to_owned()),
        false => Err(format!("there is no method \"{name}\"; expected one of: {}", KNOWN.join(", "))),
    }
}

/// Whether the principal is known by the method of this name.
pub(crate) fn is_known_by(principal: &Principal, name: &str) -> bool {
    let is_scram = || [scram::PLAIN, scram::PLUS].contains(&principal.method.as_str());
    !principal.is_nobody() && if name == SCRAM { is_scram() } else { name == principal.method }
}
