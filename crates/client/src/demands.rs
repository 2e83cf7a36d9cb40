//! What a session is to have, and whether it has it (P9, S12; invariant 4).

use crate::error::Error;
use crate::report::Hop;
use phoebus_net::transport::Security;
use phoebus_proto::endpoint::Endpoint;

/// What the hops of a session have to have: it is refused, or given up once its report is there, if they do not.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Demands {
    /// Memory of each gateway per direction, in bytes.
    pub buffer: Option<u64>,
    /// Connections of each hop between gateways.
    pub streams: Option<u16>,
    /// What carries each hop between gateways, by the name that reports have for it.
    pub transport: Option<String>,
    /// The least protection of each hop between gateways.
    pub protection: Option<Security>,
    /// Whether the destination is to take part: the last gateway asks it for the session (S5).
    pub aware: bool,
}

impl Demands {
    /// What is not as it was asked for on the hops between gateways, given those behind `gateway`: nobody but this end knows
    /// that it was. `None` if all is.
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
        // The last one leads to the destination.
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
