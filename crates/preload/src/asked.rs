//! The gateways that one connect(2) has tried.

use phoebus_proto::endpoint::EndpointRef;
use phoebus_proto::session::plan::{self, REDIRECTS};
use std::net::SocketAddr;

/// See the module. Children of fork share it, so it points only to settings, which never move.
pub(crate) struct Asked {
    first: EndpointRef<'static>,
    /// Targets of redirects. Only addresses are followed: looking up a name blocks and needs memory.
    better: [Option<SocketAddr>; REDIRECTS as usize],
}

impl Asked {
    /// Only the first gateway so far.
    pub(crate) fn only(first: EndpointRef<'static>) -> Self {
        Self { first, better: [None; REDIRECTS as usize] }
    }
}

impl plan::Asked for Asked {
    fn all(&self) -> impl DoubleEndedIterator<Item = EndpointRef<'_>> + Clone {
        std::iter::once(self.first).chain(self.better.iter().flatten().map(|address| EndpointRef::from(*address)))
    }

    fn push(&mut self, gateway: EndpointRef) {
        if let Some(slot) = self.better.iter_mut().find(|slot| slot.is_none()) {
            *slot = gateway.socket_addr();
        }
    }
}
