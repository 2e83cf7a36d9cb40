//! The identity at the other end of an accepted connection: a peer, a stranger, or someone without sufficient proof.

use crate::pool::Pool;
use crate::refusal::Refusal;
use crate::shared::Setup;
use phoebus_net::Stream;
use phoebus_net::transport::{Identity, Security};
use phoebus_proto::session::Code;
use std::net::IpAddr;
use std::sync::Arc;

/// Who has connected.
#[derive(Debug)]
pub(crate) enum PeerIdentity<'a> {
    /// A client, or someone with no more rights.
    Stranger,
    /// This peer.
    Peer(&'a Arc<Pool>),
    /// Someone who claims to be this peer, with a plausible address or certificate, on a connection that does not prove
    /// it.
    Unproved(&'a Arc<Pool>),
}

impl<'a> PeerIdentity<'a> {
    /// The identity of a neighbour that calls itself `name` on a connection from `addr`. If certificates were shown,
    /// they must prove the name. If not, neither name nor address is enough alone: a name can be claimed, and many may
    /// share an address.
    pub(crate) fn of(setup: &'a Setup, name: &str, addr: IpAddr, stream: &Stream) -> Self {
        let Some(pool) = setup.peers.get(name) else { return Self::Stranger };
        let proved = stream.identity().is_some_and(|identity| identity.names.iter().any(|own| own == name));
        match (proved, pool.is_at(addr)) {
            (false, false) => Self::Stranger,
            _ if stream.security() < pool.peer.security => Self::Unproved(pool),
            (false, true) if stream.security() > Security::None => Self::Unproved(pool),
            _ => Self::Peer(pool),
        }
    }

    /// The peer, if it is one.
    pub(crate) fn peer(&self) -> Option<&'a Arc<Pool>> {
        match self {
            Self::Peer(pool) => Some(pool),
            Self::Stranger | Self::Unproved(_) => None,
        }
    }

    /// Why its requests are refused on a connection whose listener requires at least `least`.
    pub(crate) fn refusal(&self, least: Security, stream: &Stream) -> Option<Refusal> {
        let has = stream.security();
        let reason = match self {
            Self::Unproved(pool) if has < pool.peer.security => {
                let (name, wanted) = (&pool.peer.name, pool.peer.security.name());
                format!(
                    "connections of {name} have to come with security \"{wanted}\", and this one has \"{}\"",
                    has.name()
                )
            }
            Self::Unproved(pool) => {
                // Names in a Grid certificate prove nothing to gateways.
                let shown = |identity: &Identity| match &identity.subject {
                    Some(subject) => subject.clone(),
                    None => identity.names.join(", "),
                };
                let shown = stream.identity().map(shown).unwrap_or_default();
                format!("the certificate of this connection is for {shown}, and not for {}", pool.peer.name)
            }
            _ if has < least => {
                let (least, has) = (least.name(), has.name());
                format!("this listener takes connections with security \"{least}\", and this one has \"{has}\"")
            }
            _ => return None,
        };
        Some(Refusal::new(Code::AuthRequired, reason))
    }
}
