//! Advice if a first hop is unavailable.

use phoebus_config::first_hop::By;
use phoebus_net::tls::{UNKNOWN_AUTHORITY, WANTS_CERTIFICATE};
use phoebus_proto::endpoint::Endpoint;

/// The reason, followed by options that may help.
pub(super) fn with_options(why: &str) -> String {
    let options = match why {
        why if why.contains(UNKNOWN_AUTHORITY) => ": --ca (PHOEBUS_CA) has to name the one that signed it",
        why if why.contains(WANTS_CERTIFICATE) => ": give one (--cert, --key)",
        _ => "",
    };
    format!("{why}{options}")
}

/// Advice if `gateway` did not answer over `transport` at `port`. Empty unless the transport uses UDP.
pub(super) fn of_silence(transport: &str, why: &str, gateway: &Endpoint, port: u16) -> String {
    let by_udp = [By::Quic, By::Udt].iter().any(|by| by.name() == transport);
    if !by_udp || !why.contains("no answer within") {
        return String::new();
    }
    format!(
        "; does {} have a [[listen]] with transport = \"{transport}\", and does a firewall let UDP port {port} through?",
        gateway.host
    )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a step that fails fails the test")]

    use super::*;

    #[test]
    fn only_silence_over_udp_suggests_a_filter() {
        let gateway: Endpoint = "pg1.example:5006".parse().unwrap();
        let silent = "cannot connect to 192.0.2.1:5006: no answer within 10s";
        assert_eq!(
            of_silence("quic", silent, &gateway, 5006),
            "; does pg1.example have a [[listen]] with transport = \"quic\", and does a firewall let UDP port 5006 through?"
        );
        assert_eq!(of_silence("tcp", silent, &gateway, 5006), "");
        assert_eq!(of_silence("quic", "it does not accept this end's certificate", &gateway, 5006), "");
    }
}
