//! The client at the destination (`docs/guide/gateway/clients.md`): a PROXY header that names it, or its address as the source of
//! the connection. The other way round, a relay in front of a listener names the client of a connection.
//!
//! The client's address is the one that the first gateway has seen. Peers are believed about it, as for limits.

use crate::config::{Config, Route, is_local};
use crate::listener_settings::ListenerSettings;
use crate::refusal::Refusal;
use crate::request::Request;
use crate::rules::Belief;
use phoebus_net::tcp::{Tcp, TcpFrom};
use phoebus_net::transport::{Pending, Transport};
use phoebus_net::{Stream, code_of, reason};
use phoebus_proto::endpoint::Host;
use phoebus_proto::proxy_header::{Ends, Origin, Tlv, encode, tlv};
use phoebus_proto::session::Code;
use phoebus_proto::units::Span;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

/// How the destination is connected to: the transport, and the source address, if it is the client's.
pub(crate) struct Means {
    pub(crate) transport: Arc<dyn Transport>,
    source: Option<IpAddr>,
}

impl Means {
    /// As `route` says.
    ///
    /// # Errors
    /// The connection has to come from the client's address, and that is none that the destination could know the client by.
    pub(crate) fn of(route: Option<&Route>, request: &Request) -> Result<Self, Refusal> {
        if !route.is_some_and(|route| route.from_client) {
            return Ok(Self { transport: Arc::new(Tcp), source: None });
        }
        let source = client(request).map(|client| client.ip());
        // On another host, such an address means something else.
        let is_foreign = |source: &IpAddr| request.peer.is_none() || !is_local(*source);
        let source = source.filter(is_foreign).ok_or_else(|| {
            let why =
                format!("the client's address, {}, cannot be the source of a connection from here", request.origin);
            Refusal::new(Code::NoRoute, why)
        })?;
        Ok(Self { transport: Arc::new(TcpFrom(source)), source: Some(source) })
    }

    /// Those of `addresses` that can be connected to.
    ///
    /// # Errors
    /// All are of another family than the client's address.
    pub(crate) fn reachable(&self, addresses: Vec<SocketAddr>) -> Result<Vec<SocketAddr>, Refusal> {
        let Some(source) = self.source else { return Ok(addresses) };
        // A socket of IPv6 could not have an address of IPv4.
        let canonical = addresses.iter().map(|addr| SocketAddr::new(addr.ip().to_canonical(), addr.port()));
        let same: Vec<_> = canonical.filter(|addr| addr.is_ipv4() == source.is_ipv4()).collect();
        if same.is_empty() {
            let to: Vec<_> = addresses.iter().map(|addr| addr.ip().to_string()).collect();
            let why = format!("a connection from {source}, the client's address, cannot go to {}", to.join(", "));
            return Err(Refusal::new(Code::NoRoute, why));
        }
        Ok(same)
    }
}

/// Sends the header of `request` on `stream`, a new connection to the destination at `to`, before anything else. It must be gone
/// within `limit`.
pub(crate) async fn announce(
    config: &Config,
    request: &Request,
    (stream, to): (&Stream, SocketAddr),
    limit: Duration,
) -> Result<(), Refusal> {
    let destination = || request.destination.to_string();
    let failed = |error: &io::Error| Refusal::at(destination(), code_of(error), reason(error));
    let header = header(config, request, to)?;
    let send = async {
        let mut rest = &header[..];
        while !rest.is_empty() {
            match stream.try_write(rest, false) {
                Ok(n) => rest = &rest[n..],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => stream.writable().await?,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    };
    let late = |_| {
        let why = format!("the destination did not take the PROXY header within {}", Span(limit));
        Refusal::at(destination(), Code::TimedOut, why)
    };
    timeout(limit, send).await.map_err(late)?.map_err(|error| failed(&error))
}

/// The header of `request`, towards the destination at `to`.
fn header(config: &Config, request: &Request, to: SocketAddr) -> Result<Vec<u8>, Refusal> {
    let mut values = vec![Tlv { kind: tlv::UNIQUE_ID, value: &request.session.0 }];
    if let Host::Name(name) = &request.destination.host {
        values.push(Tlv { kind: tlv::AUTHORITY, value: name.as_bytes() });
    }
    let user = &request.principal.user;
    // A destination would take a mere claim of a peer for the truth.
    if !user.is_empty() && Belief::of(config, &request.principal).in_user(&request.principal) {
        values.push(Tlv { kind: tlv::USER, value: user.as_bytes() });
    }
    let ends = client(request).map(|client| Ends { client, to });
    encode(ends, &values).map_err(|error| Refusal::new(Code::Internal, format!("cannot name the client: {error}")))
}

/// The client's address, as far as it is one.
fn client(request: &Request) -> Option<SocketAddr> {
    let Host::Addr(addr) = request.origin.host else { return None };
    let addr = addr.to_canonical();
    (!is_of_nobody(addr)).then(|| SocketAddr::new(addr, request.origin.port))
}

/// Whether no host can have this address.
fn is_of_nobody(addr: IpAddr) -> bool {
    addr.is_unspecified() || addr.is_multicast() || addr == Ipv4Addr::BROADCAST
}

/// The client of a connection from `from` that has just been accepted. If `settings` say that a relay comes from there, a header
/// must name the client.
///
/// # Errors
/// Why there is no client.
pub(crate) async fn of_connection(
    settings: &ListenerSettings,
    pending: &mut dyn Pending,
    from: SocketAddr,
) -> Result<SocketAddr, String> {
    if !settings.is_behind(from.ip()) {
        return Ok(from);
    }
    match pending.origin().await {
        Ok(Origin::Relay) => Ok(from),
        Ok(Origin::Unknown) => Err("its PROXY header names no client".to_owned()),
        Ok(Origin::Client(Ends { client, .. })) => {
            let ip = client.ip().to_canonical();
            // Whoever comes from this host has more rights here.
            let is_near = is_local(ip) && !from.ip().to_canonical().is_loopback();
            if is_of_nobody(ip) || is_near {
                return Err(format!("its PROXY header names {ip}, which no client has"));
            }
            Ok(SocketAddr::new(ip, client.port()))
        }
        Err(error) => Err(reason(&error)),
    }
}
