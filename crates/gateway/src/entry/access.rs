//! What a program has to show, and what an agent takes for it.

use crate::config::Mechanism;
use crate::listener_settings::ListenerSettings;
use phoebus_config::agent::Secret;
use phoebus_net::Stream;
use phoebus_net::transport::Security;
use phoebus_proto::endpoint::Endpoint;
use phoebus_proto::entry::Access;
use phoebus_proto::hex::unhex;
use std::net::SocketAddr;

/// What a program has to show on this connection.
pub(super) fn access(settings: &ListenerSettings, stream: &Stream, from: SocketAddr) -> Access {
    let has_certificate = stream.identity().is_some_and(|identity| !identity.names.is_empty());
    let has_subject = stream.identity().is_some_and(|identity| identity.subject.is_some());
    let is_private = stream.security() == Security::Encrypt || from.ip().to_canonical().is_loopback();
    let is_password = |way: &Mechanism| matches!(way, Mechanism::Scram { .. } | Mechanism::Agent(_));
    match &*settings.auth {
        [] => Access::Open,
        auth if has_certificate && auth.contains(&Mechanism::Certificate) => Access::Open,
        auth if has_subject && auth.contains(&Mechanism::Grid) => Access::Open,
        // Anyone on the path could read it.
        auth if is_private && auth.iter().any(is_password) => Access::Password,
        _ => Access::Closed,
    }
}

/// The path that a program of an agent has in place of a user's name, if its password is the agent's secret. Basic parts the two at
/// the first colon (RFC 7617 §2), which a path may have; a secret has none.
pub(super) fn path_for(secret: Secret, user: &[u8], password: &[u8]) -> Option<Vec<Endpoint>> {
    let both = [user, b":", password].concat();
    let (path, digits) = std::str::from_utf8(&both).ok()?.rsplit_once(':')?;
    if !unhex(digits).is_some_and(|given| secret.is(&given)) {
        return None;
    }
    if path.is_empty() { Some(Vec::new()) } else { Endpoint::parse_path(path).ok() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_of_an_agent_name_their_path_and_its_secret() {
        let secret = Secret([0xab; 32]);
        let digits = "ab".repeat(32);
        let path = |user: &str, password: &str| {
            let path = path_for(secret, user.as_bytes(), password.as_bytes())?;
            Some(path.iter().map(ToString::to_string).collect::<Vec<_>>().join(","))
        };
        assert_eq!(path("pg1:5006,[::1]:7", &digits).as_deref(), Some("pg1:5006,[::1]:7"));
        // As Basic parts them.
        assert_eq!(path("pg1", &format!("5006,[::1]:7:{digits}")).as_deref(), Some("pg1:5006,[::1]:7"));
        assert_eq!(path("", &digits).as_deref(), Some(""));
        for (user, password) in [("pg1", ""), ("pg1", &digits[2..]), ("a b", &digits), ("pg1", "zz"), ("", "")] {
            assert_eq!(path(user, password), None, "{user}:{password}");
        }
    }
}
