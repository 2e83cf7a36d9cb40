//! The properties that a session must have, and the check of its report against them (P9, S12; invariant 4).

use crate::error::Error;
use crate::report::Hop;
use phoebus_net::transport::Security;
use phoebus_proto::endpoint::Endpoint;

/// The demanded properties of a session's hops. A session without them is refused, or given up once its report is
/// there.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Demands {
    /// Memory of each gateway per direction, in bytes.
    pub buffer: Option<u64>,
    /// Connections of each hop between gateways.
    pub streams: Option<u16>,
    /// Transport of each hop between gateways, by its name in reports.
    pub transport: Option<String>,
    /// Minimum protection of each hop between gateways.
    pub protection: Option<Security>,
    /// Whether the destination must be aware: the last gateway asks it for the session (S5).
    pub aware: bool,
    /// Whether every gateway is asked to relay datagrams beside the session
    /// ([`Stream::datagrams`](phoebus_net::Stream::datagrams)). A session without them is open all the same; a note of its report
    /// says why there are none.
    pub datagrams: bool,
}

impl Demands {
    /// The error for the first hop between gateways that does not meet the demands, or `None`. `hops` are those behind
    /// `gateway`. This end checks them because no other end knows all demands.
    pub(crate) fn missing(&self, gateway: &Endpoint, hops: &[Hop]) -> Option<Error> {
        let wanted = [
            self.transport.as_ref().map(|name| format!("transport {name}")),
            self.protection.map(|protection| format!("protection {}", protection.name())),
        ];
        let wanted: Vec<String> = wanted.into_iter().flatten().collect();
        if wanted.is_empty() {
            return None;
        }
        let wanted = wanted.join(" and ");
        // The last hop leads to the destination.
        let between = hops.split_last().map_or(hops, |(_, between)| between);
        if between.is_empty() {
            let reason =
                format!("{wanted} was asked for between gateways, but the path has a single gateway, {gateway}");
            return Some(Error::Requirement { hop: gateway.to_string(), reason });
        }
        let differs = |hop: &&Hop| {
            let carried = self.transport.as_ref().is_none_or(|transport| *transport == hop.transport);
            !carried || self.protection.is_some_and(|least| security_of(hop) < least)
        };
        let Hop { from, to, transport, security, .. } = between.iter().find(differs)?;
        let reason = format!(
            "{wanted} was asked for between gateways, but the hop from {from} to {to} has transport {transport} with protection \
             {security}"
        );
        Some(Error::Requirement { hop: from.clone(), reason })
    }
}

fn security_of(hop: &Hop) -> Security {
    let named = |security: &Security| security.name() == hop.security;
    [Security::Encrypt, Security::Auth].into_iter().find(named).unwrap_or_default()
}
