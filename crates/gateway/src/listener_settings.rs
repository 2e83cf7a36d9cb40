//! What a listener requires of its connections.

use crate::config::{Config, Listen, Mechanism, Net};
use phoebus_net::Stream;
use phoebus_net::transport::{Change, Security};
use phoebus_proto::entry::Entry;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

/// What a listener requires of its connections.
#[derive(Debug)]
pub(crate) struct ListenerSettings {
    /// The listener's address, as it is configured.
    pub(crate) address: SocketAddr,
    /// Their transport.
    pub(crate) transport: Box<str>,
    pub(crate) security: Security,
    pub(crate) auth: Box<[Mechanism]>,
    /// What clients may speak.
    pub(crate) entries: Box<[Entry]>,
    /// Where relays come from that name their clients.
    proxy_from: Box<[Net]>,
    pub(crate) user_timeout: Duration,
    /// The name of their profile.
    pub(crate) profile: Arc<str>,
    /// The send and receive buffers of its connections in bytes, if the memory of a session is bounded.
    buffers: Option<[u64; 2]>,
}

impl ListenerSettings {
    pub(crate) fn of(listen: &Listen, config: &Config) -> Arc<Self> {
        let profile = &listen.profile;
        let buffers = profile.send_buffer.bytes().zip(profile.receive_buffer.bytes());
        Arc::new(Self {
            buffers: buffers.filter(|_| config.buffer().is_some()).map(|(send, receive)| [send, receive]),
            address: listen.address,
            transport: listen.transport.as_str().into(),
            security: listen.security,
            auth: listen.auth.clone().into(),
            entries: listen.entries.clone().into(),
            proxy_from: listen.proxy_from.clone().into(),
            user_timeout: listen.profile.user_timeout.0,
            profile: listen.profile.name.clone(),
        })
    }

    /// Whether a connection from this address is a relay's, and has to begin with a PROXY header.
    pub(crate) fn is_behind(&self, from: IpAddr) -> bool {
        self.proxy_from.iter().any(|range| range.contains(from))
    }

    /// Reduces the buffers of `stream` to the share of one of `streams` connections. Returns false if a session's
    /// memory is bounded and the transport cannot change its buffers. A connection of a bundle is hardly ever used
    /// alone afterwards, and keeps the smaller buffers.
    pub(crate) fn share_buffers(&self, stream: &Stream, streams: u16) -> bool {
        let Some([send, receive]) = self.buffers else { return true };
        let share = |size: u64| size / u64::from(streams.max(1));
        let changes = [Change::SendBuffer(share(send)), Change::ReceiveBuffer(share(receive))];
        changes.into_iter().all(|change| stream.set(change).is_ok())
    }
}
